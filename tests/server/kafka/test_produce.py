"""Produce and fetch: what is stored, what is refused, and which bytes come back."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from raftlog import limits
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.protocol import api as native_apis
from raftlog.protocol.records import DeleteTopicsRequest
from raftlog.record import Codec
from raftlog.security.producer_ids import NAMED_ID_BASE
from raftlog.server.kafka import fetch, produce
from tests.record.kafka_batches import (
    KafkaRecord,
    kafka_batch,
    kafka_header,
    kafka_resealed,
    read_by_aiokafka,
)
from tests.server.harness import TIMEOUT_S, FaultyDisk, RunningBroker, batch_of, running
from tests.server.kafka.kafka_client import KafkaClient, connected, fetch_request, produce_request

# -- produce ---------------------------------------------------------------------------------------

# Produce: what is stored, what is refused with which code, and when the answer comes.


Delete = codec.structs("request", apis.DELETE_TOPICS.key)
VERSIONS = range(apis.PRODUCE.version_min, apis.PRODUCE.version_max + 1)


def batch(
    *values: bytes, codec: Codec = Codec.NONE, producer: tuple[int, int, int] = (-1,) * 3
) -> bytes:
    records = [KafkaRecord(value, key=b"k") for value in values]
    return kafka_batch(records, codec=codec, producer=producer)


@pytest.fixture
def topic(kafka_broker: RunningBroker, request: pytest.FixtureRequest) -> str:
    """A topic with the name of the test."""
    name: str = request.node.name.replace("[", "-").replace("]", "")
    with kafka_broker.client() as native:
        native.create(name)
    return name


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, topic: str, version: int
) -> None:
    topic_id = bytes.fromhex(kafka_broker.broker.context.topics.topic(topic).id)
    for offset in (0, 2):
        part = kafka_client.produce(topic, batch(b"a", b"b"), version, topic_id=topic_id)
        assert (part.error_code, part.base_offset, part.log_append_time_ms) == (0, offset, -1)


@pytest.mark.parametrize("kind", list(Codec))
def test_raftlogs_clients_read_what_a_kafka_client_wrote(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, topic: str, kind: Codec
) -> None:
    kafka_client.produce(topic, batch(*[b"value"] * 200, codec=kind))
    with kafka_broker.client() as native:
        _, values = native.fetch(topic)
    assert values == [b"value"] * 200


def test_a_large_batch_is_checked_in_a_thread(kafka_client: KafkaClient, topic: str) -> None:
    """And the ones behind it are appended after it."""
    bomb = batch(*[bytes(50_000)] * 50, codec=Codec.GZIP)  # 2.5 MB in a few kB
    sent = [
        kafka_client.send(apis.PRODUCE, 9, produce_request(topic, data))
        for data in (bomb, batch(b"small"))
    ]
    for correlation_id, offset in zip(sent, (0, 50), strict=True):
        answered, answer = kafka_client.receive(apis.PRODUCE, 9)
        part = answer.responses[0].partition_responses[0]
        assert (answered, part.error_code, part.base_offset) == (correlation_id, 0, offset)


@pytest.mark.parametrize("is_valid", [True, False])
def test_a_request_has_a_limit_of_uncompressed_bytes(
    kafka_client: KafkaClient, topic: str, is_valid: bool
) -> None:
    """A KB can have 60 MB. What is left can be sent again: nothing of it was stored."""
    bomb = batch(bytes(60 * limits.MIB), codec=Codec.ZSTD)
    if not is_valid:
        bomb = kafka_resealed(bomb, b"garbage")
    request = produce_request(topic, b"")
    (data,) = request.topic_data[0].partition_data[:1]
    new = type(data)
    request.topic_data[0].partition_data = [new(index=0, records=[bomb]) for _ in range(4)]
    (answer,) = kafka_client.ask(apis.PRODUCE, 9, request).responses
    codes = [part.error_code for part in answer.partition_responses]
    checked = 3 if is_valid else 2
    code = errors.NONE if is_valid else errors.INVALID_RECORD
    assert codes == [code] * checked + [errors.REQUEST_TIMED_OUT] * (4 - checked)


def test_a_topic_by_its_id_is_not_another_one_of_its_name(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was created again while a batch of the request was checked."""
    is_checking, is_created = threading.Event(), threading.Event()

    def accept(*args: Any, **more: Any) -> Any:
        if "uncompressed_max" not in more:  # in a thread
            is_checking.set()
            assert is_created.wait(TIMEOUT_S)
        return accept_at_once(*args, **more)

    accept_at_once = produce._accept
    monkeypatch.setattr(produce, "_accept", accept)
    with kafka_broker.client() as native:
        native.create("again", 2)
        topic_id = bytes.fromhex(kafka_broker.broker.context.topics.topic("again").id)
        request = produce_request("", batch(*[bytes(50_000)] * 50, codec=Codec.GZIP))
        (wanted,) = request.topic_data
        wanted.topic_id = topic_id
        (first,) = wanted.partition_data
        wanted.partition_data = [first, type(first)(index=1, records=[batch(b"a")])]
        kafka_client.send(apis.PRODUCE, 13, request)
        assert is_checking.wait(TIMEOUT_S)
        native.ask(native_apis.DELETE_TOPICS, DeleteTopicsRequest(topics=["again"]))
        native.create("again", 2)
        is_created.set()
        _, answer = kafka_client.receive(apis.PRODUCE, 13)
        (topic,) = answer.responses
        assert all(part.error_code for part in topic.partition_responses)
        assert native.offset("again", "latest", partition=1).offset == 0


def test_codes_of_batches_that_are_refused(kafka_client: KafkaClient, topic: str) -> None:
    good = batch(b"a", b"b")
    assert kafka_client.produce(topic, b"").error_code == errors.CORRUPT_MESSAGE
    assert kafka_client.produce(topic, good[:-1]).error_code == errors.CORRUPT_MESSAGE
    assert kafka_client.produce(topic, good + good).error_code == errors.INVALID_RECORD
    assert kafka_client.produce(topic, kafka_resealed(good, crc=5)).error_code == 2
    assert kafka_client.produce(topic, kafka_resealed(good, magic=1)).error_code == 43
    assert kafka_client.produce(topic, kafka_resealed(good, attributes=5)).error_code == 76
    assert kafka_client.produce(topic, kafka_resealed(good, attributes=16)).error_code == 48
    huge = batch(bytes(2 << 20))
    assert kafka_client.produce(topic, huge).error_code == errors.MESSAGE_TOO_LARGE
    refused = kafka_client.produce(topic, good[:-1])
    assert refused.error_message
    assert refused.base_offset == -1
    assert kafka_client.produce(topic, good).base_offset == 0, "nothing of them was stored"


def test_codes_of_partitions_that_are_refused(kafka_client: KafkaClient, topic: str) -> None:
    good = batch(b"a")
    unknown = errors.UNKNOWN_TOPIC_OR_PARTITION
    assert kafka_client.produce(topic, good, partition=1).error_code == unknown
    assert kafka_client.produce(topic, good, partition=-1).error_code == unknown
    assert kafka_client.produce("none", good).error_code == unknown
    assert kafka_client.produce("", good, 13).error_code == errors.UNKNOWN_TOPIC_ID
    assert kafka_client.produce("__consumer_offsets", good).error_code == errors.INVALID_TOPIC
    assert kafka_client.produce(topic, good, acks=2).error_code == errors.INVALID_REQUIRED_ACKS


def test_records_without_keys_of_a_compacted_topic(
    kafka_client: KafkaClient, kafka_broker: RunningBroker
) -> None:
    with kafka_broker.client() as native:
        native.create("keys", cleanup_policy="compact")
    data = kafka_batch([KafkaRecord(b"a", key=b"k"), KafkaRecord(b"b"), KafkaRecord(b"c")])
    refused = kafka_client.produce("keys", data)
    assert refused.error_code == errors.INVALID_RECORD
    assert [each.batch_index for each in refused.record_errors] == [1, 2]


def test_timestamps_too_far_away(kafka_client: KafkaClient, kafka_broker: RunningBroker) -> None:
    with kafka_broker.client() as native:
        native.create("times", message_timestamp_before_max_ms="1000")
    now_ms = kafka_broker.clock.wall_ms()
    for times in ([1], [now_ms, 1], [now_ms - 1_001, now_ms]):
        old = kafka_batch([KafkaRecord(b"a", timestamp_ms=each) for each in times])
        assert kafka_client.produce("times", old).error_code == errors.INVALID_TIMESTAMP
    good = kafka_batch([KafkaRecord(b"a", timestamp_ms=each) for each in (now_ms, now_ms - 900)])
    assert kafka_client.produce("times", good).error_code == errors.NONE


def test_the_leaders_time(kafka_client: KafkaClient, kafka_broker: RunningBroker) -> None:
    with kafka_broker.client() as native:
        native.create("stamped", message_timestamp_type="LogAppendTime")
    part = kafka_client.produce("stamped", batch(b"a"))
    assert part.log_append_time_ms == kafka_broker.clock.wall_ms()


def test_an_idempotent_producer(kafka_client: KafkaClient, topic: str) -> None:
    first, second = (batch(b"a", producer=(7, 0, number)) for number in (0, 1))
    assert kafka_client.produce(topic, first).base_offset == 0
    assert kafka_client.produce(topic, first).base_offset == 0, "the same again is stored once"
    assert kafka_client.produce(topic, second).base_offset == 1
    gap = kafka_client.produce(topic, batch(b"a", producer=(7, 0, 9)))
    assert gap.error_code == errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert kafka_client.produce(topic, batch(b"a", producer=(7, 2, 0))).base_offset == 2
    old = kafka_client.produce(topic, batch(b"a", producer=(7, 1, 0)))
    assert old.error_code == errors.INVALID_PRODUCER_EPOCH


def test_an_unknown_producer_begins_at_any_sequence(
    kafka_client: KafkaClient, kafka_broker: RunningBroker
) -> None:
    """Its topic was created again: aiokafka and kafkajs would never write again otherwise."""
    data = [batch(b"a", producer=(8, 0, number)) for number in range(6)]
    with kafka_broker.client() as native:
        native.create("again")
        assert [kafka_client.produce("again", each).base_offset for each in data[:3]] == [0, 1, 2]
        for _ in kafka_client.ask(
            apis.DELETE_TOPICS, 5, Delete.root(topic_names=["again"], timeout_ms=9_000)
        ).responses:
            native.create("again")
    assert [kafka_client.produce("again", each).base_offset for each in data[3:5]] == [0, 1]
    gap = kafka_client.produce("again", batch(b"a", producer=(8, 0, 9)))
    assert gap.error_code == errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert gap.log_start_offset == 0
    assert kafka_client.produce("again", data[4]).base_offset == 1, "repeated"
    assert kafka_client.produce("again", data[5]).base_offset == 2
    assert kafka_client.produce("again", batch(b"a", producer=(8, 1, 3))).error_code == 45


def test_batches_behind_a_refused_one_are_out_of_order(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, topic: str
) -> None:
    """They were sent before the client knew. Stored, they would leave a gap."""
    for sequence, producer in ((0, 9), (4, 10)):
        corrupt = bytearray(batch(b"a", producer=(producer, 0, sequence)))
        corrupt[-1] ^= 1
        behind = batch(b"b", producer=(producer, 0, sequence + 1))
        for _ in range(2):
            assert kafka_client.produce(topic, bytes(corrupt)).error_code == errors.CORRUPT_MESSAGE
            refused = kafka_client.produce(topic, behind)
            assert refused.error_code == errors.OUT_OF_ORDER_SEQUENCE_NUMBER
        first = batch(b"a", producer=(producer, 0, sequence))
        start = kafka_client.produce(topic, first).base_offset
        assert kafka_client.produce(topic, behind).base_offset == start + 1
        # Another epoch, another producer, and another connection begin where they want to.
        assert kafka_client.produce(topic, bytes(corrupt)).error_code == errors.CORRUPT_MESSAGE
        for other in ((producer, 1, 0), (producer + 10, 0, 5)):
            assert kafka_client.produce(topic, batch(b"a", producer=other)).error_code == 0
    with connected(kafka_broker) as client:
        assert client.produce(topic, batch(b"a", producer=(11, 0, 6))).error_code == 0


def test_the_number_of_refused_batches_is_limited(
    kafka_client: KafkaClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "REFUSED_PARTITIONS_MAX", 1)
    corrupt = bytearray(batch(b"a", producer=(12, 0, 4)))
    corrupt[-1] ^= 1
    kafka_client.produce(topic, bytes(corrupt))
    kafka_client.produce("unknown", batch(b"a", producer=(12, 0, 4)))
    forgotten = kafka_client.produce(topic, batch(b"a", producer=(12, 0, 5)))
    assert forgotten.error_code == 0


def test_acks_0_has_no_answer(kafka_client: KafkaClient, topic: str) -> None:
    kafka_client.send(apis.PRODUCE, 9, produce_request(topic, batch(b"a"), acks=0))
    assert kafka_client.produce(topic, batch(b"b"), acks=1).base_offset == 1


def test_acks_0_that_fails_closes_the_connection(kafka_client: KafkaClient, topic: str) -> None:
    kafka_client.send(apis.PRODUCE, 9, produce_request(topic, b"", acks=0))
    assert kafka_client.is_closed()


def test_no_partitions(kafka_client: KafkaClient) -> None:
    message = codec.structs("request", apis.PRODUCE.key).root(acks=0)
    kafka_client.send(apis.PRODUCE, 9, message)
    message.acks = 1
    assert kafka_client.ask(apis.PRODUCE, 9, message).responses == []


def test_an_acknowledgement_waits_for_the_disk_and_at_most_for_the_timeout(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with running(tmp_path, disk=disk) as broker, connected(broker) as client:
        with broker.client() as native:
            native.create("t")
        disk.faults.sync_gate.clear()
        late = client.produce("t", batch(b"a"), timeout_ms=50)
        assert late.error_code == errors.REQUEST_TIMED_OUT
        sent = client.send(apis.PRODUCE, 9, produce_request("t", batch(b"b"), acks=1))
        disk.faults.sync_gate.set()
        answered, answer = client.receive(apis.PRODUCE, 9)
        part = answer.responses[0].partition_responses[0]
        assert (answered, part.base_offset) == (sent, 1), "what timed out was appended"


# -- producer ids ----------------------------------------------------------------------------------
#
# InitProducerId: a new id each time, and none for transactions.


Init = codec.structs("request", apis.INIT_PRODUCER_ID.key).root


def test_ids_are_new_whatever_id_the_client_has(kafka_client: KafkaClient) -> None:
    message = Init(transactional_id=None, producer_id=5, producer_epoch=7)
    found = [kafka_client.ask(apis.INIT_PRODUCER_ID, 5, message) for _ in range(10)]
    assert len({each.producer_id for each in found}) == 10
    assert all(0 <= each.producer_id < NAMED_ID_BASE for each in found)
    assert {(each.error_code, each.producer_epoch) for each in found} == {(0, 0)}


# -- producers -------------------------------------------------------------------------------------
#
# DescribeProducers: of each partition that this broker leads.


Producers = codec.structs("request", apis.DESCRIBE_PRODUCERS.key)


@pytest.fixture(scope="module")
def producers_topic(kafka_broker: RunningBroker) -> str:
    with kafka_broker.client() as native:
        native.create("written", partitions=2)
        for producer_id, values in ((5, 3), (6, 1), (7, 2)):
            batch = batch_of(
                *[b"v"] * values, producer_id=producer_id, producer_epoch=4, base_sequence=0
            )
            assert native.produce("written", batch).failure is None
    return "written"


def ask(client: KafkaClient, *topics: tuple[str, list[int]]) -> list[Any]:
    wanted = [Producers.TopicRequest(name=name, partition_indexes=parts) for name, parts in topics]
    answer = client.ask(apis.DESCRIBE_PRODUCERS, 0, Producers.root(topics=wanted))
    return [part for producers_topic in answer.topics for part in producers_topic.partitions]


def test_the_producers_of_a_partition(kafka_client: KafkaClient, producers_topic: str) -> None:
    first, second = ask(kafka_client, (producers_topic, [0, 1]))
    assert [
        (each.producer_id, each.producer_epoch, each.last_sequence)
        for each in first.active_producers
    ] == [(7, 4, 1), (6, 4, 0), (5, 4, 2)]
    newest = first.active_producers[0]
    assert newest.last_timestamp > 0
    assert (newest.coordinator_epoch, newest.current_txn_start_offset) == (-1, -1)
    assert (second.partition_index, second.error_code, second.active_producers) == (1, 0, [])


def test_a_partition_that_does_not_exist_has_an_error(
    kafka_client: KafkaClient, producers_topic: str
) -> None:
    found = ask(kafka_client, (producers_topic, [9, -1]), ("no-such", [0]))
    assert [part.error_code for part in found] == [errors.UNKNOWN_TOPIC_OR_PARTITION] * 3
    assert "no partition 9" in found[0].error_message


def test_a_response_has_a_bounded_number_of_producers(
    kafka_client: KafkaClient, producers_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_PER_REQUEST_MAX", 4)
    found = ask(kafka_client, (producers_topic, [0, 0]))
    assert [len(part.active_producers) for part in found] == [3, 1]


# -- fetch -----------------------------------------------------------------------------------------

# Fetch: the bytes that were produced, whatever wrote them, at once or when there are enough.


FETCH_VERSIONS = range(apis.FETCH.version_min, apis.FETCH.version_max + 1)
Fetch = codec.structs("request", apis.FETCH.key)


def fetch_batch(*values: bytes, kind: Codec = Codec.NONE) -> bytes:
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
def fetch_topic(kafka_broker: RunningBroker, request: pytest.FixtureRequest) -> str:
    name: str = "fetch-" + request.node.name.replace("[", "-").replace("]", "")
    with kafka_broker.client() as native:
        native.create(name)
    return name


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_every_version(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, fetch_topic: str, version: int
) -> None:
    topic_id = bytes.fromhex(kafka_broker.broker.context.topics.topic(fetch_topic).id)
    sent = fetch_batch(b"a", b"b")
    kafka_client.produce(fetch_topic, sent)
    part = kafka_client.fetch(fetch_topic, 0, version, topic_id=topic_id)
    assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 2, 2)
    assert part.aborted_transactions is None
    data = bytes(part.records)
    assert data[17:] == sent[17:], "the CRC and all that it covers is what was sent"
    assert kafka_header(data).leader_epoch >= 0
    empty = kafka_client.fetch(fetch_topic, 2, version, topic_id=topic_id)
    assert (bytes(empty.records), empty.error_code, empty.high_watermark) == (b"", 0, 2)


@pytest.mark.parametrize("kind", list(Codec))
def test_every_offset_of_a_batch_gives_the_whole_batch(
    kafka_client: KafkaClient, fetch_topic: str, kind: Codec
) -> None:
    for _ in range(2):
        kafka_client.produce(fetch_topic, fetch_batch(b"a", b"b", b"c", kind=kind))
    for offset in range(6):
        found = batches(bytes(kafka_client.fetch(fetch_topic, offset).records))
        assert len(found) == 2 - offset // 3
        assert read_by_aiokafka(found[-1])[0] == [3, 4, 5]


@pytest.mark.parametrize("kind", [Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("size", [10, 40_000])
def test_what_raftlogs_clients_wrote(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, fetch_topic: str, kind: Codec, size: int
) -> None:
    values = [bytes([number]) * size for number in range(5)]
    with kafka_broker.client() as native:
        native.produce(fetch_topic, batch_of(*values, codec=kind))
    (found,) = batches(bytes(kafka_client.fetch(fetch_topic).records))
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(fetch, "to_kafka")  # the second reader gets what was converted for the first
        assert batches(bytes(kafka_client.fetch(fetch_topic).records)) == [found]
    offsets, records = read_by_aiokafka(found)
    assert offsets == [0, 1, 2, 3, 4]
    assert [record.value for record in records] == values


def test_read_committed(kafka_client: KafkaClient, fetch_topic: str) -> None:
    message = fetch_request(fetch_topic)
    message.isolation_level = 1
    part = kafka_client.ask(apis.FETCH, 11, message).responses[0].partitions[0]
    assert part.aborted_transactions == []


def test_a_fetch_waits_for_records_and_holds_back_later_answers(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, fetch_topic: str
) -> None:
    fetch = kafka_client.send(apis.FETCH, 12, fetch_request(fetch_topic, wait_ms=20_000))
    metadata = kafka_client.send(apis.METADATA, 1)
    with connected(kafka_broker) as other:
        other.produce(fetch_topic, fetch_batch(b"a"))
    answered, answer = kafka_client.receive(apis.FETCH, 12)
    assert answered == fetch
    assert len(batches(bytes(answer.responses[0].partitions[0].records))) == 1
    assert kafka_client.receive(apis.METADATA, 1)[0] == metadata


def test_a_fetch_waits_no_longer_than_it_says(kafka_client: KafkaClient, fetch_topic: str) -> None:
    part = kafka_client.fetch(fetch_topic, wait_ms=20, bytes_min=1)
    assert (part.error_code, bytes(part.records)) == (0, b"")


def test_refused_partitions(kafka_client: KafkaClient, fetch_topic: str) -> None:
    kafka_client.produce(fetch_topic, fetch_batch(b"a"))
    assert kafka_client.fetch(fetch_topic, 5).error_code == errors.OFFSET_OUT_OF_RANGE
    assert kafka_client.fetch(fetch_topic, -1).error_code == errors.OFFSET_OUT_OF_RANGE
    unknown = errors.UNKNOWN_TOPIC_OR_PARTITION
    assert kafka_client.fetch(fetch_topic, partition=7).error_code == unknown
    assert kafka_client.fetch(fetch_topic, partition=-1).error_code == unknown
    assert kafka_client.fetch("none", wait_ms=20_000).error_code == unknown
    assert kafka_client.fetch("", version=13).error_code == errors.UNKNOWN_TOPIC_ID
    epoch = kafka_client.fetch(fetch_topic, current_leader_epoch=99)
    assert epoch.error_code == errors.UNKNOWN_LEADER_EPOCH


def test_too_many_partitions(kafka_client: KafkaClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KAFKA_ITEMS_MAX", 9)
    parts = [Fetch.FetchPartition(partition=number) for number in range(10)]
    message = Fetch.root(topics=[Fetch.FetchTopic(topic="t", partitions=parts)])
    assert kafka_client.ask(apis.FETCH, 7, message).error_code == errors.INVALID_REQUEST
    (topic,) = kafka_client.ask(apis.FETCH, 6, message).responses
    assert {part.error_code for part in topic.partitions} == {errors.INVALID_REQUEST}


def test_corrupt_records_are_not_sent(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, fetch_topic: str
) -> None:
    """librdkafka does not check the CRC by default."""
    kafka_client.produce(fetch_topic, fetch_batch(bytes(1_000)))
    host = kafka_broker.broker.context.topics.host(fetch_topic, 0)
    (file,) = (kafka_broker.broker._store.log(fetch_topic, 0).directory,)
    from pathlib import Path

    (segment,) = Path(file).glob("*.log")
    with segment.open("r+b") as opened:
        opened.seek(500)
        opened.write(b"\xff")
    part = kafka_client.fetch(fetch_topic)
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


def fetch_ask(
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
    found = fetch_ask(kafka_client, offsets_topic, -1, -2, 150, 301, version=version)
    assert [(each.offset, each.timestamp) for each in found] == [
        (3, -1), (0, -1), (1, 300), (-1, -1)
    ]  # fmt: skip
    if version >= 4:
        assert found[0].leader_epoch >= 0


def test_the_newest_record_and_places_that_do_not_exist(
    kafka_client: KafkaClient, offsets_topic: str
) -> None:
    found = fetch_ask(kafka_client, offsets_topic, -3, -4, -5, -6)
    assert [(each.offset, each.timestamp) for each in found] == [
        (1, 300), (0, -1), (-1, -1), (-1, -1)
    ]  # fmt: skip
    (unknown,) = fetch_ask(kafka_client, offsets_topic, -9)
    assert (unknown.offset, unknown.error_code) == (-1, errors.UNSUPPORTED_VERSION)
    (none,) = fetch_ask(kafka_client, "nothing", -3)
    assert (none.offset, none.timestamp, none.error_code) == (-1, -1, 0)


def test_refused_partitions_in_offsets(kafka_client: KafkaClient, offsets_topic: str) -> None:
    assert fetch_ask(kafka_client, "none", -1)[0].error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    (found,) = fetch_ask(kafka_client, offsets_topic, -1, partition_index=-1)
    assert found.error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    (found,) = fetch_ask(kafka_client, offsets_topic, -1, current_leader_epoch=99)
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

    (latest,) = fetch_ask(kafka_client, offsets_topic, -1)
    assert end(latest.leader_epoch) == (0, latest.leader_epoch, 3)
    assert end(99) == (0, latest.leader_epoch, 3)
    assert end(-1) == (0, -1, -1)
    assert end(0, partition=7)[0] == errors.UNKNOWN_TOPIC_OR_PARTITION
