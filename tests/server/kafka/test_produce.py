"""Produce: what is stored, what is refused with which code, and when the answer comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raftlog import limits
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.record import Codec
from raftlog.security.producer_ids import NAMED_ID_BASE
from raftlog.server.kafka import produce
from tests.record.kafka_batches import KafkaRecord, kafka_batch, kafka_resealed
from tests.server.harness import FaultyDisk, RunningBroker, batch_of, running
from tests.server.kafka.kafka_client import KafkaClient, connected, produce_request

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
    old = kafka_batch([KafkaRecord(b"a", timestamp_ms=1)])
    assert kafka_client.produce("times", old).error_code == errors.INVALID_TIMESTAMP


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
