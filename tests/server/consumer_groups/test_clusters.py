"""Consumer groups in a cluster: failover, brokers that are cut off, power cuts, late brokers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from raftlog.client.aio.clients import AsyncConsumer
from raftlog.errors import (
    NotCoordinatorError,
    OutcomeUnknownError,
    RaftlogError,
    RetriableError,
)
from raftlog.protocol import api as apis
from raftlog.protocol import records
from raftlog.server.groups.coordinator import PATIENCE_SECONDS
from raftlog.testing.simulator.world import (
    BrokerMachine,
    ClientMachine,
    RunningBroker,
    World,
    start_broker,
)
from raftlog.types import OFFSETS_TOPIC, TopicPartition
from tests.server.consumer_groups.simulated import GROUP, GroupCluster

FETCH = records.OffsetFetchRequest(group=GROUP)


@pytest.fixture
def cluster() -> Iterator[GroupCluster]:
    with World(1, brokers=3) as world:
        found = GroupCluster(world)
        found.create(partitions=4)
        yield found


def other_than(*brokers: int) -> int:
    return next(number for number in (1, 2, 3) if number not in brokers)


def test_any_broker_says_who_coordinates(cluster: GroupCluster) -> None:
    found = {cluster.find(broker=number) for number in (1, 2, 3)}
    assert len(found) == 1
    topic = cluster.node(1).machine.topics[OFFSETS_TOPIC]
    assert (topic.replication_factor, len(topic.partitions)) == (3, 16)
    assert topic.config.is_compacted


def test_who_does_not_coordinate_says_who_does(cluster: GroupCluster) -> None:
    coordinator = cluster.find()
    error = cluster.ask_once(other_than(coordinator), apis.OFFSET_FETCH, FETCH)
    assert isinstance(error, NotCoordinatorError)
    assert f"broker {coordinator} coordinates it" in str(error)


def test_members_and_offsets_outlive_their_coordinator(cluster: GroupCluster) -> None:
    joined = cluster.join()
    cluster.commit(5, member="m", epoch=joined.member_epoch)
    coordinator = cluster.find()
    cluster.all_in_sync(coordinator)
    cluster.world.brokers[coordinator - 1].is_kept_down = True
    cluster.world.brokers[coordinator - 1].kill()
    again = cluster.beat("m", joined.member_epoch, sequence=2, owned=joined.assignment)
    assert (again.member_epoch, again.assignment) == (joined.member_epoch, joined.assignment)
    cluster.commit(6, member="m", epoch=joined.member_epoch)
    assert cluster.committed() == 6
    assert cluster.find() != coordinator


def test_an_orderly_stop_hands_groups_over(cluster: GroupCluster) -> None:
    joined = cluster.join()
    cluster.commit(5, member="m", epoch=joined.member_epoch)
    cluster.stop(cluster.find())
    assert cluster.committed() == 5
    assert [member.member_id for member in cluster.described().members] == ["m"]


def test_a_member_that_is_not_heard_of_is_out(cluster: GroupCluster) -> None:
    cluster.join("m", session_timeout_ms=6_000)
    cluster.join("n", session_timeout_ms=60_000)
    cluster.world.run_for(7)
    assert [member.member_id for member in cluster.described().members] == ["n"]


def test_a_session_begins_anew_with_a_new_coordinator(cluster: GroupCluster) -> None:
    cluster.join("m", session_timeout_ms=20_000)
    coordinator = cluster.find()
    cluster.all_in_sync(coordinator)
    cluster.world.run_for(15)
    cluster.world.brokers[coordinator - 1].kill()
    cluster.world.run_for(10)
    assert [member.member_id for member in cluster.described().members] == ["m"]
    cluster.world.run_for(25)
    assert cluster.described().members == []


def test_members_with_short_sessions_outlive_a_broker_that_is_gone(cluster: GroupCluster) -> None:
    """Nothing is committed before it has left the in-sync replicas, which takes longer."""
    coordinator = cluster.find()
    cluster.all_in_sync(coordinator)
    gone = other_than(coordinator)
    lost: list[list[TopicPartition]] = []
    seconds: list[float] = []

    async def run(machine: ClientMachine) -> None:
        consumer = AsyncConsumer(
            cluster.world.bootstrap,
            host=machine.host(),
            group=GROUP,
            session_timeout_ms=2_000,
            auto_commit=False,
        )
        async with consumer:
            await consumer.subscribe(["t"], on_lost=lost.append)
            while not await consumer.assignment():
                await consumer.poll(100)
            where = TopicPartition("t", 0)
            await consumer.commit({where: 0})
            # Not right before a heartbeat: one that waits all the time costs the session.
            await asyncio.sleep(0.1)
            cluster.world.brokers[gone - 1].pause()
            for _ in range(30):
                begun = asyncio.get_running_loop().time()
                waiting = consumer.commit_async({where: 0})
                while not waiting.done():
                    await consumer.poll(50)
                with contextlib.suppress(RetriableError, OutcomeUnknownError):
                    await waiting
                seconds.append(asyncio.get_running_loop().time() - begun)

    cluster.client(run)
    assert max(seconds) > 2, "it has taken longer than a session"
    assert lost == []


def test_who_was_cut_off_tells_no_old_offset(cluster: GroupCluster) -> None:
    """It does not know that there is another coordinator, which has a newer offset."""
    cluster.commit(5)
    old = cluster.find()
    cluster.all_in_sync(old)
    others = [f"broker-{number}" for number in (1, 2, 3) if number != old]
    cluster.world.network.partition([f"broker-{old}"], others)
    answers = [cluster.ask_once(old, apis.OFFSET_FETCH, FETCH)]
    commit = records.OffsetCommitRequest(
        group=GROUP, offsets=[records.OffsetToCommit(topic="t", partition=0, offset=4)]
    )
    refused = cluster.ask_once(old, apis.OFFSET_COMMIT, commit)
    assert isinstance(refused, RaftlogError)
    new = other_than(old)
    cluster.until(lambda: leader_at(cluster, new) not in (None, old))
    cluster.ask_via(new, 7)
    answers += [cluster.ask_once(old, apis.OFFSET_FETCH, FETCH) for _ in range(5)]
    assert all(isinstance(answer, RetriableError) for answer in answers), answers
    cluster.world.heal()
    assert cluster.committed() == 7


def leader_at(cluster: GroupCluster, node: int) -> int | None:
    state = cluster.state_of_group(node)
    return None if state is None else state.leader


def test_members_of_who_was_cut_off_are_sent_away(cluster: GroupCluster) -> None:
    """Not at once; but long before their sessions are over."""
    joined = cluster.join()
    old = cluster.find()
    cluster.all_in_sync(old)
    others = [f"broker-{number}" for number in (1, 2, 3) if number != old]
    cluster.world.network.partition([f"broker-{old}"], others)
    beat = records.GroupHeartbeatRequest(
        group=GROUP,
        member_id="m",
        member_epoch=joined.member_epoch,
        sequence=9,
        topics=["t"],
        owned=joined.assignment,
    )
    cluster.world.run_for(11)
    assert isinstance(cluster.ask_once(old, apis.GROUP_HEARTBEAT, beat), NotCoordinatorError)


def test_offsets_go_with_their_topic(cluster: GroupCluster) -> None:
    cluster.commit(5)
    cluster.admin(lambda admin: admin.delete_topics(["t"]))
    cluster.create(partitions=4)
    cluster.until(lambda: all("t" in cluster.node(n).machine.topics for n in (1, 2, 3)))
    assert cluster.committed() == -1


@pytest.mark.parametrize("how", ["kill", "power"])
def test_all_brokers_at_once(cluster: GroupCluster, how: str) -> None:
    joined = cluster.join()
    cluster.commit(5, member="m", epoch=joined.member_epoch)
    for machine in cluster.world.brokers:
        if how == "kill":
            machine.kill()
        else:
            machine.power_cut()
    for machine in cluster.world.brokers:
        machine.power_on()
        machine.start()
    cluster.until(cluster.world.is_up)
    assert cluster.committed() == 5
    assert [member.member_id for member in cluster.described().members] == ["m"]


async def start_without_third(machine: BrokerMachine) -> RunningBroker:
    """Founds a cluster without broker 3."""
    absent = () if machine.broker_id == 3 else (3,)
    return await start_broker(machine, bootstrap_without=absent)


def two_of_three(world: World) -> GroupCluster:
    """Broker 3 has yet to come."""
    world.brokers[2].is_kept_down = True
    for machine in world.brokers[:2]:
        machine.start()
    cluster = GroupCluster.__new__(GroupCluster)
    cluster.world, cluster._clients = world, 0
    cluster.until(lambda: all(machine.broker for machine in world.brokers[:2]))
    cluster.until(lambda: all(cluster.node(n).membership.is_in for n in (1, 2)))
    world.run_for(1)
    return cluster


def test_a_topic_for_groups_is_made_when_all_are_there() -> None:
    """Else it would have too few copies for ever."""
    with World(6, brokers=3, make_broker=start_without_third) as world:
        cluster = two_of_three(world)
        find = records.FindCoordinatorsRequest(groups=[GROUP])
        (found,) = cluster.ask_once(1, apis.FIND_COORDINATORS, find).coordinators
        assert isinstance(found.failure.to_error(), RetriableError)
        assert "1 broker of the cluster is not up" in found.failure.message
        world.run_for(PATIENCE_SECONDS / 2)
        cluster.start(3)
        cluster.until(lambda: len(cluster.node(1).machine.live()) == 3)
        cluster.find(broker=1)
        assert cluster.node(1).machine.topics[OFFSETS_TOPIC].replication_factor == 3


def test_a_broker_that_never_comes_is_not_waited_for_for_ever() -> None:
    with World(7, brokers=3, make_broker=start_without_third) as world:
        cluster = two_of_three(world)
        assert cluster.find(broker=1) in (1, 2)
        assert cluster.node(1).machine.topics[OFFSETS_TOPIC].replication_factor == 2
