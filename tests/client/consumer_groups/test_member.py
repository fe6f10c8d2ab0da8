"""A member of a group, all of it: where it begins, and what it reads. In virtual time."""

from __future__ import annotations

import pytest

from raftlog.errors import (
    OffsetOutOfRangeError,
)
from raftlog.protocol.records import GroupHeartbeatRequest
from tests.client.consumer_groups.consuming import Story, consumer_of, filled, some
from tests.client.fake_topics import FakeLog
from tests.client.test_fetcher import fill
from tests.client.test_subscription import A, B
from tests.client.world import FakeCluster, run
from tests.running import runs


@runs(run)
async def test_one_member_reads_commits_and_another_goes_on(fake: FakeCluster) -> None:
    groups = filled(fake)
    story = Story()
    async with consumer_of(fake) as consumer:
        await consumer.subscribe(["t"], **story.callbacks)
        assert await some(consumer, 4) == [0, 1, 2, 3]
        assert await consumer.assignment() == {A, B}
        assert await consumer.lag() == {A: 1, B: 0}
        who = consumer.group_metadata()
        assert (who.group, who.member_epoch, who.instance_id) == ("g", 1, None)
        assert list(groups.members()) == [who.member_id]
    assert story.told == [("assign", [0, 1]), ("revoke", [0, 1])]
    assert groups.members() == {}
    assert groups.committed() == {A: 4, B: 0}
    async with consumer_of(fake) as consumer:
        await consumer.subscribe(["t"])
        assert await some(consumer) == [4]


@runs(run)
async def test_partitions_that_are_assigned_by_hand_use_the_groups_offsets(
    fake: FakeCluster,
) -> None:
    groups = filled(fake)
    for expected in ([0, 1], [2, 3], [4]):
        async with consumer_of(fake) as consumer:
            await consumer.assign([A])
            assert await some(consumer, len(expected)) == expected
    assert groups.committed() == {A: 5}
    assert not fake.asked(GroupHeartbeatRequest)


@pytest.mark.parametrize("policy", ["earliest", "latest", "error"])
@runs(run)
async def test_where_nothing_is_committed_the_policy_says_where_to_begin(
    fake: FakeCluster, *, policy: str
) -> None:
    filled(fake)
    async with consumer_of(fake, auto_offset_reset=policy) as consumer:
        await consumer.subscribe(["t"])
        if policy == "error":
            with pytest.raises(OffsetOutOfRangeError, match="has no committed offset"):
                await some(consumer)
            await consumer.seek(A, 1)
            await consumer.seek(B, 0)
            assert await some(consumer) == [1]
            return
        await consumer.poll(100, max_records=1)
        assert await consumer.position(A) == (1 if policy == "earliest" else 5)


@runs(run)
async def test_where_to_begin_is_committed_so_that_a_restart_skips_nothing(
    fake: FakeCluster,
) -> None:
    filled(fake)
    async with consumer_of(fake, auto_offset_reset="latest") as consumer:
        await consumer.subscribe(["t"])
        assert await consumer.poll(100) == []
    fill(fake, 1)
    async with consumer_of(fake, auto_offset_reset="latest") as consumer:
        await consumer.subscribe(["t"])
        assert await some(consumer) == [5]


@runs(run)
async def test_a_committed_offset_that_is_out_of_range_follows_the_policy(
    fake: FakeCluster,
) -> None:
    filled(fake)
    async with consumer_of(fake) as consumer:
        await consumer.subscribe(["t"])
        await some(consumer, 1)
    log = fake.topics["t"].logs[0]
    log.start, log.batches = 3, log.batches[1:]
    async with consumer_of(fake) as consumer:
        await consumer.subscribe(["t"])
        assert await some(consumer) == [3]


@runs(run)
async def test_partitions_and_topics_that_come_later_are_read_from_their_first_record(
    fake: FakeCluster,
) -> None:
    groups = filled(fake)
    settings = {"auto_offset_reset": "latest", "metadata_max_age_ms": 1_000}
    async with consumer_of(fake, **settings) as consumer:
        await consumer.subscribe(pattern="t.*")
        assert await consumer.poll(100) == []
        fake.topics["t"].logs.append(FakeLog())
        fake.topics["t"].leaders.append(1)
        fill(fake, 1, partition=2)
        fake.create("__audit", 1)
        fake.create("not-t", 1)
        later = fake.create("t2", 1).logs[0]
        later.batches, later.end = fake.topics["t"].logs[0].batches[:1], 3
        groups.know_topics()
        found = set()
        while len(found) < 4:
            found |= {record.as_tuple()[:3] for record in await consumer.poll(100)}
        assert found == {("t", 2, 0), *(("t2", 0, offset) for offset in range(3))}
        assert {tp.topic for tp in await consumer.assignment()} == {"t", "t2"}
