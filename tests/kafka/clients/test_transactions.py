"""Transactions of real Kafka clients: consume, transform, produce, exactly once."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import aiokafka.errors
import confluent_kafka
import pytest

from raftlog.clock import SystemClock
from tests.server.harness import TIMEOUT_S, RunningBroker, running

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its own use of importlib
    import kafka

RECORDS = 6


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One whose groups rebalance without a delay, on the machine's clock."""
    directory = tmp_path_factory.mktemp("transactions")
    with running(directory, clock=SystemClock(), group_initial_rebalance_delay_ms="0") as found:
        yield found


@pytest.fixture(scope="module")
def address(broker: RunningBroker) -> str:
    return str(broker.address)


@pytest.fixture
def topics(broker: RunningBroker, request: pytest.FixtureRequest) -> tuple[str, str]:
    """A source with some records, and a target."""
    name: str = request.node.name.replace("[", "-").replace("]", "")
    source, target = f"{name}-in", f"{name}-out"
    with broker.client() as native:
        for each in (source, target):
            assert native.create(each).failure is None
    producer = confluent_kafka.Producer({"bootstrap.servers": str(broker.address)})
    for number in range(RECORDS):
        producer.produce(source, b"%d" % number)
    assert producer.flush(TIMEOUT_S) == 0
    return source, target


def read(address: str, topic: str, *, isolation: str = "read_committed") -> list[bytes]:
    """All records, to the end of the partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"reader-{topic}-{isolation}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    try:
        while (got := consumer.poll(TIMEOUT_S)) is not None:
            if got.error() is None:
                found.append(got.value())
            else:
                assert got.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                return found
        raise AssertionError("the end never came")
    finally:
        consumer.close()


def librdkafka(address: str, source: str, target: str) -> None:
    """Version 1. The second of three transactions is aborted, and done again."""
    group = f"group-{source}"
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([source])
    settings = {"bootstrap.servers": address, "transactional.id": source}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(TIMEOUT_S)
    aborted = False
    done = 0
    while done < RECORDS:
        batch = consumer.consume(2, TIMEOUT_S)
        assert batch
        producer.begin_transaction()
        for each in batch:
            producer.produce(target, b"out " + each.value())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), TIMEOUT_S
        )
        if done and not aborted:
            producer.flush(TIMEOUT_S)
            producer.abort_transaction(TIMEOUT_S)
            aborted = True
            for each in consumer.committed(consumer.assignment(), TIMEOUT_S):
                consumer.seek(each)
            continue
        producer.commit_transaction(TIMEOUT_S)
        done += len(batch)
    consumer.close()


def kafka_python(address: str, source: str, target: str) -> None:
    consumer = kafka.KafkaConsumer(
        source,
        bootstrap_servers=address,
        group_id=f"group-{source}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    producer = kafka.KafkaProducer(bootstrap_servers=address, transactional_id=source)
    producer.init_transactions()
    done, aborted = 0, False
    while done < RECORDS:
        got = consumer.poll(timeout_ms=10_000, max_records=2)
        assert got
        ((part, batch),) = got.items()
        producer.begin_transaction()
        for each in batch:
            producer.send(target, b"out " + each.value)
        offset = kafka.structs.OffsetAndMetadata(batch[-1].offset + 1, "", -1)
        producer.send_offsets_to_transaction({part: offset}, f"group-{source}")
        if done and not aborted:
            producer.flush()
            producer.abort_transaction()
            aborted = True
            consumer.seek(part, batch[0].offset)
            continue
        producer.commit_transaction()
        done += len(batch)
    producer.close()
    consumer.close()


def aio(address: str, source: str, target: str) -> None:
    async def run() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            source,
            bootstrap_servers=address,
            group_id=f"group-{source}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=address, transactional_id=source)
        await consumer.start()
        await producer.start()
        done, aborted = 0, False
        while done < RECORDS:
            got = await consumer.getmany(timeout_ms=10_000, max_records=2)
            assert got
            ((part, batch),) = got.items()
            await producer.begin_transaction()
            for each in batch:
                await producer.send(target, b"out " + each.value)
            await producer.send_offsets_to_transaction(
                {part: batch[-1].offset + 1}, f"group-{source}"
            )
            if done and not aborted:
                await producer.flush()
                await producer.abort_transaction()
                aborted = True
                consumer.seek(part, batch[0].offset)
                continue
            await producer.commit_transaction()
            done += len(batch)
        await producer.stop()
        await consumer.stop()

    asyncio.run(run())


@pytest.mark.parametrize("run", [librdkafka, kafka_python, aio], ids=lambda run: run.__name__)
def test_each_record_is_transformed_once(
    address: str, topics: tuple[str, str], run: Callable[[str, str, str], Any]
) -> None:
    source, target = topics
    run(address, source, target)
    expected = [b"out %d" % number for number in range(RECORDS)]
    assert read(address, target) == expected
    assert len(read(address, target, isolation="read_uncommitted")) > RECORDS
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": f"group-{source}"}
    )
    part = confluent_kafka.TopicPartition(source, 0)
    assert consumer.committed([part], TIMEOUT_S)[0].offset == RECORDS
    consumer.close()


def test_an_instance_that_was_replaced_is_fenced(address: str, topics: tuple[str, str]) -> None:
    _, target = topics
    first, second = (
        confluent_kafka.Producer({"bootstrap.servers": address, "transactional.id": target})
        for _ in range(2)
    )
    first.init_transactions(TIMEOUT_S)
    first.begin_transaction()
    first.produce(target, b"old")
    first.flush(TIMEOUT_S)
    second.init_transactions(TIMEOUT_S)
    second.begin_transaction()
    second.produce(target, b"new")
    second.commit_transaction(TIMEOUT_S)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        first.commit_transaction(TIMEOUT_S)
    assert caught.value.args[0].code() == confluent_kafka.KafkaError._FENCED
    assert read(address, target) == [b"new"]
