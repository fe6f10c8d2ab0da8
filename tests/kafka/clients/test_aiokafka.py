"""aiokafka against a broker."""

from __future__ import annotations

import asyncio

import aiokafka
import confluent_kafka
import pytest

import raftlog

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
