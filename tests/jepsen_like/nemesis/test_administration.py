"""The administrator's faults do what they say on a real cluster, and say so when they cannot."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from raftlog import Admin, NewTopic
from raftlog.testing import Cluster
from raftlog.testing.cluster import cluster
from raftlog_jepsen.nemesis.base import FaultPlan
from raftlog_jepsen.nemesis.members import KINDS, NO_MEMBERS, NO_NETWORK, MembersNemesis, choose
from raftlog_jepsen.nemesis.membership import (
    ADMINISTRATION_KINDS,
    SIDE_TOPIC,
    AdministrationNemesis,
)
from raftlog_jepsen.plan import Shape, TopicShape

SHAPE = Shape(
    brokers=3, topics=(TopicShape(name="events", partitions=3, replication_factor=3, min_isr=2),)
)


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster(3, with_relays=False) as made:
        with Admin(made.bootstrap) as admin:
            admin.create_topics([NewTopic("events", 3, 3)])
        yield made


@pytest.mark.parametrize("kind", ADMINISTRATION_KINDS)
def test_the_same_chance_draws_the_same_fault(kind: str) -> None:
    nemesis = AdministrationNemesis(Cluster([]))
    one, other = (nemesis.draw(kind, Random(4), SHAPE) for _ in range(2))
    assert one == other
    assert one.kind == kind
    assert one.expects == "available"


@pytest.mark.integration
def test_leaders_are_moved(running: Cluster) -> None:
    nemesis = AdministrationNemesis(running)
    before = running.leader("events", 1)
    effect = nemesis.begin(FaultPlan(kind="transfer", args={"topic": "events", "partitions": [1]}))
    assert effect.injected
    assert effect.seen["leaders"]["1"] != before


@pytest.mark.integration
def test_a_topic_is_made_extended_deleted_and_made_again(running: Cluster) -> None:
    nemesis = AdministrationNemesis(running)
    fault = nemesis.draw("topics", Random(1), SHAPE)
    assert nemesis.begin(fault).seen == {"created": SIDE_TOPIC}
    assert nemesis.begin(fault).seen == {"recreated": SIDE_TOPIC}
    assert nemesis.end(fault).seen == {"deleted": SIDE_TOPIC}
    assert nemesis.end(fault).seen.keys() == {"gone"}


@pytest.mark.integration
def test_a_setting_is_changed(running: Cluster) -> None:
    nemesis = AdministrationNemesis(running)
    args = {"topic": "events", "segment.bytes": "65536"}
    assert nemesis.begin(FaultPlan(kind="settings", args=args)).injected
    with Admin(running.bootstrap) as admin:
        assert admin.describe_topics(["events"])[0].config["segment.bytes"] == "65536"


@pytest.mark.integration
def test_what_is_refused_was_not_injected(running: Cluster) -> None:
    args = {"topic": "nowhere", "partitions": [0]}
    effect = AdministrationNemesis(running).begin(FaultPlan(kind="transfer", args=args))
    assert not effect.injected
    assert "nowhere" in effect.seen["why"]


def test_an_unknown_kind_cannot_be_injected() -> None:
    assert AdministrationNemesis(Cluster([])).why_not("kill")


# -- members ---------------------------------------------------------------------------------------
#
# Members of consumer groups are hit as the plan says; what is told is what was seen.


MEMBERS_SHAPE = Shape(
    brokers=3, topics=(TopicShape(name="t", partitions=1, replication_factor=3, min_isr=2),)
)
GROUPS = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b"}


class FakeMembers:
    """Slots 1 to 3 of group a, 4 and 5 of b. ``deaf``: signals do nothing."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.states = dict.fromkeys(GROUPS, "running")
        self.owners = {1, 4}
        self.deaf = deaf
        self.noted: list[tuple[str, tuple[int, ...]]] = []

    def running(self, group: str | None = None) -> list[int]:
        return [
            slot
            for slot, state in self.states.items()
            if state == "running" and group in {None, GROUPS[slot]}
        ]

    def owned(self, slot: int) -> set[str]:
        return {"t:0"} if slot in self.owners else set()

    def state(self, slot: int) -> str:
        return self.states[slot]

    def name(self, slot: int) -> str:
        return f"{GROUPS[slot]}/m{slot}.1"

    def _become(self, slots: Collection[int], state: str) -> None:
        if not self.deaf:
            self.states |= dict.fromkeys(slots, state)

    def start(self, slots: Collection[int]) -> None:
        self._become(slots, "running")

    def kill(self, slots: Collection[int]) -> dict[int, str]:
        self._become(slots, "gone")
        return dict.fromkeys(slots, "signal 9")

    def stop(self, slots: Collection[int]) -> dict[int, str]:
        self._become(slots, "gone")
        return dict.fromkeys(slots, "status 0")

    def pause(self, slots: Collection[int]) -> None:
        self._become(slots, "stopped")

    def resume(self, slots: Collection[int]) -> None:
        self._become(slots, "running")

    def note(self, slots: Collection[int], what: str) -> None:
        self.noted.append((what, tuple(slots)))


class FakePlaces:
    def __init__(self, *, leaks: bool = False) -> None:
        self.away: dict[int, set[int]] = {}
        self.leaks = leaks

    def cut(self, slot: int, brokers: Collection[int]) -> None:
        self.away[slot] = set(brokers)

    def mend(self, slot: int) -> None:
        self.away.pop(slot, None)

    def reaches(self, slot: int, broker: int) -> bool:
        return self.leaks or broker not in self.away.get(slot, ())


def nemesis(members: Any, places: Any = None) -> MembersNemesis:
    cluster = SimpleNamespace(members=members, member_places=places)
    return MembersNemesis(cluster, sleep=lambda _seconds: None)


def fault(kind: str, **args: Any) -> FaultPlan:
    return FaultPlan(kind=kind, args={"who": "one", "choice": 0.0, "gap_s": 0.0, **args})


def test_the_same_state_draws_the_same() -> None:
    made = nemesis(FakeMembers())
    for kind in KINDS:
        assert made.draw(kind, Random(5), MEMBERS_SHAPE) == made.draw(
            kind, Random(5), MEMBERS_SHAPE
        )
        assert made.draw(kind, Random(5), MEMBERS_SHAPE).hold_s > 0


@pytest.mark.parametrize(
    ("kind", "state"),
    [("member-kill", "gone"), ("member-pause", "stopped"), ("member-churn", "gone")],
)
def test_whoever_is_hit_is_back_when_it_ends(kind: str, state: str) -> None:
    members = FakeMembers()
    made, plan = nemesis(members), fault(kind, who="group")
    effect = made.begin(plan)
    assert effect.injected
    assert effect.seen["members"] == ["a/m1.1", "a/m2.1", "a/m3.1"]
    assert effect.seen["owned"] == 1
    assert [members.states[slot] for slot in (1, 2, 3, 4)] == [state] * 3 + ["running"]
    made.end(plan)
    assert set(members.states.values()) == {"running"}


def test_what_was_not_ended_is_healed_once() -> None:
    members = FakeMembers()
    made = nemesis(members)
    made.begin(fault("member-kill"))
    made.begin(fault("member-pause"))
    assert len(members.running()) == 3
    made.heal()
    assert len(members.running()) == 5
    members.kill([1])
    made.heal()
    assert members.states[1] == "gone", "it has nothing to undo any more"


def test_one_that_does_not_stop_is_no_fault() -> None:
    effect = nemesis(FakeMembers(deaf=True)).begin(fault("member-pause"))
    assert not effect.injected
    assert "not stopped" in effect.seen["why"]


def test_a_netsplit_is_seen_or_none() -> None:
    members, places = FakeMembers(), FakePlaces()
    made, plan = nemesis(members, places), fault("member-partition", brokers=[1, 3])
    assert made.begin(plan).injected
    assert places.away == {1: {1, 3}}
    made.end(plan)
    assert places.away == {}
    assert members.noted == [("cut", (1,)), ("mended", (1,))]
    leaking = nemesis(members, FakePlaces(leaks=True)).begin(plan)
    assert not leaking.injected
    assert "still reached" in leaking.seen["why"]


def test_what_cannot_be_done_is_said() -> None:
    made = nemesis(None)
    assert made.why_not("member-partition") == NO_NETWORK
    assert made.why_not("member-kill") == ""
    assert made.begin(fault("member-kill")).seen["why"] == NO_MEMBERS
    assert "not a kind of this nemesis" in made.why_not("kill")
    idle = FakeMembers()
    idle.kill(list(GROUPS))
    assert not nemesis(idle).begin(fault("member-kill")).injected


def test_rather_one_that_owns_something() -> None:
    members = FakeMembers()
    chosen = {choose(members, {"who": "one", "choice": n / 10})[0] for n in range(10)}
    assert chosen == members.owners
    some = choose(members, {"who": "some", "choice": 0.9})
    assert 1 < len(some) < 5
    assert choose(members, {"who": "group", "choice": 0.9}) == [4, 5]
