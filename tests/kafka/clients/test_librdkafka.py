"""confluent-kafka (librdkafka) against a broker: what it writes, reads and administers."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

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

import raftlog
from raftlog.clock import SystemClock
from raftlog.errors import NotEnoughReplicasError
from raftlog.record import BatchHeader, Codec, parse_header
from raftlog.server.apis.produce import append
from raftlog.server.kafka import produce
from raftlog.testing.certificates import Certificates
from tests.kafka.clients.native import native_records
from tests.server.harness import RunningBroker, running

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
TIMEOUT_S = 20


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


def test_administration(address: str) -> None:
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
