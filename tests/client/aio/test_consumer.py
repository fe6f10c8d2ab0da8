"""The asynchronous consumer, in virtual time."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest

from raftlog.client.aio.clients import AsyncConsumer
from raftlog.errors import ClosedError, InvalidRequestError
from raftlog.types import OffsetAndTimestamp
from tests.client.test_fetcher import fill
from tests.client.test_subscription import A, B
from tests.client.world import FakeCluster, run
from tests.running import runs


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
