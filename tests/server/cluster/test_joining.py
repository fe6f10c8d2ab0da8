"""A broker joins a running cluster, by the addresses of some of its brokers, and finds it again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from raftlog.config import Address
from raftlog.testing.simulator.observer import node_of
from raftlog.testing.simulator.operators import joining_config
from raftlog.testing.simulator.world import (
    BrokerMachine,
    RunningBroker,
    World,
    broker_config,
    start_broker,
)
from tests.server.cluster.simulated import Cluster, growing_world


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with growing_world(11, brokers=5) as world:
        yield Cluster(world)


def test_it_gets_the_state_registers_stores_and_serves(cluster: Cluster) -> None:
    cluster.create(copies=3)
    cluster.join(4)
    node = cluster.node(4)
    assert not node.subscription.has_vote, "three vote in a cluster of four"
    assert node.machine.known() == cluster.node(1).machine.known()
    cluster.until(lambda: node._store.identity.cluster_id == node.machine.cluster_id)
    cluster.until(lambda: len(cluster.node(2).other_brokers()) == 3)
    topic = node.machine.topics["t"]
    cluster.until(lambda: node.partitions.state_of(topic.id, 0) is not None)
    cluster.send(b"a")
    assert cluster.read(1) == [b"a"]


def test_it_returns_without_being_given_any_address(cluster: Cluster) -> None:
    """By the addresses that it has saved: ``joining_config`` gives none at every other start."""
    cluster.join(4)
    cluster.until(lambda: len(cluster.node(4)._addresses._saved) == 4)
    cluster.stop(4)
    cluster.start(4)
    machine = cluster.world.brokers[3]
    assert machine.boots == 2
    cluster.until(lambda: cluster.is_in(4))


def test_the_cluster_grows_to_five_voters_and_all_return(cluster: Cluster) -> None:
    cluster.create(copies=3)
    cluster.join(4, 5)
    cluster.until(lambda: all(len(cluster.node(n).subscription.voters) == 5 for n in range(1, 6)))
    cluster.send(b"a")
    for number in range(1, 6):
        cluster.stop(number)
    cluster.start(1, 2, 3)
    cluster.until(lambda: all(map(cluster.is_in, (1, 2, 3))))
    assert len(cluster.node(1).subscription.voters) == 5, "the journal counts, not the setting"
    assert cluster.read(1) == [b"a"]


def test_a_broker_that_lost_its_disk_joins_again(cluster: Cluster) -> None:
    cluster.join(4, 5)
    cluster.until(lambda: len(cluster.node(4).subscription.voters) == 5)
    before = cluster.node(4).me.directory_id
    cluster.lose(4)
    cluster.start(4)
    cluster.until(lambda: cluster.is_in(4))
    after = cluster.node(4).me.directory_id
    assert after != before
    cluster.until(lambda: cluster.node(1).subscription.voters.get(4) == after)


def refusals(caplog: pytest.LogCaptureFixture, seconds: float, **settings: object) -> list[str]:
    """What is logged when a fourth broker with other settings tries to join."""

    async def start(machine: BrokerMachine) -> RunningBroker:
        config = joining_config(machine, broker_config(machine), 3)
        if machine.broker_id == 4:
            config = replace(config, **settings)  # type: ignore[arg-type]
        return await start_broker(machine, config=config)

    with caplog.at_level(logging.WARNING), World(12, brokers=4, make_broker=start) as world:
        late = world.brokers[3]
        late.is_outside = late.is_kept_down = True
        cluster = Cluster(world)
        late.is_outside = late.is_kept_down = False
        late.start()
        world.run_for(seconds)
        node = node_of(late)
        assert node is not None
        assert node.machine.version == 0
        assert 4 not in cluster.node(1).machine.brokers
        assert not node._topics.is_complete
    return [record.getMessage() for record in caplog.records]


def test_another_secret_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    said = refusals(caplog, 5, cluster_secret="something else entirely")
    assert any("no broker of the cluster found" in line and "secret" in line for line in said)


def test_an_id_in_use_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    said = refusals(caplog, 5, id=2)
    assert any("id 2 is in use" in line or "have the ID 2" in line for line in said)


def test_addresses_without_a_broker_are_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    said = refusals(caplog, 5, join=(Address("broker-9", 9100),))
    found = [line for line in said if "no broker of the cluster found" in line]
    assert len(found) == 1, "the same reason is logged once"


def test_a_directory_of_another_cluster_is_refused(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.join(4)
    cluster.until(lambda: bool(cluster.node(4)._store.identity.cluster_id))
    cluster.stop(4)
    disk = cluster.world.brokers[3].disk
    with growing_world(13, brokers=4) as world, caplog.at_level(logging.ERROR):
        other = Cluster(world)
        world.brokers[3].disk = disk
        world.brokers[3].is_outside = world.brokers[3].is_kept_down = False
        world.brokers[3].start()
        world.run_for(5)
        assert 4 not in other.node(1).machine.brokers
    assert any("belongs to cluster" in record.getMessage() for record in caplog.records)
