"""A disk that ends no sync is noticed in bounded time, and a process that slept is not to blame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from raftlog.server.disks import JOURNAL_SECONDS, SUSPECT_SECONDS, WATCH_SECONDS, DiskWatch
from raftlog.server.scheduling import Unfinished, Workers
from tests.client.virtual import VirtualLoop

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
