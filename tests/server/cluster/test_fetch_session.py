"""The leader's side of copying: what a follower gets, and what counts as its word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import pytest

from raftlog.consensus import Applied, NotProposed, Outcome
from raftlog.errors import (
    DamagedLogError,
    FencedLeaderEpochError,
    InvalidRequestError,
    LeaderNotAvailableError,
    NotLeaderError,
    RaftlogError,
    UnknownLeaderEpochError,
    UnknownTopicError,
)
from raftlog.record import split
from raftlog.replication.partition_state import Elect, PartitionMachine
from raftlog.server.cluster import fetch_session
from raftlog.server.cluster.elections import HostedPartition
from raftlog.server.cluster.fetch_session import (
    CONFIRM_SECONDS_MAX,
    GROUP_SECONDS,
    RETRY_SECONDS,
    FetchSession,
    LeadershipCheck,
)
from raftlog.server.partition import Partition
from raftlog.storage import Log
from raftlog.testing.disk import Fault
from tests.running import runs
from tests.server.cluster.fake import DISKS, TOPIC_ID, Scene, append, play, state_of, write
from tests.server.cluster.leading import WAIT_MS, Leading, at, only, values
from tests.server.harness import error_of


@runs(play)
async def test_what_is_there_is_answered_at_once_durable_or_not(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    s.workers.hold()
    append(host, b"a", b"b")
    await s.come_to_rest()
    reply = lead.fetch(at(0), full=True)
    part = only(reply)
    assert values(reply) == [b"a", b"b"]
    assert part.length == sum(map(len, reply.answers[0][1]))
    assert (part.leader_epoch, part.high_watermark, part.log_start_offset) == (5, 0, 0)
    assert part.failure is part.diverged is part.restart_at is None


@runs(play)
async def test_a_fetch_waits_for_an_append_and_no_longer_than_it_said(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    first = lead.fetch(at(0), full=True)
    assert not first.answers
    append(host, b"a")
    assert values(first) == [b"a"]
    second = lead.fetch(at(1, last_epoch=5))
    await asyncio.sleep(WAIT_MS / 1_000 * 0.9)
    assert not second.answers
    await asyncio.sleep(WAIT_MS / 1_000 * 0.2)
    assert second.answers


@runs(play)
async def test_one_position_is_answered_once(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a")
    assert values(lead.fetch(at(0), full=True)) == [b"a"]
    again = lead.fetch()
    append(host, b"b")
    assert not again.answers, "until the follower says that it has moved"
    moved = lead.fetch(at(1, last_epoch=5))
    assert again.parts == []
    assert values(moved) == [b"b"]


@runs(play)
async def test_a_newer_request_is_the_end_of_the_one_that_waits(s: Scene) -> None:
    lead = Leading(s)
    lead.leader()
    first = lead.fetch(at(0), full=True)
    second = lead.fetch()
    assert len(first.answers) == 1
    assert not second.answers


@runs(play)
async def test_what_is_committed_takes_the_followers_disk(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a", b"b")
    await s.come_to_rest()
    lead.fetch(at(0), full=True)
    lead.fetch(at(2, last_epoch=5, durable=0))
    assert host.high_watermark == 0, "it has the bytes, and its disk has not"
    lead.durable(2)
    assert host.high_watermark == 2


@runs(play)
async def test_progress_of_another_epoch_counts_for_nothing(s: Scene) -> None:
    """S04, both ways: in the message, and in the session."""
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a")
    await s.come_to_rest()
    lead.fetch(at(0), full=True)
    lead.fetch(at(1, last_epoch=5, durable=0))
    lead.durable(1, epoch=4)
    lead.durable(1, epoch=6)
    assert host.high_watermark == 0
    # The same broker leads again, in a new epoch: what was said in the old one is void.
    hosted = lead.partitions[TOPIC_ID, 0]
    newer = replace(hosted.state, leader_epoch=6, version=2)
    host.lead(newer, 1, lag_max_seconds=10)
    lead.durable(1, epoch=5)
    assert host.high_watermark == 0


@runs(play)
async def test_a_log_that_is_no_prefix_counts_for_nothing_until_it_is_cut(s: Scene) -> None:
    lead = Leading(s)
    log = s.log()
    write(log, b"a", b"b", epoch=3)
    host = lead.leader(log)
    end = append(host, b"c")
    await s.come_to_rest()
    reply = lead.fetch(at(end, last_epoch=4), full=True)
    divergence = only(reply).diverged
    assert divergence is not None
    assert (divergence.epoch, divergence.end_offset) == (3, 2)
    lead.durable(end)
    assert host.high_watermark == 0
    lead.fetch(at(2, last_epoch=3))
    assert host.high_watermark == 2
    lead.fetch(at(3, last_epoch=5))
    assert host.high_watermark == 3


@runs(play)
async def test_each_position_is_compared_with_the_log(s: Scene) -> None:
    lead = Leading(s)
    log = s.log()
    write(log, b"a", b"b", epoch=3)
    host = lead.leader(log)
    end = append(host, b"c")
    await s.come_to_rest()
    lead.fetch(at(2, last_epoch=3, durable=0), full=True)
    assert host.high_watermark == 0
    reply = lead.fetch(at(end, last_epoch=4))
    assert only(reply).diverged is not None
    assert host.high_watermark == 0


@pytest.mark.parametrize(
    ("position", "is_lacking"),
    [
        ({"offset": 3, "last_epoch": 3, "high_watermark": 3}, True),
        ({"offset": 3, "last_epoch": 3, "high_watermark": 2}, False),
        ({"offset": 3, "last_epoch": 4, "high_watermark": 3}, True),  # of an epoch not known here
        ({"offset": 9, "high_watermark": 9}, True),  # empty, and begins above this log's end
        ({"offset": 2, "last_epoch": 3, "high_watermark": 9}, False),  # claims more than it has
    ],
)
@pytest.mark.parametrize("unclean_epoch", [-1, 4, 5])
@runs(play)
async def test_a_leader_that_lacks_committed_records_gives_its_copy_up(
    s: Scene, *, position: dict[str, int], is_lacking: bool, unclean_epoch: int
) -> None:
    lead = Leading(s)
    log = s.log()
    write(log, b"a", b"b", epoch=3)
    host = lead.leader(log, unclean_epoch=unclean_epoch)
    lead.fetch(at(**position), full=True)
    is_accepted = position.get("last_epoch", -1) < unclean_epoch
    if not is_lacking or is_accepted:
        assert lead.damage == []
        return
    ((found, reason),) = lead.damage
    assert found is host
    assert "lacks committed records: broker 2 has them up to offset" in reason
    host.log.note_damage(reason, offset=0)
    lead.fetch(at(**position), full=True)
    assert len(lead.damage) == 1


@runs(play)
async def test_what_is_known_in_another_epoch_is_no_reason_to_give_up(s: Scene) -> None:
    lead = Leading(s)
    lead.leader()
    for epoch in (4, 6):
        lead.fetch(at(9, epoch=epoch, last_epoch=3, high_watermark=9), full=True)
    assert lead.damage == []


@runs(play)
async def test_a_follower_that_is_behind_the_logs_start_begins_anew(s: Scene) -> None:
    lead = Leading(s)
    log = s.log()
    log.restart_at(10)
    lead.leader(log)
    part = only(lead.fetch(at(3, last_epoch=4), full=True))
    assert part.restart_at == 10
    assert part.log_start_offset == 10


@pytest.mark.parametrize(
    ("epoch", "error"), [(4, FencedLeaderEpochError), (6, UnknownLeaderEpochError)]
)
@runs(play)
async def test_other_epochs_are_refused(s: Scene, *, epoch: int, error: type[Exception]) -> None:
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a")
    await s.come_to_rest()
    reply = lead.fetch(at(0, epoch=epoch), full=True)
    assert isinstance(error_of(only(reply)), error)
    assert only(reply).leader_epoch == epoch, "that of the position which is answered"
    lead.fetch(at(1, epoch=epoch, last_epoch=5))
    assert host.high_watermark == 0


@runs(play)
async def test_who_does_not_lead_says_so_and_so_does_who_has_nothing(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    waiting = lead.fetch(at(0), at(0, partition=1), full=True)
    assert [part.partition for part in waiting.parts] == [1]
    assert isinstance(error_of(only(waiting)), UnknownTopicError)
    waiting = lead.fetch()
    host.follow(2, 5)
    assert isinstance(error_of(only(waiting)), NotLeaderError)


@runs(play)
async def test_waiting_followers_hear_at_once_that_the_leader_is_gone(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    waiting = lead.fetch(at(0), full=True)
    host.follow(2, 6)
    assert only(waiting).failure is not None


@runs(play)
async def test_the_watermark_is_told_when_there_is_nothing_else_to_say(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a")
    await s.come_to_rest()
    lead.fetch(at(0), full=True)
    waiting = lead.fetch(at(1, last_epoch=5))
    assert host.high_watermark == 1
    assert not waiting.answers, "it can wait for the next answer"
    lead.fetch()
    part = only(waiting)
    assert (part.length, part.high_watermark) == (0, 1)
    quiet = lead.fetch()
    lead.fetch()
    assert quiet.parts == [], "told once"


@runs(play)
async def test_what_an_idle_partition_costs_does_not_grow_with_each_turn(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a")
    await s.come_to_rest()
    lead.fetch(at(0), full=True)
    lead.fetch(at(1, last_epoch=5))
    lead.fetch()
    looked_at: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch_session, "_limits", looked_at.append)
        for _ in range(3):
            lead.fetch()
    assert looked_at == []


@pytest.mark.parametrize("epoch", [4, 6])
@runs(play)
async def test_who_was_refused_is_told_the_watermark_once_it_may_copy(
    s: Scene, *, epoch: int
) -> None:
    """A refusal names it, too, and nobody takes it from there; then nothing is appended."""
    lead = Leading(s)
    log = s.log()
    write(log, b"a", epoch=3)
    host = lead.leader(log, isr=[1])
    await s.come_to_rest()
    assert host.high_watermark == 1
    refused = lead.fetch(at(1, last_epoch=3, epoch=epoch), full=True)
    assert only(refused).failure is not None
    waiting = lead.fetch(at(1, last_epoch=3))
    lead.fetch()
    assert only(waiting).high_watermark == 1


@runs(play)
async def test_who_asks_anew_is_told_the_watermark_anew(s: Scene) -> None:
    """What it was told it may have let be, because its log was being cut."""
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a")
    await s.come_to_rest()
    lead.fetch(at(0), full=True)
    lead.fetch(at(1, last_epoch=5))
    first = lead.fetch(at(1, last_epoch=5))
    second = lead.fetch(at(1, last_epoch=5))
    lead.fetch()
    assert [only(reply).high_watermark for reply in (first, second)] == [1, 1]


@runs(play)
async def test_no_watermark_is_told_to_who_has_to_cut_first(s: Scene) -> None:
    """Its log reaches beyond what both have: it would take foreign records for committed ones."""
    lead = Leading(s)
    log = s.log()
    write(log, b"a", epoch=3)
    host = lead.leader(log, isr=[1])
    lead.fetch(at(5, last_epoch=4), full=True)
    append(host, b"b")
    await s.come_to_rest()
    assert host.high_watermark == 2
    waiting = lead.fetch()
    lead.fetch()
    assert waiting.parts == []


@runs(play)
async def test_no_watermark_of_a_new_epoch_is_told_to_who_is_in_the_old_one(s: Scene) -> None:
    lead = Leading(s)
    log = s.log()
    write(log, b"a", epoch=3)
    host = lead.leader(log, isr=[1])
    lead.fetch(at(1, last_epoch=3), full=True)
    lead.fetch()
    newer = replace(lead.partitions[TOPIC_ID, 0].state, leader_epoch=6, version=2)
    waiting = lead.fetch()
    host.lead(newer, 1, lag_max_seconds=10)
    assert isinstance(error_of(only(waiting)), NotLeaderError)
    append(host, b"b")
    await s.come_to_rest()
    assert host.high_watermark == 2
    waiting = lead.fetch()
    lead.fetch()
    assert waiting.parts == []


@runs(play)
async def test_where_the_log_begins_is_told_too(s: Scene) -> None:
    """Else records that were deleted would be there again under the next leader."""
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a")
    append(host, b"b")
    await s.come_to_rest()
    lead.fetch(at(0), full=True)
    lead.fetch(at(2, last_epoch=5))
    waiting = lead.fetch()
    host.delete_records(1, lambda _error: None)
    await s.come_to_rest()
    lead.fetch()
    assert only(waiting).log_start_offset == 1, "once it is durable here"
    quiet = lead.fetch()
    lead.fetch()
    assert quiet.parts == []


# -- leadership check ------------------------------------------------------------------------------
#
# Whether this broker still leads: the others that may be elected say so, or the group does.


class FakeSession:
    """A follower that asks again when the test says so, and follows what the test says."""

    def __init__(self) -> None:
        self.epoch = 5
        self.waiting: list[object] = []

    def when_fetched_again(self, done: object) -> None:
        self.waiting.append(done)

    def stop_waiting(self, done: object) -> None:
        if done in self.waiting:
            self.waiting.remove(done)

    def follows(self, _topic_id: str, _partition: int, leader_epoch: int) -> bool:
        return self.epoch == leader_epoch

    def is_heard(self) -> None:
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done()  # type: ignore[operator]


class Asking:
    """Broker 1, asked for an end. The group agrees on what the test says."""

    def __init__(
        self, s: Scene, isr: Sequence[int] = (1, 2, 3), elr: Sequence[int] = (), min_isr: int = 1
    ) -> None:
        state = state_of(1, 2, 3, epoch=5, isr=isr)
        state = replace(state, elr={broker: DISKS[broker] for broker in elr}, min_isr=min_isr)
        self.host: Partition = s.host()
        self.host.lead(state, 1, lag_max_seconds=10)
        self.member = HostedPartition(
            "t", TOPIC_ID, 0, 3, PartitionMachine(state.encode()), self.host
        )
        self.sessions = {2: FakeSession(), 3: FakeSession()}
        self.noted: list[RaftlogError | None] = []
        self.proposals: list[Callable[[Outcome], None]] = []
        self.confirmation = LeadershipCheck(
            1,
            loop=s.loop,
            session_of=lambda b: cast("FetchSession | None", self.sessions.get(b)),
            find=lambda _topic_id, _partition: self.member,
            propose=self._propose,
        )

    def _propose(self, raft_id: str, command: bytes, done: Callable[[Outcome], None]) -> None:
        assert (raft_id, command) == (self.member.raft_id, b"")
        self.proposals.append(done)

    def ask(self) -> None:
        self.confirmation.confirm(self.host, self.noted.append)

    def apply(self) -> None:
        """The command is applied here, and with it all that was agreed on before."""
        self.proposals.pop(0)(Applied(self.member.machine.apply(b"")))


@runs(play)
async def test_all_the_others_have_to_be_heard(s: Scene) -> None:
    a = Asking(s)
    a.ask()
    a.sessions[2].is_heard()
    a.sessions[2].is_heard()
    assert a.noted == []
    a.sessions[3].is_heard()
    assert a.noted == [None]
    await asyncio.sleep(2 * CONFIRM_SECONDS_MAX)
    assert a.noted == [None], "once"


@runs(play)
async def test_alone_in_sync_there_is_nobody_to_ask(s: Scene) -> None:
    a = Asking(s, isr=[1])
    a.ask()
    assert a.noted == [None]


@runs(play)
async def test_a_member_of_the_elr_has_to_be_heard_too(s: Scene) -> None:
    """It may have been elected, though it is not in sync."""
    a = Asking(s, isr=[1], elr=[2], min_isr=2)
    a.ask()
    assert a.noted == []
    a.sessions[2].is_heard()
    assert a.noted == [None]
    await asyncio.sleep(2 * GROUP_SECONDS)
    assert not a.proposals, "the group need not be asked"


@runs(play)
async def test_the_group_settles_it_where_a_member_is_down(s: Scene) -> None:
    a = Asking(s, isr=[1], elr=[2], min_isr=2)
    del a.sessions[2]
    a.ask()
    await asyncio.sleep(RETRY_SECONDS)
    a.ask()
    await asyncio.sleep(GROUP_SECONDS / 2)
    assert (a.noted, len(a.proposals)) == ([], 1), "one at a time"
    a.apply()
    assert a.noted == [None]
    a.apply()
    assert a.noted == [None, None]
    assert not a.proposals


@runs(play)
async def test_the_group_settles_it_where_a_member_does_not_answer(s: Scene) -> None:
    a = Asking(s)
    a.ask()
    assert not a.proposals
    await asyncio.sleep(GROUP_SECONDS * 1.1)
    a.apply()
    assert a.noted == [None]
    a.sessions[2].is_heard()
    a.sessions[3].is_heard()
    await asyncio.sleep(2 * CONFIRM_SECONDS_MAX)
    assert a.noted == [None], "once"


@runs(play)
async def test_a_group_that_has_elected_another_leader_confirms_nothing(s: Scene) -> None:
    """This broker's host has not taken that over yet."""
    a = Asking(s, isr=[1], elr=[2], min_isr=2)
    del a.sessions[2]
    a.ask()
    await asyncio.sleep(RETRY_SECONDS)
    a.member.machine.apply(Elect(a.member.state.version, 2, DISKS[2]).encode())
    a.apply()
    assert [type(error) for error in a.noted] == [NotLeaderError]
    assert a.host.leadership is not None


@runs(play)
async def test_a_group_without_a_leader_leaves_it_to_the_members(s: Scene) -> None:
    a = Asking(s)
    a.ask()
    await asyncio.sleep(GROUP_SECONDS * 1.1)
    a.proposals.pop()(NotProposed("no leader in time"))
    assert a.noted == []
    a.sessions[2].is_heard()
    a.sessions[3].is_heard()
    assert a.noted == [None]


@runs(play)
async def test_who_is_silent_is_named_after_a_while(s: Scene) -> None:
    a = Asking(s)
    del a.sessions[3]
    a.ask()
    a.sessions[2].is_heard()
    await asyncio.sleep(CONFIRM_SECONDS_MAX * 1.1)
    (error,) = a.noted
    assert isinstance(error, LeaderNotAvailableError)
    assert "neither brokers 3 nor a majority" in str(error)
    a.sessions[2].is_heard()
    assert len(a.noted) == 1


@runs(play)
async def test_who_follows_in_another_epoch_confirms_nothing(s: Scene) -> None:
    a = Asking(s, isr=[1, 2])
    a.sessions[2].epoch = 6
    a.ask()
    a.sessions[2].is_heard()
    assert a.noted == []


@runs(play)
async def test_who_does_not_follow_yet_is_asked_again(s: Scene) -> None:
    """An epoch has just begun: a follower's next request may be of before it heard of that."""
    a = Asking(s)
    late = a.sessions.pop(3)
    a.sessions[2].epoch = 4
    a.ask()
    a.sessions[2].is_heard()
    a.sessions[2].epoch = 5
    a.sessions[3] = late
    assert not a.sessions[2].waiting
    await asyncio.sleep(2 * RETRY_SECONDS)
    a.sessions[2].is_heard()
    a.sessions[3].is_heard()
    assert a.noted == [None]


@runs(play)
async def test_nobody_is_asked_again_when_the_time_is_up(s: Scene) -> None:
    a = Asking(s, isr=[1, 2])
    a.sessions[2].epoch = 4
    a.ask()
    for _ in range(100):
        a.sessions[2].is_heard()
        await asyncio.sleep(RETRY_SECONDS)
    assert [type(error) for error in a.noted] == [LeaderNotAvailableError]
    assert not a.sessions[2].waiting


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_nobody_waits_for_a_follower_when_it_is_settled(is_confirmed: bool) -> None:
    """One whose only copy is offline stays in the ELR, and fetches nothing."""

    async def test(s: Scene) -> None:
        a = Asking(s, isr=[1], elr=[2], min_isr=2)
        lead = Leading(s)
        lead.fetch(full=True)
        a.sessions[2] = cast("FakeSession", lead.session)
        a.ask()
        await asyncio.sleep(GROUP_SECONDS * 1.1)
        if is_confirmed:
            a.apply()
        await asyncio.sleep(CONFIRM_SECONDS_MAX)
        assert [error is None for error in a.noted] == [is_confirmed]
        assert not lead.session._round_waiters

    play(test)


@runs(play)
async def test_a_leader_that_is_one_no_more_says_so(s: Scene) -> None:
    a = Asking(s, isr=[1, 2])
    a.ask()
    a.host.follow(2, 6)
    a.sessions[2].is_heard()
    assert [type(error) for error in a.noted] == [NotLeaderError]
    a.ask()
    assert [type(error) for error in a.noted] == [NotLeaderError] * 2


@runs(play)
async def test_a_new_epoch_of_the_same_leader_is_another_question(s: Scene) -> None:
    a = Asking(s, isr=[1, 2])
    a.ask()
    a.host.lead(state_of(1, 2, 3, epoch=6, isr=[1, 2], version=2), 1, lag_max_seconds=10)
    a.sessions[2].is_heard()
    assert [type(error) for error in a.noted] == [NotLeaderError]


# -- replica session limits ------------------------------------------------------------------------
#
# A follower that is slow, gone, or wants too much; and disks that are bad.


@runs(play)
async def test_an_answer_is_bounded_and_the_rest_comes_next(s: Scene) -> None:
    lead = Leading(s)
    for partition in range(3):
        append(lead.leader(partition=partition), b"x" * 1_000)
    reply = lead.fetch(*(at(0, partition=n) for n in range(3)), full=True, bytes_max=1_500)
    assert [part.partition for part in reply.parts] == [0, 1]
    rest = lead.fetch(bytes_max=1_500)
    assert [part.partition for part in rest.parts] == [2]


@runs(play)
async def test_batches_are_whole_and_each_partition_has_its_own_bound(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a" * 100)
    append(host, b"b" * 100)
    reply = lead.fetch(at(0, bytes_max=10), full=True)
    assert len(list(split(b"".join(reply.answers[0][1])))) == 1


@runs(play)
async def test_what_is_forgotten_is_not_watched_any_more(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    lead.fetch(at(0), full=True)
    waiting = lead.fetch(forgotten=(0,))
    append(host, b"a")
    assert not waiting.answers
    lead.durable(1)
    assert host.high_watermark == 0
    assert not host._append_watchers


@runs(play)
async def test_nothing_is_kept_of_what_was_copied_and_is_forgotten(s: Scene) -> None:
    """Else a connection keeps an entry of each partition that was ever deleted."""
    lead = Leading(s)
    append(lead.leader(), b"a")
    lead.fetch(at(0), full=True)
    lead.fetch(at(1, last_epoch=5))
    lead.fetch(forgotten=(0,))
    assert not lead.session._sent


@runs(play)
async def test_a_full_request_is_all_there_is(s: Scene) -> None:
    lead = Leading(s)
    one, other = lead.leader(partition=0), lead.leader(partition=1)
    lead.fetch(at(0), at(0, partition=1), full=True)
    waiting = lead.fetch(at(0, partition=1), full=True)
    append(one, b"a")
    assert not waiting.answers
    append(other, b"b")
    assert values(waiting) == [b"b"]


@runs(play)
async def test_the_first_request_has_to_be_full(s: Scene) -> None:
    lead = Leading(s)
    lead.leader()
    with pytest.raises(InvalidRequestError):
        lead.fetch(at(0))


@runs(play)
async def test_the_end_leaves_nothing_behind(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    waiting = lead.fetch(at(0), full=True)
    lead.session.close()
    append(host, b"a")
    await asyncio.sleep(10)
    assert not waiting.answers
    assert not host._append_watchers


@runs(play)
async def test_a_follower_that_is_gone_is_not_answered(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    waiting = lead.fetch(at(0), full=True)
    waiting.connection.is_closed = True
    append(host, b"a")
    assert not waiting.answers
    assert not host._append_watchers


@runs(play)
async def test_a_follower_that_does_not_read_is_answered_when_it_does(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    waiting = lead.fetch(at(0), full=True)
    waiting.connection.may_answer_at_length = False
    for value in (b"a", b"b", b"c"):
        append(host, value)
    assert not waiting.answers
    assert len(waiting.connection.ready) == 1, "told once, however many appends there are"
    waiting.connection.drain()
    assert values(waiting) == [b"a", b"b", b"c"]


@runs(play)
async def test_a_disk_that_cannot_be_read_harms_no_producer(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    waiting = lead.fetch(at(0), full=True)
    s.disk.faults.append(Fault({"read"}))
    assert append(host, b"a") == 1
    assert isinstance(error_of(only(waiting)), DamagedLogError)
    assert not host.log.damage, "an error of the moment, maybe: the disk is asked again"
    assert values(lead.fetch(at(0, durable=0))) == [b"a"]


def corrupt(s: Scene, log: Log) -> None:
    path = f"{log.directory}/{0:020d}.log"
    s.disk.flip_bit(path, 8 * 100)


def damaged_leader(check: Callable[[Scene, Leading, Partition], None]) -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        log = s.log()
        write(log, b"a" * 100, b"b" * 100, epoch=5)
        host = lead.leader(log)
        corrupt(s, log)
        lead.fetch(at(0), full=True)
        check(s, lead, host)

    play(test)


def test_who_asks_for_the_same_again_has_the_leader_look_at_its_disk() -> None:
    def check(_s: Scene, lead: Leading, host: Partition) -> None:
        assert not host.log.damage, "bytes are sent as they are"
        lead.fetch(forgotten=(0,))
        reply = lead.fetch(at(0))
        assert "is corrupt at offset 0" in host.log.damage
        assert isinstance(error_of(only(reply)), DamagedLogError)

    damaged_leader(check)


@runs(play)
async def test_a_leader_that_cannot_read_its_own_log_notes_it(s: Scene) -> None:
    lead = Leading(s)
    log = s.log()
    write(log, b"a" * 100, b"b" * 100, epoch=5)
    host = lead.leader(log)
    s.disk.flip_bit(f"{log.directory}/{0:020d}.log", 8 * 3)
    reply = lead.fetch(at(0), full=True)
    assert isinstance(error_of(only(reply)), DamagedLogError)
    assert host.log.damage
    assert host.log.readable_end_offset == 0
    assert lead.progress == [lead.partitions[TOPIC_ID, 0]], "it is to stop leading at once"


def test_who_goes_on_does_not() -> None:
    def check(_s: Scene, lead: Leading, host: Partition) -> None:
        lead.fetch(at(1, last_epoch=5))
        assert not host.log.damage

    damaged_leader(check)


@runs(play)
async def test_a_sound_disk_is_found_so(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader()
    append(host, b"a")
    await s.come_to_rest()
    for _ in range(3):
        reply = lead.fetch(at(0), full=True)
        assert values(reply) == [b"a"]
    assert not host.log.damage


@runs(play)
async def test_who_is_not_in_sync_and_moves_is_looked_at(s: Scene) -> None:
    lead = Leading(s)
    host = lead.leader(isr=[1])
    lead.fetch(at(0), full=True)
    assert lead.progress == [lead.partitions[TOPIC_ID, 0]]
    append(host, b"a")
    lead.durable(0)
    assert len(lead.progress) == 2


@runs(play)
async def test_who_is_in_sync_is_not(s: Scene) -> None:
    lead = Leading(s)
    lead.leader()
    lead.fetch(at(0), full=True)
    assert lead.progress == []


@runs(play)
async def test_progress_of_what_nobody_knows_is_nothing(s: Scene) -> None:
    lead = Leading(s)
    lead.leader()
    lead.durable(5)
    lead.durable(5, partition=9)
    lead.fetch(at(0, partition=9), full=True)
    lead.durable(5, partition=9)


@runs(play)
async def test_a_copy_that_was_made_anew_is_found_with_the_next_position(s: Scene) -> None:
    lead = Leading(s)
    old = lead.leader()
    lead.fetch(at(0), full=True)
    new = lead.leader()
    reply = lead.fetch(at(0))
    append(new, b"new")
    assert values(reply) == [b"new"]
    assert not old._append_watchers
