"""The synchronous consumer in groups, with the broker's own coordinator, in this process."""

from __future__ import annotations

import gc
import itertools
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import raftlog
from raftlog import Consumer, EmbeddedLog, OffsetAndMetadata, TopicPartition
from raftlog.errors import (
    ClosedError,
    DeserializationError,
    InstanceFencedError,
    InvalidGroupError,
    InvalidRequestError,
)

# -- consuming -------------------------------------------------------------------------------------


WAIT_MS = 20_000
_names = itertools.count()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLog]:
    with raftlog.open(tmp_path_factory.mktemp("log")) as made:
        yield made


@pytest.fixture
def topic(log: EmbeddedLog) -> str:
    """A topic of two partitions, with records 0 to 9 in the first."""
    name = f"t{next(_names)}"
    log.create_topic(name, 2)
    send(log, name, 10)
    return name


def send(log: EmbeddedLog, topic: str, count: int, partition: int = 0) -> None:
    with log.producer() as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=partition)
        producer.flush()


def consumer_of(log: EmbeddedLog, topic: str, **settings: Any) -> Consumer:
    """One of a group that is named like the topic."""
    return log.consumer(**{"group": topic, "auto_offset_reset": "earliest", **settings})


def some(consumer: Consumer, count: int = 1) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += [record.offset for record in consumer.poll(WAIT_MS, count - len(found))]
    return found


def share(one: Consumer, two: Consumer) -> None:
    """Poll both until each has a partition."""
    for _ in range(2_000):
        if len(one.assignment()) == len(two.assignment()) == 1:
            return
        one.poll(5, 1)
        two.poll(5, 1)
    raise AssertionError("they do not share")


def test_reading_committing_and_going_on(log: EmbeddedLog, topic: str) -> None:
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with consumer_of(log, topic) as consumer:
        consumer.subscribe([topic])
        assert some(consumer, 3) == [0, 1, 2]
        consumer.commit()
        assert consumer.committed(first) == 3
        consumer.commit({first: OffsetAndMetadata(2, "note")})
        assert consumer.committed(first, metadata=True) == OffsetAndMetadata(2, "note")
        assert some(consumer, 1) == [3]
        assert consumer.lag() == {first: 6, second: 0}
    with consumer_of(log, topic) as consumer:
        consumer.subscribe([topic])
        assert some(consumer, 6) == [4, 5, 6, 7, 8, 9]
    with consumer_of(log, topic, auto_offset_reset="error") as consumer:
        consumer.assign([first])
        assert consumer.poll(20) == []
        assert consumer.position(first) == 10
        assert consumer.committed([first]) == {first: 10}


def test_an_iteration_stops_where_it_is_and_another_goes_on(log: EmbeddedLog, topic: str) -> None:
    def handle(consumer: Consumer, failing: int) -> list[int]:
        done = []
        for record in consumer:
            if record.offset == failing:
                raise ZeroDivisionError
            done.append(record.offset)
        return done

    def program() -> None:
        with consumer_of(log, topic) as consumer:
            consumer.subscribe([topic])
            handle(consumer, 4)

    with pytest.raises(ZeroDivisionError):
        program()
    with consumer_of(log, topic) as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            assert record.offset == 4, "the one in hand comes again"
            break
    with consumer_of(log, topic) as consumer:
        consumer.subscribe([topic])
        assert some(consumer) == [5], "this one was left without an error"


def test_a_deserializer_that_raises_leaves_what_is_before_it_processed(
    log: EmbeddedLog, topic: str
) -> None:
    def picky(value: bytes) -> bytes:
        assert value != b"3"
        return value

    def program() -> None:
        with consumer_of(log, topic, value_deserializer=picky) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            for record in consumer:
                assert record.offset < 3

    with pytest.raises(DeserializationError):
        program()
    with consumer_of(log, topic) as consumer:
        assert consumer.committed(TopicPartition(topic, 0)) == 3


def test_arrow(log: EmbeddedLog, topic: str) -> None:
    pytest.importorskip("pyarrow")
    with consumer_of(log, topic) as consumer:
        consumer.subscribe([topic])
        batch = consumer.poll_arrow(WAIT_MS)
        assert batch is not None
        assert batch.num_rows == 10
    with consumer_of(log, topic) as consumer:
        assert consumer.committed(TopicPartition(topic, 0)) == 10


def test_two_share_and_each_hears_of_it(log: EmbeddedLog, topic: str) -> None:
    noted: list[tuple[str, int]] = []
    with consumer_of(log, topic) as one, consumer_of(log, topic) as two:
        one.subscribe(
            [topic],
            on_assign=lambda partitions: noted.append(("assign", len(partitions))),
            on_revoke=lambda partitions: noted.append(("revoke", len(partitions))),
        )
        some(one)
        two.subscribe([topic])
        share(one, two)
        assert noted == [("assign", 2), ("revoke", 1)]
        assert one.assignment() | two.assignment() == {TopicPartition(topic, n) for n in (0, 1)}
        two.unsubscribe()
        assert two.assignment() == set()
        while len(one.assignment()) < 2:
            one.poll(20, 1)
        assert noted[2:] == [("assign", 1)]


def test_a_wait_for_records_is_interrupted_by_a_rebalance(log: EmbeddedLog, topic: str) -> None:
    """One iterates in a thread and gets nothing; it gives a partition up all the same."""
    with consumer_of(log, topic) as one, consumer_of(log, topic) as two:
        one.subscribe([topic])
        some(one, 10)
        got: list[int] = []

        def read() -> None:
            with suppress(ClosedError):
                got.extend(record.offset for record in one)

        thread = threading.Thread(target=read)
        thread.start()
        two.subscribe([topic])
        while not two.assignment():
            two.poll(20)
        assert len(one.assignment()) == 1
        one.close()
        thread.join(20)
        assert not thread.is_alive()
        assert got == []


def test_callbacks_may_commit_and_what_they_raise_is_heard(log: EmbeddedLog, topic: str) -> None:
    consumer = consumer_of(log, topic, auto_commit=False)

    def revoked(_partitions: list[TopicPartition]) -> None:
        consumer.commit()
        raise ZeroDivisionError

    consumer.subscribe([topic], on_revoke=revoked)
    some(consumer, 4)
    with pytest.raises(ZeroDivisionError):
        consumer.close()
    with consumer_of(log, topic) as another:
        assert another.committed(TopicPartition(topic, 0)) == 4
        with pytest.raises(TypeError, match=r"raftlog\.aio"):
            another.subscribe([topic], on_assign=_coroutine)


def test_a_callback_that_fails_leaves_no_partitions_that_others_get(
    log: EmbeddedLog, topic: str
) -> None:
    def revoked(_partitions: list[TopicPartition]) -> None:
        raise ZeroDivisionError

    first = TopicPartition(topic, 0)
    with consumer_of(log, topic) as consumer:
        consumer.subscribe([topic], on_revoke=revoked)
        some(consumer, 4)
        with pytest.raises(ZeroDivisionError):
            consumer.unsubscribe()
        assert consumer.assignment() == set()
        consumer.subscribe([topic], on_revoke=revoked)
        some(consumer, 1)
        with pytest.raises(ZeroDivisionError):
            consumer.assign([first])
        assert consumer.assignment() == {first}


async def _coroutine(_partitions: list[TopicPartition]) -> None:
    raise AssertionError("it is never called")


def test_commits_without_waiting(log: EmbeddedLog, topic: str) -> None:
    noted: list[Any] = []
    first = TopicPartition(topic, 0)
    with consumer_of(log, topic, auto_commit=False) as consumer:
        consumer.subscribe([topic])
        some(consumer, 4)
        given = [{first: OffsetAndMetadata(offset)} for offset in (1, 2)]
        futures = [consumer.commit_async(one, lambda *done: noted.append(done)) for one in given]
        assert [future.result(20) for future in futures] == given
        bad = consumer.commit_async({first: 99})
        with pytest.raises(InvalidRequestError, match="beyond the end offset 10"):
            bad.result(20)
        assert noted == []
        consumer.poll(0)
        assert noted == [(one, None) for one in given]
        assert consumer.committed(first) == 2


def test_a_pattern_finds_topics_that_come_later(log: EmbeddedLog, topic: str) -> None:
    settings = {"auto_offset_reset": "latest", "metadata_max_age_ms": 100}
    with (
        consumer_of(log, topic, heartbeat_interval_ms=100, **settings) as member,
        log.consumer(**settings) as alone,
    ):
        for consumer in (member, alone):
            consumer.subscribe(pattern=f"{topic}.*")
            consumer.poll(50)
        log.create_topic(f"{topic}-later")
        send(log, f"{topic}-later", 3)
        for consumer in (member, alone):
            assert some(consumer, 3) == [0, 1, 2]
            assert {tp.topic for tp in consumer.assignment()} == {topic, f"{topic}-later"}


def test_a_pattern_may_match_nothing_yet(log: EmbeddedLog) -> None:
    with log.consumer(metadata_max_age_ms=100, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(pattern="nothing-yet")
        assert consumer.poll(10) == []
        log.create_topic("nothing-yet")
        send(log, "nothing-yet", 1)
        assert some(consumer) == [0]


def test_a_static_member_gets_its_partitions_back(log: EmbeddedLog, topic: str) -> None:
    one = consumer_of(log, topic, group_instance_id="one")
    two = consumer_of(log, topic, group_instance_id="two")
    for consumer in (one, two):
        consumer.subscribe([topic])
    share(one, two)
    mine, theirs = one.assignment(), two.assignment()
    one.close()
    one = consumer_of(log, topic, group_instance_id="one")
    one.subscribe([topic])
    while not one.assignment():
        one.poll(20, 1)
    assert (one.assignment(), two.assignment()) == (mine, theirs)
    newer = consumer_of(log, topic, group_instance_id="two")
    newer.subscribe([topic])
    while not newer.assignment():
        newer.poll(20, 1)
    with pytest.raises(InstanceFencedError):
        some(two, 99)
    with pytest.raises(InstanceFencedError):
        two.commit({TopicPartition(topic, 0): 0})
    for consumer in (one, two, newer):
        consumer.close()


def test_two_threads_at_once_are_told(log: EmbeddedLog, topic: str) -> None:
    with consumer_of(log, topic) as consumer:
        consumer.subscribe([topic])
        some(consumer, 10)
        errors: list[Exception] = []

        def read() -> None:
            try:
                consumer.poll(WAIT_MS)
            except Exception as error:  # noqa: BLE001 - it is looked at below
                errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        while not consumer._subscription._waiter:
            thread.join(0.001)
        for call in (consumer.poll, consumer.commit, consumer.unsubscribe):
            with pytest.raises(InvalidRequestError, match="two threads"):
                call()
        consumer.commit({TopicPartition(topic, 0): 5})
        consumer.close()
        thread.join(20)
        assert [type(error) for error in errors] == [ClosedError]


def test_ctrl_c_in_a_poll_and_on(log: EmbeddedLog, topic: str) -> None:
    with consumer_of(log, topic) as consumer:
        consumer.subscribe([topic])
        some(consumer, 10)
        main = threading.main_thread().ident or 0
        threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(WAIT_MS)
        send(log, topic, 1)
        assert some(consumer) == [10]


def test_ctrl_c_in_a_callback_and_the_rebalance_goes_on(log: EmbeddedLog, topic: str) -> None:
    def stop(_partitions: list[TopicPartition]) -> None:
        raise KeyboardInterrupt

    with consumer_of(log, topic) as one, consumer_of(log, topic) as two:
        one.subscribe([topic], on_assign=stop)
        with pytest.raises(KeyboardInterrupt):
            some(one)
        assert some(one) == [0]
        one.subscribe([topic], on_revoke=stop)
        two.subscribe([topic])
        with pytest.raises(KeyboardInterrupt):
            share(one, two)
        share(one, two)
        one.subscribe([topic])


def test_an_unclosed_one_leaves_and_warns(log: EmbeddedLog, topic: str) -> None:
    def use() -> None:
        consumer = consumer_of(log, topic)
        consumer.subscribe([topic], on_assign=lambda _partitions: consumer.assignment())
        some(consumer)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        use()
        gc.collect()
    assert [w.category for w in warned] == [ResourceWarning]
    with consumer_of(log, topic) as another:
        another.subscribe([topic])
        assert some(another) == [0], "it has left, and nothing was committed"


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"group": "g" * 300}, InvalidGroupError),
        ({"group": ""}, InvalidGroupError),
        ({"group": 7}, TypeError),
        ({"group_instance_id": "i" * 300}, InvalidGroupError),
        ({"group_instance_id": ""}, InvalidGroupError),
        ({"assignor": 1}, TypeError),
        ({"session_timeout_ms": 1}, InvalidRequestError),
        ({"max_poll_interval_ms": 0}, InvalidRequestError),
        ({"heartbeat_interval_ms": 0}, InvalidRequestError),
        ({"auto_commit_interval_ms": "1"}, TypeError),
    ],
)
def test_settings_that_can_never_be_right(
    log: EmbeddedLog, settings: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        consumer_of(log, "g", **settings)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda consumer: consumer.subscribe(), InvalidRequestError),
        (lambda consumer: consumer.subscribe(["t"], pattern="t"), InvalidRequestError),
        (lambda consumer: consumer.subscribe(pattern="("), InvalidRequestError),
        (lambda consumer: consumer.subscribe(pattern=b"t"), TypeError),
        (lambda consumer: consumer.subscribe(["t"], on_revoke=1), TypeError),
        (lambda consumer: consumer.commit_async(callback=1), TypeError),
        (lambda consumer: consumer.commit(timeout_ms=0), InvalidRequestError),
        (lambda consumer: consumer.close(timeout_ms=-1), InvalidRequestError),
    ],
)
def test_calls_that_can_never_be_right(log: EmbeddedLog, call: Any, error: type[Exception]) -> None:
    with consumer_of(log, "g") as consumer, pytest.raises(error):
        call(consumer)


def test_after_the_end_everything_says_so(log: EmbeddedLog, topic: str) -> None:
    consumer = consumer_of(log, topic)
    consumer.subscribe([topic])
    consumer.close()
    consumer.close()
    first = TopicPartition(topic, 0)
    for use in (
        consumer.poll,
        consumer.commit,
        consumer.commit_async,
        consumer.lag,
        consumer.unsubscribe,
        lambda: consumer.committed(first),
        lambda: consumer.subscribe([topic]),
        lambda: consumer.commit({first: 0}),
        lambda: next(iter(consumer)),
    ):
        with pytest.raises(ClosedError):
            use()


def test_the_log_closes_its_consumers(tmp_path: Any) -> None:
    with raftlog.open(tmp_path) as log:
        log.create_topic("t")
        send(log, "t", 2)
        consumer = consumer_of(log, "t")
        consumer.subscribe(["t"])
        assert some(consumer) == [0]
    with pytest.raises(ClosedError):
        consumer.poll()
    with raftlog.open(tmp_path) as log, consumer_of(log, "t") as consumer:
        consumer.subscribe(["t"])
        assert some(consumer) == [1]


# -- closing ---------------------------------------------------------------------------------------

# Closing a consumer of a group while another thread reads, or closes it, too. With a real broker
# in this process.


@pytest.fixture
def closing_topic(log: EmbeddedLog) -> str:
    """A topic with records 0 to 9."""
    name = f"t{next(_names)}"
    log.create_topic(name, 1)
    send(log, name, 10)
    return name


def test_closed_by_another_thread_only_what_is_processed_is_committed(
    log: EmbeddedLog, closing_topic: str
) -> None:
    consumer = consumer_of(log, closing_topic)
    consumer.subscribe([closing_topic])
    iteration = iter(consumer)
    assert [next(iteration).offset for _ in range(3)] == [0, 1, 2]
    thread = threading.Thread(target=consumer.close)
    thread.start()
    thread.join(20)
    with pytest.raises(ClosedError):
        next(iteration)
    with consumer_of(log, closing_topic) as another:
        assert another.committed(TopicPartition(closing_topic, 0)) == 2


def test_an_exception_after_a_commit_of_polled_records_commits_no_less(
    log: EmbeddedLog, closing_topic: str
) -> None:
    first = TopicPartition(closing_topic, 0)
    with suppress(ZeroDivisionError), consumer_of(log, closing_topic) as consumer:
        consumer.subscribe([closing_topic])
        assert len(some(consumer, 10)) == 10
        consumer.commit({first: 7})
        raise ZeroDivisionError
    with consumer_of(log, closing_topic) as another:
        assert another.committed(first) == 7


def test_an_iteration_that_goes_on_while_another_thread_closes_commits_nothing_in_hand(
    log: EmbeddedLog, closing_topic: str
) -> None:
    """It is between a record and its position when the other thread asks what is processed."""
    asked, given = threading.Event(), threading.Event()
    first = TopicPartition(closing_topic, 0)

    def revoked(_partitions: list[TopicPartition]) -> None:
        asked.set()
        assert given.wait(20)

    def slow(value: bytes) -> bytes:
        if value == b"3" and not thread.is_alive() and not asked.is_set():
            thread.start()
            assert asked.wait(20)
        return value

    consumer = consumer_of(log, closing_topic, value_deserializer=slow)
    thread = threading.Thread(target=consumer.close)
    consumer.subscribe([closing_topic], on_revoke=revoked)
    iteration = iter(consumer)
    assert [next(iteration).offset for _ in range(4)] == [0, 1, 2, 3]
    given.set()
    thread.join(20)
    with consumer_of(log, closing_topic) as another:
        assert another.committed(first) == 2, "it has asked for the one after, and so on"


def test_who_closes_what_another_thread_is_closing_waits_for_that(
    log: EmbeddedLog, closing_topic: str
) -> None:
    begun, ends = threading.Event(), threading.Event()

    def revoked(_partitions: list[TopicPartition]) -> None:
        begun.set()
        assert ends.wait(20)

    consumer = consumer_of(log, closing_topic)
    thread = threading.Thread(target=consumer.close, daemon=True)
    timer = threading.Timer(0.01, ends.set)
    with consumer:
        consumer.subscribe([closing_topic], on_revoke=revoked)
        some(consumer, 2)
        some(consumer, 1)
        thread.start()
        assert begun.wait(20)
        timer.start()
    with consumer_of(log, closing_topic) as another:
        assert another.committed(TopicPartition(closing_topic, 0)) == 2
    thread.join(20)
    timer.join()


def test_a_close_that_is_interrupted_stops_the_consumer(
    log: EmbeddedLog, closing_topic: str
) -> None:
    def interrupt(_partitions: list[TopicPartition]) -> None:
        raise KeyboardInterrupt

    consumer = consumer_of(log, closing_topic)
    consumer.subscribe([closing_topic], on_revoke=interrupt)
    some(consumer, 1)
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    assert consumer._core._fetcher._closed, "the thread of the log goes on"


def test_a_thread_that_has_ended_is_none_of_those_that_come_later(
    log: EmbeddedLog, closing_topic: str
) -> None:
    """Systems give threads the numbers of those that have ended."""
    consumer = consumer_of(log, closing_topic)
    consumer.subscribe([closing_topic])
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
    with consumer_of(log, closing_topic) as another:
        assert another.committed(TopicPartition(closing_topic, 0)) == 0
