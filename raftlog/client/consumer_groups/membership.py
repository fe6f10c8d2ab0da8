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

import logging
import math
from _thread import allocate_lock
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from raftlog.client.settings import GroupSettings
from raftlog.errors import FencedMemberError, RaftlogError, UnknownMemberError
from raftlog.protocol.groups import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_MEMBER_EPOCH,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    TopicShare,
)
from raftlog.types import TopicPartition

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
            if self.phase in (Phase.OUT, Phase.ENDED):
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
            return self._request(self.epoch, owned=owned, wait_ms=wait_ms)

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
        return beat.sequence == self._sequence and self.is_active

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
