"""Work is done at one moment, told at a later one, and not at all by a process that is gone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from raftlog.testing.disk import SimDisk, Stopped
from raftlog.testing.simulator.loop import NodeLoop, SimLoop
from raftlog.testing.simulator.world import DiskTurns, Hang, Interleaving, SimWorkers


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


# -- work that is divided --------------------------------------------------------------------------


class Desk(Bench):
    """Workers of a process on a disk, whose work takes no time but for pauses of a second."""

    def __init__(self, *, share: float) -> None:
        super().__init__(count=2, chance=0.0)
        self.disk = SimDisk(Random(1))
        self.hangs: list[Hang] = []
        self.turns = DiskTurns(
            self.loop,
            self.disk,
            hangs=self.hangs,
            interleaving=Interleaving(random=Random(1), share=share),
            pause_s=lambda _operation: 1.0,
        )
        self.workers = SimWorkers(
            self.loop, count=2, delay_s=lambda: 0.0, chance=lambda: 0.0, turns=self.turns
        )
        self.disk.make_dirs("d")

    def write(self, name: str, count: int = 20) -> None:
        """Write and sync so many times."""

        def work() -> None:
            file = self.disk.open(f"d/{name}", create=True)
            for _ in range(count):
                file.append([b"x"])
                file.sync()
            self.note(f"{name} done")

        self.workers.submit(work, lambda _result, error: self.note(error or name))


@pytest.mark.parametrize(("share", "is_divided"), [(0.0, False), (1.0, True)])
def test_time_passes_between_the_operations_of_some_work(share: float, is_divided: bool) -> None:
    desk = Desk(share=share)
    desk.write("a")
    desk.write("b")
    desk.world.run_until(2.0)
    assert ((0.0, "a done") not in desk.events) is is_divided
    desk.world.run_until(100.0)
    assert [what for _, what in desk.events if "done" not in what] == sorted("ab")[:2]


def test_what_happens_in_between_is_the_same_each_time() -> None:
    runs = []
    for _ in range(2):
        desk = Desk(share=1.0)
        desk.write("a")
        desk.write("b")
        desk.world.run_until(100.0)
        runs.append((desk.events, desk.world.digest()))
    assert runs[0] == runs[1]


def test_a_sync_on_a_disk_that_hangs_ends_when_that_is_over() -> None:
    desk = Desk(share=0.0)
    hang = Hang()
    desk.hangs.append(hang)
    desk.write("a", 1)
    desk.world.run_until(500.0)
    assert desk.events == []
    assert desk.workers.unfinished.oldest == 1
    hang.end()
    desk.world.run_until(501.0)
    assert desk.events == [(500.0, "a done"), (500.0, "a")]
    assert desk.workers.unfinished.oldest is None


def test_a_loop_that_waits_for_a_disk_that_hangs_stands_still() -> None:
    desk = Desk(share=0.0)
    hang = Hang()
    desk.hangs.append(hang)
    desk.loop.call_soon(desk.disk.sync_dir, "d")
    desk.loop.call_later(1.0, desk.note, "next")
    desk.world.run_until(10.0)
    assert desk.events == []
    hang.end()
    desk.world.run_until(11.0)
    assert desk.events == [(10.0, "next")]


def test_threads_of_a_killed_process_touch_the_disk_no_more() -> None:
    desk = Desk(share=0.0)
    desk.hangs.append(Hang())
    desk.write("a", 1)
    desk.world.run_until(1.0)
    changes = desk.disk.changes
    desk.loop.kill()
    desk.turns.abandon()
    assert desk.disk.changes == changes
    assert desk.events == []


def test_the_loop_waits_for_a_mutex_and_no_time_passes() -> None:
    desk = Desk(share=1.0)
    mutex = desk.disk.mutex()

    def work() -> None:
        with mutex:
            desk.disk.sync_dir("d")
            for _ in range(20):
                desk.disk.sync_dir("d")
            desk.note("the thread is done")

    def on_loop() -> None:
        with mutex:
            desk.note("the loop has it")

    desk.workers.submit(work, lambda *_: None)
    desk.loop.call_later(1.0, on_loop)
    desk.world.run_until(50.0)
    assert desk.events == [(1.0, "the thread is done"), (1.0, "the loop has it")]


def test_threads_take_turns_at_a_mutex() -> None:
    desk = Desk(share=1.0)
    mutex = desk.disk.mutex()

    def work(name: str) -> None:
        with mutex:
            desk.note(f"{name} begins")
            for _ in range(10):
                desk.disk.sync_dir("d")
            desk.note(f"{name} ends")

    for name in "ab":
        desk.workers.submit(partial(work, name), lambda *_: None)
    desk.world.run_until(100.0)
    assert [what for _, what in desk.events] == ["a begins", "a ends", "b begins", "b ends"]
