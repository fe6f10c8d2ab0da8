"""Groups from outside: lists that are whole, descriptions, and offsets that are set."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.client.administration import groups
from raftlog.client.cluster import Cluster
from raftlog.client.groups.coordinator import Coordinators
from raftlog.errors import (
    BrokerUnavailableError,
    CoordinatorLoadingError,
    GroupNotEmptyError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    RaftlogError,
    UnknownGroupError,
    UnknownMemberError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    CommittedPartition,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from raftlog.protocol.schema import Failure
from raftlog.types import OFFSETS_TOPIC, OffsetAndMetadata, TopicPartition
from tests.client.consumer_groups.coordinated import Coordination, share
from tests.client.test_cluster import cluster_of
from tests.client.test_fetcher import fill
from tests.client.virtual import START_MS
from tests.client.world import FakeCluster, Peer, answer_with, do_and_vanish, refuse, run
from tests.running import runs

A, B, C = (TopicPartition("t", number) for number in range(3))


def parts_of(fake: FakeCluster) -> tuple[Cluster, Coordinators]:
    cluster = cluster_of(fake)
    return cluster, Coordinators(cluster)


# -- the list


@runs(run, brokers=3)
async def test_the_list_is_put_together_from_all_coordinators(fake: FakeCluster) -> None:
    world = Coordination(fake)
    for name, coordinator in (("b", 1), ("c", 3), ("a", 2)):
        world.make(name, coordinator)
    world.groups["b"].join("m1")
    cluster = cluster_of(fake)
    found = await groups.list_groups(cluster)
    assert [(row.group, row.state, row.members, row.coordinator) for row in found] == [
        ("a", "empty", 0, 2),
        ("b", "stable", 1, 1),
        ("c", "empty", 0, 3),
    ]
    await cluster.close()


@runs(run)
async def test_before_the_first_group_nobody_is_asked(fake: FakeCluster) -> None:
    cluster = cluster_of(fake)
    assert await groups.list_groups(cluster) == []
    assert not fake.asked(ListGroupsRequest)
    await cluster.close()


@runs(run)
async def test_a_coordinator_that_is_loading_is_waited_for(fake: FakeCluster) -> None:
    world = Coordination(fake)
    world.make("a")
    world.loading[1] = 3
    cluster = cluster_of(fake)
    assert [row.group for row in await groups.list_groups(cluster)] == ["a"]
    world.loading[1] = 1_000_000
    with pytest.raises(CoordinatorLoadingError, match="broker 1 is still loading"):
        await groups.list_groups(cluster)
    await cluster.close()


@runs(run, brokers=2)
async def test_a_coordinator_that_does_not_know_yet_that_it_is_one_is_waited_for(
    fake: FakeCluster,
) -> None:
    world = Coordination(fake)
    world.make("a")
    world.make("b", 2)
    world.unaware[2] = 3
    cluster = cluster_of(fake)
    assert [row.group for row in await groups.list_groups(cluster)] == ["a", "b"]
    world.unaware[2] = 1_000_000
    with pytest.raises(LeaderNotAvailableError, match=f"broker 2 .* {OFFSETS_TOPIC}:1"):
        await groups.list_groups(cluster)
    await cluster.close()


@runs(run, brokers=2)
async def test_a_list_that_lacks_a_broker_is_an_error(fake: FakeCluster) -> None:
    world = Coordination(fake)
    world.make("a", 1)
    world.make("b", 2)
    cluster = cluster_of(fake)
    fake.kill(2)
    with pytest.raises(BrokerUnavailableError, match="broker-2"):
        await groups.list_groups(cluster)
    fake.topics[OFFSETS_TOPIC].leaders[1] = None
    with pytest.raises(LeaderNotAvailableError, match=f"{OFFSETS_TOPIC}:1"):
        await groups.list_groups(cluster)
    # Another one takes over, with its groups.
    fake.topics[OFFSETS_TOPIC].leaders[1] = 1
    world.groups["b"].coordinator = 1
    assert [row.group for row in await groups.list_groups(cluster)] == ["a", "b"]
    await cluster.close()


@runs(run, brokers=2)
async def test_a_list_made_while_a_coordinator_changes_is_made_again(fake: FakeCluster) -> None:
    world = Coordination(fake)
    world.make("a", 2)
    answer = fake.answer
    moved: list[int] = []

    def moving(broker_id: int, request: object) -> object:
        # Just as broker 1 answers without it, broker 2's group has gone there.
        found = answer(broker_id, request)  # type: ignore[arg-type]
        if request.message.__class__ is ListGroupsRequest and not moved:  # type: ignore[attr-defined]
            moved.append(broker_id)
            world.groups["a"].coordinator = 1
            fake.topics[OFFSETS_TOPIC].leaders[1] = 1
        return found

    setattr(fake, "answer", moving)  # noqa: B010 - for this fake only
    cluster = cluster_of(fake)
    assert [row.group for row in await groups.list_groups(cluster)] == ["a"]
    await cluster.close()


# -- descriptions


@runs(run)
async def test_a_description_has_members_and_every_partition(fake: FakeCluster) -> None:
    world = Coordination(fake)
    fake.create("t", 3)
    fill(fake, 10)
    group = world.make("g")
    group.join("m1", [share("t", 0)], target=[share("t", 0, 1)])
    group.join("m2", [share("t", 1)], target=[])
    group.commit(A, 4, "note")
    cluster, coordinators = parts_of(fake)
    (found,) = await groups.describe_groups(
        cluster, coordinators, ["g"], now_ms=lambda: START_MS + 2_000
    )
    assert (found.group, found.state, found.group_epoch) == ("g", "reconciling", 5)
    assert (found.assignor, found.coordinator) == ("uniform", 1)
    first, second = found.members
    assert (first.assigned, first.target) == ((A,), (A, B))
    assert (second.assigned, second.target) == ((B,), ())
    rows = [(part.partition, part.offset, part.lag, part.member_id) for part in found.partitions]
    assert rows == [(0, 4, 6, "m1"), (1, None, None, "m2"), (2, None, None, None)]
    assert (found.lag, found.lag_seconds) == (6, 2.0)
    assert found.partitions[0].metadata == "note"
    await cluster.close()


@runs(run)
async def test_a_group_without_members_keeps_its_lag(fake: FakeCluster) -> None:
    world = Coordination(fake)
    fake.create("t", 3)
    fill(fake, 10)
    world.make("g").commit(A, 3)
    cluster, coordinators = parts_of(fake)
    (found,) = await groups.describe_groups(cluster, coordinators, ["g"], now_ms=lambda: START_MS)
    assert (found.state, found.members) == ("empty", ())
    assert [(part.partition, part.lag) for part in found.partitions] == [(0, 7)]
    await cluster.close()


@runs(run)
async def test_the_end_is_asked_for_after_what_is_committed(fake: FakeCluster) -> None:
    world = Coordination(fake)
    fake.create("t", 1)
    world.make("g").commit(A, 0)
    cluster, coordinators = parts_of(fake)
    await groups.describe_groups(cluster, coordinators, ["g"], now_ms=lambda: START_MS)
    kinds = [type(message).__name__ for _, message in fake.requests]
    assert kinds.index("OffsetFetchRequest") < kinds.index("ListOffsetsRequest")
    await cluster.close()


@runs(run, brokers=2)
async def test_all_groups_are_tried_and_an_unknown_one_is_named(fake: FakeCluster) -> None:
    world = Coordination(fake)
    fake.create("t", 1)
    world.make("b", 2)
    cluster, coordinators = parts_of(fake)
    with pytest.raises(UnknownGroupError, match=r"'a'.*raftlog group list"):
        await groups.describe_groups(cluster, coordinators, ["a", "b"], now_ms=lambda: START_MS)
    await cluster.close()


@runs(run, brokers=2)
async def test_a_coordinator_that_cannot_be_reached_is_named(fake: FakeCluster) -> None:
    world = Coordination(fake)
    world.make("g", 2)
    cluster, coordinators = parts_of(fake)
    fake.kill(2)
    with pytest.raises(BrokerUnavailableError, match=r"broker 2 at broker-2:9100"):
        await groups.group_offsets(coordinators, "g")
    await cluster.close()


# -- offsets


@runs(run)
async def test_what_is_committed_reads_back(fake: FakeCluster) -> None:
    world = Coordination(fake)
    topic = fake.create("t", 2)
    cluster, coordinators = parts_of(fake)
    wanted = {B: OffsetAndMetadata(5, "note"), A: OffsetAndMetadata(7)}
    await groups.commit_offsets(cluster, coordinators, "new", wanted)
    assert world.groups["new"].topic_ids == {"t": topic.id}
    (request,) = fake.asked(OffsetCommitRequest)
    assert (request.member_id, request.member_epoch) == ("", -1)
    assert await groups.group_offsets(coordinators, "new") == {
        A: OffsetAndMetadata(7, "", 3),
        B: OffsetAndMetadata(5, "note", 3),
    }
    await groups.delete_offsets(coordinators, "new", [A])
    assert list(await groups.group_offsets(coordinators, "new")) == [B]
    with pytest.raises(UnknownGroupError, match="'old'"):
        await groups.group_offsets(coordinators, "old")
    await cluster.close()


@runs(run)
async def test_a_commit_whose_answer_is_lost_is_made_again(fake: FakeCluster) -> None:
    world = Coordination(fake)
    fake.create("t", 1)
    fake.next(apis.OFFSET_COMMIT, do_and_vanish)
    cluster, coordinators = parts_of(fake)
    await groups.commit_offsets(cluster, coordinators, "g", {A: OffsetAndMetadata(5)})
    assert world.groups["g"].offsets[A].offset == 5
    assert len(fake.asked(OffsetCommitRequest)) == 2
    await cluster.close()


@pytest.mark.parametrize("error", [UnknownTopicError, UnknownPartitionError])
@runs(run)
async def test_a_coordinator_that_has_not_heard_of_a_topic_yet_is_waited_for(
    fake: FakeCluster, *, error: type[RaftlogError]
) -> None:
    world = Coordination(fake)
    fake.create("t", 2)
    parts = [
        CommittedPartition(topic="t", partition=0, failure=Failure.of(error("never heard"))),
        CommittedPartition(topic="t", partition=1),
    ]
    fake.next(apis.OFFSET_COMMIT, answer_with(OffsetCommitResponse(partitions=parts)))
    cluster, coordinators = parts_of(fake)
    wanted = {A: OffsetAndMetadata(5), B: OffsetAndMetadata(6)}
    await groups.commit_offsets(cluster, coordinators, "g", wanted)
    assert world.groups["g"].offsets[A].offset == 5
    first, second = fake.asked(OffsetCommitRequest)
    assert first == second
    await groups.commit_offsets(cluster, coordinators, "g", {})
    await cluster.close()


@runs(run)
async def test_a_topic_that_is_deleted_meanwhile_is_not_waited_for(fake: FakeCluster) -> None:
    Coordination(fake)
    fake.create("t", 1)
    gone = Failure.of(UnknownTopicError("no topic 't'"))
    answer = OffsetCommitResponse(
        partitions=[CommittedPartition(topic="t", partition=0, failure=gone)]
    )

    def delete(peer: Peer, request: Request) -> None:
        fake.topics.pop("t", None)
        answer_with(answer)(peer, request)

    fake.next(apis.OFFSET_COMMIT, *[delete] * 9)
    cluster, coordinators = parts_of(fake)
    started = asyncio.get_running_loop().time()
    with pytest.raises(UnknownTopicError, match="group 'g': no topic 't'"):
        await groups.commit_offsets(cluster, coordinators, "g", {A: OffsetAndMetadata(5)})
    assert asyncio.get_running_loop().time() - started < 2
    await cluster.close()


@pytest.mark.parametrize("told_by", ["the whole", "the partition", "its members"])
@runs(run)
async def test_a_group_in_use_is_left_alone(fake: FakeCluster, *, told_by: str) -> None:
    world = Coordination(fake)
    fake.create("t", 1)
    group = world.make("g")
    refused = UnknownMemberError("no member ''")
    if told_by == "the whole":
        fake.next(apis.OFFSET_COMMIT, refuse(refused))
    elif told_by == "the partition":
        part = CommittedPartition(topic="t", partition=0, failure=Failure.of(refused))
        fake.next(apis.OFFSET_COMMIT, answer_with(OffsetCommitResponse(partitions=[part])))
    else:
        group.join("m1", [share("t", 0)])
    cluster, coordinators = parts_of(fake)
    with pytest.raises(GroupNotEmptyError, match=r"'g' has members.*[Ss]top its consumers"):
        await groups.commit_offsets(cluster, coordinators, "g", {A: OffsetAndMetadata(5)})
    assert not group.offsets
    await cluster.close()


@runs(run)
async def test_only_partitions_that_there_are_are_committed(fake: FakeCluster) -> None:
    Coordination(fake)
    fake.create("t", 1)
    cluster, coordinators = parts_of(fake)
    for tp, error in (
        (TopicPartition("nope", 0), UnknownTopicError),
        (TopicPartition("t", 1), UnknownPartitionError),
    ):
        with pytest.raises(error):
            await groups.commit_offsets(cluster, coordinators, "g", {tp: OffsetAndMetadata(0)})
    assert not fake.asked(OffsetCommitRequest)
    await cluster.close()


@runs(run)
async def test_the_range_of_a_partition_is_named(fake: FakeCluster) -> None:
    log = fake.create("t", 1).logs[0]
    fill(fake, 5, 5)
    log.start = 5
    cluster = cluster_of(fake)
    for offset in (5, 10):
        await groups.check_in_range(cluster, {A: OffsetAndMetadata(offset)})
    for offset in (4, 11):
        with pytest.raises(OffsetOutOfRangeError, match=f"{offset}.*t:0.*5 to 10"):
            await groups.check_in_range(cluster, {A: OffsetAndMetadata(offset)})
    await cluster.close()


# -- deleting


@runs(run, brokers=2)
async def test_groups_are_deleted_unless_they_are_in_use(fake: FakeCluster) -> None:
    world = Coordination(fake)
    for name, coordinator in (("a", 1), ("b", 2), ("c", 2)):
        world.make(name, coordinator)
    world.groups["b"].join("m1", [share("t", 0)])
    cluster, coordinators = parts_of(fake)
    with pytest.raises(GroupNotEmptyError, match="'b' has members"):
        await groups.delete_groups(coordinators, ["a", "b", "c"])
    assert list(world.groups) == ["b"]
    with pytest.raises(UnknownGroupError, match="'a'"):
        await groups.delete_groups(coordinators, ["a"])
    with pytest.raises(GroupNotEmptyError, match="t:0 is read"):
        await groups.delete_offsets(coordinators, "b", [A])
    await cluster.close()


def test_many_groups_are_asked_about_some_at_a_time() -> None:
    async def test(_fake: FakeCluster) -> None:
        at_once: list[int] = [0, 0]

        async def work(_group: str) -> int:
            at_once[0] += 1
            at_once[1] = max(at_once)
            await asyncio.sleep(1)
            at_once[0] -= 1
            return at_once[1]

        await groups.all_of([str(number) for number in range(100)], work)
        assert at_once == [0, 16]

    run(test)
