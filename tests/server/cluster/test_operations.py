"""What an operator asks of a cluster: how it is, moving leadership, and the way out of a loss."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raftlog.errors import (
    InvalidRequestError,
    LeaderNotAvailableError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    RecoverClusterRequest,
    RecoverClusterResponse,
    TransferLeaderRequest,
)
from raftlog.replication.commands import Elect
from raftlog.server.broker import Broker
from raftlog.server.cluster.membership import CLUSTER_GROUP
from raftlog.server.operations import Operations
from raftlog.testing.simulator.world import World
from tests.server.cluster.simulated import Cluster, T

FORCED = 1_000  # generations that a forced one is ahead


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with World(5, brokers=3) as world:
        yield Cluster(world)


def operations(cluster: Cluster, node: int) -> Operations:
    broker = cluster.world.brokers[node - 1].broker
    assert isinstance(broker, Broker)
    return broker.context.operations


def on(cluster: Cluster, node: int, work: object) -> T:  # type: ignore[type-var]
    """What a coroutine gives, or raises, on the loop of that broker."""
    loop = cluster.world.brokers[node - 1].loop
    task = loop.create_task(work)  # type: ignore[arg-type]
    cluster.until(task.done)
    result: T = task.result()
    return result


def describe(cluster: Cluster, node: int, **facts: object) -> DescribeClusterResponse:
    """As that broker tells it; ``describe`` wants to be asked on its loop."""

    async def ask() -> DescribeClusterResponse:
        return operations(cluster, node).describe(DescribeClusterRequest(**facts))  # type: ignore[arg-type]

    return on(cluster, node, ask())


def recover(cluster: Cluster, node: int, **facts: object) -> RecoverClusterResponse:
    request = RecoverClusterRequest(**facts)  # type: ignore[arg-type]
    return on(cluster, node, operations(cluster, node).recover(request))


# -- how it is


def test_it_describes_brokers_and_partitions(cluster: Cluster) -> None:
    cluster.create()
    cluster.send(b"a")
    leader = cluster.leader(1)
    told = describe(cluster, leader)
    assert told.cluster_id == cluster.node(1).machine.cluster_id
    assert told.controller == operations(cluster, 1).controller()
    assert [(b.id, b.live, b.fenced) for b in told.brokers] == [
        (1, True, False), (2, True, False), (3, True, False)
    ]  # fmt: skip
    (partition,) = told.partitions
    assert (partition.leader, partition.isr) == (leader, [1, 2, 3])
    assert partition.high_watermark == 1
    replicas = {replica.broker: replica for replica in partition.replica_status}
    assert set(replicas) == {1, 2, 3}
    assert all(replica.in_isr and replica.durable_end_offset == 1 for replica in replicas.values())
    assert describe(cluster, leader, include_partitions=False).partitions == []
    assert describe(cluster, leader, topics=["u"]).partitions == []


def test_a_follower_tells_of_its_own_copy(cluster: Cluster) -> None:
    cluster.create()
    cluster.send(b"a")
    other = cluster.leader(1) % 3 + 1
    (partition,) = describe(cluster, other).partitions
    (replica,) = partition.replica_status
    assert (replica.broker, replica.log_end_offset, replica.lag_ms) == (other, 1, -1)


def test_a_broker_that_is_gone_is_not_live_and_in_time_fenced(cluster: Cluster) -> None:
    machine = cluster.world.brokers[2]
    machine.is_kept_down = True
    machine.kill()
    cluster.until(lambda: not describe(cluster, 1).brokers[2].live, limit_s=5)
    cluster.until(lambda: describe(cluster, 1).brokers[2].fenced, limit_s=10)


# -- moving leadership


def test_leadership_moves_to_who_is_named_or_to_the_next(cluster: Cluster) -> None:
    cluster.create()
    leader = cluster.leader(1)
    to = leader % 3 + 1
    request = TransferLeaderRequest(topic="t", partition=0, to=to)
    answer = on(cluster, leader, operations(cluster, leader).transfer_leader(request))
    assert answer.leader == to
    cluster.until(lambda: cluster.state(leader).leader_epoch == answer.leader_epoch)
    assert cluster.state(leader).leader == to
    request = TransferLeaderRequest(topic="t", partition=0)
    answer = on(cluster, 1, operations(cluster, 1).transfer_leader(request))
    assert answer.leader != to
    cluster.send(b"a")


@pytest.mark.parametrize(
    ("topic", "partition", "error"),
    [("t", 1, UnknownPartitionError), ("u", 0, UnknownTopicError)],
)
def test_what_is_not_there_cannot_be_moved(
    cluster: Cluster, topic: str, partition: int, error: type[Exception]
) -> None:
    cluster.create()
    request = TransferLeaderRequest(topic=topic, partition=partition)
    with pytest.raises(error):
        on(cluster, 1, operations(cluster, 1).transfer_leader(request))


def test_who_cannot_lead_is_not_given_the_lead(cluster: Cluster) -> None:
    cluster.create(copies=1)
    leader = cluster.leader(1)
    for to in (leader, leader % 3 + 1, 9):
        request = TransferLeaderRequest(topic="t", partition=0, to=to)
        with pytest.raises(InvalidRequestError, match="stays where it is"):
            on(cluster, leader, operations(cluster, leader).transfer_leader(request))
    request = TransferLeaderRequest(topic="t", partition=0)
    with pytest.raises(InvalidRequestError, match="it has no other replica"):
        on(cluster, leader, operations(cluster, leader).transfer_leader(request))


def test_who_has_no_vote_says_whom_to_ask(cluster: Cluster) -> None:
    cluster.create(copies=1)
    leader = cluster.leader(1)
    request = TransferLeaderRequest(topic="t", partition=0)
    other = leader % 3 + 1
    with pytest.raises(InvalidRequestError, match="has no vote on t:0"):
        on(cluster, other, operations(cluster, other).transfer_leader(request))


def test_a_state_that_is_an_old_one_moves_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create()
    leader = cluster.leader(1)
    state = cluster.state(leader)
    other = leader % 3 + 1
    late = Elect(state.version - 1, other, state.isr[other], 1)
    mine = operations(cluster, leader)
    monkeypatch.setattr(mine, "_election", lambda _member, _to: late)
    with pytest.raises(LeaderNotAvailableError, match="try again"):
        on(cluster, leader, mine.transfer_leader(TransferLeaderRequest(topic="t", partition=0)))


# -- the way out of a loss


def generations(cluster: Cluster, node: int) -> list[int]:
    plane = cluster.node(node).plane
    groups = [CLUSTER_GROUP, *cluster.node(node).partitions.members]
    return [plane.status(group).generation for group in groups]


def test_nothing_is_forced_while_there_is_a_majority(cluster: Cluster) -> None:
    cluster.create()
    cluster.send(b"a")
    before = generations(cluster, 1)
    told = recover(cluster, 1)
    assert (told.partitions, told.cluster_note) == ([], "")
    machine = cluster.world.brokers[2]
    machine.is_kept_down = True
    machine.kill()
    cluster.world.run_for(5)
    told = recover(cluster, 1)
    assert (told.partitions, told.cluster_note) == ([], "")
    assert generations(cluster, 1) == before


@pytest.mark.parametrize("survivor", ["leader", "follower"])
def test_the_last_of_three_goes_on_with_all_that_was_acknowledged(
    cluster: Cluster, survivor: str
) -> None:
    cluster.create()
    values = [b"%d" % number for number in range(20)]
    cluster.send(*values)
    leader = cluster.leader(1)
    left = leader if survivor == "leader" else leader % 3 + 1
    gone = {1, 2, 3} - {left}
    cluster.lose(*gone)
    cluster.world.run_for(5)
    told = recover(cluster, left)
    assert f"broker {left} votes alone" in told.cluster_note
    (partition,) = told.partitions
    assert partition.failure is None
    assert partition.leader == left
    assert partition.log_end_offset == 20
    assert "min.insync.replicas of t is 1 now" in partition.note
    assert set(cluster.node(left).plane.status(CLUSTER_GROUP).voters) == {left}
    cluster.send(b"alone")
    assert cluster.read(21) == [*values, b"alone"]
    # Those that were lost come back with nothing, under the same ids.
    cluster.start(*gone)
    cluster.in_sync(left, {1, 2, 3})
    topic = cluster.node(left).machine.topics["t"].id
    for group in (CLUSTER_GROUP, f"{topic}/0"):
        cluster.until(
            lambda group=group: set(cluster.node(left).plane.status(group).voters) == {1, 2, 3}  # type: ignore[misc]
        )
    cluster.send(b"together")
    # The survivor may go now: the others have everything.
    cluster.world.brokers[left - 1].is_kept_down = True
    cluster.world.brokers[left - 1].kill()
    assert cluster.read(22) == [*values, b"alone", b"together"]


def test_recovering_at_once_waits_until_it_is_known_who_is_gone(cluster: Cluster) -> None:
    cluster.create()
    cluster.send(b"a")
    left = cluster.leader(1) % 3 + 1
    cluster.lose(*({1, 2, 3} - {left}))
    cluster.until(lambda: not cluster.node(left).liveness.is_linked(left % 3 + 1))
    cluster.until(lambda: not cluster.node(left).liveness.is_linked((left + 1) % 3 + 1))
    (partition,) = recover(cluster, left).partitions
    assert partition.leader == left
    assert cluster.state(left).leader == left
    cluster.send(b"b")
    assert cluster.read(2) == [b"a", b"b"]


def test_a_second_time_there_is_nothing_left_to_do(cluster: Cluster) -> None:
    cluster.create()
    cluster.lose(2, 3)
    cluster.world.run_for(5)
    recover(cluster, 1)
    before = generations(cluster, 1)
    assert min(before) >= FORCED
    told = recover(cluster, 1)
    assert (told.partitions, told.cluster_note) == ([], "")
    assert generations(cluster, 1) == before


def test_only_the_topics_that_are_named(cluster: Cluster) -> None:
    cluster.create()
    cluster.lose(2, 3)
    cluster.world.run_for(5)
    told = recover(cluster, 1, topics=["u"])
    assert told.partitions == []
    assert told.cluster_note != ""


def test_who_has_lost_its_own_disk_recovers_nothing(cluster: Cluster) -> None:
    """What it would go on from is nothing, and those who come back would take that over."""
    cluster.create()
    cluster.send(b"a")
    for number in (1, 2, 3):
        cluster.world.brokers[number - 1].is_kept_down = True
        cluster.world.brokers[number - 1].kill()
    cluster.world.brokers[0].wipe()
    cluster.start(1)
    cluster.world.run_for(2)
    before = cluster.node(1).plane.status(CLUSTER_GROUP).generation
    with pytest.raises(InvalidRequestError, match="has no vote on cluster"):
        recover(cluster, 1)
    assert cluster.node(1).plane.status(CLUSTER_GROUP).generation == before
    cluster.start(2, 3)
    cluster.in_sync(2, {1, 2, 3})
    assert cluster.read(1) == [b"a"]


def test_the_last_one_may_have_been_started_again(cluster: Cluster) -> None:
    """Then it knows of nothing that was agreed on, until it may count on itself alone."""
    cluster.create(partitions=3)
    cluster.send(b"a")
    cluster.world.run_for(1)
    for number in (1, 2, 3):
        cluster.world.brokers[number - 1].is_kept_down = True
        cluster.world.brokers[number - 1].kill()
    cluster.lose(2, 3)
    cluster.start(1)
    cluster.world.run_for(5)
    told = recover(cluster, 1)
    assert [(part.partition, part.leader, part.failure) for part in told.partitions] == [
        (number, 1, None) for number in range(3)
    ]
    cluster.send(b"b")
    assert cluster.read(2) == [b"a", b"b"]


def unclean(cluster: Cluster) -> int:
    """A partition whose only member in sync is lost; who is left."""
    cluster.create(copies=2)
    cluster.send(b"a")
    leader = cluster.leader(1)
    (other,) = set(cluster.state(leader).replicas) - {leader}
    machine = cluster.world.brokers[other - 1]
    machine.is_kept_down = True
    machine.kill()
    cluster.in_sync(leader, {leader})
    cluster.send(b"only the leader has this")
    cluster.lose(leader)
    cluster.start(other)
    cluster.world.run_for(5)
    return other


def test_without_a_replica_in_sync_it_says_what_would_be_lost_and_does_nothing(
    cluster: Cluster,
) -> None:
    left = unclean(cluster)
    assert cluster.state(left).leader != left
    (partition,) = recover(cluster, left).partitions
    assert "no replica in sync is left: repeat with --accept-loss" in partition.note
    assert cluster.state(left).leader != left


def test_with_the_operators_word_it_goes_on_from_what_is_left(cluster: Cluster) -> None:
    left = unclean(cluster)
    (partition,) = recover(cluster, left, accept_loss=True).partitions
    assert partition.leader == left
    assert "what it lacks is lost" in partition.note
    cluster.send(b"b")
    assert cluster.read(2) == [b"a", b"b"]
