"""Work is done at one moment, told at a later one, and not at all by a process that is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftlog.testing.disk import Stopped
from raftlog.testing.simulator.loop import NodeLoop, SimLoop
from raftlog.testing.simulator.workers import SimWorkers


class Bench:
    """Workers whose work takes a second and is done in the middle of it."""

    def __init__(self, *, count: int = 1, chance: float = 0.5) -> None:
        self.world = SimLoop()
        self.loop = NodeLoop(self.world, "node")
        self.workers = SimWorkers(
            self.loop, count=count, delay_s=lambda: 1.0, chance=lambda: chance
        )
        self.events: list[tuple[float, Any]] = []

    def note(self, what: Any) -> None:
        self.events.append((round(self.world.now, 1), what))

    def submit(self, name: str) -> None:
        self.workers.submit(
            lambda: self.note(f"{name} done"), lambda _result, error: self.note(error or name)
        )


def test_work_is_done_within_its_time_and_told_at_the_end_of_it() -> None:
    bench = Bench()
    bench.submit("a")
    bench.world.run_until(2.0)
    assert bench.events == [(0.5, "a done"), (1.0, "a")]


@pytest.mark.parametrize(("chance", "moment"), [(0.0, 0.0), (0.9, 0.9)])
def test_when_within_its_time_is_chance(chance: float, moment: float) -> None:
    bench = Bench(chance=chance)
    bench.submit("a")
    bench.world.run_until(2.0)
    assert bench.events == [(moment, "a done"), (1.0, "a")]


def test_no_more_is_under_way_than_there_are_threads() -> None:
    bench = Bench(count=2)
    for name in "abc":
        bench.submit(name)
    bench.world.run_until(5.0)
    told = [(at, what) for at, what in bench.events if len(what) == 1]
    assert told == [(1.0, "a"), (1.0, "b"), (2.0, "c")]


def test_results_and_errors_arrive_where_they_are_awaited() -> None:
    bench = Bench()

    def fails() -> int:
        raise OSError("broken")

    async def program() -> int:
        with pytest.raises(OSError, match="broken"):
            await bench.workers.run(fails)
        return await bench.workers.run(lambda: 7)

    task = bench.loop.create_task(program())
    bench.world.run_until(task, limit_s=5)
    assert task.result() == 7


@pytest.mark.parametrize(("killed_at", "seen"), [(0.2, []), (0.7, ["a done"])])
def test_a_killed_process_does_or_tells_nothing_more(killed_at: float, seen: list[str]) -> None:
    bench = Bench()
    bench.submit("a")
    bench.world.run_until(killed_at)
    bench.loop.kill()
    bench.world.run_until(3.0)
    assert [what for _, what in bench.events] == seen


def test_work_that_ends_the_process_is_told_to_nobody() -> None:
    bench = Bench()

    def stops() -> None:
        raise Stopped

    told: list[Callable[..., object]] = []
    bench.workers.submit(stops, lambda *_: told.append(stops))
    bench.world.run_until(3.0)
    assert not bench.loop.is_alive
    assert not told


def test_stopping_does_what_waits() -> None:
    bench = Bench()
    for name in "ab":
        bench.submit(name)
    bench.workers.stop()
    assert bench.events == [(0.0, "b done")]
