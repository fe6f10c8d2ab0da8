"""Asynchronous clients: the consumer in virtual time, and the loop that a client belongs to."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest

from raftlog.client.aio.clients import AsyncConsumer, AsyncProducer
from raftlog.client.base import LoopBound
from raftlog.errors import (
    ClosedError,
    ConnectionLostError,
    InvalidRequestError,
    RaftlogError,
    ThrottledError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.types import OffsetAndTimestamp, OffsetRange, RecordMetadata
from tests.client.test_fetcher import fill
from tests.client.test_subscription import A, B
from tests.client.world import FakeCluster, ignore, run
from tests.running import runs

# -- consumers -------------------------------------------------------------------------------------

# The asynchronous consumer, in virtual time.


def consumer_of(fake: FakeCluster, **settings: Any) -> AsyncConsumer:
    return AsyncConsumer(
        fake.bootstrap, host=fake.host, **{"auto_offset_reset": "earliest", **settings}
    )


def filled(fake: FakeCluster) -> None:
    fake.create("t", 2)
    fill(fake, 3, 2)


@runs(run)
async def test_polling_and_iterating(fake: FakeCluster) -> None:
    filled(fake)
    async with consumer_of(fake) as consumer:
        await consumer.subscribe(["t"])
        assert await consumer.assignment() == {A, B}
        assert [record.offset for record in await consumer.poll(max_records=2)] == [0, 1]
        seen = []
        async for record in consumer:
            seen.append(record.offset)
            if len(seen) == 3:
                break
        assert seen == [2, 3, 4]
        assert await consumer.position(A) == 5
        await consumer.seek(A, 1)
        assert isinstance(consumer, AsyncIterator)
        assert aiter(consumer) is consumer
        assert [(await anext(consumer)).offset for _ in range(4)] == [1, 2, 3, 4]
        start = asyncio.get_running_loop().time()
        assert await consumer.poll(timeout_ms=2_000) == []
        assert asyncio.get_running_loop().time() - start == pytest.approx(2, abs=0.1)


@runs(run)
async def test_where_to_read(fake: FakeCluster) -> None:
    filled(fake)
    async with consumer_of(fake, value_deserializer=bytes.decode) as consumer:
        assert await consumer.partitions_for("t") == {0, 1}
        await consumer.assign([A, B])
        assert await consumer.beginning_offsets([A]) == {A: 0}
        assert await consumer.end_offsets([A, B]) == {A: 5, B: 0}
        assert await consumer.offsets_for_times({A: 1_700_000_000_003}) == {
            A: OffsetAndTimestamp(3, 1_700_000_000_003)
        }
        await consumer.seek_to_end()
        assert await consumer.position(A) == 5
        await consumer.seek_to_beginning([A])
        assert await consumer.position(A) == 0
        await consumer.seek(A, 4)
        assert [record.value async for record in limited(consumer, 1)] == ["x"]
        await consumer.pause([A])
        assert await consumer.paused() == {A}
        await consumer.seek(A, 0)
        assert await consumer.poll(timeout_ms=10) == []
        await consumer.resume([A])
        assert len(await consumer.poll()) >= 3
        await consumer.unsubscribe()
        with pytest.raises(InvalidRequestError, match="subscribe"):
            await consumer.poll()


async def limited(consumer: AsyncConsumer, count: int) -> Any:
    async for record in consumer:
        yield record
        count -= 1
        if not count:
            return


def test_arrow() -> None:
    pytest.importorskip("pyarrow")

    async def test(fake: FakeCluster) -> None:
        filled(fake)
        async with consumer_of(fake) as consumer:
            await consumer.assign([A])
            batch = await consumer.poll_arrow()
            assert batch is not None
            assert batch.num_rows == 5
            assert await consumer.poll_arrow(timeout_ms=5) is None

    run(test)


def test_others_have_their_turn() -> None:
    async def test(fake: FakeCluster) -> None:
        filled(fake)
        async with consumer_of(fake) as consumer:
            await consumer.assign([A])
            await consumer.poll()
            turns = 0

            async def other() -> None:
                nonlocal turns
                while True:
                    await asyncio.sleep(0)
                    turns += 1

            task = asyncio.ensure_future(other())
            for _ in range(10):
                await consumer.seek(A, 0)
                await consumer.poll(max_records=1)
            assert turns >= 10
            task.cancel()

    run(test)


@runs(run)
async def test_what_is_a_groups_needs_one(fake: FakeCluster) -> None:
    with pytest.raises(InvalidRequestError, match="Set group="):
        consumer_of(fake, group_instance_id="one")
    consumer = consumer_of(fake)
    for call in (consumer.commit, lambda: consumer.committed(A)):
        with pytest.raises(InvalidRequestError, match="group="):
            await call()
    with pytest.raises(InvalidRequestError, match="group="):
        consumer.commit_async()
    await consumer.close()


@runs(run)
async def test_closing_ends_a_poll(fake: FakeCluster) -> None:
    filled(fake)
    consumer = consumer_of(fake, auto_offset_reset="latest")
    await consumer.assign([A])
    polling = asyncio.ensure_future(consumer.poll(60_000))
    await asyncio.sleep(1)
    await consumer.close()
    await consumer.close()
    with pytest.raises(ClosedError):
        await polling
    with pytest.raises(ClosedError):
        await consumer.poll()


def test_an_unclosed_one_warns() -> None:
    async def test(fake: FakeCluster) -> None:
        filled(fake)
        consumer = consumer_of(fake)
        await consumer.assign([A])
        del consumer
        gc.collect()

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run(test)
        gc.collect()
    assert [w.category for w in warned] == [ResourceWarning]


# -- producer --------------------------------------------------------------------------------------
#
# The asynchronous producer, in virtual time.


def producer_of(fake: FakeCluster, **settings: Any) -> AsyncProducer:
    return AsyncProducer(fake.bootstrap, host=fake.host, **settings)


@runs(run)
async def test_records_and_runs(fake: FakeCluster) -> None:
    fake.create("t")
    async with producer_of(fake) as producer:
        future = await producer.send("t", b"v", b"k", {"h": b"x"}, 5)
        assert await future == RecordMetadata("t", 0, 0, 5)
        assert await future == future.result(0)
        many = await producer.send_many("t", [b"1", b"2"], timestamps_ms=6)
        assert await many == [OffsetRange("t", 0, 1, 2)]
        await producer.flush()


@runs(run)
async def test_closing_flushes(fake: FakeCluster) -> None:
    log = fake.create("t").logs[0]
    producer = producer_of(fake, linger_ms=10_000)
    await producer.send("t", b"a")
    await producer.close()
    await producer.close()
    assert log.values() == [b"a"]
    assert asyncio.get_running_loop().time() < 1_001
    with pytest.raises(ClosedError):
        await producer.send("t", b"b")
    await AsyncProducer("a:1").close()


@runs(run)
async def test_full_memory_is_waited_for_and_then_told_of(fake: FakeCluster) -> None:
    fake.create("t")
    fake.next(apis.PRODUCE, *[ignore] * 15)
    small = {"buffer_memory": 10_000, "batch_bytes_max": 2_000}
    producer = producer_of(fake, **small, request_timeout_ms=100_000, linger_ms=0)
    with pytest.raises(ThrottledError, match="max_block_ms=60000"):
        await fill_up(producer)
    assert 1_060 <= asyncio.get_running_loop().time() < 1_062
    with pytest.raises(ThrottledError):
        await producer.send_many("t", [b"x" * 1_000])
    await producer.close(0)
    async with producer_of(fake, **small) as other:
        for _ in range(500):
            await other.send("t", b"x" * 100)
        many = await other.send_many("t", [b"x" * 100] * 500)
        assert sum(part.last - part.first + 1 for part in await many) == 500


async def fill_up(producer: AsyncProducer) -> None:
    for _ in range(200):
        await producer.send("t", b"x" * 100)


@runs(run)
async def test_a_run_that_finds_no_room_in_the_middle(fake: FakeCluster) -> None:
    fake.create("t")
    fake.next(apis.PRODUCE, *[ignore] * 5)
    producer = producer_of(
        fake, buffer_memory=10_000, batch_bytes_max=2_000, max_block_ms=10, linger_ms=0
    )
    future = await producer.send_many("t", [b"x" * 100] * 200)
    await producer.close(0)
    with pytest.raises(RaftlogError):
        await future


@runs(run)
async def test_the_worlds_refusals_come_out_of_the_future(fake: FakeCluster) -> None:
    fake.create("t")
    async with producer_of(fake) as producer:
        with pytest.raises(UnknownTopicError):
            await (await producer.send("nope", b"a"))
        with pytest.raises(UnknownTopicError):
            await (await producer.send_many("nope", [b"a"]))
        with pytest.raises(UnknownPartitionError):
            await (await producer.send("t", b"a", partition=7))
        with pytest.raises(UnknownPartitionError):
            await (await producer.send_many("t", [b"a"], partition=7))
        with pytest.raises(TypeError):
            await producer.send("t", "text")
        with pytest.raises(TypeError):
            await producer.send(3, b"a")  # type: ignore[arg-type]


@runs(run)
async def test_a_flush_that_takes_too_long(fake: FakeCluster) -> None:
    fake.create("t")
    fake.next(apis.PRODUCE, ignore)
    producer = producer_of(fake)
    future = await producer.send("t", b"a")
    with pytest.raises(TimeoutError, match="continues to send"):
        await producer.flush(timeout=2)
    await producer.close(timeout=0)
    with pytest.raises(ConnectionLostError):
        await future


@runs(run)
async def test_a_cancelled_task_leaves_quickly(fake: FakeCluster) -> None:
    fake.create("t")
    fake.next(apis.PRODUCE, *[ignore] * 9)

    async def work() -> None:
        async with producer_of(fake) as producer:
            await (await producer.send("t", b"a"))

    task = asyncio.ensure_future(work())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.get_running_loop().time() < 1_003


@runs(run)
async def test_a_close_that_is_cancelled_again_and_again_ends(fake: FakeCluster) -> None:
    """As the cancel scopes of anyio do it."""
    fake.create("t")
    fake.next(apis.PRODUCE, *[ignore] * 9)
    producer = producer_of(fake)
    future = await producer.send("t", b"a")
    await asyncio.sleep(1)
    closing = asyncio.ensure_future(producer.close())
    for _ in range(9):
        await asyncio.sleep(0)
        closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(ConnectionLostError):
        await asyncio.wait_for(future, 5)
    await asyncio.sleep(5)
    assert not producer._core.cluster._connections._by_broker


def test_one_loop_only(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCluster()
    fake.create("t")
    producer = AsyncProducer(fake.bootstrap)  # made where no loop runs

    async def use() -> None:
        producer._core.cluster._connections._connector = fake.connect
        await (await producer.send("t", b"a"))

    asyncio.run(use())
    with pytest.raises(InvalidRequestError, match="another event loop"):
        asyncio.run(use())
    producer._closed = True


def test_an_unclosed_one_warns_in_producer() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        producer = producer_of(fake)
        await (await producer.send("t", b"a"))
        del producer
        gc.collect()

    gc.collect()  # what other tests left
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run(test)
        gc.collect()
    assert [w.category for w in warned] == [ResourceWarning]


# -- the loop --------------------------------------------------------------------------------------

# Asynchronous clients belong to the loop that first uses them.


class Client(LoopBound):
    """The least that a client is."""

    def __init__(self) -> None:
        self.loops: list[asyncio.AbstractEventLoop] = []

    def _bound(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loops.append(loop)

    async def use(self) -> None:
        self._bind()

    async def close(self) -> None:
        self._closed = True


def test_one_made_outside_a_loop_is_bound_by_its_first_use() -> None:
    client = Client()

    async def main() -> None:
        await client.use()
        await client.use()

    asyncio.run(main())
    assert len(client.loops) == 1


def test_another_loop_is_refused_with_the_reason() -> None:
    client = Client()
    asyncio.run(client.use())
    with pytest.raises(InvalidRequestError, match=r"this Client belongs to another event loop"):
        asyncio.run(client.use())


def test_a_closed_one_says_so() -> None:
    client = Client()
    asyncio.run(client.close())
    with pytest.raises(ClosedError, match="Client was closed"):
        asyncio.run(client.use())
