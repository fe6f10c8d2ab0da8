"""Compacting one log: when it is begun, how it is run, and what ends it early."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, cast

import pytest

from raftlog.errors import BrokerUnavailableError, DamagedLogError
from raftlog.server.metrics import Counters
from raftlog.server.partition import (
    SLEEP_SECONDS_MAX,
    WORK_SECONDS_MAX,
    YIELD_SECONDS,
    GivenUpError,
    GroupCommit,
    LogCompaction,
    Pace,
    Pass,
    Terms,
)
from raftlog.storage import Log
from tests.running import runs
from tests.server.cluster.paper import Scene, play
from tests.server.test_log_start import write_unsynced

GONE = BrokerUnavailableError("gone")
TERMS = Terms(now_ms=1_700_000_000_000, chance_seed=7, memory_bytes=1 << 20)


class PaperTicket:
    """Work of three steps."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.steps = 0
        self.is_stale = False

    def run(self, pause: Callable[[int], None]) -> None:
        for _ in range(3):
            pause(100)
            self.steps += 1
        if self.error is not None:
            raise self.error


class PaperLog:
    """Notes what it is asked for."""

    def __init__(self, *tasks: PaperTicket | Exception | None) -> None:
        self.tasks = list(tasks)
        self.asked: list[dict[str, int]] = []
        self.ends: list[tuple[str, PaperTicket]] = []
        self.refuses: Exception | None = None  # at the end of a compaction

    def begin_compaction(self, **terms: int) -> PaperTicket | None:
        self.asked.append(terms)
        task = self.tasks.pop(0)
        if isinstance(task, Exception):
            raise task
        return task

    def complete_compaction(self, task: PaperTicket) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.ends.append(("completed", task))

    def abandon_compaction(self, task: PaperTicket) -> None:
        self.ends.append(("abandoned", task))


class Compacting:
    """The compaction of a log on paper, beside the syncs of a real one."""

    def __init__(self, s: Scene, *tasks: PaperTicket | Exception | None) -> None:
        self.s = s
        self.synced = s.log()
        self.commit = GroupCommit(
            self.synced,
            s.loop,
            s.workers,
            on_durable=lambda: None,
            on_failed=s.failures.append,
            counters=Counters(),
        )
        self.log = PaperLog(*tasks)
        self.compaction = LogCompaction(cast(Log, self.log), self.commit)
        self.passes: list[Pass] = []
        self.high_watermark = 10

    def begin(self) -> None:
        self.compaction.begin(
            TERMS,
            high_watermark=lambda: self.high_watermark,
            tombstones_kept_from=lambda: 7,
            workers=self.s.workers,
            pause=Pace(lambda: self.compaction.is_given_up, sleep=lambda _s: None),
            finished=self.passes.append,
        )


@runs(play)
async def test_a_ticket_is_run_and_given_back(s: Scene) -> None:
    task = PaperTicket()
    c = Compacting(s, task)
    c.begin()
    assert c.log.asked == [{**TERMS._asdict(), "high_watermark": 10, "tombstones_kept_from": 7}]
    assert c.passes == []
    await s.come_to_rest()
    assert c.log.ends == [("completed", task)]
    assert c.passes == [Pass(is_done=True)]


@runs(play)
async def test_there_may_be_nothing_to_do_and_it_may_fail_to_begin(s: Scene) -> None:
    error = OSError(errno.ENOSPC, "full")
    c = Compacting(s, None, error)
    c.begin()
    c.begin()
    assert c.passes == [Pass(), Pass(error=error)]
    assert c.log.ends == []


@runs(play)
async def test_it_begins_and_ends_between_two_syncs(s: Scene) -> None:
    c = Compacting(s, PaperTicket())
    write_unsynced(c.synced)
    s.workers.hold()
    c.commit.request()
    await s.come_to_rest()
    c.begin()
    assert c.log.asked == []
    c.high_watermark = 20
    assert s.workers.held is not None
    work, done = s.workers.held.pop()
    done(work(), None)
    assert [asked["high_watermark"] for asked in c.log.asked] == [20], "as it is by then"
    compaction = s.workers.held.pop(0)
    write_unsynced(c.synced)
    c.commit.request()
    await s.come_to_rest()
    compaction[1](compaction[0](), None)
    assert c.log.ends == []
    s.workers.release()
    await s.come_to_rest()
    assert [how for how, _ in c.log.ends] == ["completed"]


@runs(play)
async def test_who_waits_for_its_end_has_it_given_up(s: Scene) -> None:
    task = PaperTicket()
    c = Compacting(s, task)
    told: list[str] = []
    s.workers.hold()
    c.begin()
    c.compaction.when_over(lambda: told.append("over"))
    assert c.compaction.is_given_up
    assert told == []
    s.workers.release()
    await s.come_to_rest()
    assert task.steps == 0
    assert c.log.ends == [("abandoned", task)]
    assert told == ["over"]
    assert c.passes == [Pass()]
    assert not c.compaction.is_given_up
    c.compaction.when_over(lambda: told.append("at once"))
    assert told[1:] == ["at once"]


@runs(play)
async def test_one_that_is_done_when_it_is_given_up_counts_for_nothing(s: Scene) -> None:
    """What waits will cut the log: what was compacted may be what is cut."""
    task = PaperTicket()
    c = Compacting(s, task)
    s.workers.hold()
    c.begin()
    assert s.workers.held is not None
    work, done = s.workers.held.pop()
    work()
    c.compaction.when_over(lambda: None)
    done(None, None)
    assert c.log.ends == [("abandoned", task)]
    assert c.passes == [Pass()]


@runs(play)
async def test_one_that_the_log_has_no_use_for_is_not_done(s: Scene) -> None:
    task = PaperTicket()
    c = Compacting(s, task)
    c.begin()
    task.is_stale = True
    await s.come_to_rest()
    assert c.log.ends == [("abandoned", task)]
    assert c.passes == [Pass()]


@runs(play)
async def test_one_that_has_yet_to_begin_is_given_up_too(s: Scene) -> None:
    c = Compacting(s, PaperTicket())
    write_unsynced(c.synced)
    s.workers.hold()
    c.commit.request()
    await s.come_to_rest()
    c.begin()
    c.compaction.closed = GONE
    s.workers.release()
    await s.come_to_rest()
    assert c.log.asked == []
    assert c.passes == [Pass()]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "bad"), DamagedLogError("rot")])
@runs(play)
async def test_an_error_abandons_it_and_is_told(s: Scene, *, error: Exception) -> None:
    task = PaperTicket(error)
    c = Compacting(s, task)
    c.begin()
    await s.come_to_rest()
    assert c.log.ends == [("abandoned", task)]
    assert c.passes == [Pass(error=error)]


@runs(play)
async def test_an_error_at_its_very_end_is_told(s: Scene) -> None:
    c = Compacting(s, PaperTicket())
    c.log.refuses = OSError(errno.ENOSPC, "full")
    c.begin()
    await s.come_to_rest()
    assert c.passes == [Pass(error=c.log.refuses)]
    told: list[str] = []
    c.compaction.when_over(lambda: told.append("over"))
    assert told == ["over"]


# -- the thread's manners --------------------------------------------------------------------------


class Slow:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sleeps: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds

    def pace(self, is_given_up: Any = lambda: False, **options: Any) -> Pace:
        return Pace(is_given_up, sleep=self.sleep, monotonic=lambda: self.now, **options)


def test_it_makes_way_after_so_much_work_however_small_its_steps() -> None:
    slow = Slow()
    pace = slow.pace()
    for _ in range(100):
        slow.now += WORK_SECONDS_MAX / 10
        pace(100)
    assert 8 <= len(slow.sleeps) <= 10
    assert set(slow.sleeps) == {YIELD_SECONDS}


def test_a_limit_is_kept_over_time() -> None:
    slow = Slow()
    pace = slow.pace(bytes_per_second=1_000)
    for _ in range(10):
        pace(100)
    assert slow.now == pytest.approx(101.0)
    slow.now += 50  # a long time with nothing done gives no credit
    pace(500)
    pace(500)
    assert slow.now == pytest.approx(152.0)


def test_a_throttled_thread_hears_soon_that_it_is_not_wanted() -> None:
    slow = Slow()
    given_up = [False]

    def sleep(seconds: float) -> None:
        slow.sleep(seconds)
        given_up[0] = slow.now > 100.5

    pace = Pace(lambda: given_up[0], bytes_per_second=1, sleep=sleep, monotonic=lambda: slow.now)
    with pytest.raises(GivenUpError):
        pace(1_000)
    assert slow.now < 100.5 + 2 * SLEEP_SECONDS_MAX
    with pytest.raises(GivenUpError):
        pace(0)
