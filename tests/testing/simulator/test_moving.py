"""Seeds in which an operator moves replicas, and what they have to find."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftlog.server.cluster.controller import PartitionController
from raftlog.testing.simulator.faults import FaultPlan
from raftlog.testing.simulator.operators import still_moving
from raftlog.testing.simulator.scenario import MOVES_SHARE, Scenario, run
from raftlog.testing.simulator.world import World

CALM = FaultPlan(kinds=(), every_s=1.0)


def moving(seed: int, *, brokers: int = 3) -> Scenario:
    """A seed without faults, in which replicas move all the time."""
    drawn = Scenario.draw(seed, brokers=brokers, light=True)
    workload = replace(
        drawn.workload, moves_every_s=0.3, changes_factor=True, recreates_after_s=0.0, group=None
    )
    return replace(drawn, faults=CALM, workload=workload, absent=0, is_left_out=False)


def test_replicas_move_and_nothing_is_lost() -> None:
    verdict = run(moving(1))
    assert verdict.is_good, verdict.violations
    assert verdict.operations["reassign ok"] >= 3


def test_a_move_that_does_not_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionController, "_replicas_to_note", lambda *_: None)
    verdict = run(moving(1))
    assert any("a move does not end" in violation.message for violation in verdict.violations)


def test_some_seeds_have_moves_and_the_others_stay_what_they_were() -> None:
    drawn = [Scenario.draw(seed, brokers=3) for seed in range(200)]
    having = sum(scenario.workload.moves_every_s > 0 for scenario in drawn)
    assert 0.6 * MOVES_SHARE < having / len(drawn) < 1.4 * MOVES_SHARE
    for scenario in drawn:
        lossy = scenario.faults.harmed or scenario.faults.is_cache_lossy
        assert not (lossy and scenario.workload.changes_factor), "the budget is of the first factor"
    assert not Scenario.draw(1, brokers=3, mode="liveness").workload.moves_every_s


def test_without_brokers_nothing_moves() -> None:
    with World(1, brokers=3) as world:
        assert still_moving(world) == ""
