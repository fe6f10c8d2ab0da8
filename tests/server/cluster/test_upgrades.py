"""Clusters with a broker of an earlier release, and the upgrade of their protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from raftlog.errors import RefusedError
from raftlog.protocol.security import PEER_PROTOCOL_VERSION
from raftlog.testing.simulator.world import BrokerMachine, RunningBroker, World, start_broker
from raftlog.types import NewTopic
from tests.server.cluster.simulated import Cluster, on, operations


@pytest.fixture
def earlier() -> set[int]:
    """IDs of brokers that report the first version of the protocol; the test changes it."""
    return {3}


@pytest.fixture
def cluster(earlier: set[int]) -> Iterator[Cluster]:
    async def start(machine: BrokerMachine) -> RunningBroker:
        version = 1 if machine.broker_id in earlier else PEER_PROTOCOL_VERSION
        return await start_broker(machine, peer_protocol=version)

    with World(3, brokers=3, make_broker=start) as world:
        yield Cluster(world)


def create(cluster: Cluster, name: str) -> None:
    cluster.admin(lambda admin: admin.create_topics([NewTopic(name, 6, 3)]))


def names_leaders(cluster: Cluster, name: str) -> set[bool]:
    """Whether the creation named the first leaders, by the state of each broker."""
    return {bool(cluster.node(n).machine.topics[name].birth(0).boots) for n in (1, 2, 3)}


def required(cluster: Cluster) -> set[int]:
    return {cluster.node(n).machine.peer_protocol for n in (1, 2, 3)}


def upgrade(cluster: Cluster, broker: int = 1) -> int:
    return on(cluster, broker, operations(cluster, broker).upgrade_features()).peer_protocol  # type: ignore[no-any-return]


def restart(cluster: Cluster, broker: int) -> None:
    cluster.stop(broker)
    cluster.start(broker)


def test_first_leaders_are_named_once_all_brokers_support_it(
    cluster: Cluster, earlier: set[int]
) -> None:
    create(cluster, "t")
    assert required(cluster) == {1}
    assert names_leaders(cluster, "t") == {False}
    with pytest.raises(RefusedError, match="broker 3 supports version 1"):
        upgrade(cluster)

    earlier.clear()
    cluster.stop(3)
    with pytest.raises(RefusedError, match=r"brokers \[3\] are not connected"):
        upgrade(cluster)
    cluster.start(3)
    cluster.until(lambda: cluster.node(3).membership.is_in)
    cluster.until(lambda: cluster.node(1).links.is_up(3))
    brokers = cluster.node(1).machine._records.brokers
    held = brokers[3]
    brokers[3] = replace(held, boot=held.boot - 1)
    with pytest.raises(RefusedError, match="broker 3 has not registered yet"):
        upgrade(cluster)
    brokers[3] = held
    assert upgrade(cluster) == PEER_PROTOCOL_VERSION
    assert upgrade(cluster, 2) == PEER_PROTOCOL_VERSION, "it can be repeated"
    cluster.until(lambda: required(cluster) == {PEER_PROTOCOL_VERSION})
    create(cluster, "u")
    assert names_leaders(cluster, "u") == {True}
    assert names_leaders(cluster, "t") == {False}

    earlier.add(3)
    restart(cluster, 3)
    cluster.world.run_for(5)
    assert not any(cluster.node(n).links.is_up(3) for n in (1, 2)), "it would misread the state"
    assert not cluster.node(3).membership.is_in


def test_a_broker_of_an_earlier_release_is_disconnected_by_the_upgrade(
    cluster: Cluster, earlier: set[int]
) -> None:
    """As it happens if the command is committed late: after the start of such a broker."""
    create(cluster, "t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raftlog.server.cluster.operations.ClusterOperations._check_peers", quiet)
        upgrade(cluster)
    cluster.until(lambda: not any(cluster.node(n).links.is_up(3) for n in (1, 2)), limit_s=1)


def quiet(_operations: object) -> None:
    """Check nothing."""
