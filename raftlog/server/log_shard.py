"""State that is kept in a partition of a compacted topic, while this broker leads it.

A pure state decides. This module writes its decisions to the partition's log, and responds once
they are committed. The state in memory changes at once, before anything is written. So no response
is sent, not even a refusal, before all earlier decisions are committed. When a decision cannot be
written, the state is discarded and read again from the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from raftlog import limits
from raftlog.errors import (
    BrokerUnavailableError,
    CommitUnknownError,
    CoordinatorLoadingError,
    CorruptBatchError,
    DamagedLogError,
    InvalidRequestError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    RaftlogError,
    StorageError,
    ThrottledError,
)
from raftlog.record import Codec, decode_lists, encode, parse_header, seal, split_checked
from raftlog.server.clock import BrokerClock
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Acknowledge, Rounds
from raftlog.server.topic_table import TopicTable
from raftlog.types import Buffer, Offset, TimestampMs

logger = logging.getLogger(__name__)

# -- loading ---------------------------------------------------------------------------------------
#
# Loading the state from the complete log, a little at a time.
#
# A leader may have batches that are not committed yet: of an earlier leader, or its own from before
# a reload. They will be committed, as no other broker can truncate them while this one leads. So
# the load reads up to the end of the log, and waits until all of that is committed.


SLICE_BYTES: Final = 256 * limits.KIB  # bytes per read
RECORDS_PER_TURN: Final = 200  # before the event loop serves other work: about 1 ms


class Replays(Protocol):
    """The receiver of records."""

    def replay(self, key: bytes, value: bytes | None) -> None: ...


async def load(
    state: Replays,
    host: Partition,
    *,
    turn: asyncio.Lock,
    on_unreadable: Callable[[Partition, Offset], None],
    what: str,
) -> None:
    """Replay every record from the start of the log to its current end into ``state``, which is
    called ``what`` in errors.

    ``turn``: lock that only one load of the broker holds at a time, so that together they block the
    loop no longer than one does. ``on_unreadable``: called with offsets that could not be read.
    Raises the errors of the host for a wait or a read, and ``DamagedLogError`` for records that
    cannot be decoded.
    """
    end = host.log.log_end_offset
    # guard: a new coordinator reads up to the end of its log
    await committed(host, end)
    assert host.is_ready, "the log must extend past every offset that earlier leaders returned"
    async with turn:
        offset = host.log.log_start_offset
        while offset < end:
            try:
                offset = await _load_slice(state, host, offset)
            except (DamagedLogError, CorruptBatchError) as error:
                on_unreadable(host, offset)
                raise DamagedLogError(
                    f"{host.topic_partition}: cannot read the batch at offset {offset}, so the "
                    f"state of its {what} is unknown: {error}"
                ) from error


async def _load_slice(state: Replays, host: Partition, offset: Offset) -> Offset:
    """Replay some batches from ``offset`` on. Returns the offset after them. Compaction can have
    removed all records of a batch."""
    stored = host.read(start_offset=offset, bytes_max=SLICE_BYTES)
    if not stored:
        raise DamagedLogError("no batch is stored there, and the log continues after it")
    for piece in stored:
        for header, batch in split_checked(piece):
            # Earlier releases wrote markers there if a client asked for it.
            # guard: a marker among the records of a state is none of them
            if header.record_count and not header.is_control:
                await _replay(state, host, batch)
            offset = header.next_offset
    return offset


async def _replay(state: Replays, host: Partition, batch: Buffer) -> None:
    records = decode_lists(batch, check_crc=False)
    for number, (offset, key, value) in enumerate(
        zip(records.offsets, records.keys, records.values, strict=True), start=1
    ):
        try:
            state.replay(key or b"", value)
        except InvalidRequestError as error:
            raise DamagedLogError(
                f"{host.topic_partition}: the record at offset {offset} cannot be applied: {error}"
            ) from error
        # guard: loading yields to other work
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
        *,
        what: str,
    ) -> None:
        """``what``: the state that the shard keeps, as errors call it."""
        self._host = host
        self._what = what
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
        # guard: a response waits for its commit
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
        # guard: an uncommitted write has an unknown outcome
        if answer.is_appended:
            return CommitUnknownError(str(error))
        if isinstance(error, NotEnoughReplicasError):
            return error
        return not_coordinator(self._host, str(error), self._what)

    def _lose_patience(self) -> None:
        self._timer = None
        oldest = next(iter(self._waiting), None)
        if oldest is None:
            return
        left = oldest.since + PATIENCE_SECONDS - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._lose_patience)
        else:
            # guard: requests to an isolated leader time out
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


def not_coordinator(host: Partition, why: str, what: str) -> NotCoordinatorError:
    return NotCoordinatorError(
        f"this broker no longer coordinates the {what} of {host.topic_partition}: {why}"
    )


# -- shard -----------------------------------------------------------------------------------------


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PAUSE_SECONDS_MIN: Final = 0.05  # seconds; minimum pause before a failed load is retried
PAUSE_SECONDS_MAX: Final = 0.5
PAUSE_SECONDS_DAMAGED: Final = 10.0  # seconds; pause before a retry when an operator has to act
SOUND_SECONDS: Final = 10.0  # a shard that has served for this time resets its failure count
TICK_SECONDS_MIN: Final = 0.001  # timers can fire slightly early


class Decision(Protocol[T_co]):
    """What a state decided. ``notes``: lines for the log of the broker."""

    @property
    def result(self) -> T_co: ...
    @property
    def records(self) -> Sequence[KeyedRecord]: ...
    @property
    def notes(self) -> Sequence[str]: ...


class State(Replays, Protocol):
    """A pure state. ``deadline``: when to call ``tick``, in monotonic seconds; None: never."""

    def deadline(self) -> float | None: ...
    def tick(self, *, now: float, now_ms: int, expiry_ms: int | None) -> Decision[None]: ...


D = TypeVar("D", bound=Decision[Any])
S = TypeVar("S", bound=State)


@dataclass(frozen=True, slots=True)
class LogServices:
    """Services of the broker that all its shards share."""

    loop: asyncio.AbstractEventLoop
    clock: BrokerClock
    confirm: Callable[[Partition, Acknowledge], None]  # confirms that this broker leads
    # Called with the offset of stored bytes that cannot be read.
    on_unreadable: Callable[[Partition, Offset], None]
    reading: asyncio.Lock  # one shard at a time reads its log


class LogShard(Generic[S]):
    """Active from the time at which this broker begins to lead the partition until it stops leading
    it, or leads in another epoch.

    Invariant: all decisions of ``_state`` are in the log below ``_end``, or ``_state`` is None.
    """

    what: ClassVar[str]  # name of the state, in errors and log lines

    def __init__(self, host: Partition, services: LogServices) -> None:
        """Start to load the state."""
        self.host = host
        self.epoch = host.leader_epoch
        self._clock = services.clock
        self._loop = services.loop
        self._reading = services.reading
        self._on_unreadable = services.on_unreadable
        self._state: S | None = None  # None: not loaded yet
        self._end: Offset = 0
        self._closed = False
        self._why: RaftlogError = self._loading_error("")
        # Confirmations that this broker leads.
        self._confirmations = Rounds(partial(services.confirm, host))
        self._answers = PendingResponses(host, self._confirmations, self._loop, what=self.what)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._failures = 0  # since the last time without trouble
        self._served_from = 0.0
        self._loading = self._loop.create_task(self._keep_loading(0.0))

    # -- what a subclass defines -------------------------------------------------------------------

    def _new_state(self) -> S:
        """Return an empty state, to load."""
        raise NotImplementedError

    def _start(self, state: S, now: float, now_ms: int) -> Decision[None]:
        """Begin to decide, after the load."""
        raise NotImplementedError

    def _act(self, step: Decision[Any]) -> None:
        """Perform the effects of a step whose records are appended, but not yet committed."""

    def _discarded(self, reason: RaftlogError) -> None:
        """Fail with ``reason`` what waits for the state, which is discarded."""

    # -- queries of the coordinator ----------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether this broker is no longer the leader, or leads in another epoch."""
        host = self.host
        # guard: a state is of one leader epoch
        return (
            self._closed
            or host.closed is not None
            or host.leadership is None
            or host.leader_epoch != self.epoch
        )

    def when_loaded(self, done: Callable[[], object]) -> None:
        """Call ``done`` soon after the load has ended: the state is served, or this shard is
        over.
        """
        self._loading.add_done_callback(lambda _loading: done())

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
        operation: Callable[[S, float, int], Decision[T]],
        done: Callable[[T], None],
        failed: Failed,
    ) -> None:
        """Call ``done`` with the result of the step once it is committed, else ``failed``.

        ``operation`` gets the time in seconds (monotonic) and the wall-clock time in milliseconds.
        Raises the error that prevents its start. ``CommitUnknownError``: it may or may not take
        effect.
        """
        state = self._serving()
        self.host.check_committable()  # what the log would reject: this avoids a reload
        try:
            step = self._operate(operation, state)
        except RaftlogError as error:
            self._refuse(error, state, failed)
        else:
            done_with_it = partial(done, step.result)
            self._resolve(done_with_it, failed, is_appended=bool(step.records))

    def ask(
        self,
        question: Callable[[S], T],
        done: Callable[[T], None],
        failed: Failed,
    ) -> None:
        """Call ``done`` with the result once no other broker can have had newer state at the time
        of the call. Raises the errors of ``change``.
        """
        state = self._serving()
        try:
            go = partial(done, question(state))
        except RaftlogError as error:
            go = partial(failed, error)
        # guard: offsets are read from a confirmed leader
        self._resolve(go, failed, confirmed_since=self._confirmations.mark)

    # -- deciding and writing ----------------------------------------------------------------------

    def _serving(self) -> S:
        """Return the state, or raise the reason why it is not available."""
        if self.is_over:
            raise self._no_coordinator()
        if self._state is None:
            raise self._why
        if len(self._answers) >= limits.GROUP_ANSWERS_WAITING_MAX:
            raise ThrottledError(
                f"{self.host.topic_partition}: {len(self._answers)} responses about its "
                f"{self.what} wait for the log, and GROUP_ANSWERS_WAITING_MAX is reached. Try "
                "again later"
            )
        return self._state

    def _operate(self, operation: Callable[[S, float, int], D], state: S) -> D:
        """Decide, and write the decision. Raises the refusal, or the error that prevented the
        write.
        """
        try:
            step = operation(state, self._loop.time(), self._clock.wall_ms())
        except RaftlogError:
            self._plan_tick()
            raise
        except Exception as error:
            # guard: a state that an error left incomplete is discarded
            self._begin_anew(error)  # the state in memory may have changed
            raise
        self._carry_out(step)
        return step

    def _carry_out(self, step: Decision[Any]) -> None:
        host, is_begun = self.host, False
        batches = batches_of(
            step.records,
            now_ms=self._clock.wall_ms(),
            bytes_max=host.log.config.max_message_bytes,
        )
        try:
            for batch in batches:
                self._end = host.append(batch, parse_header(batch)).last_offset + 1
                is_begun = True
        except RaftlogError as error:
            # guard: a state change that the log rejects is reverted
            self._begin_anew(error)
            if is_begun:
                raise CommitUnknownError(f"the change was written partially: {error}") from error
            raise
        for note in step.notes:
            logger.info("%s changed: partition=%s note=%s", self.what, host.topic_partition, note)
        self._act(step)
        self._plan_tick()

    def _decide(self, operation: Callable[[S, float, int], Decision[None]]) -> None:
        """Make a decision that no request asked for, and no caller waits for."""
        if self._state is None or self.is_over:
            return
        try:
            self._operate(operation, self._state)
        except RaftlogError as error:
            logger.warning(
                "%s operation failed: partition=%s error=%s",
                self.what,
                self.host.topic_partition,
                error,
            )
        except Exception:  # no caller would report it
            logger.exception(
                "%s operation failed: partition=%s reason=internal_error",
                self.what,
                self.host.topic_partition,
            )

    # -- answering ---------------------------------------------------------------------------------

    def _refuse(self, error: RaftlogError, state: S, failed: Failed) -> None:
        """Send a refusal. It may depend on decisions that are not committed yet: it waits like a
        response.
        """
        if self._state is not state:
            raise error  # rejected by the log; the state is discarded
        self._resolve(partial(failed, error), failed)

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

        The exception is a result that the member knows already, see ``HeartbeatKeepalive``.
        """
        # guard: a former leader sends no assignment
        if self.is_over:  # commits from now on are another leader's
            failed(self._no_coordinator())
            return _nothing
        # guard: a response waits for all earlier decisions
        return self._answers.resolve(
            go, failed, end=self._end, confirmed_since=confirmed_since, is_appended=is_appended
        )

    def _no_coordinator(self) -> NotCoordinatorError:
        return not_coordinator(self.host, "it is no longer the leader", self.what)

    # -- the time ----------------------------------------------------------------------------------

    def _plan_tick(self) -> None:
        """Schedule ``_tick`` for the time that the state requests. There is one timer, moved only
        to an earlier time, because every heartbeat postpones some deadline.
        """
        deadline = None if self._state is None else self._state.deadline()
        if deadline is None or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = max(deadline, self._loop.time() + TICK_SECONDS_MIN)
        self._timer = self._loop.call_at(self._timer_at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        # guard: committed offsets expire by the trusted time
        expiry_ms = self._clock.deletion_ms()
        self._decide(
            lambda state, now, now_ms: state.tick(now=now, now_ms=now_ms, expiry_ms=expiry_ms)
        )

    # -- reading the state -------------------------------------------------------------------------

    def _drop(self, reason: RaftlogError) -> None:
        self._state = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._discarded(reason)

    def _begin_anew(self, error: Exception) -> None:
        """Reload the state from the log: the last decision is not in it."""
        logger.warning(
            "%s reloading: partition=%s reason=append_failed error=%s",
            self.what,
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
                    "%s not loaded: partition=%s reason=internal_error", self.what, where
                )
                self._why = StorageError(
                    f"{where}: cannot read its {self.what}. See the log of the broker"
                )
            if self._state is not None:
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
                    "%s not loaded: partition=%s error=%s",
                    self.what,
                    self.host.topic_partition,
                    error,
                )
            self._why = error
        else:
            self._why = self._loading_error(f": {error}")

    def _loading_error(self, why: str) -> CoordinatorLoadingError:
        return CoordinatorLoadingError(
            f"the {self.what} of {self.host.topic_partition} are loading{why}"
        )

    async def _load(self) -> None:
        state = self._new_state()
        await load(
            state,
            self.host,
            turn=self._reading,
            on_unreadable=self._on_unreadable,
            what=self.what,
        )
        if self.is_over:
            return
        self._end = self.host.log.log_end_offset
        self._state, self._served_from = state, self._loop.time()
        self._operate(self._start, state)
        logger.info("%s loaded: partition=%s", self.what, self.host.topic_partition)


def _nothing() -> None:
    """Cancel nothing: the response was sent already."""


# -- shards ----------------------------------------------------------------------------------------
#
# The shards of a broker: one for each partition of an internal topic that it leads.


L = TypeVar("L", bound=LogShard[Any])


class LedShards(Generic[L]):
    """Creates and closes the shards of one topic. ``by_partition``: those of now.

    Invariant: a partition has at most one shard, of the present leader epoch after ``poll``.
    """

    def __init__(
        self,
        topic: str,
        topics: TopicTable,
        loop: asyncio.AbstractEventLoop,
        create: Callable[[Partition], L],
        *,
        what: str,
    ) -> None:
        """``what``: the states, as errors call them."""
        self.by_partition: dict[int, L] = {}
        self._topic = topic
        self._topics = topics
        self._loop = loop
        self._create = create
        self._what = what
        self._ending: set[asyncio.Task[None]] = set()
        self._poll_due = False
        self.closed: RaftlogError | None = None

    def poll_soon(self) -> None:
        """Check soon whether partitions have another leader."""
        if not self._poll_due and self.closed is None:
            self._poll_due = True
            self._loop.call_soon(self.poll)

    def poll(self) -> None:
        """Create and close shards, so that there is one for each partition that this broker
        leads.
        """
        self._poll_due = False
        topic = self._topics.get(self._topic)
        hosts = [] if topic is None or self.closed is not None else topic.hosts
        led = {
            partition: host
            for partition, host in enumerate(hosts)
            if host is not None and host.leadership is not None and host.closed is None
        }
        for partition, shard in tuple(self.by_partition.items()):
            if shard.is_over or led.get(partition) is not shard.host:
                self._drop(partition, "this broker is no longer the leader")
        for partition, host in led.items():
            if partition not in self.by_partition:
                self.by_partition[partition] = self._create(host)

    def find(self, name: str, partition_of: Callable[[str, int], int]) -> tuple[int, L]:
        """Return the partition that holds the state of ``name``, and its shard.

        Raises ``NotCoordinatorError`` with the leader of the partition, or
        ``ClusterNotReadyError``.
        """
        self.check_open()
        topic = self._topics.get(self._topic)
        if topic is None:
            self._topics.check_complete()
            raise NotCoordinatorError(
                f"{name!r} has no coordinator yet: topic {self._topic} does not exist"
            )
        partition = partition_of(name, len(topic.hosts))
        shard = self.by_partition.get(partition)
        if shard is None or shard.is_over:
            self.poll()
            shard = self.by_partition.get(partition)
        if shard is not None:
            return partition, shard
        state = self._topics.state(topic, partition)
        leader = None if state is None else state.leader
        whose = "no coordinator is known" if leader is None else f"broker {leader} coordinates it"
        raise NotCoordinatorError(
            f"this broker does not coordinate {name!r} ({self._topic}:{partition}): {whose}"
        )

    def all(self) -> list[L]:
        """Return the shards of all partitions that this broker leads.

        Raises ``NotCoordinatorError`` or ``ClusterNotReadyError``.
        """
        self.check_open()
        self._topics.check_complete()
        self.poll()
        return list(self.by_partition.values())

    def check_open(self) -> None:
        """Raise ``NotCoordinatorError`` after ``close``."""
        if self.closed is not None:
            raise NotCoordinatorError(f"this broker coordinates no {self._what}: {self.closed}")

    def close(self, reason: RaftlogError) -> None:
        """Decide nothing more. Responses that wait for the log are sent when it is committed."""
        if self.closed is None:
            self.closed = reason
            for partition in tuple(self.by_partition):
                self._drop(partition, str(reason))

    async def stop(self) -> None:
        """Close, and return once no task of a shard runs."""
        self.close(BrokerUnavailableError("the broker stops"))
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _drop(self, partition: int, why: str) -> None:
        shard = self.by_partition.pop(partition)
        ending = shard.close(not_coordinator(shard.host, why, self._what))
        if not ending.done():
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
