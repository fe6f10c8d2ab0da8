"""The synchronous consumer, over brokers in memory on its own thread."""

from __future__ import annotations

import asyncio
import gc
import re
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from raftlog import limits
from raftlog.client.base import ClientEnvironment
from raftlog.client.consumer import (
    Consumer,
    ConsumerCore,
    TopicFilter,
    check_callback,
    check_interest,
    check_some,
    check_times,
    chosen,
    matching,
)
from raftlog.client.settings import ConnectionSettings, parse_bootstrap
from raftlog.client.subscription import Subscription
from raftlog.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    ClosedError,
    CorruptBatchError,
    DeserializationError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import FetchRequest, ListOffsetsRequest
from raftlog.types import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from tests.client.consumer_groups.consuming import consumer_of
from tests.client.consumer_groups.fake_coordinator import FakeCoordinator
from tests.client.samples import consumer_settings, python, stored_batch
from tests.client.test_cluster import cluster_of
from tests.client.test_fetcher import fill
from tests.client.test_subscription import A, B
from tests.client.world import FakeCluster, refuse, run, vanish
from tests.running import runs

WAIT_MS = 20_000


@contextmanager
def the_consumer_of(consumer_fake: FakeCluster, **settings: Any) -> Iterator[Consumer]:
    settings = {"auto_offset_reset": "earliest", **settings}
    with Consumer(
        consumer_fake.bootstrap, host=ClientEnvironment(connector=consumer_fake.connect), **settings
    ) as consumer:
        yield consumer


@pytest.fixture
def consumer_fake() -> FakeCluster:
    made = FakeCluster()
    made.create("t", 2)
    fill(made, 3, 2)
    return made


def offsets(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += [record.offset for record in consumer.poll(WAIT_MS, count - len(found))]
    return found


def test_polling(consumer_fake: FakeCluster) -> None:
    with the_consumer_of(consumer_fake) as consumer:
        consumer.assign([A])
        assert consumer.assignment() == {A}
        assert offsets(consumer, 5) == [0, 1, 2, 3, 4]
        assert consumer.position(A) == 5
        assert consumer.poll(timeout_ms=0) == []
        assert consumer.poll(timeout_ms=20) == []


def test_a_deleted_user_is_reported_by_the_next_poll(consumer_fake: FakeCluster) -> None:
    with the_consumer_of(consumer_fake) as consumer:
        consumer.assign([A])
        assert offsets(consumer, 5) == [0, 1, 2, 3, 4]
        consumer_fake.always[apis.API_VERSIONS] = refuse(
            AuthenticationError("E: the user is unknown")
        )
        consumer_fake.always[apis.FETCH] = vanish
        for _ in range(2):
            with pytest.raises(AuthenticationError, match="E: the user"):
                consumer.poll(WAIT_MS)


def test_iterating(consumer_fake: FakeCluster) -> None:
    with the_consumer_of(consumer_fake) as consumer:
        consumer.subscribe(["t"])
        iteration = iter(consumer)
        assert [next(iteration).offset for _ in range(5)] == [0, 1, 2, 3, 4]
        consumer.seek(A, 3)
        assert next(iteration).offset == 3
        assert consumer.position(A) == 4
        for record in consumer:
            assert record.offset == 4
            break


def test_a_consumer_is_an_iterator(consumer_fake: FakeCluster) -> None:
    with the_consumer_of(consumer_fake) as consumer:
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


def test_an_interrupted_iteration_skips_no_record(consumer_fake: FakeCluster) -> None:
    interrupts = iter([None, KeyboardInterrupt(), None])

    def interrupted(value: bytes) -> bytes:
        interrupt = next(interrupts)
        if interrupt is not None:
            raise interrupt
        return value

    with the_consumer_of(consumer_fake, value_deserializer=interrupted) as consumer:
        consumer.assign([A])
        assert next(consumer).offset == 0
        with pytest.raises(KeyboardInterrupt):
            next(consumer)
        assert consumer.position(A) == 1
        assert next(consumer).offset == 1


def test_iterating_with_deserializers(consumer_fake: FakeCluster) -> None:
    with the_consumer_of(consumer_fake, value_deserializer=bytes.decode) as consumer:
        consumer.assign([A])
        record = next(iter(consumer))
        assert (record.key, record.value) == (None, "x")
        assert consumer.position(A) == 1


def test_arrow(consumer_fake: FakeCluster) -> None:
    pytest.importorskip("pyarrow")
    with the_consumer_of(consumer_fake) as consumer:
        consumer.assign([A])
        batch = consumer.poll_arrow(WAIT_MS)
        assert batch is not None
        assert batch.column("offset").to_pylist()[:3] == [0, 1, 2]
        consumer.seek(A, 5)
        assert consumer.poll_arrow(timeout_ms=20) is None


def test_where_to_read(consumer_fake: FakeCluster) -> None:
    with the_consumer_of(consumer_fake) as consumer:
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


def test_partitions_that_were_added_are_known_when_they_are_asked_for(
    consumer_fake: FakeCluster,
) -> None:
    added = TopicPartition("t", 2)
    with the_consumer_of(consumer_fake) as consumer:
        assert consumer.partitions_for("t") == {0, 1}
        assert consumer.end_offsets([A]) == {A: 5}
        consumer_fake.grow("t")
        assert consumer.end_offsets([added]) == {added: 0}
        assert consumer.partitions_for("t") == {0, 1, 2}
        consumer_fake.grow("t")
        assert consumer.partitions_for("t") == {0, 1, 2, 3}
        with pytest.raises(UnknownPartitionError, match="It has 4 partitions"):
            consumer.end_offsets([TopicPartition("t", 4)])


@pytest.mark.parametrize("how", ["assign", "subscribe"])
def test_a_topic_that_is_created_again_after_its_absence_was_reported_is_read(
    consumer_fake: FakeCluster, how: str
) -> None:
    with the_consumer_of(consumer_fake) as consumer:
        if how == "assign":
            consumer.assign([A])
        else:
            consumer.subscribe(["t"])
        assert offsets(consumer, 5) == [0, 1, 2, 3, 4]
        del consumer_fake.topics["t"]
        for _ in range(2):
            with pytest.raises(UnknownTopicError):
                consumer.poll(WAIT_MS)
        consumer_fake.create("t", 2).id = "another"
        fill(consumer_fake, 1, partition=0)
        found: list[int] = []
        while not found:
            with suppress(UnknownTopicError):
                found = [record.offset for record in consumer.poll(WAIT_MS)]
        assert found == [0]


def test_pausing(consumer_fake: FakeCluster) -> None:
    fill(consumer_fake, 1, partition=1)
    with the_consumer_of(consumer_fake) as consumer:
        consumer.assign([A, B])
        consumer.pause([A])
        assert consumer.paused() == {A}
        assert {record.partition for record in consumer.poll(WAIT_MS)} == {1}
        assert consumer.poll(timeout_ms=20) == []
        consumer.resume([A])
        assert offsets(consumer, 5) == [0, 1, 2, 3, 4]


def test_unsubscribing(consumer_fake: FakeCluster) -> None:
    with the_consumer_of(consumer_fake) as consumer:
        consumer.subscribe(["t"])
        consumer.unsubscribe()
        assert consumer.assignment() == set()
        with pytest.raises(InvalidRequestError, match=r"assign\(\) or subscribe\(\) first"):
            consumer.poll(0)


def test_records_that_come_later_are_waited_for(consumer_fake: FakeCluster) -> None:
    with the_consumer_of(consumer_fake, auto_offset_reset="latest") as consumer:
        consumer.assign([A])
        threading.Timer(0.05, fill, (consumer_fake, 1)).start()
        assert offsets(consumer, 1) == [5]


def test_what_does_not_exist_is_told_at_once(consumer_fake: FakeCluster) -> None:
    with the_consumer_of(consumer_fake) as consumer:
        with pytest.raises(UnknownTopicError):
            consumer.subscribe(["nope"])
        with pytest.raises(UnknownPartitionError):
            consumer.assign([TopicPartition("t", 9)])
        with pytest.raises(InvalidRequestError, match="not assigned"):
            consumer.position(A)
        with pytest.raises(InvalidRequestError, match="not assigned"):
            consumer.seek(A, 0)


def test_out_of_range_without_a_policy(consumer_fake: FakeCluster) -> None:
    with the_consumer_of(consumer_fake, auto_offset_reset="error") as consumer:
        consumer.assign([A])
        consumer.seek(A, 77)
        with pytest.raises(OffsetOutOfRangeError, match="77 is outside 0 to 5"):
            consumer.poll(WAIT_MS)
        assert consumer.position(A) == 77


def test_nobody_there_is_told_soon(consumer_fake: FakeCluster) -> None:
    consumer_fake.down.add(1)
    announced = pytest.raises(BrokerUnavailableError, match="raftlog up")
    with the_consumer_of(consumer_fake, bootstrap_timeout_ms=50) as consumer, announced:
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
def test_what_can_never_be_right(
    consumer_fake: FakeCluster, call: Any, error: type[Exception]
) -> None:
    with the_consumer_of(consumer_fake) as consumer:
        consumer.assign([A])
        with pytest.raises(error):
            call(consumer)


def test_what_is_a_groups_needs_one(consumer_fake: FakeCluster) -> None:
    with pytest.raises(InvalidRequestError, match="Set group="):
        Consumer(consumer_fake.bootstrap, auto_commit=False)
    with the_consumer_of(consumer_fake) as consumer:
        for call in (
            consumer.commit,
            consumer.commit_async,
            consumer.group_metadata,
            lambda: consumer.committed(A),
            lambda: consumer.subscribe(["t"], on_assign=print),
        ):
            with pytest.raises(InvalidRequestError, match="group="):
                call()


def test_closing_ends_a_poll_of_another_thread(consumer_fake: FakeCluster) -> None:
    errors: list[BaseException] = []
    with the_consumer_of(consumer_fake, auto_offset_reset="latest") as consumer:
        consumer.assign([A])

        def read() -> None:
            try:
                next(iter(consumer))
            except ClosedError as error:
                errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        while not consumer._subscription._waiter:
            thread.join(0.001)
    thread.join(20)
    assert len(errors) == 1
    consumer.close()
    for use in (consumer.poll, lambda: consumer.assign([A]), lambda: consumer.seek(A, 0)):
        with pytest.raises(ClosedError, match="closed"):
            use()


def test_ctrl_c_ends_a_poll(consumer_fake: FakeCluster) -> None:
    def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with the_consumer_of(consumer_fake, auto_offset_reset="latest") as consumer:
        consumer.assign([A])
        threading.Timer(0.05, interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(WAIT_MS)
        fill(consumer_fake, 1)
        assert offsets(consumer, 1) == [5]


def test_an_unclosed_consumer_warns_and_goes(consumer_fake: FakeCluster) -> None:
    consumer = Consumer(
        consumer_fake.bootstrap, host=ClientEnvironment(connector=consumer_fake.connect)
    )
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
        with consumer._subscription.lock:  # as a thread of the parent may hold it
            child = os.fork()
            if not child:
                for use in (consumer.poll, consumer.paused, consumer.close):
                    try:
                        use()
                    except ClosedError as error:
                        print("fork" in str(error), flush=True)
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(consumer.poll(0))
        consumer.close()
        """
    )
    assert (done.returncode, done.stdout) == (0, "True\nTrue\nTrue\n[]\n"), done.stderr


def test_one_that_was_never_used_has_nothing_to_close(consumer_fake: FakeCluster) -> None:
    Consumer(consumer_fake.bootstrap).close()
    gc.collect()
    assert not consumer_fake.connects


# -- consumer base ---------------------------------------------------------------------------------
#
# What consumers are given, checked.


def test_topics_or_a_pattern() -> None:
    assert check_interest(["a", "b", "a"], None) == (["a", "b"], None)
    compiled = re.compile("a.")
    assert check_interest(None, "a.") == ([], compiled)
    assert check_interest(None, compiled) == ([], compiled)


@pytest.mark.parametrize(
    ("topics", "pattern", "error"),
    [
        (None, None, InvalidRequestError),
        (["a"], "a", InvalidRequestError),
        ("a", None, TypeError),
        (None, 7, TypeError),
        (None, b"a", TypeError),
        (None, re.compile(b"a"), TypeError),
        (None, "[", InvalidRequestError),
    ],
)
def test_neither_both_or_nonsense(topics: Any, pattern: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_interest(topics, pattern)


def test_one_partition_gives_one_answer_and_several_a_dict() -> None:
    assert check_some(A) == ([A], True)
    assert check_some([A, B]) == ([A, B], False)
    noted = OffsetAndMetadata(3, "note")
    assert chosen({A: noted}, is_one=True, metadata=False) == 3
    assert chosen({A: noted}, is_one=True, metadata=True) == noted
    assert chosen({A: None}, is_one=True, metadata=False) is None
    assert chosen({A: noted, B: None}, is_one=False, metadata=False) == {A: 3, B: None}
    assert chosen({}, is_one=False, metadata=True) == {}
    with pytest.raises(TypeError):
        check_some("t")  # type: ignore[arg-type]


def test_a_callback_can_be_called() -> None:
    check_callback(None)
    check_callback(print)
    with pytest.raises(TypeError, match="callback=3"):
        check_callback(3)


# -- consumer core ---------------------------------------------------------------------------------
#
# Taking what is fetched: records, runs and Arrow; damage, deserializers, positions.


def core_of(fake: FakeCluster, **settings: Any) -> ConsumerCore:
    deserializers = {
        name: settings.pop(name, None) for name in ("key_deserializer", "value_deserializer")
    }
    core = ConsumerCore(
        ConnectionSettings(
            bootstrap=parse_bootstrap(fake.bootstrap),
            client_id="me",
            request_timeout_ms=30_000,
            bootstrap_timeout_ms=3_000,
            metadata_max_age_ms=30_000,
        ),
        consumer_settings(**settings),
        fake.host,
        **deserializers,
    )
    core.attach(asyncio.get_running_loop().call_soon)
    return core


async def filled(fake: FakeCluster, *counts: int, **settings: Any) -> ConsumerCore:
    """A core that has fetched batches of so many records of partition 0."""
    fake.create("t", 2)
    fill(fake, *counts)
    core = core_of(fake, **settings)
    await core.assign([A])
    core.activate()
    await asyncio.sleep(0.1)
    return core


def taken(core: ConsumerCore, most: int) -> list[int]:
    return [record.offset for record in core.take(most)]


@runs(run)
async def test_records_are_taken_up_to_the_number_asked_for_across_batches(
    fake: FakeCluster,
) -> None:
    core = await filled(fake, 3, 1, 4)
    assert [taken(core, most) for most in (2, 3, 9, 9)] == [[0, 1], [2, 3, 4], [5, 6, 7], []]
    assert await core.position(A) == 8
    await core.close()


@runs(run)
async def test_records_carry_where_they_are(fake: FakeCluster) -> None:
    core = await filled(fake, 1)
    (record,) = core.take(9)
    assert (record.topic, record.partition, record.offset) == ("t", 0, 0)
    assert (record.key, record.value, record.headers) == (None, b"x", ())
    assert record.leader_epoch == 3
    await core.close()


@runs(run)
async def test_runs_and_takes_can_be_mixed(fake: FakeCluster) -> None:
    core = await filled(fake, 4, 2)
    first = core.next_run()
    assert first is not None
    record = next(first.records)
    first.part.position = record.offset + 1
    assert taken(core, 2) == [1, 2]
    assert list(first.records) == []
    second = core.next_run()
    assert second is not None
    for record in second.records:
        second.part.position = record.offset + 1
    assert await core.position(A) == 4
    assert taken(core, 9) == [4, 5]
    assert core.next_run() is None
    await core.close()


def test_arrow_joins_batches_from_the_position_on() -> None:
    pytest.importorskip("pyarrow")

    async def test(fake: FakeCluster) -> None:
        core = await filled(fake, 3, 2)
        assert taken(core, 1) == [0]
        found = core.take_arrow()
        assert found is not None
        assert found.column("offset").to_pylist() == [1, 2, 3, 4]
        assert core.take_arrow() is None
        assert await core.position(A) == 5
        await core.close()

    run(test)


def damage(fake: FakeCluster, index: int) -> None:
    """Flip a bit in the payload of a stored batch: its header stays good."""
    log = fake.topics["t"].logs[0]
    bad = bytearray(log.batches[index])
    bad[-1] ^= 1
    log.batches[index] = bytes(bad)


@pytest.mark.parametrize("how", ["take", "run", "arrow"])
def test_damage_is_told_with_its_place_and_never_stepped_over(how: str) -> None:
    pytest.importorskip("pyarrow")

    def read(core: ConsumerCore) -> Any:
        return {"take": lambda: core.take(9), "run": core.next_run, "arrow": core.take_arrow}[how]()

    async def test(fake: FakeCluster) -> None:
        core = await filled(fake, 2)
        fill(fake, 3, 1)
        damage(fake, 1)
        await asyncio.sleep(0.6)
        first = read(core)
        if how == "run":
            for record in first.records:
                first.part.position = record.offset + 1
        assert await core.position(A) == 2
        await asyncio.sleep(0.1)
        if how != "take":  # which has come that far with the good records
            assert not read(core), "it is asked for once more before it is told"
            await asyncio.sleep(0.1)
        for _ in range(2):
            with pytest.raises(
                CorruptBatchError, match=r"t:0: .* offset 2 .*seek\(.*, 5\)"
            ) as announced:
                read(core)
            await asyncio.sleep(0.1)
        assert await core.position(A) == 2
        assert (announced.value.topic, announced.value.partition, announced.value.offset) == (
            "t",
            0,
            2,
        )
        announced.value.skip()
        await asyncio.sleep(0.1)
        assert taken(core, 9) == [5]
        await core.close()

    run(test)


def doubts(fake: FakeCluster) -> list[int]:
    """The offsets that a broker was asked to look at."""
    parts = [part for request in fake.asked(FetchRequest) for part in request.partitions]
    return [part.offset for part in parts if part.doubtful]


@pytest.mark.parametrize("how", ["take", "run", "arrow"])
def test_what_came_damaged_once_is_asked_for_again_and_nobody_is_told(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("pyarrow")

    def count(core: ConsumerCore) -> int:
        if how == "take":
            return len(core.take(9))
        if how == "arrow":
            found = core.take_arrow()
            return 0 if found is None else found.num_rows
        run_ = core.next_run()
        if run_ is None:
            return 0
        records = list(run_.records)
        run_.part.position = records[-1].offset + 1
        return len(records)

    async def test(fake: FakeCluster) -> None:
        core = await filled(fake, 2)
        fill(fake, 3, 1)
        log = fake.topics["t"].logs[0]
        good = list(log.batches)
        damage(fake, 1)
        await asyncio.sleep(0.6)
        found = count(core)
        log.batches[:] = good
        while found < 6:
            found += count(core)
            await asyncio.sleep(0.1)
        assert found == 6
        assert await core.position(A) == 6
        assert doubts(fake) == [2]
        await core.close()

    run(test)
    assert "offset=2" in caplog.text


@runs(run)
async def test_after_a_seek_a_damaged_batch_is_met_for_the_first_time(fake: FakeCluster) -> None:
    core = await filled(fake, 2)
    damage(fake, 0)
    core.subscription.seek(A, 0)
    core.wake()
    await asyncio.sleep(0.1)
    assert core.take(9) == []
    core.subscription.seek(A, 0)
    core.wake()
    await asyncio.sleep(0.1)
    assert core.take(9) == []
    await asyncio.sleep(0.1)
    with pytest.raises(CorruptBatchError):
        core.take(9)
    await core.close()


def test_records_before_the_damage_come_first() -> None:
    pytest.importorskip("pyarrow")

    async def test(fake: FakeCluster) -> None:
        fake.create("t", 2)
        fill(fake, 2, 3)
        damage(fake, 1)
        core = core_of(fake)
        await core.assign([A])
        core.activate()
        await asyncio.sleep(0.1)
        assert taken(core, 9) == [0, 1]
        core.subscription.seek(A, 0)
        core.wake()
        await asyncio.sleep(0.1)
        found = core.take_arrow()
        assert found is not None
        assert found.num_rows == 2
        await core.close()

    run(test)


@runs(run)
async def test_checking_can_be_left_out(fake: FakeCluster) -> None:
    fake.create("t", 2)
    fill(fake, 1)
    batch = bytearray(fake.topics["t"].logs[0].batches[0])
    batch[40] ^= 1  # the stored CRC itself
    fake.topics["t"].logs[0].batches[0] = bytes(batch)
    core = core_of(fake, check_crcs=False)
    await core.assign([A])
    core.activate()
    await asyncio.sleep(0.1)
    assert taken(core, 9) == [0]
    await core.close()


@runs(run)
async def test_deserializers_see_what_is_not_none(fake: FakeCluster) -> None:
    core = await filled(fake, 2, key_deserializer=bytes.decode, value_deserializer=len)
    assert [(record.key, record.value) for record in core.take(9)] == [(None, 1)] * 2
    await core.close()


def test_a_record_that_cannot_be_deserialized_is_told_and_can_be_passed() -> None:
    def picky(value: bytes) -> bytes:
        if value == b"bad":
            raise ValueError("not this one")
        return value

    async def test(fake: FakeCluster) -> None:
        core = await filled(fake, 1, value_deserializer=picky)
        log = fake.topics["t"].logs[0]
        log.batches.append(stored_batch(1, b"good", b"bad", b"fine"))
        log.end = 4
        await asyncio.sleep(0.6)
        assert taken(core, 9) == [0, 1], "those before it"
        with pytest.raises(DeserializationError, match=r"t:0: .* offset 2: .*not this") as caught:
            core.take(9)
        error = caught.value
        assert isinstance(error.__cause__, ValueError)
        assert (error.topic, error.partition, error.offset) == ("t", 0, 2)
        assert await core.position(A) == 2
        error.skip()
        assert await core.position(A) == 3
        await asyncio.sleep(0.1)
        assert taken(core, 9) == [3]
        await core.close()

    run(test)


@runs(run)
async def test_assigning_checks_that_partitions_exist(fake: FakeCluster) -> None:
    fake.create("t", 2)
    core = core_of(fake)
    with pytest.raises(UnknownTopicError):
        await core.assign([TopicPartition("nope", 0)])
    with pytest.raises(UnknownPartitionError):
        await core.assign([TopicPartition("t", 2)])
    assert not core.subscription.parts
    await core.close()


@runs(run)
async def test_latest_is_the_end_when_it_was_assigned(fake: FakeCluster) -> None:
    fake.create("t", 2)
    fill(fake, 3)
    core = core_of(fake, auto_offset_reset="latest")
    await core.assign([A])
    fill(fake, 2)
    core.activate()
    await asyncio.sleep(0.1)
    assert taken(core, 9) == [3, 4]
    await core.close()


@runs(run)
async def test_subscribing_reads_all_partitions(fake: FakeCluster) -> None:
    fake.create("t", 2)
    fake.create("u")
    core = core_of(fake)
    await core.subscribe(["t", "u"])
    assert set(core.subscription.parts) == {A, B, TopicPartition("u", 0)}
    await core.subscribe(["u"])
    assert set(core.subscription.parts) == {TopicPartition("u", 0)}
    await core.close()


@runs(run)
async def test_positions_and_offsets_are_looked_up(fake: FakeCluster) -> None:
    fake.create("t", 2)
    fill(fake, 4)
    core = core_of(fake)
    await core.assign([A, B])
    assert await core.position(A) == 0
    assert await core.offsets([A, B], "latest") == {A: 4, B: 0}
    await core.reset([A], "latest")
    assert await core.position(A) == 4
    found = await core.offsets_for_times({A: 1_700_000_000_000, B: 1})
    assert found == {A: OffsetAndTimestamp(0, 1_700_000_000_000), B: None}
    asked = len(fake.asked(ListOffsetsRequest))
    await core.resolve_positions([A])
    assert len(fake.asked(ListOffsetsRequest)) == asked, "it is known"
    await core.close()


@runs(run)
async def test_without_a_policy_there_is_no_position(fake: FakeCluster) -> None:
    fake.create("t", 2)
    core = core_of(fake, auto_offset_reset="error")
    await core.assign([A])
    with pytest.raises(OffsetOutOfRangeError, match="seek"):
        await core.position(A)
    await core.close()


@pytest.mark.parametrize("times", [[A], {A: 1.5}, {A: True}, {A: "now"}])
def test_times_are_checked(times: Any) -> None:
    with pytest.raises(TypeError):
        check_times(times)


def test_a_time_before_1970_is_refused() -> None:
    assert check_times({("t", 0): 5}) == {A: 5}
    with pytest.raises(InvalidRequestError, match="1970"):
        check_times({A: -1})


@pytest.mark.parametrize("read_from", ["leader", "replica"])
@runs(run, brokers=3)
async def test_without_a_leader_where_to_begin_is_known_and_the_end_is_not(
    fake: FakeCluster, *, read_from: str
) -> None:
    topic = fake.create("t", 2)
    fill(fake, 4)
    topic.known_ends = {2: 3, 3: 2}
    core = core_of(fake, read_from=read_from, auto_offset_reset="latest")
    await core.topic("t")
    fake.kill(1)
    start = asyncio.get_running_loop().time()
    await core.assign([A])
    assert await core.position(A) == 3
    assert await core.offsets([A], "earliest") == {A: 0}
    assert asyncio.get_running_loop().time() - start < 5
    if read_from == "replica":
        assert await core.offsets([A], "latest") == {A: 3}
    else:
        with pytest.raises(BrokerUnavailableError, match="broker 1"):
            await core.offsets([A], "latest")  # lest ends that were shown go back
    await core.close()


# -- topic filter ----------------------------------------------------------------------------------
#
# Topics subscribed to by a pattern: those that come, and those that go. In virtual time.


def test_the_whole_name_has_to_match_and_internal_topics_never_do() -> None:
    names = ["logs-b", "logs-a", "my-logs-a", "__raftlog-logs-a", "logs-"]
    assert matching(re.compile("logs-."), names) == ["logs-a", "logs-b"]
    assert "__raftlog-logs-a" not in matching(re.compile(".*"), names)


def topics_of(subscription: Subscription) -> set[str]:
    return {tp.topic for tp in subscription.parts}


@runs(run)
async def test_a_pattern_follows_the_topics_that_there_are(fake: FakeCluster) -> None:
    fake.create("a1", 2)
    fake.create("b1")
    cluster = cluster_of(fake)
    subscription = Subscription(consumer_settings(auto_offset_reset="latest"))
    interest = TopicFilter(cluster, subscription, None)
    await interest.subscribe([], re.compile("a.*"))
    assert (interest.topics, topics_of(subscription)) == (("a1",), {"a1"})
    assert subscription.is_open
    fake.create("a2")
    await cluster.refresh()
    assert topics_of(subscription) == {"a1", "a2"}
    resets = {tp.topic: part.reset for tp, part in subscription.parts.items()}
    assert resets == {"a1": "latest", "a2": "earliest"}
    del fake.topics["a1"]
    await cluster.refresh()
    assert set(subscription.parts) == {TopicPartition("a2", 0)}
    await interest.subscribe(["a2"], None)
    assert not subscription.is_open
    fake.create("a3")
    await cluster.refresh()
    assert topics_of(subscription) == {"a2"}
    interest.nothing()
    assert interest.topics == ()


@runs(run)
async def test_a_topic_by_name_has_to_exist(fake: FakeCluster) -> None:
    cluster = cluster_of(fake)
    interest = TopicFilter(cluster, Subscription(consumer_settings()), None)
    with pytest.raises(UnknownTopicError):
        await interest.subscribe(["nope"], None)


# -- more topics than a member of a group may read


def test_a_pattern_that_begins_to_match_too_many_topics_is_told_of_and_drops_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "TOPICS_PER_MEMBER_MAX", 2)

    async def test(fake: FakeCluster) -> None:
        fake.create("b1")
        fake.create("b2")
        groups = FakeCoordinator(fake)
        async with consumer_of(fake, metadata_max_age_ms=1_000) as consumer:
            await consumer.subscribe(pattern="[ab].*")
            await consumer.poll(100)
            fake.create("a1")  # it comes first in the order of names
            fake.create("a2")
            groups.know_topics()
            for _ in range(2):  # as long as it is so
                with pytest.raises(InvalidRequestError) as caught:
                    await consumer.poll(60_000)
                for part in ("matches 4 topics", "up to 2", "continues with 2 topics", "narrower"):
                    assert part in str(caught.value)
            assert {tp.topic for tp in await consumer.assignment()} == {"b1", "b2"}
            assert await consumer.poll(100) == [], "it goes on in between"
            del fake.topics["b1"], fake.topics["a2"]
            groups.know_topics()
            while {tp.topic for tp in await consumer.assignment()} != {"a1", "b2"}:
                try:
                    await consumer.poll(100)
                except InvalidRequestError as error:
                    assert "narrower" in str(error)  # noqa: PT017 - it was told of before
            await consumer.poll(10_000)

    run(test)


@pytest.mark.parametrize("names", [None, ["a1", "a2", "b1"]])
def test_a_subscription_to_too_many_topics_changes_nothing(
    names: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TOPICS_PER_MEMBER_MAX", 2)

    async def test(fake: FakeCluster) -> None:
        for name in ("a1", "a2", "b1"):
            fake.create(name)
        FakeCoordinator(fake)
        async with consumer_of(fake, metadata_max_age_ms=1_000) as consumer:
            await consumer.subscribe(pattern="a.*")
            await consumer.poll(100)
            with pytest.raises(InvalidRequestError, match="3 topics"):
                await consumer.subscribe(names, pattern=None if names else ".*")
            assert {tp.topic for tp in await consumer.assignment()} == {"a1", "a2"}
            del fake.topics["a2"]
            while {tp.topic for tp in await consumer.assignment()} != {"a1"}:
                await consumer.poll(100)  # the pattern is tried still

    run(test)


def test_without_a_group_a_pattern_may_match_any_number_of_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "TOPICS_PER_MEMBER_MAX", 2)

    async def test(fake: FakeCluster) -> None:
        for name in ("a1", "a2", "b1"):
            fake.create(name)
        async with consumer_of(fake, group=None) as consumer:
            await consumer.subscribe(pattern=".*")
            assert {tp.topic for tp in await consumer.assignment()} == {"a1", "a2", "b1"}

    run(test)
