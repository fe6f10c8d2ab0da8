"""A led partition's consumer groups: nothing is told that is not committed, and all that is.

The groups are fakes, the log is real; the loop's time is virtual.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.consumer_groups import GroupRecord, HeartbeatResult, StateChange, TopicInfo
from raftlog.consumer_groups.values import Topics
from raftlog.errors import (
    CommitUnknownError,
    CoordinatorLoadingError,
    DamagedLogError,
    DiskFullError,
    InvalidRequestError,
    LeaderNotAvailableError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetOutOfRangeError,
    RaftlogError,
    ThrottledError,
    UnknownMemberError,
)
from raftlog.record import BatchHeader, Codec, decode_lists, encode, parse_header, seal, validate
from raftlog.server import log_shard as loading
from raftlog.server.groups import shard
from raftlog.server.groups.shard import (
    HeartbeatAnswer,
    HeartbeatKeepalive,
    HeartbeatPurgatory,
    MemberKey,
    Unpark,
)
from raftlog.server.log_shard import (
    PATIENCE_SECONDS,
    RECORDS_PER_TURN,
    PendingResponses,
    batches_of,
    load,
)
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Acknowledge, Rounds
from raftlog.transactions import Marker
from raftlog.types import Buffer, Offset
from tests.running import runs
from tests.server.cluster.fake import Scene, append, play, state_of
from tests.server.consumer_groups.fake_groups import FakeGroups, Shown

ALL = (1, 2, 3)


# -- what is told, and when


@runs(play)
async def test_what_is_alone_in_sync_is_told_when_it_is_on_the_disk(s: Scene) -> None:
    shown = await Shown(s).ready()
    s.workers.hold()
    shown.put(b"a")
    await s.come_to_rest()
    assert shown.noted == []
    s.workers.release()
    await s.come_to_rest()
    assert shown.noted == [1]


@runs(play)
async def test_a_change_is_told_when_all_in_sync_have_it(s: Scene) -> None:
    shown = await Shown(s, isr=ALL).ready()
    shown.put(b"a")
    await s.come_to_rest()
    shown.commit(2)
    assert shown.noted == []
    shown.commit(3)
    assert shown.noted == [1]


@runs(play)
async def test_a_read_waits_for_what_was_decided_before_it(s: Scene) -> None:
    shown = await Shown(s, isr=ALL).ready()
    shown.put(b"a")
    await s.come_to_rest()
    shown.count()
    assert shown.noted == []
    shown.commit()
    assert shown.noted == [1, 1]


@runs(play)
async def test_a_refusal_waits_too(s: Scene) -> None:
    """It may tell of what was decided and is not committed: a member that has left, say."""
    shown = await Shown(s, isr=ALL).ready()
    shown.put(b"a")

    def refuse(_groups: object, _now: float, _now_ms: int) -> StateChange[None]:
        raise UnknownMemberError("it left")

    shown.shard.change(refuse, shown.noted.append, lambda e: shown.noted.append(type(e)))
    await s.come_to_rest()
    assert shown.noted == []
    shown.commit()
    assert shown.noted == [1, UnknownMemberError]


@runs(play)
async def test_one_step_is_one_batch(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.put(*(b"%d" % number for number in range(1_000)))
    await s.come_to_rest()
    assert len(shown.host.read(start_offset=0, bytes_max=1 << 20)) == 1
    assert shown.host.high_watermark == 1_000


@runs(play)
async def test_a_read_is_told_when_it_is_certain_who_leads(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.answers_questions = False
    shown.count()
    shown.count()
    await s.come_to_rest()
    assert (shown.noted, len(shown.questions)) == ([], 1)
    shown.questions.pop()(None)
    assert shown.noted == [0]
    assert len(shown.questions) == 1, "the second came after the first question was asked"
    shown.questions.pop()(LeaderNotAvailableError("nobody answers"))
    assert shown.noted == [0, NotCoordinatorError]


@runs(play)
async def test_a_marker_without_effect_is_told_when_it_is_certain_who_leads(s: Scene) -> None:
    """Another leader may have the pending offsets that it ends."""
    shown = await Shown(s).ready()
    shown.answers_questions = False
    shown.end()
    await s.come_to_rest()
    assert (shown.noted, len(shown.questions)) == ([], 1)
    shown.questions.pop()(LeaderNotAvailableError("nobody answers"))
    shown.groups.on_marker = (b"a",)
    shown.end()
    await s.come_to_rest()
    assert (shown.noted, shown.questions) == ([NotCoordinatorError, None], [])


# -- a log that does not take it, leadership that ends


@runs(play)
async def test_what_was_appended_and_is_not_committed_when_leadership_ends_is_unknown(
    s: Scene,
) -> None:
    shown = await Shown(s, isr=ALL).ready()
    shown.put(b"a")
    shown.count()
    await s.come_to_rest()
    shown.host.follow(2, 6)
    assert shown.noted == [CommitUnknownError, NotCoordinatorError]
    with pytest.raises(NotCoordinatorError):
        shown.count()
    with pytest.raises(NotCoordinatorError):
        shown.put(b"b")


@runs(play)
async def test_a_new_epoch_is_another_shards(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.lead(epoch=6)
    assert shown.shard.is_over
    with pytest.raises(NotCoordinatorError):
        shown.count()


@runs(play)
async def test_what_the_log_does_not_take_is_forgotten(s: Scene) -> None:
    """The state had it already. What is committed is read again, and so is what will be."""
    shown = await Shown(s, isr=ALL).ready()
    shown.put(b"a")
    s.disk.capacity_bytes = 0
    with pytest.raises(DiskFullError):
        shown.put(b"b")
    with pytest.raises(CoordinatorLoadingError, match=r"are loading: .* no space"):
        shown.count()
    s.disk.capacity_bytes = None
    await asyncio.sleep(1)
    assert shown.shard.is_loading, "the first is not committed yet: it would be missing"
    shown.commit()
    assert shown.noted == [1], "and it is still told"
    await s.come_to_rest()
    assert [groups.values for groups in shown.made] == [[b"a", b"b"], [b"a"]]
    shown.put(b"c")
    await s.come_to_rest()
    shown.commit()
    assert shown.noted == [1, 2]


@runs(play)
async def test_a_mistake_of_ours_is_forgotten_too(s: Scene) -> None:
    shown = await Shown(s).ready()

    def fail(groups: object, _now: float, _now_ms: int) -> StateChange[None]:
        cast(FakeGroups, groups).values.append(b"half")
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        shown.shard.change(fail, shown.noted.append, shown.noted.append)
    await asyncio.sleep(1)
    shown.count()
    assert shown.noted == [0]


@runs(play)
async def test_what_was_written_in_part_is_unknown(s: Scene) -> None:
    """A step of two batches, of which the disk takes one."""
    shown = await Shown(s, host=s.host(s.log(max_message_bytes=100_000))).ready()
    random = Random(1)
    s.disk.capacity_bytes = 150_000
    with pytest.raises(CommitUnknownError, match="the change was written partially"):
        shown.put(random.randbytes(90_000), random.randbytes(90_000))
    await asyncio.sleep(1)
    shown.count()
    assert shown.noted == [1], "the part that is there"


@runs(play)
async def test_nothing_is_decided_that_nobody_could_commit(s: Scene) -> None:
    shown = await Shown(s, isr=ALL).ready()
    shown.host.commit_problem = "broker 2 is gone"
    with pytest.raises(NotEnoughReplicasError, match="broker 2 is gone"):
        shown.put(b"a")
    with pytest.raises(NotEnoughReplicasError):
        shown.beat("new", epoch=0)
    assert shown.groups.values == []
    assert "new" not in shown.groups.epochs
    shown.beat("m", wait_seconds=0)
    shown.count()
    await s.come_to_rest()
    assert shown.noted == [("m", 1), 0], "what needs no record goes on"


def test_too_many_answers_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUP_ANSWERS_WAITING_MAX", 2)

    async def test(s: Scene) -> None:
        shown = await Shown(s, isr=ALL).ready()
        shown.put(b"a")
        shown.put(b"b")
        with pytest.raises(ThrottledError, match="GROUP_ANSWERS_WAITING_MAX"):
            shown.put(b"c")
        await s.come_to_rest()
        shown.commit()
        shown.count()
        assert shown.noted == [1, 2, 2]

    play(test)


# -- time and topics


@runs(play)
async def test_the_state_is_told_when_its_time_has_come(s: Scene) -> None:
    shown = await Shown(s).ready()
    began = s.loop.time()
    shown.groups.deadline_at = began + 5
    shown.put(b"a")
    shown.groups.deadline_at = began + 7  # as heartbeats put it off
    shown.put(b"b")
    await asyncio.sleep(6)
    shown.groups.deadline_at = began + 8
    shown.put(b"c")
    await asyncio.sleep(60)
    assert [round(at - began) for at in shown.groups.ticks] == [5, 8] or [
        round(at - began) for at in shown.groups.ticks
    ] == [5]
    assert shown.host.high_watermark >= 4, "what it decided then is written"


@runs(play)
async def test_an_earlier_deadline_counts(s: Scene) -> None:
    shown = await Shown(s).ready()
    began = s.loop.time()
    shown.groups.deadline_at = began + 50
    shown.put(b"a")
    shown.groups.deadline_at = began + 2
    shown.put(b"b")
    await asyncio.sleep(10)
    assert [round(at - began) for at in shown.groups.ticks] == [2]


@runs(play)
async def test_a_tick_that_the_log_does_not_take_reads_the_state_anew(s: Scene) -> None:
    shown = await Shown(s).ready()
    shown.groups.deadline_at = s.loop.time() + 1
    shown.put(b"a")
    await s.come_to_rest()
    shown.host.commit_problem = "broker 2 is gone"
    await asyncio.sleep(3)
    assert len(shown.made) == 2
    shown.count()
    assert shown.noted == [1, 1]


@runs(play)
async def test_topics_are_told_and_heartbeats_answered(s: Scene) -> None:
    """A member that subscribes to a pattern looks at the topics' names then."""
    shown = await Shown(s).ready()
    shown.beat("m")
    topics = Topics({"t": TopicInfo("1", 2)}, 2)
    shown.shard.set_topics(topics)
    assert shown.groups.noted == [topics]
    assert shown.noted == [("m", 1)]
    shown.beat("n")
    assert shown.noted == [("m", 1), ("n", 1)], "who did not wait then has not heard of it"
    shown.beat("m")
    shown.beat("n")
    assert len(shown.noted) == 2


def test_not_all_are_remembered_who_were_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "MEMBERS_NOTIFIED_MAX", 2)

    async def test(s: Scene) -> None:
        shown = await Shown(s).ready()
        shown.beat("o")
        assert shown.noted == [("o", 1)]
        shown.beat("m")
        shown.beat("n")
        assert shown.noted == [("o", 1), ("m", 1), ("n", 1)]

    play(test)


@runs(play)
async def test_topics_are_not_told_to_a_state_that_is_being_read(s: Scene) -> None:
    shown = Shown(s)
    shown.topics = Topics({"t": TopicInfo("1", 2)}, 2)
    shown.shard.set_topics(shown.topics)
    await shown.ready()
    assert shown.groups.noted == []
    assert shown.groups.started == [shown.topics]


@runs(play)
async def test_a_mistake_about_topics_is_logged(
    s: Scene, *, caplog: pytest.LogCaptureFixture
) -> None:
    shown = await Shown(s).ready()
    shown.groups.noted = None  # type: ignore[assignment]
    with caplog.at_level(logging.ERROR):
        shown.shard.set_topics(Topics({}, 2))
    assert "consumer groups operation failed" in caplog.text
    await asyncio.sleep(1)
    shown.count()
    assert shown.noted == [0]


# -- heartbeat keepalive ---------------------------------------------------------------------------
#
# Heartbeats that wait for the log, and what their members are told meanwhile. In virtual time.


M = ("g", "m")
OLD, NEW = HeartbeatResult(3), HeartbeatResult(4)
SESSION_MS = 6_000


class HeartbeatKeepaliveShown:
    """Answers of one shard, and what came of them, in order."""

    def __init__(self, s: Scene) -> None:
        self.noted: list[Any] = []
        self.dropped = 0
        self.may_tell = True
        self.questions: list[Acknowledge] = []  # whether this broker leads, of which none is told
        self.leads = True
        self.all = HeartbeatKeepalive(
            s.loop, Rounds(self._ask), lambda member: self.may_tell and member == M
        )

    def _ask(self, done: Acknowledge) -> None:
        if self.leads:
            done(None)
        else:
            self.questions.append(done)

    def begin(self, epoch: int = 3) -> HeartbeatAnswer:
        return self.all.begin(
            M,
            epoch,
            self.noted.append,
            lambda error: self.noted.append(type(error)),
            session_ms=SESSION_MS,
        )

    def waiting(self, epoch: int = 3) -> HeartbeatAnswer:
        answer = self.begin(epoch)
        answer.wait(self._drop)
        return answer

    def _drop(self) -> None:
        self.dropped += 1


@runs(play)
async def test_who_has_waited_for_a_third_of_its_session_is_told_what_it_was_told_last(
    s: Scene,
) -> None:
    shown = HeartbeatKeepaliveShown(s)
    shown.begin().go(OLD)
    answer = shown.waiting()
    await asyncio.sleep(1.9)
    assert shown.noted == [OLD]
    await asyncio.sleep(0.2)
    assert (shown.noted, shown.dropped) == ([OLD, OLD], 1)
    answer.go(NEW)  # it is told by the next heartbeat's answer
    answer.fail(NotCoordinatorError("late"))
    assert shown.noted == [OLD, OLD]
    shown.begin().go(NEW)
    assert shown.all.last(M, 4) == NEW


@runs(play)
async def test_who_leads_no_more_reassures_nobody(s: Scene) -> None:
    """Each answer is a lease: the next coordinator waits for those from before it began only."""
    shown = HeartbeatKeepaliveShown(s)
    shown.begin().go(OLD)
    shown.waiting()
    shown.leads = False
    await asyncio.sleep(10)
    assert (shown.noted, len(shown.questions)) == ([OLD], 1)
    shown.questions.pop()(NotLeaderError("not any more"))
    assert shown.noted == [OLD]


@runs(play)
async def test_a_member_is_reassured_as_soon_as_it_is_certain(s: Scene) -> None:
    shown = HeartbeatKeepaliveShown(s)
    shown.begin().go(OLD)
    shown.leads = False
    shown.waiting()
    await asyncio.sleep(3)
    shown.questions.pop()(None)
    assert (shown.noted, shown.dropped) == ([OLD, OLD], 1)
    late = shown.waiting()
    await asyncio.sleep(3)
    late.go(NEW)
    shown.questions.pop()(None)
    assert (shown.noted, shown.dropped) == ([OLD, OLD, NEW], 1)


@runs(play)
async def test_the_time_counts_from_when_the_heartbeat_came(s: Scene) -> None:
    shown = HeartbeatKeepaliveShown(s)
    shown.begin().go(OLD)
    answer = shown.begin()
    await asyncio.sleep(3)
    assert shown.noted == [OLD], "it does not wait for the log"
    answer.wait(lambda: None)
    await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert shown.noted == [OLD, OLD]


@runs(play)
async def test_what_comes_in_time_is_told_and_nothing_else(s: Scene) -> None:
    shown = HeartbeatKeepaliveShown(s)
    shown.waiting().go(OLD)
    shown.waiting().fail(NotCoordinatorError("no more"))
    late = shown.begin()
    late.go(NEW)
    late.wait(lambda: None)
    await asyncio.sleep(10)
    assert (shown.noted, shown.dropped) == ([OLD, NotCoordinatorError, NEW], 0)


@runs(play)
async def test_who_was_told_nothing_or_joins_or_is_none_any_more_waits_on(s: Scene) -> None:
    shown = HeartbeatKeepaliveShown(s)
    shown.waiting()
    await asyncio.sleep(3)
    shown.begin().go(OLD)
    for epoch in (0, -1, -2, 4):  # 4: what it was told by another coordinator
        shown.waiting(epoch)
    await asyncio.sleep(3)
    shown.may_tell = False
    answer = shown.waiting()
    await asyncio.sleep(3)
    shown.may_tell = True
    shown.all.forget_all()
    shown.waiting()
    await asyncio.sleep(10)
    assert (shown.noted, shown.dropped) == ([OLD], 0)
    answer.go(NEW)
    assert shown.noted == [OLD, NEW], "when it comes, it is told"


def test_not_more_members_than_that_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "MEMBERS_MAX", 1)

    async def test(s: Scene) -> None:
        shown = HeartbeatKeepaliveShown(s)
        shown.all.responded(M, OLD)
        shown.all.responded(M, NEW)
        shown.all.responded(("g", "n"), OLD)
        assert shown.all.last(M, 3) is None

    play(test)


# -- heartbeat purgatory ---------------------------------------------------------------------------
#
# Parked heartbeats: each ends once, and leaves nothing behind.


HEARTBEAT_PURGATORY_M, N = ("g", "m"), ("g", "n")


class Parking:
    """``ended``: whose heartbeats ended how."""

    def __init__(self, s: Scene) -> None:
        self.parked = HeartbeatPurgatory(s.loop)
        self.ended: list[tuple[MemberKey, RaftlogError | None]] = []

    def park(self, member: MemberKey, *, owner: str = "a", wait_seconds: float = 3) -> None:
        self.parked.park(member, owner, self._note(member), wait_seconds=wait_seconds)

    def _note(self, member: MemberKey) -> Unpark:
        return lambda reason: self.ended.append((member, reason))


@runs(play)
async def test_it_ends_when_its_time_is_up_and_not_again(s: Scene) -> None:
    p = Parking(s)
    p.park(HEARTBEAT_PURGATORY_M)
    p.park(N, wait_seconds=5)
    await asyncio.sleep(4)
    assert p.ended == [(HEARTBEAT_PURGATORY_M, None)]
    p.parked.wake(HEARTBEAT_PURGATORY_M)
    await asyncio.sleep(10)
    assert p.ended == [(HEARTBEAT_PURGATORY_M, None), (N, None)]
    assert len(p.parked) == 0


@runs(play)
async def test_it_ends_when_it_is_woken_and_not_by_its_time(s: Scene) -> None:
    p = Parking(s)
    p.park(HEARTBEAT_PURGATORY_M)
    p.parked.wake(N)
    p.parked.wake(HEARTBEAT_PURGATORY_M)
    p.parked.wake(HEARTBEAT_PURGATORY_M)
    await asyncio.sleep(10)
    assert p.ended == [(HEARTBEAT_PURGATORY_M, None)]


@runs(play)
async def test_who_is_woken_may_park_again_at_once(s: Scene) -> None:
    p = Parking(s)
    again: Callable[[RaftlogError | None], None] = lambda _reason: p.park(HEARTBEAT_PURGATORY_M)  # noqa: E731
    p.parked.park(HEARTBEAT_PURGATORY_M, "a", again, wait_seconds=3)
    p.parked.wake_all()
    assert (len(p.parked), p.ended) == (1, [])
    p.parked.wake_all()
    assert p.ended == [(HEARTBEAT_PURGATORY_M, None)]


@runs(play)
async def test_a_connection_that_is_lost_takes_its_own_along(s: Scene) -> None:
    p = Parking(s)
    p.park(HEARTBEAT_PURGATORY_M, owner="a")
    p.park(N, owner="b")
    p.parked.forget("a")
    p.parked.forget("nobody")
    await asyncio.sleep(10)
    assert p.ended == [(N, None)]


@runs(play)
async def test_all_can_be_refused(s: Scene) -> None:
    p = Parking(s)
    p.park(HEARTBEAT_PURGATORY_M)
    p.park(N)
    reason = NotCoordinatorError("over")
    p.parked.refuse_all(reason)
    await asyncio.sleep(10)
    assert p.ended == [(HEARTBEAT_PURGATORY_M, reason), (N, reason)]


# -- loading ---------------------------------------------------------------------------------------
#
# All of the log is read, once it is committed, and never much of it at a time.


class Replayed:
    """Keys and values as they came; refuses ``b"bad"``."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes | None]] = []

    def replay(self, key: bytes, value: bytes | None) -> None:
        if value == b"bad":
            raise InvalidRequestError("bad bytes")
        self.records.append((key, value))


class Loading:
    def __init__(self, s: Scene, *isr: int) -> None:
        self.host = s.host()
        self.host.lead(state_of(*(isr or (1,)), epoch=5), 1, lag_max_seconds=10)
        self.doubts: list[tuple[Partition, Offset]] = []
        self.replayed = Replayed()
        self.turn = asyncio.Lock()

    def write(self, keys: list[bytes | None], values: list[bytes | None]) -> None:
        body = encode(values, keys=keys, timestamps_ms=1_700_000_000_000)
        batch = seal(body) + body.payload
        self.host.append(batch, validate(batch))

    async def load(self) -> None:
        await load(
            self.replayed,
            self.host,
            turn=self.turn,
            on_unreadable=lambda *where: self.doubts.append(where),
            what="consumer groups",
        )


@runs(play)
async def test_all_records_in_their_order(s: Scene) -> None:
    x = Loading(s)
    x.write([b"a", b"b"], [b"1", None])
    x.write([b"a"], [b"2"])
    await x.load()
    assert x.replayed.records == [(b"a", b"1"), (b"b", None), (b"a", b"2")]


@runs(play)
async def test_a_marker_is_no_record(s: Scene) -> None:
    """A client could have one written there, and the state could not be read any more."""
    x = Loading(s)
    x.write([b"a"], [b"1"])
    x.host.append_marker(Marker(7, 1, True, 0, is_bumped=True), lambda _error: None)
    x.write([b"b"], [b"2"])
    await x.load()
    assert x.replayed.records == [(b"a", b"1"), (b"b", b"2")]


@runs(play)
async def test_an_empty_log(s: Scene) -> None:
    x = Loading(s)
    await x.load()
    assert x.replayed.records == []


@runs(play)
async def test_it_begins_where_the_log_begins(s: Scene) -> None:
    x = Loading(s)
    x.write([b"a", b"b"], [b"1", b"2"])
    x.write([b"c"], [b"3"])
    await s.come_to_rest()
    x.host.delete_records(2, lambda _error: None)
    await s.come_to_rest()
    await x.load()
    assert x.replayed.records == [(b"c", b"3")]


@runs(play)
async def test_it_waits_for_what_is_not_committed_yet(s: Scene) -> None:
    x = Loading(s, 1, 2)
    end = append(x.host, b"later")
    loading = asyncio.ensure_future(x.load())
    await asyncio.sleep(100)
    assert not loading.done()
    assert x.replayed.records == []
    x.host.on_follower(2, "disk-2", fetch_offset=end, durable_offset=end)
    await loading
    assert len(x.replayed.records) == 1


@runs(play)
async def test_it_ends_when_leadership_does(s: Scene) -> None:
    x = Loading(s, 1, 2)
    append(x.host, b"later")
    given_up = asyncio.ensure_future(x.load())
    noted = asyncio.ensure_future(x.load())
    await s.come_to_rest()
    given_up.cancel()
    await s.come_to_rest()
    x.host.follow(2, 6)
    with pytest.raises(CommitUnknownError):
        await noted


@runs(play)
async def test_others_have_their_turn_in_between(s: Scene) -> None:
    x = Loading(s)
    count = 10 * RECORDS_PER_TURN
    x.write([b"k"] * count, [b"v"] * count)
    await s.come_to_rest()
    loading = asyncio.ensure_future(x.load())
    seen = [0]
    while not loading.done():
        await asyncio.sleep(0)
        seen.append(len(x.replayed.records))
    assert seen[-1] == count
    steps = [b - a for a, b in pairwise(seen)]
    assert max(steps) <= RECORDS_PER_TURN


@runs(play)
async def test_of_two_one_reads_at_a_time(s: Scene) -> None:
    x, y = Loading(s), Loading(s)
    y.turn = x.turn
    for each in (x, y):
        each.write([b"k"] * 1_000, [b"v"] * 1_000)
    await s.come_to_rest()
    both = [asyncio.ensure_future(x.load()), asyncio.ensure_future(y.load())]
    while not all(each.done() for each in both):
        await asyncio.sleep(0)
        counts = sorted((len(x.replayed.records), len(y.replayed.records)))
        assert counts[0] == 0 or counts[1] == 1_000


@runs(play)
async def test_what_is_not_to_be_understood_is_named(s: Scene) -> None:
    x = Loading(s)
    x.write([b"a", b"b"], [b"1", b"bad"])
    with pytest.raises(DamagedLogError, match="the record at offset 1 cannot be applied"):
        await x.load()
    assert x.doubts == [(x.host, 0)]


@runs(play)
async def test_damage_is_told_to_who_looks_after_it(s: Scene) -> None:
    x = Loading(s)
    x.write([b"a"], [b"1"])
    await s.come_to_rest()
    x.host.log.note_damage("a bad sector", offset=0)
    with pytest.raises(DamagedLogError, match=r"t:0.*offset 0, .*a bad sector"):
        await x.load()
    assert x.doubts == [(x.host, 0)]


@runs(play)
async def test_a_log_that_has_a_hole_is_no_end(
    s: Scene, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = Loading(s)
    x.write([b"a"], [b"1"])
    monkeypatch.setattr(Partition, "read", lambda *_a, **_k: [])
    with pytest.raises(DamagedLogError, match="no batch is stored"):
        await x.load()


@runs(play)
async def test_a_log_whose_start_has_moved_meanwhile(s: Scene) -> None:
    """It is read again from there."""
    x = Loading(s)
    for _ in range(3):
        x.write([b"k"], [bytes(loading.SLICE_BYTES)])
    await s.come_to_rest()

    def replay(_key: bytes, _value: bytes | None) -> None:
        x.host.delete_records(3, lambda _error: None)

    x.replayed.replay = replay  # type: ignore[method-assign]
    with pytest.raises(OffsetOutOfRangeError):
        await x.load()


@runs(play)
async def test_a_batch_of_which_compaction_has_left_nothing(
    s: Scene, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = Loading(s)
    x.write([b"a"], [b"1"])
    x.write([b"b"], [b"2"])
    await s.come_to_rest()
    split = loading.split_checked

    def split_as_compacted(data: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
        for header, batch in split(data):
            count = header.record_count if header.base_offset else 0
            yield header._replace(record_count=count), batch

    monkeypatch.setattr(loading, "split_checked", split_as_compacted)
    await x.load()
    assert x.replayed.records == [(b"b", b"2")]


# -- pending responses -----------------------------------------------------------------------------
#
# Answers that wait: each ends once, in the log's order, and none waits for ever.


class Answering:
    """A leader with two followers; ``ended``: what came of which answer."""

    def __init__(self, s: Scene) -> None:
        self.host = s.host()
        self.host.lead(state_of(1, 2, 3, epoch=5), 1, lag_max_seconds=10)
        self.questions: list[Acknowledge] = []
        confirmations = Rounds(self.questions.append)
        self.answers = PendingResponses(self.host, confirmations, s.loop, what="consumer groups")
        self.ended: list[tuple[str, type[Exception] | None]] = []

    def resolve(self, name: str, **conditions: int) -> None:
        self.answers.resolve(
            lambda: self.ended.append((name, None)),
            lambda error: self.ended.append((name, type(error))),
            end=self.host.log.log_end_offset,
            **conditions,
        )

    def commit(self) -> None:
        end = self.host.log.log_end_offset
        for follower in (2, 3):
            disk = f"disk-{follower}"
            self.host.on_follower(follower, disk, fetch_offset=end, durable_offset=end)


@runs(play)
async def test_with_nothing_to_wait_for_it_ends_at_once(s: Scene) -> None:
    a = Answering(s)
    a.resolve("one")
    assert (a.ended, len(a.answers)) == ([("one", None)], 0)


@runs(play)
async def test_it_ends_when_both_have_come(s: Scene) -> None:
    a = Answering(s)
    append(a.host, b"x")
    await s.come_to_rest()
    a.resolve("committed first", confirmed_since=0)
    a.commit()
    assert (a.ended, len(a.answers)) == ([], 1)
    a.questions.pop()(None)
    append(a.host, b"y")
    await s.come_to_rest()
    a.resolve("confirmed first", confirmed_since=1)
    a.questions.pop()(None)
    assert a.ended == [("committed first", None)]
    a.commit()
    assert a.ended == [("committed first", None), ("confirmed first", None)]


@runs(play)
async def test_nobody_waits_for_a_commit_that_a_leader_cut_off_will_not_make(s: Scene) -> None:
    a = Answering(s)
    append(a.host, b"x")
    a.resolve("write", is_appended=True)
    a.resolve("beat")
    a.resolve("read", confirmed_since=0)
    a.questions.pop()(LeaderNotAvailableError("nobody answers"))
    assert a.ended == [("read", NotCoordinatorError)]
    await asyncio.sleep(PATIENCE_SECONDS + 0.1)
    assert len(a.ended) == 1
    a.questions.pop()(LeaderNotAvailableError("nobody answers"))
    assert a.ended[1:] == [("write", CommitUnknownError), ("beat", NotCoordinatorError)]
    a.commit()
    assert (len(a.ended), len(a.answers)) == (3, 0), "once"


@runs(play)
async def test_while_it_leads_a_slow_commit_is_waited_for(s: Scene) -> None:
    a = Answering(s)
    append(a.host, b"x")
    a.resolve("write", is_appended=True)
    for _ in range(3):
        await asyncio.sleep(PATIENCE_SECONDS + 0.1)
        a.questions.pop()(None)
        assert a.ended == []
    a.commit()
    assert a.ended == [("write", None)]
    await asyncio.sleep(10)
    assert not a.questions, "nobody waits"


@runs(play)
async def test_with_too_few_in_sync_nobody_waits_either(s: Scene) -> None:
    a = Answering(s)
    append(a.host, b"x")
    a.resolve("write", is_appended=True)
    a.resolve("beat")
    a.host.on_state(state_of(1, 2, 3, epoch=5, isr=[1], min_isr=2, version=2))
    await asyncio.sleep(PATIENCE_SECONDS + 0.1)
    a.questions.pop()(None)
    assert a.ended == [("write", CommitUnknownError), ("beat", NotEnoughReplicasError)]


@runs(play)
async def test_who_came_later_has_its_own_time(s: Scene) -> None:
    a = Answering(s)
    append(a.host, b"x")
    a.resolve("first")
    await asyncio.sleep(PATIENCE_SECONDS / 2)
    await s.come_to_rest()
    a.commit()
    append(a.host, b"y")
    a.resolve("second")
    await asyncio.sleep(PATIENCE_SECONDS * 0.9)
    assert not a.questions
    await asyncio.sleep(PATIENCE_SECONDS * 0.2)
    assert len(a.questions) == 1


@runs(play)
async def test_leadership_that_ends_ends_all(s: Scene) -> None:
    a = Answering(s)
    append(a.host, b"x")
    a.resolve("write", is_appended=True)
    a.resolve("read", confirmed_since=0)
    a.host.follow(2, 6)
    a.questions.pop()(None)
    assert a.ended == [("write", CommitUnknownError), ("read", NotCoordinatorError)]


# -- writing ---------------------------------------------------------------------------------------
#
# A step's records as batches: one, where that can be; in order, whole, and not too large.


NOW_MS = 1_700_000_000_000
MIB = 1 << 20

RECORDS = st.lists(
    st.builds(
        GroupRecord,
        st.binary(min_size=1, max_size=50),
        st.none() | st.binary(max_size=3_000),
    ),
    max_size=40,
)


def read(batches: list[bytes]) -> list[GroupRecord]:
    found: list[GroupRecord] = []
    for batch in batches:
        validate(batch)
        records = decode_lists(batch)
        assert set(records.timestamps_ms) == {NOW_MS}
        for key, value in zip(records.keys, records.values, strict=True):
            assert key is not None
            found.append(GroupRecord(key, value))
    return found


@given(records=RECORDS, bytes_max=st.integers(6_000, 40_000))
def test_they_come_back_as_they_were(records: list[GroupRecord], bytes_max: int) -> None:
    batches = list(batches_of(records, now_ms=NOW_MS, bytes_max=bytes_max))
    assert read(batches) == records
    assert all(len(batch) <= bytes_max for batch in batches)
    total = sum(len(one.key) + len(one.value or b"") + 32 for one in records)
    if records and total + 1_024 <= bytes_max:
        assert len(batches) == 1


def test_nothing_is_no_batch() -> None:
    assert list(batches_of([], now_ms=NOW_MS, bytes_max=MIB)) == []


def test_a_record_is_never_split() -> None:
    large = GroupRecord(b"k", Random(1).randbytes(10_000))
    small = GroupRecord(b"k", b"v")
    batches = list(batches_of([small, large, small], now_ms=NOW_MS, bytes_max=5_000))
    assert read(batches) == [small, large, small]
    assert [len(batch) > 5_000 for batch in batches] == [False, True, False]


@pytest.mark.parametrize(("size", "codec"), [(100, Codec.NONE), (10_000, Codec.LZ4)])
def test_what_is_large_is_compressed(size: int, codec: Codec) -> None:
    records = [GroupRecord(b"k", b"v" * size)]
    (batch,) = batches_of(records, now_ms=NOW_MS, bytes_max=MIB)
    assert parse_header(batch).codec == codec
