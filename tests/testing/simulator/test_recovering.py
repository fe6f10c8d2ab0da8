"""Recoveries by an operator who knows little: repeatable, and they notice a missing guard."""

from __future__ import annotations

import pytest

from raftlog.server.cluster.node import ClusterNode
from raftlog.testing.simulator.recovering import SIZES, RecoveryPlan, run


def test_a_plan_is_run_the_same_way_again() -> None:
    plan = RecoveryPlan.draw(7)
    first, second = run(plan), run(plan)
    assert not first.violations
    assert (first.digest, first.counts) == (second.digest, second.counts)
    assert first.counts["acknowledged"] > first.counts["to be there"] > 0


def test_the_worlds_of_the_manual_are_drawn() -> None:
    assert {RecoveryPlan.draw(seed).sizes for seed in range(200)} == set(SIZES)


def test_brokers_that_accept_every_peer_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterNode, "_admit", lambda _self, _peer: None)
    monkeypatch.setattr(ClusterNode, "_check_claims", lambda _self: None)
    violations = run(RecoveryPlan.draw(102)).violations
    assert "TWO-HISTORIES" in {violation.kind for violation in violations}
