"""Commits: what is committed, when, in which order, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raftlog.client.groups import member
from raftlog.client.groups.member import Membership, Phase, run_now, shares
from raftlog.client.settings import GroupSettings
from raftlog.consumer_groups import BUILT_IN, GroupShard, StateChange, TopicInfo
from raftlog.consumer_groups import GroupSettings as CoordinatorSettings
from raftlog.errors import (
    AuthenticationError,
    ClosedError,
    CoordinatorLoadingError,
    FencedMemberError,
    GroupNotEmptyError,
    InstanceFencedError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    PartitionNotOwnedError,
    RaftlogError,
    RequestTimedOutError,
    StaleMemberEpochError,
    ThrottledError,
    UnknownMemberError,
    UnknownPartitionError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    AWAY_EPOCH,
    LEAVE_EPOCH,
    CommittedPartition,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from raftlog.protocol.schema import Failure
from raftlog.protocol.security import ApiVersionsRequest
from raftlog.types import OffsetAndMetadata, TopicPartition
from tests.client.consumer_groups.consuming import Timeline, consumer_of, filled, some, until
from tests.client.consumer_groups.fake_coordinator import FakeCoordinator, answer_of, heartbeat_of
from tests.client.fake_topics import FakeLog
from tests.client.interrupts import interrupted
from tests.client.test_fetcher import fill
from tests.client.test_subscription import A, B
from tests.client.virtual import START_MS
from tests.client.world import FakeCluster, Peer, ignore, refuse, run, vanish
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
        noted: list[tuple[Any, Any]] = []
        futures = [
            consumer.commit_async({A: offset}, lambda *done: noted.append(done))
            for offset in range(40)
        ]
        await asyncio.gather(*futures)
        assert groups.committed()[A] == 39
        assert len(fake.asked(OffsetCommitRequest)) < 10
        assert noted == []
        await consumer.poll(10)
        assert [offsets[A].offset for offsets, _ in noted] == list(range(40))
        assert {error for _, error in noted} == {None}


@runs(run)
async def test_more_partitions_than_a_request_has_are_committed(fake: FakeCluster) -> None:
    groups = filled(fake)
    fake.create("many", 6_000)
    fake.create("more", 6_000)
    groups.know_topics()
    both = [TopicPartition(topic, at) for topic in ("many", "more") for at in range(6_000)]
    async with consumer_of(fake, auto_commit=False) as consumer:
        await consumer.assign([A])
        await consumer.commit(dict.fromkeys(both, 0))
        assert groups.committed() == dict.fromkeys(both, 0)
        await consumer.commit(dict.fromkeys(both[:2], 0))
    assert [len(asked.offsets) for asked in fake.asked(OffsetCommitRequest)] == [10_000, 2_000, 2]


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
    timeline = Timeline()
    async with consumer_of(fake) as consumer:
        await consumer.subscribe(["t"], **timeline.callbacks)
        await some(consumer, 2)
        fake.next(apis.OFFSET_COMMIT, refuse(FencedMemberError("too late")))
        with pytest.raises(FencedMemberError, match="too late"):
            await consumer.commit()
        assert await some(consumer, 5) == [0, 1, 2, 3, 4]
        await consumer.commit()
        assert groups.committed()[A] == 5
        assert timeline.noted == [("assign", [0, 1]), ("lost", [0, 1]), ("assign", [0, 1])]


@pytest.mark.parametrize("error", [UnknownMemberError("lost"), InvalidRequestError("ended")])
@runs(run)
async def test_closing_after_the_end_of_the_membership_calls_on_lost(
    fake: FakeCluster, *, error: RaftlogError
) -> None:
    """The application has not polled since."""
    filled(fake)
    timeline = Timeline()
    async with consumer_of(fake) as consumer:
        await consumer.subscribe(["t"], **timeline.callbacks)
        await some(consumer, 2)
        assert consumer._member is not None
        membership = consumer._member.membership
        fake.next(apis.GROUP_HEARTBEAT, refuse(error))
        await asyncio.sleep(10)
        assert membership.phase is not Phase.IN
    assert timeline.noted == [("assign", [0, 1]), ("lost", [0, 1])]


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


# -- heartbeats ------------------------------------------------------------------------------------
#
# Staying a member: sessions, slow handlers, coordinators that fail. In virtual time.


def test_one_that_does_not_poll_leaves_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    async def test(fake: FakeCluster) -> None:
        groups = filled(fake)
        timeline = Timeline()
        async with consumer_of(fake, max_poll_interval_ms=10_000) as consumer:
            await consumer.subscribe(["t"], **timeline.callbacks)
            await some(consumer, 2)
            await asyncio.sleep(9.9)
            assert len(groups.members()) == 1
            await asyncio.sleep(0.2)
            assert groups.members() == {}
            with pytest.raises(FencedMemberError, match="lost its membership"):
                await consumer.commit()
            assert await some(consumer) == [0], "nothing was committed"
            assert timeline.noted == [("assign", [0, 1]), ("lost", [0, 1]), ("assign", [0, 1])]

    run(test)
    assert "max_poll_interval_ms=10000" in caplog.text


@runs(run)
async def test_a_slow_handler_is_no_reason_as_long_as_it_is_within_the_poll_interval(
    fake: FakeCluster,
) -> None:
    groups = filled(fake)
    async with consumer_of(fake, session_timeout_ms=1_000) as consumer:
        await consumer.subscribe(["t"])
        await some(consumer, 2)
        await asyncio.sleep(299)
        assert len(groups.members()) == 1
        await consumer.commit()


@runs(run)
async def test_without_a_coordinator_for_its_session_a_member_gives_up(fake: FakeCluster) -> None:
    groups = filled(fake)
    timeline = Timeline()
    async with consumer_of(fake, session_timeout_ms=6_000) as consumer:
        await consumer.subscribe(["t"], **timeline.callbacks)
        await some(consumer, 2)
        await consumer.commit()
        for _ in range(200):
            fake.next(apis.GROUP_HEARTBEAT, vanish)
        await until(lambda: timeline.noted[-1][0] == "lost", consumer)
        assert await consumer.assignment() == set()
        fake._next[apis.GROUP_HEARTBEAT].clear()
        await until(lambda: timeline.noted[-1][0] == "assign", consumer)
        assert len(groups.members()) == 1


@runs(run, brokers=3)
async def test_the_coordinator_moves_and_nobody_notices(fake: FakeCluster) -> None:
    groups = filled(fake)
    timeline = Timeline()
    async with consumer_of(fake) as consumer:
        await consumer.subscribe(["t"], **timeline.callbacks)
        await some(consumer, 2)
        groups.move(2)
        await some(consumer, 1)
        await consumer.commit()
        fake.pause(2)
        committing = asyncio.ensure_future(consumer.commit({A: 1}))
        await asyncio.sleep(0.5)
        groups.move(3)
        await committing
        assert await consumer.committed(A) == 1
        fake.resume(2)
        await asyncio.sleep(30)
        assert await consumer.poll(0, 1)
        assert timeline.noted == [("assign", [0, 1])]


def do_and_vanish(peer: Peer, request: Request) -> None:
    """Do what is asked, and close the connection instead of answering."""
    deaf: Any = SimpleNamespace(
        broker_id=peer.broker_id, state=peer.state, write=lambda _buffers: None
    )
    peer.cluster.always[request.api](deaf, request)
    peer.transport.abort()


@pytest.mark.parametrize("trouble", [vanish, do_and_vanish, ignore])
@pytest.mark.parametrize("api", [apis.GROUP_HEARTBEAT, apis.OFFSET_COMMIT, apis.OFFSET_FETCH])
@runs(run)
async def test_an_answer_that_is_lost_is_asked_for_again(
    fake: FakeCluster, *, trouble: Any, api: Any
) -> None:
    groups = filled(fake)
    async with consumer_of(fake, request_timeout_ms=2_000, auto_commit=False) as consumer:
        fake.next(api, trouble)
        await consumer.subscribe(["t"])
        await some(consumer, 2)
        await consumer.commit(timeout_ms=20_000)
        fake.next(api, trouble)
        await some(consumer, 2)
        await consumer.commit(timeout_ms=20_000)
        assert groups.committed()[A] == 4
        if trouble is not ignore:  # a request's time would be up
            assert await consumer.committed(A) == 4


@runs(run)
async def test_what_the_coordinator_refuses_for_good_is_raised(fake: FakeCluster) -> None:
    filled(fake)
    async with consumer_of(fake, assignor="nobody's") as consumer:
        await consumer.subscribe(["t"])
        for _ in range(2):
            with pytest.raises(RaftlogError, match="nobody's"):
                await consumer.poll(1_000)


@runs(run, brokers=3)
async def test_a_member_that_reads_nothing_raises_when_its_user_is_deleted(
    fake: FakeCluster,
) -> None:
    """Also if other clients at its address have failed, so that brokers refuse its attempts."""
    fake.create("t", 1)
    FakeCoordinator(fake)
    rejected: set[str] = set()

    def once_rejected(peer: Peer, request: Request) -> None:
        assert isinstance(request.message, ApiVersionsRequest)
        client_id = request.message.client_id
        is_second = client_id in rejected
        rejected.add(client_id)
        refuse(ThrottledError("T") if is_second else AuthenticationError("E"))(peer, request)

    members = [consumer_of(fake, client_id=name) for name in ("one", "two")]
    async with members[0] as first, members[1] as second:
        for consumer in (first, second):
            await consumer.subscribe(["t"])
        await until(lambda: len(fake.asked(GroupHeartbeatRequest)) > 4, first)
        idle = first if not await first.assignment() else second
        await idle.poll(10_000)
        fake.always[apis.API_VERSIONS] = once_rejected
        began = asyncio.get_running_loop().time()
        for peer in list(fake.peers):
            peer.transport.abort()
        with pytest.raises(AuthenticationError, match="E"):
            await idle.poll(60_000)
        assert asyncio.get_running_loop().time() - began < 5


# -- member ----------------------------------------------------------------------------------------
#
# A member of a group, all of it: where it begins, and what it reads. In virtual time.


@runs(run)
async def test_one_member_reads_commits_and_another_goes_on(fake: FakeCluster) -> None:
    groups = filled(fake)
    timeline = Timeline()
    async with consumer_of(fake) as consumer:
        await consumer.subscribe(["t"], **timeline.callbacks)
        assert await some(consumer, 4) == [0, 1, 2, 3]
        assert await consumer.assignment() == {A, B}
        assert await consumer.lag() == {A: 1, B: 0}
        who = consumer.group_metadata()
        assert (who.group, who.member_epoch, who.instance_id) == ("g", 1, None)
        assert list(groups.members()) == [who.member_id]
    assert timeline.noted == [("assign", [0, 1]), ("revoke", [0, 1])]
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


# -- membership ------------------------------------------------------------------------------------
#
# A member's own state: what it tells, when it may read, and what becomes of lost answers.


MEMBERSHIP_A, MEMBERSHIP_B, C = (TopicPartition("t", number) for number in range(3))
SETTINGS = GroupSettings(group="g", session_timeout_ms=9_000, heartbeat_interval_ms=3_000)


def membership_member(name: str = "m", **changes: Any) -> Membership:
    return Membership(replace(SETTINGS, **changes), name)


def answer(epoch: int, *partitions: TopicPartition, topic_id: str = "id") -> GroupHeartbeatResponse:
    owned = dict.fromkeys(partitions, topic_id)
    return GroupHeartbeatResponse(member_epoch=epoch, assignment=shares(owned))


def beat(made: Membership, now: float) -> GroupHeartbeatRequest:
    found = made.beat(now=now)
    assert found is not None
    return found


def owned(request: GroupHeartbeatRequest) -> set[TopicPartition]:
    return {
        TopicPartition(share.topic, partition)
        for share in request.owned
        for partition in share.partitions
    }


def joined(*partitions: TopicPartition, **changes: Any) -> Membership:
    """A member at epoch 1 and time 100 that has taken these; its next heartbeat is due."""
    made = membership_member(**changes)
    made.subscribe(["t"], now=100)
    made.answered(beat(made, 100), answer(1, *partitions), now=100)
    if partitions:
        change = made.take()
        assert change is not None
        assert set(change.assigned) == set(partitions)
    return made


def test_it_joins_at_once_and_then_waits_at_the_coordinator() -> None:
    made = membership_member()
    assert (made.phase, made.next_at, made.beat(now=5)) == (Phase.OUT, math.inf, None)
    made.subscribe(["t"], now=5)
    assert made.next_at == 5
    first = beat(made, 5)
    assert (first.member_epoch, first.sequence, first.wait_ms, first.topics) == (0, 1, 0, ["t"])
    assert made.beat(now=6) is None, "it waits for the answer"
    made.answered(first, answer(1, MEMBERSHIP_A), now=7)
    second = beat(made, 7)
    assert (second.member_epoch, second.sequence, second.wait_ms) == (1, 2, 3_000)
    assert owned(second) == {MEMBERSHIP_A}, "the application may begin with it at any time"
    made.answered(second, answer(1, MEMBERSHIP_A), now=10)
    assert beat(made, 10).sequence == 3


def test_a_coordinator_that_does_not_wait_is_not_asked_all_the_time() -> None:
    made = joined(MEMBERSHIP_A)
    made.answered(beat(made, 100), answer(1, MEMBERSHIP_A), now=100.1)
    assert made.next_at == 103


def test_what_is_revoked_is_owned_until_it_is_released() -> None:
    made = joined(MEMBERSHIP_A, MEMBERSHIP_B)
    made.answered(beat(made, 100), answer(2, MEMBERSHIP_A), now=101)
    assert made.pending
    change = made.take()
    assert change is not None
    assert (set(change.revoked), change.assigned, made.take()) == ({MEMBERSHIP_B}, {}, None)
    assert made.beat(now=102) is None, "there is nothing to say that would help"
    third = beat(made, 103)
    assert (owned(third), third.wait_ms) == ({MEMBERSHIP_A, MEMBERSHIP_B}, 0)
    made.released(change.revoked, incarnation=made.incarnation, now=103.5)
    fourth = beat(made, 103.5)
    assert (owned(fourth), fourth.wait_ms) == ({MEMBERSHIP_A}, 3_000)


def test_what_was_never_taken_is_given_up_without_the_application() -> None:
    made = joined(MEMBERSHIP_A)
    made.answered(beat(made, 100), answer(2, MEMBERSHIP_A, MEMBERSHIP_B), now=101)
    made.answered(beat(made, 101), answer(3, MEMBERSHIP_A), now=102)
    assert not made.pending
    assert owned(beat(made, 102)) == {MEMBERSHIP_A}


def test_what_comes_back_while_it_is_on_its_way_out_is_begun_anew_after_that() -> None:
    made = joined(MEMBERSHIP_A)
    made.answered(beat(made, 100), answer(2), now=101)
    change = made.take()
    assert change is not None
    made.answered(beat(made, 103), answer(3, MEMBERSHIP_A), now=104)
    assert not made.pending
    assert owned(beat(made, 106)) == {MEMBERSHIP_A}
    made.released(change.revoked, incarnation=made.incarnation, now=107)
    again = made.take()
    assert again is not None
    assert set(again.assigned) == {MEMBERSHIP_A}


def test_another_topic_of_the_name_is_another_one() -> None:
    made = joined(MEMBERSHIP_A)
    made.answered(beat(made, 100), answer(2, MEMBERSHIP_A, topic_id="new"), now=101)
    change = made.take()
    assert change is not None
    assert (change.revoked, change.assigned) == ({MEMBERSHIP_A: "id"}, {})
    made.released(change.revoked, incarnation=made.incarnation, now=102)
    again = made.take()
    assert again is not None
    assert again.assigned == {MEMBERSHIP_A: "new"}
    assert made.topic_ids([MEMBERSHIP_A]) == {"t": "new"}


def test_a_revoked_partition_of_a_deleted_topic_is_committed_for_that_topic() -> None:
    made = joined(MEMBERSHIP_A)
    made.answered(beat(made, 100), answer(2, MEMBERSHIP_A, MEMBERSHIP_B, topic_id="new"), now=101)
    change = made.take()
    assert change is not None
    assert (set(change.revoked), set(change.assigned)) == ({MEMBERSHIP_A}, {MEMBERSHIP_B})
    assert (
        made.topic_ids([MEMBERSHIP_A])
        == made.topic_ids([MEMBERSHIP_A, MEMBERSHIP_B])
        == {"t": "id"}
    )
    assert made.topic_ids([MEMBERSHIP_B]) == {"t": "new"}


def test_only_the_answer_to_the_last_heartbeat_counts() -> None:
    made = joined(MEMBERSHIP_A)
    old = beat(made, 100)
    made.subscribe(["t", "u"], now=101)
    new = beat(made, 101)
    made.answered(old, answer(2, MEMBERSHIP_A, MEMBERSHIP_B), now=102)
    made.failed(old, UnknownMemberError("gone"), retry_at=None)
    assert (made.epoch, made.pending, made.phase) == (1, False, Phase.IN)
    made.answered(new, answer(3, MEMBERSHIP_A, C), now=102)
    assert made.epoch == 3


def test_an_answer_that_is_later_than_the_session_gives_nothing_back() -> None:
    """Others may have the partitions since."""
    made = joined(MEMBERSHIP_A)
    old = beat(made, 100)
    made.tick(now=109)
    change = made.take()
    assert change is not None
    assert change.is_out
    made.rejoin(now=110)
    made.answered(old, answer(1, MEMBERSHIP_A), now=110)
    assert (made.phase, made.pending) == (Phase.JOINING, False)
    assert (beat(made, 110).member_epoch, owned(old)) == (0, {MEMBERSHIP_A})


def test_a_subscription_after_the_end_first_takes_away_what_the_membership_had() -> None:
    """Others may have the partitions since, and have read on."""
    made = joined(MEMBERSHIP_A)
    made.failed(beat(made, 100), InvalidRequestError("too many topics"), retry_at=None)
    made.subscribe(["u", "t"], now=101)
    assert made.beat(now=101) is None, "the application still reads as a member"
    change = made.take()
    assert change is not None
    assert (set(change.lost), change.is_out, change.error) == ({MEMBERSHIP_A}, True, None)
    made.rejoin(now=102)
    again = beat(made, 102)
    assert (again.member_epoch, again.topics, owned(again)) == (0, ["u", "t"], set())
    made.answered(again, answer(1, MEMBERSHIP_A), now=102)
    change = made.take()
    assert change is not None
    assert set(change.assigned) == {MEMBERSHIP_A}, "it begins at the committed offset"


def test_another_subscription_gives_up_what_it_has_no_use_for() -> None:
    made = joined(MEMBERSHIP_A)
    made.subscribe(["u"], now=101)
    change = made.take()
    assert change is not None
    assert set(change.revoked) == {MEMBERSHIP_A}
    made.answered(beat(made, 101), answer(2, MEMBERSHIP_A), now=101)
    assert made.take() is None


def test_errors_that_pass_are_tried_again_and_the_session_ends_at_last() -> None:
    made = joined(MEMBERSHIP_A)
    made.failed(beat(made, 100), RequestTimedOutError("no"), retry_at=101)
    assert made.next_at == 101
    beat(made, 101)
    made.tick(now=108.9)
    assert made.phase is Phase.IN
    assert made.next_at == 109, "a session from when the last answered one was sent"
    made.tick(now=109)
    assert (made.phase, made.beat(now=110)) == (Phase.LOST, None)
    with pytest.raises(FencedMemberError):
        made.credentials(made.incarnation)
    change = made.take()
    assert change is not None
    assert (set(change.lost), change.is_out) == ({MEMBERSHIP_A}, True)
    made.rejoin(now=110)
    again = beat(made, 110)
    assert (again.member_epoch, again.owned) == (0, [])


@pytest.mark.parametrize("error", [UnknownMemberError("gone"), FencedMemberError("old")])
def test_a_member_that_is_none_any_more_joins_again(error: RaftlogError) -> None:
    made = joined(MEMBERSHIP_A)
    made.failed(beat(made, 100), error, retry_at=None)
    assert made.phase is Phase.LOST
    before = made.incarnation
    made.take()
    made.rejoin(now=101)
    made.failed(beat(made, 101), error, retry_at=None)
    assert made.next_at == 104, "not all the time"
    assert made.credentials(made.incarnation) is None
    with pytest.raises(FencedMemberError):
        made.credentials(before)
    made.answered(beat(made, 104), answer(7), now=104)
    assert made.credentials(made.incarnation) == ("m", 7)


def test_what_is_refused_for_good_ends_it_until_the_next_subscription() -> None:
    made = joined(MEMBERSHIP_A)
    made.failed(beat(made, 100), InstanceFencedError("another one"), retry_at=None)
    change = made.take()
    assert change is not None
    assert (set(change.lost), type(change.error)) == ({MEMBERSHIP_A}, InstanceFencedError)
    assert (made.take(), made.next_at, made.leave(LEAVE_EPOCH)) == (None, math.inf, None)
    made.subscribe(["t"], now=200)
    assert beat(made, 200).member_epoch == 0


@pytest.mark.parametrize(("instance", "epoch"), [(None, LEAVE_EPOCH), ("one", AWAY_EPOCH)])
def test_one_that_does_not_poll_says_farewell(instance: str | None, epoch: int) -> None:
    made = joined(MEMBERSHIP_A, max_poll_interval_ms=1_000, instance_id=instance)
    made.polling()
    made.tick(now=105)
    assert made.phase is Phase.IN, "it is in a poll"
    made.polled(now=105)
    made.tick(now=105.9)
    assert made.phase is Phase.IN
    made.tick(now=106)
    assert made.phase is Phase.LOST
    assert made.next_at == -math.inf
    assert beat(made, 106).member_epoch == epoch
    assert made.beat(now=107) is None
    assert made.leave(LEAVE_EPOCH) is None


def test_leaving_is_told_if_there_is_anything_to_leave() -> None:
    made = membership_member()
    assert made.leave(LEAVE_EPOCH) is None
    made.subscribe(["t"], now=1)
    assert made.leave(LEAVE_EPOCH) is None, "nobody has heard of it"
    made = joined(MEMBERSHIP_A)
    farewell = made.leave(LEAVE_EPOCH)
    assert farewell is not None
    assert (farewell.member_epoch, farewell.sequence, farewell.owned) == (LEAVE_EPOCH, 2, [])
    assert made.credentials(made.incarnation) == ("", -1)


def test_a_heartbeat_is_hurried_unless_one_is_on_its_way() -> None:
    made = joined(MEMBERSHIP_A)
    made.answered(beat(made, 100), answer(1, MEMBERSHIP_A), now=100.1)
    made.hurry(now=101)
    assert beat(made, 101).wait_ms, "it waits, and the coordinator may have been asked before"
    made.hurry(now=102)
    assert made.next_at == 102


def test_a_refused_commit_tells_of_the_end() -> None:
    made = joined(MEMBERSHIP_A)
    made.fenced(FencedMemberError("old"), incarnation=made.incarnation - 1)
    assert made.phase is Phase.IN
    made.fenced(FencedMemberError("old"), incarnation=made.incarnation)
    assert made.phase is Phase.LOST
    made.end(InstanceFencedError("x"))
    assert made.phase is Phase.LOST


# -- with the real coordinator's state machine -----------------------------------------------------

TOPICS = {"t": TopicInfo("t-id", 4), "u": TopicInfo("u-id", 2)}
ALL = {
    TopicPartition(name, p) for name, info in TOPICS.items() for p in range(info.partition_count)
}
CHOICES = [("t",), ("u",), ("t", "u")]


@dataclass
class Reader:
    """A consumer: its membership, and what its application reads and still commits for."""

    membership: Membership
    reads: set[TopicPartition] = field(default_factory=set)
    releases: list[tuple[dict[TopicPartition, str], int]] = field(default_factory=list)

    @property
    def holds(self) -> set[TopicPartition]:
        """What nobody else may read. One that is lost stops by itself, before that."""
        if self.membership.phase is not Phase.IN:
            return set()
        committing = {
            tp
            for partitions, incarnation in self.releases
            if incarnation == self.membership.incarnation
            for tp in partitions
        }
        return self.reads | committing

    def act(self, now: float) -> None:
        """The application polls."""
        while (change := self.membership.take()) is not None:
            self.reads -= change.lost.keys()
            if change.is_out:
                assert not self.reads
                self.membership.rejoin(now=now)
            assert change.revoked.keys() <= self.reads
            self.reads -= change.revoked.keys()
            if change.revoked:
                self.releases.append((change.revoked, self.membership.incarnation))
            assert not self.reads & change.assigned.keys()
            self.reads |= change.assigned.keys()

    def release(self, now: float) -> None:
        partitions, incarnation = self.releases.pop(0)
        self.membership.released(partitions, incarnation=incarnation, now=now)


class GroupModel(RuleBasedStateMachine):
    """Requests and answers are lost, late and out of order; coordinators fail: one reader each."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.records: dict[bytes, bytes | None] = {}
        self.shard = self.load()
        self.readers = [Reader(membership_member(f"m{number}")) for number in range(3)]
        self.requests: list[tuple[Reader, GroupHeartbeatRequest]] = []
        self.answers: list[
            tuple[Reader, GroupHeartbeatRequest, GroupHeartbeatResponse | RaftlogError]
        ] = []
        for reader in self.readers[:2]:
            reader.membership.subscribe(("t",), now=self.now)
            self.exchange(reader, polls=True)

    def load(self) -> GroupShard:
        shard = GroupShard(CoordinatorSettings(), BUILT_IN)
        for key, value in self.records.items():
            shard.replay(key, value)
        self.keep(shard.start(TOPICS, version=1, now=self.now, now_ms=START_MS))
        return shard

    def keep(self, step: StateChange[Any]) -> None:
        for record in step.records:
            self.records[record.key] = record.value

    @rule(which=st.integers(0, 2), topics=st.sampled_from(CHOICES))
    def subscribe(self, which: int, topics: tuple[str, ...]) -> None:
        self.readers[which].membership.subscribe(topics, now=self.now)

    @rule(which=st.integers(0, 2), rarely=st.integers(0, 9))
    def leave(self, which: int, rarely: int) -> None:
        if rarely:
            return
        reader = self.readers[which]
        farewell = reader.membership.leave(LEAVE_EPOCH)
        reader.reads.clear()
        reader.releases.clear()
        if farewell is not None:
            self.requests.append((reader, farewell))

    @rule(which=st.integers(0, 2))
    def send(self, which: int) -> None:
        reader = self.readers[which]
        found = reader.membership.beat(now=self.now)
        if found is not None:
            self.requests.append((reader, found))

    @rule(which=st.integers(0, 2), polls=st.booleans())
    def talk(self, which: int, polls: bool) -> None:
        """All goes well."""
        self.exchange(self.readers[which], polls=polls)

    def exchange(self, reader: Reader, *, polls: bool) -> None:
        reader.membership.hurry(now=self.now)
        found = reader.membership.beat(now=self.now)
        if found is not None:
            self.hear(reader, found)
            self.give(*self.answers.pop())
        if polls:
            reader.act(self.now)
            while reader.releases:
                reader.release(self.now)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), stays=st.booleans())
    def arrive(self, data: st.DataObject, stays: bool) -> None:
        """A request comes to the coordinator: in any order, and perhaps a second time."""
        at = data.draw(st.integers(0, len(self.requests) - 1))
        self.hear(*(self.requests[at] if stays else self.requests.pop(at)))

    def hear(self, reader: Reader, request: GroupHeartbeatRequest) -> None:
        noted: GroupHeartbeatResponse | RaftlogError
        try:
            step = self.shard.heartbeat(heartbeat_of(request), now=self.now, now_ms=START_MS)
        except RaftlogError as error:
            noted = error
        else:
            self.keep(step)
            noted = answer_of(step.result)
        self.answers.append((reader, request, noted))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), rarely=st.integers(0, 2))
    def lose(self, data: st.DataObject, rarely: int) -> None:
        if rarely:
            return
        at = data.draw(st.integers(0, len(self.requests) - 1))
        reader, request = self.requests.pop(at)
        reader.membership.failed(request, RequestTimedOutError("lost"), retry_at=self.now)

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def receive(self, data: st.DataObject) -> None:
        self.give(*self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1))))

    def give(
        self,
        reader: Reader,
        request: GroupHeartbeatRequest,
        noted: GroupHeartbeatResponse | RaftlogError,
    ) -> None:
        if isinstance(noted, RaftlogError):
            reader.membership.failed(request, noted, retry_at=None)
        else:
            reader.membership.answered(request, noted, now=self.now)

    @rule(which=st.integers(0, 2))
    def poll(self, which: int) -> None:
        self.readers[which].act(self.now)

    @rule(which=st.integers(0, 2))
    def release(self, which: int) -> None:
        reader = self.readers[which]
        if reader.releases:
            reader.release(self.now)

    @rule(rarely=st.integers(0, 4))
    def fail_over(self, rarely: int) -> None:
        if rarely:
            return
        self.shard = self.load()

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.5, 1.0, 2.0, 3.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for reader in self.readers:
            reader.membership.tick(now=self.now)
        self.keep(self.shard.tick(now=self.now, now_ms=START_MS, expiry_ms=START_MS))

    @invariant()
    def nothing_is_read_twice(self) -> None:
        held = [tp for reader in self.readers for tp in reader.holds]
        assert len(held) == len(set(held))

    def teardown(self) -> None:
        """In the end all is read, each by one of those that subscribe."""
        for reader, request in (*self.requests, *((of, asked) for of, asked, _ in self.answers)):
            reader.membership.failed(request, RequestTimedOutError("lost"), retry_at=self.now)
        for _ in range(60):
            self.wait(0.5)
            for reader in self.readers:
                self.exchange(reader, polls=True)
            self.nothing_is_read_twice()
        wanted = {
            tp
            for reader in self.readers
            if reader.membership.is_active
            for tp in ALL
            if tp.topic in reader.membership._topics
        }
        assert set().union(*(reader.holds for reader in self.readers)) == wanted


TestGroupModel = GroupModel.TestCase


# -- rebalancing -----------------------------------------------------------------------------------
#
# Giving partitions up and taking them over, callbacks, and the end. In virtual time.


@runs(run)
async def test_two_members_share_and_one_takes_over_what_the_other_leaves(
    fake: FakeCluster,
) -> None:
    groups = filled(fake)
    one, two = consumer_of(fake), consumer_of(fake)
    timeline = Timeline()
    await one.subscribe(["t"], **timeline.callbacks)
    await some(one, 2)
    await two.subscribe(["t"])
    await two.poll(10)
    assert await two.assignment() == set(), "the other has not given it up"
    await until(lambda: timeline.noted[-1][0] == "revoke", one)
    kept = await one.assignment()
    await until(lambda: len(two._subscription.parts) == 1, two)
    assert await two.assignment() == {A, B} - kept
    assert [what for what, _ in timeline.noted] == ["assign", "revoke"]
    await two.close()
    await until(lambda: len(one._subscription.parts) == 2, one)
    assert timeline.noted[-1] == ("assign", timeline.noted[1][1]), "what it had given up"
    await one.close()
    assert set(groups.committed()) == {A, B}


@runs(run)
async def test_what_is_kept_in_a_rebalance_goes_on_from_where_it_is(fake: FakeCluster) -> None:
    filled(fake, 5, 5)
    fill(fake, 5, 5, partition=1)
    one, two = consumer_of(fake, auto_commit=False), consumer_of(fake)
    await one.subscribe(["t"])
    seen = [(record.partition, record.offset) for record in await one.poll(max_records=4)]
    parts = dict(one._subscription.parts)
    await two.subscribe(["t"])
    while len(parts) == 2 and await one.assignment() == set(parts):
        seen += [(r.partition, r.offset) for r in await one.poll(10, max_records=1)]
    (kept,) = await one.assignment()
    assert one._subscription.parts[kept] is parts[kept]
    seen += [(record.partition, record.offset) for record in await one.poll(10, 99)]
    for partition in (0, 1):
        offsets = [offset for at, offset in seen if at == partition]
        assert offsets == list(range(len(offsets)))
    await one.close()
    await two.close()


@pytest.mark.parametrize("is_assigned", [False, True])
@runs(run)
async def test_a_callback_that_fails_leaves_no_partitions_that_others_get(
    fake: FakeCluster, *, is_assigned: bool
) -> None:
    groups = filled(fake)
    async with consumer_of(fake) as consumer:
        await consumer.subscribe(["t"], on_revoke=failing)
        await some(consumer, 2)
        with pytest.raises(ValueError, match="not revoked"):
            await (consumer.assign([B]) if is_assigned else consumer.unsubscribe())
        assert groups.members() == {}
        assert await consumer.assignment() == ({B} if is_assigned else set())


def failing(_partitions: list[TopicPartition]) -> None:
    raise ValueError("not revoked")


@runs(run)
async def test_an_assignment_that_fails_leaves_no_partitions_that_others_get(
    fake: FakeCluster,
) -> None:
    groups = filled(fake)
    async with consumer_of(fake) as consumer:
        await consumer.subscribe(["t"])
        await some(consumer, 2)
        with pytest.raises(UnknownPartitionError):
            await consumer.assign([TopicPartition("t", 9)])
        assert groups.members() == {}
        assert await consumer.assignment() == set()
        await consumer.assign([B])
        with pytest.raises(UnknownPartitionError):
            await consumer.assign([TopicPartition("t", 9)])
        assert await consumer.assignment() == {B}, "there is no group to leave"


@runs(run)
async def test_a_cancelled_leave_leaves_no_partitions_that_others_get(fake: FakeCluster) -> None:
    filled(fake)
    async with consumer_of(fake) as consumer:
        await consumer.subscribe(["t"])
        await some(consumer, 2)
        fake.always[apis.GROUP_HEARTBEAT] = ignore
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await consumer.unsubscribe()
        assert await consumer.assignment() == set()
        with pytest.raises(InvalidRequestError, match="no assignment"):
            await consumer.poll(0)


@runs(run)
async def test_a_subscription_is_changed_by_another_one(fake: FakeCluster) -> None:
    groups = filled(fake)
    fake.create("u", 1)
    groups.know_topics()
    timeline = Timeline()
    async with consumer_of(fake) as consumer:
        await consumer.subscribe(["t"], **timeline.callbacks)
        await some(consumer, 2)
        await consumer.subscribe(["u"], **timeline.callbacks)
        u = TopicPartition("u", 0)
        await until(lambda: set(consumer._subscription.parts) == {u}, consumer)
        assert groups.committed()[A] == 2
        assert timeline.noted == [("assign", [0, 1]), ("revoke", [0, 1]), ("assign", [0])]
        await consumer.unsubscribe()
        assert timeline.noted[-1] == ("revoke", [0])
        assert groups.members() == {}
        with pytest.raises(InvalidRequestError, match="subscribe"):
            await consumer.poll(0)
        await consumer.subscribe(["t"])
        assert await some(consumer) == [2]


@runs(run)
async def test_a_callback_that_raises_is_heard_and_the_rebalance_goes_on(fake: FakeCluster) -> None:
    groups = filled(fake)

    async def bad(_partitions: list[TopicPartition]) -> None:
        raise ZeroDivisionError

    one, two = consumer_of(fake), consumer_of(fake)
    await one.subscribe(["t"], on_assign=bad, on_revoke=bad)
    with pytest.raises(ZeroDivisionError):
        await some(one)
    assert await some(one) == [0]
    await two.subscribe(["t"])
    with pytest.raises(ZeroDivisionError):
        await until(lambda: False, one)
    await until(lambda: len(two._subscription.parts) == 1, two)
    with pytest.raises(ZeroDivisionError):
        await one.close()
    assert len(groups.members()) == 1
    await two.close()


@runs(run)
async def test_a_callback_may_commit_and_look_and_seek_and_not_poll(fake: FakeCluster) -> None:
    groups = filled(fake)
    consumer = consumer_of(fake, auto_commit=False)
    problems: list[Exception] = []

    async def begin(partitions: list[TopicPartition]) -> None:
        await consumer.seek(A, 2)
        try:
            await consumer.poll(0)
        except InvalidRequestError as error:
            problems.append(error)
        assert partitions == [A, B]

    async def end(_partitions: list[TopicPartition]) -> None:
        assert await consumer.position(A) == 3
        await consumer.commit()

    await consumer.subscribe(["t"], on_assign=begin, on_revoke=end)
    assert await some(consumer) == [2]
    await consumer.close()
    assert groups.committed()[A] == 3
    assert len(problems) == 1


@runs(run)
async def test_static_members_keep_their_partitions_over_a_restart(fake: FakeCluster) -> None:
    groups = filled(fake)
    one = consumer_of(fake, group_instance_id="one")
    two = consumer_of(fake, group_instance_id="two")
    timeline = Timeline()
    for consumer in (one, two):
        await consumer.subscribe(["t"], **timeline.callbacks)
        await consumer.poll(10)
    await until(lambda: len(one._subscription.parts) == 1, one)
    await until(lambda: len(two._subscription.parts) == 1, two)
    mine, before = await one.assignment(), list(timeline.noted)
    await one.close()
    await asyncio.sleep(20)
    assert await two.poll(10) is not None
    one = consumer_of(fake, group_instance_id="one")
    await one.subscribe(["t"])
    await one.poll(100)
    assert await one.assignment() == mine
    await two.poll(100)
    assert timeline.noted == [*before, ("revoke", [tp.partition for tp in mine])]
    await one.close()
    await asyncio.sleep(46)
    await until(lambda: len(two._subscription.parts) == 2, two)
    await two.close()
    assert groups.shard.describe("g").members[0].is_away


@runs(run)
async def test_a_second_one_of_an_instance_takes_over_and_the_first_is_told_for_good(
    fake: FakeCluster,
) -> None:
    groups = filled(fake)
    old, new = (consumer_of(fake, group_instance_id="one") for _ in range(2))
    timeline = Timeline()
    await old.subscribe(["t"], **timeline.callbacks)
    await some(old, 1)
    await new.subscribe(["t"])
    await some(new, 1)
    assert await new.assignment() == {A, B}
    for _ in range(2):
        with pytest.raises(InstanceFencedError):
            await some(old)
    with pytest.raises(RaftlogError):
        await old.commit({A: 0})
    assert timeline.noted[-1] == ("lost", [0, 1])
    await old.close()
    assert list(groups.members()) == [new.group_metadata().member_id]
    await new.close()


@runs(run)
async def test_two_tasks_at_once_are_told(fake: FakeCluster) -> None:
    filled(fake)
    consumer = consumer_of(fake, auto_offset_reset="latest")
    await consumer.subscribe(["t"])
    polling = asyncio.ensure_future(consumer.poll(5_000))
    await asyncio.sleep(1)
    calls: list[Callable[[], Awaitable[Any]]] = [
        consumer.poll,
        consumer.commit,
        consumer.unsubscribe,
        lambda: consumer.seek(A, 0),
    ]
    for call in calls:
        with pytest.raises(InvalidRequestError, match="at the same time"):
            await call()
    await consumer.commit({A: 1})
    await consumer.close()
    with pytest.raises(ClosedError):
        await polling


@runs(run)
async def test_closed_by_another_task_only_what_is_processed_is_committed(
    fake: FakeCluster,
) -> None:
    groups = filled(fake)
    consumer = consumer_of(fake)
    await consumer.subscribe(["t"])
    await some(consumer, 1)
    await some(consumer, 2)
    await asyncio.ensure_future(consumer.close())
    assert groups.committed()[A] == 1
    for use in (consumer.poll, consumer.commit, lambda: consumer.committed(A)):
        with pytest.raises(ClosedError):
            await use()
    with pytest.raises(ClosedError):
        consumer.commit_async()


@runs(run)
async def test_a_close_that_is_cancelled_ends_the_membership(fake: FakeCluster) -> None:
    filled(fake)
    one, two = consumer_of(fake), consumer_of(fake)
    await one.subscribe(["t"])
    await some(one, 2)
    fake.next(apis.OFFSET_COMMIT, *[ignore] * 9)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(one.close(), 1)
    await two.subscribe(["t"])
    async with asyncio.timeout(60):  # longer than the session, shorter than max_poll_interval_ms
        await until(lambda: len(two._subscription.parts) == 2, two)
    await two.close()


@runs(run)
async def test_who_closes_what_another_task_is_closing_waits_for_that(fake: FakeCluster) -> None:
    groups = filled(fake)
    consumer = consumer_of(fake)
    await consumer.subscribe(["t"])
    await some(consumer, 2)
    slow = asyncio.Event()
    closing: list[asyncio.Task[None]] = []

    async def finish(_partitions: list[TopicPartition]) -> None:
        await consumer.close()  # within the task that closes: of no effect
        await slow.wait()

    async def program() -> None:
        async with consumer:
            await consumer.subscribe(["t"], on_revoke=finish)
            closing.append(asyncio.ensure_future(consumer.close()))
            await consumer.poll(60_000, 1)
            await consumer.poll(60_000, 1)

    running = asyncio.ensure_future(program())
    await asyncio.sleep(1)
    assert not running.done()
    slow.set()
    with pytest.raises(ClosedError):
        await running
    assert closing[0].done()
    assert A in groups.committed()
    await consumer.close()


@runs(run)
async def test_closing_takes_no_longer_than_it_may(fake: FakeCluster) -> None:
    filled(fake)
    consumer = consumer_of(fake)
    await consumer.subscribe(["t"])
    await some(consumer, 1)
    pending = consumer.commit_async({A: 1})
    fake.pause(1)
    late = consumer.commit_async({A: 0})
    start = asyncio.get_running_loop().time()
    await consumer.close(timeout_ms=2_000)
    assert asyncio.get_running_loop().time() - start < 4
    for future in (pending, late):
        with pytest.raises(RaftlogError):
            await future


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("kind", ["assign", "revoke", "lose"])
def test_ctrl_c_anywhere_in_a_rebalance_and_it_goes_on(kind: str) -> None:
    """Wherever it comes: in the end all partitions are read, and nothing twice."""

    async def test(fake: FakeCluster, at: int) -> bool:
        groups = filled(fake)
        one, two = consumer_of(fake), consumer_of(fake)
        await one.subscribe(["t"])
        assert one._rebalancer is not None
        assert one._member is not None
        if kind != "assign":
            await until(lambda: len(one._subscription.parts) == 2, one)
        if kind == "revoke":
            await two.subscribe(["t"])
        if kind == "lose":
            one._member.membership.fenced(FencedMemberError("old"), incarnation=1)
        await until(lambda: one._member is not None and one._member.membership.pending)
        work = partial(run_now, one._rebalancer.attend())
        was_cut = interrupted(at, work, member, member, member)
        assert one._member.membership.lock.acquire(blocking=False), "the lock is free"
        one._member.membership.lock.release()
        await one.poll(100, 1)
        wanted = 1 if kind == "revoke" else 2
        await until(lambda: len(one._subscription.parts) == wanted, one)
        if kind == "revoke":
            await until(lambda: len(two._subscription.parts) == 1, two)
        had, releasing = one._member.membership.holdings()
        assert (set(had), releasing) == (set(one._subscription.parts), {})
        assert groups.members()[one.group_metadata().member_id] == set(one._subscription.parts)
        assert not one._member.membership.pending
        await one.close()
        await two.close()
        return was_cut

    at = 1
    while run(partial(test, at=at)):
        at += 1
    assert at > 10
