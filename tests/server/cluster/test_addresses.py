"""Which brokers a broker connects to: registered ones, and others that may know more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raftlog.testing.simulator.observer import node_of
from tests.server.cluster.simulated import Cluster, growing_world


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with growing_world(41, brokers=6) as world:
        yield Cluster(world)


def test_a_broker_that_was_down_during_all_changes_is_found_by_the_others(
    cluster: Cluster,
) -> None:
    """Broker 3 knows brokers 1 and 2 only, which are gone: it learns from those that connect."""
    cluster.stop(3)
    cluster.join(4, 5, 6)
    for leaving in (1, 2):
        cluster.until(lambda: len(cluster.node(4).subscription.voters) >= 4)
        cluster.decommission(leaving, by=4)
    cluster.start(3)
    cluster.until(lambda: cluster.is_in(3))
    cluster.until(lambda: cluster.node(3)._addresses.brokers == [3, 4, 5, 6])
    assert cluster.node(3).machine.known() == cluster.node(4).machine.known()


def test_a_founder_on_a_new_disk_creates_no_cluster_after_the_other_founders_have_left(
    cluster: Cluster,
) -> None:
    cluster.join(4, 5, 6)
    for leaving in (1, 2):
        cluster.until(lambda: len(cluster.node(4).subscription.voters) >= 4)
        cluster.decommission(leaving, by=4)
    known = cluster.node(4).machine.cluster_id
    cluster.lose(3)
    cluster.start(3)
    cluster.until(lambda: cluster.is_in(3))
    node = node_of(cluster.world.brokers[2])
    assert node is not None
    assert node.machine.cluster_id == known
