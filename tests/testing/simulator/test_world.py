"""A world with its levers, and the real broker and clients in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.client.aio.clients import AsyncConsumer, AsyncProducer
from raftlog.errors import StorageFailedError
from raftlog.testing.disk import Fault, SimDisk, Stopped
from raftlog.testing.simulator.loop import NodeLoop, SimLoop, SimulationError
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
    hang, told = Hang(), list[str]()
    hang.when_over(lambda: told.append("a"))
    hang.when_over(lambda: told.append("b"))
    hang.end()
    hang.end()
    assert told == ["a", "b"]
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
