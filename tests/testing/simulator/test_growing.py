"""Brokers that join and leave in a simulation: some seeds have them, and all come to an end."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import msgspec

from raftlog.testing.simulator.observer import node_of
from raftlog.testing.simulator.operators import GrowthPlan, still_changing
from raftlog.testing.simulator.scenario import Scenario, run
from raftlog.testing.simulator.world import BrokerMachine, World

SEED = 1_000


def test_a_part_of_the_seeds_has_growing_clusters() -> None:
    drawn = [Scenario.draw(seed, brokers=3) for seed in range(300)]
    plans = [scenario.growth for scenario in drawn if scenario.growth is not None]
    assert 10 <= len(plans) <= 60
    assert any(plan.leaves for plan in plans)
    assert all(plan.leaves <= plan.joins for plan in plans), "as many brokers as before remain"
    assert all(s.growth is None for s in drawn if s.faults.harmed or s.absent)
    assert Scenario.draw(SEED, brokers=1).growth is None


def test_brokers_join_and_leave_and_the_promises_are_kept() -> None:
    scenario = Scenario.draw(SEED, brokers=3, light=True)
    plan = GrowthPlan(joins=2, leaves=1, pause_s=0.3)
    said: list[str] = []
    verdict = run(replace(scenario, growth=plan), on_trace=said.append)
    assert verdict.is_good, verdict.violations
    assert sum("joins the cluster" in line for line in said) == 2
    assert any("was removed" in line for line in said)


def test_a_change_that_does_not_end_is_named() -> None:
    with World(3, brokers=3) as world:
        world.boot()
        world.run_until(lambda: all(map(_is_in, world.brokers)), limit_s=20)
        assert still_changing(world) == ""
        node = node_of(world.brokers[0])
        assert node is not None
        record = node.machine.brokers[3]
        node.machine._records.brokers[3] = msgspec.structs.replace(record, draining=True)
        assert "brokers [3] are not removed yet" in still_changing(world)


def _is_in(machine: BrokerMachine) -> bool:
    node = node_of(machine)
    return node is not None and node.membership.is_in


def test_a_plan_is_a_function_of_its_random_numbers() -> None:
    assert GrowthPlan.draw(Random(4)) == GrowthPlan.draw(Random(4))
