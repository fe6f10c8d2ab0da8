"""Closing a consumer of a group while another thread reads, or closes it, too. With a real broker
in this process.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

import raftlog
from raftlog import EmbeddedLog, TopicPartition
from raftlog.errors import ClosedError
from tests.client.consumer_groups.test_consuming_for_real import consumer_of, send, some

_names = itertools.count()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLog]:
    with raftlog.open(tmp_path_factory.mktemp("log")) as made:
        yield made


@pytest.fixture
def topic(log: EmbeddedLog) -> str:
    """A topic with records 0 to 9."""
    name = f"t{next(_names)}"
    log.create_topic(name, 1)
    send(log, name, 10)
    return name


def test_closed_by_another_thread_only_what_is_processed_is_committed(
    log: EmbeddedLog, topic: str
) -> None:
    consumer = consumer_of(log, topic)
    consumer.subscribe([topic])
    iteration = iter(consumer)
    assert [next(iteration).offset for _ in range(3)] == [0, 1, 2]
    thread = threading.Thread(target=consumer.close)
    thread.start()
    thread.join(20)
    with pytest.raises(ClosedError):
        next(iteration)
    with consumer_of(log, topic) as another:
        assert another.committed(TopicPartition(topic, 0)) == 2


def test_an_exception_after_a_commit_of_polled_records_commits_no_less(
    log: EmbeddedLog, topic: str
) -> None:
    first = TopicPartition(topic, 0)
    with suppress(ZeroDivisionError), consumer_of(log, topic) as consumer:
        consumer.subscribe([topic])
        assert len(some(consumer, 10)) == 10
        consumer.commit({first: 7})
        raise ZeroDivisionError
    with consumer_of(log, topic) as another:
        assert another.committed(first) == 7


def test_an_iteration_that_goes_on_while_another_thread_closes_commits_nothing_in_hand(
    log: EmbeddedLog, topic: str
) -> None:
    """It is between a record and its position when the other thread asks what is processed."""
    asked, given = threading.Event(), threading.Event()
    first = TopicPartition(topic, 0)

    def revoked(_partitions: list[TopicPartition]) -> None:
        asked.set()
        assert given.wait(20)

    def slow(value: bytes) -> bytes:
        if value == b"3" and not thread.is_alive() and not asked.is_set():
            thread.start()
            assert asked.wait(20)
        return value

    consumer = consumer_of(log, topic, value_deserializer=slow)
    thread = threading.Thread(target=consumer.close)
    consumer.subscribe([topic], on_revoke=revoked)
    iteration = iter(consumer)
    assert [next(iteration).offset for _ in range(4)] == [0, 1, 2, 3]
    given.set()
    thread.join(20)
    with consumer_of(log, topic) as another:
        assert another.committed(first) == 2, "it has asked for the one after, and so on"


def test_who_closes_what_another_thread_is_closing_waits_for_that(
    log: EmbeddedLog, topic: str
) -> None:
    begun, ends = threading.Event(), threading.Event()

    def revoked(_partitions: list[TopicPartition]) -> None:
        begun.set()
        assert ends.wait(20)

    consumer = consumer_of(log, topic)
    thread = threading.Thread(target=consumer.close, daemon=True)
    timer = threading.Timer(0.01, ends.set)
    with consumer:
        consumer.subscribe([topic], on_revoke=revoked)
        some(consumer, 2)
        some(consumer, 1)
        thread.start()
        assert begun.wait(20)
        timer.start()
    with consumer_of(log, topic) as another:
        assert another.committed(TopicPartition(topic, 0)) == 2
    thread.join(20)
    timer.join()


def test_a_thread_that_has_ended_is_none_of_those_that_come_later(
    log: EmbeddedLog, topic: str
) -> None:
    """Systems give threads the numbers of those that have ended."""
    consumer = consumer_of(log, topic)
    consumer.subscribe([topic])
    reader = threading.Thread(target=some, args=(consumer, 3))
    reader.start()
    reader.join(20)
    number, used = reader.ident, []

    def close() -> None:
        used.append(threading.get_ident())
        if used[-1] == number:
            consumer.close()

    for _ in range(1_000):
        if number in used:
            break
        thread = threading.Thread(target=close)
        thread.start()
        thread.join(20)
    consumer.close()
    with consumer_of(log, topic) as another:
        assert another.committed(TopicPartition(topic, 0)) == 0
