"""Ranges read from a real cluster while its brokers die and its topics change."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from raftlog import Admin, NewTopic, Producer, TopicPartition
from raftlog.client.readers import RangeReader
from raftlog.errors import OffsetOutOfRangeError, UnknownTopicError
from raftlog.testing import Cluster

pytestmark = pytest.mark.integration

RECORDS = 30_000
TP = TopicPartition("t", 0)


def written(bootstrap: str) -> str:
    """Make the topic, with records that say their offsets; its id."""
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic("t", replication_factor=3)])
        values = [b"%d %s" % (offset, b"x" * 500) for offset in range(RECORDS)]
        with Producer(bootstrap, batch_bytes_max=50_000) as producer:
            producer.send_many("t", values).result(30)
        (described,) = admin.describe_topics(["t"])
        return described.id


@pytest.mark.raftlog_cluster(brokers=3)
def test_every_record_once_whatever_happens_and_else_an_error(raftlog_cluster: Cluster) -> None:
    bootstrap = raftlog_cluster.bootstrap
    topic_id = written(bootstrap)
    options: dict[str, Any] = {"max_partition_fetch_bytes": 50_000, "fetch_max_wait_ms": 100}
    with (
        RangeReader(bootstrap, read_from="leader", **options) as by_leader,
        RangeReader(bootstrap, **options) as by_any,
    ):
        reads = [
            reader.read(TP, 1_234, RECORDS - 7, topic_id=topic_id, rows_max=1_000)
            for reader in (by_leader, by_any)
        ]
        found = [[next(read), next(read)] for read in reads]
        leader = raftlog_cluster.leader(*TP)
        assert leader is not None
        raftlog_cluster.broker(leader).kill()
        for read, before in zip(reads, found, strict=True):
            portions = [*before, *read]
            offsets = chain.from_iterable(p.column("offset").to_pylist() for p in portions)
            assert list(offsets) == list(range(1_234, RECORDS - 7))
            values = chain.from_iterable(p.column("value").to_pylist() for p in portions)
            assert [int(value.split()[0]) for value in values] == list(range(1_234, RECORDS - 7))
        with Admin(bootstrap) as admin:
            read = by_leader.read(TP, 0, RECORDS, rows_max=1_000)
            rows = [next(read).num_rows]
            admin.delete_records({TP: RECORDS - 10})
            with pytest.raises(
                OffsetOutOfRangeError, match=f"below the log start offset {RECORDS - 10}"
            ):
                rows.extend(portion.num_rows for portion in read)
            assert by_leader.position == sum(rows) < RECORDS - 10
            read = by_any.read(TP, RECORDS - 10, RECORDS, topic_id=topic_id, rows_max=1_000)
            assert next(read).num_rows == 10
            with pytest.raises(OffsetOutOfRangeError, match=f"ends at offset {RECORDS}, before"):
                next(by_any.read(TP, RECORDS + 1, RECORDS + 2))
            admin.delete_topics(["t"])
            admin.create_topics([NewTopic("t", replication_factor=2)])
            with Producer(bootstrap) as producer:
                producer.send_many("t", [b"new"] * 10).result(30)
            assert sum(p.num_rows for p in by_any.read(TP, 0, 10)) == 10
            with pytest.raises(
                UnknownTopicError, match=f"deleted and created again: .* not {topic_id}"
            ):
                list(by_any.read(TP, 0, 10, topic_id=topic_id))
