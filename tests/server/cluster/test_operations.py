"""What an operator asks of a cluster: how it is, and moving leadership."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from raftlog.errors import (
    InvalidRequestError,
    LeaderNotAvailableError,
    ThrottledError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    TransferLeaderRequest,
)
from raftlog.replication.partition_state import Elect
from raftlog.server.broker import Broker
from raftlog.server.cluster.operations import BURST, INTERVAL_SECONDS, PER_SECOND, TransferRate
from raftlog.testing.simulator.world import World
from raftlog.types import TopicPartition
from tests.server.cluster.simulated import Cluster, on, operations
from tests.server.harness import finished


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with World(5, brokers=3) as world:
        yield Cluster(world)


def describe(cluster: Cluster, node: int, **facts: object) -> DescribeClusterResponse:
    """As that broker tells it; ``describe`` wants to be asked on its loop."""

    async def ask() -> DescribeClusterResponse:
        return finished(operations(cluster, node).describe(DescribeClusterRequest(**facts)))  # type: ignore[arg-type]

    return on(cluster, node, ask())


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
    assert not cluster.world.run_until(lambda: False, limit_s=2 * INTERVAL_SECONDS)
    request = TransferLeaderRequest(topic="t", partition=0)
    answer = on(cluster, 1, operations(cluster, 1).transfer_leader(request))
    assert answer.leader != to
    cluster.send(b"a")


def test_leadership_is_not_moved_again_at_once(cluster: Cluster) -> None:
    cluster.create()
    leader = cluster.leader(1)
    asked = operations(cluster, leader)
    request = TransferLeaderRequest(topic="t", partition=0)
    answer = on(cluster, leader, asked.transfer_leader(request))
    cluster.until(lambda: cluster.state(leader).leader_epoch == answer.leader_epoch)
    with pytest.raises(ThrottledError):
        on(cluster, leader, asked.transfer_leader(request))


@pytest.mark.parametrize(
    ("topic", "partition", "error"),
    [("t", 1, UnknownPartitionError), ("u", 0, UnknownTopicError)],
)
def test_what_is_not_there_cannot_be_moved(
    cluster: Cluster, topic: str, partition: int, error: type[Exception]
) -> None:
    cluster.create()
    table = cast("Broker", cluster.world.brokers[0].broker).context.topics
    cluster.until(lambda: table.is_complete)
    request = TransferLeaderRequest(topic=topic, partition=partition)
    with pytest.raises(error):
        on(cluster, 1, operations(cluster, 1).transfer_leader(request))


def test_who_cannot_lead_is_not_given_the_lead(cluster: Cluster) -> None:
    cluster.create(copies=1)
    leader = cluster.leader(1)
    for to in (leader, leader % 3 + 1, 9):
        request = TransferLeaderRequest(topic="t", partition=0, to=to)
        with pytest.raises(InvalidRequestError, match="was not transferred"):
            on(cluster, leader, operations(cluster, leader).transfer_leader(request))
    request = TransferLeaderRequest(topic="t", partition=0)
    with pytest.raises(InvalidRequestError, match="it has no other replica"):
        on(cluster, leader, operations(cluster, leader).transfer_leader(request))


def test_who_has_no_vote_says_whom_to_ask(cluster: Cluster) -> None:
    cluster.create(copies=1)
    leader = cluster.leader(1)
    request = TransferLeaderRequest(topic="t", partition=0)
    other = leader % 3 + 1
    with pytest.raises(InvalidRequestError, match="is not a voter of t:0"):
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
    with pytest.raises(LeaderNotAvailableError, match="Try again"):
        on(cluster, leader, mine.transfer_leader(TransferLeaderRequest(topic="t", partition=0)))


# -- transfers -------------------------------------------------------------------------------------
#
# Leadership is moved only so often, of each partition and of all.


def admitted(rate: TransferRate, partition: int, now: float) -> bool:
    try:
        rate.admit(TopicPartition("t", partition), now)
    except ThrottledError:
        return False
    return True


def test_a_partition_is_moved_once_in_an_interval() -> None:
    rate = TransferRate()
    times = [100.0, 100.1, 100.0 + INTERVAL_SECONDS - 0.1, 100.0 + INTERVAL_SECONDS]
    assert [admitted(rate, 0, now) for now in times] == [True, False, False, True]
    assert admitted(rate, 1, 100.0 + INTERVAL_SECONDS)


def test_all_of_them_have_a_rate() -> None:
    rate = TransferRate()
    count = sum(admitted(rate, number, 50 + number / 100) for number in range(1_000))
    assert count == pytest.approx(BURST + 10 * PER_SECOND, abs=1)


def test_what_is_refused_is_not_counted() -> None:
    rate = TransferRate()
    assert sum(admitted(rate, number, 10.0) for number in range(100)) == BURST
    assert admitted(rate, 7, 10.0 + INTERVAL_SECONDS)
