"""The synchronous producer, over brokers in memory on its own thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from raftlog import limits
from raftlog.client.accumulator import TopicQueues
from raftlog.client.base import ClientEnvironment
from raftlog.client.delivery import Delivery, DeliveryFuture, RangesFuture, outcomes, until_done
from raftlog.client.producer import Producer
from raftlog.client.producer_core import NO_PARTITION, ProducerCore
from raftlog.client.settings import ConnectionSettings, parse_bootstrap, partition_of_key
from raftlog.client.threads import LoopThread, pending_of
from raftlog.errors import (
    BrokerUnavailableError,
    ClosedError,
    ConnectionLostError,
    InvalidRequestError,
    InvalidTopicError,
    RaftlogError,
    RecordTooLargeError,
    ThrottledError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import ProduceRequest
from raftlog.record import Codec, decode_lists, seal
from raftlog.types import NO_TIMESTAMP, OffsetRange, RecordMetadata
from tests.client.samples import HandClock, producer_settings, python, topic_view
from tests.client.world import FakeCluster, ignore

TIMEOUT_S = 20


@contextmanager
def producer_of(fake: FakeCluster, **settings: Any) -> Iterator[Producer]:
    with Producer(
        fake.bootstrap, host=ClientEnvironment(connector=fake.connect), **settings
    ) as producer:
        yield producer


@pytest.fixture
def fake() -> FakeCluster:
    made = FakeCluster()
    made.create("t", 2)
    return made


def test_one_record(fake: FakeCluster) -> None:
    with producer_of(fake, linger_ms=0) as producer:
        meta = producer.send("t", b"value", b"key", [("h", b"x")], 1234, 1).result(TIMEOUT_S)
        assert meta == RecordMetadata("t", 1, 0, 1234)
    assert fake.topics["t"].logs[1].records() == [(b"key", b"value")]


def test_many_records_keep_their_order_in_each_partition(fake: FakeCluster) -> None:
    with producer_of(fake) as producer:
        futures = [producer.send("t", b"%d" % number) for number in range(2_000)]
        producer.flush(TIMEOUT_S)
        assert all(future.done() for future in futures)
    stored = [log.values() for log in fake.topics["t"].logs]
    assert sorted(int(v or b"") for log in stored for v in log) == list(range(2_000))
    for log in stored:
        assert log == sorted(log, key=lambda value: int(value or b""))


def test_a_run_of_records(fake: FakeCluster) -> None:
    with producer_of(fake) as producer:
        values = [b"%d" % number for number in range(1_000)]
        ranges = producer.send_many("t", values, partition=1).result(TIMEOUT_S)
        assert ranges == [OffsetRange("t", 1, 0, 999)]
        assert producer.send_many("t", []).result(0) == []
    assert fake.topics["t"].logs[1].values() == values


def test_serializers_and_partitioners(fake: FakeCluster) -> None:
    with producer_of(
        fake,
        key_serializer=str.encode,
        value_serializer=lambda number: b"%d" % number,
        partitioner=lambda topic, key, value, count: int(value) % count,
    ) as producer:
        for number in range(4):
            producer.send("t", number, "k")
    assert [log.records() for log in fake.topics["t"].logs] == [
        [(b"k", b"0"), (b"k", b"2")],
        [(b"k", b"1"), (b"k", b"3")],
    ]


def test_closing_flushes_and_is_idempotent(fake: FakeCluster) -> None:
    producer = Producer(
        fake.bootstrap, host=ClientEnvironment(connector=fake.connect), linger_ms=60_000
    )
    future = producer.send("t", b"a")
    producer.close()
    producer.close()
    assert future.result(0).offset == 0
    for use in (
        lambda: producer.send("t", b"b"),
        lambda: producer.send_many("t", [b"b"]),
        producer.flush,
        lambda: producer.send("unknown", b"b"),
    ):
        with pytest.raises(ClosedError, match="closed"):
            use()


def test_one_that_was_never_used_has_nothing_to_close(fake: FakeCluster) -> None:
    Producer(fake.bootstrap).close()
    with Producer(fake.bootstrap) as producer:
        producer.flush()
    gc.collect()
    assert not fake.connects


@pytest.mark.parametrize(
    ("topic", "arguments", "error"),
    [
        ("nope", {}, UnknownTopicError),
        ("a/b", {}, InvalidTopicError),
        ("..", {}, InvalidTopicError),
        ("t", {"partition": 2}, UnknownPartitionError),
        ("t", {"value": b"x" * (limits.MIB + 100)}, RecordTooLargeError),
    ],
)
def test_what_the_world_refuses_comes_out_of_the_future(
    fake: FakeCluster, topic: str, arguments: dict[str, Any], error: type[RaftlogError]
) -> None:
    with producer_of(fake) as producer:
        future = producer.send(topic, **{"value": b"v", **arguments})
        with pytest.raises(error):
            future.result(TIMEOUT_S)
        if "value" not in arguments:
            many = producer.send_many(topic, [b"v"], partition=arguments.get("partition"))
            with pytest.raises(error):
                many.result(TIMEOUT_S)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"value": "text"}, TypeError),
        ({"key": "text"}, TypeError),
        ({"headers": "text"}, TypeError),
        ({"timestamp_ms": "now"}, TypeError),
        ({"timestamp_ms": -5}, InvalidRequestError),
        ({"partition": "0"}, TypeError),
        ({"topic": 3}, TypeError),
    ],
)
def test_what_can_never_be_right_is_raised(
    fake: FakeCluster, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with producer_of(fake) as producer, pytest.raises(error):
        producer.send(**{"topic": "t", "value": b"v", **arguments})


def test_nobody_there_is_told_soon_and_with_what_to_do(fake: FakeCluster) -> None:
    fake.down.add(1)
    noted = pytest.raises(BrokerUnavailableError, match=r"broker-1:9100 .*raftlog up")
    with producer_of(fake, bootstrap_timeout_ms=50) as producer, noted:
        producer.send("t", b"a").result(TIMEOUT_S)


def fill_up(producer: Producer) -> None:
    for _ in range(200):
        producer.send("t", b"x" * 100)


def without_room(fake: FakeCluster) -> Producer:
    """A producer whose records are never acknowledged, with a small buffer."""
    fake.next(apis.PRODUCE, *[ignore] * 100)
    return Producer(
        fake.bootstrap,
        host=ClientEnvironment(connector=fake.connect),
        buffer_memory=10_000,
        batch_bytes_max=2_000,
        max_block_ms=20,
    )


def test_no_room_is_told_with_the_settings(fake: FakeCluster) -> None:
    producer = without_room(fake)
    with pytest.raises(ThrottledError, match=r"max_block_ms=20.*buffer_memory=10000"):
        fill_up(producer)
    with pytest.raises(ThrottledError):
        producer.send_many("t", [b"x" * 1_500])
    producer.close(timeout=0)


def test_a_run_that_finds_no_room_in_the_middle_says_so_through_its_future(
    fake: FakeCluster,
) -> None:
    producer = without_room(fake)
    future = producer.send_many("t", [b"x" * 100] * 200)
    producer.close(timeout=0)
    with pytest.raises(RaftlogError):
        future.result(TIMEOUT_S)
    assert {type(part[0].error) for part in future._parts} >= {ThrottledError, ConnectionLostError}


def test_room_comes_back(fake: FakeCluster) -> None:
    with producer_of(fake, buffer_memory=20_000, batch_bytes_max=2_000) as producer:
        for _ in range(2_000):
            producer.send("t", b"x" * 100)
    assert sum(len(log.values()) for log in fake.topics["t"].logs) == 2_000


def test_a_flush_that_takes_too_long_says_so(fake: FakeCluster) -> None:
    fake.next(apis.PRODUCE, ignore)
    producer = Producer(fake.bootstrap, host=ClientEnvironment(connector=fake.connect))
    future = producer.send("t", b"a")
    with pytest.raises(TimeoutError, match="continues to send"):
        producer.flush(timeout=0.02)
    producer.close(timeout=0)
    with pytest.raises(ConnectionLostError, match="closed before the response"):
        future.result(TIMEOUT_S)


def test_ctrl_c_ends_a_wait_and_the_producer_closes_quickly(fake: FakeCluster) -> None:
    fake.next(apis.PRODUCE, *[ignore] * 10)

    def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    futures = []

    def send_and_wait() -> None:
        with producer_of(fake, linger_ms=0) as producer:
            futures.append(producer.send("t", b"a"))
            threading.Timer(0.05, interrupt).start()
            futures[0].result()

    with pytest.raises(KeyboardInterrupt):
        send_and_wait()
    assert isinstance(futures[0].exception(0), ConnectionLostError)


def test_blocking_in_a_callback_is_refused_not_hung(fake: FakeCluster) -> None:
    with producer_of(fake, linger_ms=0) as producer:
        seen: list[BaseException | None] = []
        done = threading.Event()

        def callback(_future: object) -> None:
            try:
                producer.send("t", b"fine")
                producer.flush()
            except InvalidRequestError as error:
                seen.append(error)
            done.set()

        producer.send("t", b"a").add_done_callback(callback)
        assert done.wait(TIMEOUT_S)
        assert "done callback" in str(seen[0])


def test_threads_share_a_producer(fake: FakeCluster) -> None:
    with producer_of(fake, linger_ms=1) as producer:

        def send(base: int) -> None:
            for number in range(base, base + 500):
                producer.send("t", b"%d" % number, partition=0)

        threads = [threading.Thread(target=send, args=(base,)) for base in range(0, 2_000, 500)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    stored = [int(value or b"") for value in fake.topics["t"].logs[0].values()]
    assert sorted(stored) == list(range(2_000))
    for base in range(0, 2_000, 500):
        own = [number for number in stored if base <= number < base + 500]
        assert own == sorted(own), "in the order in which its thread sent them"


def test_a_thread_can_be_shared_between_producers(fake: FakeCluster) -> None:
    thread = LoopThread()
    host = ClientEnvironment(connector=fake.connect, loop_thread=thread)
    with (
        Producer(fake.bootstrap, host=host) as first,
        Producer(fake.bootstrap, host=host) as second,
    ):
        first.send("t", b"a").result(TIMEOUT_S)
        second.send("t", b"b").result(TIMEOUT_S)
    assert not thread.at_fork
    with Producer(fake.bootstrap, host=host) as third:
        third.send("t", b"c").result(TIMEOUT_S)
    thread.stop()


def test_an_unclosed_producer_warns_and_goes(fake: FakeCluster) -> None:
    producer = Producer(fake.bootstrap, host=ClientEnvironment(connector=fake.connect))
    producer.send("t", b"a").result(TIMEOUT_S)
    io_thread = producer._thread._thread
    assert io_thread is not None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del producer
        gc.collect()
    assert [(w.category, "unclosed" in str(w.message)) for w in warned] == [(ResourceWarning, True)]
    io_thread.join(TIMEOUT_S)
    assert not io_thread.is_alive()


def test_a_bad_setting_leaves_nothing_behind() -> None:
    with pytest.raises(InvalidRequestError):
        Producer("a:1", linger_ms=-1)
    gc.collect()


@pytest.mark.integration
def test_an_interpreter_ends_with_a_producer_unclosed() -> None:
    done = python(
        """
        from raftlog.client.base import ClientEnvironment
        from raftlog.client.producer import Producer
        from tests.client.world import FakeCluster
        fake = FakeCluster()
        fake.create("t")
        producer = Producer(fake.bootstrap, host=ClientEnvironment(connector=fake.connect))
        print(producer.send("t", b"a").result(20).offset)
        producer.send("t", b"never flushed")
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0\n"
    assert "ResourceWarning: unclosed" in done.stderr


def test_a_partition_that_was_added_takes_records_at_once(fake: FakeCluster) -> None:
    with producer_of(fake) as producer:
        producer.send("t", b"a").result(TIMEOUT_S)
        count = len(fake.topics["t"].logs)
        fake.grow("t")
        assert producer.send("t", b"b", partition=count).result(TIMEOUT_S).partition == count
        fake.grow("t")
        (added,) = producer.send_many("t", [b"c"], partition=count + 1).result(TIMEOUT_S)
        assert added.partition == count + 1
        with pytest.raises(UnknownPartitionError):
            producer.send("t", b"d", partition=count + 2).result(TIMEOUT_S)


@pytest.mark.integration
@pytest.mark.skipif(not hasattr(signal, "SIGCHLD"), reason="needs fork")
def test_a_forked_child_is_told_to_make_its_own() -> None:
    done = python(
        """
        import os, warnings
        warnings.simplefilter("ignore")
        from raftlog.client.base import ClientEnvironment
        from raftlog.client.producer import Producer
        from raftlog.errors import ClosedError
        from tests.client.world import FakeCluster
        fake = FakeCluster()
        fake.create("t")
        producer = Producer(fake.bootstrap, host=ClientEnvironment(connector=fake.connect))
        producer.send("t", b"a").result(20)
        child = os.fork()
        if not child:
            for call in (lambda: producer.send("t", b"b"), producer.flush):
                try:
                    call()
                except ClosedError as error:
                    print("fork" in str(error), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(producer.send("t", b"c").result(20).offset)
        producer.close()
        """
    )
    assert (done.returncode, done.stdout) == (0, "True\nTrue\n1\n"), done.stderr


def test_acks_as_they_are_written(fake: FakeCluster) -> None:
    with producer_of(fake, acks="1") as producer:
        producer.send("t", b"a").result(TIMEOUT_S)
    with producer_of(fake, acks=0) as producer:
        assert producer.send("t", b"b").result(TIMEOUT_S).offset == -1
    assert [request.acks for request in fake.asked(ProduceRequest)] == [1, 0]


# -- delivery --------------------------------------------------------------------------------------
#
# Futures of sent records: results, errors, callbacks, awaiting, and errors that nobody saw.


def delivery(*timestamps_ms: int) -> Delivery:
    return Delivery("t", 2, list(timestamps_ms) or [7, 8, 9])


def test_a_result_is_where_the_record_is() -> None:
    batch = delivery()
    futures = [DeliveryFuture(batch, index) for index in range(3)]
    assert not any(future.done() for future in futures)
    batch.succeed(100, NO_TIMESTAMP)
    assert [future.result() for future in futures] == [
        RecordMetadata("t", 2, 100, 7),
        RecordMetadata("t", 2, 101, 8),
        RecordMetadata("t", 2, 102, 9),
    ]
    assert futures[0].exception() is None
    assert "delivered" in repr(futures[0])


def test_the_leaders_time_wins() -> None:
    batch = delivery()
    batch.succeed(0, 55)
    assert DeliveryFuture(batch, 1).result().timestamp_ms == 55


def test_one_timestamp_for_all() -> None:
    batch = Delivery("t", 0, 41)
    batch.succeed(0, NO_TIMESTAMP)
    assert DeliveryFuture(batch, 9).result().timestamp_ms == 41


def test_without_acks_the_offset_is_unknown() -> None:
    batch = delivery()
    batch.succeed(-1, NO_TIMESTAMP)
    assert DeliveryFuture(batch, 2).result().offset == -1
    assert RangesFuture([(batch, 0, 3)]).result() == [OffsetRange("t", 2, -1, -1)]


def test_the_garbage_collector_has_no_work_with_futures() -> None:
    assert not gc.is_tracked(DeliveryFuture(Delivery("t", 0, 1), 0))


def test_an_error_comes_out_of_every_future() -> None:
    batch = delivery()
    batch.fail(UnknownTopicError("no such topic"))
    for index in range(3):
        future = DeliveryFuture(batch, index)
        assert isinstance(future.exception(), UnknownTopicError)
        with pytest.raises(UnknownTopicError):
            future.result()
    traceback_entries = 0
    error = future.exception()
    trace = error.__traceback__ if error else None
    while trace is not None:
        traceback_entries, trace = traceback_entries + 1, trace.tb_next
    assert traceback_entries < 10, "an error that is raised often must not grow"


def test_a_wait_gives_up_in_time() -> None:
    future = DeliveryFuture(delivery(), 0)
    with pytest.raises(TimeoutError, match="continues to send"):
        future.result(timeout=0)
    with pytest.raises(TimeoutError):
        future.exception(timeout=0)
    assert "pending" in repr(future)


def test_a_thread_that_waits_is_woken() -> None:
    batch = delivery()
    waiting = threading.Event()
    add = batch.add_callback
    batch_with_news = RangesFuture([(batch, 0, 2)])
    found: list[list[OffsetRange]] = []
    thread = threading.Thread(target=lambda: found.append(batch_with_news.result(20)))
    thread.start()
    add(waiting.set)
    batch.succeed(5, NO_TIMESTAMP)
    thread.join()
    assert waiting.is_set()
    assert found == [[OffsetRange("t", 2, 5, 6)]]


def test_callbacks_run_once_now_or_later() -> None:
    batch = delivery()
    future = DeliveryFuture(batch, 1)
    seen: list[object] = []
    future.add_done_callback(seen.append)
    assert not seen
    batch.succeed(3, NO_TIMESTAMP)
    future.add_done_callback(seen.append)
    assert seen == [future, future]


def test_a_callback_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    batch = delivery()

    def fail(_future: object) -> None:
        raise ValueError("in the callback")

    future = DeliveryFuture(batch, 0)
    future.add_done_callback(fail)
    seen: list[object] = []
    future.add_done_callback(seen.append)
    batch.add_callback(lambda: fail(None))
    batch.succeed(0, NO_TIMESTAMP)
    assert seen == [future]
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


@pytest.mark.parametrize("how", ["wait", "as_completed"])
def test_the_standard_librarys_waits_work(how: str) -> None:
    first, second, third = delivery(), delivery(), delivery()
    first.succeed(100, NO_TIMESTAMP)
    futures = [DeliveryFuture(first, 0), RangesFuture([(second, 0, 3), (third, 0, 3)])]
    done, pending = concurrent.futures.wait(
        futures, timeout=5, return_when=concurrent.futures.FIRST_COMPLETED
    )
    assert (done, pending) == ({futures[0]}, {futures[1]})
    done, pending = concurrent.futures.wait(futures, timeout=0)
    assert pending == {futures[1]}
    assert futures[1].running()
    assert not futures[1].cancel()
    assert not futures[1].cancelled()

    def resolve() -> None:
        third.succeed(7, NO_TIMESTAMP)
        second.fail(ClosedError("closed"))

    threading.Timer(0.01, resolve).start()
    if how == "wait":
        assert concurrent.futures.wait(futures, timeout=5).done == set(futures)
    else:
        assert set(concurrent.futures.as_completed(futures, timeout=5)) == set(futures)
    assert isinstance(futures[1].exception(), ClosedError)


def test_ranges_are_in_input_order_and_wait_for_all() -> None:
    first, second = delivery(), Delivery("t", 0, 1)
    future = RangesFuture([(first, 0, 3), (second, 4, 2), (first, 3, 1)])
    seen: list[object] = []
    future.add_done_callback(seen.append)
    second.succeed(50, NO_TIMESTAMP)
    assert not future.done()
    assert not seen
    assert "6 records" in repr(future)
    first.succeed(10, NO_TIMESTAMP)
    assert future.done()
    assert seen == [future]
    assert future.result() == [
        OffsetRange("t", 2, 10, 12),
        OffsetRange("t", 0, 54, 55),
        OffsetRange("t", 2, 13, 13),
    ]


def test_no_records_are_no_ranges() -> None:
    assert RangesFuture([]).result() == []


def test_the_first_error_of_a_run_is_raised() -> None:
    good, bad, worse = delivery(), delivery(), delivery()
    future = RangesFuture([(good, 0, 1), (bad, 0, 1), (worse, 0, 1)])
    worse.fail(ClosedError("worse"))
    bad.fail(UnknownTopicError("bad"))
    good.succeed(0, NO_TIMESTAMP)
    with pytest.raises(UnknownTopicError, match="bad"):
        future.result()


def test_the_outcomes_of_many_records_are_in_their_order() -> None:
    good, bad = Delivery("t", 0, [10, 11]), Delivery("t", 1, 12)
    futures = [DeliveryFuture(good, 1), DeliveryFuture(bad, 0), DeliveryFuture(good, 0)]
    good.succeed(7, NO_TIMESTAMP)
    with pytest.raises(TimeoutError, match="1 batch without"):
        outcomes(futures, timeout=0)
    error = ClosedError("closed")
    bad.fail(error)
    first, third = RecordMetadata("t", 0, 8, 11), RecordMetadata("t", 0, 7, 10)
    assert outcomes(iter(futures)) == [first, error, third]
    assert bad.retrieved
    assert outcomes([]) == []


def test_awaiting_works_in_any_loop_and_from_any_thread() -> None:
    batch = delivery()
    future = DeliveryFuture(batch, 2)

    async def wait() -> RecordMetadata:
        return await future

    async def main() -> list[RecordMetadata]:
        tasks = [asyncio.ensure_future(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        await asyncio.to_thread(batch.succeed, 7, NO_TIMESTAMP)
        return [await tasks[1], await tasks[2]]

    assert asyncio.run(main()) == [RecordMetadata("t", 2, 9, 9)] * 2
    assert asyncio.run(wait()) == RecordMetadata("t", 2, 9, 9)  # done long ago, in another loop


def test_a_loop_that_closed_meanwhile_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    batch = delivery()

    async def begin() -> None:
        task = asyncio.ensure_future(until_done(pending_of([batch])))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(begin())
    batch.succeed(0, NO_TIMESTAMP)
    assert not caplog.text


def test_an_error_that_nobody_asked_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    seen, unseen, good = delivery(), delivery(), delivery()
    for batch in (seen, unseen):
        batch.fail(UnknownTopicError("gone"))
    good.succeed(0, NO_TIMESTAMP)
    DeliveryFuture(seen, 0).exception()
    del seen, unseen, good, batch
    gc.collect()
    assert caplog.text.count("no future checked") == 1


@pytest.mark.parametrize("look", ["exception", "callback"])
def test_asking_in_any_way_counts(look: str, caplog: pytest.LogCaptureFixture) -> None:
    batch = delivery()
    future = DeliveryFuture(batch, 0)
    batch.fail(UnknownTopicError("gone"))
    if look == "exception":
        future.exception()
    else:
        future.add_done_callback(lambda _future: None)
    del batch, future
    gc.collect()
    assert not caplog.text


def test_a_delivery_that_failed_before_it_began() -> None:
    batch = Delivery.failed("t", -1, UnknownTopicError("no"))
    assert isinstance(DeliveryFuture(batch, 0).exception(), UnknownTopicError)


# -- producer core ---------------------------------------------------------------------------------
#
# What both producers share: records made ready, runs cut and spread over partitions.


class Fixture:
    """A core with one topic, attached to nothing."""

    def __init__(self, partitions: int = 1, **settings: Any) -> None:
        serializers = {
            name: settings.pop(name, None) for name in ("key_serializer", "value_serializer")
        }
        self.clock = HandClock()
        self.woken = 0
        self.core = ProducerCore(
            ConnectionSettings(
                bootstrap=parse_bootstrap("a:1"),
                client_id="me",
                request_timeout_ms=1,
                bootstrap_timeout_ms=1,
                metadata_max_age_ms=1,
            ),
            producer_settings(**{"batch_bytes_max": 2_048, **settings}),
            ClientEnvironment(clock=self.clock, chance=lambda: 0.0),
            **serializers,
        )
        self.core.attach(self._schedule)
        self.topic: TopicQueues = self.core.accumulator.learn(
            topic_view(partitions=partitions, max_message_bytes=10_000)
        )

    def _schedule(self, _function: object) -> None:
        self.woken += 1

    def send_many(
        self, values: list[Any], keys: list[Any] | None = None, **more: Any
    ) -> RangesFuture:
        run = self.core.columns_of(values, keys, more.get("headers"), more.get("timestamps_ms"))
        parts = []
        for piece in self.core.pieces(self.topic, run, more.get("partition")):
            part = piece.offer()
            assert part is not None
            parts.append(part)
        return RangesFuture(parts)

    def deliver(self) -> dict[int, list[bytes | None]]:
        """Acknowledge everything, in order; the values by partition."""
        stored: dict[int, list[bytes | None]] = {}
        for queue in self.topic.queues:
            for batch in self.core.accumulator.drop(queue):
                body = batch.encode(self.core.settings.codec, None)
                values = stored.setdefault(queue.partition, [])
                batch.delivery.succeed(len(values), -1)
                values += decode_lists(seal(body) + body.payload).values
        return stored


def in_input_order(future: RangesFuture, stored: dict[int, list[bytes | None]]) -> list[Any]:
    return [
        stored[part.partition][offset]
        for part in future.result()
        for offset in range(part.first, part.last + 1)
    ]


@pytest.mark.parametrize("count", [1, 20, 1_000])
@pytest.mark.parametrize("size", [0, 10, 700])
def test_a_keyless_run_comes_back_in_input_order(count: int, size: int) -> None:
    fixture = Fixture(partitions=3)
    values = [b"%d" % number + b"x" * size for number in range(count)]
    future = fixture.send_many(values)
    assert in_input_order(future, fixture.deliver()) == values


def test_large_runs_are_encoded_at_once_small_ones_join() -> None:
    fixture = Fixture()
    fixture.send_many([b"a"] * 3)
    fixture.send_many([b"b"] * 3)
    fixture.send_many([b"c" * 100] * 12)
    fixture.send_many([b"d"] * 3)
    (queue,) = fixture.topic.queues
    assert [batch.body is not None for batch in queue.closed] == [False, True]
    assert queue.open is not None
    assert fixture.deliver()[0] == [b"a"] * 3 + [b"b"] * 3 + [b"c" * 100] * 12 + [b"d"] * 3


def test_keys_choose_partitions_and_keep_their_order() -> None:
    fixture = Fixture(partitions=4)
    keys = [b"key-%d" % (number % 7) if number % 5 else None for number in range(200)]
    values = [b"%d" % number for number in range(200)]
    future = fixture.send_many(values, keys)
    stored = fixture.deliver()
    for partition, found in stored.items():
        keyed = [value for value in found if keys[int(value or b"")] is not None]
        assert keyed == [
            value
            for key, value in zip(keys, values, strict=True)
            if key is not None and partition_of_key(key, 4) == partition
        ]
    by_partition = in_input_order(future, stored)
    assert sorted(by_partition) == sorted(values)
    assert by_partition[0] == values[0], "in the order of the partitions' first records"


def test_a_partition_can_be_named_for_all() -> None:
    fixture = Fixture(partitions=4)
    fixture.send_many([b"a", b"b"], [b"k", b"l"], partition=2)
    assert fixture.deliver() == {2: [b"a", b"b"]}


def test_a_partitioner_decides_for_each_record() -> None:
    fixture = Fixture(
        partitions=3, partitioner=lambda topic, key, value, count: len(value or b"") % count
    )
    fixture.send_many([b"", b"1", b"22", b"333"])
    assert fixture.deliver() == {0: [b"", b"333"], 1: [b"1"], 2: [b"22"]}
    wrong = Fixture(partitioner=lambda *_: 7)
    with pytest.raises(InvalidRequestError, match="partitioner returned 7"):
        wrong.send_many([b"a"])


def test_serializers_and_all_columns() -> None:
    fixture = Fixture(key_serializer=str.encode, value_serializer=lambda value: b"%d" % value)
    assert fixture.core.is_custom
    future = fixture.send_many(
        [1, 2], ["a", "b"], headers=[[("h", b"x")], None], timestamps_ms=[5, 6]
    )
    (queue,) = fixture.topic.queues
    (batch,) = fixture.core.accumulator.drop(queue)
    body = batch.encode(fixture.core.settings.codec, None)
    lists = decode_lists(seal(body) + body.payload)
    assert (lists.keys, lists.values) == ([b"a", b"b"], [b"1", b"2"])
    assert lists.headers == [(("h", b"x"),), ()]
    assert list(lists.timestamps_ms) == [5, 6]
    assert not future.done()


def test_one_record_is_normalized() -> None:
    fixture = Fixture(partitions=3, partitioner=lambda topic, key, value, count: 1)
    normalize = fixture.core.normalize
    assert normalize(fixture.topic, bytearray(b"v"), None, {"h": b"x"}, 7, None) == (
        b"v",
        None,
        (("h", b"x"),),
        7,
        1,
    )
    assert normalize(fixture.topic, None, b"k", None, None, 2) == (None, b"k", None, None, 2)
    with pytest.raises(TypeError):
        normalize(fixture.topic, "text", None, None, None, None)


def test_a_record_too_large_in_a_run_fails_by_itself() -> None:
    fixture = Fixture()
    future = fixture.send_many([b"a", b"x" * 20_000, b"b"])
    fixture.deliver()
    with pytest.raises(RecordTooLargeError):
        future.result()


@pytest.mark.parametrize("keyed_at", [0, 40])
def test_small_records_of_runs_and_a_key_do_not_exceed_the_batch(keyed_at: int) -> None:
    """With a key in the batch, each of the other records takes more bytes than without one."""
    fixture = Fixture(batch_bytes_max=10_000)
    for number in range(80):
        if number == keyed_at:
            fixture.send_many([b"v"], [b"k"], partition=0)
        fixture.send_many([b"v"] * 14, partition=0)
    batches = fixture.core.accumulator.drop(fixture.topic.queues[0])
    sizes = [batch.encode(Codec.NONE, None).size_bytes for batch in batches]
    assert max(sizes) <= fixture.topic.max_message_bytes


def test_no_room_for_a_piece() -> None:
    fixture = Fixture(buffer_memory=2_048)
    run = fixture.core.columns_of([b"x" * 100] * 50, None, None, None)
    offers = [piece.offer() for piece in fixture.core.pieces(fixture.topic, run, None)]
    assert offers[0] is not None
    assert offers[-1] is None
    piece = next(fixture.core.pieces(fixture.topic, run, None))
    delivery, _, count = piece.failed(fixture.core.no_room())
    assert isinstance(delivery.error, ThrottledError)
    assert count
    assert "max_block_ms=60000" in str(delivery.error)
    assert "buffer_memory=2048" in str(delivery.error)


def test_waking_schedules_the_sender() -> None:
    fixture = Fixture(linger_ms=0)
    fixture.send_many([b"a"])
    assert fixture.core.accumulator.wake_needed
    fixture.core.wake()
    assert not fixture.core.accumulator.wake_needed
    assert fixture.woken == 1


def test_records_that_fail_before_they_are_queued() -> None:
    core = Fixture().core
    error = UnknownPartitionError("no")
    assert core.failed("t", error).exception() is error
    assert core.all_failed("t", 3, error).exception() is error
    assert NO_PARTITION == -1


@pytest.mark.parametrize(
    ("partition", "error"),
    [(-1, UnknownPartitionError), (1, UnknownPartitionError), ("0", TypeError), (True, TypeError)],
)
def test_partitions_are_checked(partition: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="partition"):
        Fixture().topic.check_partition(partition)
