"""Leaders that are cut off from all brokers, but not from clients. In a simulated world."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from raftlog.client.aio.admin import AsyncAdmin
from raftlog.errors import RaftlogError
from raftlog.protocol import api as apis
from raftlog.protocol.fetch import ListOffsetsRequest, OffsetQuery
from raftlog.testing.simulator.process import ClientMachine
from raftlog.testing.simulator.world import World
from raftlog.types import NewTopic
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
    cluster.world.heal()
    cluster.in_sync(new, {old, new})
