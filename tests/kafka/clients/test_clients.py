"""Each Kafka client for Python against a broker."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka.admin import NewTopic as KafkaPythonNewTopic

import raftlog
from raftlog.clock import SystemClock
from raftlog.consumer_groups import partition_of_group
from raftlog.errors import NotEnoughReplicasError
from raftlog.record import BatchHeader, Codec, parse_header
from raftlog.server.apis.produce import append
from raftlog.server.kafka import produce
from raftlog.testing.certificates import Certificates
from raftlog.testing.cluster import cluster
from raftlog.types import OFFSETS_TOPIC
from tests.kafka.clients.native import native_records
from tests.server.harness import RunningBroker, running

# -- aiokafka --------------------------------------------------------------------------------------

# aiokafka against a broker.


TIMEOUT_S = 20


@pytest.mark.parametrize("kind", [None, "gzip", "snappy", "lz4", "zstd"])
def test_produce_and_consume(address: str, kind: str | None) -> None:
    topic = f"aio-{kind}"

    async def test() -> list[bytes | None]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address, compression_type=kind, enable_idempotence=True, linger_ms=5
        )
        async with producer:
            sent = [await producer.send(topic, b"%d" % number) for number in range(100)]
            offsets = [(await each).offset for each in sent]
            assert offsets == list(range(100))
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
        )
        consumer.assign([aiokafka.TopicPartition(topic, 0)])
        async with consumer:
            return [(await consumer.getone()).value for _ in range(100)]

    values = asyncio.run(asyncio.wait_for(test(), TIMEOUT_S))
    assert values == [b"%d" % number for number in range(100)]


CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def test_a_topic_of_all_codecs_is_read_to_its_end(address: str) -> None:
    """Batches of librdkafka and of raftlog's producer, in turns."""
    written = 0
    for codec in CODECS * 2:
        kafka = confluent_kafka.Producer(
            {"bootstrap.servers": address, "compression.type": codec, "linger.ms": 0}
        )
        native_codec = "none" if codec == "snappy" else codec
        with raftlog.Producer(address, compression=native_codec) as native:
            for count in (1, 100):
                for number in range(written, written + count):
                    kafka.produce("aio-mixed", b"%d" % number, partition=0)
                assert kafka.flush(TIMEOUT_S) == 0
                written += count
                for number in range(written, written + count):
                    native.send("aio-mixed", b"%d" % number, partition=0)
                native.flush(TIMEOUT_S)
                written += count

    async def test() -> list[bytes | None]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address, auto_offset_reset="earliest", max_partition_fetch_bytes=2_000
        )
        consumer.assign([aiokafka.TopicPartition("aio-mixed", 0)])
        async with consumer:
            return [(await consumer.getone()).value for _ in range(written)]

    values = asyncio.run(asyncio.wait_for(test(), TIMEOUT_S))
    assert values == [b"%d" % number for number in range(written)]


# -- failover --------------------------------------------------------------------------------------
#
# confluent-kafka with three broker processes, whose leader is killed.


FAILOVER_TIMEOUT_S = 30
COUNT = 3_000


@pytest.mark.integration
def test_an_idempotent_producer_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with cluster(3, directory=tmp_path, with_relays=False) as brokers:
        address = {"bootstrap.servers": brokers.bootstrap}
        admin = AdminClient(address)
        admin.create_topics([NewTopic("t", 1, 3)])["t"].result(FAILOVER_TIMEOUT_S)
        producer = Producer({**address, "enable.idempotence": True, "linger.ms": 1})
        delivered: list[int] = []
        failed: list[object] = []
        for number in range(COUNT):
            producer.produce(
                "t",
                b"%d" % number,
                on_delivery=lambda error, message: (
                    delivered.append(message.offset()) if error is None else failed.append(error)
                ),
            )
            producer.poll(0)
            if number == COUNT // 2:
                while not delivered:
                    producer.poll(0.1)
                leader = brokers.leader("t", 0)
                assert leader is not None
                brokers.broker(leader).kill()
        assert producer.flush(FAILOVER_TIMEOUT_S) == 0
        assert not failed
        assert delivered == list(range(COUNT))
        consumer = Consumer({**address, "group.id": "none", "enable.auto.commit": False})
        consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
        values: list[bytes] = []
        while len(values) < COUNT:
            messages = consumer.consume(COUNT, 1.0)
            values += [message.value() for message in messages if message.error() is None]
        consumer.close()
        assert values == [b"%d" % number for number in range(COUNT)]


# -- group failover --------------------------------------------------------------------------------
#
# Groups of confluent-kafka with three broker processes, whose coordinator is killed.


GROUP_FAILOVER_TIMEOUT_S = 30
GROUP_FAILOVER_COUNT = 200
PARTITION = 3  # of the offsets topic, which has 16: both groups have one coordinator
NAMES = [name for name in map(str, range(100)) if partition_of_group(name, 16) == PARTITION]
GROUPS = {"classic": NAMES[0], "consumer": NAMES[1]}


def aiokafka_produce(address: str, start: int) -> None:
    producer = Producer({"bootstrap.servers": address})
    for number in range(start, start + GROUP_FAILOVER_COUNT):
        producer.produce("t", b"%d" % number, partition=number % 2)
    assert producer.flush(GROUP_FAILOVER_TIMEOUT_S) == 0


def consumed(consumer: Any) -> list[int]:
    """The next ``COUNT`` records, which are then committed."""
    found: list[int] = []
    end = time.monotonic() + GROUP_FAILOVER_TIMEOUT_S
    while len(found) < GROUP_FAILOVER_COUNT:
        assert time.monotonic() < end, f"only {len(found)} records came"
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(int(message.value()))
    consumer.commit(asynchronous=False)
    return sorted(found)


@pytest.mark.integration
def test_members_continue_with_the_next_coordinator(tmp_path: Path) -> None:
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.heartbeat.interval.ms": "200",
    }
    with cluster(3, directory=tmp_path, with_relays=False, settings=settings) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        admin.create_topics([NewTopic("t", 2, 3)])["t"].result(GROUP_FAILOVER_TIMEOUT_S)
        aiokafka_produce(brokers.bootstrap, 0)
        members = {}
        for protocol, group in GROUPS.items():
            members[protocol] = Consumer(
                {
                    "bootstrap.servers": brokers.bootstrap,
                    "group.id": group,
                    "group.protocol": protocol,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                }
            )
            members[protocol].subscribe(["t"])
            assert consumed(members[protocol]) == list(range(GROUP_FAILOVER_COUNT))
        coordinator = brokers.leader(OFFSETS_TOPIC, PARTITION)
        assert coordinator is not None
        brokers.broker(coordinator).kill()
        aiokafka_produce(brokers.bootstrap, GROUP_FAILOVER_COUNT)
        for member in members.values():
            assert consumed(member) == list(range(GROUP_FAILOVER_COUNT, 2 * GROUP_FAILOVER_COUNT))
        for member in members.values():
            member.close()


# -- kafka-python ----------------------------------------------------------------------------------

# kafka-python against a broker.


@pytest.mark.parametrize("kind", [None, "gzip", "lz4", "zstd"])
def test_kafka_python_produce_and_consume(address: str, kind: str | None) -> None:
    topic = f"kp-{kind}"
    producer = kafka.KafkaProducer(bootstrap_servers=address, compression_type=kind, linger_ms=5)
    try:
        futures = [producer.send(topic, b"%d" % number, key=b"k") for number in range(100)]
        assert [future.get(TIMEOUT_S).offset for future in futures] == list(range(100))
    finally:
        producer.close()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address,
        enable_auto_commit=False,
        consumer_timeout_ms=TIMEOUT_S * 1_000,
        fetch_max_wait_ms=50,
    )
    try:
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        values = [next(consumer).value for _ in range(100)]
        assert values == [b"%d" % number for number in range(100)]
        assert consumer.end_offsets([partition]) == {partition: 100}
    finally:
        consumer.close()
    assert [each.value for each in native_records(address, topic, 100)] == values


def test_administration(address: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=address)
    try:
        admin.create_topics([KafkaPythonNewTopic("kp-admin", 2, 1)])
        assert "kp-admin" in admin.list_topics()
        admin.delete_topics(["kp-admin"])
        assert "kp-admin" not in admin.list_topics()
    finally:
        admin.close()


# -- confluent-kafka -------------------------------------------------------------------------------

# confluent-kafka (librdkafka) against a broker: what it writes, reads and administers.


def write(address: str, topic: str, values: list[bytes], **settings: Any) -> list[Any]:
    """Produce values with keys and headers; the delivered messages."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, **settings})
    delivered: list[Any] = []

    def on_delivery(error: KafkaError | None, message: Any) -> None:
        assert error is None, error
        delivered.append(message)

    for number, value in enumerate(values):
        key = str(number).encode()
        producer.produce(topic, value, key, headers=[("h", key)], on_delivery=on_delivery)
    assert producer.flush(TIMEOUT_S) == 0
    assert len(delivered) == len(values)
    return delivered


def test_a_producer_continues_after_its_first_batches_were_refused_twice(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those behind it are out of order each time. If the broker stored them, or did not know their
    producer (59), librdkafka would fail every further record.
    """
    with broker.client() as native:
        native.create("refused")
    attempts = [0] * 5  # of each sequence number

    def append_later(host: Any, stored: Any, header: BatchHeader, acks: int, done: Any) -> None:
        attempts[header.base_sequence] += 1
        if attempts[0] <= 2:
            raise NotEnoughReplicasError("not now")
        append(host, stored, header, acks, done)

    monkeypatch.setattr(produce, "append", append_later)
    values = [b"%d" % number for number in range(5)]
    one_each = {"enable.idempotence": True, "batch.num.messages": 1, "retry.backoff.ms": 100}
    delivered = write(str(broker.address), "refused", values, **one_each)
    assert sorted(message.offset() for message in delivered) == list(range(5))
    found = read(str(broker.address), "refused", 5)
    assert [message.value() for message in found] == values
    assert attempts == [3, 1, 1, 1, 1], "those behind it were not tried"


def read(address: str, topic: str, count: int, **settings: Any) -> list[Any]:
    """The first messages of partition 0."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "none",
            "enable.auto.commit": False,
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
            **settings,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[Any] = []
    try:
        while len(found) < count:
            messages = consumer.consume(count - len(found), TIMEOUT_S)
            assert messages, f"{len(found)} of {count} messages"
            for message in messages:
                assert message.error() is None, message.error()
            found += messages
    finally:
        consumer.close()
    return found


def done(futures: dict[Any, Future[Any]]) -> list[Any]:
    return [future.result(TIMEOUT_S) for future in futures.values()]


@pytest.mark.parametrize("kind", CODECS)
def test_every_codec_both_ways(broker: RunningBroker, address: str, kind: str) -> None:
    topic = f"rd-{kind}"
    values = [b"value %d" % number * 10 for number in range(500)]
    write(address, topic, values, **{"compression.type": kind})
    found = read(address, topic, 500)
    assert [message.value() for message in found] == values
    assert [message.offset() for message in found] == list(range(500))
    assert found[7].key() == b"7"
    assert found[7].headers() == [("h", b"7")]
    host = broker.broker.context.topics.host(topic, 0)
    (stored,) = broker.call(lambda: host.read(start_offset=0, bytes_max=1))
    assert Codec(parse_header(stored).attributes & 7).name.lower() == kind, "as it was sent"
    records = native_records(address, topic, 500)
    assert [record.value for record in records] == values
    assert records[7].key == b"7"
    assert list(records[7].headers) == [("h", b"7")]


@pytest.mark.parametrize("kind", ["none", "gzip", "lz4", "zstd"])
def test_what_raftlogs_producer_writes(broker: RunningBroker, address: str, kind: str) -> None:
    topic = f"native-{kind}"
    with broker.client() as raw:
        raw.create(topic)
    with raftlog.Producer(address, compression=kind) as producer:
        for number in range(300):
            producer.send(topic, b"value %d" % number * 10, key=b"%d" % number)
        producer.flush()
    found = read(address, topic, 300)
    assert [message.value() for message in found] == [b"value %d" % n * 10 for n in range(300)]
    assert found[7].key() == b"7"


def test_an_idempotent_producer(address: str) -> None:
    delivered = write(
        address, "rd-idempotent", [b"v"] * 2_000, **{"enable.idempotence": True, "linger.ms": 0}
    )
    assert [message.offset() for message in delivered] == list(range(2_000))


@pytest.mark.parametrize("acks", [0, 1])
def test_weaker_acknowledgements(address: str, acks: int) -> None:
    write(address, f"rd-acks{acks}", [b"v"] * 100, acks=acks)
    assert len(read(address, f"rd-acks{acks}", 100)) == 100


def test_offsets_and_times(address: str) -> None:
    write(address, "rd-offsets", [b"v"] * 10)
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none"})
    try:
        partition = TopicPartition("rd-offsets", 0)
        assert consumer.get_watermark_offsets(partition, TIMEOUT_S) == (0, 10)
        (found,) = consumer.offsets_for_times([TopicPartition("rd-offsets", 0, 1)], TIMEOUT_S)
        assert found.offset == 0
    finally:
        consumer.close()


def test_confluent_kafka_administration(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    done(admin.create_topics([NewTopic("rd-admin", 2, config={"retention.ms": "99000"})]))
    done(admin.create_partitions([NewPartitions("rd-admin", 4)]))
    topic = admin.list_topics("rd-admin", TIMEOUT_S).topics["rd-admin"]
    assert len(topic.partitions) == 4
    resource = ConfigResource(ResourceType.TOPIC, "rd-admin")
    (settings,) = done(admin.describe_configs([resource]))
    assert settings["retention.ms"].value == "99000"
    change = ConfigEntry("retention.ms", "98000", incremental_operation=AlterConfigOpType.SET)
    altered = ConfigResource(ResourceType.TOPIC, "rd-admin", incremental_configs=[change])
    done(admin.incremental_alter_configs([altered]))
    (settings,) = done(admin.describe_configs([resource]))
    assert settings["retention.ms"].value == "98000"
    write(address, "rd-admin", [b"v"] * 50)
    partition = TopicPartition("rd-admin", 0)
    (latest,) = done(admin.list_offsets({partition: OffsetSpec.latest()}))
    (deleted,) = done(admin.delete_records([TopicPartition("rd-admin", 0, latest.offset)]))
    assert deleted.low_watermark == latest.offset
    (newest,) = done(admin.list_offsets({partition: OffsetSpec.max_timestamp()}))
    assert newest.offset in (-1, latest.offset - 1)
    cluster = admin.describe_cluster().result(TIMEOUT_S)
    assert [node.id for node in cluster.nodes] == [1]
    done(admin.delete_topics(["rd-admin"]))
    assert "rd-admin" not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_a_topic_that_is_recreated(address: str) -> None:
    """The client follows by the topic's id."""
    admin = AdminClient({"bootstrap.servers": address})
    for value in (b"old", b"new"):
        done(admin.create_topics([NewTopic("rd-again", 1)]))
        write(address, "rd-again", [value])
        (message,) = read(address, "rd-again", 1)
        assert message.value() == value
        done(admin.delete_topics(["rd-again"]))


def test_a_client_with_tls_is_served_by_a_broker_with_tls(
    tmp_path: Path, certificates: Certificates
) -> None:
    named = certificates.broker_settings().items()
    settings = {name.replace(".", "_"): value for name, value in named}
    tls = {"security.protocol": "ssl", "ssl.ca.location": str(certificates.ca)}
    with running(tmp_path / "data", clock=SystemClock(), **settings) as broker:
        address = str(broker.address)
        admin = AdminClient({"bootstrap.servers": address, **tls})
        done(admin.create_topics([NewTopic("t", 1, 1)]))
        write(address, "t", [b"a", b"b"], **tls)
        assert [message.value() for message in read(address, "t", 2, **tls)] == [b"a", b"b"]
