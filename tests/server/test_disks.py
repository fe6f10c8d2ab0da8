"""Watermarks of free disk space: what is refused below them, and when that ends."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.config.address import Watermark
from raftlog.errors import DiskFullError
from raftlog.server.disks import (
    AGAIN_SECONDS,
    FAILURE_CHECKS,
    INODES_KEPT,
    JOURNAL_SECONDS,
    KEPT_BYTES,
    SUSPECT_SECONDS,
    WATCH_SECONDS,
    DiskSpace,
    DiskWatch,
    JournalReserve,
    SpaceLevel,
)
from raftlog.server.scheduling import Unfinished, Workers
from raftlog.storage.log_dirs import DiskMeasure
from raftlog.types import TopicPartition
from tests.client.virtual import VirtualLoop
from tests.running import runs
from tests.server.cluster.paper import Scene, play

T = TopicPartition("t", 0)
OFFSETS = TopicPartition("__consumer_offsets", 0)
SIZE = 10_000


def space() -> DiskSpace:
    return DiskSpace(producers=Watermark(10), replication=Watermark(5, 100))


def at(found: DiskSpace, free: int) -> SpaceLevel:
    found.measured(DiskMeasure(free, SIZE))
    return found.level


def refused(found: DiskSpace, where: TopicPartition = T) -> list[str]:
    who = []
    for name, check in (
        ("producers", found.check_producer),
        ("replication", found.check_replication),
    ):
        try:
            check(where)
        except DiskFullError:
            who.append(name)
    return who


def test_producers_are_refused_first_and_internal_topics_never() -> None:
    found = space()
    assert refused(found) == [], "nothing is known yet"
    assert at(found, 1_000) is SpaceLevel.NORMAL
    assert refused(found) == []
    assert at(found, 999) is SpaceLevel.NO_PRODUCERS
    assert refused(found) == ["producers"]
    assert at(found, 99) is SpaceLevel.READ_ONLY
    assert refused(found) == ["producers", "replication"]
    assert refused(found, OFFSETS) == []


def test_a_level_ends_a_fifth_above_its_watermark() -> None:
    found = space()
    at(found, 99)
    assert at(found, 119) is SpaceLevel.READ_ONLY
    assert at(found, 120) is SpaceLevel.NO_PRODUCERS
    assert at(found, 100) is SpaceLevel.NO_PRODUCERS, "it began below 100"
    assert at(found, 1_199) is SpaceLevel.NO_PRODUCERS
    assert at(found, 1_200) is SpaceLevel.NORMAL
    assert at(found, 1_000) is SpaceLevel.NORMAL


def test_a_refusal_says_which_setting_and_what_to_do() -> None:
    found = space()
    at(found, 700)
    with pytest.raises(DiskFullError) as caught:
        found.check_producer(T)
    text = str(caught.value)
    for part in (
        "t:0: producers are refused: 700 of 10,000 bytes",
        "disk.watermark.producers=10%",
        "until 1,200 bytes are free",
        "lower retention.ms",
    ):
        assert part in text
    at(found, 0)
    assert "disk.watermark.replication=5%,100" in found.reason


def test_without_watermarks_nothing_is_refused() -> None:
    found = DiskSpace()
    assert at(found, 0) is SpaceLevel.NORMAL
    assert (refused(found), found.reason) == ([], "")


@given(st.lists(st.integers(0, SIZE), max_size=20), st.integers(0, SIZE))
def test_the_level_is_never_lower_than_that_of_the_free_space(
    history: list[int], free: int
) -> None:
    """Whatever was measured before: hysteresis only prolongs a level."""
    found, fresh = space(), space()
    for each in history:
        at(found, each)
    assert at(found, free) >= at(fresh, free)
    if free >= SIZE * 12 // 100:
        assert found.level is SpaceLevel.NORMAL


def test_the_watermarks_apply_to_inodes() -> None:
    found = space()

    def at_inodes(free: int) -> SpaceLevel:
        found.measured(DiskMeasure(SIZE, SIZE, free, 1_000))
        return found.level

    assert at_inodes(-1) is SpaceLevel.NORMAL, "a file system without a limit"
    assert at_inodes(100) is SpaceLevel.NORMAL
    assert at_inodes(99) is SpaceLevel.NO_PRODUCERS
    assert "99 of 1,000 inodes" in found.reason
    assert at_inodes(119) is SpaceLevel.NO_PRODUCERS
    assert at_inodes(49) is SpaceLevel.READ_ONLY
    found.measured(DiskMeasure(SIZE, SIZE, INODES_KEPT * 2, 1_000_000))
    assert found.level is SpaceLevel.NORMAL, "of many inodes, a fixed number is kept"
    off = DiskSpace(producers=Watermark(None, 0), replication=Watermark(0))
    off.measured(DiskMeasure(SIZE, SIZE, 0, 1_000))
    assert off.level is SpaceLevel.NORMAL


def test_failing_writes_are_a_problem_until_one_succeeds_or_the_disk_takes_writes_again() -> None:
    found = DiskSpace()
    works = DiskMeasure(SIZE, SIZE)
    found.write_failed(DiskFullError("writing x: no space"))
    assert found.reason == "writes to the disk fail: writing x: no space"
    assert found.state == "failing"
    assert refused(found) == [], "an append may succeed"
    found.write_succeeded()
    assert (found.reason, found.state) == ("", "normal")

    found.write_failed(DiskFullError("writing x: no space"))
    for _ in range(FAILURE_CHECKS - 1):
        assert not found.measured(works)
    assert not found.measured(works._replace(failure="no inode left"))
    assert found.failure == "no inode left"
    for _ in range(FAILURE_CHECKS - 1):
        assert not found.measured(works)
    assert found.failure
    assert found.measured(works), "it is over, which is reported"
    assert not found.reason


@pytest.mark.parametrize(
    ("lacks", "text"),
    [
        (DiskMeasure(SIZE, SIZE, 0, 100), "no inode is left"),
        (DiskMeasure(SIZE, SIZE, open_files=193, open_files_max=200), "193 of 200 file desc"),
    ],
)
def test_a_limit_of_files_that_is_reached_is_a_problem_without_watermarks(
    lacks: DiskMeasure, text: str
) -> None:
    found = DiskSpace()
    assert found.measured(lacks), "it is reported"
    assert text in found.reason
    assert not found.measured(lacks), "once"
    found.measured(DiskMeasure(SIZE, SIZE, 1, 100, open_files=192, open_files_max=200))
    found.write_succeeded()
    assert found.reason == ""


# -- disk watch ------------------------------------------------------------------------------------
#
# A disk that ends no sync is noticed in bounded time, and a process that slept is not to blame.


TIMEOUT_S = 5.0
LATE_S = 2 * WATCH_SECONDS  # than the timeout, at most


class Threads:
    """Work is submitted, and ends when the test says so."""

    def __init__(self) -> None:
        self.unfinished = Unfinished()

    def submit(self) -> Any:
        return self.unfinished.until(lambda _result, _error: None)

    @property
    def as_workers(self) -> Workers:
        return cast(Workers, self)


class Bench:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.sync, self.journal, self.other = Threads(), Threads(), Threads()
        self.watch = DiskWatch(
            self.loop,
            sync=self.sync.as_workers,
            journal=self.journal.as_workers,
            others=[self.other.as_workers],
            timeout_s=TIMEOUT_S,
        )
        self.hung = 0
        self.journal_hung = 0
        self.watch.start(on_logs_hung=self._logs, while_hung=self._while_hung)

    def _logs(self) -> None:
        self.hung += 1

    def _while_hung(self) -> None:
        self.journal_hung += self.watch.is_journal_hung

    def run(self, seconds: float) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)

        self.loop.run_until_complete(wait())


@pytest.fixture
def benches() -> Iterator[Callable[[], Bench]]:
    made: list[Bench] = []

    def make() -> Bench:
        made.append(Bench())
        return made[-1]

    yield make
    for bench in made:
        bench.watch.stop()
        bench.loop.close()


def test_a_sync_that_does_not_end_means_that_the_disk_hangs(benches: Callable[[], Bench]) -> None:
    b = benches()
    done = b.sync.submit()
    b.run(TIMEOUT_S - 0.1)
    assert not b.watch.is_hung
    b.run(LATE_S + 0.1)
    assert b.watch.is_hung
    b.run(TIMEOUT_S)
    assert (b.hung, b.journal_hung) == (1, 0), "said once"
    done(None, None)
    b.run(LATE_S)
    assert not b.watch.is_hung
    b.sync.submit()
    b.run(TIMEOUT_S + LATE_S)
    assert b.hung == 2


def test_syncs_that_end_one_after_the_other_are_no_sign(benches: Callable[[], Bench]) -> None:
    b = benches()
    for _ in range(5):
        done = b.sync.submit()
        b.run(TIMEOUT_S - LATE_S)
        done(None, None)
    assert b.hung == 0


def test_the_oldest_counts_though_others_end(benches: Callable[[], Bench]) -> None:
    b = benches()
    b.sync.submit()
    for _ in range(6):
        done = b.sync.submit()
        b.run(1)
        done(None, None)
    assert b.hung == 1


def test_a_process_that_slept_has_not_waited_for_its_disk(benches: Callable[[], Bench]) -> None:
    b = benches()
    b.sync.submit()
    b.journal.submit()
    b.run(LATE_S)
    b.loop.now += 100.0
    b.run(LATE_S)
    assert (b.hung, b.journal_hung) == (0, 0)
    b.run(TIMEOUT_S)
    assert b.hung == 1


def test_a_journal_that_waits_is_noticed_sooner_where_logs_hang(
    benches: Callable[[], Bench],
) -> None:
    b = benches()
    b.journal.submit()
    b.run(TIMEOUT_S - 0.1)
    assert not b.watch.is_journal_hung
    b.run(LATE_S + 0.1)
    assert b.watch.is_journal_hung
    assert b.journal_hung

    both = benches()
    both.sync.submit()
    both.run(TIMEOUT_S + LATE_S)
    assert both.watch.is_hung
    both.journal.submit()
    both.run(JOURNAL_SECONDS + LATE_S)
    assert both.watch.is_journal_hung


def test_it_looks_no_more_once_it_is_stopped(benches: Callable[[], Bench]) -> None:
    b = benches()
    b.sync.submit()
    b.watch.stop()
    b.run(3 * TIMEOUT_S)
    assert b.hung == 0


def test_other_work_that_takes_long_is_reason_for_doubt_alone(
    benches: Callable[[], Bench],
) -> None:
    b = benches()
    done = b.other.submit()
    b.run(SUSPECT_SECONDS - 0.1)
    assert not b.watch.is_suspect
    b.run(3 * TIMEOUT_S)
    assert b.watch.is_suspect
    assert not b.watch.is_hung
    done(None, None)
    b.run(LATE_S)
    assert not b.watch.is_suspect


# -- journal reserve -------------------------------------------------------------------------------
#
# Room behind the journal: asked for once, again when half is used, and not always in vain.


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
