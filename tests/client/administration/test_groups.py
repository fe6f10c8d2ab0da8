"""Lag in offsets and seconds: never negative, and what is unknown is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from raftlog.client.administration.groups import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    PartitionLag,
    group_description,
    group_listing,
    oldest_unread,
    partition_lags,
    readers,
    subscribed,
)
from raftlog.errors import NotLeaderError
from raftlog.protocol import api as apis
from raftlog.protocol import records
from raftlog.protocol.records import FetchedOffset, FetchRequest
from raftlog.record.compaction import Rewriter, open_original
from raftlog.types import TopicPartition
from tests.client.samples import stored_batch
from tests.client.test_cluster import cluster_of
from tests.client.test_fetcher import fill
from tests.client.virtual import START_MS
from tests.client.world import FakeCluster, refuse, run
from tests.running import runs

A, B, C = (TopicPartition("t", number) for number in range(3))
NOW_MS = START_MS + 60_000


def committed(tp: TopicPartition, offset: int, **more: Any) -> FetchedOffset:
    return FetchedOffset(topic=tp.topic, partition=tp.partition, offset=offset, **more)


async def lags_of(
    fake: FakeCluster,
    offsets: Sequence[FetchedOffset],
    others: Sequence[TopicPartition] = (),
    *,
    now_ms: int = NOW_MS,
) -> dict[TopicPartition, PartitionLag]:
    cluster = cluster_of(fake)
    found = await partition_lags(cluster, offsets, others, {A: "m1"}, now_ms=now_ms)
    await cluster.close()
    return {TopicPartition(lag.topic, lag.partition): lag for lag in found}


@runs(run, brokers=2)
async def test_lag_is_what_is_left_and_the_age_of_its_first_record(fake: FakeCluster) -> None:
    fake.create("t", 3, leaders=[1, 2, 2])
    fill(fake, 10, 10)
    fill(fake, 4, partition=1)
    found = await lags_of(
        fake, [committed(A, 12, metadata="note", leader_epoch=3), committed(B, 4)], [C]
    )
    assert found[A] == PartitionLag(
        *("t", 0, 12, 0, 20, 8),
        lag_seconds=59.99,  # the record's batch was written at START_MS + 10
        leader_epoch=3,
        metadata="note",
        member_id="m1",
    )
    assert (found[B].lag, found[B].lag_seconds, found[B].member_id) == (0, 0.0, None)
    assert (found[C].offset, found[C].lag, found[C].lag_seconds) == (None, None, None)
    assert (found[C].log_start_offset, found[C].log_end_offset) == (0, 0)
    (fetch,) = fake.asked(FetchRequest)  # nothing is read where nothing is left
    assert [(part.partition, part.offset) for part in fetch.partitions] == [(0, 12)]
    assert fetch.wait_ms_max == 0


@pytest.mark.parametrize(
    ("offset", "lag", "problem"),
    [
        (5, 10, "out of range: below the log start by 5"),
        (25, 0, "out of range: beyond the end by 5"),
    ],
)
@runs(run)
async def test_an_offset_out_of_range_is_told(
    fake: FakeCluster, *, offset: int, lag: int, problem: str
) -> None:
    log = fake.create("t", 1).logs[0]
    fill(fake, 10, 10)
    log.start = 10
    found = (await lags_of(fake, [committed(A, offset)]))[A]
    assert (found.lag, found.lag_seconds, found.problem) == (lag, None, problem)
    assert not fake.asked(FetchRequest)


@runs(run)
async def test_a_record_from_the_future_has_no_negative_age(fake: FakeCluster) -> None:
    fake.create("t", 1)
    fill(fake, 10)
    found = await lags_of(fake, [committed(A, 0)], now_ms=START_MS - 5_000)
    assert found[A].lag_seconds == 0.0


@runs(run)
async def test_what_is_gone_is_told_beside_the_others(fake: FakeCluster) -> None:
    fake.create("t", 1)
    fill(fake, 10)
    gone, beyond = TopicPartition("gone", 0), TopicPartition("t", 7)
    found = await lags_of(fake, [committed(A, 9), committed(gone, 3), committed(beyond, 1)])
    assert found[A].lag == 1
    assert (found[gone].offset, found[gone].lag) == (3, None)
    assert found[gone].problem == "topic 'gone' does not exist"
    assert found[beyond].problem == "the topic has only 1 partition"


@runs(run)
async def test_a_partition_without_a_leader_holds_up_no_other(fake: FakeCluster) -> None:
    fake.create("t", 2, leaders=[1, None])
    fill(fake, 10)
    found = await lags_of(fake, [committed(A, 4), committed(B, 4)])
    assert (found[A].lag, found[A].problem) == (6, "")
    assert (found[B].lag, found[B].log_end_offset) == (None, -1)
    assert "no leader" in found[B].problem


@runs(run)
async def test_without_the_record_its_age_is_unknown_and_the_lag_is_not(fake: FakeCluster) -> None:
    fake.create("t", 1)
    fill(fake, 10)
    fake.next(apis.FETCH, refuse(NotLeaderError("not me")))
    found = (await lags_of(fake, [committed(A, 4)]))[A]
    assert (found.lag, found.lag_seconds, found.problem) == (6, None, "")


@runs(run)
async def test_every_partition_is_read_though_an_answer_holds_only_one_batch(
    fake: FakeCluster,
) -> None:
    fake.create("t", 3)
    for number in range(3):
        fill(fake, 3, partition=number)
    original = fake._read
    served: list[int] = []

    def one_at_a_time(broker_id: int, part: Any, *, replica_ok: bool) -> list[bytes]:
        served.append(part.partition)
        if len(served) % 2 == 0:
            return []
        return original(broker_id, part, replica_ok=replica_ok)

    setattr(fake, "_read", one_at_a_time)  # noqa: B010 - for this fake only
    cluster = cluster_of(fake)
    await cluster.refresh(["t"])
    found = await oldest_unread(cluster, {A: 0, B: 1, C: 2})
    assert found == dict.fromkeys([A, B, C], START_MS)
    await cluster.close()


def emptied(batch: bytes) -> bytes:
    """The batch as compaction leaves it when all of its records have newer ones."""
    original = open_original(batch)
    rewriter = Rewriter(bytes_target=1)
    rewriter.add(original, np.zeros(original.header.record_count, np.bool_))
    (rewritten,) = rewriter.finish()
    return b"".join(rewritten.buffers)


@runs(run)
async def test_what_was_compacted_away_is_passed_over(fake: FakeCluster) -> None:
    log = fake.create("t", 1).logs[0]
    log.batches = [
        emptied(stored_batch(0, b"a", b"b", b"c", b"d", b"e")),
        stored_batch(5, b"f", b"g"),
    ]
    log.end = 7
    cluster = cluster_of(fake)
    await cluster.refresh(["t"])
    assert await oldest_unread(cluster, {A: 3}) == {A: START_MS + 5}
    assert [part.partitions[0].offset for part in fake.asked(FetchRequest)] == [3, 5]
    log.batches = [emptied(batch) for batch in log.batches]  # as no log is: it has a last one
    assert await oldest_unread(cluster, {A: 3}) == {}
    await cluster.close()


@runs(run)
async def test_all_partitions_of_the_topics_that_there_are(fake: FakeCluster) -> None:
    fake.create("t", 2)
    cluster = cluster_of(fake)
    view = await cluster.refresh(["t", "gone"])
    assert subscribed(view, ["gone", "t"]) == [A, B]
    await cluster.close()


# -- group descriptions ----------------------------------------------------------------------------
#
# Answers about groups become plain values.


MEMBER = records.MemberDescription(
    member_id="m1",
    instance_id="i1",
    client_id="c1",
    host="10.0.0.7",
    member_epoch=4,
    topics=["t", "u"],
    assigned=[
        records.TopicShare(topic="u", topic_id="u-id", partitions=[3]),
        records.TopicShare(topic="t", topic_id="t-id", partitions=[2, 0]),
    ],
    target=[],
    session_timeout_ms=45_000,
    is_away=True,
)


def test_a_listing() -> None:
    listing = records.GroupListing(group="g", state="stable", members=2)
    assert group_listing(listing, 3) == GroupListing("g", "stable", 2, 3)


def test_a_group() -> None:
    lag = PartitionLag("t", 0, 4)
    described = records.GroupDescription(
        group="g",
        state="reconciling",
        group_epoch=5,
        assignor="uniform",
        coordinator=2,
        members=[MEMBER],
    )
    assigned = (TopicPartition("t", 0), TopicPartition("t", 2), TopicPartition("u", 3))
    member = MemberDescription(
        "m1", "i1", "c1", "10.0.0.7", 4, ("t", "u"), assigned, (), 45_000, True
    )
    assert group_description(described, [lag]) == GroupDescription(
        "g", "reconciling", 5, "uniform", 2, (member,), (lag,)
    )
    assert readers([MEMBER]) == dict.fromkeys(assigned, "m1")


@pytest.mark.parametrize(
    ("lags", "total", "longest", "unknown"),
    [
        ([], 0, None, 0),
        ([(None, None)], 0, None, 1),
        ([(3, 1.5), (None, None), (4, 0.5)], 7, 1.5, 1),
        ([(3, None)], 3, None, 0),
    ],
)
def test_the_lag_of_a_group_is_that_of_its_partitions(
    lags: list[tuple[int | None, float | None]], total: int, longest: float | None, unknown: int
) -> None:
    partitions = tuple(
        PartitionLag("t", number, 0, lag=lag, lag_seconds=seconds)
        for number, (lag, seconds) in enumerate(lags)
    )
    group = GroupDescription("g", "empty", 1, "", 1, partitions=partitions)
    assert (group.lag, group.lag_seconds, group.unknown_lags) == (total, longest, unknown)
