"""Changes of the cluster do what they say on a real one, and can be undone."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from raftlog import Admin, NewTopic
from raftlog.testing import wait_until
from raftlog_jepsen.cluster import ClusterUnderTest, Needs
from raftlog_jepsen.nemesis.base import FaultPlan
from raftlog_jepsen.nemesis.membership import MEMBERSHIP_KINDS, MembershipNemesis
from raftlog_jepsen.plan import Shape, TopicShape

SHAPE = Shape(
    brokers=4, topics=(TopicShape(name="events", partitions=2, replication_factor=3, min_isr=2),)
)
SOON_S = 30.0
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterUnderTest]:
    made = ClusterUnderTest(SHAPE, Needs(), tmp_path_factory.mktemp("membership"))
    try:
        made.start()
        with Admin(made.bootstrap) as admin:
            admin.create_topics([NewTopic("events", 2, 3)])
        yield made
    finally:
        made.close()


def until_quiet(running: ClusterUnderTest) -> None:
    assert running.wait_quiet(SOON_S) == []


@pytest.mark.parametrize("kind", MEMBERSHIP_KINDS)
def test_the_same_chance_draws_the_same_fault(running: ClusterUnderTest, kind: str) -> None:
    nemesis = MembershipNemesis(running)
    one, other = (nemesis.draw(kind, Random(4), SHAPE) for _ in range(2))
    assert one == other
    assert (one.kind, one.expects, nemesis.why_not(kind)) == (kind, "available", "")


def test_a_broker_leaves_and_joins_again_with_an_empty_disk(running: ClusterUnderTest) -> None:
    nemesis = MembershipNemesis(running)
    fault = FaultPlan(kind="decommission", targets=(4,))
    assert nemesis.begin(fault).injected
    assert not nemesis.begin(fault).injected, "it is leaving already"
    wait_until(lambda: 4 not in running.up(), timeout_s=SOON_S, what="the end of broker 4")
    effect = nemesis.end(fault)
    assert effect.seen.keys() >= {"removed_after_s", "files_removed", "started_after_s"}, effect
    until_quiet(running)
    assert running.unexpected_exits() == []
    assert "nothing" in nemesis.end(fault).seen


def test_a_refused_removal_leaves_nothing_to_undo(running: ClusterUnderTest) -> None:
    nemesis = MembershipNemesis(running)
    first = FaultPlan(kind="decommission", targets=(3,))
    second = FaultPlan(kind="decommission", targets=(2,))
    assert nemesis.begin(first).injected
    effect = nemesis.begin(second)
    assert not effect.injected
    assert "would remain" in effect.seen["why"]
    nemesis.heal()
    until_quiet(running)


def test_replicas_move_and_the_throttle_goes(running: ClusterUnderTest) -> None:
    nemesis = MembershipNemesis(running)
    moves = {"0": [4, 1, 2], "1": [2, 4, 3]}
    args = {"topic": "events", "moves": moves, "cancel": False, "throttle": 500_000}
    fault = FaultPlan(kind="reassign", args=args)
    assert nemesis.begin(fault).injected
    assert nemesis.end(fault).seen["throttle"] == 0
    until_quiet(running)
    placed = [part.replicas for _, part in sorted(running.status().items())]
    assert placed == [(4, 1, 2), (2, 4, 3)]
    back = {"topic": "events", "moves": {"0": [1, 2, 3]}, "cancel": True, "throttle": 0}
    assert nemesis.begin(FaultPlan(kind="reassign", args=back)).injected
    assert nemesis.end(FaultPlan(kind="reassign", args=back)).injected
    until_quiet(running)


def test_a_replication_factor_grows_and_is_restored(running: ClusterUnderTest) -> None:
    nemesis = MembershipNemesis(running)
    fault = FaultPlan(kind="replication-factor", args={"topic": "events", "factors": [3, 4]})
    assert nemesis.begin(fault).seen["replication_factor"] == 4
    nemesis.heal()
    until_quiet(running)
    assert {len(part.replicas) for part in running.status().values()} == {3}
    too_many = FaultPlan(kind="replication-factor", args={"topic": "events", "factors": [3, 5]})
    assert "too few brokers" in nemesis.begin(too_many).seen["why"]
    nemesis.heal()
    until_quiet(running)


def test_all_brokers_restart_in_turn(running: ClusterUnderTest) -> None:
    nemesis = MembershipNemesis(running)
    fault = FaultPlan(kind="rolling-restart", targets=(2, 4))
    pids = {broker: running.hosts[broker].broker_pid for broker in (2, 4)}
    assert nemesis.begin(fault).seen.keys() == {"2", "4"}
    assert nemesis.end(fault).injected
    assert all(running.hosts[broker].broker_pid != pid for broker, pid in pids.items())
    until_quiet(running)
    assert running.unexpected_exits() == []
