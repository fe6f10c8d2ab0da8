"""A world with its levers, and the real broker and clients in it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.client.administration.admin import AsyncAdmin
from raftlog.client.aio.clients import AsyncConsumer, AsyncProducer
from raftlog.errors import StorageFailedError
from raftlog.testing.disk import Fault, SimDisk, Stopped
from raftlog.testing.simulator.loop import NodeLoop, SimLoop, SimulationError, Strand
from raftlog.testing.simulator.network import GIVE_UP_S, RETRANSMIT_S_MAX, Latency
from raftlog.testing.simulator.world import (
    ClientMachine,
    DiskTurns,
    Hang,
    Interleaving,
    SimWorkers,
    SyncLatency,
    World,
)
from raftlog.types import NewTopic, TopicPartition
from tests.testing.simulator.machines import broker_of, content, failing, world_of
from tests.testing.simulator.peers import Link, Peer, buffered


def test_all_brokers_boot_and_know_of_each_other() -> None:
    with world_of(3) as world:
        assert world.is_up()
        assert list(world.addresses) == [1, 2, 3]
        assert world.bootstrap == "broker-1:9100,broker-2:9100,broker-3:9100"


def test_waiting_ends_when_it_holds_or_in_time() -> None:
    with world_of() as world:
        begun = world.time.now
        assert world.run_until(lambda: world.time.now > begun + 1, limit_s=5)
        assert world.time.now == pytest.approx(begun + 1, abs=0.1)
        assert not world.run_until(lambda: False, limit_s=2)
        assert world.time.now == pytest.approx(begun + 3, abs=0.2)


def test_what_one_part_draws_changes_nothing_for_another() -> None:
    with World(5) as world, World(5) as same:
        world.random("a").random()
        assert world.random("b").random() == same.random("b").random()
        assert world.random("a").random() != world.random("b").random()


def test_healing_ends_every_fault() -> None:
    with world_of(2) as world:
        one, other = world.brokers
        one.power_cut()
        other.pause()
        other.disk.faults.append(Fault())
        other.disk.capacity_bytes = 0
        other.latency.stall_chance = 1.0
        world.network.cut(one.name, other.name)
        world.heal()
        assert world.run_until(world.is_up, limit_s=5)
        assert not other.disk.faults
        assert other.disk.capacity_bytes is None
        assert not other.loop.is_paused
        assert not world.network.cuts
        assert not other.latency.stall_chance


def test_healing_a_core_leaves_the_rest_as_it_is() -> None:
    with world_of(3) as world:
        for machine in world.brokers:
            machine.is_kept_down = True
            machine.kill()
        for a, b in ((1, 2), (2, 3)):
            world.network.cut(f"broker-{a}", f"broker-{b}")
        world.heal({"broker-1", "broker-2"})
        assert world.run_until(world.is_up, limit_s=5)
        assert [machine.is_running for machine in world.brokers] == [True, True, False]
        assert world.network.cuts == [("broker-2", "broker-3"), ("broker-3", "broker-2")]


def test_a_failure_that_nobody_saw_shows_at_the_end() -> None:
    async def program(_machine: ClientMachine) -> None:
        raise ValueError("lost")

    with world_of() as world:
        world.add_client("client-1", program).start()
        world.run_for(1)
        with pytest.raises(SimulationError, match="lost"):
            world.check()


def test_it_says_what_happens() -> None:
    said: list[str] = []
    with world_of(on_trace=said.append) as world:
        digest = world.time.digest()
        world.trace("something")
        assert world.time.digest() != digest
    assert said[0].endswith(" broker-1 is up")
    assert said[-1].endswith(" something")


def use_it(world: World) -> tuple[list[bytes | None], str]:
    """Produce and consume with the real clients; what came back, and the digest."""
    found: list[bytes | None] = []

    async def program(machine: ClientMachine) -> None:
        settings: dict[str, Any] = {"bootstrap": world.bootstrap, "host": machine.host()}
        async with AsyncAdmin(**settings) as admin:
            await admin.create_topics([NewTopic("t")])
        async with AsyncProducer(**settings) as producer:
            for number in range(20):
                await producer.send("t", b"%d" % number)
            await producer.flush()
            world.brokers[0].kill()
            await producer.send("t", b"after")
        async with AsyncConsumer(**settings, auto_offset_reset="earliest") as consumer:
            await consumer.assign([TopicPartition("t", 0)])
            async with asyncio.timeout(60):
                while len(found) < 21:
                    found.extend(record.value for record in await consumer.poll(1_000))

    client = world.add_client("client-1", program)
    client.start()
    assert world.run_until(lambda: client.is_done, limit_s=100)
    world.check()
    return found, world.time.digest()


def test_the_real_broker_and_the_real_clients_run_in_it() -> None:
    with World(1) as world:
        world.boot()
        found, digest = use_it(world)
        assert found == [b"%d" % number for number in range(20)] + [b"after"]
    with World(1) as world:
        world.boot()
        assert use_it(world)[1] == digest


def test_three_real_brokers_make_a_cluster_in_it() -> None:
    with World(2, brokers=3) as world:
        world.boot()
        found, _ = use_it(world)
        assert len(found) == 21


# -- hanging ---------------------------------------------------------------------------------------
#
# Which operations a hang holds, and who goes on when it is over.


def test_it_holds_what_it_is_about() -> None:
    data = Hang(spares="*/journal*")
    assert data.holds("sync", "data/0.log")
    assert data.holds("sync_dir", "data")
    assert not data.holds("write", "data/0.log"), "the page cache takes it"
    assert not data.holds("sync", "data/journal")
    assert Hang("*/journal*").holds("sync", "data/journal")
    assert not Hang("*/journal*").holds("sync", "data/0.log")


def test_all_go_on_in_their_order_when_it_is_over() -> None:
    hang, noted = Hang(), list[str]()
    hang.when_over(lambda: noted.append("a"))
    hang.when_over(lambda: noted.append("b"))
    hang.end()
    hang.end()
    assert noted == ["a", "b"]
    assert not hang.holds("sync", "x")


# -- process ---------------------------------------------------------------------------------------
#
# Machines go on when their processes end: disks, names, clocks, and who starts a broker again.


def test_a_killed_broker_is_started_again_and_finds_what_it_wrote() -> None:
    with world_of() as world:
        (machine,) = world.brokers
        broker_of(machine).write(b"unsynced", sync=False)
        machine.kill()
        assert machine.broker is None
        assert world.run_until(world.is_up, limit_s=5)
        assert machine.boots == 2
        assert content(machine) == b"unsynced"


def test_a_power_cut_takes_what_was_not_synced_and_the_host_with_it() -> None:
    left = set()
    for seed in range(20):
        with world_of(seed=seed) as world:
            (machine,) = world.brokers
            broker_of(machine).write(b"kept ", sync=True)
            broker_of(machine).write(b"unsure", sync=False)
            machine.power_cut()
            left.add(content(machine))
            world.run_for(10)
            assert not machine.is_running
            machine.start()
            assert not machine.is_running, "there is no power"
            machine.start_later(1)
            assert world.run_until(world.is_up, limit_s=5)
    assert left >= {b"kept ", b"kept unsure"}


def test_a_broker_asked_to_stop_does_so_in_its_own_time() -> None:
    with world_of() as world:
        (machine,) = world.brokers
        broker = broker_of(machine)
        machine.stop()
        world.run_for(0.05)
        assert broker.stopped
        assert machine.is_running
        world.run_for(0.1)
        assert not machine.is_running
        assert world.run_until(world.is_up, limit_s=5)


def test_a_broker_that_is_kept_down_stays_down() -> None:
    with world_of() as world:
        (machine,) = world.brokers
        machine.is_kept_down = True
        machine.kill()
        world.run_for(10)
        assert not machine.is_running
        assert world.is_up()


def test_a_broker_that_does_not_start_is_tried_again() -> None:
    with world_of(make_broker=failing(3)) as world:
        (machine,) = world.brokers
        assert machine.refusals == ["not yet"] * 3
        assert machine.boots == 4


def test_a_wiped_machine_starts_with_nothing() -> None:
    with world_of() as world:
        (machine,) = world.brokers
        broker_of(machine).write(b"x", sync=True)
        machine.wipe()
        assert world.run_until(world.is_up, limit_s=5)
        assert content(machine) == b""


def test_a_fatal_error_ends_the_process_where_it_stands() -> None:
    with world_of() as world:
        (machine,) = world.brokers
        went_on: list[str] = []

        def fails() -> None:
            try:
                machine.on_fatal(StorageFailedError("bad disk"))
            finally:
                went_on.append("cleaning up")
                with pytest.raises(Stopped):
                    machine.disk.remove_tree("d")
            went_on.append("more")

        broker_of(machine).write(b"x", sync=True)
        machine.loop.call_soon(fails)
        world.run_for(0.1)
        assert not machine.is_running
        assert machine.refusals == ["bad disk"]
        assert went_on == ["cleaning up"]
        assert world.run_until(world.is_up, limit_s=5)
        assert content(machine) == b"x"


def test_a_process_ends_within_an_operation_and_the_power_with_it_if_so_planned() -> None:
    for power_fails in (False, True):
        with world_of() as world:
            (machine,) = world.brokers
            machine.power_fails_next = power_fails
            machine.disk.faults.append(Fault({"write"}, None))
            machine.loop.call_soon(lambda m=machine: broker_of(m).write(b"x", sync=True))
            world.run_for(0.1)
            assert not machine.is_running
            assert machine.has_power is not power_fails
            assert world.run_until(world.is_up, limit_s=5)
            assert machine.boots == 2
            assert not machine.power_fails_next


def test_work_in_threads_may_end_the_process() -> None:
    with world_of() as world:
        (machine,) = world.brokers
        machine.disk.faults.append(Fault({"sync"}, None))
        workers = machine.workers(machine.loop, count=1, name="sync")
        broker = broker_of(machine)
        workers.submit(lambda: broker.write(b"x", sync=True), lambda *_: None)
        world.run_for(0.2)
        assert not machine.is_running
        assert content(machine) == b"x"


def test_clocks_of_machines_differ_and_outlive_processes() -> None:
    with world_of(2) as world:
        one, other = world.brokers
        assert one.clock.monotonic() != other.clock.monotonic()
        assert one.clock.wall_ms() != other.clock.wall_ms()
        before = one.clock.monotonic()
        one.kill()
        assert world.run_until(world.is_up, limit_s=5)
        assert one.clock.monotonic() == pytest.approx(before + 0.6, abs=0.2)
        wall_ms = one.clock.wall_ms()
        one.wall_offset_ms += 5_000
        assert one.clock.wall_ms() == wall_ms + 5_000


def test_what_a_machine_draws_is_chance_from_the_seed() -> None:
    with world_of() as world, world_of() as same, world_of(seed=1) as other:
        drawn = [each.brokers[0].random.randbytes(16) for each in (world, same, other)]
        assert drawn[0] == drawn[1] != drawn[2]


def test_disks_are_slow_now_and_then() -> None:
    with world_of() as world:
        latency = SyncLatency(world.random("test"), mean_s=1e-3, stall_chance=0.5, stall_s=1.0)
        drawn = [latency.draw() for _ in range(200)]
        stalls = [seconds for seconds in drawn if seconds > 0.5]
        assert 50 < len(stalls) < 150
        assert all(1.0 <= seconds < 1.1 for seconds in stalls)


def test_a_client_runs_its_program_and_begins_anew_after_it_was_killed() -> None:
    ran: list[float] = []

    async def program(machine: ClientMachine) -> None:
        ran.append(machine.clock.monotonic())
        await asyncio.sleep(1)
        ran.append(machine.clock.monotonic())

    with world_of() as world:
        client = world.add_client("client-1", program)
        client.start()
        world.run_for(0.5)
        client.kill()
        client.start()
        assert not client.is_done
        world.run_for(5)
        assert client.is_done
        assert (len(ran), client.boots) == (3, 2)
        assert client.host().connector is None


def test_a_paused_broker_is_still_there() -> None:
    with world_of() as world:
        (machine,) = world.brokers
        machine.pause()
        machine.stop()
        world.run_for(10)
        assert not broker_of(machine).stopped
        machine.resume()
        world.run_for(0.05)
        assert broker_of(machine).stopped


# -- workers ---------------------------------------------------------------------------------------
#
# Work is done at one moment, told at a later one, and not at all by a process that is gone.


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
    noted = [(at, what) for at, what in bench.events if len(what) == 1]
    assert noted == [(1.0, "a"), (1.0, "b"), (2.0, "c")]


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

    noted: list[Callable[..., object]] = []
    bench.workers.submit(stops, lambda *_: noted.append(stops))
    bench.world.run_until(3.0)
    assert not bench.loop.is_alive
    assert not noted


def test_stopping_does_what_waits() -> None:
    bench = Bench()
    for name in "ab":
        bench.submit(name)
    bench.workers.stop()
    assert bench.events == [(0.0, "b done")]


# -- work that is divided --------------------------------------------------------------------------


class Rig(Bench):
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
    rig = Rig(share=share)
    rig.write("a")
    rig.write("b")
    rig.world.run_until(2.0)
    assert ((0.0, "a done") not in rig.events) is is_divided
    rig.world.run_until(100.0)
    assert [what for _, what in rig.events if "done" not in what] == sorted("ab")[:2]


def test_what_happens_in_between_is_the_same_each_time() -> None:
    runs = []
    for _ in range(2):
        rig = Rig(share=1.0)
        rig.write("a")
        rig.write("b")
        rig.world.run_until(100.0)
        runs.append((rig.events, rig.world.digest()))
    assert runs[0] == runs[1]


def test_a_sync_on_a_disk_that_hangs_ends_when_that_is_over() -> None:
    rig = Rig(share=0.0)
    hang = Hang()
    rig.hangs.append(hang)
    rig.write("a", 1)
    rig.world.run_until(500.0)
    assert rig.events == []
    assert rig.workers.unfinished.oldest == 1
    hang.end()
    rig.world.run_until(501.0)
    assert rig.events == [(500.0, "a done"), (500.0, "a")]
    assert rig.workers.unfinished.oldest is None


def test_a_loop_that_waits_for_a_disk_that_hangs_stands_still() -> None:
    rig = Rig(share=0.0)
    hang = Hang()
    rig.hangs.append(hang)
    rig.loop.call_soon(rig.disk.sync_dir, "d")
    rig.loop.call_later(1.0, rig.note, "next")
    rig.world.run_until(10.0)
    assert rig.events == []
    hang.end()
    rig.world.run_until(11.0)
    assert rig.events == [(10.0, "next")]


def test_threads_of_a_killed_process_touch_the_disk_no_more() -> None:
    rig = Rig(share=0.0)
    rig.hangs.append(Hang())
    rig.write("a", 1)
    rig.world.run_until(1.0)
    changes = rig.disk.changes
    rig.loop.kill()
    rig.turns.abandon()
    assert rig.disk.changes == changes
    assert rig.events == []


def test_the_loop_waits_for_a_mutex_and_no_time_passes() -> None:
    rig = Rig(share=1.0)
    mutex = rig.disk.mutex()

    def work() -> None:
        with mutex:
            rig.disk.sync_dir("d")
            for _ in range(20):
                rig.disk.sync_dir("d")
            rig.note("the thread is done")

    def on_loop() -> None:
        with mutex:
            rig.note("the loop has it")

    rig.workers.submit(work, lambda *_: None)
    rig.loop.call_later(1.0, on_loop)
    rig.world.run_until(50.0)
    assert rig.events == [(1.0, "the thread is done"), (1.0, "the loop has it")]


def test_threads_take_turns_at_a_mutex() -> None:
    rig = Rig(share=1.0)
    mutex = rig.disk.mutex()

    def work(name: str) -> None:
        with mutex:
            rig.note(f"{name} begins")
            for _ in range(10):
                rig.disk.sync_dir("d")
            rig.note(f"{name} ends")

    for name in "ab":
        rig.workers.submit(partial(work, name), lambda *_: None)
    rig.world.run_until(100.0)
    assert [what for _, what in rig.events] == ["a begins", "a ends", "b begins", "b ends"]


# -- loop ------------------------------------------------------------------------------------------
#
# Virtual time: events in their order, clocks that differ, processes that are paused and killed.


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
    with pytest.raises(SimulationError, match=r"^1\.\d+ node: .*ZeroDivisionError.*test_world"):
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


# -- network ---------------------------------------------------------------------------------------
#
# Who reaches whom in a simulated network, and what becomes of connections when they cannot.


SEEDS = range(40)
LONG_S = 2 * max(GIVE_UP_S)


def refused(link: Link, port: int = 9) -> type[BaseException] | None:
    async def program() -> type[BaseException] | None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: Peer(link.world), "server", port)
        except OSError as error:
            return type(error)
        return None

    return link.run_in(link.client, program)


# -- connecting ------------------------------------------------------------------------------------


def test_a_connection_takes_a_round_trip() -> None:
    link = Link(latency=Latency(0.1, 1e-6))
    begun = link.world.now
    near, far = link.connect()
    assert near.told_at[0] - begun == pytest.approx(0.2, abs=0.01)
    assert far.told_at[0] - begun == pytest.approx(0.3, abs=0.01)


def test_nobody_listens() -> None:
    link = Link()
    assert refused(link, port=8) is ConnectionRefusedError
    link.kill_server()
    assert refused(link) is ConnectionRefusedError
    link.restart_server()
    assert refused(link) is None


def test_a_listener_that_was_closed_takes_no_more() -> None:
    link = Link()
    server = link.network.listener("server", 9)
    assert server is not None
    assert server.is_serving()
    assert server.get_loop() is link.server
    server.close()
    assert not server.is_serving()
    assert refused(link) is ConnectionRefusedError
    assert link.network.listener("server", 9) is None


def test_an_address_has_one_listener() -> None:
    link = Link()
    with pytest.raises(OSError, match="in use"):
        link.listen()


@pytest.mark.parametrize("one_way", [("client", "server"), ("server", "client")])
def test_nobody_answers_across_a_cut(one_way: tuple[str, str]) -> None:
    link = Link()
    link.network.cut(*one_way, one_way=True)
    begun = link.world.now
    assert refused(link) is TimeoutError
    assert link.world.now - begun > 20
    assert not link.accepted


def test_connecting_goes_on_when_the_link_is_mended_meanwhile() -> None:
    link = Link()
    link.network.cut("client", "server")
    link.client.call_later(2, link.network.mend, "client", "server")
    assert refused(link) is None


def test_a_paused_process_is_connected_to_and_learns_of_it_later() -> None:
    link = Link()
    link.server.pause()
    assert refused(link) is None
    link.wait(1)
    assert not link.accepted
    link.server.resume()
    link.wait(1)
    assert link.accepted[0].noted == ["made"]


# -- cutting ---------------------------------------------------------------------------------------


def test_bytes_across_a_cut_come_after_it_or_never() -> None:
    outcomes = set()
    for seed in SEEDS:
        link = Link(seed)
        near, far = link.connect()
        link.network.cut("client", "server")
        near.transport.write(b"late")
        link.wait(5)
        assert not far.received
        lost_before = near.is_lost or far.is_lost
        link.network.mend("client", "server")
        link.wait(RETRANSMIT_S_MAX + 1)
        outcomes.add((far.received, lost_before))
        if not lost_before:
            assert far.received == b"late"
    assert outcomes >= {(b"late", False), (b"", True)}


def test_a_cut_connection_may_stay_open_at_one_end_at_both_or_at_none() -> None:
    outcomes = set()
    for seed in SEEDS:
        link = Link(seed)
        near, far = link.connect()
        link.network.cut("client", "server")
        link.wait(LONG_S)
        outcomes.add((near.noted[-1], far.noted[-1]))
    assert len(outcomes) == 4
    assert ("made", "made") in outcomes
    assert ("lost OSError", "made") in outcomes or ("lost TimeoutError", "made") in outcomes


def test_one_way_the_bytes_still_come() -> None:
    link = Link()
    near, far = link.connect()
    link.network.cut("client", "server", one_way=True)
    near.transport.write(b"to the server")
    far.transport.write(b"to the client")
    link.wait(0.2)
    assert (near.received, far.received) == (b"to the client", b"")
    assert link.network.reaches("server", "client")
    assert link.network.cuts == [("client", "server")]


def test_who_gave_up_answers_late_bytes_with_a_reset() -> None:
    seen = 0
    for seed in SEEDS:
        link = Link(seed)
        near, far = link.connect()
        link.network.cut("client", "server")
        link.wait(LONG_S)
        if far.is_lost and not near.is_lost:
            near.transport.write(b"hello?")
            link.network.mend("client", "server")
            link.wait(3)
            assert near.noted[-1] == "lost ConnectionResetError"
            seen += 1
    assert seen


def test_a_netsplit_cuts_between_groups_and_nowhere_else() -> None:
    network = Link().network
    network.partition(["a", "b"], ["c"], ["d"])
    assert not any(network.reaches(*pair) for pair in ("ac", "ca", "bd", "cd"))
    assert network.reaches("a", "b")
    assert network.reaches("a", "x")
    network.heal(["a", "c"])
    assert network.reaches("a", "c")
    assert not network.reaches("b", "c")
    network.heal()
    assert not network.cuts


def test_a_slow_link_is_slow_one_way() -> None:
    link = Link()
    near, far = link.connect()
    link.network.slow("client", "server", 2.0)
    near.transport.write(b"slow")
    far.transport.write(b"quick")
    link.wait(1)
    assert (near.received, far.received) == (b"quick", b"")
    link.wait(2)
    assert far.received == b"slow"
    link.network.slow("client", "server", 0)
    near.transport.write(b"!")
    link.wait(1)
    assert far.received == b"slow!"


def test_a_reset_in_the_middle_ends_both_ends() -> None:
    link = Link()
    near, far = link.connect()
    assert link.network.connected_to("server") == ["client"]
    assert link.network.reset_connections("client", "server") == 1
    link.wait(1)
    assert near.noted[-1] == far.noted[-1] == "lost ConnectionResetError"
    assert link.network.reset_connections("client", "server") == 0
    assert not link.network.connected_to("server")


# -- ends of processes -----------------------------------------------------------------------------


def test_the_kernel_of_a_killed_process_ends_its_connections() -> None:
    endings = set()
    for seed in SEEDS:
        link = Link(seed)
        near, far = link.connect()
        far.transport.write(b"written")
        link.kill_server()
        link.wait(1)
        assert far.noted == ["made"]
        endings.add((near.noted[-1], near.received))
    assert ("lost", b"written") in endings
    assert ("lost ConnectionResetError", b"") in endings


def test_bytes_for_a_process_that_is_gone_are_answered_with_a_reset() -> None:
    link = Link(seed=3)
    near, _ = link.connect()
    near.keeps_open = True
    link.kill_server()
    link.wait(1)
    if not near.is_lost:
        near.transport.write(b"hello?")
        link.wait(1)
    assert near.noted[-1] == "lost ConnectionResetError"


def test_a_host_without_power_says_nothing() -> None:
    link = Link()
    near, _ = link.connect()
    link.cut_power()
    near.transport.write(b"hello?")
    link.wait(100)
    assert near.noted == ["made"]
    assert refused(link) is TimeoutError


def test_a_host_that_is_back_knows_nothing_of_its_connections() -> None:
    link = Link()
    near, _ = link.connect()
    link.cut_power()
    near.transport.write(b"before")
    link.wait(5)
    link.network.power_on("server")
    link.restart_server()
    link.wait(5)
    assert near.noted == ["made", "lost ConnectionResetError"]
    assert refused(link) is None


def test_who_has_sent_it_nothing_learns_when_it_does() -> None:
    link = Link()
    near, _ = link.connect()
    link.cut_power()
    link.wait(5)
    link.network.power_on("server")
    link.wait(50)
    assert near.noted == ["made"]
    near.transport.write(b"after")
    link.wait(5)
    assert near.noted == ["made", "lost ConnectionResetError"]


def test_connections_that_are_over_are_forgotten() -> None:
    link = Link()
    for how in ("close", "abort"):
        near, far = link.connect()
        getattr(near.transport, how)()
        link.wait(1)
        assert far.is_lost
    link.connect()
    link.kill_server()
    link.wait(1)
    assert not link.network._ends


def test_the_same_seed_gives_the_same_world() -> None:
    digests = set()
    for _ in range(2):
        link = Link(7, slicing=0.5)
        near, _far = link.connect()
        near.transport.write(b"x" * 100)
        link.wait(1)
        digests.add(link.world.digest())
    assert len(digests) == 1
    other = Link(7, slicing=0.5)
    near, _far = other.connect()
    near.transport.write(b"y" * 100)
    other.wait(1)
    assert other.world.digest() not in digests


# -- transport -------------------------------------------------------------------------------------
#
# An end of a simulated connection behaves as a socket transport does, and as its kernel.


@given(
    pieces=st.lists(st.binary(max_size=50), max_size=20),
    slicing=st.sampled_from((0.0, 0.7)),
    seed=st.integers(0, 1_000),
)
def test_bytes_come_in_order_whatever_the_pieces(
    pieces: list[bytes], slicing: float, seed: int
) -> None:
    link = Link(seed, slicing=slicing)
    near, far = link.connect()
    for number, piece in enumerate(pieces):
        if number % 2:
            near.transport.write(piece)
        else:
            near.transport.writelines([piece, memoryview(piece)])
    far.transport.write(b"back")
    link.wait(1)
    assert far.received == b"".join(p if n % 2 else p + p for n, p in enumerate(pieces))
    assert near.received == b"back"


def test_bytes_take_their_time() -> None:
    link = Link()
    near, far = link.connect()
    near.transport.write(b"x")
    link.wait(0.0005)
    assert not far.received
    link.wait(0.1)
    assert far.received == b"x"


def test_reads_are_sliced_if_the_network_does_that() -> None:
    sizes = set()
    for seed in SEEDS:
        link = Link(seed, slicing=1.0)
        near, far = link.connect()
        lengths: list[int] = []
        far.buffer_updated = lengths.append  # type: ignore[method-assign]
        near.transport.write(b"0123456789")
        link.wait(1)
        assert sum(lengths) == 10
        sizes |= set(lengths)
    assert sizes >= set(range(1, 10))


def test_a_protocol_without_buffers_is_given_bytes() -> None:
    link = Link()
    near, far = link.connect()
    received: list[bytes] = []

    class Plain(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            received.append(data)

    far.transport.set_protocol(Plain())
    near.transport.write(b"ab")
    link.wait(1)
    assert b"".join(received) == b"ab"


def test_closing_delivers_what_was_written_first() -> None:
    link = Link()
    near, far = link.connect()
    near.transport.write(b"last words")
    near.transport.close()
    near.transport.write(b"too late")
    link.wait(1)
    assert far.received == b"last words"
    assert far.noted == ["made", "eof", "lost"]
    assert near.noted == ["made", "lost"]
    assert near.transport.is_closing()


def test_half_a_connection_may_stay_open() -> None:
    link = Link()
    near, far = link.connect()
    far.keeps_open = True
    near.transport.write_eof()
    link.wait(1)
    far.transport.write(b"answer")
    link.wait(1)
    assert (far.noted, near.received) == (["made", "eof"], b"answer")


def test_aborting_may_lose_what_is_on_its_way() -> None:
    arrived = set()
    for seed in SEEDS:
        link = Link(seed)
        near, far = link.connect()
        near.transport.write(b"perhaps")
        near.transport.abort()
        link.wait(1)
        assert far.noted == ["made", "lost ConnectionResetError"]
        assert near.noted == ["made", "lost"]
        arrived.add(far.received)
    assert arrived == {b"", b"perhaps"}


def test_closing_with_unread_bytes_resets() -> None:
    link = Link()
    near, far = link.connect()
    near.transport.pause_reading()
    far.transport.write(b"unread")
    link.wait(1)
    near.transport.close()
    link.wait(1)
    assert far.noted[-1] == "lost ConnectionResetError"


def test_bytes_for_a_closed_socket_are_answered_with_a_reset() -> None:
    link = Link()
    near, far = link.connect()
    far.keeps_open = True
    near.transport.close()
    link.wait(1)
    far.transport.write(b"are you there?")
    link.wait(1)
    assert far.noted == ["made", "eof", "lost ConnectionResetError"]


def test_a_reader_that_pauses_makes_its_writer_pause() -> None:
    link = Link(socket_bytes=100)
    near, far = link.connect()
    near.transport.set_write_buffer_limits(high=50, low=10)
    far.transport.pause_reading()
    near.transport.write(b"x" * 140)
    link.wait(1)
    assert (near.noted, buffered(near)) == (["made"], 40)
    near.transport.write(b"y" * 20)
    assert near.noted == ["made", "pause"]
    assert not far.received
    assert not far.transport.is_reading()
    far.transport.resume_reading()
    link.wait(1)
    assert near.noted == ["made", "pause", "resume"]
    assert (len(far.received), buffered(near)) == (160, 0)


def test_closing_waits_until_what_was_written_fits_the_socket() -> None:
    link = Link(socket_bytes=100)
    near, far = link.connect()
    far.transport.pause_reading()
    near.transport.write(b"x" * 200)
    near.transport.close()
    link.wait(1)
    assert near.noted == ["made"]
    far.transport.resume_reading()
    link.wait(1)
    assert near.noted == ["made", "lost"]
    assert len(far.received) == 200


def test_a_close_that_waits_ends_when_the_peer_dies() -> None:
    link = Link(socket_bytes=100)
    near, far = link.connect()
    far.transport.pause_reading()
    near.transport.write(b"x" * 200)
    near.transport.close()
    link.wait(1)
    link.kill_server()
    link.wait(1)
    assert near.noted == ["made", "lost ConnectionResetError"]


def test_it_says_who_is_at_its_ends_and_what_its_limits_are() -> None:
    link = Link()
    near, far = link.connect()
    assert near.transport.get_extra_info("peername") == ("server", 9)
    assert near.transport.get_extra_info("sockname") == far.transport.get_extra_info("peername")
    assert near.transport.get_extra_info("socket") is None
    assert near.transport.get_protocol() is near
    assert near.transport.can_write_eof()
    assert near.transport.get_write_buffer_limits() == (16 * limits.KIB, 64 * limits.KIB)


@pytest.mark.parametrize("how", ["abort", "close"])
def test_ending_twice_is_ending_once(how: str) -> None:
    link = Link()
    near, _ = link.connect()
    getattr(near.transport, how)()
    getattr(near.transport, how)()
    link.wait(1)
    near.transport.abort()
    link.wait(1)
    assert near.noted == ["made", "lost"]
