"""Leaders that are cut off or die, and what clients may be told after. In a simulated world."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.errors import (
    LeaderNotAvailableError,
    NotLeaderError,
    OffsetOutOfRangeError,
    RaftlogError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import FetchPartition, FetchRequest, ListOffsetsRequest, OffsetQuery
from raftlog.server.cluster.elections import group_id
from raftlog.server.cluster.membership import CLUSTER_GROUP
from raftlog.testing.simulator.world import ClientMachine, World
from raftlog.types import NewTopic, TopicPartition
from tests.server.cluster.simulated import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with World(11, brokers=3) as world:
        yield Cluster(world)


def ask_once(cluster: Cluster, number: int, at: str | int) -> Any:
    """What that very broker answers about ``t:0``, or its error."""
    address = cluster.world.brokers[number - 1].address
    query = OffsetQuery(topic="t", partition=0, at=at, leader_epoch=-1)  # type: ignore[arg-type]

    async def run(machine: ClientMachine) -> Any:
        async with AsyncAdmin(bootstrap=str(address), host=machine.host()) as admin:
            connection = await admin._cluster.connection_to(address)
            asking = connection.start(
                apis.LIST_OFFSETS, ListOffsetsRequest(queries=[query]), timeout_ms=20_000
            )
            (answer,) = (await asking).message.answers
            return answer.offset if answer.failure is None else answer.failure.to_error()

    return cluster.client(run)


def fetch_once(cluster: Cluster, number: int, offset: int) -> RaftlogError | None:
    """The error of that very broker when a client fetches from ``offset`` of ``t:0``."""
    address = cluster.world.brokers[number - 1].address
    part = FetchPartition(topic="t", partition=0, offset=offset, leader_epoch=-1, bytes_max=1_000)
    fetch = FetchRequest(wait_ms_max=0, bytes_min=0, bytes_max=1_000, partitions=[part])

    async def run(machine: ClientMachine) -> RaftlogError | None:
        async with AsyncAdmin(bootstrap=str(address), host=machine.host()) as admin:
            connection = await admin._cluster.connection_to(address)
            answer = await connection.start(apis.FETCH, fetch, timeout_ms=20_000)
            failures = [part.failure for part in answer.message.partitions if part.failure]
            return failures[0].to_error() if failures else None

    return cluster.client(run)


def alone_in_sync(cluster: Cluster) -> tuple[int, int, int]:
    """A leader that is the whole ISR, the member of the ELR, which is down, and the witness."""
    topic = NewTopic("t", 1, 2, {"min.insync.replicas": "2"})
    cluster.admin(lambda admin: admin.create_topics([topic]))
    leader = cluster.leader(1)
    (member,) = set(cluster.state(1).replicas) - {leader}
    (witness,) = cluster.state(1).witnesses
    cluster.in_sync(leader, {leader, member})
    cluster.send(b"a", b"b", b"c")
    cluster.stop(member)
    cluster.until(lambda: set(cluster.state(leader).elr) == {member})
    return leader, member, witness


def test_a_leader_alone_in_sync_answers_while_a_majority_hears_it(cluster: Cluster) -> None:
    """The member of the ELR cannot say whether it follows; the group says who leads."""
    leader, _, _ = alone_in_sync(cluster)
    assert ask_once(cluster, leader, "latest") == 3
    assert ask_once(cluster, leader, 0) == 0


def test_a_leader_alone_in_sync_that_is_cut_off_names_no_end(cluster: Cluster) -> None:
    """Its successor comes from the ELR, and has committed more."""
    old, new, witness = alone_in_sync(cluster)
    for other in (new, witness):
        cluster.world.network.cut(f"broker-{old}", f"broker-{other}")
    cluster.start(new)
    cluster.until(lambda: cluster.state(witness).leader == new)
    lower = {"min.insync.replicas": "1"}
    cluster.admin(lambda admin: admin.alter_topic("t", lower), broker=new)
    cluster.send(b"d")
    assert ask_once(cluster, new, "latest") == 4
    answers = [ask_once(cluster, old, at) for at in ("latest", "earliest", 0, 1 << 41)]
    assert all(isinstance(answer, RaftlogError) for answer in answers), answers
    # A consumer that has read the record at 3 from the new leader, and knows the old one still.
    assert isinstance(fetch_once(cluster, old, 4), LeaderNotAvailableError)
    assert isinstance(fetch_once(cluster, new, 5), OffsetOutOfRangeError)
    cluster.world.heal()
    cluster.in_sync(new, {old, new})


def test_a_damaged_copy_names_no_end(cluster: Cluster) -> None:
    """What is good of it is read until another broker leads, which may have more."""
    leader, _, _ = alone_in_sync(cluster)
    topic = cluster.node(leader).machine.topics["t"]
    host = cluster.node(leader).partitions.hosted[group_id(topic.id, 0)].host
    assert host is not None
    host.log.note_damage("found by a test", offset=1)
    cluster.until(lambda: host.leadership is None)
    assert fetch_once(cluster, leader, 0) is None
    for beyond in (4, 1 << 41):
        assert isinstance(fetch_once(cluster, leader, beyond), NotLeaderError)


def test_a_leader_that_only_the_arbiter_reaches_is_followed_by_one_that_can_commit() -> None:
    """Its link to the broker that decides who leads is up, and all others are down: it is there,
    and nothing could be committed for as long as that lasts.
    """
    with World(12, brokers=5) as world:
        cluster = Cluster(world)
        cluster.create(partitions=12)
        ids = range(1, 6)
        cluster.until(lambda: all(cluster.leader(1, p) for p in range(12)))
        topic = cluster.node(1).machine.topics["t"]
        controller = next(n for n in ids if cluster.node(n).plane.leads(CLUSTER_GROUP))
        plane = cluster.node(controller).plane
        chosen = [
            (p, group_id(topic.id, p))
            for p in range(12)
            if controller in cluster.state(1, p).witnesses
        ]
        cluster.until(lambda: any(plane.leads(group) for _, group in chosen))
        p, group = next((p, group) for p, group in chosen if plane.leads(group))
        leader = cluster.leader(1, p)
        for other in set(ids) - {controller, leader}:
            world.network.cut(f"broker-{leader}", f"broker-{other}")
        cluster.until(lambda: set(cluster.state(controller, p).isr) == {leader})
        assert plane.leads(group)
        assert plane.leads(CLUSTER_GROUP)
        cluster.until(lambda: leader not in cluster.state(controller, p).isr)
        cluster.until(lambda: len(cluster.state(controller, p).isr) == 2)


def delete(cluster: Cluster, before: int) -> int:
    deleting = {TopicPartition("t", 0): before}
    found = cluster.admin(lambda admin: admin.delete_records(deleting))
    return found[TopicPartition("t", 0)]


@pytest.mark.parametrize("how", ["kill", "power"])
def test_deleted_records_do_not_return_with_the_next_leader(cluster: Cluster, how: str) -> None:
    cluster.create()
    cluster.send(*(b"%d" % number for number in range(10)))
    leader = cluster.leader(1)
    cluster.in_sync(leader, {1, 2, 3})
    assert delete(cluster, 8) == 8
    machine = cluster.world.brokers[leader - 1]
    machine.is_kept_down = True
    if how == "kill":
        machine.kill()
    else:
        machine.power_cut()
    new = next(number for number in (1, 2, 3) if number != leader)
    cluster.until(lambda: cluster.state(new).leader not in (None, leader))
    assert cluster.read(2) == [b"8", b"9"]


def test_a_deletion_goes_on_when_a_replica_that_holds_it_up_has_left(cluster: Cluster) -> None:
    cluster.create()
    cluster.send(b"a", b"b", b"c")
    leader = cluster.leader(1)
    cluster.in_sync(leader, {1, 2, 3})
    gone = next(number for number in (1, 2, 3) if number != leader)
    cluster.world.brokers[gone - 1].pause()
    assert delete(cluster, 2) == 2
    assert gone not in cluster.state(leader).isr
    cluster.world.brokers[gone - 1].resume()
    cluster.in_sync(leader, {1, 2, 3})
    assert ask_once(cluster, leader, "earliest") == 2
