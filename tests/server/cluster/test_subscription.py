"""The cluster state on a broker without a vote: the newest, soon, and its commands to the group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raftlog import limits
from raftlog.errors import ClusterNotReadyError
from raftlog.protocol.cluster import ClusterStateRequest, ClusterStateResponse, ProposeRequest
from raftlog.replication.cluster_commands import ReserveBrokerId, recovered
from raftlog.types import NewTopic
from tests.server.cluster.simulated import Cluster, growing_world, on


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with growing_world(31, brokers=4) as world:
        cluster = Cluster(world)
        cluster.join(4)
        yield cluster


def known(cluster: Cluster) -> bool:
    """Whether the broker without a vote knows what a voter knows."""
    return cluster.node(4).machine.known() == cluster.node(1).machine.known()


def test_a_change_is_known_without_a_vote(cluster: Cluster) -> None:
    cluster.create()
    cluster.until(lambda: known(cluster))
    began = cluster.world.time.now
    on(cluster, 1, cluster.node(1).topics.propose(ReserveBrokerId(id=5)))
    cluster.until(lambda: known(cluster))
    assert cluster.world.time.now - began < 1.0


def test_a_broker_without_a_vote_changes_topics_and_knows_who_leads(cluster: Cluster) -> None:
    topics = [NewTopic(name, partitions=1) for name in ("a", "b")]
    cluster.admin(lambda admin: admin.create_topics(topics), broker=4)
    cluster.admin(lambda admin: admin.delete_topics(["a"]), broker=4)
    assert list(cluster.node(4).machine.topics) == ["b"]
    cluster.until(lambda: known(cluster))
    subscription = cluster.node(4).subscription
    cluster.until(lambda: subscription.leader == cluster.node(1).subscription.leader is not None)
    assert subscription.voters == cluster.node(1).subscription.voters


def test_with_another_leader_it_asks_another(cluster: Cluster) -> None:
    leader = cluster.node(4).subscription.leader
    assert leader is not None
    cluster.stop(leader)
    cluster.create(copies=2)
    other = leader % 3 + 1
    cluster.until(lambda: cluster.node(4).machine.version == cluster.node(other).machine.version)
    assert cluster.node(4).subscription.leader != leader


def test_many_changes_come_as_a_state(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLUSTER_CHANGES_KEPT_MAX", 1)
    cluster.stop(4)
    topics = [NewTopic(name, partitions=1) for name in ("a", "b", "c")]
    cluster.admin(lambda admin: admin.create_topics(topics), broker=1)
    cluster.start(4)
    cluster.until(lambda: cluster.is_in(4))
    assert sorted(cluster.node(4).machine.topics) == ["a", "b", "c"]


def test_only_brokers_with_a_vote_give_the_state_and_take_commands(cluster: Cluster) -> None:
    subscription = cluster.node(4).subscription
    response, state = on(
        cluster, 4, subscription.respond(ClusterStateRequest(version=0, wait_ms=0))
    )
    assert (response.has_vote, response.commands, state) == (False, [], [])
    with pytest.raises(ClusterNotReadyError, match="broker 4 has no vote"):
        on(cluster, 4, subscription.propose(ProposeRequest(command=b"x")))


def test_a_broker_with_a_vote_takes_no_state(cluster: Cluster) -> None:
    """It was asked for before the broker had one."""
    node = cluster.node(1)
    before = node.machine.known()
    request = ClusterStateRequest(version=node.machine.version, wait_ms=0)
    later = recovered(before, recovery="r", lost=[], unseen=5)
    response = ClusterStateResponse(
        cluster_id=node.machine.cluster_id, version=node.machine.version + 5, has_vote=True
    )
    node.subscription._take(request, response, later)
    assert node.machine.known() == before


def test_a_broker_that_stops_lets_no_request_wait(cluster: Cluster) -> None:
    began = cluster.world.time.now
    for number in (1, 2, 3):
        machine = cluster.world.brokers[number - 1]
        machine.is_kept_down = True
        machine.stop()
    cluster.until(lambda: not any(m.is_running for m in cluster.world.brokers[:3]))
    assert cluster.world.time.now - began < 3.0
