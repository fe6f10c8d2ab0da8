"""The synchronous producer, over brokers in memory on its own thread."""

from __future__ import annotations

import gc
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from raftlog import limits
from raftlog.client.base import ClientEnvironment
from raftlog.client.producer import Producer
from raftlog.client.threads import LoopThread
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
from raftlog.types import OffsetRange, RecordMetadata
from tests.client.samples import python
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
    told = pytest.raises(BrokerUnavailableError, match=r"broker-1:9100 .*raftlog up")
    with producer_of(fake, bootstrap_timeout_ms=50) as producer, told:
        producer.send("t", b"a").result(TIMEOUT_S)


def fill_up(producer: Producer) -> None:
    for _ in range(200):
        producer.send("t", b"x" * 100)


def test_no_room_is_told_with_the_settings(fake: FakeCluster) -> None:
    fake.next(apis.PRODUCE, *[ignore] * 100)
    producer = Producer(
        fake.bootstrap,
        host=ClientEnvironment(connector=fake.connect),
        buffer_memory=10_000,
        batch_bytes_max=2_000,
        max_block_ms=20,
    )
    with pytest.raises(ThrottledError, match=r"max_block_ms=20.*buffer_memory=10000"):
        fill_up(producer)
    with pytest.raises(ThrottledError):
        producer.send_many("t", [b"x" * 1_500])
    producer.close(timeout=0)


def test_a_run_that_finds_no_room_in_the_middle_says_so_through_its_future(
    fake: FakeCluster,
) -> None:
    fake.next(apis.PRODUCE, *[ignore] * 100)
    producer = Producer(
        fake.bootstrap,
        host=ClientEnvironment(connector=fake.connect),
        buffer_memory=10_000,
        batch_bytes_max=2_000,
        max_block_ms=20,
    )
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
