"""Virtual time: events in their order, clocks that differ, processes that are paused and killed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.testing.disk import Stopped
from raftlog.testing.simulator.loop import NodeLoop, SimLoop, SimulationError, Strand


def node(world: SimLoop | None = None, **settings: Any) -> NodeLoop:
    return NodeLoop(world or SimLoop(), "node", **settings)


def run(loop: NodeLoop, program: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a program on a process of its own, to its end."""
    task = loop.create_task(program())
    loop.world.run_until(task, limit_s=1_000_000)
    return task.result()


# -- order and time --------------------------------------------------------------------------------


def test_events_run_in_the_order_of_time_and_then_of_their_making() -> None:
    world = SimLoop()
    one, other = NodeLoop(world, "one"), NodeLoop(world, "other")
    seen: list[str] = []
    one.call_later(2, seen.append, "2")
    one.call_later(1, seen.append, "1 first")
    other.call_later(1, seen.append, "1 second")
    one.call_soon(seen.append, "soon")
    world.run_until(3.0)
    assert seen == ["soon", "1 first", "1 second", "2"]
    assert world.now == 3.0


def test_who_watches_is_told_of_every_event_after_it() -> None:
    world = SimLoop()
    one, other = NodeLoop(world, "one"), NodeLoop(world, "other")
    seen: list[str] = []
    world.on_event = lambda loop: seen.append(f"after {loop.name}")
    one.call_later(1, seen.append, "1")
    one.call_later(2, seen.append, "never").cancel()
    other.call_later(3, seen.append, "3")
    world.run_until(4.0)
    assert seen == ["1", "after one", "3", "after other"]
    assert world.events == 2


def test_time_does_not_pass_while_code_runs_and_jumps_between_events() -> None:
    loop = node(offset_s=5.0)

    async def program() -> list[float]:
        times = [loop.time()]
        sum(range(10_000))
        times.append(loop.time())
        await asyncio.sleep(3_600)
        return [*times, loop.time()]

    first, same, later = run(loop, program)
    assert first == same >= 5.0
    assert later == pytest.approx(first + 3_600, abs=1e-3)


@given(
    offset_s=st.floats(0, 1e6),
    drift=st.floats(-0.01, 0.01),
    delays=st.lists(st.floats(0, 1e4), min_size=1, max_size=20),
)
def test_no_timer_is_early_by_the_clock_of_its_process(
    offset_s: float, drift: float, delays: list[float]
) -> None:
    loop = node(offset_s=offset_s, drift=drift)
    begun = loop.time()
    late: list[float] = []
    for delay in delays:
        loop.call_later(delay, lambda due: late.append(loop.time() - due), begun + delay)
    loop.world.run_until(20_000.0)
    assert len(late) == len(delays)
    assert all(0 <= seconds < 1e-5 for seconds in late)


def test_clocks_run_apart() -> None:
    world = SimLoop()
    fast, slow = NodeLoop(world, "fast", drift=0.01), NodeLoop(world, "slow", offset_s=7)
    world.run_until(100.0)
    assert (fast.time(), slow.time()) == (pytest.approx(101.0), pytest.approx(107.0))


def test_a_turn_takes_time_so_that_what_spins_does_not_hold_up_the_world() -> None:
    loop = node(step_ns=1_000)
    turns = 0

    async def spin() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    loop.create_task(spin())
    loop.world.run_until(0.01)
    assert turns == pytest.approx(10_000, rel=0.01)
    loop.kill()
    loop.bury()


def test_what_asyncio_offers_works() -> None:
    loop = node()

    async def program() -> str:
        assert asyncio.get_running_loop() is loop
        event, lock = asyncio.Event(), asyncio.Lock()
        loop.call_later(1, event.set)
        async with lock:
            await asyncio.wait_for(event.wait(), 2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.Event().wait()
        first, second = await asyncio.gather(asyncio.sleep(2, "a"), asyncio.sleep(1, "b"))
        task = asyncio.ensure_future(asyncio.sleep(9))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return first + second

    assert run(loop, program) == "ab"


def test_a_cancelled_timer_does_not_run() -> None:
    loop = node()
    ran: list[int] = []
    loop.call_later(1, ran.append, 1).cancel()
    loop.call_soon(ran.append, 2).cancel()
    loop.world.run_until(2.0)
    assert not ran


# -- what fails a run ------------------------------------------------------------------------------


def test_an_exception_that_nobody_takes_ends_the_run_and_says_where() -> None:
    loop = node()
    loop.call_later(1, lambda: 1 // 0)
    with pytest.raises(SimulationError, match=r"^1\.\d+ node: .*ZeroDivisionError.*test_loop"):
        loop.world.run_until(2.0)


def test_a_task_that_fails_with_nobody_to_see_it_ends_the_run() -> None:
    loop = node()

    async def fails() -> None:
        raise ValueError("lost")

    loop.create_task(fails())
    loop.world.run_until(1.0)
    loop.check_tasks()
    with pytest.raises(SimulationError, match="lost"):
        loop.world.run_until(loop.create_future(), limit_s=2)


def test_waiting_for_what_does_not_come_is_told() -> None:
    loop = node()
    with pytest.raises(SimulationError, match="not done"):
        loop.world.run_until(loop.create_future(), limit_s=5)


def test_an_endless_loop_is_told() -> None:
    loop = node(SimLoop(events_max=1_000))

    def again() -> None:
        loop.call_soon(again)

    again()
    with pytest.raises(SimulationError, match="endless"):
        loop.world.run_until(1_000.0)


# -- pausing and killing ---------------------------------------------------------------------------


def test_what_comes_due_while_paused_runs_at_once_afterwards_in_its_order() -> None:
    loop = node()
    seen: list[tuple[str, float]] = []

    def note(what: str) -> None:
        seen.append((what, round(loop.time(), 3)))

    loop.call_later(3, note, "c")
    loop.call_later(1, note, "a")
    loop.call_later(2, note, "b")
    loop.call_later(9, note, "d")
    loop.pause()
    loop.world.run_until(5.0)
    assert not seen
    loop.resume()
    loop.world.run_until(10.0)
    assert seen == [("a", 5.0), ("b", 5.0), ("c", 5.0), ("d", 9.0)]


def test_a_killed_process_runs_nothing_more_not_even_what_cleans_up() -> None:
    loop = node()
    cleaned: list[str] = []

    async def program() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            cleaned.append("up")
            loop.call_soon(cleaned.append, "late")

    loop.create_task(program())
    loop.world.run_until(1.0)
    loop.kill()
    loop.call_soon(cleaned.append, "dead")
    loop.call_later(1, cleaned.append, "dead")
    loop.world.run_until(20.0)
    gc.collect()
    assert not cleaned


@pytest.mark.filterwarnings("error")
def test_burying_says_nothing_whatever_was_under_way() -> None:
    loop = node()
    started: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(10)

    async def failing() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            asyncio.get_running_loop()

    async def unstarted() -> None:
        started.append("?")

    for program in (stubborn, failing):
        loop.create_task(program())
    loop.world.run_until(1.0)
    loop.create_task(unstarted())
    loop.kill()
    loop.create_task(unstarted())
    loop.bury()
    gc.collect()
    assert not started
    assert not loop.world.failures


def test_the_end_of_the_process_within_an_operation_is_no_failure() -> None:
    loop = node()
    ran: list[int] = []

    def operation() -> None:
        raise Stopped

    loop.call_later(1, operation)
    loop.call_later(2, ran.append, 1)
    loop.world.run_until(3.0)
    assert not loop.is_alive
    assert not ran


# -- the same again --------------------------------------------------------------------------------


def digest_of(delays: list[float]) -> str:
    loop = node()

    async def program() -> None:
        for delay in delays:
            await asyncio.sleep(delay)

    run(loop, program)
    return loop.world.digest()


def test_the_digest_is_of_all_that_happened() -> None:
    assert digest_of([1, 2]) == digest_of([1, 2])
    assert digest_of([1, 2]) != digest_of([2, 1])
    world = SimLoop()
    before = world.digest()
    world.note("something")
    assert world.digest() != before


# -- strand ----------------------------------------------------------------------------------------
#
# A call goes on when it is let, never beside the loop, and an abandoned one does nothing more.


def holding(events: list[str], name: str) -> Strand:
    def work() -> None:
        events.append(f"{name} begins")
        try:
            strand.hold_up()
            events.append(f"{name} goes on")
        finally:
            events.append(f"{name} ends")

    strand = Strand(work)
    return strand


def test_calls_take_turns() -> None:
    events: list[str] = []
    a, b = holding(events, "a"), holding(events, "b")
    for strand in (a, b, b, a):
        assert Strand.current is None
        strand.resume()
    assert (a.is_done, b.is_done) == (True, True)
    assert events == [
        "a begins", "b begins", "b goes on", "b ends", "a goes on", "a ends",
    ]  # fmt: skip


def test_what_escapes_is_kept() -> None:
    def fails() -> None:
        raise OSError("broken")

    strand = Strand(fails)
    strand.resume()
    assert isinstance(strand.error, OSError)


def test_an_abandoned_call_only_cleans_up() -> None:
    events: list[str] = []
    strand = holding(events, "a")
    strand.resume()
    strand.abandon()
    assert strand.is_done
    assert isinstance(strand.error, Stopped)
    assert events == ["a begins", "a ends"]
    never = holding(events, "b")
    never.abandon()
    assert never.is_done
    assert events[2:] == []
