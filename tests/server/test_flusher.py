"""Group commit against a log of paper: one task at a time, everything in the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from raftlog.errors import StorageFailedError
from raftlog.server.metrics import Counters
from raftlog.server.partition import GroupCommit
from raftlog.server.scheduling import Workers
from raftlog.storage import Log
from tests.running import runs


class Ticket:
    """What would be synced."""

    def __init__(self, end: int, snapshot: bool) -> None:
        self.end = end
        self.snapshot = snapshot

    def run(self) -> None:
        pass


class PaperLog:
    """Counts what is appended and what is durable."""

    def __init__(self) -> None:
        self.end = 0
        self.durable = 0
        self.begun: list[Ticket] = []
        self._out: Ticket | None = None

    def begin_sync(self, *, snapshot: bool = False) -> Ticket | None:
        assert self._out is None, "two tasks at a time"
        if self.end == self.durable and not snapshot:
            return None
        self._out = Ticket(self.end, snapshot)
        self.begun.append(self._out)
        return self._out

    def complete_sync(self, task: Ticket) -> None:
        assert task is self._out
        self._out = None
        self.durable = task.end

    def failed_sync(self, task: Ticket, error: OSError) -> StorageFailedError:
        assert task is self._out
        self._out = None
        return StorageFailedError(str(error))


class PaperWorkers:
    """Runs nothing until it is told that a sync is done."""

    def __init__(self) -> None:
        self.out: list[Callable[[Any, Exception | None], None]] = []

    def submit(
        self, work: Callable[[], Any], done: Callable[[Any, Exception | None], None]
    ) -> None:
        self.out.append(done)

    def finish(self, error: Exception | None = None) -> None:
        self.out.pop()(None, error)


class Scene:
    """A group commit with everything around it on paper."""

    def __init__(self) -> None:
        self.log = PaperLog()
        self.workers = PaperWorkers()
        self.durable: list[int] = []
        self.failed: list[StorageFailedError] = []
        self.commit = GroupCommit(
            cast(Log, self.log),
            asyncio.get_running_loop(),
            cast(Workers, self.workers),
            on_durable=lambda: self.durable.append(self.log.durable),
            on_failed=self.failed.append,
            counters=Counters(),
        )

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.log.end += 1
            self.commit.request()


def scene(test: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        await test(Scene())

    asyncio.run(run())


async def turn() -> None:
    """One turn of the event loop."""
    await asyncio.sleep(0)


@runs(scene)
async def test_what_one_turn_appends_goes_into_one_sync(s: Scene) -> None:
    s.append(3)
    assert s.workers.out == []
    await turn()
    assert [task.end for task in s.log.begun] == [3]
    s.workers.finish()
    assert s.durable == [3]
    await turn()
    assert len(s.log.begun) == 1


@runs(scene)
async def test_what_comes_during_a_sync_goes_into_the_next_at_once(s: Scene) -> None:
    s.append()
    await turn()
    s.append(5)
    await turn()
    assert len(s.workers.out) == 1
    s.workers.finish()
    assert [task.end for task in s.log.begun] == [1, 6]
    s.workers.finish()
    assert s.durable == [1, 6]


@runs(scene)
async def test_a_snapshot_is_asked_for_once(s: Scene) -> None:
    s.append()
    s.commit.request(snapshot=True)
    await turn()
    s.append()
    s.workers.finish()
    assert [task.snapshot for task in s.log.begun] == [True, False]


@runs(scene)
async def test_jobs_run_between_syncs(s: Scene) -> None:
    seen: list[tuple[str, int]] = []
    s.commit.between_syncs(lambda: seen.append(("idle", len(s.workers.out))))
    s.append()
    await turn()
    s.append()
    s.commit.between_syncs(lambda: seen.append(("busy", len(s.workers.out))))
    assert seen == [("idle", 0)]
    s.workers.finish()
    assert seen == [("idle", 0), ("busy", 0)]
    assert len(s.workers.out) == 1


@runs(scene)
async def test_after_stop_no_sync_begins(s: Scene) -> None:
    s.append()
    await turn()
    s.append()
    s.commit.stop()
    quiet: list[bool] = []
    s.commit.between_syncs(lambda: quiet.append(True))
    s.workers.finish()
    assert quiet == [True]
    s.append()
    await turn()
    assert len(s.log.begun) == 1


@runs(scene)
async def test_stopping_before_the_turn_ends_begins_none(s: Scene) -> None:
    s.append()
    s.commit.stop()
    await turn()
    assert s.log.begun == []


@runs(scene)
async def test_a_failed_sync_is_the_last(s: Scene) -> None:
    s.append()
    await turn()
    s.append()
    jobs: list[bool] = []
    s.commit.between_syncs(lambda: jobs.append(True))
    s.workers.finish(OSError(5, "Input/output error"))
    assert len(s.failed) == 1
    assert s.durable == []
    assert jobs == [True]
    s.append()
    await turn()
    assert s.workers.out == []


@runs(scene)
async def test_any_error_in_a_sync_leaves_its_outcome_unknown(s: Scene) -> None:
    s.append()
    await turn()
    s.workers.finish(ValueError("a bug of ours"))
    assert "a bug of ours" in str(s.failed[0])
