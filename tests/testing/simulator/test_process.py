"""Machines go on when their processes end: disks, names, clocks, and who starts a broker again."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.errors import StorageFailedError
from raftlog.testing.disk import Fault, Stopped
from raftlog.testing.simulator.world import ClientMachine, SyncLatency
from tests.testing.simulator.machines import broker_of, content, failing, world_of


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
