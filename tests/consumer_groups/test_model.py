"""A group under every fault: no partition has two owners, no offset is lost, and all comes to rest.

Once by Hypothesis, which shrinks what it finds to a short story; once by seeds, which are quick.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from raftlog.consumer_groups import group as heartbeats
from raftlog.consumer_groups.group import Group, Member
from raftlog.consumer_groups.values import Part
from tests.consumer_groups import group_driver
from tests.consumer_groups.group_world import World

STEPS = 200


class GroupMachine(RuleBasedStateMachine):
    """Every operation of the driver is a rule."""

    @initialize(number=st.integers(0, 200))
    def begin(self, number: int) -> None:
        self.world = World(Random(number))

    @invariant()
    def what_has_to_hold_holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.come_to_rest()


def as_rule(name: str, operation: group_driver.Operation) -> Callable[..., None]:
    """A small number stands for what else has to be chosen: which member, which message."""

    def step(self: GroupMachine, number: int) -> None:
        operation(self.world, Random(number))

    step.__name__ = name
    return rule(number=st.integers(0, 200))(step)


RULES = {name: as_rule(name, operation) for name, (_, operation) in group_driver.OPERATIONS.items()}
GroupTimeline = type("GroupStory", (GroupMachine,), RULES)
TestGroupStory = GroupTimeline.TestCase
TestGroupStory.settings = settings(stateful_step_count=60)


def test_seeded_runs_break_no_promise(seed: int) -> None:
    for number in range(seed, seed + 100):
        group_driver.run(number, STEPS)


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(1_500, marks=pytest.mark.seeds),
        pytest.param(50_000, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.timeout(0)
def test_many_seeded_runs_break_no_promise(seed: int, runs: int) -> None:
    for number in range(seed, seed + runs):
        group_driver.run(number, STEPS)


def hands_out_what_others_have(patch: pytest.MonkeyPatch) -> None:
    hand_out = Group.hand_out

    def careless(self: Group, names: Any) -> None:
        owner, self.owner = self.owner, {}
        hand_out(self, names)
        self.owner = owner | self.owner

    patch.setattr(Group, "hand_out", careless)


def forgets_what_was_asked_back(patch: pytest.MonkeyPatch) -> None:
    ask_back = Group._ask_back

    def careless(self: Group, member: Member, *, now: float) -> None:
        ask_back(self, member, now=now)
        self._free(member.revoking)
        member.revoking.clear()

    patch.setattr(Group, "_ask_back", careless)


def never_ends_a_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Member, "renew", lambda self, now: None)


def keeps_no_sequence(patch: pytest.MonkeyPatch) -> None:
    hear = heartbeats._hear

    def careless(group: Group, member: Member, heartbeat: Any, *, now: float) -> None:
        hear(group, member, heartbeat, now=now)
        member.sequence = 0

    patch.setattr(heartbeats, "_hear", careless)


def takes_commits_of_every_epoch(patch: pytest.MonkeyPatch) -> None:
    def careless(self: Group, member_id: str, part: Part, *, since: int) -> bool:
        return self.owner.get(part) == member_id

    patch.setattr(Group, "has_owned", careless)


@pytest.mark.parametrize(
    ("mistake", "first"),
    [
        (hands_out_what_others_have, 0),
        (forgets_what_was_asked_back, 0),
        (never_ends_a_session, 0),
        (keeps_no_sequence, 3_700),
        (takes_commits_of_every_epoch, 300),
    ],
)
def test_the_model_sees_mistakes(
    mistake: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else it would prove nothing. ``first``: a seed from which on it does not take long."""
    mistake(monkeypatch)
    seeds = iter(range(first, first + 3_000))
    with pytest.raises(AssertionError):
        deque((group_driver.run(seed, STEPS) for seed in seeds), maxlen=0)
