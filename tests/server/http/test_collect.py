"""The values of metrics are those of the broker."""

from __future__ import annotations

import pytest

from raftlog import Consumer, Producer, TopicPartition, limits
from raftlog.errors import NotLeaderError
from tests.server.harness import batch_of, error_of
from tests.server.http.serving import Serving


def test_what_clients_did_is_what_metrics_say(http: Serving) -> None:
    with http.broker.client() as client:
        client.create("t", partitions=2)
        client.produce("t", batch_of(b"a", b"b"))
        client.produce("t", batch_of(b"c"))
        client.fetch("t")
        assert error_of(client.produce("t", batch_of(b"c"), partition=7))
        found = http.metrics()
        connections = found["raftlog_connections",]
    assert connections == 1
    assert found["raftlog_produced_batches_total",] == 2
    assert found["raftlog_produced_records_total",] == 3
    assert found["raftlog_produced_bytes_total",] == found["raftlog_fetched_bytes_total",] > 0
    assert found["raftlog_log_bytes", "t"] == found["raftlog_log_appended_bytes_total", "t"]
    assert found["raftlog_log_bytes", "t"] == found["raftlog_produced_bytes_total",]
    assert found["raftlog_log_segments", "t"] == 1  # an empty log has none
    assert found["raftlog_partitions", "leader"] == 2
    assert found["raftlog_request_seconds_count", "produce"] == 3
    assert found["raftlog_request_seconds_count", "fetch"] == 1
    assert found["raftlog_request_errors_total", "UnknownPartitionError"] == 1
    assert found["raftlog_commit_seconds_count",] == 2
    assert 1 <= found["raftlog_fsync_seconds_count",] <= 3
    assert found["raftlog_fsync_seconds_sum",] > 0
    assert found["raftlog_ready",] == found["raftlog_controller",] == 1
    assert found["raftlog_disk_level",] == 0
    assert found["raftlog_disk_size_bytes",] > found["raftlog_disk_free_bytes",] > 0
    assert found["raftlog_offline_partitions",] == found["raftlog_omitted_series",] == 0


def consume(http: Serving, group: str, count: int) -> None:
    """Commit ``count`` records of t."""
    with Consumer(str(http.broker.address), group=group, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        read = 0
        while read < count:
            read += len(consumer.poll(timeout_ms=5_000, max_records=count - read))
        consumer.commit()


def test_a_group_lags_by_what_it_has_not_committed(
    http: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http.broker.client() as client:
        client.create("t")
    with Producer(str(http.broker.address)) as producer:
        producer.send_many("t", [b"x"] * 5).result(timeout=10)
    consume(http, "g", 3)
    found = http.metrics()
    assert found["raftlog_group_lag_offsets", "g", "t"] == 2
    assert found["raftlog_group_lag_unknown_partitions", "g", "t"] == 0
    assert found["raftlog_group_lag_seconds", "g", "t"] == 0  # no earlier sample
    assert found["raftlog_group_members", "g"] == 0
    assert found["raftlog_groups", "empty"] == 1
    monkeypatch.setattr(limits, "METRICS_KEPT_S", 0.0)
    monkeypatch.setattr(limits, "METRICS_GROUPS_MAX", 0)
    found = http.metrics()
    assert ("raftlog_group_members", "g") not in found
    assert found["raftlog_omitted_series",] == 1
    assert found["raftlog_groups", "empty"] == 1


def test_metrics_end_with_the_groups_that_are_not_known(http: Serving) -> None:
    coordinator = http.broker.broker.context.coordinator
    http.broker.call(lambda: coordinator.close(NotLeaderError("no longer")))
    assert ("raftlog_groups", "empty") not in http.metrics()
