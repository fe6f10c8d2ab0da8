"""Leader side of replication: the fetch session of one follower, over one connection.

The follower sends the partitions whose position changed; the session keeps the others. A partition
is checked only after an event: an append, a new high watermark, or a new position of the follower.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import AbstractEventLoop
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final, TypeAlias

from raftlog.consensus import Applied, Outcome
from raftlog.errors import (
    DamagedLogError,
    FencedLeaderEpochError,
    LeaderNotAvailableError,
    NotLeaderError,
    OffsetOutOfRangeError,
    RaftlogError,
    UnknownLeaderEpochError,
    UnknownTopicError,
)
from raftlog.protocol.peer import (
    Divergence,
    DurablePosition,
    LeaderSession,
    PartitionKey,
    ReplicaFetched,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaPosition,
)
from raftlog.protocol.schema import Failure
from raftlog.replication.leadership import (
    Diverged,
    OutOfRange,
    divergence,
    lacks_committed,
    may_lose_committed,
)
from raftlog.server.cluster.elections import HostedPartition
from raftlog.server.cluster.replicas import NO_OP
from raftlog.server.exchange import Reply
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Acknowledge, Rounds

logger = logging.getLogger(__name__)

UNKNOWN = (-1, -1)


class _LimitsWatcher:
    """Notes that the high watermark of a partition changed: no reason for a response by itself."""

    __slots__ = ("_behind", "_copied")

    def __init__(self, copied: _Copied, behind: dict[_Copied, None]) -> None:
        self._copied = copied
        self._behind = behind

    def wake(self) -> None:
        self._behind[self._copied] = None


class _Copied:
    """Replication state of one partition for this follower."""

    __slots__ = ("_limits", "_session", "at", "host", "is_prefix", "is_sent", "key", "known_limits")

    def __init__(
        self,
        session: FetchSession,
        key: PartitionKey,
        at: ReplicaPosition,
        behind: dict[_Copied, None],
    ) -> None:
        self._session = session
        self._limits = _LimitsWatcher(self, behind)
        self.key = key
        self.at = at
        self.host: Partition | None = None
        # High watermark and log start offset that the follower knows.
        self.known_limits = UNKNOWN
        self.is_sent = False  # True: nothing more to send until the follower's position changes
        # The follower's log up to there is known to be a prefix of the leader's.
        self.is_prefix = False

    def wake(self) -> None:
        self._session.schedule(self)

    @property
    def knows_old_start(self) -> bool:
        """Whether the follower received a log start offset that is outdated now."""
        return (
            self.host is not None
            and self.known_limits != UNKNOWN
            and self.known_limits[1] != self.host.log.log_start_offset
        )

    def watch(self, host: Partition | None) -> None:
        if host is self.host:
            return
        if self.host is not None:
            self.host.unwatch_appends(self)
            self.host.unwatch(self._limits)
        self.host = host
        if host is not None:
            host.watch_appends(self)
            host.watch(self._limits)


class FetchSession:
    """The fetch session of one follower. It ends with its connection: call ``close``."""

    def __init__(
        self,
        follower: int,
        directory_id: str,
        boot: int,
        *,
        loop: asyncio.AbstractEventLoop,
        find: Callable[[str, int], HostedPartition | None],
        on_progress: Callable[[HostedPartition], None],
        on_damage: Callable[[Partition, RaftlogError], None],
    ) -> None:
        """``on_progress``: called when a follower outside the ISR has moved, and when corruption is
        found.

        ``on_damage``: called when this broker's own log lacks records that its follower knows to be
        committed.
        """
        self.follower = follower
        self._directory_id = directory_id
        self._boot = boot
        self._loop = loop
        self._find = find
        self._on_progress = on_progress
        self._on_damage = on_damage
        self._session = LeaderSession()
        self._copied: dict[PartitionKey, _Copied] = {}
        self._changed: dict[_Copied, None] = {}
        # Those whose high watermark or log start offset the follower may not know.
        self._behind: dict[_Copied, None] = {}
        # Epoch and offset of the batches sent since the last position of a partition.
        self._sent: dict[PartitionKey, tuple[int, int]] = {}
        self._waits_for_writable = False
        self._waiting: tuple[Reply, ReplicaFetchRequest] | None = None
        self._round = 0  # number of the last response whose follow-up fetch a waiter needs
        self._round_due = False
        self._round_waiters: dict[Callable[[], None], int] = {}  # with their rounds, ascending
        self._timer: asyncio.TimerHandle | None = None

    # -- requests

    def fetch(self, request: ReplicaFetchRequest, reply: Reply) -> None:
        """Respond when there is something to send. A fetch that already waits is answered at
        once.
        """
        self._respond_waiting(final=True)
        self._session.apply(request)
        gone = (
            [key for key in self._copied if key not in self._session.positions]
            if request.full or request.forgotten
            else []
        )
        for key in gone:
            copied = self._copied.pop(key)
            copied.watch(None)
            self._changed.pop(copied, None)
            self._behind.pop(copied, None)
        # guard: a confirmation counts what its request says
        for at in request.partitions:
            self._set_position(at)
        while self._next_round <= request.round:
            done = next(iter(self._round_waiters))
            del self._round_waiters[done]
            done()
        self._waiting = reply, request
        self._timer = self._loop.call_later(
            request.wait_ms_max / 1_000, lambda: self._respond_waiting(final=True)
        )
        # A round that began while no fetch waited: this response carries it. Without one, a check
        # would wait for records, or for the Raft group.
        self._respond_waiting(final=self._next_round <= self._round)

    def progress(self, positions: list[DurablePosition]) -> None:
        """Record the durable end offsets that the follower reports."""
        for position in positions:
            copied = self._copied.get((position.topic_id, position.partition))
            hosted = self._find(position.topic_id, position.partition)
            if copied is None or hosted is None or hosted.host is None:
                continue
            # guard: progress of another epoch is not counted
            is_current = position.leader_epoch == copied.at.leader_epoch
            if is_current and self._differs(copied, hosted.host) is None:
                self._count(hosted, copied, position.durable_offset, position.log_start)
                self._behind[copied] = None

    def follows(self, topic_id: str, partition: int, leader_epoch: int) -> bool:
        """Whether the follower copies the partition in that epoch, by its last request."""
        copied = self._copied.get((topic_id, partition))
        return copied is not None and copied.at.leader_epoch == leader_epoch

    def when_fetched_again(self, done: Callable[[], None]) -> None:
        """Call ``done`` when the follower has fetched again after a response that is not sent yet.

        ``done`` is not called if the connection ends first. ``follows`` then returns the follower's
        state.
        """
        # guard: a confirmation is newer than its request
        self._round_waiters[done] = self._round + 1
        if not self._round_due:
            self._round_due = True
            self._loop.call_soon(self._begin_round)

    def stop_waiting(self, done: Callable[[], None]) -> None:
        """Forget ``done``. A follower that copies nothing may never fetch again."""
        self._round_waiters.pop(done, None)

    @property
    def _next_round(self) -> float:
        """The first round that is waited for; infinite for none."""
        return next(iter(self._round_waiters.values()), inf)

    def _begin_round(self) -> None:
        self._round_due = False
        self._round += 1
        self._respond_waiting(final=True)  # if no fetch waits, the next response carries the round

    def close(self) -> None:
        self._round_waiters.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._waiting = None
        for copied in self._copied.values():
            copied.watch(None)
        self._copied.clear()
        self._changed.clear()
        self._behind.clear()

    # -- inside

    def _set_position(self, at: ReplicaPosition) -> None:
        key = at.topic_id, at.partition
        copied = self._copied.get(key)
        if copied is None:
            copied = self._copied[key] = _Copied(self, key, at, self._behind)
        if at.leader_epoch != copied.at.leader_epoch or at.fetch_offset <= copied.at.fetch_offset:
            # The follower may have ignored a response while it backed off, or rejected it.
            copied.known_limits = UNKNOWN
        copied.at = at
        # guard: a new position is compared with the log
        copied.is_sent = copied.is_prefix = False
        hosted = self._find(*key)
        copied.watch(None if hosted is None else hosted.host)
        self._changed[copied] = self._behind[copied] = None
        if self._sent.pop(key, None) == (at.leader_epoch, at.fetch_offset):
            self._verify_suspect(copied)
        if hosted is not None and hosted.host is not None:
            differs = self._differs(copied, hosted.host)
            # guard: a log that differs is not counted
            if differs is None:
                self._count(hosted, copied, at.durable_offset, at.log_start)
            else:
                self._check_complete(hosted.host, at, differs)

    def _check_complete(
        self, host: Partition, at: ReplicaPosition, differs: Diverged | OutOfRange
    ) -> None:
        """Replace this broker's own copy if it lacks records that the follower knows to be
        committed.

        A commit over the missing range would lose those records. This check may be the only one
        that detects the loss: files can be missing, or older than before, in a way that recovery at
        the start cannot detect.
        """
        leadership = host.leadership
        if leadership is None or at.leader_epoch != host.leader_epoch or host.log.damage:
            return
        state = leadership.state
        is_accepted = may_lose_committed(
            last_epoch=at.last_epoch, unclean_epoch=state.unclean_epoch
        )
        if self.follower not in state.replicas or is_accepted:
            return
        high_watermark = min(at.high_watermark, at.fetch_offset)
        # guard: a leader that lacks committed records releases its copy
        if lacks_committed(differs, high_watermark=high_watermark):
            end = host.log.log_end_offset
            reason = (
                f"{host.log.directory} ends at offset {end} and lacks committed records: broker "
                f"{self.follower} has them up to offset {high_watermark}"
            )
            self._on_damage(host, DamagedLogError(reason))

    def _verify_suspect(self, copied: _Copied) -> None:
        """Verify the bytes that the follower fetches again: they may be corrupt on this disk.

        The log records the corruption that it finds. A leader with a corrupt log transfers
        leadership.
        """
        host, at = copied.host, copied.at
        if host is None or host.leadership is None or host.log.damage:
            return
        try:
            # guard: a leader in doubt verifies its disk
            host.log.verify(at.fetch_offset, bytes_max=at.bytes_max)
        except DamagedLogError as error:
            logger.error("log corrupt: partition=%s reason=%s", host.topic_partition, error)
            hosted = self._find(*copied.key)
            if hosted is not None:
                self._on_progress(hosted)
        except OffsetOutOfRangeError:
            pass  # the response to the fetch reports it

    def _count(
        self, hosted: HostedPartition, copied: _Copied, durable_offset: int, log_start: int
    ) -> None:
        """Count a fetch in the leader's own epoch as the acknowledgement of all offsets below it.

        The follower's log must be a prefix of this one.
        """
        host = hosted.host
        assert host is not None
        leadership, at = host.leadership, copied.at
        # guard: a fetch of another epoch is not counted
        if leadership is None or at.leader_epoch != host.leader_epoch:
            return
        copied.is_prefix = True
        host.on_follower(
            self.follower,
            self._directory_id,
            boot=self._boot,
            fetch_offset=max(at.fetch_offset, durable_offset),
            durable_offset=durable_offset,
            log_start=log_start,
        )
        if self.follower not in leadership.state.isr or leadership.has_lost(self.follower):
            self._on_progress(hosted)

    def schedule(self, copied: _Copied) -> None:
        self._changed[copied] = self._behind[copied] = None
        if self._waiting is not None:
            self._respond_waiting(final=False)

    def _respond_waiting(self, *, final: bool) -> None:
        if self._waiting is None or (not self._changed and not final):
            return
        reply, request = self._waiting
        if not reply.is_wanted:
            self.close()
            return
        if not reply.connection.may_answer_at_length and not final:
            if not self._waits_for_writable:
                self._waits_for_writable = True
                reply.connection.when_writable(self._on_writable)
            return
        answers, batches = self._read(request.bytes_max)
        if final:
            answers += self._watermarks()
        if not answers and not final:
            return
        self._waiting = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        reply.send(ReplicaFetchResponse(partitions=answers, round=self._round), batches)

    def _on_writable(self) -> None:
        self._waits_for_writable = False
        self._respond_waiting(final=False)

    def _read(self, bytes_left: int) -> tuple[list[ReplicaFetched], list[bytes]]:
        answers: list[ReplicaFetched] = []
        batches: list[bytes] = []
        for copied in list(self._changed):
            if bytes_left <= 0:
                break
            del self._changed[copied]
            if copied.is_sent:
                continue
            answer, found = self._response_of(copied, bytes_left)
            if answer is None:
                if copied.knows_old_start:
                    answers.append(self._response(copied))
                continue
            copied.is_sent = True
            answers.append(answer)
            batches += found
            bytes_left -= answer.length
        return answers, batches

    def _response_of(
        self, copied: _Copied, bytes_left: int
    ) -> tuple[ReplicaFetched | None, list[bytes]]:
        at, host = copied.at, copied.host
        try:
            if host is None:
                raise UnknownTopicError("this broker does not store the partition, or not yet")
            _check_epoch(host, at)
            differs = self._differs(copied, host)
            if isinstance(differs, Diverged):
                point = Divergence(epoch=differs.epoch, end_offset=differs.end_offset)
                return self._response(copied, diverged=point), []
            if isinstance(differs, OutOfRange):
                return self._response(copied, restart_at=differs.log_start), []
            copied.is_prefix = True
            if at.fetch_offset >= host.log.log_end_offset:
                return None, []
            found = host.read_uncommitted(
                start_offset=at.fetch_offset, bytes_max=min(at.bytes_max, bytes_left)
            )
            if not found:
                raise OffsetOutOfRangeError(f"no record to read at offset {at.fetch_offset}")
        except RaftlogError as error:
            copied.is_prefix = False
            if isinstance(error, DamagedLogError):
                self._verify_suspect(copied)  # the corruption may be transient
            return self._response(copied, failure=Failure.of(error)), []
        except OSError as error:
            copied.is_prefix = False
            unreadable = DamagedLogError(f"{copied.key}: {error}")
            return self._response(copied, failure=Failure.of(unreadable)), []
        self._sent[copied.key] = at.leader_epoch, at.fetch_offset
        return self._response(copied, length=sum(map(len, found))), found

    def _differs(self, copied: _Copied, host: Partition) -> Diverged | OutOfRange | None:
        """Return how the follower's log differs from this one; None: it is a prefix.

        The caller has compared the epochs. A leader's log only grows in its epoch, so a prefix
        stays one.
        """
        if copied.is_prefix:
            return None
        log, at = host.log, copied.at
        return divergence(
            log.epochs,
            log_end=log.log_end_offset,
            log_start=log.log_start_offset,
            last_epoch=at.last_epoch,
            fetch_offset=at.fetch_offset,
        )

    def _response(
        self,
        copied: _Copied,
        *,
        failure: Failure | None = None,
        diverged: Divergence | None = None,
        restart_at: int | None = None,
        length: int = 0,
    ) -> ReplicaFetched:
        host = copied.host
        if host is not None:
            copied.known_limits = _limits(host)
        return ReplicaFetched(
            topic_id=copied.key[0],
            partition=copied.key[1],
            failure=failure,
            leader_epoch=copied.at.leader_epoch,
            high_watermark=-1 if host is None else host.high_watermark,
            log_start_offset=-1 if host is None else host.log.log_start_offset,
            diverged=diverged,
            restart_at=restart_at,
            length=length,
            tombstones_removed_below=0 if host is None else host.log.tombstones_removed_below,
            clean_end=0 if host is None else host.log.clean_end_offset,
        )

    def _watermarks(self) -> list[ReplicaFetched]:
        """Idle partitions whose high watermark or log start offset the follower does not know yet.

        Only partitions whose log at the follower is a known prefix of this one, in this epoch.
        Otherwise the follower would apply the high watermark to records that must still be
        truncated. Looks only at partitions with an event since they were looked at.
        """
        behind = [copied for copied in self._behind if copied not in self._changed]
        for copied in behind:
            del self._behind[copied]
        # guard: a watermark is of the follower's epoch
        # guard: a watermark is for logs that are a prefix
        return [
            self._response(copied)
            for copied in behind
            if copied.host is not None
            and copied.is_prefix
            and copied.host.leadership is not None
            and copied.host.leader_epoch == copied.at.leader_epoch
            and copied.known_limits != _limits(copied.host)
        ]


def _limits(host: Partition) -> tuple[int, int]:
    return host.high_watermark, host.log.log_start_offset


def _check_epoch(host: Partition, at: ReplicaPosition) -> None:
    # guard: a follower of an older epoch is fenced
    if at.leader_epoch < host.leader_epoch:
        raise FencedLeaderEpochError(
            f"{host.topic_partition} is in leader epoch {host.leader_epoch}, not {at.leader_epoch}"
        )
    # guard: a follower of a newer epoch is rejected
    if at.leader_epoch > host.leader_epoch:
        raise UnknownLeaderEpochError(
            f"{host.topic_partition}: this broker has not received leader epoch "
            f"{at.leader_epoch} yet"
        )
    # guard: only the leader is replicated
    if host.leadership is None:
        raise NotLeaderError(f"this broker does not lead {host.topic_partition}")


# -- leadership check ------------------------------------------------------------------------------
#
# Leadership check: confirm that this broker still leads before it returns an end offset.
#
# An isolated leader does not know that another broker was elected and has committed more records.
# The records that it returns are committed all the same, but the *end offset* that it returns would
# be outdated, and what a client sees must never go back (P3). So the leader confirms its leadership
# first, as Raft's ReadIndex does (Raft dissertation, section 6.4). There are two ways, and the
# first that succeeds decides:
#
# - Every other eligible broker copies from this leader in this epoch, by a message that it sent
# after   the check began. A new leader is elected from the ISR or the ELR, and stops copying when
# it begins   to lead. This costs one round of the fetches that run anyway. - The partition's Raft
# group applies a command that was proposed after the check began, and this   broker is the leader
# in the resulting state. This costs an entry in the journals of a majority. It   is needed when a
# member cannot respond: a member of the ELR is usually down, and must not prevent   a leader with a
# connected majority from responding.
#
# A leader that can do neither is isolated, or cannot rule that out, and returns no end offset.


CONFIRM_SECONDS_MAX: Final = 1.0
# Seconds until a broker that does not copy yet, or is not connected yet, is checked again. This
# matters in the first moments of an epoch, when many checks start at once.
RETRY_SECONDS: Final = 0.02
# Seconds until the partition's Raft group is used too: longer than healthy members need.
GROUP_SECONDS: Final = 0.1

Propose: TypeAlias = Callable[[str, bytes, Callable[[Outcome], None]], None]


class LeadershipCheck:
    """Leadership checks of all partitions that this broker leads."""

    def __init__(
        self,
        broker_id: int,
        *,
        loop: AbstractEventLoop,
        session_of: Callable[[int], FetchSession | None],
        find: Callable[[str, int], HostedPartition | None],
        propose: Propose,
    ) -> None:
        """``session_of``: the fetch session of a follower. ``propose``: to a Raft group."""
        self._broker_id = broker_id
        self._loop = loop
        self._session_of = session_of
        self._find = find
        self._propose = propose
        self._rounds: dict[str, Rounds] = {}  # by Raft group

    def confirm(self, host: Partition, done: Acknowledge) -> None:
        """Call ``done`` with None once no newer leader can have begun before this call; with an
        error after ``CONFIRM_SECONDS_MAX``. Calls it at once if no other broker is eligible.
        """
        leadership = host.leadership
        if leadership is None:
            done(NotLeaderError(f"this broker does not lead {host.topic_partition}"))
            return
        # guard: a leader is confirmed by all of the ELR
        eligible = {member for member, _ in leadership.maximal_isr()} | leadership.state.elr.keys()
        others = eligible - {self._broker_id}
        if not others:
            done(None)
            return
        check = _Check(self._loop, host, others, done, self._session_of, self._ask_group)
        check.begin()

    def _ask_group(self, host: Partition, done: Acknowledge) -> None:
        """Call ``done`` with None if the group's state, as of after this call, has ``host`` as the
        leader in its epoch. One proposal per group is in flight at a time.
        """
        member = self._find(host.topic_id, host.topic_partition.partition)
        if member is None:
            done(NotLeaderError(f"{host.topic_partition} is no longer stored on this broker"))
            return
        rounds = self._rounds.get(member.raft_id)
        if rounds is None:
            rounds = self._rounds[member.raft_id] = Rounds(partial(self._propose_no_op, member))
        epoch = host.leader_epoch

        def applied(error: RaftlogError | None) -> None:
            state = member.state
            # guard: a group confirms its leader
            if error is None and (state.leader, state.leader_epoch) != (self._broker_id, epoch):
                error = NotLeaderError(
                    f"this broker is no longer the leader of {host.topic_partition}; broker "
                    f"{state.leader} is"
                )
            done(error)

        rounds.ask(applied)

    def _propose_no_op(self, member: HostedPartition, done: Acknowledge) -> None:
        def ended(outcome: Outcome) -> None:
            if isinstance(outcome, Applied):
                done(None)
            else:
                done(LeaderNotAvailableError(f"{member}: {outcome.reason}"))

        self._propose(member.raft_id, NO_OP, ended)

    def forget(self, raft_id: str) -> None:
        """Forget a partition that this broker no longer stores."""
        self._rounds.pop(raft_id, None)


class _Check:
    """The check of one partition, until it is decided or times out. ``done`` is called once."""

    __slots__ = (
        "_ask_group",
        "_done",
        "_epoch",
        "_group_timer",
        "_host",
        "_loop",
        "_missing",
        "_session_of",
        "_timer",
        "_waits",
    )

    def __init__(
        self,
        loop: AbstractEventLoop,
        host: Partition,
        members: set[int],
        done: Acknowledge,
        session_of: Callable[[int], FetchSession | None],
        ask_group: Callable[[Partition, Acknowledge], None],
    ) -> None:
        self._loop = loop
        self._session_of = session_of
        self._ask_group = ask_group
        self._host = host
        self._epoch = host.leader_epoch
        self._missing = members
        self._done: Acknowledge | None = done
        self._waits: dict[int, Callable[[], None]] = {}  # by member: ends the wait for its fetch
        self._timer = loop.call_later(CONFIRM_SECONDS_MAX, self._time_out)
        # A member without a connection is not waited for.
        are_linked = all(session_of(member) is not None for member in members)
        delay = GROUP_SECONDS if are_linked else 0.0
        self._group_timer = loop.call_later(delay, ask_group, host, self._on_group)

    def begin(self) -> None:
        for member in sorted(self._missing):
            self.ask(member)

    def ask(self, follower: int) -> None:
        if self._done is None:
            return
        session = self._session_of(follower)
        if session is None:
            self._loop.call_later(RETRY_SECONDS, self.ask, follower)
        else:
            fetched = partial(self.on_fetch, follower, session)
            self._waits[follower] = partial(session.stop_waiting, fetched)
            session.when_fetched_again(fetched)

    def on_fetch(self, follower: int, session: FetchSession) -> None:
        host = self._host
        partition = host.topic_partition.partition
        # guard: a confirmation is of this epoch
        if session.follows(host.topic_id, partition, self._epoch):
            self._missing.discard(follower)
            # guard: a leader is confirmed by all of the ISR
            if not self._missing:
                self._end(None)
        else:
            self._loop.call_later(RETRY_SECONDS, self.ask, follower)

    def _on_group(self, error: RaftlogError | None) -> None:
        """Apply the group's result. The group may have no leader now: then its members may still
        confirm.
        """
        if error is None or isinstance(error, NotLeaderError):
            self._end(error)

    def _time_out(self) -> None:
        names = ", ".join(map(str, sorted(self._missing)))
        self._end(
            LeaderNotAvailableError(
                f"{self._host.topic_partition}: neither brokers {names} nor a majority of the "
                "voters of the partition confirm that this broker is the leader. Another broker "
                "can be the leader"
            )
        )

    def _end(self, error: RaftlogError | None) -> None:
        done, self._done = self._done, None
        self._timer.cancel()
        self._group_timer.cancel()
        for stop in self._waits.values():
            stop()
        if done is None:
            return
        host = self._host
        # guard: a confirmation ends when the leader steps down
        if error is None and (host.leadership is None or host.leader_epoch != self._epoch):
            error = NotLeaderError(f"this broker is no longer the leader of {host.topic_partition}")
        done(error)
