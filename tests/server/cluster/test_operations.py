"""What an operator asks of a cluster: how it is, and moving leadership."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

import pytest

from raftlog.errors import (
    BrokerUnavailableError,
    ClusterNotReadyError,
    CommitUnknownError,
    InvalidPartitionsError,
    InvalidRequestError,
    LeaderNotAvailableError,
    RaftlogError,
    ThrottledError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    TransferLeaderRequest,
)
from raftlog.protocol.peer import EncodedPartitionState
from raftlog.replication.cluster_commands import CreateTopic, DeleteTopic, decode_command
from raftlog.replication.partition_state import Elect
from raftlog.server.broker import Broker
from raftlog.server.cluster.membership import CLUSTER_GROUP
from raftlog.server.cluster.operations import BURST, INTERVAL_SECONDS, PER_SECOND, TransferRate
from raftlog.server.cluster.topics import LEADERS_TIMEOUT_SECONDS, ClusterTopics
from raftlog.testing.simulator.world import World
from raftlog.types import TopicPartition
from tests.running import runs
from tests.server.cluster.fake import state_of
from tests.server.cluster.hosting import Hosting, hosting
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
    noted = describe(cluster, leader)
    assert noted.cluster_id == cluster.node(1).machine.cluster_id
    assert noted.controller == operations(cluster, 1).controller()
    assert [(b.id, b.live, b.fenced) for b in noted.brokers] == [
        (1, True, False), (2, True, False), (3, True, False)
    ]  # fmt: skip
    (partition,) = noted.partitions
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


def test_who_has_no_vote_forwards_the_transfer(cluster: Cluster) -> None:
    cluster.create(copies=1)
    leader = cluster.leader(1)
    request = TransferLeaderRequest(topic="t", partition=0)
    other = leader % 3 + 1
    with pytest.raises(InvalidRequestError, match="it has no other replica"):
        on(cluster, other, operations(cluster, other).transfer_leader(request))
    cluster.stop(leader)
    cluster.until(lambda: not cluster.node(other).liveness.is_linked(leader))
    with pytest.raises(BrokerUnavailableError, match=rf"none of brokers \[{leader}\]"):
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


# -- administration --------------------------------------------------------------------------------
#
# Changes to topics: agreed on, followed here, and only then answered.


class Asking:
    """What is asked of broker 1, whose topics are real."""

    def __init__(self, h: Hosting, *, default_replication_factor: int = 0) -> None:
        self.h, self.plane = h, h.s.plane
        self.plane.machines[CLUSTER_GROUP] = h.s.machine
        ids = iter(range(1, 100))
        self.topics = ClusterTopics(
            h.s.machine,
            h.s.plane.as_plane,
            h.partitions,
            new_id=lambda: f"T{next(ids)}",
            loop=h.s.loop,
            default_replication_factor=default_replication_factor,
        )

    async def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin ``work``, up to where it waits."""
        task = asyncio.ensure_future(work)
        await self.h.s.come_to_rest()
        return task

    def create(self, name: str = "t", **facts: Any) -> Coroutine[Any, Any, Any]:
        facts = {"partitions": 1, "replication_factor": 3, "config": {}, **facts}
        return self.topics.create(name, **facts)

    async def there(self, name: str = "t") -> Any:
        """A topic that is there and led."""
        task = await self.begin(self.create(name))
        self.plane.agree()
        await self.h.s.come_to_rest()
        await self.h.elect(1, self.h.s.machine.topics[name].id)
        return await task


def asking(test: Callable[[Asking], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def run(h: Hosting) -> None:
        await test(Asking(h, **options))

    hosting(run)


@runs(asking)
async def test_a_topic_is_created_when_it_is_led(a: Asking) -> None:
    task = await a.begin(a.create(config={"retention.ms": "5"}))
    assert not task.done()
    record = a.plane.agree().value
    await a.h.s.come_to_rest()
    assert a.h.host().log.config.retention_ms == 5
    await asyncio.sleep(1)
    assert not task.done(), "nobody leads it"
    await a.h.elect(2)
    assert await task == record


@runs(asking)
async def test_long_settings_are_stored_in_their_shortest_text(a: Asking) -> None:
    """Each may have 4 KiB, and no broker starts with a catalog of more than 64 MiB."""
    long = {
        "retention.ms": " " * 4_000 + "5",
        "cleanup.policy": ",".join(["delete"] * 500),
        "min.cleanable.dirty.ratio": "0.20",
    }
    short = {"retention.ms": "5", "cleanup.policy": "delete", "min.cleanable.dirty.ratio": "0.20"}
    task = await a.begin(a.create(config=long))
    assert a.plane.agree().value.overrides == short
    await a.h.s.come_to_rest()
    await a.h.elect(1)
    await task
    changes = {"segment.bytes": " " * 4_000 + "1000000", "retention.ms": None}
    task = await a.begin(a.topics.alter("t", changes))
    del short["retention.ms"]
    assert a.plane.agree().value.overrides == {**short, "segment.bytes": "1000000"}
    await a.h.s.come_to_rest()
    await task


@runs(asking)
async def test_a_topic_without_a_vote_here_is_created_when_its_leader_is_known(a: Asking) -> None:
    for name in ("t", "u", "v"):
        task = await a.begin(a.create(name, replication_factor=1))
        record = a.plane.agree().value
        await a.h.s.come_to_rest()
        (replica,) = record.partitions[0].replicas
        if replica != 1:
            break
        await a.h.elect(1, record.id)
        await task
    await asyncio.sleep(1)
    assert not task.done(), "no broker has sent the state"
    led = state_of(replica, epoch=1).encode()
    a.h.state_broadcast.receive([EncodedPartitionState(record.id, 0, 1, led)])
    assert await task == record


@runs(asking)
async def test_a_topic_that_nobody_leads_is_answered_after_a_while(a: Asking) -> None:
    task = await a.begin(a.create())
    a.plane.agree()
    await asyncio.sleep(LEADERS_TIMEOUT_SECONDS * 1.1)
    assert task.done()
    assert task.result().name == "t"


@runs(asking)
async def test_what_the_cluster_refuses_is_refused(a: Asking) -> None:
    await a.there()
    task = await a.begin(a.create())
    a.plane.agree()
    with pytest.raises(TopicExistsError):
        await task
    task = await a.begin(a.create("u", replication_factor=4))
    a.plane.agree()
    with pytest.raises(InvalidPartitionsError):
        await task


@pytest.mark.parametrize("applied", [True, False])
@runs(asking)
async def test_a_creation_that_nobody_knows_the_outcome_of_is_made_once(
    a: Asking, *, applied: bool
) -> None:
    task = await a.begin(a.create())
    a.plane.lose(applied=applied)
    await a.h.s.come_to_rest()
    a.plane.agree()
    await a.h.s.come_to_rest()
    topic_id = "T1" if applied else "T2"
    await a.h.elect(1, topic_id)
    assert (await task).id == topic_id
    assert list(a.h.s.machine.topics) == ["t"]


@runs(asking)
async def test_a_creation_that_is_repeated_brings_no_deleted_topic_back(a: Asking) -> None:
    """A broker that was down would take its old copies for those of the new topic."""
    task = await a.begin(a.create())
    deletion = await a.begin(a.topics.delete("t", "T1"))
    a.plane.lose(applied=True)
    a.plane.agree()
    await deletion
    a.plane.agree()
    await a.h.s.come_to_rest()
    await a.h.elect(1, "T2")
    assert (await task).id == "T2"


@runs(asking)
async def test_what_stays_unknown_is_told_as_such(a: Asking) -> None:
    task = await a.begin(a.create())
    for _ in range(2):
        a.plane.lose()
        await a.h.s.come_to_rest()
    with pytest.raises(CommitUnknownError):
        await task


@runs(asking)
async def test_without_a_cluster_nothing_is_changed_and_that_is_said(a: Asking) -> None:
    task = await a.begin(a.create())
    a.plane.refuse()
    with pytest.raises(ClusterNotReadyError):
        await task


@runs(asking)
async def test_a_plan_changes_nothing(a: Asking) -> None:
    plan = await a.topics.plan("t", partitions=2, replication_factor=3, config={})
    assert len(plan.partitions) == 2
    with pytest.raises(InvalidPartitionsError):
        await a.topics.plan("t", partitions=1, replication_factor=9, config={})
    assert not a.h.s.machine.topics
    assert not a.plane.proposals


@pytest.mark.parametrize(("asked", "made"), [(0, 2), (1, 1), (3, 3)])
@runs(asking, default_replication_factor=2)
async def test_how_many_copies_is_the_clusters_default(a: Asking, *, asked: int, made: int) -> None:
    plan = await a.topics.plan("t", partitions=1, replication_factor=asked, config={})
    assert plan.replication_factor == made


@runs(asking)
async def test_a_deletion_is_of_the_topic_that_is_known_here_and_no_later_one(a: Asking) -> None:
    record = await a.there()
    task = await a.begin(a.topics.delete("t", None))
    deletion = decode_command(a.plane.proposals[0].command)
    assert deletion == DeleteTopic(name="t", topic_id=record.id)
    a.h.s.machine.apply(DeleteTopic(name="t").encode())
    a.h.s.command(CreateTopic(name="t", topic_id="T9", partitions=1, replication_factor=1))
    a.plane.agree()
    with pytest.raises(UnknownTopicError):
        await task
    assert a.h.s.machine.topics["t"].id == "T9"


@runs(asking)
async def test_a_deletion_by_a_broker_that_knows_no_such_topic_deletes_none(a: Asking) -> None:
    """It was asked again elsewhere, and a topic of that name was made, before this one decided."""
    task = await a.begin(a.topics.delete("t", None))
    a.h.s.command(CreateTopic(name="t", topic_id="T9", partitions=1, replication_factor=1))
    a.plane.agree()
    with pytest.raises(ClusterNotReadyError, match="Delete it again"):
        await task
    assert a.h.s.machine.topics["t"].id == "T9", "clients ask again, and it is known then"
    task = await a.begin(a.topics.delete("u", None))
    a.plane.agree()
    with pytest.raises(UnknownTopicError):
        await task


@runs(asking)
async def test_a_deletion_of_a_topic_by_its_id_deletes_no_later_one_of_its_name(a: Asking) -> None:
    """A request may arrive after its client has deleted the topic and created it again."""
    record = await a.there()
    task = await a.begin(a.topics.delete("t", "T0"))
    a.plane.agree()
    with pytest.raises(UnknownTopicError, match="not T0"):
        await task
    assert a.h.s.machine.topics["t"] == record


@runs(asking)
async def test_a_deleted_topic_is_gone_here_when_that_is_answered(a: Asking) -> None:
    record = await a.there()
    task = await a.begin(a.topics.delete("t", None))
    a.plane.agree()
    assert await task == ("t", record.id)
    assert "t" not in a.h.topics
    assert a.h.on_disk() == []


@runs(asking)
async def test_settings_are_changed_when_the_log_goes_by_them(a: Asking) -> None:
    await a.there()
    task = await a.begin(a.topics.alter("t", {"retention.ms": "7"}))
    a.plane.agree()
    record = await task
    assert record.overrides == {"retention.ms": "7"}
    assert a.h.host().log.config.retention_ms == 7


@runs(asking)
async def test_more_partitions_are_there_when_they_are_led(a: Asking) -> None:
    await a.there()
    task = await a.begin(a.topics.add_partitions("t", 2))
    a.plane.agree()
    await asyncio.sleep(1)
    assert not task.done()
    await a.h.elect(1, partition=1)
    assert len((await task).partitions) == 2


@runs(asking)
async def test_a_topic_that_is_deleted_meanwhile_is_said_to_be(a: Asking) -> None:
    await a.there()
    task = await a.begin(a.topics.alter("t", {"retention.ms": "7"}))
    a.plane.agree()
    a.h.s.machine.apply(DeleteTopic(name="t").encode())
    with pytest.raises(RaftlogError, match="deleted during the request"):
        await task
