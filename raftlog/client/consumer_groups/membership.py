"""One consumer's membership of a group: what to tell the coordinator, and what its answers change.

Sans-I/O: ``heartbeats`` carries, on the I/O loop; the application takes changes and acts on them,
in its own thread. ``lock`` guards what both touch.

                 subscribe            answered            session or poll interval over, fenced
       OUT ──────────────────► JOINING ─────────► IN ─────────────────────────────► LOST
        ▲                         ▲                                                  │
        └── leave (from any)      └────────── rejoin, when the application knows ────┘

       ENDED: refused for good (another member has the instance id, ...); until ``subscribe``

The coordinator gives a partition to another member once a heartbeat of this one leaves it out of
``owned``. So ``owned`` holds all that the application may read or still commit for at that moment,
or may begin to read without another word: what it has, what it has given up and not yet committed,
and what it has been assigned and not yet taken. And an answer counts only if it is the one to the
last heartbeat: an older heartbeat may have been answered with what a newer one has just left out.
"""

from __future__ import annotations

import logging
import math
from _thread import allocate_lock
from collections.abc import Mapping, Sequence
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

Owned: TypeAlias = Mapping[TopicPartition, str]  # partition -> its topic's id

_EARLY_PART: Final = 2  # an answer before this part of its wait asks for a pause


class Phase(Enum):
    OUT = "out"
    JOINING = "joining"
    IN = "in"
    LOST = "lost"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What the application is to act on, in this order."""

    lost: dict[TopicPartition, str] = field(default_factory=dict)  # they may be others' already
    error: RaftlogError | None = None  # and it is no member any more
    is_out: bool = False  # no member at the moment: ``rejoin`` when this is acted on
    revoked: dict[TopicPartition, str] = field(default_factory=dict)
    assigned: dict[TopicPartition, str] = field(default_factory=dict)


class Membership:
    """Time is in seconds, monotonic. ``member_id`` is the same for a consumer's whole life."""

    def __init__(self, settings: GroupSettings, member_id: str) -> None:
        self.settings = settings
        self.member_id = member_id
        self.lock = allocate_lock()
        self.phase = Phase.OUT
        self.epoch = JOIN_EPOCH
        self.incarnation = 0  # counts joins: offsets are committed by the one that read
        self.metadata_version = 0
        self.error: RaftlogError | None = None  # why it ended
        self._topics: tuple[str, ...] = ()
        self._sequence = 0
        self._sent_at = 0.0  # the last heartbeat
        self._sent_wait = 0.0
        self._is_answered = True
        self._due_at = math.inf  # the next one
        self.expires_at = math.inf  # when the coordinator may give its partitions away
        self._idle_since: float | None = None  # None while the application is in a poll
        self._had: dict[TopicPartition, str] = {}  # by the application
        self._releasing: dict[TopicPartition, str] = {}  # given up by it, and being committed
        self._target: dict[TopicPartition, str] = {}  # as last answered
        self._is_told = True  # the application knows that it is lost, or ended
        self._farewell: int | None = None  # an epoch to leave with

    # -- the application's side

    def subscribe(self, topics: Sequence[str], *, now: float) -> None:
        """Become a member that reads ``topics``; or read others from now on."""
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
        """What was lost is given up: become a member anew."""
        with self.lock:
            if self.phase is Phase.LOST and self._is_told:
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
        """Whether there is something to take."""
        with self.lock:
            return self._pending()

    def _pending(self) -> bool:
        if self.phase in (Phase.LOST, Phase.ENDED):
            return not self._is_told
        return self.phase is Phase.IN and (bool(self._revoked()) or bool(self._assigned()))

    def _revoked(self) -> dict[TopicPartition, str]:
        return {tp: of for tp, of in self._had.items() if self._target.get(tp) != of}

    def _assigned(self) -> dict[TopicPartition, str]:
        """What it may begin to read; not what is still on its way out."""
        return {
            tp: of
            for tp, of in self._target.items()
            if tp not in self._had and tp not in self._releasing
        }

    def take(self) -> Change | None:
        """What changed since it was last asked: from now on the application has it so.

        What is revoked counts as owned until ``released``.
        """
        with self.lock:
            if not self._pending():
                return None
            if self.phase is not Phase.IN:
                lost, self._had, self._releasing = self._had, {}, {}
                self._target = {}
                self._is_told = True
                return Change(lost=lost, error=self.error, is_out=self.phase is Phase.LOST)
            revoked = self._revoked()
            self._releasing.update(revoked)
            for tp in revoked:
                del self._had[tp]
            assigned = self._assigned()
            self._had.update(assigned)
            return Change(revoked=revoked, assigned=assigned)

    def holdings(self) -> tuple[dict[TopicPartition, str], dict[TopicPartition, str]]:
        """What the application has by now, and what it has given up that is not released."""
        with self.lock:
            return self._had.copy(), self._releasing.copy()

    def released(self, partitions: Owned, *, incarnation: int, now: float) -> None:
        """These are given up, and what was read of them is committed."""
        with self.lock:
            if incarnation != self.incarnation:
                return
            for tp, of in partitions.items():
                if self._releasing.get(tp) == of:
                    del self._releasing[tp]
                    self._due_at = now

    def polling(self) -> None:
        """The application is in a poll."""
        self._idle_since = None

    def polled(self, *, now: float) -> None:
        """It has left it, with records or without."""
        self._idle_since = now

    def topic_ids(self) -> dict[str, str]:
        """Of the topics of which the application has partitions."""
        with self.lock:
            return {tp.topic: of for tp, of in (*self._releasing.items(), *self._had.items())}

    def credentials(self, incarnation: int) -> tuple[str, int] | None:
        """Member id and epoch to commit with what that incarnation has read.

        None: not known yet, for it is joining. Raises when it is a member no more.
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
        """The heartbeat to send now, if one is due."""
        with self.lock:
            if self.phase is Phase.LOST and self._farewell is not None:
                epoch, self._farewell = self._farewell, None
                return self._request(epoch, owned={}, wait_ms=0)
            if not self.is_active or now < self._due_at:
                return None
            owned = {**self._target, **self._releasing, **self._had}
            wait_ms = self.settings.heartbeat_interval_ms
            if self.phase is Phase.JOINING or owned != self._target:
                wait_ms = 0  # it would be answered at once
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
        """Whether heartbeats are sent."""
        return self.phase in (Phase.JOINING, Phase.IN)

    def is_last(self, beat: GroupHeartbeatRequest) -> bool:
        """Whether the answer to this heartbeat still counts."""
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
        """No answer, or a refusal; ``retry_at`` is None when the same again is of no use."""
        with self.lock:
            if not self.is_last(beat):
                return
            self._is_answered = True
            if isinstance(error, UnknownMemberError | FencedMemberError):
                if self.phase is Phase.IN:
                    self._lose(f"the coordinator says: {error}")
                    return
                retry_at = self._sent_at + self.settings.heartbeat_interval_ms / 1_000
            if retry_at is None:
                self._end(error)
            else:
                self._due_at = min(self._due_at, retry_at)

    def hurry(self, *, now: float) -> None:
        """Send a heartbeat, unless one is on its way that will not wait."""
        with self.lock:
            if self._is_answered or self._sent_wait:
                self._due_at = now

    def tick(self, *, now: float) -> None:
        """See whether a time is over."""
        with self.lock:
            if not self.is_active:
                return
            settings = self.settings
            idle_since = self._idle_since
            if idle_since is not None and now >= idle_since + settings.max_poll_interval_ms / 1_000:
                self._lose(
                    "poll() was not called for max_poll_interval_ms="
                    f"{settings.max_poll_interval_ms} ms: raise that setting, or take fewer "
                    "records at a time (max_records)"
                )
                self._farewell = LEAVE_EPOCH if settings.instance_id is None else AWAY_EPOCH
            elif self.phase is Phase.IN and now >= self.expires_at:
                self._lose(
                    "no coordinator has answered for session_timeout_ms="
                    f"{settings.session_timeout_ms} ms"
                )

    @property
    def next_at(self) -> float:
        """When ``beat`` or ``tick`` has something to do."""
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
        """A commit was refused: its member is none any more."""
        with self.lock:
            if incarnation == self.incarnation and self.phase is Phase.IN:
                self._lose(f"the coordinator says: {error}")

    def end(self, error: RaftlogError) -> None:
        """It may never be a member again, not as it is."""
        with self.lock:
            if self.is_active:
                self._end(error)

    def _lose(self, why: str) -> None:
        logger.warning(
            "member %s of group %r has lost its %d partitions: %s",
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
        self._is_told = False
        self.expires_at = self._due_at = math.inf
        self._is_answered = True

    def leave(self, epoch: int) -> GroupHeartbeatRequest | None:
        """Be no member, at once; what to tell the coordinator, if it has ever heard of this one."""
        with self.lock:
            was_in = self.is_active and self._sequence
            farewell, self._farewell = self._farewell, None
            self.phase = Phase.OUT
            self._stop()
            self._is_told = True
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
