"""Requests to the leaders of many partitions: split, joined, retried, refused."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.client.requests import delete_records, list_offsets, try_offsets
from raftlog.errors import (
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    RaftlogError,
    RequestTimedOutError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    DeletedRecords,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetAnswer,
)
from raftlog.protocol.schema import Failure
from raftlog.types import TopicPartition
from tests.client.test_cluster import cluster_of
from tests.client.test_fetcher import fill
from tests.client.world import FakeCluster, Peer, answer_with, do_and_vanish, run, vanish
from tests.running import runs


def now() -> float:
    return asyncio.get_running_loop().time()


PARTITIONS = [TopicPartition("t", number) for number in range(3)]


@runs(run, brokers=2)
async def test_each_leader_is_asked_once_for_its_partitions(fake: FakeCluster) -> None:
    fake.create("t", 3, leaders=[1, 2, 1])
    fill(fake, 5, partition=2)
    cluster = cluster_of(fake)
    found = await list_offsets(cluster, dict.fromkeys(PARTITIONS, "latest"))
    assert {tp: answer.offset for tp, answer in found.items()} == dict(
        zip(PARTITIONS, [0, 0, 5], strict=True)
    )
    assert sorted(
        (broker, len(message.queries))
        for broker, message in fake.requests
        if isinstance(message, ListOffsetsRequest)
    ) == [(1, 2), (2, 1)]
    assert await list_offsets(cluster, {}) == {}
    await cluster.close()


@runs(run, brokers=2)
async def test_only_what_failed_is_asked_for_again(fake: FakeCluster) -> None:
    topic = fake.create("t", 3)
    cluster = cluster_of(fake)
    await cluster.topic("t")
    topic.leaders[1] = 2
    found = await list_offsets(cluster, dict.fromkeys(PARTITIONS, "earliest"))
    assert set(found) == set(PARTITIONS)
    asked = [[query.partition for query in m.queries] for m in fake.asked(ListOffsetsRequest)]
    assert asked[0] == [0, 1, 2]
    assert all(again == [1] for again in asked[1:])
    await cluster.close()


@pytest.mark.parametrize("fault", [vanish, do_and_vanish])
@runs(run)
async def test_a_lost_connection_is_got_over(fake: FakeCluster, *, fault: object) -> None:
    fake.create("t", 3)
    cluster = cluster_of(fake)
    fake.next(apis.LIST_OFFSETS, fault)  # type: ignore[arg-type]
    assert len(await list_offsets(cluster, dict.fromkeys(PARTITIONS, 0))) == 3
    await cluster.close()


@runs(run)
async def test_a_partition_without_a_leader_is_waited_for_and_then_told_of(
    fake: FakeCluster,
) -> None:
    topic = fake.create("t", 3, leaders=[1, None, 1])
    cluster = cluster_of(fake)
    asyncio.get_running_loop().call_later(5, topic.leaders.__setitem__, 1, 1)
    assert len(await list_offsets(cluster, dict.fromkeys(PARTITIONS, "latest"))) == 3
    topic.leaders[1] = None
    await cluster.refresh()
    with pytest.raises(LeaderNotAvailableError, match="t:1"):
        await list_offsets(cluster, dict.fromkeys(PARTITIONS, "latest"))
    await cluster.close()


@runs(run)
async def test_what_does_not_exist_is_told_at_once(fake: FakeCluster) -> None:
    fake.create("t", 3)
    cluster = cluster_of(fake)
    with pytest.raises(UnknownTopicError):
        await list_offsets(cluster, {TopicPartition("u", 0): "latest"})
    with pytest.raises(UnknownPartitionError):
        await list_offsets(cluster, {TopicPartition("t", 3): "latest"})
    assert asyncio.get_running_loop().time() == 1_000
    await cluster.close()


@runs(run)
async def test_a_refusal_is_raised_after_all_were_tried(fake: FakeCluster) -> None:
    fake.create("t", 2)
    cluster = cluster_of(fake)
    answers = [
        DeletedRecords(
            topic="t", partition=0, failure=Failure.of(OffsetOutOfRangeError("t:0: too far"))
        ),
        DeletedRecords(topic="t", partition=1, log_start_offset=3),
    ]
    fake.next(apis.DELETE_RECORDS, answer_with(DeleteRecordsResponse(partitions=answers)))
    with pytest.raises(OffsetOutOfRangeError, match="too far"):
        await delete_records(cluster, {PARTITIONS[0]: 9, PARTITIONS[1]: 3})
    fake.next(apis.DELETE_RECORDS, answer_with(DeleteRecordsResponse(partitions=answers[1:])))
    found = await delete_records(cluster, {PARTITIONS[1]: 3})
    assert found[PARTITIONS[1]].log_start_offset == 3
    await cluster.close()


@runs(run, brokers=3)
async def test_a_leader_that_stops_is_left_for_its_successor(fake: FakeCluster) -> None:
    topic = fake.create("t", 3)
    fill(fake, 5)
    cluster = cluster_of(fake)
    await cluster.topic("t")
    await cluster.connection(1)
    fake.pause(1)
    asyncio.get_running_loop().call_later(1.5, topic.leaders.__setitem__, 0, 2)
    start = now()
    found = await list_offsets(cluster, {PARTITIONS[0]: "latest"})
    assert found[PARTITIONS[0]].offset == 5
    assert now() - start < 4, "not the request timeout of 30 s"
    fake.resume(1)
    await cluster.close()


@runs(run, brokers=3)
async def test_a_silent_leader_is_left_as_soon_as_its_successor_is_known(fake: FakeCluster) -> None:
    """Metadata that was asked for a moment earlier may tell (simulator seed 923020)."""
    topic = fake.create("t")
    fill(fake, 5)
    cluster = cluster_of(fake)
    await cluster.topic("t")
    await cluster.connection(1)
    fake.pause(1)
    cluster.mark_suspect(1)
    start = now()
    asking = asyncio.ensure_future(list_offsets(cluster, {PARTITIONS[0]: "latest"}))
    await asyncio.sleep(0.1)
    topic.leaders[0] = 2
    await cluster.refresh()
    assert (await asking)[PARTITIONS[0]].offset == 5
    assert now() - start < 0.5, "not a second of silence"
    fake.resume(1)
    await cluster.close()


@runs(run, brokers=3)
async def test_a_leader_that_is_cut_off_and_says_so_is_left_for_its_successor(
    fake: FakeCluster,
) -> None:
    """It goes on telling everyone that it leads (simulator seed 900003)."""
    topic = fake.create("t")
    fill(fake, 5)
    nobody = LeaderNotAvailableError("t:0: brokers 2, 3 do not confirm that this broker leads")
    answer = OffsetAnswer(topic="t", partition=0, failure=Failure.of(nobody))

    def confirmed_by_others(peer: Peer, request: Request) -> None:
        if peer.broker_id == 1:
            answer_with(ListOffsetsResponse(answers=[answer]))(peer, request)
        else:
            message, _ = fake.answer(peer.broker_id, request)
            answer_with(message)(peer, request)

    fake.always[apis.LIST_OFFSETS] = confirmed_by_others
    cluster = cluster_of(fake)
    await cluster.topic("t")
    await cluster.connection(1)
    fake.cut_off(1)
    topic.leaders[0] = 2
    start = now()
    found = await list_offsets(cluster, {PARTITIONS[0]: "latest"})
    assert found[PARTITIONS[0]].offset == 5
    assert now() - start < 2, "not the request timeout of 30 s"
    await cluster.close()


@runs(run)
async def test_the_epoch_that_is_known_goes_with_the_question(fake: FakeCluster) -> None:
    topic = fake.create("t")
    cluster = cluster_of(fake)
    await cluster.topic("t")
    topic.leaders[0] = 1
    await list_offsets(cluster, {PARTITIONS[0]: "latest"})
    epochs = [m.queries[0].leader_epoch for m in fake.asked(ListOffsetsRequest)]
    assert epochs == [3, 4], "the older one is fenced"
    await cluster.close()


@runs(run)
async def test_one_partition_without_a_leader_does_not_hold_up_the_others(
    fake: FakeCluster,
) -> None:
    fake.create("t", 3, leaders=[None, 1, 1])
    cluster = cluster_of(fake)
    with pytest.raises(LeaderNotAvailableError, match="t:0"):
        await list_offsets(cluster, dict.fromkeys(PARTITIONS, "latest"))
    asked = [[query.partition for query in m.queries] for m in fake.asked(ListOffsetsRequest)]
    assert asked == [[1, 2]]
    await cluster.close()


@pytest.mark.parametrize("trouble", ["dies", "stops", "is unknown"])
@runs(run, brokers=3)
async def test_the_end_is_the_leaders_to_say_unless_any_replica_will_do(
    fake: FakeCluster, *, trouble: str
) -> None:
    topic = fake.create("t", 3)
    fill(fake, 5)
    topic.known_ends = {1: 4, 2: 4, 3: 3}
    cluster = cluster_of(fake)
    await cluster.topic("t")
    await cluster.connection(1)
    if trouble == "dies":
        fake.kill(1)
    elif trouble == "stops":
        fake.pause(1)
    else:
        topic.leaders[0] = None
        await cluster.refresh()
    start = now()
    with pytest.raises(RaftlogError, match=r"broker|t:0"):
        await list_offsets(cluster, {PARTITIONS[0]: "latest"})
    assert now() - start > 25, "it is waited for"
    start = now()
    found = await list_offsets(cluster, {PARTITIONS[0]: "latest"}, any_replica=True)
    assert found[PARTITIONS[0]].offset == 4
    assert now() - start < 4
    with pytest.raises(RaftlogError):
        await list_offsets(cluster, {PARTITIONS[0]: 1}, any_replica=True)
    await cluster.close()


@runs(run)
async def test_a_broker_that_does_not_know_the_topic_yet_is_asked_again(fake: FakeCluster) -> None:
    fake.create("t")
    cluster = cluster_of(fake)
    behind = OffsetAnswer(
        topic="t", partition=0, failure=Failure.of(UnknownTopicError("no topic t"))
    )
    fake.next(apis.LIST_OFFSETS, *[answer_with(ListOffsetsResponse(answers=[behind]))] * 2)
    found = await list_offsets(cluster, {PARTITIONS[0]: "latest"})
    assert found[PARTITIONS[0]].offset == 0
    await cluster.close()


@runs(run, brokers=2)
async def test_trying_tells_of_each_partition_what_can_be_known_soon(fake: FakeCluster) -> None:
    fake.create("t", 3, leaders=[1, None, 2])
    fill(fake, 5)
    fake.pause(2)
    cluster = cluster_of(fake)
    await cluster.topic("t")
    started = now()
    found = await try_offsets(cluster, dict.fromkeys(PARTITIONS, "latest"), patience_ms=3_000)
    assert now() - started < 6
    first, second, third = (found[tp] for tp in PARTITIONS)
    assert isinstance(first, OffsetAnswer)
    assert first.offset == 5
    assert isinstance(second, LeaderNotAvailableError)
    assert "t:1 has no leader" in str(second)
    assert isinstance(third, RequestTimedOutError)
    assert "broker 2" in str(third)
    # One that comes back within the time is heard.
    fake.resume(2)
    fake.topics["t"].leaders[1] = 1
    found = await try_offsets(cluster, dict.fromkeys(PARTITIONS, "latest"), patience_ms=3_000)
    assert all(isinstance(answer, OffsetAnswer) for answer in found.values())
    assert await try_offsets(cluster, {}, patience_ms=3_000) == {}
    await cluster.close()
