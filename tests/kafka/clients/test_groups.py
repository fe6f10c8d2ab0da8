"""Groups of real Kafka clients: both protocols of librdkafka, kafka-python and aiokafka.

Each client subscribes, rebalances with a second member, commits, and resumes where it was.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from raftlog_cli.main import run
from tests.server.harness import TIMEOUT_S, RunningBroker, running

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its own use of importlib
    import kafka

Cli = Callable[..., str]
RECORDS = 40


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One with topic t of four partitions, and ``RECORDS`` records."""
    directory: Path = tmp_path_factory.mktemp("clients")
    with running(
        directory,
        group_initial_rebalance_delay_ms="0",
        group_consumer_heartbeat_interval_ms="100",
    ) as found:
        with found.client() as client:
            assert client.create("t", 4).failure is None
        producer = confluent_kafka.Producer({"bootstrap.servers": str(found.address)})
        for number in range(RECORDS):
            producer.produce("t", b"%d" % number, partition=number % 4)
        assert producer.flush(TIMEOUT_S) == 0
        yield found


def until(condition: Callable[[], bool]) -> None:
    """The condition polls: it lets the clients work."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "it never came true"


@pytest.fixture
def cli(broker: RunningBroker, capfd: pytest.CaptureFixture[str]) -> Cli:
    """``cli("group", "list")``: what the command prints."""

    def call(*words: str) -> str:
        capfd.readouterr()
        status = run([*words, "--bootstrap", str(broker.address)])
        out, err = capfd.readouterr()
        assert status == 0, err
        return out

    return call


# -- librdkafka ------------------------------------------------------------------------------------


def librdkafka(broker: RunningBroker, protocol: str, group: str, **fields: Any) -> Any:
    own = (
        {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 100}
        if protocol == "classic"
        else {}
    )
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": str(broker.address),
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **own,
            **fields,
        }
    )
    consumer.subscribe(["t"])
    return consumer


def values(consumer: Any, count: int) -> set[bytes]:
    """The values of the next records."""
    found: list[bytes] = []

    def polled() -> bool:
        message = consumer.poll(0.05)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message.value())
        return len(found) >= count

    until(polled)
    return set(found)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_librdkafka_rebalances_commits_and_resumes(
    broker: RunningBroker, cli: Cli, protocol: str
) -> None:
    group = f"rd-{protocol}"
    one = librdkafka(broker, protocol, group)
    assert len(values(one, RECORDS)) == RECORDS
    committed = one.commit(asynchronous=False)
    assert sorted((each.partition, each.offset) for each in committed) == [
        (number, RECORDS // 4) for number in range(4)
    ]
    two = librdkafka(broker, protocol, group)

    def is_even() -> bool:
        assert one.poll(0.05) is None, "it reads a record again"
        assert two.poll(0.05) is None, "it reads a committed record"
        return len(one.assignment()) == len(two.assignment()) == 2

    until(is_even)
    rows = [line.split() for line in cli("group", "list").splitlines()]
    assert [row[:5] for row in rows if row[0] == group] == [[group, "stable", "2", "0", protocol]]
    shown = cli("group", "describe", group)
    assert f"assignor {'range' if protocol == 'classic' else 'uniform'}" in shown
    one.close()
    until(lambda: two.poll(0.05) is None and len(two.assignment()) == 4)
    two.close()
    cli("group", "reset", group, "--to", "earliest", "--topic", "t", "--execute")
    again = librdkafka(broker, protocol, group)
    assert len(values(again, RECORDS)) == RECORDS
    again.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_librdkafka_subscribes_to_a_regular_expression(
    broker: RunningBroker, protocol: str
) -> None:
    prefix = f"topic-{protocol}"
    with broker.client() as client:
        client.create(f"{prefix}-1", 1)
        fields = {"topic.metadata.refresh.interval.ms": 200}
        consumer = librdkafka(broker, protocol, f"rd-regex-{protocol}", **fields)
        consumer.subscribe([f"^{prefix}.*"])

        def assigned() -> list[str]:
            assert consumer.poll(0.05) is None, "the topics are empty"
            return sorted(each.topic for each in consumer.assignment())

        until(lambda: assigned() == [f"{prefix}-1"])
        client.create(f"{prefix}-2", 1)
        client.create(f"other-{prefix}", 1)
        until(lambda: assigned() == [f"{prefix}-1", f"{prefix}-2"])
        consumer.close()


def test_a_static_member_of_librdkafka_comes_back_without_a_rebalance(
    broker: RunningBroker,
) -> None:
    fields = {"group.instance.id": "i"}
    one = librdkafka(broker, "classic", "rd-static", **fields)
    values(one, RECORDS)
    one.commit(asynchronous=False)
    shard = broker.broker.context.coordinator.shard("rd-static")

    def generation() -> int:
        assert shard._state is not None
        return shard._state.describe("rd-static").group_epoch

    before = generation()
    one.close()
    two = librdkafka(broker, "classic", "rd-static", **fields)
    until(lambda: two.poll(0.05) is None and len(two.assignment()) == 4)
    assert generation() == before
    two.close()


def test_librdkafkas_admin_client_sees_and_deletes_groups(broker: RunningBroker, cli: Cli) -> None:
    one = librdkafka(broker, "classic", "rd-admin")
    values(one, 1)
    admin = AdminClient({"bootstrap.servers": str(broker.address)})
    listed = admin.list_consumer_groups(request_timeout=TIMEOUT_S).result()
    assert "rd-admin" in {each.group_id for each in listed.valid}
    described = admin.describe_consumer_groups(["rd-admin"])["rd-admin"].result()
    (member,) = described.members
    assert {each.partition for each in member.assignment.topic_partitions} == {0, 1, 2, 3}
    one.commit(asynchronous=False)
    one.close()
    assert admin.delete_consumer_groups(["rd-admin"])["rd-admin"].result() is None
    assert "rd-admin" not in cli("group", "list")


# -- kafka-python ----------------------------------------------------------------------------------


def test_kafka_python_rebalances_commits_and_resumes(broker: RunningBroker) -> None:
    def consumer() -> Any:
        return kafka.KafkaConsumer(
            "t",
            bootstrap_servers=str(broker.address),
            group_id="kp",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
            session_timeout_ms=10_000,
        )

    one = consumer()
    found: list[bytes] = []

    def polled() -> bool:
        found.extend(r.value for rs in one.poll(timeout_ms=50).values() for r in rs)
        return len(found) >= RECORDS

    until(polled)
    one.commit()
    two = consumer()

    def is_even() -> bool:
        assert not one.poll(timeout_ms=50)
        assert not two.poll(timeout_ms=50)
        return len(one.assignment()) == len(two.assignment()) == 2

    until(is_even)
    assert two.committed(kafka.TopicPartition("t", 0)) == RECORDS // 4
    one.close()
    two.close()


# -- aiokafka --------------------------------------------------------------------------------------


def test_aiokafka_rebalances_commits_and_resumes(broker: RunningBroker) -> None:
    def consumer() -> Any:
        return aiokafka.AIOKafkaConsumer(
            "t",
            bootstrap_servers=str(broker.address),
            group_id="aio",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
            session_timeout_ms=10_000,
        )

    async def timeline() -> None:
        one = consumer()
        await one.start()
        found = [await one.getone() for _ in range(RECORDS)]
        assert len({record.value for record in found}) == RECORDS
        await one.commit()
        two = consumer()
        await two.start()
        while not len(one.assignment()) == len(two.assignment()) == 2:
            assert not await one.getmany(timeout_ms=20)
            assert not await two.getmany(timeout_ms=20)
        (first, *_) = two.assignment()
        assert await two.committed(first) == RECORDS // 4
        await one.stop()
        await two.stop()

    asyncio.run(asyncio.wait_for(timeline(), TIMEOUT_S))
