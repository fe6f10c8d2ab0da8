"""Consumer groups of one partition of ``__consumer_offsets``, while this broker leads it.

``raftlog.consumer_groups.GroupShard`` decides, and ``LogShard`` writes its decisions to the
partition's log. Requests of members wait here.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from raftlog.consumer_groups import (
    JOIN_EPOCH,
    GroupShard,
    Heartbeat,
    HeartbeatDelta,
    HeartbeatResult,
    Join,
    JoinResult,
    StateChange,
    Sync,
    SyncResult,
)
from raftlog.consumer_groups.shard import PendingGuard
from raftlog.consumer_groups.values import Topics
from raftlog.errors import (
    OutcomeUnknownError,
    RaftlogError,
)
from raftlog.server.log_shard import Decision, Failed, LogServices, LogShard
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Rounds, coalesced_deadline
from raftlog.transactions import Marker
from raftlog.types import LeaderEpoch

logger = logging.getLogger(__name__)


# -- shard -----------------------------------------------------------------------------------------


T = TypeVar("T")

# Members remembered; a member that is not gets one redundant response.
MEMBERS_NOTIFIED_MAX: Final = 100_000
# Seconds after which a waiting classic member has to join again. A rebalance takes longer only with
# a longer max.poll.interval.ms.
CLASSIC_WAIT_SECONDS_MAX: Final = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardServices(LogServices):
    """Services of the broker that all its shards share."""

    new_groups: Callable[[], GroupShard]
    topics: Callable[[], Topics]  # current topics


class ActiveShard(LogShard[GroupShard]):
    """The groups of one partition, while this broker leads it in one epoch."""

    what = "consumer groups"

    def __init__(self, host: Partition, services: ShardServices) -> None:
        """Start to load the state."""
        super().__init__(host, services)
        self._services = services
        self._parked = HeartbeatPurgatory(services.loop)
        # Joins and syncs of classic members.
        self._waiting = HeartbeatPurgatory(services.loop)
        # Heartbeats that join in this turn of the loop.
        self._joining: dict[MemberKey, tuple[Heartbeat, HeartbeatAnswer]] = {}
        # Members whose heartbeat was answered since topics changed.
        self._notified: set[MemberKey] = set()
        self._reassurances = HeartbeatKeepalive(self._loop, self._confirmations, self._may_repeat)

    # -- what the log asks for ---------------------------------------------------------------------

    def _new_state(self) -> GroupShard:
        return self._services.new_groups()

    def _start(self, state: GroupShard, now: float, now_ms: int) -> StateChange[None]:
        topics = self._services.topics()
        return state.start(topics.by_name, version=topics.version, now=now, now_ms=now_ms)

    def _act(self, step: Decision[Any]) -> None:
        assert isinstance(step, StateChange)
        for member in sorted(step.wake):
            self._parked.wake(member)
            self._waiting.wake(member)

    def _discarded(self, reason: RaftlogError) -> None:
        self._parked.refuse_all(reason)
        self._waiting.refuse_all(reason)
        self._reassurances.forget_all()

    # -- queries of the coordinator ----------------------------------------------------------------

    @property
    def is_loading(self) -> bool:
        """Whether the state is loading, or refers to newer topics than this broker knows."""
        return self._state is None or not self._state.is_started

    @property
    def loaded(self) -> GroupShard | None:
        """The groups, to be read only; None while they are loading."""
        return None if self.is_loading else self._state

    def set_topics(self, topics: Topics) -> None:
        """Apply a change of topics or partitions. Every member is notified soon: members that
        subscribe to a pattern then check the topics.
        """
        self._notified.clear()
        self._decide(
            lambda groups, now, now_ms: groups.set_topics(
                topics.by_name, version=topics.version, now=now, now_ms=now_ms
            )
        )
        self._parked.wake_all()

    def forget(self, owner: Hashable) -> None:
        """Forget a closed connection."""
        self._parked.forget(owner)
        self._waiting.forget(owner)

    # -- requests ----------------------------------------------------------------------------------

    def heartbeat(
        self,
        beat: Heartbeat,
        done: Callable[[HeartbeatResult], None],
        failed: Failed,
        *,
        owner: Hashable,
        wait_seconds: float,
    ) -> None:
        """Process the heartbeat of a member. If there is no change for it, respond after
        ``wait_seconds``.

        The first heartbeat after a change of topics has a result: that change. A member whose
        response takes long to be committed gets its last response again.

        An older waiting heartbeat of the same member is answered now. Raises the errors of
        ``change``.
        """
        member: MemberKey = (beat.group, beat.member_id)
        self._parked.wake(member)
        if member in self._joining:
            self._admit()
        groups = self._serving()
        if beat.member_epoch <= 0:
            self.host.check_committable()  # joins and leaves are written
        if beat.member_epoch == JOIN_EPOCH:
            self._admit_soon(member, beat, done, failed)
            return
        try:
            step = self._operate(
                lambda groups, now, now_ms: groups.heartbeat(beat, now=now, now_ms=now_ms), groups
            )
        except RaftlogError as error:
            self._refuse(error, groups, failed)
            return
        answer = self._reassurances.begin(
            member, beat.member_epoch, done, failed, session_ms=beat.session_timeout_ms
        )
        is_known = member in self._notified and not step.result.is_news_to(beat)
        if is_known and wait_seconds > 0:
            unpark = partial(self._unpark, member, answer)
            self._parked.park(member, owner, unpark, wait_seconds=wait_seconds)
            return
        self._note_notified(member)
        self._resolve_beat(step.result, answer)

    def heartbeat_delta(
        self, delta: HeartbeatDelta, done: Callable[[HeartbeatResult], None], failed: Failed
    ) -> None:
        """Process the heartbeat of a Kafka member. The response does not wait for a change: on its
        connection, it would delay the responses to later requests.

        Raises the errors of ``change``.
        """
        if (delta.group, delta.member_id) in self._joining:
            self._admit()
        groups = self._serving()
        try:
            beat = groups.complete(delta)
        except RaftlogError as error:
            self._refuse(error, groups, failed)
            return
        self.heartbeat(beat, done, failed, owner=None, wait_seconds=0.0)

    def join(
        self, join: Join, done: Callable[[JoinResult], None], failed: Failed, *, owner: Hashable
    ) -> None:
        """Process the join of a classic member: respond when its generation is committed.

        An older waiting request of the same member is answered now. Raises the errors of
        ``change``.
        """
        name, instance = join.member_id or join.new_member_id, join.instance_id
        self._wait_for(
            (join.group, name),
            lambda groups, now, now_ms: groups.join(join, now=now, now_ms=now_ms),
            lambda groups: groups.join_result(join.group, name, instance),
            done,
            failed,
            owner=owner,
        )

    def sync(
        self, sync: Sync, done: Callable[[SyncResult], None], failed: Failed, *, owner: Hashable
    ) -> None:
        """Process a classic member's request for its assignment: respond when the leader's
        assignments are committed.

        An older waiting request of the same member is answered now. Raises the errors of
        ``change``.
        """
        name, instance = sync.member_id, sync.instance_id
        self._wait_for(
            (sync.group, name),
            lambda groups, now, now_ms: groups.sync(sync, now=now, now_ms=now_ms),
            lambda groups: groups.sync_result(sync.group, name, instance),
            done,
            failed,
            owner=owner,
        )

    def _wait_for(
        self,
        member: MemberKey,
        operation: Callable[[GroupShard, float, int], StateChange[T | None]],
        result: Callable[[GroupShard], T],
        done: Callable[[T], None],
        failed: Failed,
        *,
        owner: Hashable,
    ) -> None:
        """Respond with the result of ``operation``, or with ``result`` when the member is woken."""
        self._waiting.wake(member)
        groups = self._serving()
        self.host.check_committable()
        try:
            step = self._operate(operation, groups)
        except RaftlogError as error:
            self._refuse(error, groups, failed)
            return
        if step.result is not None:
            done_with_it = partial(done, step.result)
            self._resolve(done_with_it, failed, is_appended=bool(step.records))
            return

        def unpark(reason: RaftlogError | None) -> None:
            if reason is not None:
                failed(reason)
                return
            assert self._state is not None, "waits are failed when the state is discarded"
            try:
                go = partial(done, result(self._state))
            except RaftlogError as error:
                go = partial(failed, error)
            self._resolve(go, failed)

        self._waiting.park(member, owner, unpark, wait_seconds=CLASSIC_WAIT_SECONDS_MAX)

    def classic_heartbeat(
        self,
        operation: Callable[[GroupShard, float, int], StateChange[None]],
        done: Callable[[None], None],
        failed: Failed,
    ) -> None:
        """Process the heartbeat of a classic member. Respond only if this broker still led after it
        arrived: see ``HeartbeatKeepalive``. Raises the errors of ``change``.
        """
        groups, mark = self._serving(), self._confirmations.mark
        try:
            self._operate(operation, groups)
        except RaftlogError as error:
            self._refuse(error, groups, failed)
        else:
            self._resolve(partial(done, None), failed, confirmed_since=mark)

    def guard(
        self, producer_id: int, producer_epoch: int, *, coordinator_epoch: LeaderEpoch
    ) -> PendingGuard:
        """Return the guard of a commit in a transaction, see ``GroupShard.guard``. Raises the
        errors of ``change``.
        """
        groups = self._serving()
        return groups.guard(producer_id, producer_epoch, coordinator_epoch=coordinator_epoch)

    def end_transaction(self, marker: Marker, done: Callable[[None], None], failed: Failed) -> None:
        """End a transaction in the groups. A marker that changes nothing succeeds only if this
        broker still led after it arrived: otherwise another one may have the pending offsets.

        Raises the errors of ``change``.
        """
        groups, mark = self._serving(), self._confirmations.mark
        self.host.check_committable()
        try:
            step = self._operate(
                lambda groups, now, _now_ms: groups.end_transaction(marker, now=now), groups
            )
        except RaftlogError as error:
            self._refuse(error, groups, failed)
        else:
            is_appended = bool(step.records)
            # guard: a marker without effect is confirmed by the leader
            self._resolve(
                partial(done, None),
                failed,
                confirmed_since=None if is_appended else mark,
                is_appended=is_appended,
            )

    def _admit_soon(
        self,
        member: MemberKey,
        beat: Heartbeat,
        done: Callable[[HeartbeatResult], None],
        failed: Failed,
    ) -> None:
        """Collect all joins of one turn of the loop: they cost one rebalance, and are written
        together.
        """
        if not self._joining:
            self._loop.call_soon(self._admit)
        answer = self._reassurances.begin(member, JOIN_EPOCH, done, failed, session_ms=0)
        self._joining[member] = beat, answer

    def _admit(self) -> None:
        joining, self._joining = self._joining, {}
        if not joining:
            return
        joins = [beat for beat, _ in joining.values()]
        try:
            groups = self._serving()
            step = self._operate(
                lambda groups, now, now_ms: groups.join_all(joins, now=now, now_ms=now_ms), groups
            )
        except RaftlogError as error:
            for _, answer in joining.values():
                answer.fail(error)
            return
        except Exception as error:  # no caller would report it
            logger.exception(
                "consumer group operation failed: partition=%s reason=internal_error",
                self.host.topic_partition,
            )
            for _, answer in joining.values():
                answer.fail(OutcomeUnknownError(f"internal broker error: {error!r}"))
            return
        for (member, (_, answer)), outcome in zip(joining.items(), step.result, strict=True):
            if isinstance(outcome, RaftlogError):
                self._resolve(partial(answer.fail, outcome), answer.fail)
                continue
            self._note_notified(member)
            self._resolve_beat(outcome, answer)

    def _note_notified(self, member: MemberKey) -> None:
        """Record that the member gets its first result since topics have changed."""
        if len(self._notified) >= MEMBERS_NOTIFIED_MAX:
            self._notified.clear()
        self._notified.add(member)

    def _unpark(
        self, member: MemberKey, answer: HeartbeatAnswer, reason: RaftlogError | None
    ) -> None:
        if reason is not None:
            answer.fail(reason)
            return
        self._notified.add(member)
        assert self._state is not None, "held heartbeats are failed when the state is discarded"
        try:
            beat = self._state.beat(*member)
        except RaftlogError as error:
            self._resolve(partial(answer.fail, error), answer.fail)
        else:
            self._resolve_beat(beat, answer)

    def _may_repeat(self, member: MemberKey) -> bool:
        """Whether the member may get its last response again."""
        if self.is_over or self._state is None:
            return False
        try:
            self._state.beat(*member)
        except RaftlogError:  # it is removed, even if that is not committed yet
            return False
        return True

    # -- answering ---------------------------------------------------------------------------------

    def _resolve_beat(self, beat: HeartbeatResult, answer: HeartbeatAnswer) -> None:
        """Answer a heartbeat only if this broker still led after it arrived: see
        ``HeartbeatKeepalive``.
        """
        # guard: a heartbeat is answered by a leader confirmed after it
        drop = self._resolve(partial(answer.go, beat), answer.fail, confirmed_since=answer.mark)
        answer.wait(drop)


# -- heartbeat purgatory ---------------------------------------------------------------------------
#
# Heartbeat purgatory: heartbeats without a result wait here until there is one, or time out.
#
# The shard decides the response. At most one heartbeat per member waits.


MemberKey: TypeAlias = tuple[str, str]  # consumer group and member id
# Called once: with None when the heartbeat must be answered, or with the error.
Unpark: TypeAlias = Callable[[RaftlogError | None], None]


class HeartbeatPurgatory:
    """Waiting heartbeats of one shard."""

    __slots__ = ("_by_owner", "_loop", "_parked")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._parked: dict[MemberKey, tuple[Hashable, TimerHandle, Unpark]] = {}
        self._by_owner: dict[Hashable, set[MemberKey]] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def park(
        self, member: MemberKey, owner: Hashable, unpark: Unpark, *, wait_seconds: float
    ) -> None:
        """Call ``unpark`` after ``wait_seconds``, or earlier when the member is woken.

        ``owner``: the connection of the heartbeat; if it closes, the heartbeat is forgotten.
        """
        assert member not in self._parked, "the older heartbeat must be answered first"
        end = coalesced_deadline(self._loop.time(), wait_seconds)
        timer = self._loop.call_at(end, self.wake, member)
        self._parked[member] = owner, timer, unpark
        self._by_owner.setdefault(owner, set()).add(member)

    def wake(self, member: MemberKey) -> None:
        """Answer the member's heartbeat, if one waits."""
        unpark = self._take(member)
        if unpark is not None:
            unpark(None)

    def wake_all(self) -> None:
        for member in tuple(self._parked):
            self.wake(member)

    def refuse_all(self, reason: RaftlogError) -> None:
        """Fail all heartbeats with ``reason``."""
        for member in tuple(self._parked):
            unpark = self._take(member)
            if unpark is not None:
                unpark(reason)

    def forget(self, owner: Hashable) -> None:
        """Forget the heartbeats of a closed connection."""
        members: Iterable[MemberKey] = tuple(self._by_owner.get(owner, ()))
        for member in members:
            self._take(member)

    def _take(self, member: MemberKey) -> Unpark | None:
        found = self._parked.pop(member, None)
        if found is None:
            return None
        owner, timer, unpark = found
        timer.cancel()
        of_owner = self._by_owner[owner]
        of_owner.discard(member)
        if not of_owner:
            del self._by_owner[owner]
        return unpark


# -- heartbeat keepalive ---------------------------------------------------------------------------
#
# Heartbeat keepalive: repeats the last response to a member whose heartbeat has to wait.
#
# A failed broker delays commits until it has left the ISR. That takes seconds, in which members
# would get no response, consider themselves isolated, and be removed, as they send no heartbeat
# while one is unanswered. So a member that has waited for a third of its session timeout gets its
# last response again. That response is committed and contains nothing new, and the session was
# renewed when the heartbeat arrived. A member that joins or leaves, or that may have been removed,
# continues to wait.
#
# **Every response to a heartbeat is a lease**: the member keeps its partitions until its session
# timeout has passed since it sent that heartbeat. A new coordinator waits for a full session
# timeout from its start before it reassigns the partitions of an unresponsive member. So a
# coordinator responds to a heartbeat only if no newer coordinator can have started when the
# heartbeat arrived. Then the lease ends first, regardless of the network partition and its
# duration.


# Maximum wait of a heartbeat as a share of the session timeout: so that the next one may be lost.
PATIENCE_SHARE: Final = 1 / 3
MEMBERS_MAX: Final = 100_000  # members remembered; others wait for the log


class HeartbeatKeepalive:
    """Keepalives of one shard."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        confirmations: Rounds,
        may_tell: Callable[[MemberKey], bool],
    ) -> None:
        """``confirmations``: that this broker leads. ``may_tell``: whether this is still a member,
        by the decisions so far.
        """
        self._loop = loop
        self.confirmations = confirmations
        self._may_repeat = may_tell
        self._last: dict[MemberKey, HeartbeatResult] = {}

    def begin(
        self,
        member: MemberKey,
        epoch: int,
        done: Callable[[HeartbeatResult], None],
        failed: Failed,
        *,
        session_ms: int,
    ) -> HeartbeatAnswer:
        """Create the response to a heartbeat with epoch ``epoch`` that has just arrived."""
        until = self._loop.time() + session_ms / 1_000 * PATIENCE_SHARE
        return HeartbeatAnswer(self, self._loop, member, epoch, done, failed, until=until)

    def responded(self, member: MemberKey, beat: HeartbeatResult) -> None:
        """Record the committed response that the member got."""
        if len(self._last) >= MEMBERS_MAX:
            self._last.clear()
        self._last[member] = beat

    def last(self, member: MemberKey, epoch: int) -> HeartbeatResult | None:
        """Return the response that a member with epoch ``epoch`` may get now; None if there is
        none.
        """
        found = self._last.get(member)
        # guard: only members receive an unchanged assignment
        if found is None or not 0 < epoch <= found.member_epoch or not self._may_repeat(member):
            return None
        return found

    def forget_all(self) -> None:
        self._last.clear()


class HeartbeatAnswer:
    """Response to one heartbeat. It is sent once, by the first event."""

    __slots__ = (
        "_all",
        "_done",
        "_drop",
        "_epoch",
        "_failed",
        "_is_over",
        "_loop",
        "_member",
        "_timer",
        "_until",
        "mark",
    )

    def __init__(
        self,
        reassurances: HeartbeatKeepalive,
        loop: asyncio.AbstractEventLoop,
        member: MemberKey,
        epoch: int,
        done: Callable[[HeartbeatResult], None],
        failed: Failed,
        *,
        until: float,
    ) -> None:
        self._all = reassurances
        self._loop = loop
        self._member = member
        self._epoch = epoch
        self._done = done
        self._failed = failed
        self._until = until
        self.mark = reassurances.confirmations.mark  # time of arrival of the heartbeat
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._drop: Callable[[], object] | None = None

    def go(self, beat: HeartbeatResult) -> None:
        """Send the committed result."""
        if self._end():
            self._all.responded(self._member, beat)
            self._done(beat)

    def fail(self, error: RaftlogError) -> None:
        if self._end():
            self._failed(error)

    def wait(self, drop: Callable[[], object]) -> None:
        """Wait for the log, unless the response was sent already. ``drop`` cancels the wait."""
        if not self._is_over:
            self._drop = drop
            left = max(self._until - self._loop.time(), 0.0)
            self._timer = self._loop.call_later(left, self._confirm)

    def _confirm(self) -> None:
        # guard: a keepalive is sent by a leader confirmed after the heartbeat
        self._all.confirmations.ask(self._reassure, since=self.mark)

    def _reassure(self, error: RaftlogError | None) -> None:
        if error is not None:
            return
        beat = self._all.last(self._member, self._epoch)
        if beat is not None and self._end():
            assert self._drop is not None, "a timer is pending"
            self._drop()
            self._done(beat)

    def _end(self) -> bool:
        if self._is_over:
            return False
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        return True
