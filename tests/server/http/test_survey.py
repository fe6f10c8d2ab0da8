"""What a broker says of itself in numbers: metrics, partitions, readiness."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from raftlog import Consumer, Producer, limits
from raftlog.consumer_groups import GroupListing
from raftlog.consumer_groups.values import Phase
from raftlog.errors import NotLeaderError
from raftlog.replication.partition_state import PartitionState
from raftlog.server.broker import Broker
from raftlog.server.http.collect import (
    BY_NAME,
    METRICS,
    LagTimes,
    Standing,
    Survey,
    Values,
    readiness,
    render,
)
from raftlog.server.http.collect import _put_groups as put_groups
from raftlog.server.metrics import Durations
from raftlog.server.partition import Partition
from raftlog.types import TopicPartition
from tests.running import runs
from tests.server.cluster.fake import Scene, play, state_of, write
from tests.server.harness import batch_of, error_of
from tests.server.http.serving import Serving

# -- partitions and readiness ----------------------------------------------------------------------

# Partitions in numbers, and the reasons why a broker is not ready or must not be restarted.


SOUND = Standing(
    problem="", is_stopping=False, is_disk_hung=False, disk_space="", others_decide=True
)
T0 = TopicPartition("t", 0)


def of(
    state: PartitionState | None, host: Partition | None = None, *, is_live: bool = True
) -> Survey:
    survey = Survey(1)
    survey.add(T0, state, host, is_leader_live=is_live, now=0.0)
    return survey


@runs(play)
async def test_a_led_partition_is_measured_by_its_isr(s: Scene) -> None:
    for isr, numbers in (
        ([1, 2, 3], (0, 0, 0)),
        ([1, 2], (1, 1, 0)),
        ([1], (1, 0, 1)),
    ):
        state = state_of(1, 2, 3, leader=1, isr=isr, min_isr=2)
        log = s.log()
        write(log, b"a", b"b")
        host = s.host(log)
        host.lead(state, 1, lag_max_seconds=10)
        found = of(state, host)
        assert (found.under_replicated, found.at_min_isr, found.under_min_isr) == numbers
        assert (found.leading, found.following, found.offline) == (1, 0, 0)
        assert found.topics["t"].size_bytes == log.size_bytes > 0
        assert {f: lag.offsets for f, lag in found.followers.items()} == {2: 2, 3: 2}


@runs(play)
async def test_a_follower_measures_its_copy_only(s: Scene) -> None:
    state = state_of(1, 2, 3, leader=2, isr=[2], min_isr=2)
    host = s.host()
    host.follow(2, 1)
    found = of(state, host)
    assert (found.leading, found.following, found.under_replicated) == (0, 1, 0)
    assert found.out_of_sync == [T0]
    assert found.followers == {}


def test_a_partition_without_a_live_leader_is_offline() -> None:
    state = state_of(2, 3, 4, witnesses=[1], leader=2)
    assert of(None).offline == 1
    assert of(state, is_live=False).offline == 1
    found = of(state)
    assert (found.offline, found.witnessing, found.out_of_sync) == (0, 1, [])


def test_topics_over_the_limit_are_counted_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METRICS_TOPICS_MAX", 1)

    async def test(s: Scene) -> None:
        survey = Survey(1)
        for topic in ("a", "b"):
            for partition in (1, 2):  # partition 0 is on another broker
                where = TopicPartition(topic, partition)
                survey.add(where, None, s.host(), is_leader_live=True, now=0.0)
        assert list(survey.topics) == ["a"]
        assert survey.omitted_topics == {"b"}
        assert survey.following == 4

    play(test)


@pytest.mark.parametrize(
    ("isr", "standing", "reasons"),
    [
        ([1, 2, 3], {}, []),
        ([1, 2], {}, ["min.insync.replicas: 1 (t:0)"]),
        ([2, 3], {}, ["not in sync: 1 (t:0)"]),
        ([1, 2, 3], {"problem": "why"}, ["has not joined the cluster: why"]),
        ([1, 2, 3], {"is_stopping": True}, ["is stopping"]),
        ([1, 2, 3], {"is_disk_hung": True}, ["completes no sync"]),
        ([1, 2, 3], {"disk_space": "producers are refused"}, ["producers are refused"]),
        ([1, 2, 3], {"others_decide": False}, ["no majority"]),
    ],
)
def test_every_reason_is_named(
    isr: list[int], standing: dict[str, Any], reasons: list[str]
) -> None:
    survey = of(state_of(1, 2, 3, leader=isr[0], isr=isr, min_isr=2))
    values = {name: getattr(SOUND, name) for name in Standing.__slots__} | standing
    found = readiness(survey, Standing(**values))
    noted = [*found.not_ready, *found.not_safe]
    assert len(noted) == len(reasons)
    assert all(reason in text for reason, text in zip(reasons, noted, strict=True))
    assert found.is_restart_safe == (not reasons)
    is_for_restarts = reasons in (["min.insync.replicas: 1 (t:0)"], ["no majority"], [])
    assert found.is_ready == is_for_restarts


# -- metrics ---------------------------------------------------------------------------------------

# The values of metrics are those of the broker.


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


@pytest.mark.parametrize("phase", get_args(Phase))
def test_groups_of_the_classic_protocol_are_counted_in_each_phase(phase: str) -> None:
    class Groups:
        def names(self) -> list[str]:
            return ["g"]

        def listing(self, name: str) -> GroupListing:
            return GroupListing(name, phase, 1, "classic")

        def committed_topics(self, _name: str) -> list[str]:
            return []

    coordinator = SimpleNamespace(shards=lambda: [SimpleNamespace(loaded=Groups())])
    broker = cast(Broker, SimpleNamespace(context=SimpleNamespace(coordinator=coordinator)))
    values = Values()
    assert asyncio.run(put_groups(broker, values, LagTimes())) == 0
    states = {sample.labels[0]: sample.value for sample in values.of("raftlog_groups")}
    assert {**dict.fromkeys((*get_args(Phase), "reconciling"), 0), phase: 1} == states


def test_metrics_end_with_the_groups_that_are_not_known(http: Serving) -> None:
    coordinator = http.broker.broker.context.coordinator
    http.broker.call(lambda: coordinator.close(NotLeaderError("no longer")))
    assert ("raftlog_groups", "empty") not in http.metrics()


# -- exposition ------------------------------------------------------------------------------------
#
# The text of metrics, read back by the parsers of its two formats.


def some_values() -> Values:
    durations = Durations()
    for seconds in (0.0001, 0.3, 99.0):
        durations.observe(seconds)
    values = Values()
    values.put("raftlog_log_bytes", 7, 'a"b\\\n')
    values.put("raftlog_produced_bytes_total", 8)
    values.put_durations("raftlog_request_seconds", durations, "produce")
    return values


def test_both_formats_have_the_values() -> None:
    for accept, parse, kind in (
        ("application/openmetrics-text; version=1.0.0", parse_openmetrics, "openmetrics"),
        ("", parse_text, "text/plain"),
    ):
        body, content_type = render(some_values(), accept)
        assert kind in content_type
        found = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in parse(body.decode())
            for sample in family.samples
        }
        assert found["raftlog_log_bytes", ("topic", 'a"b\\\n')] == 7
        assert found["raftlog_produced_bytes_total",] == 8
        name, api = "raftlog_request_seconds", ("api", "produce")
        assert found[f"{name}_count", api] == 3
        assert found[f"{name}_sum", api] == 99.3001
        assert found[f"{name}_bucket", api, ("le", "0.5")] == 2
        assert found[f"{name}_bucket", api, ("le", "+Inf")] == 3
        assert any(key[0] == "process_resident_memory_bytes" for key in found)


# -- lag times -------------------------------------------------------------------------------------
#
# Lag in seconds, from samples of a high watermark.


def test_the_time_of_a_record_is_interpolated() -> None:
    lags = LagTimes()
    assert lags.age_s("id", 0, 0, 100, 10.0) == 0.0, "no earlier sample: at least this"
    assert lags.age_s("id", 0, 0, 100, 25.0) == 15.0
    assert lags.age_s("id", 0, 100, 100, 40.0) == 0.0, "nothing is left"
    # The records from 100 on came after 40 s, though nothing was added for 30 s before.
    assert lags.age_s("id", 0, 100, 200, 50.0) == 10.0
    assert lags.age_s("id", 0, 150, 200, 60.0) == 15.0
    assert lags.age_s("id", 0, 99, 200, 60.0) == pytest.approx(50.0)
    assert lags.age_s("other", 0, 0, 5, 60.0) == 0.0
    assert lags.age_s("id", 0, 99, 120, 70.0) == 0.0, "records were lost: samples restart"
    assert lags.age_s("id", 0, 99, 120, 75.0) == 5.0


def test_old_samples_become_sparse_and_the_oldest_is_kept() -> None:
    lags = LagTimes()
    for second in range(1_000):
        age = lags.age_s("id", 0, 0, second + 1, float(second))
        assert age == second
        assert len(lags._samples["id", 0]) <= limits.METRICS_LAG_SAMPLES_MAX
    for committed in (100, 500, 990, 999):
        age = lags.age_s("id", 0, committed, 1_000, 999.0)
        assert age == pytest.approx(1_000 - committed - 1, abs=2)


def test_more_partitions_than_have_a_lag_take_it_from_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are asked in turn: to forget the one asked least recently would leave none a sample."""
    monkeypatch.setattr(limits, "METRICS_LAG_PARTITIONS_MAX", 2)
    lags = LagTimes()
    for second in (0.0, 10.0, 20.0):
        ages = [lags.age_s("id", partition, 0, 1, second) for partition in range(4)]
        assert ages == [second, second, 0.0, 0.0]
    assert len(lags._samples) == 2


def test_partitions_that_lag_come_before_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METRICS_LAG_PARTITIONS_MAX", 2)
    lags = LagTimes()
    for second in (0.0, 10.0):
        ages = [
            lags.age_s("id", partition, committed, 1, second)
            for partition, committed in enumerate((0, 1, 1, 0))
        ]
        assert ages == [second, 0.0, 0.0, second]


def test_a_partition_that_is_not_asked_for_any_more_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "METRICS_LAG_PARTITIONS_MAX", 2)
    lags = LagTimes()
    for partition, second in ((0, 0.0), (1, 1.0), (2, limits.METRICS_LAG_KEPT_S)):
        lags.age_s("id", partition, 0, 1, second)
    assert list(lags._samples) == [("id", 1), ("id", 2)]
    lags.age_s("id", 3, 0, 1, limits.METRICS_LAG_KEPT_S)
    assert list(lags._samples) == [("id", 1), ("id", 2)]


# -- series ----------------------------------------------------------------------------------------
#
# The table of metrics: names that Prometheus users expect, and values of these only.


def test_names_follow_the_conventions() -> None:
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"raftlog_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.name.endswith("_seconds") or metric.kind != "histogram", metric.name
        assert metric.help.endswith("."), metric.name
        assert "partition" not in metric.labels, "a topic may have 10,000"


def test_a_value_belongs_to_a_metric_and_has_its_labels() -> None:
    values = Values()
    values.put_all("raftlog_log_bytes", {"b": 2, "a": 1})
    assert [(sample.labels, sample.value) for sample in values.of("raftlog_log_bytes")] == [
        (("a",), 1.0),
        (("b",), 2.0),
    ]
    with pytest.raises(KeyError):
        values.put("raftlog_unknown", 1)
    with pytest.raises(AssertionError):
        values.put("raftlog_log_bytes", 1)
    with pytest.raises(AssertionError):
        values.put_durations("raftlog_log_bytes", Durations(), "a")
