"""ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from tests.record.kafka_batches import KafkaRecord, kafka_batch
from tests.server.harness import RunningBroker
from tests.server.kafka.kafka_client import KafkaClient

Offsets = codec.structs("request", apis.LIST_OFFSETS.key)
Epochs = codec.structs("request", apis.OFFSET_FOR_LEADER_EPOCH.key)
VERSIONS = range(apis.LIST_OFFSETS.version_min, apis.LIST_OFFSETS.version_max + 1)


@pytest.fixture(scope="module")
def topic(kafka_broker: RunningBroker) -> str:
    with kafka_broker.client() as native:
        native.create("offsets")
        native.create("nothing")
    from tests.server.kafka.kafka_client import connected

    with connected(kafka_broker) as client:
        for times in ((100, 300), (200,)):
            records = [KafkaRecord(b"v", timestamp_ms=time) for time in times]
            assert client.produce("offsets", kafka_batch(records)).error_code == 0
    return "offsets"


def ask(
    client: KafkaClient, topic: str, *times: int, version: int = 8, **options: int
) -> list[Any]:
    parts = [
        Offsets.ListOffsetsPartition(**{"partition_index": 0, "timestamp": time, **options})
        for time in times
    ]
    message = Offsets.root(topics=[Offsets.ListOffsetsTopic(name=topic, partitions=parts)])
    (found,) = client.ask(apis.LIST_OFFSETS, version, message).topics
    partitions: list[Any] = found.partitions
    return partitions


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version(kafka_client: KafkaClient, topic: str, version: int) -> None:
    found = ask(kafka_client, topic, -1, -2, 150, 301, version=version)
    assert [(each.offset, each.timestamp) for each in found] == [
        (3, -1), (0, -1), (1, 300), (-1, -1)
    ]  # fmt: skip
    if version >= 4:
        assert found[0].leader_epoch >= 0


def test_the_newest_record_and_places_that_do_not_exist(
    kafka_client: KafkaClient, topic: str
) -> None:
    found = ask(kafka_client, topic, -3, -4, -5, -6)
    assert [(each.offset, each.timestamp) for each in found] == [
        (1, 300), (0, -1), (-1, -1), (-1, -1)
    ]  # fmt: skip
    (unknown,) = ask(kafka_client, topic, -9)
    assert (unknown.offset, unknown.error_code) == (-1, errors.UNSUPPORTED_VERSION)
    (none,) = ask(kafka_client, "nothing", -3)
    assert (none.offset, none.timestamp, none.error_code) == (-1, -1, 0)


def test_refused_partitions(kafka_client: KafkaClient, topic: str) -> None:
    assert ask(kafka_client, "none", -1)[0].error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    (found,) = ask(kafka_client, topic, -1, partition_index=-1)
    assert found.error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    (found,) = ask(kafka_client, topic, -1, current_leader_epoch=99)
    assert found.error_code == errors.UNKNOWN_LEADER_EPOCH


def test_where_an_epoch_ended(kafka_client: KafkaClient, topic: str) -> None:
    def end(epoch: int, **options: int) -> tuple[int, int, int]:
        part = Epochs.OffsetForLeaderPartition(
            **{"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch, **options}
        )
        wanted = Epochs.OffsetForLeaderTopic(topic=topic, partitions=[part])
        message = Epochs.root(topics=[wanted])
        (found,) = kafka_client.ask(apis.OFFSET_FOR_LEADER_EPOCH, 4, message).topics[0].partitions
        return found.error_code, found.leader_epoch, found.end_offset

    (latest,) = ask(kafka_client, topic, -1)
    assert end(latest.leader_epoch) == (0, latest.leader_epoch, 3)
    assert end(99) == (0, latest.leader_epoch, 3)
    assert end(-1) == (0, -1, -1)
    assert end(0, partition=7)[0] == errors.UNKNOWN_TOPIC_OR_PARTITION
