"""The synchronous consumer.

Records are fetched ahead by an I/O thread and decoded in the caller's: ``poll`` and iteration over
what has come cross no thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from threading import RLock, Thread, current_thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from raftlog import limits
from raftlog.client.closing import Closing
from raftlog.client.consumer_base import (
    CLOSE_TIMEOUT_MS_DEFAULT,
    POLL_RECORDS_DEFAULT,
    POLL_RECORDS_MAX,
    POLL_TIMEOUT_MS_DEFAULT,
    ConsumerBase,
    check_callback,
    check_interest,
    check_some,
    chosen,
)
from raftlog.client.consumer_core import check_times
from raftlog.client.consumer_groups.member import Reading
from raftlog.client.consumer_groups.offsets import check_offsets
from raftlog.client.consumer_groups.rebalancing import CommitCallback, run_now
from raftlog.client.settings import DAY_MS, OffsetReset, integer
from raftlog.client.subscription import check_partitions
from raftlog.client.threaded import ThreadedClient
from raftlog.client.waiting import refuse_io_thread, wait_once
from raftlog.errors import ClosedError, InvalidRequestError, RaftlogError
from raftlog.types import (
    ConsumerRecord,
    K,
    Offset,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RebalanceListener,
    TopicPartition,
    V,
)

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class Consumer(ConsumerBase[K, V], ThreadedClient, Iterator[ConsumerRecord[K, V]]):
    """Reads records. For one thread at a time; a context manager, and an iterator of records.

    ``K``, ``V``: what the deserializers return; without them, bytes.

    ``close`` may be called from another thread: it ends a ``poll`` or an iteration that waits, with
    ``ClosedError``. So may ``commit`` and ``commit_async`` of offsets that are named,
    ``committed``, ``lag``, ``pause``, ``resume`` and what looks offsets up. The others raise
    ``InvalidRequestError`` when two threads are in them at once.

    In a group, delivery is at least once: what was not processed, as far as the group was told,
    comes again. A record counts as processed when the next one, or the next ``poll``, is asked for.
    """

    def _setup(self) -> None:
        self._take_thread(self._host, "raftlog-consumer")
        self._core.attach(self._thread.schedule)
        self._in_use = RLock()
        self._user: Thread | None = None  # that was given records last
        self._iteration: Iterator[ConsumerRecord[K, V]] | None = None  # of ``__next__``
        self._closing = Closing(self._thread, self._core.monotonic)
        self._closed = False

    # -- what to read

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions. One that was assigned before goes on from where it is.

        With a group, from where it has come to, and ``commit`` works, as long as the group has no
        members; this consumer is none. Raises ``UnknownTopicError``, ``UnknownPartitionError``,
        ``BrokerUnavailableError``.
        """
        checked = check_partitions(partitions)
        with self._alone():
            self._leave()
            self._call(lambda: self._core.assign(checked))

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assign: RebalanceListener | None = None,
        on_revoke: RebalanceListener | None = None,
        on_lost: RebalanceListener | None = None,
    ) -> None:
        """Read these topics, or those whose whole name matches ``pattern``, also when they grow.

        Without a group, all their partitions; a topic that begins to match later is read from its
        first record. With one, join it, and read what it assigns. Called again, it changes the
        subscription.

        The callbacks take a list of partitions, and are called within ``poll`` or an iteration:
        ``on_assign`` before the first record of these, ``on_revoke`` while they are still this
        consumer's (it may ``commit``), ``on_lost`` when they are not any more (default:
        ``on_revoke``). What one raises is raised by ``poll``, and the rebalance goes on.

        Raises ``UnknownTopicError``, ``BrokerUnavailableError``, and ``InvalidRequestError`` for
        more than 1,000 topics in a group; ``poll`` does, as long as a pattern matches more later.
        """
        names, compiled = check_interest(topics, pattern)
        with self._alone():
            self._listen(on_assign, on_revoke, on_lost)
            self._call(lambda: self._core.subscribe(names, compiled))

    def unsubscribe(self) -> None:
        """Read nothing. In a group: call ``on_revoke``, commit if ``auto_commit``, leave."""
        with self._alone():
            self._leave()
            self._core.assign_nothing()

    def _leave(self) -> None:
        """Be no member of the group, if it is one."""
        if self._member is None or self._rebalancer is None or not self._used:
            return
        rebalancer, errors = self._rebalancer, list[Exception]()
        reading = run_now(rebalancer.give_up(errors, only_processed=False))
        self._call(lambda: self._core.leave(reading))
        run_now(rebalancer.end(errors))

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read. In a group, they change within ``poll`` and iteration."""
        return set(self._subscription.parts)

    def partitions_for(self, topic: str) -> set[int]:
        """The numbers of a topic's partitions. Raises ``UnknownTopicError``."""
        view = self._call(lambda: self._core.topic(topic))
        return set(range(view.partition_count))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Give no records of these partitions, and fetch none, until ``resume``."""
        self._check_open()
        self._subscription.set_paused(check_partitions(partitions), True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo ``pause``."""
        self._check_open()
        self._subscription.set_paused(check_partitions(partitions), False)
        self._look()

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return self._subscription.paused()

    # -- records

    def poll(
        self,
        timeout_ms: int = POLL_TIMEOUT_MS_DEFAULT,
        max_records: int = POLL_RECORDS_DEFAULT,
    ) -> list[ConsumerRecord[K, V]]:
        """The next records: of what has come, else of what comes within ``timeout_ms``; maybe none.

        At most ``max_records``; in offset order in each partition. A broker that goes away is
        waited for: meanwhile there are no records.

        Raises ``OffsetOutOfRangeError``, ``UnknownTopicError`` and others that concern one
        partition. Its position stays, and the next ``poll`` tries it again: seek, or pause it, to
        continue with the others. ``CorruptBatchError`` and ``DeserializationError`` name the bad
        record, and their ``skip()`` continues after it.
        """
        integer("max_records", max_records, 1, POLL_RECORDS_MAX)
        return self._wait_for(lambda: self._core.take(max_records), timeout_ms) or []

    def poll_arrow(self, timeout_ms: int = POLL_TIMEOUT_MS_DEFAULT) -> pa.RecordBatch | None:
        """The next records as Arrow: batches of one partition, joined; None if none come.

        Columns: topic, partition, offset, key, value, headers, timestamp (us, UTC), leader_epoch.
        Deserializers do not apply. Needs pyarrow: ``pip install 'raftlog[arrow]'``. Raises as
        ``poll`` does.
        """
        return self._wait_for(self._core.take_arrow, timeout_ms)

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        """The records, one by one, without end: it waits for more. Raises as ``poll`` does."""
        return self._iterate()

    def __next__(self) -> ConsumerRecord[K, V]:
        """The next record; waits for it. Raises as ``poll`` does, and never ``StopIteration``."""
        if self._iteration is None:
            self._iteration = self._iterate()
        try:
            return next(self._iteration)
        except BaseException:
            self._iteration = None  # a generator that raised is at its end
            raise

    def _iterate(self) -> Iterator[ConsumerRecord[K, V]]:
        deserialized = self._core.deserialized
        while True:
            run = self._wait_for(self._core.next_run, None)
            assert run is not None, "it waits for ever"
            part = run.part
            if self._core.has_deserializers:
                for record in run.records:
                    try:
                        done = deserialized(record)
                    except Exception:
                        self._subscription.all_processed()  # the one before it was
                        raise
                    part.position = record.offset + 1
                    yield done
            else:
                for record in run.records:
                    part.position = record.offset + 1
                    yield record

    def _wait_for(self, take: Callable[[], T], timeout_ms: int | None) -> T:
        """What ``take`` gives, once it is something; else what it gave last."""
        timeout_s = None
        if timeout_ms is not None:
            timeout_s = integer("timeout_ms", timeout_ms, 0, limits.WAIT_MS_MAX) / 1_000
        with self._alone():
            self._check_readable()
            rebalancer = self._rebalancer
            if rebalancer is None:
                return self._wait_alone(take, timeout_s)
            rebalancer.polling()
            try:
                return self._wait_alone(take, timeout_s)
            finally:
                self._user = current_thread()
                rebalancer.polled()

    def _wait_alone(self, take: Callable[[], T], timeout_s: float | None) -> T:
        found = self._attend_and(take)
        if found:
            return found
        refuse_io_thread()
        self._core.look()  # in case that Ctrl-C kept an earlier call from having it done
        deadline = None if timeout_s is None else self._core.monotonic() + timeout_s
        while not found:
            left = None if deadline is None else deadline - self._core.monotonic()
            if left is not None and left <= 0:
                break
            if not wait_once(self._subscription.when_ready, left):
                break
            if self._subscription.closed:
                raise ClosedError("the consumer was closed")
            found = self._attend_and(take)
        return found

    def _attend_and(self, take: Callable[[], T]) -> T:
        """What ``take`` gives, after what has to be done first."""
        if self._subscription.interrupted:
            if self._rebalancer is None:
                self._subscription.interrupted = False
            else:
                run_now(self._rebalancer.attend())
        return take()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Raise when another thread is in such a call."""
        self._check_open()
        if not self._in_use.acquire(blocking=False):
            raise InvalidRequestError(
                "two threads use this consumer at the same time. Create one consumer per "
                "thread, or poll in one thread and pass the records to the others"
            )
        try:
            yield
        finally:
            self._in_use.release()

    # -- where to read

    def position(self, partition: TopicPartition) -> Offset:
        """The offset of the next record that ``poll`` or iteration will give of this partition."""
        (tp,) = check_partitions([partition])
        self._check_open()
        position = self._subscription.part(tp).position
        return self._call(lambda: self._core.position(tp)) if position is None else position

    def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """Go on from ``offset`` (0 or more). One out of range is told when it is fetched."""
        (tp,) = check_partitions([partition])
        with self._alone():
            self._subscription.seek(tp, integer("offset", offset, 0, limits.OFFSET_MAX))
            self._look()

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on from the first record of these partitions; default: of all that are assigned."""
        self._reset(partitions, "earliest")

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on from the end, as it is now, of these partitions; default: of all assigned."""
        self._reset(partitions, "latest")

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """The first offset that each partition still has."""
        checked = check_partitions(partitions)
        return self._call(lambda: self._core.offsets(checked, "earliest"))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        """The offset after the last record that a consumer may see, of each partition."""
        checked = check_partitions(partitions)
        return self._call(lambda: self._core.offsets(checked, "latest"))

    def lag(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """How far each partition's end is ahead of ``position``, in offsets; default: of all."""
        checked = self._these(partitions)
        return self._call(lambda: self._core.lag(checked))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition, its first record at or after a time in ms; None if it has none."""
        checked = check_times(times)
        return self._call(lambda: self._core.offsets_for_times(checked))

    def _reset(self, partitions: Iterable[TopicPartition] | None, how: OffsetReset) -> None:
        with self._alone():
            checked = self._these(partitions)
            self._call(lambda: self._core.reset(checked, how))

    # -- what the group has

    def commit(
        self,
        offsets: Mapping[TopicPartition, Offset | OffsetAndMetadata] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Tell the group where to go on: durably, when this returns.

        ``offsets``: of each partition the offset of the next record to be read; default: after
        everything that was handed out, the record in hand included. ``timeout_ms``: default,
        ``request_timeout_ms``.

        Raises ``FencedMemberError`` and ``UnknownMemberError`` when the group has given the
        partitions to others meanwhile (the next ``poll`` joins again, and they read these records
        again), ``PartitionNotOwnedError`` for a partition of another member,
        ``InvalidRequestError`` for an offset beyond the end, ``OutcomeUnknownError`` when it may or
        may not be committed.
        """
        if timeout_ms is not None:
            integer("timeout_ms", timeout_ms, 1, DAY_MS)
        member, reading = self._grouped("commit"), self._reading("commit", offsets)
        self._call(lambda: member.commit(reading, timeout_ms=timeout_ms))

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, Offset | OffsetAndMetadata] | None = None,
        callback: CommitCallback | None = None,
    ) -> Future[dict[TopicPartition, OffsetAndMetadata]]:
        """``commit`` without waiting; commits are carried out in the order of the calls.

        The future gives what was committed, or raises as ``commit``. ``callback(offsets, error)``
        is called within a later ``poll``, iteration or ``close``; ``error`` is None for success.
        """
        check_callback(callback)
        member, reading = self._grouped("commit_async"), self._reading("commit_async", offsets)
        rebalancer = self._rebalancer
        future: Future[dict[TopicPartition, OffsetAndMetadata]] = Future()
        future.set_running_or_notify_cancel()

        def done(error: RaftlogError | None) -> None:
            if callback is not None and rebalancer is not None:
                rebalancer.committed(callback, reading.offsets, error)
            if error is None:
                future.set_result(dict(reading.offsets))
            else:
                future.set_exception(error)

        self._used = True
        member.commit_soon(reading, done)
        return future

    def _reading(self, what: str, offsets: object) -> Reading:
        self._check_open()
        member = self._grouped(what)
        if offsets is not None:
            return member.reading(check_offsets(offsets))
        with self._alone():
            return member.reading()

    @overload
    def committed(
        self, partitions: TopicPartition, *, metadata: Literal[False] = False
    ) -> Offset | None: ...
    @overload
    def committed(
        self, partitions: TopicPartition, *, metadata: Literal[True]
    ) -> OffsetAndMetadata | None: ...
    @overload
    def committed(
        self, partitions: Iterable[TopicPartition], *, metadata: Literal[False] = False
    ) -> dict[TopicPartition, Offset | None]: ...
    @overload
    def committed(
        self, partitions: Iterable[TopicPartition], *, metadata: Literal[True]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...
    def committed(
        self, partitions: TopicPartition | Iterable[TopicPartition], *, metadata: bool = False
    ) -> Any:
        """The group's committed offset of a partition, None if there is none; a dict for several.

        With ``metadata``, as ``OffsetAndMetadata``. Raises ``UnknownTopicError``,
        ``UnknownPartitionError``.
        """
        member, (checked, is_one) = self._grouped("committed"), check_some(partitions)
        found = self._call(lambda: member.committed(checked))
        return chosen(found, is_one=is_one, metadata=metadata)

    # -- the thread, and the end

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._check_open()
        self._used = True
        return self._thread.call(work)

    def _look(self) -> None:
        if self._used:
            self._core.look()

    def _check_open(self) -> None:
        rebalancer = self._rebalancer
        if self._closed and (rebalancer is None or not rebalancer.is_busy):
            raise ClosedError("the consumer was closed")
        self._thread.check_process()

    def close(self, *, timeout_ms: int = CLOSE_TIMEOUT_MS_DEFAULT) -> None:
        """Stop. Idempotent, and from any thread; when another one is at it, wait until it is done.

        In a group: call ``on_revoke``, commit everything that was handed out, if ``auto_commit``
        says so, and leave. Called by another thread than the one that reads, it commits only what
        was processed. When it returns, this is committed, and so is all that ``commit_async`` was
        asked for, unless that took the coordinator longer than ``timeout_ms``, or it refused: then
        the log says so (logger ``raftlog``), and the records come again. It waits up to as long for
        the other thread to come out of a call, and for ``on_revoke`` as long as that takes.

        The end of the program waits for a ``close`` that is under way, in a daemon thread too. It
        closes no consumer: of one that is not closed by then, what was committed before counts. In
        a signal handler, set a flag or raise: it runs in the reading thread, and ``close`` there
        takes the records in hand for processed.
        """
        integer("timeout_ms", timeout_ms, 0, DAY_MS)
        self._close(timeout_ms, only_processed=self._is_others())

    def _is_others(self) -> bool:
        """Whether another thread than this one may be working on records."""
        return self._user not in (None, current_thread())

    def _close(self, timeout_ms: int, *, only_processed: bool) -> None:
        wait_s = timeout_ms / 1_000
        with self._closing.begin(wait_s=wait_s, takes_s=2 * wait_s) as is_mine:
            if is_mine:
                self._closed = True
                self._end(timeout_ms, only_processed=only_processed)

    def _end(self, timeout_ms: int, *, only_processed: bool) -> None:
        rebalancer, errors = self._rebalancer, list[Exception]()
        is_alone = False
        try:
            if self._used:
                self._subscription.shut()
                is_alone = self._in_use.acquire(timeout=timeout_ms / 1_000)  # a poll ends now
                if rebalancer is not None:
                    reading = run_now(rebalancer.give_up(errors, only_processed=only_processed))
                    self._thread.call(lambda: self._core.leave(reading, timeout_ms, away=True))
                self._thread.call(self._core.close)
                if rebalancer is not None:
                    run_now(rebalancer.end(errors))
        finally:
            if is_alone:
                self._in_use.release()
            self._stop_thread()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """``close``; after an exception, with only what was processed committed."""
        only_processed = kind is not None or self._is_others()
        self._close(CLOSE_TIMEOUT_MS_DEFAULT, only_processed=only_processed)

    def _end_of_forgotten(self) -> Callable[[], Coroutine[Any, Any, None]]:
        return self._core.abandon
