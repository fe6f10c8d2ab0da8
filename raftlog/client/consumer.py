"""Synchronous consumer.

An I/O thread fetches records ahead. The caller's thread decodes them, so that ``poll`` and
iteration over fetched records need no thread switch.
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
    """Client that reads records. A context manager, and an iterator of records.

    ``K``, ``V``: the return types of the deserializers; bytes without them.

    One thread at a time can use it. Another thread can call ``close``, which ends a waiting
    ``poll`` or iteration with ``ClosedError``. Other threads can also call ``commit`` and
    ``commit_async`` with explicit offsets, ``committed``, ``lag``, ``pause``, ``resume`` and the
    methods that look up offsets. All other methods raise ``InvalidRequestError`` if two threads
    call them at the same time.

    In a group, delivery is at least once: records from the committed offset onward are delivered
    again after a restart or rebalance. A record is processed when the application requests the next
    record or calls ``poll`` again.
    """

    def _setup(self) -> None:
        self._take_thread(self._host, "raftlog-consumer")
        self._core.attach(self._thread.schedule)
        self._in_use = RLock()
        self._user: Thread | None = None  # the thread that polled last
        self._closing = Closing(self._thread, self._core.monotonic)
        self._closed = False

    # -- subscription

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions. Partitions that were assigned before keep their position.

        With a group, new partitions start at its committed offsets, and ``commit`` works while the
        group has no members. The consumer does not become a member. Raises ``UnknownTopicError`` or
        ``UnknownPartitionError`` if a partition does not exist, and ``BrokerUnavailableError`` if
        no broker can be reached.
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
        """Read topics, including partitions that are added later. Replaces the subscription.

        ``topics``: names of topics.
        ``pattern``: regular expression that matches the complete topic name; replaces ``topics``.
        ``on_assign``: called before the first record of newly assigned partitions.
        ``on_revoke``: called while the partitions still belong to this consumer. It can ``commit``.
        ``on_lost``: called after the partitions were lost. Default: ``on_revoke``.

        Without a group, the consumer reads all partitions, and reads a topic that matches the
        pattern later from its first record. With a group, it joins the group and reads the
        partitions that the group assigns to it.

        The callbacks need a group. They receive a list of partitions, and run within ``poll`` or
        iteration. If a callback raises an exception, the rebalance continues and ``poll`` raises
        the exception.

        Raises ``UnknownTopicError`` if a topic does not exist, ``BrokerUnavailableError`` if no
        broker can be reached, and ``InvalidRequestError`` for more than 1,000 topics in a group.
        ``poll`` raises this error if a pattern matches more than 1,000 topics later.
        """
        names, compiled = check_interest(topics, pattern)
        with self._alone():
            self._listen(on_assign, on_revoke, on_lost)
            self._call(lambda: self._core.subscribe(names, compiled))

    def unsubscribe(self) -> None:
        """Read no partitions. In a group: call ``on_revoke``, commit if ``auto_commit``, leave."""
        with self._alone():
            self._leave()
            self._core.assign_nothing()

    def _leave(self) -> None:
        """Leave the group, if this consumer is a member."""
        if self._member is None or self._rebalancer is None or not self._used:
            return
        rebalancer, errors = self._rebalancer, list[Exception]()
        reading = run_now(rebalancer.give_up(errors, only_processed=False))
        self._call(lambda: self._core.leave(reading))
        run_now(rebalancer.end(errors))

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions. In a group, they change within ``poll`` and iteration."""
        return set(self._subscription.parts)

    def partitions_for(self, topic: str) -> set[int]:
        """Return the partition numbers of a topic. Requests its metadata each time.

        Raises ``UnknownTopicError`` if it does not exist.
        """
        return self._call(lambda: self._core.partitions_for(topic))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching and returning records of these partitions until ``resume``."""
        self._check_open()
        self._subscription.set_paused(check_partitions(partitions), True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Resume paused partitions."""
        self._check_open()
        self._subscription.set_paused(check_partitions(partitions), False)
        self._wake()

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return self._subscription.paused()

    # -- records

    def poll(
        self,
        timeout_ms: int = POLL_TIMEOUT_MS_DEFAULT,
        max_records: int = POLL_RECORDS_DEFAULT,
    ) -> list[ConsumerRecord[K, V]]:
        """Return the next records, or an empty list if none arrive within ``timeout_ms``.

        ``timeout_ms``: maximum wait time if no record is fetched yet. Default: 1,000.
        ``max_records``: maximum number of records, 1 to 10,000,000. Default: 500.

        Records of one partition are in offset order. While a broker is unavailable, ``poll`` waits
        for it and returns no records of its partitions.

        Raises ``OffsetOutOfRangeError``, ``UnknownTopicError`` and other errors of one partition.
        The position of the partition does not change, and the next ``poll`` tries again: seek or
        pause the partition to continue with the others. ``CorruptBatchError`` and
        ``DeserializationError`` identify the bad record; their ``skip()`` continues after it.
        """
        integer("max_records", max_records, 1, POLL_RECORDS_MAX)
        return self._wait_for(lambda: self._core.take(max_records), timeout_ms) or []

    def poll_arrow(self, timeout_ms: int = POLL_TIMEOUT_MS_DEFAULT) -> pa.RecordBatch | None:
        """Return the next records of one partition as Arrow, or None if none arrive in time.

        Columns: topic, partition, offset, key, value, headers, timestamp (us, UTC), leader_epoch.
        Deserializers do not apply. Requires pyarrow (the extra ``arrow``). Raises the errors of
        ``poll``.
        """
        return self._wait_for(self._core.take_arrow, timeout_ms)

    def __iter__(self) -> Self:
        """Return the consumer itself: an iterator without end over the next records."""
        return self

    def __next__(self) -> ConsumerRecord[K, V]:
        """Wait for the next record. Raises the errors of ``poll``, and never ``StopIteration``."""
        try:
            while True:
                for record in self._records:
                    returned = self._deserialized(record) if self._deserializes else record
                    self._part.position = record.offset + 1
                    return returned
                run = self._wait_for(self._core.next_run, None)
                assert run is not None, "no timeout"
                self._part, self._records = run
        except BaseException:
            self._records = iter(())  # the next call continues at the position
            raise

    def _wait_for(self, take: Callable[[], T], timeout_ms: int | None) -> T:
        """Return the first non-empty result of ``take``, or the last one after ``timeout_ms``."""
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
        self._core.wake()  # KeyboardInterrupt may have interrupted an earlier call before wake()
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
        """Return the result of ``take``, after pending rebalance callbacks and errors."""
        if self._subscription.interrupted:
            if self._rebalancer is None:
                self._subscription.interrupted = False
            else:
                run_now(self._rebalancer.attend())
        return take()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Raise ``InvalidRequestError`` if another thread is in an exclusive call."""
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
        """Return the offset of the next record that this consumer returns of a partition."""
        (tp,) = check_partitions([partition])
        self._check_open()
        position = self._subscription.part(tp).position
        return self._call(lambda: self._core.position(tp)) if position is None else position

    def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """Continue from ``offset`` (0 or more).

        If the partition does not have this offset, the next fetch applies ``auto_offset_reset``.
        """
        (tp,) = check_partitions([partition])
        with self._alone():
            self._subscription.seek(tp, integer("offset", offset, 0, limits.OFFSET_MAX))
            self._wake()

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue from the first record of these partitions. Default: all assigned partitions."""
        self._reset(partitions, "earliest")

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue from the current end of these partitions. Default: all assigned partitions."""
        self._reset(partitions, "latest")

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """Return the first stored offset of each partition."""
        checked = check_partitions(partitions)
        return self._call(lambda: self._core.offsets(checked, "earliest"))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        """Return the end offset of each partition: the offset after its last committed record."""
        checked = check_partitions(partitions)
        return self._call(lambda: self._core.offsets(checked, "latest"))

    def lag(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the number of offsets between ``position`` and the end of each partition.

        ``partitions``: default: all assigned partitions.
        """
        checked = self._these(partitions)
        return self._call(lambda: self._core.lag(checked))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after a time (ms since 1970) of each partition, or None."""
        checked = check_times(times)
        return self._call(lambda: self._core.offsets_for_times(checked))

    def _reset(self, partitions: Iterable[TopicPartition] | None, how: OffsetReset) -> None:
        with self._alone():
            checked = self._these(partitions)
            self._call(lambda: self._core.reset(checked, how))

    # -- state of the group

    def commit(
        self,
        offsets: Mapping[TopicPartition, Offset | OffsetAndMetadata] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit offsets to the group. They are durable when this method returns.

        ``offsets``: for each partition, the offset of the next record to read. Default: the offset
            after the last record that was returned to the application, including a record that is
            being processed.
        ``timeout_ms``: maximum duration, 1 to 86,400,000. Default: ``request_timeout_ms``.

        Raises ``FencedMemberError`` or ``UnknownMemberError`` if the group has assigned the
        partitions to other members. The next ``poll`` then joins the group again, and the other
        members read these records again. Raises ``PartitionNotOwnedError`` for a partition of
        another member, ``InvalidRequestError`` for an offset beyond the end, and
        ``OutcomeUnknownError`` if the offsets may or may not be committed.
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
        """Commit without waiting. Commits are carried out in the order of the calls.

        ``offsets``: as in ``commit``.
        ``callback``: ``callback(offsets, error)``, called within a later ``poll``, iteration or
            ``close``. ``error`` is None if the commit succeeded.

        The result of the future is the committed offsets; it fails with the errors of ``commit``.
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
        """Return the committed offset of a partition, or None; a dict for several partitions.

        With ``metadata``, the values are ``OffsetAndMetadata``. Raises ``UnknownTopicError`` or
        ``UnknownPartitionError`` if a partition does not exist.
        """
        member, (checked, is_one) = self._grouped("committed"), check_some(partitions)
        found = self._call(lambda: member.committed(checked))
        return chosen(found, is_one=is_one, metadata=metadata)

    # -- the thread, and the end

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._check_open()
        self._used = True
        return self._thread.call(work)

    def _wake(self) -> None:
        if self._used:
            self._core.wake()

    def _check_open(self) -> None:
        rebalancer = self._rebalancer
        if self._closed and (rebalancer is None or not rebalancer.is_busy):
            raise ClosedError("the consumer was closed")
        self._thread.check_process()

    def close(self, *, timeout_ms: int = CLOSE_TIMEOUT_MS_DEFAULT) -> None:
        """Stop the consumer. Idempotent. Any thread can call it; a concurrent call waits.

        In a group: call ``on_revoke``, commit the records that were returned to the application if
        ``auto_commit`` is set, and leave. If another thread reads records, ``close`` commits
        processed records only.

        ``timeout_ms``: maximum wait for the coordinator, and for a call of another thread to end.
            Default: 5,000. It does not limit ``on_revoke``.

        When ``close`` returns, these offsets and all offsets of ``commit_async`` are committed,
        unless the coordinator refused them or did not respond within ``timeout_ms``. The logger
        ``raftlog`` reports that case, and the records are delivered again.

        The interpreter waits at exit for a ``close`` in progress, also in a daemon thread. It does
        not close consumers automatically: for an open consumer, only earlier commits count. In a
        signal handler, set a flag or raise an exception instead of calling ``close``: a handler
        runs in the reading thread, where ``close`` counts the records being processed as processed.
        """
        integer("timeout_ms", timeout_ms, 0, DAY_MS)
        self._close(timeout_ms, only_processed=self._is_others())

    def _is_others(self) -> bool:
        """Return True if another thread may be processing records."""
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
                is_alone = self._in_use.acquire(timeout=timeout_ms / 1_000)  # shut() ends a poll
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
        """Close the consumer. After an exception, commit processed records only."""
        only_processed = kind is not None or self._is_others()
        self._close(CLOSE_TIMEOUT_MS_DEFAULT, only_processed=only_processed)

    def _end_of_forgotten(self) -> Callable[[], Coroutine[Any, Any, None]]:
        return self._core.abandon
