"""The event loop in virtual time ends tests that would run forever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from raftlog import limits
from raftlog.client.consumer import ConsumerCore
from raftlog.record import Codec, arrow
from raftlog.record.compaction import Rewriter, open_original
from tests.client import virtual
from tests.client.samples import stored_batch
from tests.client.test_consumer import core_of, taken
from tests.client.test_subscription import A
from tests.client.virtual import VirtualLoop
from tests.client.world import FakeCluster, run
from tests.running import runs


async def _sleep() -> None:
    while True:  # noqa: ASYNC110 - it waits for nothing
        await asyncio.sleep(1)


async def _wait_for_no_event() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("endless", "message"), [(_sleep, "in 100 turns"), (_wait_for_no_event, "everything waits")]
)
def test_a_test_that_does_not_end_fails(
    endless: Callable[[], Coroutine[Any, Any, None]], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual, "TURNS_MAX", 100)
    loop = VirtualLoop()
    with pytest.raises(AssertionError, match=message):
        loop.run_until_complete(endless())
    loop.close()


# -- compacted -------------------------------------------------------------------------------------
#
# Reading what compaction has left: batches with holes, and batches without a record.


def compacted(base: int, end: int, *left: int) -> bytes:
    """A batch that covers offsets from ``base`` on, and has the records at ``left``."""
    original = open_original(stored_batch(base, *[b"x"] * (end - base)))
    kept = np.isin(original.offsets, left)
    rewriter = Rewriter(bytes_target=1 << 20)
    (batch,) = [*rewriter.add(original, kept), *rewriter.finish()]
    return b"".join(batch.buffers)


async def filled(fake: FakeCluster, *batches: tuple[int, ...]) -> ConsumerCore:
    """A core that has fetched batches: each (base, end, the offsets of its records...)."""
    if "t" not in fake.topics:
        fake.create("t", 2)
    log = fake.topics["t"].logs[0]
    for base, end, *left in batches:
        log.batches.append(compacted(base, end, *left))
        log.end = end
    core = core_of(fake)
    await core.assign([A])
    core.activate()
    await asyncio.sleep(0.1)
    return core


@runs(run)
async def test_holes_are_passed_over(fake: FakeCluster) -> None:
    core = await filled(fake, (0, 10, 3, 7), (10, 20), (20, 22, 20, 21), (22, 30, 22))
    assert [taken(core, most) for most in (1, 2, 9)] == [[3], [7, 20], [21, 22]]
    assert await core.position(A) == 30
    await core.close()


@runs(run)
async def test_at_the_end_the_position_is_the_end_whatever_is_left_there(fake: FakeCluster) -> None:
    """Else the lag would never be 0."""
    core = await filled(fake, (0, 10, 3), (10, 20), (20, 25))
    assert taken(core, 9) == [3]
    assert taken(core, 9) == []
    assert await core.position(A) == 25
    await core.close()


@runs(run)
async def test_a_log_without_a_record_is_read_to_its_end(fake: FakeCluster) -> None:
    core = await filled(fake, (0, 10), (10, 20))
    assert taken(core, 9) == []
    assert await core.position(A) == 20
    await core.close()


@pytest.mark.parametrize(("offset", "found"), [(0, [3, 7]), (3, [3, 7]), (4, [7]), (8, [12])])
@runs(run)
async def test_a_reader_may_begin_in_a_hole(
    fake: FakeCluster, *, offset: int, found: list[int]
) -> None:
    core = await filled(fake, (0, 10, 3, 7), (10, 15, 12))
    core.subscription.seek(A, offset)
    core.wake()
    await asyncio.sleep(0.1)
    assert taken(core, len(found)) == found
    await core.close()


@runs(run)
async def test_iterating_goes_on_and_ends_at_the_end(fake: FakeCluster) -> None:
    core = await filled(fake, (0, 10, 3), (10, 20), (20, 25, 21), (25, 30))
    seen: list[int] = []
    while (part := core.next_run()) is not None:
        for record in part.records:
            part.part.position = record.offset + 1
            seen.append(record.offset)
    assert seen == [3, 21]
    assert await core.position(A) == 30
    await core.close()


def test_arrow_has_the_records_that_are_left() -> None:
    pytest.importorskip("pyarrow")

    async def test(fake: FakeCluster) -> None:
        core = await filled(fake, (0, 10), (10, 20, 13, 17), (20, 25), (25, 27, 26), (27, 30))
        found = core.take_arrow()
        assert found is not None
        assert found.column("offset").to_pylist() == [13, 17, 26]
        assert core.take_arrow() is None
        assert await core.position(A) == 30
        await core.close()

    run(test)


def test_arrow_has_the_records_of_a_joined_batch_once() -> None:
    """Compaction has joined batches after the first one was fetched."""
    pytest.importorskip("pyarrow")

    async def test(fake: FakeCluster) -> None:
        core = await filled(fake, (0, 10, 3, 7), (0, 20, 3, 7, 12), (20, 30, 25))
        found = []
        while (batch := core.take_arrow()) is not None:
            found += batch.column("offset").to_pylist()
        assert found == [3, 7, 12, 25]
        assert await core.position(A) == 30
        await core.close()

    run(test)


def test_arrow_is_bounded_in_bytes_that_are_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise batches that compress well need any memory, or exceed the limit of Arrow."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(limits, "ARROW_POLL_BYTES_MAX", 250_000)
    monkeypatch.setattr(arrow, "_ARROW_OFFSET_MAX", 300_000)

    async def test(fake: FakeCluster) -> None:
        log = fake.create("t", 2).logs[0]
        for base in range(5):
            log.batches.append(stored_batch(base, bytes(100_000), codec=Codec.GZIP))
            log.end = base + 1
        core = await filled(fake)
        found = [core.take_arrow() for _ in range(4)]
        assert [batch and batch.num_rows for batch in found] == [2, 2, 1, None]
        await core.close()

    run(test)


def test_arrow_of_nothing_is_nothing() -> None:
    pytest.importorskip("pyarrow")

    async def test(fake: FakeCluster) -> None:
        core = await filled(fake, (0, 10), (10, 20))
        assert core.take_arrow() is None
        assert await core.position(A) == 20
        await core.close()

    run(test)
