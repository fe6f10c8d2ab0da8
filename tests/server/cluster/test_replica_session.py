"""The leader's side of copying: what a follower gets, and what counts as its word."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raftlog.errors import (
    DamagedLogError,
    FencedLeaderEpochError,
    InvalidRequestError,
    NotLeaderError,
    UnknownLeaderEpochError,
    UnknownTopicError,
)
from raftlog.protocol.replication import (
    DurablePosition,
    ReplicaFetched,
    ReplicaFetchRequest,
    ReplicaPosition,
    TopicIdPartition,
)
from raftlog.record import split
from raftlog.server.cluster.member import Member
from raftlog.server.cluster.replica_session import ReplicaSession
from raftlog.server.replica_host import PartitionHost
from raftlog.storage import Log
from raftlog.testing.disk import Fault
from tests.server.cluster.paper import (
    DISKS,
    TOPIC_ID,
    PaperReply,
    Scene,
    append,
    play,
    state_of,
    write,
)
from tests.server.harness import error_of, values_of

WAIT_MS = 500


class Leading:
    """A leader's partition or more, and the session of one follower: broker 2."""

    def __init__(self, s: Scene) -> None:
        self.s = s
        self.members: dict[tuple[str, int], Member] = {}
        self.progress: list[Member] = []
        self.session = ReplicaSession(
            2,
            DISKS[2],
            loop=s.loop,
            find=lambda topic_id, partition: self.members.get((topic_id, partition)),
            on_progress=self.progress.append,
        )

    def leader(self, log: Log | None = None, *, partition: int = 0, **facts: Any) -> PartitionHost:
        facts.setdefault("epoch", 5)
        state = state_of(1, 2, **facts)
        host = self.s.host(log, partition=partition)
        host.lead(state, 1, lag_max_seconds=10)
        self.members[TOPIC_ID, partition] = self.s.member(state, host)
        return host

    def fetch(
        self,
        *positions: ReplicaPosition,
        full: bool = False,
        forgotten: tuple[int, ...] = (),
        bytes_max: int = 1 << 20,
        reply: PaperReply | None = None,
    ) -> PaperReply:
        reply = reply or PaperReply()
        request = ReplicaFetchRequest(
            partitions=list(positions),
            full=full,
            forgotten=[TopicIdPartition(TOPIC_ID, number) for number in forgotten],
            wait_ms_max=WAIT_MS,
            bytes_max=bytes_max,
        )
        self.session.fetch(request, reply.as_reply)
        return reply

    def durable(self, offset: int, *, epoch: int = 5, partition: int = 0) -> None:
        self.session.progress([DurablePosition(TOPIC_ID, partition, epoch, offset)])


def at(
    offset: int,
    *,
    partition: int = 0,
    epoch: int = 5,
    last_epoch: int = -1,
    durable: int | None = None,
    bytes_max: int = 1 << 20,
) -> ReplicaPosition:
    return ReplicaPosition(
        topic_id=TOPIC_ID,
        partition=partition,
        leader_epoch=epoch,
        fetch_offset=offset,
        last_epoch=last_epoch,
        durable_offset=offset if durable is None else durable,
        bytes_max=bytes_max,
    )


def only(reply: PaperReply) -> ReplicaFetched:
    (part,) = reply.parts
    return part


def values(reply: PaperReply) -> list[bytes]:
    return values_of(b"".join(reply.answers[0][1]))


def test_what_is_there_is_answered_at_once_durable_or_not() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        host = lead.leader()
        s.workers.hold()
        append(host, b"a", b"b")
        await s.settle()
        reply = lead.fetch(at(0), full=True)
        part = only(reply)
        assert values(reply) == [b"a", b"b"]
        assert part.length == sum(map(len, reply.answers[0][1]))
        assert (part.leader_epoch, part.high_watermark, part.log_start_offset) == (5, 0, 0)
        assert part.failure is part.diverged is part.restart_at is None

    play(test)


def test_a_fetch_waits_for_an_append_and_no_longer_than_it_said() -> None:
    async def test(s: Scene) -> None:
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

    play(test)


def test_one_position_is_answered_once() -> None:
    async def test(s: Scene) -> None:
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

    play(test)


def test_a_newer_request_is_the_end_of_the_one_that_waits() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        lead.leader()
        first = lead.fetch(at(0), full=True)
        second = lead.fetch()
        assert len(first.answers) == 1
        assert not second.answers

    play(test)


def test_what_is_committed_takes_the_followers_disk() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        host = lead.leader()
        append(host, b"a", b"b")
        await s.settle()
        lead.fetch(at(0), full=True)
        lead.fetch(at(2, last_epoch=5, durable=0))
        assert host.high_watermark == 0, "it has the bytes, and its disk has not"
        lead.durable(2)
        assert host.high_watermark == 2

    play(test)


def test_progress_of_another_epoch_counts_for_nothing() -> None:
    """S04, both ways: in the message, and in the session."""

    async def test(s: Scene) -> None:
        lead = Leading(s)
        host = lead.leader()
        append(host, b"a")
        await s.settle()
        lead.fetch(at(0), full=True)
        lead.fetch(at(1, last_epoch=5, durable=0))
        lead.durable(1, epoch=4)
        lead.durable(1, epoch=6)
        assert host.high_watermark == 0
        # The same broker leads again, in a new epoch: what was said in the old one is void.
        member = lead.members[TOPIC_ID, 0]
        newer = replace(member.state, leader_epoch=6, version=2)
        host.lead(newer, 1, lag_max_seconds=10)
        lead.durable(1, epoch=5)
        assert host.high_watermark == 0

    play(test)


def test_a_log_that_is_no_prefix_counts_for_nothing_until_it_is_cut() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        log = s.log()
        write(log, b"a", b"b", epoch=3)
        host = lead.leader(log)
        end = append(host, b"c")
        await s.settle()
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

    play(test)


def test_a_follower_that_is_behind_the_logs_start_begins_anew() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        log = s.log()
        log.restart_at(10)
        lead.leader(log)
        part = only(lead.fetch(at(3, last_epoch=4), full=True))
        assert part.restart_at == 10
        assert part.log_start_offset == 10

    play(test)


@pytest.mark.parametrize(
    ("epoch", "error"), [(4, FencedLeaderEpochError), (6, UnknownLeaderEpochError)]
)
def test_other_epochs_are_refused(epoch: int, error: type[Exception]) -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        host = lead.leader()
        append(host, b"a")
        await s.settle()
        reply = lead.fetch(at(0, epoch=epoch), full=True)
        assert isinstance(error_of(only(reply)), error)
        assert only(reply).leader_epoch == epoch, "that of the position which is answered"
        lead.fetch(at(1, epoch=epoch, last_epoch=5))
        assert host.high_watermark == 0

    play(test)


def test_who_does_not_lead_says_so_and_so_does_who_has_nothing() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        host = lead.leader()
        waiting = lead.fetch(at(0), at(0, partition=1), full=True)
        assert [part.partition for part in waiting.parts] == [1]
        assert isinstance(error_of(only(waiting)), UnknownTopicError)
        waiting = lead.fetch()
        host.follow(2, 5)
        assert isinstance(error_of(only(waiting)), NotLeaderError)

    play(test)


def test_waiting_followers_hear_at_once_that_the_leader_is_gone() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        host = lead.leader()
        waiting = lead.fetch(at(0), full=True)
        host.follow(2, 6)
        assert only(waiting).failure is not None

    play(test)


def test_the_watermark_is_told_when_there_is_nothing_else_to_say() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        host = lead.leader()
        append(host, b"a")
        await s.settle()
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

    play(test)


def test_no_watermark_is_told_to_who_has_to_cut_first() -> None:
    """Its log reaches beyond what both have: it would take foreign records for committed ones."""

    async def test(s: Scene) -> None:
        lead = Leading(s)
        log = s.log()
        write(log, b"a", epoch=3)
        host = lead.leader(log, isr=[1])
        lead.fetch(at(5, last_epoch=4), full=True)
        append(host, b"b")
        await s.settle()
        assert host.high_watermark == 2
        waiting = lead.fetch()
        lead.fetch()
        assert waiting.parts == []

    play(test)


def test_no_watermark_of_a_new_epoch_is_told_to_who_is_in_the_old_one() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        log = s.log()
        write(log, b"a", epoch=3)
        host = lead.leader(log, isr=[1])
        lead.fetch(at(1, last_epoch=3), full=True)
        lead.fetch()
        newer = replace(lead.members[TOPIC_ID, 0].state, leader_epoch=6, version=2)
        waiting = lead.fetch()
        host.lead(newer, 1, lag_max_seconds=10)
        assert isinstance(error_of(only(waiting)), NotLeaderError)
        append(host, b"b")
        await s.settle()
        assert host.high_watermark == 2
        waiting = lead.fetch()
        lead.fetch()
        assert waiting.parts == []

    play(test)


def test_an_answer_is_bounded_and_the_rest_comes_next() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        for partition in range(3):
            append(lead.leader(partition=partition), b"x" * 1_000)
        reply = lead.fetch(*(at(0, partition=n) for n in range(3)), full=True, bytes_max=1_500)
        assert [part.partition for part in reply.parts] == [0, 1]
        rest = lead.fetch(bytes_max=1_500)
        assert [part.partition for part in rest.parts] == [2]

    play(test)


def test_batches_are_whole_and_each_partition_has_its_own_bound() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        host = lead.leader()
        append(host, b"a" * 100)
        append(host, b"b" * 100)
        reply = lead.fetch(at(0, bytes_max=10), full=True)
        assert len(list(split(b"".join(reply.answers[0][1])))) == 1

    play(test)


def test_what_is_forgotten_is_not_watched_any_more() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        host = lead.leader()
        lead.fetch(at(0), full=True)
        waiting = lead.fetch(forgotten=(0,))
        append(host, b"a")
        assert not waiting.answers
        lead.durable(1)
        assert host.high_watermark == 0
        assert not host._append_watchers

    play(test)


def test_a_full_request_is_all_there_is() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        one, other = lead.leader(partition=0), lead.leader(partition=1)
        lead.fetch(at(0), at(0, partition=1), full=True)
        waiting = lead.fetch(at(0, partition=1), full=True)
        append(one, b"a")
        assert not waiting.answers
        append(other, b"b")
        assert values(waiting) == [b"b"]

    play(test)


def test_the_first_request_has_to_be_full() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        lead.leader()
        with pytest.raises(InvalidRequestError):
            lead.fetch(at(0))

    play(test)


def test_the_end_leaves_nothing_behind() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        host = lead.leader()
        waiting = lead.fetch(at(0), full=True)
        lead.session.close()
        append(host, b"a")
        await asyncio.sleep(10)
        assert not waiting.answers
        assert not host._append_watchers

    play(test)


def test_a_follower_that_is_gone_is_not_answered() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        host = lead.leader()
        waiting = lead.fetch(at(0), full=True)
        waiting.connection.is_closed = True
        append(host, b"a")
        assert not waiting.answers
        assert not host._append_watchers

    play(test)


def test_a_follower_that_does_not_read_is_answered_when_it_does() -> None:
    async def test(s: Scene) -> None:
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

    play(test)


def test_a_disk_that_cannot_be_read_harms_no_producer() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        host = lead.leader()
        waiting = lead.fetch(at(0), full=True)
        s.disk.faults.append(Fault({"read"}))
        assert append(host, b"a") == 1
        assert isinstance(error_of(only(waiting)), DamagedLogError)
        assert not host.log.damage, "an error of the moment, maybe: the disk is asked again"
        assert values(lead.fetch(at(0, durable=0))) == [b"a"]

    play(test)


def corrupt(s: Scene, log: Log) -> None:
    path = f"{log.directory}/{0:020d}.log"
    s.disk.flip_bit(path, 8 * 100)


def damaged_leader(check: Callable[[Scene, Leading, PartitionHost], None]) -> None:
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
    def check(_s: Scene, lead: Leading, host: PartitionHost) -> None:
        assert not host.log.damage, "bytes are sent as they are"
        lead.fetch(forgotten=(0,))
        reply = lead.fetch(at(0))
        assert "is damaged at offset 0" in host.log.damage
        assert isinstance(error_of(only(reply)), DamagedLogError)

    damaged_leader(check)


def test_who_goes_on_does_not() -> None:
    def check(_s: Scene, lead: Leading, host: PartitionHost) -> None:
        lead.fetch(at(1, last_epoch=5))
        assert not host.log.damage

    damaged_leader(check)


def test_a_sound_disk_is_found_so() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        host = lead.leader()
        append(host, b"a")
        await s.settle()
        for _ in range(3):
            reply = lead.fetch(at(0), full=True)
            assert values(reply) == [b"a"]
        assert not host.log.damage

    play(test)


def test_who_is_not_in_sync_and_moves_is_looked_at() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        host = lead.leader(isr=[1])
        lead.fetch(at(0), full=True)
        assert lead.progress == [lead.members[TOPIC_ID, 0]]
        append(host, b"a")
        lead.durable(0)
        assert len(lead.progress) == 2

    play(test)


def test_who_is_in_sync_is_not() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        lead.leader()
        lead.fetch(at(0), full=True)
        assert lead.progress == []

    play(test)


def test_progress_of_what_nobody_knows_is_nothing() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        lead.leader()
        lead.durable(5)
        lead.durable(5, partition=9)
        lead.fetch(at(0, partition=9), full=True)
        lead.durable(5, partition=9)

    play(test)


def test_a_copy_that_was_made_anew_is_found_with_the_next_position() -> None:
    async def test(s: Scene) -> None:
        lead = Leading(s)
        old = lead.leader()
        lead.fetch(at(0), full=True)
        new = lead.leader()
        reply = lead.fetch(at(0))
        append(new, b"new")
        assert values(reply) == [b"new"]
        assert not old._append_watchers

    play(test)
