"""Clients of Kafka's protocol that workloads use as they use raftlog's."""

from __future__ import annotations

import asyncio

import confluent_kafka as kafka
import pytest

from raftlog import Admin, NewTopic
from raftlog.errors import (
    InstanceFencedError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    RaftlogError,
)
from raftlog.testing import Cluster, cluster
from raftlog.types import OffsetAndMetadata, OffsetRange, TopicPartition
from raftlog_jepsen.kafka_clients import KafkaConsumer, KafkaProducer, delivery, error_of

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (kafka.KafkaError._MSG_TIMED_OUT, OutcomeUnknownError),
        (kafka.KafkaError.NOT_ENOUGH_REPLICAS, OutcomeUnknownError),
        (kafka.KafkaError._AUTO_OFFSET_RESET, OffsetOutOfRangeError),
        (kafka.KafkaError.FENCED_INSTANCE_ID, InstanceFencedError),
        (kafka.KafkaError.UNRELEASED_INSTANCE_ID, InstanceFencedError),
    ],
)
def test_the_outcome_of_what_fails_is_unknown(code: int, kind: type[RaftlogError]) -> None:
    assert type(error_of(kafka.KafkaError(code))) is kind


def test_idempotent_producers_send_nothing_with_a_new_epoch() -> None:
    """librdkafka would repeat records (chaos seeds 63001, 63003)."""
    asked = delivery(idempotent=True, timeout_ms=5_000)
    assert asked == {"message.timeout.ms": 0, "max.in.flight": 1}
    asked = delivery(idempotent=False, timeout_ms=5_000)
    assert asked == {"message.timeout.ms": 5_000, "max.in.flight": 5, "retries": 0}


@pytest.mark.integration
def test_records_offsets_and_notes_make_the_round_trip() -> None:
    with cluster(1) as running:
        with Admin(running.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 2, 1)])
        asyncio.run(_round_trip(running))


async def _round_trip(running: Cluster) -> None:
    producer = KafkaProducer(
        running.bootstrap,
        acks=-1,
        idempotent=True,
        compression="lz4",
        linger_ms=5,
        request_timeout_ms=5_000,
        delivery_timeout_ms=10_000,
        metadata_max_age_ms=3_000,
        client_id="p",
    )
    assert await (await producer.send("t", b"0", partition=0)) == [OffsetRange(*ONE, 0, 0)]
    several = await producer.send_many(
        "t", [b"1", None], partition=0, keys=[b"k", b"l"], headers=[[("h", b"v")], []]
    )
    assert await several == [OffsetRange(*ONE, 1, 2)]
    abandoned = await producer.send("absent", b"1", partition=7)
    await producer.close(timeout=0)
    with pytest.raises(OutcomeUnknownError):
        await abandoned
    reader = _consumer(running)
    assert await reader.beginning_offsets([ONE, OTHER]) == {ONE: 0, OTHER: 0}
    assert await reader.end_offsets([ONE, OTHER]) == {ONE: 3, OTHER: 0}
    await reader.assign([ONE])
    await reader.seek(ONE, 1)
    records = []
    while len(records) < 2:
        records += await reader.poll(1_000, 10)
    seen = [(r.offset, r.key, r.value, r.headers, r.leader_epoch >= 0) for r in records]
    assert seen == [(1, b"k", b"1", (("h", b"v"),), True), (2, b"l", None, (), True)]
    await reader.close()
    beyond = _consumer(running)
    await beyond.assign([ONE])
    await beyond.seek(ONE, 9)
    with pytest.raises(OffsetOutOfRangeError):
        await beyond.poll(10_000, 10)
    await beyond.close()
    committer = _consumer(running, group="g")
    await committer.commit({ONE: OffsetAndMetadata(2, "2")})
    found = await committer.committed([ONE, OTHER], metadata=True)
    assert found == {ONE: OffsetAndMetadata(2, "2")}
    await committer.close()


def _consumer(running: Cluster, group: str | None = None) -> KafkaConsumer:
    return KafkaConsumer(
        running.bootstrap,
        group=group,
        wait_ms=100,
        request_timeout_ms=5_000,
        metadata_max_age_ms=3_000,
    )
