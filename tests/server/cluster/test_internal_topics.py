"""The topic of groups gets the replicas that it lacked when it was created."""

from __future__ import annotations

import pytest

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.config import TopicConfig
from raftlog.errors import ClusterNotReadyError, RaftlogError
from raftlog.replication.cluster_commands import BrokerRecord, TopicRecord
from raftlog.replication.placement import Assignment, Target, usual_copies
from raftlog.server.cluster.internal_topics import raised
from raftlog.testing.simulator.world import World
from raftlog.types import OFFSETS_TOPIC, NewTopic
from tests.server.cluster.simulated import Cluster, growing_world
from tests.server.consumer_groups.simulated import GroupCluster


def broker(number: int, rack: str = "", *, draining: bool = False) -> BrokerRecord:
    return BrokerRecord(number, "h", 1, rack, f"d{number}", 1, 1, fenced=False, draining=draining)


def topic(*assignments: Assignment, factor: int = 1) -> TopicRecord:
    return TopicRecord("t", "id", factor, assignments, {}, TopicConfig(), ())


def copies(cluster: GroupCluster, name: str = OFFSETS_TOPIC) -> set[int]:
    return {len(part.replicas) for part in cluster.node(1).machine.topics[name].partitions}


def has_committed(cluster: GroupCluster) -> bool:
    try:
        cluster.commit(42)
    except ClusterNotReadyError:
        return False
    return True


def test_a_broker_that_is_down_at_the_first_commit_gets_its_replicas_later() -> None:
    with World(4, brokers=3) as world:
        cluster = GroupCluster(world)
        cluster.create(partitions=4)
        cluster.stop(3)
        while not has_committed(cluster):
            world.run_for(2)
        assert copies(cluster) == {2}
        cluster.start(3)
        cluster.until(lambda: copies(cluster) == {3})
        assert cluster.committed() == 42


def test_brokers_that_join_get_replicas_of_groups() -> None:
    with growing_world(7, brokers=3, founders=1) as world:
        cluster = GroupCluster(world)
        cluster.admin(lambda admin: admin.create_topics([NewTopic("t", 1, 1)]))
        cluster.commit(42)
        assert copies(cluster) == {1}
        Cluster.join(cluster, 2, 3)
        cluster.until(lambda: copies(cluster) == {3})
        assert cluster.committed() == 42


def test_a_topic_without_a_replication_factor_waits_for_a_broker_that_is_down() -> None:
    with World(4, brokers=3) as world:
        cluster = GroupCluster(world)
        cluster.stop(3)
        cluster.until(lambda: len(cluster.node(1).machine.placeable()) == 2)
        new = NewTopic("t", 1)

        async def refused(admin: AsyncAdmin) -> RaftlogError | None:
            try:
                await admin.create_topics([new])
            except RaftlogError as error:
                return error
            return None

        assert "needs 3 brokers" in str(cluster.admin(refused))
        cluster.admin(lambda admin: admin.create_topics([NewTopic("two", 1, 2)]))
        cluster.start(3)
        cluster.admin(lambda admin: admin.create_topics([new]))
        assert (copies(cluster, "t"), copies(cluster, "two")) == ({3}, {2})


@pytest.mark.parametrize(
    ("draining", "founders", "wanted"),
    [
        ([False], 0, 1),
        ([False, False], 0, 2),
        ([False] * 5, 0, 3),
        ([False], 3, 3),
        ([False, False, True], 0, 2),
    ],
)
def test_brokers_of_the_cluster_count_whether_they_are_up_or_not(
    draining: list[bool], founders: int, wanted: int
) -> None:
    members = [broker(number, draining=each) for number, each in enumerate(draining)]
    assert usual_copies(members, founders=founders) == wanted


def test_new_replicas_go_to_other_racks_and_to_those_with_the_fewest() -> None:
    brokers = [broker(1, "a"), broker(2, "a"), broker(3, "b"), broker(4, "b")]
    command = raised(topic(Assignment((1,), version=5), Assignment((1,))), brokers, 2)
    assert command is not None
    assert command.replication_factor == 2
    assert [(each.partition, each.replicas, each.version) for each in command.moves] == [
        (0, (1, 3), 5),
        (1, (1, 4), 0),
    ]
    command = raised(topic(Assignment((1,)), Assignment((2,))), [broker(n) for n in (1, 2, 3)], 2)
    assert command is not None
    assert [each.replicas for each in command.moves] == [(1, 3), (2, 1)]


def test_a_topic_that_has_enough_or_is_moving_gets_none() -> None:
    brokers = [broker(1), broker(2), broker(3)]
    assert raised(topic(Assignment((1, 2)), factor=2), brokers, 2) is None
    assert raised(topic(Assignment((1, 2, 3)), factor=3), brokers, 2) is None
    moving = Assignment((1,), target=Target((2,), (1,)))
    assert raised(topic(moving), brokers, 3) is None
