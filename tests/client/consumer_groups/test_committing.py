"""Commits: what is committed, when, in which order, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftlog.errors import (
    CoordinatorLoadingError,
    FencedMemberError,
    GroupNotEmptyError,
    InvalidRequestError,
    OutcomeUnknownError,
    PartitionNotOwnedError,
    StaleMemberEpochError,
    UnknownPartitionError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import CommittedPartition, OffsetCommitRequest, OffsetCommitResponse
from raftlog.protocol.schema import Failure
from raftlog.types import OffsetAndMetadata, TopicPartition
from tests.client.consumer_groups.consuming import Story, consumer_of, filled, some, until
from tests.client.test_fetcher import fill
from tests.client.test_subscription import A, B
from tests.client.world import FakeCluster, refuse, run
from tests.running import runs


@pytest.mark.parametrize("how", ["poll", "iterate"])
@runs(run)
async def test_a_handler_that_raises_leaves_the_record_in_hand_uncommitted(
    fake: FakeCluster, *, how: str
) -> None:
    groups = filled(fake)

    async def program() -> None:
        async with consumer_of(fake) as consumer:
            await consumer.subscribe(["t"])
            if how == "poll":
                await some(consumer, 2)
                await some(consumer, 2)
                raise ZeroDivisionError
            async for record in consumer:
                if record.offset == 2:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await program()
    assert groups.committed()[A] == 2


@runs(run)
async def test_automatic_commits_are_of_what_was_handed_out_by_an_earlier_poll(
    fake: FakeCluster,
) -> None:
    groups = filled(fake)
    consumer = consumer_of(fake, auto_commit_interval_ms=1_000)
    await consumer.subscribe(["t"])
    await some(consumer, 2)
    await asyncio.sleep(5)
    assert groups.committed().get(A) in (None, 0), "nobody has asked for more"
    await some(consumer, 1)
    await asyncio.sleep(0.1)
    assert groups.committed()[A] == 2
    await some(consumer, 2)
    assert await consumer.poll(2_000) == []
    assert groups.committed()[A] == 5, "the poll that waits has asked for more"
    commits = len(fake.asked(OffsetCommitRequest))
    assert await consumer.poll(10_000) == []
    assert len(fake.asked(OffsetCommitRequest)) == commits, "there is nothing new"
    await consumer.close()


@runs(run)
async def test_an_iteration_commits_between_records_however_many_are_decoded(
    fake: FakeCluster,
) -> None:
    groups = filled(fake, 100)
    consumer = consumer_of(fake, auto_commit_interval_ms=1_000, max_poll_interval_ms=4_000)
    await consumer.subscribe(["t"])
    async for record in consumer:
        if record.offset:
            # All before the record in hand is processed; a second ago it was one less.
            assert (groups.committed().get(A) or 0) >= record.offset - 1
            assert (groups.committed().get(A) or 0) <= record.offset
        await asyncio.sleep(1.01)
        if record.offset == 20:
            break
    assert len(groups.members()) == 1
    await consumer.close()
    assert groups.committed()[A] == 21


@runs(run)
async def test_without_automatic_commits_only_the_application_commits(fake: FakeCluster) -> None:
    groups = filled(fake)
    async with consumer_of(fake, auto_commit=False) as consumer:
        await consumer.subscribe(["t"])
        await some(consumer, 3)
        await asyncio.sleep(20)
        assert groups.committed() == {}
        await consumer.commit()
        assert groups.committed() == {A: 3, B: 0}
        await some(consumer, 1)
        await consumer.commit({A: 2})
        assert await consumer.committed(A) == 2
        given = {A: OffsetAndMetadata(1, "note")}
        assert await consumer.commit_async(given) == given
        assert await consumer.committed([A, B], metadata=True) == {
            A: OffsetAndMetadata(1, "note"),
            B: OffsetAndMetadata(0),
        }
        assert await consumer.committed(TopicPartition("t", 1)) == 0
    assert groups.committed()[A] == 1


@runs(run)
async def test_what_is_committed_at_once_goes_out_together_and_in_order(fake: FakeCluster) -> None:
    groups = filled(fake, 50)
    async with consumer_of(fake, auto_commit=False) as consumer:
        await consumer.subscribe(["t"])
        await some(consumer, 50)
        told: list[tuple[Any, Any]] = []
        futures = [
            consumer.commit_async({A: offset}, lambda *done: told.append(done))
            for offset in range(40)
        ]
        await asyncio.gather(*futures)
        assert groups.committed()[A] == 39
        assert len(fake.asked(OffsetCommitRequest)) < 10
        assert told == []
        await consumer.poll(10)
        assert [offsets[A].offset for offsets, _ in told] == list(range(40))
        assert {error for _, error in told} == {None}


def bad_offsets() -> list[tuple[Any, type[Exception], str]]:
    nowhere = TopicPartition("t", 7)
    return [
        ({A: -1}, InvalidRequestError, "t:0"),
        ({A: 1.5}, TypeError, "t:0"),
        ({A: True}, TypeError, "t:0"),
        ({A: OffsetAndMetadata(1, metadata=b"x")}, TypeError, "metadata"),  # type: ignore[arg-type]
        ({A: OffsetAndMetadata(1, "x" * 4_097)}, InvalidRequestError, "4096"),
        ([A], TypeError, "dict"),
        ({"t": 1}, TypeError, "TopicPartition"),
        ({A: 6}, InvalidRequestError, "beyond the end offset 5"),
        ({nowhere: 0}, UnknownPartitionError, "7"),
    ]


@pytest.mark.parametrize(("offsets", "error", "match"), bad_offsets())
@runs(run)
async def test_offsets_that_can_never_be_right(
    fake: FakeCluster, *, offsets: Any, error: type[Exception], match: str
) -> None:
    groups = filled(fake)
    async with consumer_of(fake, auto_commit=False) as consumer:
        await consumer.subscribe(["t"])
        await some(consumer, 1)
        with pytest.raises(error, match=match):
            await consumer.commit(offsets)
        assert groups.committed() == {}
        assert await some(consumer, 1) == [1]


@runs(run)
async def test_a_position_that_was_sought_beyond_the_end_is_not_committed(
    fake: FakeCluster,
) -> None:
    groups = filled(fake)
    async with consumer_of(fake) as consumer:
        await consumer.subscribe(["t"])
        await some(consumer, 1)
        await consumer.seek(A, 77)
        with pytest.raises(InvalidRequestError, match="beyond the end offset 5"):
            await consumer.commit()
    assert A not in groups.committed()


@runs(run)
async def test_what_another_member_has_is_not_committed(fake: FakeCluster) -> None:
    groups = filled(fake)
    one, two = consumer_of(fake), consumer_of(fake)
    await one.subscribe(["t"])
    await one.poll(100)
    await two.subscribe(["t"])
    await until(lambda: len(one._subscription.parts) == 1, one)
    await until(lambda: len(two._subscription.parts) == 1, two)
    (theirs,) = await two.assignment()
    with pytest.raises(PartitionNotOwnedError, match="is assigned to member"):
        await one.commit({theirs: 0})
    alone = consumer_of(fake)
    await alone.assign([A])
    with pytest.raises(GroupNotEmptyError, match="2 members"):
        await alone.commit({A: 1})
    for consumer in (one, two, alone):
        await consumer.close()
    assert groups.members() == {}


@runs(run)
async def test_a_commit_at_an_old_epoch_is_repeated_at_the_newest(fake: FakeCluster) -> None:
    groups = filled(fake)
    async with consumer_of(fake, auto_commit=False) as consumer:
        await consumer.subscribe(["t"])
        await some(consumer, 2)
        for _ in range(3):
            fake.next(apis.OFFSET_COMMIT, refuse(StaleMemberEpochError("newer")))
        await consumer.commit()
        assert groups.committed()[A] == 2


@runs(run)
async def test_a_commit_of_which_a_part_was_at_an_old_epoch_is_repeated(fake: FakeCluster) -> None:
    groups = filled(fake)
    stale = Failure.of(StaleMemberEpochError("newer"))
    part = CommittedPartition(topic="t", partition=0, failure=stale)
    async with consumer_of(fake, auto_commit=False) as consumer:
        await consumer.subscribe(["t"])
        await some(consumer, 2)
        fake.next(
            apis.OFFSET_COMMIT,
            lambda peer, request: peer.write(
                peer.state.reply(request, OffsetCommitResponse(partitions=[part]))
            ),
        )
        await consumer.commit()
        assert groups.committed()[A] == 2


@runs(run)
async def test_a_commit_of_one_that_is_fenced_is_told_and_the_consumer_joins_again(
    fake: FakeCluster,
) -> None:
    groups = filled(fake)
    story = Story()
    async with consumer_of(fake) as consumer:
        await consumer.subscribe(["t"], **story.callbacks)
        await some(consumer, 2)
        fake.next(apis.OFFSET_COMMIT, refuse(FencedMemberError("too late")))
        with pytest.raises(FencedMemberError, match="too late"):
            await consumer.commit()
        assert await some(consumer, 5) == [0, 1, 2, 3, 4]
        await consumer.commit()
        assert groups.committed()[A] == 5
        assert story.told == [("assign", [0, 1]), ("lost", [0, 1]), ("assign", [0, 1])]


def test_failing_automatic_commits_are_no_reason_to_stop(caplog: pytest.LogCaptureFixture) -> None:
    async def test(fake: FakeCluster) -> None:
        groups = filled(fake)
        async with consumer_of(fake, auto_commit_interval_ms=1_000) as consumer:
            await consumer.subscribe(["t"])
            fake.next(apis.OFFSET_COMMIT, refuse(InvalidRequestError("no reason")))
            await some(consumer, 2)
            await consumer.poll(1_500, 1)
            assert await consumer.poll(3_000, 9)
            await consumer.poll(3_000)
            assert groups.committed()[A] == 5

    run(test)
    assert "no reason" in caplog.text


@runs(run)
async def test_a_commit_that_takes_too_long_may_be_done_later(fake: FakeCluster) -> None:
    groups = filled(fake)
    async with consumer_of(fake, auto_commit=False) as consumer:
        await consumer.subscribe(["t"])
        await some(consumer, 2)
        fake.pause(1)
        with pytest.raises(OutcomeUnknownError, match="may still succeed later"):
            await consumer.commit(timeout_ms=1_000)
        fake.resume(1)
        await asyncio.sleep(1)
        assert groups.committed()[A] == 2


@runs(run)
async def test_closing_waits_for_what_was_to_be_committed_without_waiting(
    fake: FakeCluster,
) -> None:
    groups = filled(fake)
    async with consumer_of(fake, auto_commit=False) as consumer:
        await consumer.subscribe(["t"])
        await some(consumer, 2)
        fake.next(apis.OFFSET_COMMIT, refuse(CoordinatorLoadingError("in a moment")))
        future = consumer.commit_async()
    assert groups.committed()[A] == 2
    assert future.done()


@runs(run)
async def test_closing_waits_for_the_commit_of_what_is_being_given_up(fake: FakeCluster) -> None:
    groups = filled(fake)
    one, two = consumer_of(fake), consumer_of(fake)
    await one.subscribe(["t"])
    await some(one, 5)
    await one.commit()
    fill(fake, 1, partition=1)
    await some(one, 1)
    await two.subscribe(["t"])
    await two.poll(10)
    await until(lambda: one._subscription.interrupted)
    loading = refuse(CoordinatorLoadingError("in a moment"))
    fake.next(apis.OFFSET_COMMIT, loading, loading)
    one.commit_async({A: 5})  # which comes before it
    await one.poll(0)
    assert set(one._subscription.parts) == {A}, "the other is given up"
    await one.close()
    assert groups.committed() == {A: 5, B: 1}
    await two.close()
