"""Every kind of fault has an effect, ends by itself, and comes when the seed says so."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Final

import pytest

from raftlog.storage import Store
from raftlog.testing.disk import SimDisk
from raftlog.testing.simulator import faults
from raftlog.testing.simulator.faults import (
    APART,
    KINDS,
    LAGGING_S_MAX,
    OF_CLUSTERS,
    OF_STORED_BYTES,
    TOPICS,
    WAYS,
    FaultPlan,
    Nemesis,
    lose_files,
    partitions,
)
from raftlog.testing.simulator.scenario import Scenario, run
from raftlog.testing.simulator.world import DATA_DIRECTORY, ClientMachine, World
from tests.storage.directories import FIRST, SimDiskOfTrees, host
from tests.storage.logs import fill
from tests.testing.simulator.machines import broker_of, world_of

OF_FILES: Final = ("vanish", "roll_back", "vanish_at_work", "read_error")


async def connects(machine: ClientMachine) -> None:
    """Stays connected to every broker, and tells it something now and then."""
    loop = asyncio.get_running_loop()
    for address in machine.world.addresses.values():
        await loop.create_connection(asyncio.Protocol, address.host, address.port)
    await asyncio.sleep(1e6)


def stormy(seed: int, plan: FaultPlan, *, brokers: int = 3) -> tuple[World, Nemesis]:
    world = world_of(brokers, seed=seed)
    for number in (1, 2):
        world.add_client(f"client-{number}", connects).start()
    world.run_for(1)
    return world, Nemesis(
        world, plan, may_wipe=lambda lost: lost[0].broker_id == 1 or len(lost) > 1
    )


@pytest.mark.parametrize("kind", [*KINDS, *OF_FILES])
def test_a_kind_of_fault_strikes_and_the_world_recovers(kind: str) -> None:
    world, nemesis = stormy(0, FaultPlan(kinds=(), every_s=1))
    with world:
        for machine in world.brokers:
            machine.disk.make_dirs("data/topics/clicks/id/0")
            machine.disk.write_atomic("data/topics/clicks/id/0/checkpoint", b"x")
            machine.disk.write_atomic("data/topics/clicks/id/0/00.log", bytes(8_192))
        strike = {**KINDS, **APART}[kind]
        struck = [strike(nemesis, machine) for machine in world.brokers]
        assert any(struck), "without an effect it is no fault"
        assert kind not in {"wipe", *OF_FILES} or struck == [True, False, False]
        for machine in world.brokers:
            if machine.broker is not None:
                machine.loop.call_soon(write_some, broker_of(machine))
        world.run_for(20)
        nemesis.stop()
        world.heal()
        assert world.run_until(world.is_up, limit_s=10)
        assert not world.network.cuts
        world.check()


def write_some(broker: object) -> None:
    """Meets the disk's faults."""
    try:
        for _ in range(40):
            broker.write(b"x", sync=True)  # type: ignore[attr-defined]
    except OSError:
        return


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_is_down_or_full_already_is_not_counted(kind: str) -> None:
    world, nemesis = stormy(1, FaultPlan(kinds=(), every_s=1), brokers=1)
    with world:
        (machine,) = world.brokers
        machine.is_kept_down = True
        machine.power_cut()
        machine.disk.capacity_bytes = 0
        machine.latency.stall_chance = 1.0
        for client in world.clients:
            client.is_done = True
        world.run_for(50)
        of_processes = {"kill", "kill_in_disk_operation", "power_cut_in_disk_operation", "stop"}
        of_processes |= {"pause", "power_cut", "client_kill", "disk_full", "slow_disk"}
        if kind in of_processes:
            assert KINDS[kind](nemesis, machine) is False


def test_faults_come_again_and_again_until_they_stop() -> None:
    world, nemesis = stormy(2, FaultPlan(kinds=("kill", "cut", "disk_full"), every_s=0.5))
    with world:
        nemesis.start()
        world.run_for(30)
        nemesis.stop()
        counts = dict(nemesis.counts)
        assert set(counts) == {"kill", "cut", "disk_full"}
        assert 20 < sum(counts.values()) < 120
        world.run_for(30)
        assert nemesis.counts == counts


def test_a_world_may_have_no_faults() -> None:
    world, nemesis = stormy(3, FaultPlan(kinds=(), every_s=0.1))
    with world:
        nemesis.start()
        world.run_for(10)
        assert not nemesis.counts
        assert [machine.boots for machine in world.brokers] == [1, 1, 1]


def test_a_leader_loses_its_disk_while_nobody_hears_of_it() -> None:
    """Unless by the end of that moment it may not."""
    with world_of(3) as world:
        world.run_for(1)
        nemesis = Nemesis(
            world,
            FaultPlan(kinds=(), every_s=1),
            may_wipe=lambda _lost: not world.network.cuts,
            leaders=lambda: [2],
        )
        leader = world.brokers[1]
        disk = leader.disk
        assert not APART["wipe_leader"](nemesis, world.brokers[0]), "it does not lead"
        assert APART["wipe_leader"](nemesis, leader)
        world.run_for(LAGGING_S_MAX)
        assert leader.disk is disk
        assert not world.network.cuts
        nemesis.may_wipe = lambda _lost: True
        assert APART["wipe_leader"](nemesis, leader)
        world.run_for(LAGGING_S_MAX)
        assert leader.disk is not disk
        assert nemesis.counts == {"wipe": 1}


def test_no_disk_is_lost_unless_that_is_allowed() -> None:
    with world_of() as world:
        nemesis = Nemesis(world, FaultPlan(kinds=("wipe",), every_s=0.1))
        disk = world.brokers[0].disk
        nemesis.start()
        world.run_for(10)
        assert world.brokers[0].disk is disk
        assert not nemesis.counts


def test_a_lost_disk_is_told() -> None:
    with world_of() as world:
        lost: list[object] = []
        plan = FaultPlan(kinds=("wipe",), every_s=0.1)
        nemesis = Nemesis(world, plan, may_wipe=lambda _: not lost, on_wipe=lost.append)
        nemesis.start()
        world.run_for(10)
        assert lost == world.brokers
        assert nemesis.counts == {"wipe": 1}


def test_seeds_differ_in_the_kinds_that_they_have() -> None:
    plans = [FaultPlan.draw(Random(seed), brokers=3) for seed in range(50)]
    assert len({plan.kinds for plan in plans}) > 40
    drawn = set(KINDS) - set(OF_STORED_BYTES)
    assert {kind for plan in plans for kind in plan.kinds} == drawn
    harmful = [plan.with_harm(Random(n), brokers=5, replicas=3) for n, plan in enumerate(plans)]
    assert {kind for plan in harmful for kind in plan.kinds} == set(KINDS)
    assert {len(plan.harmed) for plan in harmful} == {2}, "one good copy is left"
    alone = [FaultPlan.draw(Random(seed), brokers=1) for seed in range(50)]
    assert {kind for plan in alone for kind in plan.kinds} == drawn - OF_CLUSTERS


def test_a_pause_that_outlives_its_process_resumes_no_other() -> None:
    world, nemesis = stormy(4, FaultPlan(kinds=(), every_s=1))
    with world:
        machine = world.brokers[0]
        faults.pause(nemesis, machine)
        machine.kill()
        assert world.run_until(world.is_up, limit_s=5)
        machine.pause()
        world.run_for(faults.PAUSE_S_MAX + 1)
        assert machine.loop.is_paused


def test_stored_bytes_are_harmed_on_the_brokers_that_are_drawn_for_it_only() -> None:
    for harmed, struck in (((1,), True), ((2,), False)):
        world, nemesis = stormy(0, FaultPlan(kinds=(), every_s=1, harmed=harmed))
        with world:
            disk = world.brokers[0].disk
            disk.make_dirs("data/topics/clicks/id/0")
            disk.write_atomic("data/topics/clicks/id/0/00.log", b"x" * 8_192)
            before = disk.durable_bytes("data/topics/clicks/id/0/00.log")
            for kind in ("bit_flip", "lost_write"):
                assert KINDS[kind](nemesis, world.brokers[0]) == struck
            assert (disk.durable_bytes("data/topics/clicks/id/0/00.log") != before) == struck


def test_no_power_cut_takes_what_is_in_the_cache_only_where_it_is_the_only_place() -> None:
    world, nemesis = stormy(0, FaultPlan(kinds=(), every_s=1, is_cache_lossy=True))
    with world:
        world.boot()
        assert not KINDS["power_cut"](nemesis, world.brokers[1])
        assert not KINDS["power_cut_of_all_and_bit_flip"](nemesis, world.brokers[0])
        assert KINDS["power_cut"](nemesis, world.brokers[0])


# -- vanishing -------------------------------------------------------------------------------------
#
# Files of partitions vanish from simulated disks; and clusters that they vanish from.


def stored(disk: SimDisk, path: str) -> list[str]:
    names = [f"{path}/{name}" for name in disk.list_dir(path)]
    return names + [found for name in names for found in stored(disk, name)]


@pytest.mark.parametrize("way", WAYS)
def test_files_vanish_for_good(way: str) -> None:
    for seed in range(20):
        disk = SimDiskOfTrees(Random(seed))
        store = Store.open(disk, DATA_DIRECTORY)
        fill(host(store, 0), 3)
        fill(host(store, 1), 3)
        store.close()
        before = {path: disk.image(path) for path in stored(disk, DATA_DIRECTORY)}
        assert WAYS[way](disk, disk.random)
        disk.power_cut()
        left = stored(disk, DATA_DIRECTORY)
        assert set(left) < set(before) or way == "checkpoints and tails"
        assert f"{DATA_DIRECTORY}/catalog" in left or way == "all topics and their record"
        assert f"{DATA_DIRECTORY}/identity" in left


def test_where_there_is_nothing_nothing_vanishes() -> None:
    disk = SimDiskOfTrees(Random(1))
    assert lose_files(disk, disk.random) == ""
    store = Store.open(disk, DATA_DIRECTORY)
    host(store, 1)
    assert lose_files(disk, disk.random) == ""
    assert not WAYS["one file"](disk, disk.random)
    disk.make_dirs(f"{TOPICS}/clicks/{FIRST}/1")
    assert partitions(disk) == [f"{TOPICS}/clicks/{FIRST}/1"]
    assert not WAYS["one file"](disk, disk.random)


def test_clusters_lose_nothing_with_the_files_of_one_broker() -> None:
    struck: set[str] = set()
    for seed in (1, 6, 10):
        scenario = Scenario.draw(seed, brokers=3, light=True)
        faults = FaultPlan(kinds=("vanish", "roll_back"), every_s=0.5)
        verdict = run(replace(scenario, duration_s=5.0, faults=faults))
        assert verdict.is_good, (seed, verdict.violations[:10])
        struck |= verdict.faults.keys()
    assert struck == {"vanish", "roll_back"}
