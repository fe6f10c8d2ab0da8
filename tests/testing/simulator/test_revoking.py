"""Simulations in which clients authenticate: what they do, and that a missing check is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftlog.server.broker import Broker
from raftlog.testing.simulator.operators import REVOKED
from raftlog.testing.simulator.scenario import Scenario, Verdict, run

SEED = 7


def secured(seed: int = SEED) -> Verdict:
    scenario = Scenario.draw(seed, brokers=3, light=True, kafka=False)
    return run(replace(scenario, workload=replace(scenario.workload, is_secured=True)))


def test_clients_authenticate_and_a_user_is_revoked() -> None:
    verdict = secured()
    assert verdict.is_good, verdict.violations
    assert verdict.operations["revoke ok"] > 0
    assert verdict.workload is not None
    done = [each.process for each in verdict.workload.history.operations if each.is_ok]
    for name in (REVOKED, "producer-1", "consumer-1"):
        assert any(process.startswith(f"{name}/") for process in done), name
    assert secured().digest == verdict.digest


def test_writes_of_a_deleted_user_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broker, "_end_revoked", lambda _broker: None)
    verdicts = map(secured, range(1, 31))  # each finds it with a chance of a third
    found = next(verdict for verdict in verdicts if not verdict.is_good)
    assert {violation.kind for violation in found.violations} == {"REVOKED"}


def test_a_share_of_the_seeds_is_secured() -> None:
    drawn = [Scenario.draw(seed, brokers=3) for seed in range(100)]
    assert 3 <= sum(each.workload.is_secured for each in drawn) <= 30
    others = [Scenario.draw(seed, brokers=3, mode="liveness") for seed in range(30)]
    others += [Scenario.draw(seed, brokers=1) for seed in range(30)]
    assert not any(each.workload.is_secured for each in others)
