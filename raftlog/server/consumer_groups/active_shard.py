"""Consumer groups of one partition of ``__consumer_offsets``, while this broker leads it.

``raftlog.consumer_groups.GroupShard`` decides. This module writes its decisions to the partition's
log, and responds once they are committed. The state in memory changes at once, before anything is
written. So no response is sent, not even a refusal, before all earlier decisions are committed.
When a decision cannot be written, the state is discarded and read again from the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from raftlog import limits
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
from raftlog.consumer_groups.values import Topics
from raftlog.errors import (
    CommitUnknownError,
    CoordinatorLoadingError,
    NotEnoughReplicasError,
    OutcomeUnknownError,
    RaftlogError,
    StorageError,
    ThrottledError,
)
from raftlog.record import parse_header
from raftlog.server.broker_clock import BrokerClock
from raftlog.server.consumer_groups.heartbeat_keepalive import HeartbeatAnswer, HeartbeatKeepalive
from raftlog.server.consumer_groups.heartbeat_purgatory import HeartbeatPurgatory, MemberKey
from raftlog.server.consumer_groups.loading import load
from raftlog.server.consumer_groups.pending_responses import (
    Failed,
    PendingResponses,
    not_coordinator,
)
from raftlog.server.consumer_groups.writing import batches_of
from raftlog.server.offset_waiters import Acknowledge
from raftlog.server.partition import Partition
from raftlog.server.rounds import Rounds
from raftlog.types import Offset

logger = logging.getLogger(__name__)

T = TypeVar("T")

PAUSE_SECONDS_MIN: Final = 0.05  # seconds; minimum pause before a failed load is retried
PAUSE_SECONDS_MAX: Final = 0.5
PAUSE_SECONDS_DAMAGED: Final = 10.0  # seconds; pause before a retry when an operator has to act
SOUND_SECONDS: Final = 10.0  # a shard that has served for this time resets its failure count
# Members remembered; a member that is not gets one redundant response.
MEMBERS_NOTIFIED_MAX: Final = 100_000
# Seconds after which a waiting classic member has to join again. A rebalance takes longer only with
# a longer max.poll.interval.ms.
CLASSIC_WAIT_SECONDS_MAX: Final = 3_600.0
TICK_SECONDS_MIN: Final = 0.001  # timers can fire slightly early


@dataclass(frozen=True, slots=True)
class ShardServices:
    """Services of the broker that all its shards share."""

    loop: asyncio.AbstractEventLoop
    clock: BrokerClock
    new_groups: Callable[[], GroupShard]
    topics: Callable[[], Topics]  # current topics
    confirm: Callable[[Partition, Acknowledge], None]  # confirms that this broker leads
    # Called with the offset of stored bytes that cannot be read.
    on_unreadable: Callable[[Partition, Offset], None]
    reading: asyncio.Lock  # one shard at a time reads its log


class ActiveShard:
    """Active from the time at which this broker begins to lead the partition until it stops leading
    it, or leads in another epoch.

    Invariant: all decisions of ``_groups`` are in the log below ``_end``, or ``_groups`` is None.
    """

    def __init__(self, host: Partition, services: ShardServices) -> None:
        """Start to load the state."""
        self.host = host
        self.epoch = host.leader_epoch
        self._services = services
        self._loop = services.loop
        self._groups: GroupShard | None = None  # None: not loaded yet
        self._end: Offset = 0
        self._closed = False
        self._why: RaftlogError = self._loading_error("")
        self._parked = HeartbeatPurgatory(services.loop)
        # Joins and syncs of classic members.
        self._waiting = HeartbeatPurgatory(services.loop)
        # Heartbeats that join in this turn of the loop.
        self._joining: dict[MemberKey, tuple[Heartbeat, HeartbeatAnswer]] = {}
        # Members whose heartbeat was answered since topics changed.
        self._notified: set[MemberKey] = set()
        # Confirmations that this broker leads.
        self._confirmations = Rounds(partial(services.confirm, host))
        self._answers = PendingResponses(host, self._confirmations, self._loop)
        self._reassurances = HeartbeatKeepalive(self._loop, self._confirmations, self._may_repeat)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._failures = 0  # since the last time without trouble
        self._served_from = 0.0
        self._loading = self._loop.create_task(self._keep_loading(0.0))

    # -- queries of the coordinator ----------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether this broker is no longer the leader, or leads in another epoch."""
        host = self.host
        return (
            self._closed
            or host.closed is not None
            or host.leadership is None
            or host.leader_epoch != self.epoch
        )

    @property
    def is_loading(self) -> bool:
        """Whether the state is loading, or refers to newer topics than this broker knows."""
        return self._groups is None or not self._groups.is_started

    @property
    def loaded(self) -> GroupShard | None:
        """The groups, to be read only; None while they are loading."""
        return None if self.is_loading else self._groups

    def when_loaded(self, done: Callable[[], object]) -> None:
        """Call ``done`` soon after the load has ended: the groups are served, or this shard is
        over.
        """
        self._loading.add_done_callback(lambda _loading: done())

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

    def close(self, reason: RaftlogError) -> asyncio.Task[None]:
        """Decide nothing more. Pending responses are sent when they are committed, or fail.

        Returns the awaitable to await before the loop ends.
        """
        self._closed = True
        self._drop(reason)
        self._loading.cancel()
        return self._loading

    # -- requests ----------------------------------------------------------------------------------

    def change(
        self,
        operation: Callable[[GroupShard, float, int], StateChange[T]],
        done: Callable[[T], None],
        failed: Failed,
    ) -> None:
        """Call ``done`` with the result of the step once it is committed, else ``failed``.

        ``operation`` gets the time in seconds (monotonic) and the wall-clock time in milliseconds.
        Raises the error that prevents its start. ``CommitUnknownError``: it may or may not take
        effect.
        """
        groups = self._serving()
        self._check_writable()
        try:
            step = self._operate(operation, groups)
        except RaftlogError as error:
            self._refuse(error, groups, failed)
        else:
            done_with_it = partial(done, step.result)
            self._resolve(done_with_it, failed, is_appended=bool(step.records))

    def ask(
        self,
        question: Callable[[GroupShard], T],
        done: Callable[[T], None],
        failed: Failed,
    ) -> None:
        """Call ``done`` with the result once no other broker can have had newer state at the time
        of the call. Raises the errors of ``change``.
        """
        groups = self._serving()
        try:
            go = partial(done, question(groups))
        except RaftlogError as error:
            go = partial(failed, error)
        self._resolve(go, failed, confirmed_since=self._confirmations.mark)

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
            self._check_writable()  # joins and leaves are written
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
        self._check_writable()
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
            assert self._groups is not None, "waits are failed when the state is discarded"
            try:
                go = partial(done, result(self._groups))
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
        arrived: see ``heartbeat_keepalive``. Raises the errors of ``change``.
        """
        groups, mark = self._serving(), self._confirmations.mark
        try:
            self._operate(operation, groups)
        except RaftlogError as error:
            self._refuse(error, groups, failed)
        else:
            self._resolve(partial(done, None), failed, confirmed_since=mark)

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
        assert self._groups is not None, "held heartbeats are failed when the state is discarded"
        try:
            beat = self._groups.beat(*member)
        except RaftlogError as error:
            self._resolve(partial(answer.fail, error), answer.fail)
        else:
            self._resolve_beat(beat, answer)

    def _may_repeat(self, member: MemberKey) -> bool:
        """Whether the member may get its last response again."""
        if self.is_over or self._groups is None:
            return False
        try:
            self._groups.beat(*member)
        except RaftlogError:  # it is removed, even if that is not committed yet
            return False
        return True

    # -- deciding and writing ----------------------------------------------------------------------

    def _serving(self) -> GroupShard:
        """Return the state, or raise the reason why it is not available."""
        if self.is_over:
            raise not_coordinator(self.host, "it is no longer the leader")
        if self._groups is None:
            raise self._why
        if len(self._answers) >= limits.GROUP_ANSWERS_WAITING_MAX:
            raise ThrottledError(
                f"{self.host.topic_partition}: {len(self._answers)} responses of its consumer "
                "groups wait for the log, and GROUP_ANSWERS_WAITING_MAX is reached. Try again later"
            )
        return self._groups

    def _check_writable(self) -> None:
        """Reject now what the log would reject: this avoids a reload of the state."""
        leadership = self.host.leadership
        if self.host.obstacle or leadership is None or not leadership.has_quorum:
            raise NotEnoughReplicasError(
                f"{self.host.topic_partition}: nothing can be committed. "
                f"{self.host.obstacle or 'Too few in-sync replicas. Start the missing brokers'}"
            )

    def _operate(
        self, operation: Callable[[GroupShard, float, int], StateChange[T]], groups: GroupShard
    ) -> StateChange[T]:
        """Decide, and write the decision. Raises the refusal, or the error that prevented the
        write.
        """
        try:
            step = operation(groups, self._loop.time(), self._services.clock.wall_ms())
        except RaftlogError:
            self._plan_tick()
            raise
        except Exception as error:
            self._begin_anew(error)  # the state in memory may have changed
            raise
        self._carry_out(step)
        return step

    def _carry_out(self, step: StateChange[Any]) -> None:
        host, is_begun = self.host, False
        batches = batches_of(
            step.records,
            now_ms=self._services.clock.wall_ms(),
            bytes_max=host.log.config.max_message_bytes,
        )
        try:
            for batch in batches:
                self._end = host.append(batch, parse_header(batch)).last_offset + 1
                is_begun = True
        except RaftlogError as error:
            self._begin_anew(error)
            if is_begun:
                raise CommitUnknownError(f"the change was written partially: {error}") from error
            raise
        for note in step.notes:
            logger.info("consumer group changed: partition=%s note=%s", host.topic_partition, note)
        for member in sorted(step.wake):
            self._parked.wake(member)
            self._waiting.wake(member)
        self._plan_tick()

    def _decide(self, operation: Callable[[GroupShard, float, int], StateChange[None]]) -> None:
        """Make a decision that no request asked for, and no caller waits for."""
        if self._groups is None or self.is_over:
            return
        try:
            self._operate(operation, self._groups)
        except RaftlogError as error:
            logger.warning(
                "consumer group operation failed: partition=%s error=%s",
                self.host.topic_partition,
                error,
            )
        except Exception:  # no caller would report it
            logger.exception(
                "consumer group operation failed: partition=%s reason=internal_error",
                self.host.topic_partition,
            )

    # -- answering ---------------------------------------------------------------------------------

    def _refuse(self, error: RaftlogError, groups: GroupShard, failed: Failed) -> None:
        """Send a refusal. It may depend on decisions that are not committed yet: it waits like a
        response.
        """
        if self._groups is not groups:
            raise error  # rejected by the log; the state is discarded
        self._resolve(partial(failed, error), failed)

    def _resolve_beat(self, beat: HeartbeatResult, answer: HeartbeatAnswer) -> None:
        """Answer a heartbeat only if this broker still led after it arrived: see
        ``heartbeat_keepalive``.
        """
        drop = self._resolve(partial(answer.go, beat), answer.fail, confirmed_since=answer.mark)
        answer.wait(drop)

    def _resolve(
        self,
        go: Callable[[], None],
        failed: Failed,
        *,
        confirmed_since: int | None = None,
        is_appended: bool = False,
    ) -> Callable[[], object]:
        """Send a response once all decisions up to now are committed. Returns a function that
        cancels it.

        The exception is a result that the member knows already, see ``heartbeat_keepalive``.
        """
        if self.is_over:  # commits from now on are another leader's
            failed(not_coordinator(self.host, "it is no longer the leader"))
            return _nothing
        return self._answers.resolve(
            go, failed, end=self._end, confirmed_since=confirmed_since, is_appended=is_appended
        )

    # -- the time ----------------------------------------------------------------------------------

    def _plan_tick(self) -> None:
        """Schedule ``_tick`` for the time that the state requests. There is one timer, moved only
        to an earlier time, because every heartbeat postpones some deadline.
        """
        deadline = None if self._groups is None else self._groups.deadline()
        if deadline is None or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = max(deadline, self._loop.time() + TICK_SECONDS_MIN)
        self._timer = self._loop.call_at(self._timer_at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        expiry_ms = self._services.clock.deletion_ms()
        self._decide(
            lambda groups, now, now_ms: groups.tick(now=now, now_ms=now_ms, expiry_ms=expiry_ms)
        )

    # -- reading the state -------------------------------------------------------------------------

    def _drop(self, reason: RaftlogError) -> None:
        self._groups = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._parked.refuse_all(reason)
        self._waiting.refuse_all(reason)
        self._reassurances.forget_all()

    def _begin_anew(self, error: Exception) -> None:
        """Reload the state from the log: the last decision is not in it."""
        logger.warning(
            "consumer groups reloading: partition=%s reason=append_failed error=%s",
            self.host.topic_partition,
            error,
        )
        if self._loop.time() - self._served_from > SOUND_SECONDS:
            self._failures = 0
        self._why = self._loading_error(f": {error}")
        self._drop(self._why)
        if not self.is_over and self._loading.done():
            self._loading = self._loop.create_task(self._keep_loading(self._pause()))

    async def _keep_loading(self, pause_seconds: float) -> None:
        while not self.is_over:
            if pause_seconds:
                await asyncio.sleep(pause_seconds)
            try:
                await self._load()
            except RaftlogError as error:
                self._note(error)
            except Exception:  # an internal error; other partitions are not affected
                where = self.host.topic_partition
                logger.exception(
                    "consumer groups not loaded: partition=%s reason=internal_error", where
                )
                self._why = StorageError(
                    f"{where}: cannot read its consumer groups. See the log of the broker"
                )
            if self._groups is not None:
                return
            pause_seconds = self._pause()

    def _pause(self) -> float:
        if isinstance(self._why, StorageError):
            return PAUSE_SECONDS_DAMAGED
        self._failures += 1
        return float(min(PAUSE_SECONDS_MIN * 2 ** min(self._failures, 10), PAUSE_SECONDS_MAX))

    def _note(self, error: RaftlogError) -> None:
        """Note why the state is not loaded yet: an operator must act, or the condition is
        transient.
        """
        if isinstance(error, StorageError):
            if str(error) != str(self._why):
                logger.error(
                    "consumer groups not loaded: partition=%s error=%s",
                    self.host.topic_partition,
                    error,
                )
            self._why = error
        else:
            self._why = self._loading_error(f": {error}")

    def _loading_error(self, why: str) -> CoordinatorLoadingError:
        return CoordinatorLoadingError(
            f"the consumer groups of {self.host.topic_partition} are loading{why}"
        )

    async def _load(self) -> None:
        services = self._services
        groups = services.new_groups()
        await load(groups, self.host, turn=services.reading, on_unreadable=services.on_unreadable)
        if self.is_over:
            return
        self._end = self.host.log.log_end_offset
        self._groups, self._served_from = groups, self._loop.time()
        topics = services.topics()
        self._operate(
            lambda groups, now, now_ms: groups.start(
                topics.by_name, version=topics.version, now=now, now_ms=now_ms
            ),
            groups,
        )
        logger.info("consumer groups loaded: partition=%s", self.host.topic_partition)


def _nothing() -> None:
    """Cancel nothing: the response was sent already."""
