"""aiokafka against a broker."""

from __future__ import annotations

import asyncio

import aiokafka
import pytest

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
