"""Harm to simulated consensus: what each fault does, that it ends, and what is never done."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from raftlog.testing.simulator.consensus import FAULTS, HARMS, SHAPES, Harm, World
from tests.testing.simulator.consensus_worlds import GROUP, process_of, world_of


def harm_to(world: World, *faults: str) -> Harm:
    harm = Harm(world, faults)
    harm.set_out()
    return harm


def is_whole(world: World) -> bool:
    """Everything runs, is linked, has room and is no slower than it ever is."""
    return all(
        broker.process is not None
        and broker.disk.capacity_bytes is None
        and broker.sync_s <= 0.02
        and broker.process.paused_until <= world.now
        for broker in world.brokers.values()
    ) and all(link.number and not link.blackholes for link in world.links.values())


@pytest.mark.parametrize("fault", HARMS)
@pytest.mark.parametrize("brokers", [3, 5])
def test_a_harm_ends_by_itself(fault: str, brokers: int) -> None:
    world = world_of(brokers)
    harm = harm_to(world, fault)
    for _ in range(10):
        harm.do()
        world.run_until(world.now + 0.3)
    world.run_until(world.now + 8.0)
    for broker in world.brokers.values():
        broker.disk.faults.clear()
    assert is_whole(world)
    assert world.checker.violations == []


@pytest.mark.parametrize("fault", [fault for fault in HARMS if fault not in {"flap", "wipe"}])
def test_a_harm_does_harm(fault: str) -> None:
    world = world_of()
    harm_to(world, fault).do()
    assert not is_whole(world) or any(broker.disk.faults for broker in world.brokers.values())


def test_without_faults_nothing_is_done() -> None:
    world = world_of()
    harm = harm_to(world)
    for _ in range(20):
        harm.do()
    assert is_whole(world)
    network = world.network
    assert (network.late, network.duplicate, network.reorder) == (0.0, 0.0, 0.0)
    assert {broker.clock_rate for broker in world.brokers.values()} == {1.0}


def test_healing_ends_all_at_once() -> None:
    world = world_of(5)
    harm = harm_to(world, *FAULTS)
    for _ in range(60):
        harm.do()
        world.run_until(world.now + 0.05)
    harm.heal()
    for broker in world.brokers.values():
        assert broker.process is not None
        broker.process.paused_until = 0.0
    assert is_whole(world)


@pytest.mark.parametrize("brokers", [3, 5])
def test_one_fault_may_be_kept_until_the_next_healing(brokers: int) -> None:
    kept = set()
    for seed in range(12):
        world = world_of(brokers, seed=seed)
        harm = harm_to(world)
        harm.heal()
        harm.keep_one()
        world.run_until(world.now + 10.0)
        down = sum(broker.process is None for broker in world.brokers.values())
        cut = sum(link.is_cut for link in world.links.values())
        silent = sum(bool(link.blackholes) for link in world.links.values())
        assert down + cut + silent == 1
        kept.add((down, cut, silent))
        assert len(world.leaders()) == 1
        harm.heal()
        assert is_whole(world)
    assert len(kept) == 3


@pytest.mark.parametrize(
    ("shape", "brokers", "cut"),
    [
        ("pair", 3, [(0, 1)]),
        ("one", 3, [(0, 1), (0, 2)]),
        ("halves", 5, [(0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4)]),
        ("chain", 4, [(0, 2), (0, 3), (1, 3)]),
    ],
)
def test_shapes_of_a_netsplit(shape: str, brokers: int, cut: Sequence[tuple[int, int]]) -> None:
    found = [
        (i, j)
        for i in range(brokers)
        for j in range(i + 1, brokers)
        if SHAPES[shape](i, j, brokers)
    ]
    assert found == cut


def test_a_directory_is_lost_only_while_no_other_is() -> None:
    """And the next one once all groups have new voters, all of whom are there."""
    world = world_of()
    harm = harm_to(world, "wipe")
    for _ in range(5):
        harm.wipe()
    assert world.counts["wipe"] == 1
    world.run_until(world.now + 5.0)
    harm.wipe()
    assert world.counts["wipe"] == 1
    voters = {number: broker.directory_id for number, broker in world.brokers.items()}
    for _ in range(5):
        world.seal(process_of(world, 1), GROUP, voters)
        world.seal(process_of(world, 2), GROUP, voters)
        world.run_until(world.now + 2.0)
    assert world.newest(GROUP)[1] == voters
    harm.wipe()
    assert world.counts["wipe"] == 2
    assert world.checker.violations == []


def test_no_directory_of_two_voters_is_lost() -> None:
    world = world_of(2)
    harm = harm_to(world, "wipe")
    harm.wipe()
    assert world.counts["wipe"] == 0


def test_leaders_are_harmed_more_often() -> None:
    world = world_of(5)
    (leader,) = world.leaders()
    harm = harm_to(world)
    victims = [harm.victim().broker_id for _ in range(200)]
    assert victims.count(leader.broker_id) > 90
    assert set(victims) == set(world.brokers)
