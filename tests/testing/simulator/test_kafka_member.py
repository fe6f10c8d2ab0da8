"""Members of classic groups: partitions move between them, and a broken coordinator is caught."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from raftlog.consumer_groups.classic import ClassicGroup
from raftlog.consumer_groups.values import assigned_partitions, subscribed_topics
from raftlog.testing.kafka_wire import assignment, subscription
from raftlog.testing.simulator.faults import FaultPlan
from raftlog.testing.simulator.history import Commit, Owning
from raftlog.testing.simulator.scenario import Scenario, Verdict, run
from raftlog.testing.simulator.workload import GroupPlan

CALM = FaultPlan(kinds=(), every_s=1.0)
# Of a coordinator without the check: the first of these seeds finds it.
BROKEN = range(10, 40)


def group_of(seed: int) -> Verdict:
    """A seed without faults of brokers, whose members leave often, and lose their links."""
    plan = replace(
        GroupPlan.draw(Random(f"{seed}/calm")),
        is_kafka=True,
        members=4,
        polls_max=20,
        away_s=0.2,
        disturbs_s=0.5,
    )
    drawn = Scenario.draw(seed, brokers=3, light=True, kafka=False)
    workload = replace(drawn.workload, group=plan, is_secured=False)
    return run(
        replace(drawn, absent=0, is_left_out=False, faults=CALM, duration_s=8.0, workload=workload)
    )


def test_members_write_the_consumer_protocol() -> None:
    assert subscribed_topics(subscription("b", "a")) == ("a", "b")
    assert assigned_partitions(assignment("t", *range(1, 5, 2))) == {"t": (1, 3)}


def test_partitions_go_from_member_to_member() -> None:
    owners = 0
    for seed in (0, 1):  # static members, and others
        verdict = group_of(seed)
        assert verdict.is_good, verdict.violations[:10]
        assert verdict.workload is not None
        history = list(verdict.workload.history)
        owners += len({entry.process for entry in history if isinstance(entry, Owning)})
        assert any(isinstance(entry, Commit) and entry.is_ok for entry in history)
    assert owners > 4


def test_a_commit_of_a_former_generation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClassicGroup, "check_commit", lambda *_, **__: None)
    verdicts = map(group_of, BROKEN)
    found = next(verdict for verdict in verdicts if not verdict.is_good)
    assert "GROUP-TWO-OWNERS" in {violation.kind for violation in found.violations}


def test_members_of_half_of_the_groups_in_some_seeds_are_kafkas() -> None:
    drawn = [Scenario.draw(seed, brokers=3).workload for seed in range(300)]
    groups = [plan.group for plan in drawn if plan.group is not None and plan.has_kafka_reader]
    assert {group.is_kafka for group in groups} == {True, False}
    others = [plan.group for plan in drawn if plan.group is not None and not plan.has_kafka_reader]
    assert not any(group.is_kafka for group in others)
