"""When a broker saves the state of the cluster, and which state it then has."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.config import TopicConfig
from raftlog.errors import ClusterNotReadyError, RaftlogError, StorageFailedError
from raftlog.replication.cluster_commands import BrokerRecord, TopicRecord, founding_state
from raftlog.replication.cluster_state import ClusterMachine
from raftlog.replication.placement import Assignment, Target, usual_copies
from raftlog.server.cluster.recovery import StateCopy
from raftlog.server.cluster.topics import raised
from raftlog.server.scheduling import Workers
from raftlog.storage import Store
from raftlog.storage.state_files import ClusterCopy
from raftlog.testing.simulator.world import World
from raftlog.types import OFFSETS_TOPIC, NewTopic
from tests.replication.samples import cluster, done, registration
from tests.server.cluster.simulated import Cluster, growing_world
from tests.server.consumer_groups.simulated import GroupCluster


class FakeStore:
    def __init__(self, saved: ClusterCopy) -> None:
        self.saved_cluster = saved
        self.error: StorageFailedError | None = None

    def save_cluster(self, copy: ClusterCopy) -> None:
        if self.error is not None:
            raise self.error
        self.saved_cluster = copy


class FakeWorkers:
    async def run(self, work: object) -> None:
        work()  # type: ignore[operator]


class Scene:
    def __init__(self, machine: ClusterMachine, saved: ClusterCopy) -> None:
        self.store = FakeStore(saved)
        self.has_vote = False
        self.voters = {1: "d1"}
        self.failed: list[StorageFailedError] = []
        self.copy = StateCopy(
            cast(Store, self.store),
            machine,
            1,
            has_vote=lambda: self.has_vote,
            voters=lambda: self.voters,
            worker=cast(Workers, FakeWorkers()),
            loop=asyncio.get_running_loop(),
            on_failed=self.failed.append,
        )

    async def poll(self) -> ClusterCopy:
        self.copy._due = 0.0
        self.copy.poll()
        await self.copy.stop()
        return self.store.saved_cluster


def test_a_broker_without_a_vote_saves_what_is_new() -> None:
    async def scene() -> None:
        machine = cluster(2)
        s = Scene(machine, ClusterCopy())
        first = await s.poll()
        assert (first.version, first.state, first.voters) == (
            machine.version,
            machine.known(),
            {1: "d1"},
        )
        assert await s.poll() is first, "nothing has changed"
        s.voters = {1: "d1", 2: "d2", 3: "d3"}
        assert len((await s.poll()).voters) == 3
        done(machine, registration(9))
        s.copy.poll()
        assert s.store.saved_cluster.version < machine.version, "not so soon after the last one"
        s.has_vote = True
        assert (await s.poll()).version < machine.version, "its journal has it"
        s.has_vote = False
        assert (await s.poll()).version == machine.version

    asyncio.run(scene())


def test_after_a_start_the_saved_state_counts_until_a_newer_one_is_known() -> None:
    async def scene() -> None:
        saved = ClusterCopy(5, founding_state("c"), {1: "d1"})
        machine = ClusterMachine()
        s = Scene(machine, saved)
        s.voters = {}
        assert s.copy.newest() is saved
        assert await s.poll() is saved
        newer = cluster(3)
        machine.restore(newer.snapshot())
        while machine.version <= 5:
            done(machine, registration(9 + machine.version))
        assert s.copy.newest() == ClusterCopy(machine.version, machine.known(), {1: "d1"})

    asyncio.run(scene())


def test_a_state_that_does_not_list_the_broker_is_not_kept() -> None:
    async def scene() -> None:
        machine = ClusterMachine()
        machine.restore(founding_state("c"))
        s = Scene(machine, ClusterCopy())
        assert (await s.poll()).version == s.copy.newest().version == 0

    asyncio.run(scene())


def test_a_disk_that_has_failed_stops_the_broker() -> None:
    async def scene() -> None:
        s = Scene(cluster(2), ClusterCopy())
        s.store.error = StorageFailedError("no")
        await s.poll()
        assert s.failed == [s.store.error]

    asyncio.run(scene())


# -- internal topics -------------------------------------------------------------------------------
#
# The topic of groups gets the replicas that it lacked when it was created.


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
