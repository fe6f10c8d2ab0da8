"""aiokafka against a broker."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import raftlog
from raftlog.consumer_groups import partition_of_group
from raftlog.testing.cluster import cluster
from raftlog.types import OFFSETS_TOPIC

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


def produce(address: str, start: int) -> None:
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
        produce(brokers.bootstrap, 0)
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
        produce(brokers.bootstrap, GROUP_FAILOVER_COUNT)
        for member in members.values():
            assert consumed(member) == list(range(GROUP_FAILOVER_COUNT, 2 * GROUP_FAILOVER_COUNT))
        for member in members.values():
            member.close()
