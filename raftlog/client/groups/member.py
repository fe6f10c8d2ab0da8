"""Membership of one consumer in a group: heartbeats to send, and effects of the responses.

Sans-I/O: ``heartbeats`` sends and receives on the I/O loop; the application takes changes and acts
on them in its own thread. ``lock`` protects the state that both use.

                 subscribe            answered          session or poll interval ends, fenced
       OUT ──────────────────► JOINING ─────────► IN ─────────────────────────────► LOST
        ▲                         ▲                                                  │
        └── leave (from any)      └──── rejoin, after the application acted on it ───┘

       ENDED: permanently refused (another member has the instance id, ...), until ``subscribe``

Invariant: the coordinator assigns a partition to another member once a heartbeat of this member
omits it from ``owned``. So ``owned`` contains every partition that the application may read or
commit until the next heartbeat: assigned and taken, revoked but not yet committed, and assigned but
not yet taken. Only the response to the last heartbeat counts: an older response may assign a
partition that the last heartbeat has just omitted.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from raftlog import limits
from raftlog.client.cluster import Cluster, ClusterView
from raftlog.client.groups.coordinator import Coordinators, Offsets, check_ends, fetch_offsets
from raftlog.client.retry import may_retry
from raftlog.client.settings import GroupSettings
from raftlog.client.subscription import Subscription
from raftlog.errors import (
    ClosedError,
    FencedMemberError,
    InstanceFencedError,
    InvalidRequestError,
    RaftlogError,
    RequestTimedOutError,
    StaleMemberEpochError,
    UnknownMemberError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_MEMBER_EPOCH,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetToCommit,
    TopicShare,
)
from raftlog.types import Offset, OffsetAndMetadata, RebalanceListener, TopicPartition

logger: Final = logging.getLogger(__name__)

Owned: TypeAlias = Mapping[TopicPartition, str]  # partition -> topic id

_EARLY_PART: Final = 2  # divisor; an earlier response delays the next heartbeat


class Phase(Enum):
    OUT = "out"
    JOINING = "joining"
    IN = "in"
    LOST = "lost"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Changes that the application must act on, in the order of the fields."""

    lost: dict[TopicPartition, str] = field(default_factory=dict)  # perhaps reassigned already
    error: RaftlogError | None = None  # reason why it is no longer a member
    is_out: bool = False  # membership lost: call ``rejoin`` after acting on this
    revoked: dict[TopicPartition, str] = field(default_factory=dict)
    assigned: dict[TopicPartition, str] = field(default_factory=dict)


class Membership:
    """Membership state. Times are monotonic seconds. ``member_id`` is constant for a consumer."""

    def __init__(self, settings: GroupSettings, member_id: str) -> None:
        self.settings = settings
        self.member_id = member_id
        self.lock = allocate_lock()
        self.phase = Phase.OUT
        self.epoch = JOIN_EPOCH
        self.incarnation = 0  # join count; commits carry that of the reader
        self.metadata_version = 0
        self.error: RaftlogError | None = None  # reason of phase ENDED
        self._topics: tuple[str, ...] = ()
        self._sequence = 0
        self._expected = 0  # sequence of the heartbeat whose response counts
        self._sent_at = 0.0  # time of the last heartbeat
        self._sent_wait = 0.0
        self._is_answered = True
        self._due_at = math.inf  # time of the next heartbeat
        self.expires_at = math.inf  # end of the session: others may get its partitions
        self._idle_since: float | None = None  # None while the application is in a poll
        self._had: dict[TopicPartition, str] = {}  # partitions that the application has
        self._releasing: dict[TopicPartition, str] = {}  # revoked, not yet committed
        self._target: dict[TopicPartition, str] = {}  # assignment in the last response
        self._is_notified = True  # the application has acted on phase LOST or ENDED
        self._farewell: int | None = None  # epoch of a leave heartbeat to send

    # -- the application's side

    def subscribe(self, topics: Sequence[str], *, now: float) -> None:
        """Join the group to read ``topics``, or change the topics of a member."""
        with self.lock:
            is_new = self._topics != tuple(topics)
            self._topics = tuple(topics)
            # guard: partitions of an ended membership are lost before the next one begins
            if self.phase is Phase.ENDED and not self._is_notified:
                self.phase, self.error = Phase.LOST, None
            elif self.phase in (Phase.OUT, Phase.ENDED):
                self._idle_since = now
                self._join(now)
            elif is_new and self.phase is not Phase.LOST:
                wanted = set(topics)
                self._target = {tp: of for tp, of in self._target.items() if tp.topic in wanted}
                self._due_at = now

    def rejoin(self, *, now: float) -> None:
        """Join again after the application has acted on the lost membership."""
        with self.lock:
            if self.phase is Phase.LOST and self._is_notified:
                self._join(now)

    def _join(self, now: float) -> None:
        self.phase = Phase.JOINING
        self.epoch = JOIN_EPOCH
        self.error = None
        self.incarnation += 1
        self._due_at = now
        self._farewell = None

    @property
    def pending(self) -> bool:
        """True if ``take`` returns a change."""
        with self.lock:
            return self._pending()

    def _pending(self) -> bool:
        if self.phase in (Phase.LOST, Phase.ENDED):
            return not self._is_notified
        return self.phase is Phase.IN and (bool(self._revoked()) or bool(self._assigned()))

    def _revoked(self) -> dict[TopicPartition, str]:
        return {tp: of for tp, of in self._had.items() if self._target.get(tp) != of}

    def _assigned(self) -> dict[TopicPartition, str]:
        """Return assigned partitions that are neither taken nor being released."""
        return {
            tp: of
            for tp, of in self._target.items()
            if tp not in self._had and tp not in self._releasing
        }

    def take(self) -> Change | None:
        """Return the changes since the last call, or None. The application then has them.

        Revoked partitions count as owned until ``released``.
        """
        with self.lock:
            if not self._pending():
                return None
            if self.phase is not Phase.IN:
                lost, self._had, self._releasing = self._had, {}, {}
                self._target = {}
                self._is_notified = True
                return Change(lost=lost, error=self.error, is_out=self.phase is Phase.LOST)
            revoked = self._revoked()
            self._releasing.update(revoked)
            for tp in revoked:
                del self._had[tp]
            assigned = self._assigned()
            self._had.update(assigned)
            return Change(revoked=revoked, assigned=assigned)

    def holdings(self) -> tuple[dict[TopicPartition, str], dict[TopicPartition, str]]:
        """Return the partitions of the application, and the revoked ones that are not released."""
        with self.lock:
            return self._had.copy(), self._releasing.copy()

    def released(self, partitions: Owned, *, incarnation: int, now: float) -> None:
        """Release partitions whose offsets are committed."""
        with self.lock:
            if incarnation != self.incarnation:
                return
            for tp, of in partitions.items():
                if self._releasing.get(tp) == of:
                    del self._releasing[tp]
                    self._due_at = now

    def polling(self) -> None:
        """Note that the application entered a poll."""
        self._idle_since = None

    def polled(self, *, now: float) -> None:
        """Note that the application left a poll."""
        self._idle_since = now

    def topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, str]:
        """Return the ids of the topics whose partitions the application has.

        If ``partitions`` contains a revoked partition of a topic that was deleted and created
        again, this is the id of the deleted topic, for which the coordinator rejects a commit.
        """
        with self.lock:
            ids = {tp.topic: of for tp, of in (*self._releasing.items(), *self._had.items())}
            for tp in partitions:
                # guard: a revoked partition is committed for the topic that it was read from
                if tp in self._releasing:
                    ids[tp.topic] = self._releasing[tp]
            return ids

    def credentials(self, incarnation: int) -> tuple[str, int] | None:
        """Return member id and epoch for commits of records that this incarnation read.

        None while the member is joining. Raises ``FencedMemberError`` if the membership was lost,
        or the error that ended it.
        """
        with self.lock:
            if self.phase is Phase.ENDED and self.error is not None:
                raise type(self.error)(*self.error.args)
            if self.phase is Phase.LOST or incarnation != self.incarnation:
                raise FencedMemberError(
                    f"this consumer lost its membership of group {self.settings.group!r} after "
                    "it read these records. Other members may have its partitions and read the "
                    "records again. The next poll joins again"
                )
            if self.phase is Phase.OUT:
                return "", NO_MEMBER_EPOCH
            return None if self.epoch == JOIN_EPOCH else (self.member_id, self.epoch)

    # -- the loop's side

    def beat(self, *, now: float) -> GroupHeartbeatRequest | None:
        """Return the heartbeat to send now, or None."""
        with self.lock:
            if self.phase is Phase.LOST and self._farewell is not None:
                epoch, self._farewell = self._farewell, None
                return self._request(epoch, owned={}, wait_ms=0)
            if not self.is_active or now < self._due_at:
                return None
            owned = {**self._target, **self._releasing, **self._had}
            wait_ms = self.settings.heartbeat_interval_ms
            if self.phase is Phase.JOINING or owned != self._target:
                wait_ms = 0  # the coordinator would respond immediately
            self._sent_at, self._sent_wait = now, wait_ms / 1_000
            self._is_answered = False
            self._due_at = math.inf
            beat = self._request(self.epoch, owned=owned, wait_ms=wait_ms)
            self._expected = beat.sequence
            return beat

    def _request(self, epoch: int, *, owned: Owned, wait_ms: int) -> GroupHeartbeatRequest:
        self._sequence += 1
        settings = self.settings
        return GroupHeartbeatRequest(
            group=settings.group,
            member_id=self.member_id,
            member_epoch=epoch,
            sequence=self._sequence,
            topics=list(self._topics),
            owned=shares(owned),
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            instance_id=settings.instance_id,
            client_id=settings.client_id,
            rack=settings.rack,
            assignor=settings.assignor,
            wait_ms=wait_ms,
        )

    @property
    def is_active(self) -> bool:
        """True while heartbeats are sent."""
        return self.phase in (Phase.JOINING, Phase.IN)

    def is_last(self, beat: GroupHeartbeatRequest) -> bool:
        """Return True if the response to this heartbeat still counts."""
        return beat.sequence == self._expected

    def answered(
        self, beat: GroupHeartbeatRequest, answer: GroupHeartbeatResponse, *, now: float
    ) -> None:
        with self.lock:
            if not self.is_last(beat):
                return
            wanted = set(self._topics)
            target = {tp: of for tp, of in assignment(answer).items() if tp.topic in wanted}
            is_news = target != self._target or answer.member_epoch != beat.member_epoch
            self.phase = Phase.IN
            self.epoch = answer.member_epoch
            self.metadata_version = answer.metadata_version
            self._target = target
            self.expires_at = self._sent_at + self.settings.session_timeout_ms / 1_000
            self._is_answered = True
            owned = {**target, **self._releasing, **self._had}
            waited = now - self._sent_at
            if owned == target and (is_news or 0 < self._sent_wait <= waited * _EARLY_PART):
                due_at = now
            else:
                due_at = self._sent_at + self.settings.heartbeat_interval_ms / 1_000
            self._due_at = min(self._due_at, due_at)

    def failed(
        self, beat: GroupHeartbeatRequest, error: RaftlogError, *, retry_at: float | None
    ) -> None:
        """Handle a failed heartbeat. ``retry_at`` is None if a retry cannot succeed."""
        with self.lock:
            if not self.is_last(beat):
                return
            self._is_answered = True
            if isinstance(error, UnknownMemberError | FencedMemberError):
                if self.phase is Phase.IN:
                    self._lose(f"the coordinator refused: {error}")
                    return
                retry_at = self._sent_at + self.settings.heartbeat_interval_ms / 1_000
            if retry_at is None:
                self._end(error)
            else:
                self._due_at = min(self._due_at, retry_at)

    def hurry(self, *, now: float) -> None:
        """Send a heartbeat now, unless one without wait time is in flight."""
        with self.lock:
            if self._is_answered or self._sent_wait:
                self._due_at = now

    def tick(self, *, now: float) -> None:
        """Check whether the session or the poll interval has ended."""
        with self.lock:
            if not self.is_active:
                return
            settings = self.settings
            idle_since = self._idle_since
            if idle_since is not None and now >= idle_since + settings.max_poll_interval_ms / 1_000:
                self._lose(
                    "poll() was not called for max_poll_interval_ms="
                    f"{settings.max_poll_interval_ms} ms. Increase max_poll_interval_ms, or poll "
                    "fewer records at a time (max_records)"
                )
                self._farewell = LEAVE_EPOCH if settings.instance_id is None else AWAY_EPOCH
            elif self.phase is Phase.IN and now >= self.expires_at:
                self._lose(
                    "no coordinator responded for session_timeout_ms="
                    f"{settings.session_timeout_ms} ms. Check whether the brokers are running"
                )

    @property
    def next_at(self) -> float:
        """Time at which ``beat`` or ``tick`` has something to do."""
        with self.lock:
            if self._farewell is not None:
                return -math.inf
            if not self.is_active:
                return math.inf
            next_at = min(self._due_at, self.expires_at)
            idle_since = self._idle_since
            if idle_since is not None:
                next_at = min(next_at, idle_since + self.settings.max_poll_interval_ms / 1_000)
            return next_at

    def fenced(self, error: RaftlogError, *, incarnation: int) -> None:
        """Handle a commit that was refused because the membership is lost."""
        with self.lock:
            if incarnation == self.incarnation and self.phase is Phase.IN:
                self._lose(f"the coordinator refused: {error}")

    def end(self, error: RaftlogError) -> None:
        """End the membership permanently, until ``subscribe``."""
        with self.lock:
            if self.is_active:
                self._end(error)

    def _lose(self, why: str) -> None:
        logger.warning(
            "group membership lost: member=%s group=%r partitions=%d reason=%s",
            self.member_id,
            self.settings.group,
            len(self._had),
            why,
        )
        self.phase = Phase.LOST
        self._stop()

    def _end(self, error: RaftlogError) -> None:
        self.phase = Phase.ENDED
        self.error = error
        self._stop()

    def _stop(self) -> None:
        self.epoch = JOIN_EPOCH
        self._is_notified = False
        self.expires_at = self._due_at = math.inf
        self._is_answered = True
        # guard: a heartbeat of a lost membership has no answer
        self._expected = 0

    def leave(self, epoch: int) -> GroupHeartbeatRequest | None:
        """Leave the group. Returns the leave heartbeat, or None if the coordinator needs none."""
        with self.lock:
            was_in = self.is_active and self._sequence
            farewell, self._farewell = self._farewell, None
            self.phase = Phase.OUT
            self._stop()
            self._is_notified = True
            self._had, self._releasing, self._target = {}, {}, {}
            if not was_in and farewell is None:
                return None
            return self._request(epoch, owned={}, wait_ms=0)


def assignment(answer: GroupHeartbeatResponse) -> dict[TopicPartition, str]:
    return {
        TopicPartition(share.topic, partition): share.topic_id
        for share in answer.assignment
        for partition in share.partitions
    }


def shares(owned: Owned) -> list[TopicShare]:
    found: dict[tuple[str, str], list[int]] = {}
    for tp, topic_id in owned.items():
        found.setdefault((tp.topic, topic_id), []).append(tp.partition)
    return [
        TopicShare(topic=topic, topic_id=topic_id, partitions=sorted(partitions))
        for (topic, topic_id), partitions in sorted(found.items())
    ]


# -- heartbeats ------------------------------------------------------------------------------------
#
# Heartbeats of a group member, on the I/O loop, independent of the application's thread.
#
# ``membership`` decides what to send and when; this module sends it and returns the responses. At
# most one heartbeat is waited for: a newer heartbeat invalidates the response to an older one.


_METADATA_TRIES: Final = 8  # refreshes for assigned partitions that are not in the metadata yet
_METADATA_PAUSE_S: Final = 0.1
_FAILURES_TOLD: Final = 6  # consecutive failures before a warning: 1 to 2 s


class Heartbeats:
    """Heartbeats of one member. ``on_news`` is called when the application must act."""

    def __init__(
        self,
        membership: Membership,
        coordinators: Coordinators,
        cluster: Cluster,
        *,
        now: Callable[[], float],
        on_news: Callable[[], None],
    ) -> None:
        self._membership = membership
        self._coordinators = coordinators
        self._cluster = cluster
        self._now = now
        self._on_news = on_news
        self._asking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0  # consecutive
        self._metadata_version = -1
        self._waiters: list[asyncio.Future[None]] = []
        self._closed = False

    def poll(self) -> None:
        """Send a heartbeat if one is due, and schedule the next check."""
        if self._closed:
            return
        now = self._now()
        membership = self._membership
        membership.tick(now=now)
        beat = membership.beat(now=now)
        if beat is not None:
            if self._asking is not None:
                self._asking.cancel()
            self._asking = asyncio.ensure_future(self._ask(beat))
        if membership.pending:
            self._on_news()
        if not membership.is_active:
            self._wake()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_at = membership.next_at
        if next_at != math.inf:
            delay = max(next_at - now, 0.001)
            self._timer = asyncio.get_running_loop().call_later(delay, self.poll)

    async def _ask(self, beat: GroupHeartbeatRequest) -> None:
        membership = self._membership
        try:
            answer = await self._coordinators.ask(
                beat.group, apis.GROUP_HEARTBEAT, beat, wait_ms=beat.wait_ms
            )
            assert isinstance(answer, GroupHeartbeatResponse)
            await self._know(answer)
        except RaftlogError as error:
            self._failed(beat, error)
        else:
            self._failures = 0
            membership.answered(beat, answer, now=self._now())
            if answer.metadata_version > self._metadata_version:
                if self._metadata_version >= 0:
                    self._cluster.refresh_soon()
                self._metadata_version = answer.metadata_version
        self._wake()
        # Not in this task, because the next heartbeat would cancel it.
        asyncio.get_running_loop().call_soon(self.poll)

    def _failed(self, beat: GroupHeartbeatRequest, error: RaftlogError) -> None:
        retry_at = None
        if may_retry(error, repeatable=True):
            retry_at = self._now() + self._cluster.backoff_seconds(self._failures)
            self._failures += 1
            # A short election is normal. A coordinator that stays unavailable is worth a warning.
            is_news = self._failures == _FAILURES_TOLD
            logger.log(
                logging.WARNING if is_news else logging.DEBUG,
                "group heartbeat failed, retrying: group=%r error=%s",
                beat.group,
                error,
            )
        self._membership.failed(beat, error, retry_at=retry_at)

    async def _know(self, answer: GroupHeartbeatResponse) -> None:
        """Refresh metadata until it contains the assigned partitions.

        The coordinator can assign partitions that are too new for other brokers' metadata.
        """
        names = {share.topic for share in answer.assignment}
        for _ in range(_METADATA_TRIES):
            view = self._cluster.view
            if all(
                (topic := view.topics.get(tp.topic)) is not None
                and tp.partition < topic.partition_count
                for tp in assignment(answer)
            ):
                return
            with suppress(RaftlogError):
                await self._cluster.refresh(names, rotate=True)
            await asyncio.sleep(_METADATA_PAUSE_S)

    async def next_answer(self) -> None:
        """Send a heartbeat soon, and wait until one has a response or has failed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._membership.hurry(now=self._now())
        self.poll()
        await waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def leave(self, epoch: int, *, timeout_ms: int) -> None:
        """Leave the group. Informs the coordinator if possible within ``timeout_ms``."""
        farewell = self._membership.leave(epoch)
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        if farewell is None:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                await self._coordinators.call(
                    farewell.group, apis.GROUP_HEARTBEAT, farewell, timeout_ms=timeout_ms
                )
        except (RaftlogError, TimeoutError) as error:
            logger.info("leave request failed: group=%r error=%s", farewell.group, error)

    def close(self) -> None:
        """Stop sending heartbeats."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
        for waiter in self._waiters:
            waiter.cancel()


# -- rebalancing -----------------------------------------------------------------------------------
#
# Group work in the application's thread: callbacks, revoked and assigned partitions, commits.
#
# Coroutines for both consumers. They wait only for the application's callbacks; ``run_now`` runs
# them without a loop. The I/O loop does everything else that takes time.


T = TypeVar("T")
# Called with the offsets, and with None or the error of the commit.
CommitCallback: TypeAlias = Callable[[Offsets, RaftlogError | None], object]


@dataclass(frozen=True, slots=True)
class Listeners:
    """Callbacks of the application, each called with a list of partitions."""

    on_assign: RebalanceListener | None = None
    on_revoke: RebalanceListener | None = None
    on_lost: RebalanceListener | None = None  # default: on_revoke


class Rebalancer:
    """Rebalance steps of one consumer. Runs in the application's thread, except ``committed``."""

    def __init__(
        self, member: Member, subscription: Subscription, *, now: Callable[[], float]
    ) -> None:
        self.listeners = Listeners()
        self.is_busy = False  # True during a callback
        self._member = member
        self._membership = member.membership
        self._subscription = subscription
        self._now = now
        self._was_cut_short = False  # KeyboardInterrupt interrupted ``attend``
        self._done: deque[Callable[[], object]] = deque()  # callbacks of completed commits

    # -- around each poll

    def polling(self) -> None:
        """Enter a poll: the application has processed all returned records.

        Raises ``InvalidRequestError`` within a callback.
        """
        if self.is_busy:
            raise InvalidRequestError("a rebalance or commit callback must not call poll()")
        self._subscription.all_processed()
        membership = self._membership
        membership.polling()
        if (now := self._now()) >= membership.expires_at:
            membership.tick(now=now)
            self._subscription.interrupt()

    def polled(self) -> None:
        self._membership.polled(now=self._now())

    # -- work before records are returned

    async def attend(self) -> None:
        """Act on all changes. Raises the first exception of a callback at the end."""
        subscription, membership = self._subscription, self._membership
        subscription.interrupted = False
        errors: list[Exception] = []
        try:
            if self._was_cut_short:
                self._mend()
            await self._call_done(errors)
            while (change := membership.take()) is not None:
                await self._act_on(change, errors)
            if self._member.commit_due:
                self._member.commit_automatically()
            if (problem := self._member.take_problem()) is not None:
                errors.append(problem)
            _raise_first(errors)
            if membership.phase is Phase.ENDED and membership.error is not None:
                raise type(membership.error)(*membership.error.args)
        except Exception:
            subscription.interrupted = True  # there may be more changes, or the error repeats
            raise
        except BaseException:
            self._was_cut_short = subscription.interrupted = True
            raise

    def _mend(self) -> None:
        """Restore consistency after KeyboardInterrupt between taking a change and acting on it."""
        subscription, membership = self._subscription, self._membership
        had, releasing = membership.holdings()
        if membership.phase is not Phase.OUT:
            subscription.remove([tp for tp in subscription.parts if tp not in had])
            self._member.add({tp: of for tp, of in had.items() if tp not in subscription.parts})
            if releasing:
                self._member.release(releasing)
            membership.rejoin(now=self._now())
            self._member.wake()
        self._was_cut_short = False

    async def _act_on(self, change: Change, errors: list[Exception]) -> None:
        listeners = self.listeners
        if change.is_out or change.error is not None:
            try:
                await self._notify(listeners.on_lost or listeners.on_revoke, change.lost, errors)
            finally:
                self._subscription.remove(list(self._subscription.parts))
                self._membership.rejoin(now=self._now())
                self._member.wake()
        if change.revoked:
            try:
                await self._notify(listeners.on_revoke, change.revoked, errors)
            finally:
                self._member.release(change.revoked)
        if change.assigned:
            self._member.add(change.assigned)
            await self._notify(listeners.on_assign, change.assigned, errors)

    async def _notify(
        self, listener: RebalanceListener | None, partitions: Owned, errors: list[Exception]
    ) -> None:
        if listener is not None and partitions:
            await self._call(partial(listener, sorted(partitions)), errors)

    async def _call(self, callback: Callable[[], object], errors: list[Exception]) -> None:
        was_busy, self.is_busy = self.is_busy, True
        try:
            result = callback()
            if inspect.iscoroutine(result):
                await result
        except Exception as error:  # noqa: BLE001 - poll raises it
            errors.append(error)
        finally:
            self.is_busy = was_busy

    # -- commits

    def committed(
        self, callback: CommitCallback, offsets: Offsets, error: RaftlogError | None
    ) -> None:
        """Queue the callback of a completed commit for the application. Runs on the loop."""
        self._done.append(partial(callback, offsets, error))
        self._subscription.interrupt()

    async def _call_done(self, errors: list[Exception]) -> None:
        while self._done:
            await self._call(self._done.popleft(), errors)

    # -- the end

    async def give_up(self, errors: list[Exception], *, only_processed: bool) -> Reading:
        """Call ``on_revoke`` or ``on_lost`` for all partitions. Returns what to commit."""
        self._subscription.interrupted = False
        if only_processed:
            self._subscription.forget_unprocessed()
        membership = self._membership
        if membership.phase is Phase.IN:
            held = dict.fromkeys(self._subscription.parts, "")
            await self._notify(self.listeners.on_revoke, held, errors)
        elif membership.phase in (Phase.LOST, Phase.ENDED) and (change := membership.take()):
            await self._notify(
                self.listeners.on_lost or self.listeners.on_revoke, change.lost, errors
            )
        offsets: Offsets | None = None if self._member.settings.auto_commit else {}
        return self._member.reading(offsets, automatic=True)

    async def end(self, errors: list[Exception]) -> None:
        """Call the remaining commit callbacks, and raise the first exception of a callback."""
        await self._call_done(errors)
        _raise_first(errors)


def _raise_first(errors: list[Exception]) -> None:
    for error in errors[1:]:
        logger.error("additional consumer callback failed", exc_info=error)
    if errors:
        raise errors[0]


def check_listener(name: str, listener: Any, *, coroutines: bool) -> None:
    if listener is None:
        return
    if not callable(listener):
        raise TypeError(f"{name}={listener!r} is not a function (list of TopicPartition) or None")
    if not coroutines and inspect.iscoroutinefunction(listener):
        raise TypeError(f"{name}={listener!r} is a coroutine function. Use raftlog.aio for it")


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing, and return its result."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise TypeError("a callback returned an awaitable. Use raftlog.aio for coroutine callbacks")


# -- member ----------------------------------------------------------------------------------------
#
# Group membership of a consumer: combines membership, heartbeats, commits and positions.
#
# Runs on the I/O loop. Methods whose docstring says "application thread" can be called in the
# application's thread. ``rebalancing`` contains the application's side of a rebalance.


# Interruptions of an iteration per ``max_poll_interval_ms``, which prove progress.
_SIGNS_PER_INTERVAL: Final = 4


class Reading(NamedTuple):
    """Offsets to commit, with the membership that read the records before them."""

    offsets: Offsets
    topic_ids: Mapping[str, str]
    incarnation: int
    known: Mapping[TopicPartition, Offset]  # end offsets that are known, as lower bounds


class Member:
    """Group member of one consumer. Set ``schedule`` and ``on_change`` before use."""

    def __init__(
        self,
        settings: GroupSettings,
        cluster: Cluster,
        subscription: Subscription,
        *,
        now: Callable[[], float],
        member_id: str,
        is_stable: bool = True,
    ) -> None:
        """``is_stable``: wait for the end of open transactions that commit offsets of the group."""
        self.settings = settings
        self._is_stable = is_stable
        self.schedule: Callable[[Callable[[], None]], object]  # runs a function on the loop
        self.on_change: Callable[[], None]  # called when there may be partitions to fetch
        self.coordinators = Coordinators(cluster)
        self.membership = Membership(settings, member_id)
        self.commit_due = False  # an automatic commit is due
        self._problem: RaftlogError | None = None  # to be raised by the next poll
        self._cluster = cluster
        self._subscription = subscription
        self._now = now
        self._heartbeats = Heartbeats(
            self.membership,
            self.coordinators,
            cluster,
            now=now,
            on_news=subscription.interrupt,
        )
        self._committer = Committer(
            self.membership, self.coordinators, self._heartbeats, on_committed=self._committed
        )
        self._in_order = asyncio.Lock()  # keeps commits in the order of the calls
        self._known: dict[str, tuple[str, int]] = {}  # topic -> id, partition count
        self._assigned_ids: dict[str, str] = {}  # topic ids of manually assigned partitions
        self._pulse: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- assignment

    def begin(self, view: ClusterView) -> None:
        """Start after the application assigned partitions manually."""
        topics = {tp.topic for tp in self._subscription.parts}
        self._assigned_ids = {topic: view.topics[topic].id for topic in topics}
        self._start_pulse()

    def subscribe(self, topics: Sequence[str], view: ClusterView) -> None:
        """Join the group, and read these topics."""
        if self.membership.phase is Phase.OUT:
            self._subscription.assign(())
        for topic in topics:
            found = view.topic(topic)
            if self._known.get(topic, ("", 0))[0] != found.id:
                self._known[topic] = found.id, found.partition_count
        self._start_pulse()
        self.resubscribe(topics)

    def resubscribe(self, topics: Sequence[str]) -> None:
        """Change the topics of the subscription. They may have been created after ``subscribe``."""
        self.membership.subscribe(topics, now=self._now())
        self._heartbeats.poll()

    def report(self, error: RaftlogError) -> None:
        """Make the application's next poll raise ``error``. The consumer continues."""
        self._problem = error
        self._subscription.interrupt()

    def take_problem(self) -> RaftlogError | None:
        """Return the reported error once, or None. Application thread."""
        problem, self._problem = self._problem, None
        return problem

    def wake(self) -> None:
        """Check for heartbeats after a change. Application thread."""
        self.schedule(self._heartbeats.poll)

    def add(self, partitions: Owned) -> None:
        """Start to read assigned partitions. Application thread."""
        new: list[TopicPartition] = []
        for tp, topic_id in partitions.items():
            known_id, count = self._known.get(tp.topic, ("", 0))
            if known_id != topic_id or tp.partition >= count:
                new.append(tp)
        self._subscription.add_assigned(partitions, new)
        self.schedule(self.on_change)

    # -- offsets

    def reading(
        self,
        offsets: Offsets | None = None,
        *,
        of: Owned | None = None,
        automatic: bool = False,
    ) -> Reading:
        """Return what to commit: ``offsets``, or the positions that are not committed yet.

        ``of``: restricts the positions to these partitions. ``automatic``: only positions that need
        no lookup of the end offset. Application thread.
        """
        parts = self._subscription.parts.copy()
        membership = self.membership
        is_alone = membership.phase is Phase.OUT
        if offsets is None:
            offsets = {
                tp: OffsetAndMetadata(part.position)
                for tp, part in parts.items()
                if part.position is not None
                and (of is None or tp in of)
                and (part.position != part.committed or (is_alone and not automatic))
                and (part.position <= part.known_to or not automatic)
            }
        if not automatic:
            self._subscription.processed_up_to(offsets)
        return Reading(
            offsets,
            self._assigned_ids if is_alone else membership.topic_ids(offsets),
            membership.incarnation,
            {tp: part.known_to for tp, part in parts.items()},
        )

    async def commit(self, reading: Reading, *, timeout_ms: int | None = None) -> Offsets:
        """Commit after all earlier commits. Raises the error if it fails."""
        if timeout_ms is None:
            timeout_ms = self._cluster.settings.request_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                async with self._in_order:
                    await check_ends(self._cluster, reading.offsets, known=reading.known)
                    future = self._committer.start(
                        reading.offsets,
                        reading.topic_ids,
                        incarnation=reading.incarnation,
                        timeout_ms=timeout_ms,
                    )
                return await asyncio.shield(future)
        except TimeoutError:
            raise RequestTimedOutError(
                f"offset commit timed out after {timeout_ms} ms. It may still succeed later"
            ) from None

    async def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets, after earlier commits of this consumer have completed."""
        for tp in partitions:
            await self._cluster.check_partition(tp)
        async with self._in_order:
            await self._committer.settled()
        return await self._fetch(partitions)

    async def _fetch(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return await fetch_offsets(
            self.coordinators, self.settings.group, partitions, is_stable=self._is_stable
        )

    async def look_up(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Offset | None]:
        found = await self._fetch(partitions)
        return {tp: None if given is None else given.offset for tp, given in found.items()}

    def _committed(self, offsets: Offsets) -> None:
        for tp, given in offsets.items():
            part = self._subscription.parts.get(tp)
            if part is not None:
                part.committed = given.offset

    def note_committed(self, offsets: Offsets) -> None:
        """Note that a transaction has committed these offsets. Application thread."""
        self.schedule(lambda: self._committed(offsets))

    def commit_soon(self, reading: Reading, then: Callable[[RaftlogError | None], None]) -> None:
        """Commit, then call ``then`` on the loop with the error or None. Application thread."""
        self.schedule(lambda: self._run(self._commit_then(reading, then)))

    async def _commit_then(
        self, reading: Reading, then: Callable[[RaftlogError | None], None]
    ) -> None:
        error: RaftlogError | None = None
        try:
            await self.commit(reading)
        except RaftlogError as problem:
            error = problem
        except asyncio.CancelledError:
            then(ClosedError("the consumer was closed before the offset commit completed"))
            raise
        then(error)

    def commit_automatically(self) -> None:
        """Commit the processed records. Application thread."""
        self.commit_due = False
        reading = self.reading(automatic=True)
        if reading.offsets:
            self.commit_soon(reading, self._log)

    def release(self, partitions: Owned) -> None:
        """Stop reading partitions, and release them after their offsets are committed.

        The coordinator assigns them to no other member until then. Application thread.
        """
        membership = self.membership
        offsets: Offsets | None = None if self.settings.auto_commit else {}
        reading = self.reading(offsets, of=partitions, automatic=True)
        self._subscription.remove(partitions)

        def released(error: RaftlogError | None) -> None:
            self._log(error)
            membership.released(partitions, incarnation=reading.incarnation, now=self._now())
            self._heartbeats.poll()

        async def release() -> None:
            async with self._in_order:  # after all earlier commits of these partitions
                await self._committer.settled()
            await self._commit_then(reading, released)

        self.schedule(lambda: self._run(release()))

    def _log(self, error: RaftlogError | None) -> None:
        if error is not None:
            logger.warning(
                "offset commit failed, records may be delivered again: group=%r error=%s",
                self.settings.group,
                error,
            )

    # -- timers

    def _start_pulse(self) -> None:
        """Interrupt the application's iteration periodically.

        It then commits processed records, and proves that it makes progress
        (``max_poll_interval_ms``).
        """
        if self._pulse is None:
            period_ms = self.settings.max_poll_interval_ms / _SIGNS_PER_INTERVAL
            if self.settings.auto_commit:
                period_ms = min(period_ms, self.settings.auto_commit_interval_ms)
            loop = asyncio.get_running_loop()
            self._pulse = loop.call_later(period_ms / 1_000, self._on_pulse)

    def _on_pulse(self) -> None:
        self._pulse = None
        self.commit_due = self.settings.auto_commit
        self._subscription.interrupt()
        self._start_pulse()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the end

    async def leave(self, reading: Reading, epoch: int, *, timeout_ms: int) -> None:
        """Commit and leave the group within ``timeout_ms``. Logs failures.

        Also waits for commits that the application started earlier.
        """
        deadline = self._now() + timeout_ms / 1_000
        await asyncio.sleep(0)  # earlier commits start first
        try:
            await self.commit(reading, timeout_ms=timeout_ms)
        except RaftlogError as error:
            self._log(error)
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=max(deadline - self._now(), 0.0))
        left_ms = max(int((deadline - self._now()) * 1_000), 0)
        await self._heartbeats.leave(epoch, timeout_ms=left_ms)

    async def close(self) -> None:
        """Stop without informing the coordinator. Idempotent."""
        if self._pulse is not None:
            self._pulse.cancel()
        self._heartbeats.close()
        await asyncio.sleep(0)  # started tasks must run once to receive the cancellation
        for task in list(self._tasks):
            task.cancel()
        await self._committer.close()


# -- committing ------------------------------------------------------------------------------------
#
# Offset commits of a consumer, in the order of its calls, several commits in one request.
#
# Runs on the I/O loop. While a request is in flight, new commits are collected for the next
# request, which contains the newest offset of each partition. A commit is retried if its response
# is lost. Each request has a sequence number, so that one which the network held back cannot
# replace a newer one.


# Errors that concern the member, not the partition.
_OF_MEMBERS: Final = (
    StaleMemberEpochError,
    UnknownMemberError,
    FencedMemberError,
    InstanceFencedError,
)


@dataclass(slots=True, eq=False)
class _Commit:
    offsets: Offsets
    topic_ids: Mapping[str, str]
    incarnation: int  # join count of the membership that read the records
    deadline: float  # loop time
    future: asyncio.Future[Offsets]


class Committer:
    """Committer of one consumer. ``on_committed`` is called with all committed offsets."""

    def __init__(
        self,
        membership: Membership,
        coordinators: Coordinators,
        heartbeats: Heartbeats,
        *,
        on_committed: Callable[[Offsets], None],
    ) -> None:
        self._membership = membership
        self._coordinators = coordinators
        self._heartbeats = heartbeats
        self._on_committed = on_committed
        self._waiting: list[_Commit] = []
        self._current: list[_Commit] = []  # being sent
        self._sending: asyncio.Task[None] | None = None
        self._sequence = 0  # of the last request; it repeats that of its first attempt

    def start(
        self, offsets: Offsets, topic_ids: Mapping[str, str], *, incarnation: int, timeout_ms: int
    ) -> asyncio.Future[Offsets]:
        """Commit ``offsets``. Returns a future that fails with ``RaftlogError``."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Offsets] = loop.create_future()
        future.add_done_callback(_look_at)
        if not offsets:
            future.set_result(offsets)
            return future
        deadline = loop.time() + timeout_ms / 1_000
        self._waiting.append(_Commit(offsets, topic_ids, incarnation, deadline, future))
        if self._sending is None:
            self._sending = asyncio.ensure_future(self._send_all())
        return future

    async def settled(self) -> None:
        """Wait until every started commit has succeeded or failed."""
        while self._sending is not None:
            await asyncio.wait([self._sending])

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                commits = self._next()
                self._current = commits
                try:
                    failures = await self._send(commits)
                except RaftlogError as error:
                    failures = {tp: error for commit in commits for tp in commit.offsets}
                for commit in commits:
                    _resolve(commit, failures)
        finally:
            self._sending = None

    def _next(self) -> list[_Commit]:
        """Remove and return the first commits that fit one request: those of one incarnation."""
        taken: list[_Commit] = []
        partitions: set[TopicPartition] = set()
        for commit in self._waiting:
            union = partitions | commit.offsets.keys()
            if taken and (
                commit.incarnation != taken[0].incarnation
                or commit.topic_ids != taken[0].topic_ids
                or len(union) > limits.PARTITIONS_PER_REQUEST_MAX
            ):
                break
            taken.append(commit)
            partitions = union
        del self._waiting[: len(taken)]
        return taken

    async def _send(self, commits: list[_Commit]) -> dict[TopicPartition, RaftlogError]:
        """Commit the offsets. Returns the errors of partitions; raises errors that concern all."""
        offsets = {tp: given for commit in commits for tp, given in commit.offsets.items()}
        deadline = max(commit.deadline for commit in commits)
        partitions, step = list(offsets), limits.PARTITIONS_PER_REQUEST_MAX
        failures: dict[TopicPartition, RaftlogError] = {}
        for start in range(0, len(partitions), step):
            part = {tp: offsets[tp] for tp in partitions[start : start + step]}
            failures |= await self._send_part(part, commits[0], deadline)
        return failures

    async def _send_part(
        self, offsets: Offsets, commit: _Commit, deadline: float
    ) -> dict[TopicPartition, RaftlogError]:
        """Commit these offsets, which fit one request. ``commit``: one of those they are of."""
        incarnation = commit.incarnation
        membership = self._membership
        loop = asyncio.get_running_loop()
        problem: RaftlogError = RequestTimedOutError("offset commit timed out")
        self._sequence += 1
        while True:
            credentials = membership.credentials(incarnation)
            left_s = deadline - loop.time()
            if left_s <= 0:
                raise problem
            if credentials is not None:
                request = self._request(credentials, offsets, commit.topic_ids)
                try:
                    failures = await self._ask(request, timeout_ms=int(left_s * 1_000))
                    self._on_committed(
                        {tp: given for tp, given in offsets.items() if tp not in failures}
                    )
                    return failures
                except StaleMemberEpochError as stale:
                    problem = stale
                except (UnknownMemberError, FencedMemberError) as error:
                    membership.fenced(error, incarnation=incarnation)
                    self._heartbeats.poll()
                    raise
                except InstanceFencedError as error:
                    membership.end(error)
                    self._heartbeats.poll()
                    raise
            with suppress(TimeoutError):
                async with asyncio.timeout(deadline - loop.time()):
                    await self._heartbeats.next_answer()

    def _request(
        self, credentials: tuple[str, int], offsets: Offsets, topic_ids: Mapping[str, str]
    ) -> OffsetCommitRequest:
        member_id, epoch = credentials
        topics = {tp.topic for tp in offsets}
        return OffsetCommitRequest(
            group=self._membership.settings.group,
            offsets=[
                OffsetToCommit(
                    topic=tp.topic,
                    partition=tp.partition,
                    offset=given.offset,
                    leader_epoch=given.leader_epoch,
                    metadata=given.metadata,
                )
                for tp, given in offsets.items()
            ],
            member_id=member_id,
            member_epoch=epoch,
            topic_ids={topic: of for topic, of in topic_ids.items() if topic in topics},
            sequence=self._sequence if member_id else 0,
        )

    async def _ask(
        self, request: OffsetCommitRequest, *, timeout_ms: int
    ) -> dict[TopicPartition, RaftlogError]:
        answer = await self._coordinators.call(
            request.group, apis.OFFSET_COMMIT, request, timeout_ms=timeout_ms
        )
        assert isinstance(answer, OffsetCommitResponse)
        failures = {
            TopicPartition(part.topic, part.partition): part.failure.to_error()
            for part in answer.partitions
            if part.failure is not None
        }
        for error in failures.values():
            if isinstance(error, _OF_MEMBERS):
                raise error
        return failures

    async def close(self) -> None:
        """Cancel all commits without a response."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])
        for commit in (*self._current, *self._waiting):
            commit.future.cancel()


def _resolve(commit: _Commit, failures: Mapping[TopicPartition, RaftlogError]) -> None:
    if commit.future.done():
        return
    for tp in commit.offsets:
        if tp in failures:
            commit.future.set_exception(failures[tp])
            return
    commit.future.set_result(commit.offsets)


def _look_at(future: asyncio.Future[Offsets]) -> None:
    """Mark the exception of the future as retrieved, because a caller does not have to await it."""
    if not future.cancelled():
        future.exception()
