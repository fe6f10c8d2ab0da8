"""The synchronous consumer, over brokers in memory on its own thread."""

from __future__ import annotations

import gc
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from raftlog.client.base import ClientEnvironment
from raftlog.client.consumer import Consumer
from raftlog.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    ClosedError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.types import OffsetAndTimestamp, TopicPartition
from tests.client.samples import python
from tests.client.test_fetcher import fill
from tests.client.test_subscription import A, B
from tests.client.world import FakeCluster, refuse, vanish

WAIT_MS = 20_000


@contextmanager
def consumer_of(fake: FakeCluster, **settings: Any) -> Iterator[Consumer]:
    settings = {"auto_offset_reset": "earliest", **settings}
    with Consumer(
        fake.bootstrap, host=ClientEnvironment(connector=fake.connect), **settings
    ) as consumer:
        yield consumer


@pytest.fixture
def fake() -> FakeCluster:
    made = FakeCluster()
    made.create("t", 2)
    fill(made, 3, 2)
    return made


def offsets(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += [record.offset for record in consumer.poll(WAIT_MS, count - len(found))]
    return found


def test_polling(fake: FakeCluster) -> None:
    with consumer_of(fake) as consumer:
        consumer.assign([A])
        assert consumer.assignment() == {A}
        assert offsets(consumer, 5) == [0, 1, 2, 3, 4]
        assert consumer.position(A) == 5
        assert consumer.poll(timeout_ms=0) == []
        assert consumer.poll(timeout_ms=20) == []


def test_a_deleted_user_is_reported_by_the_next_poll(fake: FakeCluster) -> None:
    with consumer_of(fake) as consumer:
        consumer.assign([A])
        assert offsets(consumer, 5) == [0, 1, 2, 3, 4]
        fake.always[apis.API_VERSIONS] = refuse(AuthenticationError("E: the user is unknown"))
        fake.always[apis.FETCH] = vanish
        for _ in range(2):
            with pytest.raises(AuthenticationError, match="E: the user"):
                consumer.poll(WAIT_MS)


def test_iterating(fake: FakeCluster) -> None:
    with consumer_of(fake) as consumer:
        consumer.subscribe(["t"])
        iteration = iter(consumer)
        assert [next(iteration).offset for _ in range(5)] == [0, 1, 2, 3, 4]
        consumer.seek(A, 3)
        assert next(iteration).offset == 3
        assert consumer.position(A) == 4
        for record in consumer:
            assert record.offset == 4
            break


def test_a_consumer_is_an_iterator(fake: FakeCluster) -> None:
    with consumer_of(fake) as consumer:
        consumer.assign([A])
        assert isinstance(consumer, Iterator)
        assert iter(consumer) is consumer
        assert [next(consumer).offset for _ in range(3)] == [0, 1, 2]
        assert [record.offset for record, _ in zip(consumer, "a", strict=False)] == [3]
        consumer.seek(A, 1)
        assert next(consumer).offset == 1
        consumer.unsubscribe()
        with pytest.raises(InvalidRequestError, match="has no assignment"):
            next(consumer)
        consumer.assign([A])
        consumer.seek(A, 4)
        assert next(consumer).offset == 4, "an error does not end the iteration"


def test_an_interrupted_iteration_skips_no_record(fake: FakeCluster) -> None:
    interrupts = iter([None, KeyboardInterrupt(), None])

    def interrupted(value: bytes) -> bytes:
        interrupt = next(interrupts)
        if interrupt is not None:
            raise interrupt
        return value

    with consumer_of(fake, value_deserializer=interrupted) as consumer:
        consumer.assign([A])
        assert next(consumer).offset == 0
        with pytest.raises(KeyboardInterrupt):
            next(consumer)
        assert consumer.position(A) == 1
        assert next(consumer).offset == 1


def test_iterating_with_deserializers(fake: FakeCluster) -> None:
    with consumer_of(fake, value_deserializer=bytes.decode) as consumer:
        consumer.assign([A])
        record = next(iter(consumer))
        assert (record.key, record.value) == (None, "x")
        assert consumer.position(A) == 1


def test_arrow(fake: FakeCluster) -> None:
    pytest.importorskip("pyarrow")
    with consumer_of(fake) as consumer:
        consumer.assign([A])
        batch = consumer.poll_arrow(WAIT_MS)
        assert batch is not None
        assert batch.column("offset").to_pylist()[:3] == [0, 1, 2]
        consumer.seek(A, 5)
        assert consumer.poll_arrow(timeout_ms=20) is None


def test_where_to_read(fake: FakeCluster) -> None:
    with consumer_of(fake) as consumer:
        consumer.assign([A, B])
        assert consumer.beginning_offsets([A, B]) == {A: 0, B: 0}
        assert consumer.end_offsets([A, B]) == {A: 5, B: 0}
        assert consumer.offsets_for_times({A: 1_700_000_000_003, B: 0}) == {
            A: OffsetAndTimestamp(3, 1_700_000_000_003),
            B: None,
        }
        consumer.seek_to_end()
        assert (consumer.position(A), consumer.position(B)) == (5, 0)
        consumer.seek_to_beginning([A])
        assert offsets(consumer, 1) == [0]
        assert consumer.partitions_for("t") == {0, 1}


def test_partitions_that_were_added_are_known_when_they_are_asked_for(fake: FakeCluster) -> None:
    added = TopicPartition("t", 2)
    with consumer_of(fake) as consumer:
        assert consumer.partitions_for("t") == {0, 1}
        assert consumer.end_offsets([A]) == {A: 5}
        fake.grow("t")
        assert consumer.end_offsets([added]) == {added: 0}
        assert consumer.partitions_for("t") == {0, 1, 2}
        fake.grow("t")
        assert consumer.partitions_for("t") == {0, 1, 2, 3}
        with pytest.raises(UnknownPartitionError, match="It has 4 partitions"):
            consumer.end_offsets([TopicPartition("t", 4)])


@pytest.mark.parametrize("how", ["assign", "subscribe"])
def test_a_topic_that_is_created_again_after_its_absence_was_reported_is_read(
    fake: FakeCluster, how: str
) -> None:
    with consumer_of(fake) as consumer:
        if how == "assign":
            consumer.assign([A])
        else:
            consumer.subscribe(["t"])
        assert offsets(consumer, 5) == [0, 1, 2, 3, 4]
        del fake.topics["t"]
        for _ in range(2):
            with pytest.raises(UnknownTopicError):
                consumer.poll(WAIT_MS)
        fake.create("t", 2).id = "another"
        fill(fake, 1, partition=0)
        found: list[int] = []
        while not found:
            with suppress(UnknownTopicError):
                found = [record.offset for record in consumer.poll(WAIT_MS)]
        assert found == [0]


def test_pausing(fake: FakeCluster) -> None:
    fill(fake, 1, partition=1)
    with consumer_of(fake) as consumer:
        consumer.assign([A, B])
        consumer.pause([A])
        assert consumer.paused() == {A}
        assert {record.partition for record in consumer.poll(WAIT_MS)} == {1}
        assert consumer.poll(timeout_ms=20) == []
        consumer.resume([A])
        assert offsets(consumer, 5) == [0, 1, 2, 3, 4]


def test_unsubscribing(fake: FakeCluster) -> None:
    with consumer_of(fake) as consumer:
        consumer.subscribe(["t"])
        consumer.unsubscribe()
        assert consumer.assignment() == set()
        with pytest.raises(InvalidRequestError, match=r"assign\(\) or subscribe\(\) first"):
            consumer.poll(0)


def test_records_that_come_later_are_waited_for(fake: FakeCluster) -> None:
    with consumer_of(fake, auto_offset_reset="latest") as consumer:
        consumer.assign([A])
        threading.Timer(0.05, fill, (fake, 1)).start()
        assert offsets(consumer, 1) == [5]


def test_what_does_not_exist_is_told_at_once(fake: FakeCluster) -> None:
    with consumer_of(fake) as consumer:
        with pytest.raises(UnknownTopicError):
            consumer.subscribe(["nope"])
        with pytest.raises(UnknownPartitionError):
            consumer.assign([TopicPartition("t", 9)])
        with pytest.raises(InvalidRequestError, match="not assigned"):
            consumer.position(A)
        with pytest.raises(InvalidRequestError, match="not assigned"):
            consumer.seek(A, 0)


def test_out_of_range_without_a_policy(fake: FakeCluster) -> None:
    with consumer_of(fake, auto_offset_reset="error") as consumer:
        consumer.assign([A])
        consumer.seek(A, 77)
        with pytest.raises(OffsetOutOfRangeError, match="77 is outside 0 to 5"):
            consumer.poll(WAIT_MS)
        assert consumer.position(A) == 77


def test_nobody_there_is_told_soon(fake: FakeCluster) -> None:
    fake.down.add(1)
    told = pytest.raises(BrokerUnavailableError, match="raftlog up")
    with consumer_of(fake, bootstrap_timeout_ms=50) as consumer, told:
        consumer.subscribe(["t"])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda consumer: consumer.poll(max_records=0), InvalidRequestError),
        (lambda consumer: consumer.poll(timeout_ms=-1), InvalidRequestError),
        (lambda consumer: consumer.poll(timeout_ms=0.5), TypeError),
        (lambda consumer: consumer.seek(A, -1), InvalidRequestError),
        (lambda consumer: consumer.seek(A, "end"), TypeError),
        (lambda consumer: consumer.seek("t", 0), TypeError),
        (lambda consumer: consumer.assign(A), TypeError),
        (lambda consumer: consumer.subscribe("t"), TypeError),
        (lambda consumer: consumer.offsets_for_times([A]), TypeError),
    ],
)
def test_what_can_never_be_right(fake: FakeCluster, call: Any, error: type[Exception]) -> None:
    with consumer_of(fake) as consumer:
        consumer.assign([A])
        with pytest.raises(error):
            call(consumer)


def test_what_is_a_groups_needs_one(fake: FakeCluster) -> None:
    with pytest.raises(InvalidRequestError, match="Set group="):
        Consumer(fake.bootstrap, auto_commit=False)
    with consumer_of(fake) as consumer:
        for call in (
            consumer.commit,
            consumer.commit_async,
            consumer.group_metadata,
            lambda: consumer.committed(A),
            lambda: consumer.subscribe(["t"], on_assign=print),
        ):
            with pytest.raises(InvalidRequestError, match="group="):
                call()


def test_closing_ends_a_poll_of_another_thread(fake: FakeCluster) -> None:
    errors: list[BaseException] = []
    with consumer_of(fake, auto_offset_reset="latest") as consumer:
        consumer.assign([A])

        def read() -> None:
            try:
                next(iter(consumer))
            except ClosedError as error:
                errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        while not consumer._subscription._waiters:
            thread.join(0.001)
    thread.join(20)
    assert len(errors) == 1
    consumer.close()
    for use in (consumer.poll, lambda: consumer.assign([A]), lambda: consumer.seek(A, 0)):
        with pytest.raises(ClosedError, match="closed"):
            use()


def test_ctrl_c_ends_a_poll(fake: FakeCluster) -> None:
    def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with consumer_of(fake, auto_offset_reset="latest") as consumer:
        consumer.assign([A])
        threading.Timer(0.05, interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(WAIT_MS)
        fill(fake, 1)
        assert offsets(consumer, 1) == [5]


def test_an_unclosed_consumer_warns_and_goes(fake: FakeCluster) -> None:
    consumer = Consumer(fake.bootstrap, host=ClientEnvironment(connector=fake.connect))
    consumer.assign([A])
    consumer.poll(0)
    io_thread = consumer._thread._thread
    assert io_thread is not None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del consumer
        gc.collect()
    assert [(w.category, "unclosed" in str(w.message)) for w in warned] == [(ResourceWarning, True)]
    io_thread.join(20)
    assert not io_thread.is_alive()


@pytest.mark.integration
@pytest.mark.skipif(not hasattr(signal, "SIGCHLD"), reason="needs fork")
def test_a_forked_child_is_told_to_make_its_own() -> None:
    done = python(
        """
        import os, warnings
        warnings.simplefilter("ignore")
        from raftlog.client.consumer import Consumer
        from raftlog.client.base import ClientEnvironment
        from raftlog.errors import ClosedError
        from raftlog.types import TopicPartition
        from tests.client.world import FakeCluster
        fake = FakeCluster()
        fake.create("t")
        consumer = Consumer(fake.bootstrap, host=ClientEnvironment(connector=fake.connect))
        consumer.assign([TopicPartition("t", 0)])
        child = os.fork()
        if not child:
            try:
                consumer.poll()
            except ClosedError as error:
                print("fork" in str(error), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(consumer.poll(0))
        consumer.close()
        """
    )
    assert (done.returncode, done.stdout) == (0, "True\n[]\n"), done.stderr


def test_one_that_was_never_used_has_nothing_to_close(fake: FakeCluster) -> None:
    Consumer(fake.bootstrap).close()
    gc.collect()
    assert not fake.connects
