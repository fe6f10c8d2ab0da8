"""Members join, are disturbed, and come to their end; a cluster that shares badly is caught."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from raftlog.client.groups.member import Membership
from raftlog.consumer_groups.group import Group
from raftlog.testing.simulator.faults import FaultPlan
from raftlog.testing.simulator.history import Commit, Owning
from raftlog.testing.simulator.scenario import Scenario, Verdict, run
from raftlog.testing.simulator.workload import GroupPlan

CALM = FaultPlan(kinds=(), every_s=1.0)
BROKEN_WITHIN_SEEDS = 20


def group_of(seed: int, *, is_restless: bool = False) -> Verdict:
    """A seed with a group, and with nothing wrong but what members go through.

    ``is_restless``: members leave, and lose their links, so often that both happen at once.
    """
    plan = GroupPlan.draw(Random(f"{seed}/calm"))
    if is_restless:
        plan = replace(
            plan, members=4, session_timeout_ms=3_000, polls_max=20, away_s=0.2, disturbs_s=0.5
        )
    drawn = Scenario.draw(seed, brokers=3, light=True)
    workload = replace(drawn.workload, group=plan)
    return run(
        replace(drawn, absent=0, is_left_out=False, faults=CALM, duration_s=8.0, workload=workload)
    )


def kinds_found(until: str, *, is_restless: bool = False) -> set[str]:
    kinds: set[str] = set()
    for seed in range(BROKEN_WITHIN_SEEDS):
        kinds |= {
            violation.kind for violation in group_of(seed, is_restless=is_restless).violations
        }
        if until in kinds:
            break
    return kinds


def test_partitions_go_from_member_to_member() -> None:
    verdicts = [group_of(seed) for seed in range(3)]
    owners = 0
    for verdict in verdicts:
        assert verdict.is_good, verdict.violations[:10]
        assert verdict.workload is not None
        history = list(verdict.workload.history)
        owners += len({entry.process for entry in history if isinstance(entry, Owning)})
        assert any(isinstance(entry, Commit) and entry.is_ok for entry in history)
    assert owners > 2 * len(verdicts)


def test_a_group_is_drawn_in_some_seeds_and_changes_no_other() -> None:
    drawn = [Scenario.draw(seed, brokers=3, light=True) for seed in range(100)]
    groups = [scenario.workload.group for scenario in drawn]
    assert 5 < sum(group is not None for group in groups) < 30
    for scenario in drawn:
        if scenario.workload.group is not None:
            assert not scenario.faults.harmed
            assert not scenario.absent
            assert scenario.duration_s > 4


def test_a_group_on_a_compacted_topic_is_drawn() -> None:
    drawn = [Scenario.draw(seed, brokers=3, light=True, compacted=True) for seed in range(100)]
    assert any(s.workload.group and not s.workload.recreates_after_s for s in drawn)
    assert any(s.workload.group and s.workload.recreates_after_s for s in drawn)


def test_a_core_serves_its_group() -> None:
    drawn = Scenario.draw(2, mode="liveness", brokers=3, light=True)
    workload = replace(drawn.workload, group=GroupPlan.draw(Random(1)))
    verdict = run(replace(drawn, absent=0, is_left_out=False, workload=workload))
    assert verdict.is_good, verdict.violations[:10]


def test_giving_members_what_others_have_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    hand_out = Group.hand_out

    def careless(self: Group, names: Iterable[str]) -> None:
        owner = self.owner
        self.owner = {}
        hand_out(self, names)
        self.owner = owner | self.owner

    monkeypatch.setattr(Group, "hand_out", careless)
    assert "GROUP-TWO-OWNERS" in kinds_found("GROUP-TWO-OWNERS", is_restless=True)


def test_owning_beyond_the_session_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Membership, "tick", lambda *_, **__: None)
    assert "GROUP-TWO-OWNERS" in kinds_found("GROUP-TWO-OWNERS")
