"""Room behind the journal: asked for once, again when half is used, and not always in vain."""

from __future__ import annotations

import asyncio
import errno

from raftlog.server.disks import AGAIN_SECONDS, KEPT_BYTES, JournalReserve
from tests.running import runs
from tests.server.cluster.paper import Scene, play


class Keeping:
    def __init__(self, s: Scene) -> None:
        self.size = 1_000
        self.asked: list[int] = []
        self.error: OSError | None = None
        self.room = JournalReserve(
            self.reserve, size=lambda: self.size, worker=s.workers, now=s.loop.time
        )

    def reserve(self, size: int) -> None:
        self.asked.append(size)
        if self.error is not None:
            raise self.error

    async def poll(self, s: Scene) -> int:
        """How often it was asked for in all."""
        self.room.poll()
        await s.come_to_rest()
        return len(self.asked)


@runs(play)
async def test_it_is_kept_again_when_half_of_it_is_used(s: Scene) -> None:
    k = Keeping(s)
    assert await k.poll(s) == 1
    assert k.asked == [KEPT_BYTES]
    assert await k.poll(s) == 1
    k.size += KEPT_BYTES // 2 - 1
    assert await k.poll(s) == 1
    k.size += 1
    assert await k.poll(s) == 2
    assert await k.poll(s) == 2


@runs(play)
async def test_it_is_kept_again_behind_a_journal_that_was_rewritten(s: Scene) -> None:
    k = Keeping(s)
    await k.poll(s)
    k.size -= 1
    assert await k.poll(s) == 2


@runs(play)
async def test_one_at_a_time(s: Scene) -> None:
    k = Keeping(s)
    s.workers.hold()
    k.room.poll()
    k.room.poll()
    s.workers.release()
    await s.come_to_rest()
    assert len(k.asked) == 1


@runs(play)
async def test_where_there_is_none_it_is_asked_for_later(s: Scene) -> None:
    k = Keeping(s)
    k.error = OSError(errno.ENOSPC, "No space left on device")
    assert await k.poll(s) == 1
    assert await k.poll(s) == 1
    await asyncio.sleep(AGAIN_SECONDS)
    assert await k.poll(s) == 2
    k.error = None
    await asyncio.sleep(AGAIN_SECONDS)
    assert await k.poll(s) == 3
    await asyncio.sleep(AGAIN_SECONDS)
    assert await k.poll(s) == 3
