"""Consumer groups of one partition of ``__consumer_offsets``, while this broker leads it.

``raftlog.consumer_groups.GroupShard`` decides. This module writes its decisions to the partition's
log, and responds once they are committed. The state in memory changes at once, before anything is
written. So no response is sent, not even a refusal, before all earlier decisions are committed.
When a decision cannot be written, the state is discarded and read again from the log.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar

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
    CorruptBatchError,
    DamagedLogError,
    InvalidRequestError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    OutcomeUnknownError,
    RaftlogError,
    StorageError,
    ThrottledError,
)
from raftlog.record import Codec, decode_lists, encode, parse_header, seal, split_checked
from raftlog.server.partition import BrokerClock, Partition
from raftlog.server.scheduling import Acknowledge, Rounds, coalesced_deadline
from raftlog.types import Buffer, Offset, TimestampMs

# -- loading ---------------------------------------------------------------------------------------
#
# Loading the state of consumer groups from the complete log, a little at a time.
#
# A leader may have batches that are not committed yet: of an earlier leader, or its own from before
# a reload. They will be committed, as no other broker can truncate them while this one leads. So
# the load reads up to the end of the log, and waits until all of that is committed.


logger = logging.getLogger(__name__)

SLICE_BYTES: Final = 256 * limits.KIB  # bytes per read
RECORDS_PER_TURN: Final = 200  # before the event loop serves other work: about 1 ms


class Replays(Protocol):
    """The receiver of records: ``GroupShard``."""

    def replay(self, key: bytes, value: bytes | None) -> None: ...


async def load(
    groups: Replays,
    host: Partition,
    *,
    turn: asyncio.Lock,
    on_unreadable: Callable[[Partition, Offset], None],
    what: str = "consumer groups",
) -> None:
    """Replay every record from the start of the log to its current end into ``groups``, which are
    called ``what`` in errors.

    ``turn``: lock that only one load of the broker holds at a time, so that together they block the
    loop no longer than one does. ``on_unreadable``: called with offsets that could not be read.
    Raises the errors of the host for a wait or a read, and ``DamagedLogError`` for records that
    cannot be decoded.
    """
    end = host.log.log_end_offset
    await committed(host, end)
    assert host.is_ready, "the log must extend past every offset that earlier leaders returned"
    async with turn:
        offset = host.log.log_start_offset
        while offset < end:
            try:
                offset = await _load_slice(groups, host, offset)
            except (DamagedLogError, CorruptBatchError) as error:
                on_unreadable(host, offset)
                raise DamagedLogError(
                    f"{host.topic_partition}: cannot read the batch at offset {offset}, so the "
                    f"state of its {what} is unknown: {error}"
                ) from error


async def _load_slice(groups: Replays, host: Partition, offset: Offset) -> Offset:
    """Replay some batches from ``offset`` on. Returns the offset after them."""
    stored = host.read(start_offset=offset, bytes_max=SLICE_BYTES)
    if not stored:
        raise DamagedLogError("no batch is stored there, and the log continues after it")
    for piece in stored:
        for header, batch in split_checked(piece):
            if header.record_count:  # else compaction has removed all its records
                await _replay(groups, host, batch)
            offset = header.next_offset
    return offset


async def _replay(groups: Replays, host: Partition, batch: Buffer) -> None:
    records = decode_lists(batch, check_crc=False)
    for number, (offset, key, value) in enumerate(
        zip(records.offsets, records.keys, records.values, strict=True), start=1
    ):
        try:
            groups.replay(key or b"", value)
        except InvalidRequestError as error:
            raise DamagedLogError(
                f"{host.topic_partition}: the record at offset {offset} cannot be applied: {error}"
            ) from error
        if number % RECORDS_PER_TURN == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(0)


async def committed(host: Partition, end: Offset) -> None:
    """Return once everything below ``end`` is committed. Raises the reason if it never will be."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: RaftlogError | None) -> None:
        if future.done():  # no waiter is left
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    host.when_committed(end, done)
    await future


# -- shard -----------------------------------------------------------------------------------------


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


# -- writing ---------------------------------------------------------------------------------------
#
# Records of a step as batches for the log: one batch, unless they are too many for it.


# Below this size, compression saves nothing worth its time.
COMPRESSED_FROM_BYTES: Final = 4 * limits.KIB
RECORD_OVERHEAD_BYTES: Final = 32  # lengths and times, at most, in the columns of a payload
BATCH_OVERHEAD_BYTES: Final = 1_024  # headers of a batch and of its columns, at most


class KeyedRecord(Protocol):
    """A record of a compacted topic. A ``value`` of None is a tombstone."""

    @property
    def key(self) -> bytes: ...
    @property
    def value(self) -> bytes | None: ...


def batches_of(
    records: Sequence[KeyedRecord], *, now_ms: TimestampMs, bytes_max: int
) -> Iterator[bytes]:
    """Return ``records`` in their order as batches of at most ``bytes_max`` bytes, where possible.

    A record is never split: if it is too large, so is its batch, and the log rejects it.
    """
    room = bytes_max - BATCH_OVERHEAD_BYTES
    start, size = 0, 0
    for index, record in enumerate(records):
        record_size = _size_of(record)
        if size + record_size > room and index > start:
            yield _batch(records[start:index], size, now_ms=now_ms)
            start, size = index, 0
        size += record_size
    if start < len(records):
        yield _batch(records[start:], size, now_ms=now_ms)


def _size_of(record: KeyedRecord) -> int:
    return len(record.key) + len(record.value or b"") + RECORD_OVERHEAD_BYTES


def _batch(records: Sequence[KeyedRecord], size: int, *, now_ms: TimestampMs) -> bytes:
    body = encode(
        [record.value for record in records],
        keys=[record.key for record in records],
        timestamps_ms=now_ms,
        codec=Codec.LZ4 if size >= COMPRESSED_FROM_BYTES else Codec.NONE,
    )
    return seal(body) + body.payload


# -- pending responses -----------------------------------------------------------------------------
#
# Responses that wait for the commit of earlier decisions, and for a leadership check.
#
# An isolated leader commits nothing, and gets no notification of that. So a response that has
# waited for long triggers a leadership check. If it fails, all waiting responses fail.


PATIENCE_SECONDS: Final = 2.0

Failed = Callable[[RaftlogError], None]


class _Answer:
    """One response. It ends once: by ``go``, or by ``failed``."""

    __slots__ = ("failed", "go", "is_appended", "missing", "since")

    def __init__(
        self, go: Callable[[], None], failed: Failed, *, is_appended: bool, missing: int, now: float
    ) -> None:
        self.go = go
        self.failed = failed
        self.is_appended = is_appended
        self.missing = missing  # number of unmet conditions
        self.since = now


class PendingResponses:
    """Waiting responses of one shard."""

    def __init__(
        self,
        host: Partition,
        confirmations: Rounds,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._host = host
        self._confirmations = confirmations
        self._loop = loop
        self._waiting: dict[_Answer, None] = {}  # in order of arrival
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def resolve(
        self,
        go: Callable[[], None],
        failed: Failed,
        *,
        end: Offset,
        confirmed_since: int | None = None,
        is_appended: bool = False,
    ) -> Callable[[], object]:
        """Call ``go`` once everything below ``end`` is committed; ``failed`` if it will not be.

        ``confirmed_since``: also wait for the confirmation that this broker still led after that
        mark of the confirmations. ``is_appended``: the response is about written records. If their
        commit cannot be determined, ``failed`` reports that.

        Returns a function that cancels both calls.
        """
        answer = _Answer(
            go,
            failed,
            is_appended=is_appended,
            missing=1 if confirmed_since is None else 2,
            now=self._loop.time(),
        )
        self._waiting[answer] = None
        on_condition = partial(self._on_condition, answer)
        self._host.when_committed(end, on_condition)
        if confirmed_since is not None and answer in self._waiting:
            self._confirmations.ask(on_condition, since=confirmed_since)
        if self._waiting and self._timer is None:
            self._timer = self._loop.call_later(PATIENCE_SECONDS, self._lose_patience)
        return partial(self._waiting.pop, answer, None)

    def _on_condition(self, answer: _Answer, error: RaftlogError | None) -> None:
        if answer not in self._waiting:
            return
        answer.missing -= 1
        if error is not None:
            del self._waiting[answer]
            answer.failed(self._failure(answer, error))
        elif answer.missing == 0:
            del self._waiting[answer]
            answer.go()

    def _failure(self, answer: _Answer, error: RaftlogError) -> RaftlogError:
        if answer.is_appended:
            return CommitUnknownError(str(error))
        if isinstance(error, NotEnoughReplicasError):
            return error
        return not_coordinator(self._host, str(error))

    def _lose_patience(self) -> None:
        self._timer = None
        oldest = next(iter(self._waiting), None)
        if oldest is None:
            return
        left = oldest.since + PATIENCE_SECONDS - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._lose_patience)
        else:
            self._confirmations.ask(self._patience_lost)

    def _patience_lost(self, error: RaftlogError | None) -> None:
        leadership = self._host.leadership
        if error is None and leadership is not None and not leadership.has_quorum:
            error = NotEnoughReplicasError(
                f"{self._host.topic_partition}: cannot commit the changes of its state: "
                "too few in-sync replicas. Start the missing brokers"
            )
        if error is not None:
            for answer in tuple(self._waiting):
                self._on_condition(answer, error)
        if self._waiting and self._timer is None:
            self._timer = self._loop.call_later(PATIENCE_SECONDS, self._lose_patience)


def not_coordinator(host: Partition, why: str) -> NotCoordinatorError:
    return NotCoordinatorError(
        f"this broker no longer coordinates the consumer groups of {host.topic_partition}: {why}"
    )


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
