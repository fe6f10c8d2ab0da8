"""Fetch: the bytes that were produced, whatever wrote them, at once or when there are enough."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.record import Codec
from raftlog.server.kafka import fetch
from tests.record.kafka_batches import KafkaRecord, kafka_batch, kafka_header, read_by_aiokafka
from tests.server.harness import RunningBroker, batch_of
from tests.server.kafka.kafka_client import KafkaClient, connected, fetch_request

VERSIONS = range(apis.FETCH.version_min, apis.FETCH.version_max + 1)
Fetch = codec.structs("request", apis.FETCH.key)


def batch(*values: bytes, kind: Codec = Codec.NONE) -> bytes:
    return kafka_batch([KafkaRecord(value) for value in values], codec=kind)


def batches(data: bytes) -> list[bytes]:
    """The batches of a fetched partition."""
    found = []
    while data:
        length = 12 + int.from_bytes(data[8:12], "big")
        found.append(data[:length])
        data = data[length:]
    return found


@pytest.fixture
def topic(kafka_broker: RunningBroker, request: pytest.FixtureRequest) -> str:
    name: str = "fetch-" + request.node.name.replace("[", "-").replace("]", "")
    with kafka_broker.client() as native:
        native.create(name)
    return name


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, topic: str, version: int
) -> None:
    topic_id = bytes.fromhex(kafka_broker.broker.context.topics.topic(topic).id)
    sent = batch(b"a", b"b")
    kafka_client.produce(topic, sent)
    part = kafka_client.fetch(topic, 0, version, topic_id=topic_id)
    assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 2, 2)
    assert part.aborted_transactions is None
    data = bytes(part.records)
    assert data[17:] == sent[17:], "the CRC and all that it covers is what was sent"
    assert kafka_header(data).leader_epoch >= 0
    empty = kafka_client.fetch(topic, 2, version, topic_id=topic_id)
    assert (bytes(empty.records), empty.error_code, empty.high_watermark) == (b"", 0, 2)


@pytest.mark.parametrize("kind", list(Codec))
def test_every_offset_of_a_batch_gives_the_whole_batch(
    kafka_client: KafkaClient, topic: str, kind: Codec
) -> None:
    for _ in range(2):
        kafka_client.produce(topic, batch(b"a", b"b", b"c", kind=kind))
    for offset in range(6):
        found = batches(bytes(kafka_client.fetch(topic, offset).records))
        assert len(found) == 2 - offset // 3
        assert read_by_aiokafka(found[-1])[0] == [3, 4, 5]


@pytest.mark.parametrize("kind", [Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("size", [10, 40_000])
def test_what_raftlogs_clients_wrote(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, topic: str, kind: Codec, size: int
) -> None:
    values = [bytes([number]) * size for number in range(5)]
    with kafka_broker.client() as native:
        native.produce(topic, batch_of(*values, codec=kind))
    (found,) = batches(bytes(kafka_client.fetch(topic).records))
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(fetch, "to_kafka")  # the second reader gets what was converted for the first
        assert batches(bytes(kafka_client.fetch(topic).records)) == [found]
    offsets, records = read_by_aiokafka(found)
    assert offsets == [0, 1, 2, 3, 4]
    assert [record.value for record in records] == values


def test_read_committed(kafka_client: KafkaClient, topic: str) -> None:
    message = fetch_request(topic)
    message.isolation_level = 1
    part = kafka_client.ask(apis.FETCH, 11, message).responses[0].partitions[0]
    assert part.aborted_transactions == []


def test_a_fetch_waits_for_records_and_holds_back_later_answers(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, topic: str
) -> None:
    fetch = kafka_client.send(apis.FETCH, 12, fetch_request(topic, wait_ms=20_000))
    metadata = kafka_client.send(apis.METADATA, 1)
    with connected(kafka_broker) as other:
        other.produce(topic, batch(b"a"))
    answered, answer = kafka_client.receive(apis.FETCH, 12)
    assert answered == fetch
    assert len(batches(bytes(answer.responses[0].partitions[0].records))) == 1
    assert kafka_client.receive(apis.METADATA, 1)[0] == metadata


def test_a_fetch_waits_no_longer_than_it_says(kafka_client: KafkaClient, topic: str) -> None:
    part = kafka_client.fetch(topic, wait_ms=20, bytes_min=1)
    assert (part.error_code, bytes(part.records)) == (0, b"")


def test_refused_partitions(kafka_client: KafkaClient, topic: str) -> None:
    kafka_client.produce(topic, batch(b"a"))
    assert kafka_client.fetch(topic, 5).error_code == errors.OFFSET_OUT_OF_RANGE
    assert kafka_client.fetch(topic, -1).error_code == errors.OFFSET_OUT_OF_RANGE
    unknown = errors.UNKNOWN_TOPIC_OR_PARTITION
    assert kafka_client.fetch(topic, partition=7).error_code == unknown
    assert kafka_client.fetch(topic, partition=-1).error_code == unknown
    assert kafka_client.fetch("none", wait_ms=20_000).error_code == unknown
    assert kafka_client.fetch("", version=13).error_code == errors.UNKNOWN_TOPIC_ID
    epoch = kafka_client.fetch(topic, current_leader_epoch=99)
    assert epoch.error_code == errors.UNKNOWN_LEADER_EPOCH


def test_too_many_partitions(kafka_client: KafkaClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KAFKA_ITEMS_MAX", 9)
    parts = [Fetch.FetchPartition(partition=number) for number in range(10)]
    message = Fetch.root(topics=[Fetch.FetchTopic(topic="t", partitions=parts)])
    assert kafka_client.ask(apis.FETCH, 7, message).error_code == errors.INVALID_REQUEST
    (topic,) = kafka_client.ask(apis.FETCH, 6, message).responses
    assert {part.error_code for part in topic.partitions} == {errors.INVALID_REQUEST}


def test_corrupt_records_are_not_sent(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, topic: str
) -> None:
    """librdkafka does not check the CRC by default."""
    kafka_client.produce(topic, batch(bytes(1_000)))
    host = kafka_broker.broker.context.topics.host(topic, 0)
    (file,) = (kafka_broker.broker._store.log(topic, 0).directory,)
    from pathlib import Path

    (segment,) = Path(file).glob("*.log")
    with segment.open("r+b") as opened:
        opened.seek(500)
        opened.write(b"\xff")
    part = kafka_client.fetch(topic)
    assert part.error_code in (errors.CORRUPT_MESSAGE, errors.KAFKA_STORAGE_ERROR)
    assert bytes(part.records) == b""
    assert kafka_broker.call(lambda: host.log.damage)


# -- offsets ---------------------------------------------------------------------------------------
#
# ListOffsets and OffsetForLeaderEpoch.


Offsets = codec.structs("request", apis.LIST_OFFSETS.key)
Epochs = codec.structs("request", apis.OFFSET_FOR_LEADER_EPOCH.key)
OFFSETS_VERSIONS = range(apis.LIST_OFFSETS.version_min, apis.LIST_OFFSETS.version_max + 1)


@pytest.fixture(scope="module")
def offsets_topic(kafka_broker: RunningBroker) -> str:
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
    client: KafkaClient, offsets_topic: str, *times: int, version: int = 8, **options: int
) -> list[Any]:
    parts = [
        Offsets.ListOffsetsPartition(**{"partition_index": 0, "timestamp": time, **options})
        for time in times
    ]
    message = Offsets.root(topics=[Offsets.ListOffsetsTopic(name=offsets_topic, partitions=parts)])
    (found,) = client.ask(apis.LIST_OFFSETS, version, message).topics
    partitions: list[Any] = found.partitions
    return partitions


@pytest.mark.parametrize("version", OFFSETS_VERSIONS)
def test_every_version_in_offsets(
    kafka_client: KafkaClient, offsets_topic: str, version: int
) -> None:
    found = ask(kafka_client, offsets_topic, -1, -2, 150, 301, version=version)
    assert [(each.offset, each.timestamp) for each in found] == [
        (3, -1), (0, -1), (1, 300), (-1, -1)
    ]  # fmt: skip
    if version >= 4:
        assert found[0].leader_epoch >= 0


def test_the_newest_record_and_places_that_do_not_exist(
    kafka_client: KafkaClient, offsets_topic: str
) -> None:
    found = ask(kafka_client, offsets_topic, -3, -4, -5, -6)
    assert [(each.offset, each.timestamp) for each in found] == [
        (1, 300), (0, -1), (-1, -1), (-1, -1)
    ]  # fmt: skip
    (unknown,) = ask(kafka_client, offsets_topic, -9)
    assert (unknown.offset, unknown.error_code) == (-1, errors.UNSUPPORTED_VERSION)
    (none,) = ask(kafka_client, "nothing", -3)
    assert (none.offset, none.timestamp, none.error_code) == (-1, -1, 0)


def test_refused_partitions_in_offsets(kafka_client: KafkaClient, offsets_topic: str) -> None:
    assert ask(kafka_client, "none", -1)[0].error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    (found,) = ask(kafka_client, offsets_topic, -1, partition_index=-1)
    assert found.error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    (found,) = ask(kafka_client, offsets_topic, -1, current_leader_epoch=99)
    assert found.error_code == errors.UNKNOWN_LEADER_EPOCH


def test_where_an_epoch_ended(kafka_client: KafkaClient, offsets_topic: str) -> None:
    def end(epoch: int, **options: int) -> tuple[int, int, int]:
        part = Epochs.OffsetForLeaderPartition(
            **{"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch, **options}
        )
        wanted = Epochs.OffsetForLeaderTopic(topic=offsets_topic, partitions=[part])
        message = Epochs.root(topics=[wanted])
        (found,) = kafka_client.ask(apis.OFFSET_FOR_LEADER_EPOCH, 4, message).topics[0].partitions
        return found.error_code, found.leader_epoch, found.end_offset

    (latest,) = ask(kafka_client, offsets_topic, -1)
    assert end(latest.leader_epoch) == (0, latest.leader_epoch, 3)
    assert end(99) == (0, latest.leader_epoch, 3)
    assert end(-1) == (0, -1, -1)
    assert end(0, partition=7)[0] == errors.UNKNOWN_TOPIC_OR_PARTITION
