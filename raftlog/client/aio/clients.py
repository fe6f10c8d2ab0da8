"""Asynchronous producer."""

from __future__ import annotations

import asyncio
import atexit
import os
import re
import warnings
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, overload

from raftlog import limits
from raftlog.client.accumulator import TopicQueues
from raftlog.client.base import LoopBound
from raftlog.client.consumer import (
    CLOSE_TIMEOUT_MS_DEFAULT,
    POLL_RECORDS_DEFAULT,
    POLL_RECORDS_MAX,
    POLL_TIMEOUT_MS_DEFAULT,
    ConsumerBase,
    check_callback,
    check_interest,
    check_some,
    check_times,
    chosen,
)
from raftlog.client.delivery import Delivery, DeliveryFuture, RangesFuture
from raftlog.client.groups.coordinator import check_offsets
from raftlog.client.groups.member import CommitCallback, Reading
from raftlog.client.producer import CLOSE_AFTER_INTERRUPT_S, ProducerBase, warn_of_undelivered
from raftlog.client.producer_core import ProducerCore
from raftlog.client.settings import DAY_MS, NeedsSchemaError, OffsetReset, integer
from raftlog.client.subscription import check_partitions
from raftlog.client.transactions import AsyncTransaction
from raftlog.errors import (
    ClosedError,
    InvalidRequestError,
    KeyRequiredError,
    RaftlogError,
    RecordTooLargeError,
    ThrottledError,
    UnknownPartitionError,
)
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

_unclosed: Final[set[ProducerCore]] = set()  # producers of this process that have been used


def _report(cores: set[ProducerCore]) -> None:
    """Warn of undelivered records of unclosed producers, which no event loop sends any longer."""
    warn_of_undelivered(
        cores,
        "the AsyncProducer was not closed. Use `async with AsyncProducer(...)`, or await close(), "
        "before its event loop ends",
    )
    cores.clear()


atexit.register(_report, _unclosed)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unclosed.clear)


class AsyncProducer(LoopBound, ProducerBase):
    """``Producer`` for asyncio: the same arguments, and the same methods as coroutines.

    ``await producer.send(...)`` queues a record and returns a future; ``await`` the future for the
    ``RecordMetadata``. Can be created without a running loop, and belongs to the event loop that
    first uses it. An asynchronous context manager, which flushes and closes. If it is not closed, a
    ``ResourceWarning`` on stderr reports the number of records that were not delivered.
    """

    def _bound(self, loop: asyncio.AbstractEventLoop) -> None:
        self._core.attach(loop.call_soon)
        _unclosed.add(self._core)
        if self._core.is_transactional:
            self._core.transactions.start()

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> DeliveryFuture:
        """Queue one record, and return the future of its ``RecordMetadata``.

        Waits only if the buffer is full or the topic is not known yet. See ``Producer.send``.
        """
        self._bind()
        core = self._core
        queues = core.ready(topic, partition)
        if queues is None:
            try:
                queues = await self._prepare(topic, partition)
            except ClosedError:
                raise
            except RaftlogError as error:
                return core.failed(topic, error)
        try:
            value, key, headers, timestamp_ms, partition = core.normalize(
                queues, value, key, headers, timestamp_ms, partition
            )
            append = self._accumulator.append
            future = append(queues, value, key, headers, timestamp_ms, partition)
            if future is None:
                deadline = self._deadline()
                while future is None:
                    await self._wait_for_room(deadline)
                    future = append(queues, value, key, headers, timestamp_ms, partition)
        except (KeyRequiredError, RecordTooLargeError, UnknownPartitionError) as error:
            return core.failed(topic, error)
        if self._accumulator.wake_needed:
            core.wake()
        return future

    async def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        *,
        headers: Sequence[Any] | None = None,
        timestamps_ms: int | Sequence[int] | None = None,
        partition: int | None = None,
    ) -> RangesFuture:
        """Queue many records with one call, and return the future of their ``OffsetRange``s.

        See ``Producer.send_many``.
        """
        self._bind()
        core = self._core
        try:
            queues = core.ready(topic, partition) or await self._prepare(topic, partition)
            if partition is not None:
                queues.check_partition(partition)
        except ClosedError:
            raise
        except RaftlogError as error:
            return core.all_failed(topic, len(values), error)
        run = core.columns_of(values, keys, headers, timestamps_ms, topic)
        parts: list[tuple[Delivery, int, int]] = []
        deadline = self._deadline()
        for piece in core.pieces(queues, run, partition):
            while (part := piece.offer()) is None:
                try:
                    await self._wait_for_room(deadline)
                except ThrottledError as error:
                    if not parts:
                        raise
                    part = piece.failed(error)
                    break
            parts.append(part)
            if self._accumulator.wake_needed:
                core.wake()
        return RangesFuture(parts)

    def transaction(self) -> AsyncTransaction:
        """Return a transaction, for one `async with` block. See ``Producer.transaction``."""
        return AsyncTransaction(self, self._core.transactions)

    async def recover(self) -> bool:
        """Find out how a transaction ended whose commit had no response. See
        ``Producer.recover``.
        """
        return await self._run_on_loop(self._core.transactions.recover)

    async def _run_on_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await ``work()``. For the modules of the client."""
        self._bind()
        return await work()

    async def _prepare(self, topic: str, partition: object = None) -> TopicQueues:
        if not isinstance(topic, str):
            raise TypeError(f"topic={topic!r} is not the name of a topic (str)")
        return await self._core.prepare(topic, partition)

    def _deadline(self) -> float:
        return self._core.monotonic() + self._core.settings.max_block_ms / 1_000

    async def _wait_for_room(self, deadline: float) -> None:
        self._core.wake()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        self._accumulator.when_room(wake)
        try:
            async with asyncio.timeout(max(deadline - self._core.monotonic(), 0)):
                await waiter
        except TimeoutError:
            raise self._core.no_room() from None

    def undelivered(self) -> int:
        """Return the number of records that are neither acknowledged nor failed."""
        return self._accumulator.undelivered()

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as Producer's
        """Send all queued records now, and wait until each is acknowledged or has failed.

        ``timeout``: seconds. See ``Producer.flush``.
        """
        self._bind()
        await self._flush(timeout)

    async def _flush(self, timeout_s: float | None) -> None:
        deliveries = self._accumulator.hurry()
        try:
            async with asyncio.timeout(timeout_s):
                await self._core.delivered(deliveries)
        except TimeoutError:
            raise TimeoutError(
                f"batches not acknowledged within {timeout_s} s: {len(deliveries)}. The producer "
                "continues to send them. Call flush() again to wait longer"
            ) from None

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as Producer's
        """Flush for up to ``timeout`` seconds (default: as ``flush``), then stop. Idempotent.

        See ``Producer.close``.
        """
        if self._closed:
            return
        if self._loop is None:
            self._closed = True
            return
        self._bind()
        self._closed = True
        self._accumulator.shut()
        try:
            with suppress(TimeoutError):
                await self._flush(timeout)
        finally:
            _unclosed.discard(self._core)
            await self._to_the_end(self._core.close)

    async def __aenter__(self) -> AsyncProducer:
        if self._core.is_transactional:
            self._bind()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        await self.close(CLOSE_AFTER_INTERRUPT_S if interrupted else None)

    def __del__(self) -> None:
        if not self._closed and self._loop is not None:
            warnings.warn(
                f"unclosed {self!r}. Call close(), or use `async with`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
            if not self._loop.is_running() and self._core in _unclosed:
                _unclosed.remove(self._core)
                _report({self._core})


# -- consumer --------------------------------------------------------------------------------------
#
# Asynchronous consumer.


class AsyncConsumer(LoopBound, ConsumerBase[K, V], AsyncIterator[ConsumerRecord[K, V]]):
    """``Consumer`` for asyncio: the same arguments, and the same methods as coroutines.

    Can be created without a running loop, and belongs to the event loop that first uses it. One
    task at a time can use it. An asynchronous context manager, and an asynchronous iterator of
    records. The loop thread decodes records, one batch at a time; other tasks run between batches.
    The callbacks can be coroutine functions.
    """

    _user: asyncio.Task[Any] | None = None  # the task that polled last
    _closer: asyncio.Task[Any] | None = None  # the task that runs close()
    _end_of_close: asyncio.Future[None] | None = None
    _using: asyncio.Task[Any] | None = None  # the task that is in an exclusive call
    _depth = 0

    def _bound(self, loop: asyncio.AbstractEventLoop) -> None:
        self._core.attach(loop.call_soon)

    def _bind(self) -> None:
        rebalancer = self._rebalancer
        if self._closed and rebalancer is not None and rebalancer.is_busy:
            return  # called by a callback that close() runs
        super()._bind()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Raise ``InvalidRequestError`` if another task is in an exclusive call."""
        self._bind()
        task = asyncio.current_task()
        if self._depth and self._using is not task:
            raise InvalidRequestError(
                "two tasks use this consumer at the same time. Create one consumer per task, "
                "or poll in one task and pass the records to the others"
            )
        self._using = task
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    # -- subscription

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """See ``Consumer.assign``."""
        checked = check_partitions(partitions)
        with self._alone():
            async with self._left():
                await self._core.assign(checked)

    async def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_assign: RebalanceListener | None = None,
        on_revoke: RebalanceListener | None = None,
        on_lost: RebalanceListener | None = None,
    ) -> None:
        """See ``Consumer.subscribe``. The callbacks can be coroutine functions."""
        names, compiled = check_interest(topics, pattern)
        with self._alone():
            self._listen(on_assign, on_revoke, on_lost, coroutines=True)
            await self._core.subscribe(names, compiled)

    async def unsubscribe(self) -> None:
        """See ``Consumer.unsubscribe``."""
        with self._alone():
            async with self._left():
                self._core.assign_nothing()

    @asynccontextmanager
    async def _left(self) -> AsyncIterator[None]:
        """See ``Consumer._left``."""
        errors: list[Exception] = []
        if self._rebalancer is not None:
            reading = await self._rebalancer.give_up(errors, only_processed=False)
            await self._core.leave(reading)
        yield
        if self._rebalancer is not None:
            await self._rebalancer.end(errors)

    async def assignment(self) -> set[TopicPartition]:
        """See ``Consumer.assignment``."""
        return set(self._subscription.parts)

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the partition numbers of a topic. Requests its metadata each time.

        Raises ``UnknownTopicError`` if it does not exist.
        """
        self._bind()
        return await self._core.partitions_for(topic)

    async def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching and returning records of these partitions until ``resume``."""
        self._bind()
        self._subscription.set_paused(check_partitions(partitions), True)

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Resume paused partitions."""
        self._bind()
        self._subscription.set_paused(check_partitions(partitions), False)
        self._core.wake()

    async def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return self._subscription.paused()

    # -- records

    async def poll(
        self,
        timeout_ms: int = POLL_TIMEOUT_MS_DEFAULT,
        max_records: int = POLL_RECORDS_DEFAULT,
    ) -> list[ConsumerRecord[K, V]]:
        """See ``Consumer.poll``."""
        integer("max_records", max_records, 1, POLL_RECORDS_MAX)
        while True:
            try:
                return await self._wait_for(lambda: self._core.take(max_records), timeout_ms) or []
            except NeedsSchemaError as needed:
                await self._core.learn(needed)

    async def poll_arrow(self, timeout_ms: int = POLL_TIMEOUT_MS_DEFAULT) -> pa.RecordBatch | None:
        """See ``Consumer.poll_arrow``."""
        return await self._wait_for(self._core.take_arrow, timeout_ms)

    def __aiter__(self) -> Self:
        """Return the consumer itself: an iterator without end over the next records."""
        return self

    async def __anext__(self) -> ConsumerRecord[K, V]:
        """Wait for the next record. Raises the errors of ``Consumer.poll``."""
        while True:
            try:
                return await self._next()
            except NeedsSchemaError as needed:
                await self._core.learn(needed)

    async def _next(self) -> ConsumerRecord[K, V]:
        try:
            while True:
                for record in self._records:
                    returned = self._deserialized(record) if self._deserializes else record
                    self._part.position = record.offset + 1
                    return returned
                run = await self._wait_for(self._core.next_run, None)
                assert run is not None, "no timeout"
                self._part, self._records = run
        except BaseException:
            self._records = iter(())  # the next call continues at the position
            raise

    async def _wait_for(self, take: Callable[[], T], timeout_ms: int | None) -> T | None:
        """Return the first non-empty result of ``take``, or the last one after ``timeout_ms``."""
        timeout_s = None
        if timeout_ms is not None:
            timeout_s = integer("timeout_ms", timeout_ms, 0, limits.WAIT_MS_MAX) / 1_000
        with self._alone():
            self._check_readable()
            rebalancer = self._rebalancer
            if rebalancer is None:
                return await self._wait_alone(take, timeout_s)
            rebalancer.polling()
            try:
                return await self._wait_alone(take, timeout_s)
            finally:
                self._user = asyncio.current_task()
                rebalancer.polled()

    async def _wait_alone(self, take: Callable[[], T], timeout_s: float | None) -> T | None:
        await asyncio.sleep(0)  # other tasks run even if records are always available
        deadline = None if timeout_s is None else self._core.monotonic() + timeout_s
        while True:
            if self._subscription.closed:
                raise ClosedError("the AsyncConsumer was closed")
            if self._subscription.interrupted:
                if self._rebalancer is None:
                    self._subscription.interrupted = False
                else:
                    await self._rebalancer.attend()  # the timeout does not limit its callbacks
            found = take()
            if found:
                return found
            left = None if deadline is None else deadline - self._core.monotonic()
            if left is not None and left <= 0:
                return found
            await self._ready(left)

    async def _ready(self, timeout_s: float | None) -> None:
        """Wait until ``take`` may return records, or a rebalance needs the application."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        self._subscription.when_ready(wake)
        await asyncio.wait([waiter], timeout=timeout_s)

    # -- where to read

    async def position(self, partition: TopicPartition) -> Offset:
        """See ``Consumer.position``."""
        self._bind()
        (tp,) = check_partitions([partition])
        return await self._core.position(tp)

    async def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """See ``Consumer.seek``."""
        (tp,) = check_partitions([partition])
        with self._alone():
            self._subscription.seek(tp, integer("offset", offset, 0, limits.OFFSET_MAX))
            self._core.wake()

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """See ``Consumer.seek_to_beginning``."""
        await self._reset(partitions, "earliest")

    async def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """See ``Consumer.seek_to_end``."""
        await self._reset(partitions, "latest")

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """See ``Consumer.beginning_offsets``."""
        self._bind()
        return await self._core.offsets(check_partitions(partitions), "earliest")

    async def end_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """See ``Consumer.end_offsets``."""
        self._bind()
        return await self._core.offsets(check_partitions(partitions), "latest")

    async def lag(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """See ``Consumer.lag``."""
        self._bind()
        return await self._core.lag(self._these(partitions))

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """See ``Consumer.offsets_for_times``."""
        self._bind()
        return await self._core.offsets_for_times(check_times(times))

    async def _reset(self, partitions: Iterable[TopicPartition] | None, how: OffsetReset) -> None:
        with self._alone():
            await self._core.reset(self._these(partitions), how)

    # -- state of the group

    async def commit(
        self,
        offsets: Mapping[TopicPartition, Offset | OffsetAndMetadata] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """See ``Consumer.commit``."""
        if timeout_ms is not None:
            integer("timeout_ms", timeout_ms, 1, DAY_MS)
        reading = self._reading("commit", offsets)
        await self._grouped("commit").commit(reading, timeout_ms=timeout_ms)

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, Offset | OffsetAndMetadata] | None = None,
        callback: CommitCallback | None = None,
    ) -> asyncio.Future[dict[TopicPartition, OffsetAndMetadata]]:
        """See ``Consumer.commit_async``. Not a coroutine; returns an asyncio future."""
        check_callback(callback)
        reading = self._reading("commit_async", offsets)
        rebalancer = self._rebalancer
        future: asyncio.Future[dict[TopicPartition, OffsetAndMetadata]]
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(_look_at)

        def done(error: RaftlogError | None) -> None:
            if callback is not None and rebalancer is not None:
                rebalancer.committed(callback, reading.offsets, error)
            if future.done():
                return
            if error is None:
                future.set_result(dict(reading.offsets))
            else:
                future.set_exception(error)

        self._grouped("commit_async").commit_soon(reading, done)
        return future

    def _reading(self, what: str, offsets: object) -> Reading:
        member = self._grouped(what)
        if offsets is not None:
            self._bind()
            return member.reading(check_offsets(offsets))
        with self._alone():
            return member.reading()

    @overload
    async def committed(
        self, partitions: TopicPartition, *, metadata: Literal[False] = False
    ) -> Offset | None: ...
    @overload
    async def committed(
        self, partitions: TopicPartition, *, metadata: Literal[True]
    ) -> OffsetAndMetadata | None: ...
    @overload
    async def committed(
        self, partitions: Iterable[TopicPartition], *, metadata: Literal[False] = False
    ) -> dict[TopicPartition, Offset | None]: ...
    @overload
    async def committed(
        self, partitions: Iterable[TopicPartition], *, metadata: Literal[True]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...
    async def committed(
        self, partitions: TopicPartition | Iterable[TopicPartition], *, metadata: bool = False
    ) -> Any:
        """See ``Consumer.committed``."""
        self._bind()
        member, (checked, is_one) = self._grouped("committed"), check_some(partitions)
        return chosen(await member.committed(checked), is_one=is_one, metadata=metadata)

    # -- the end

    async def close(self, *, timeout_ms: int = CLOSE_TIMEOUT_MS_DEFAULT) -> None:
        """See ``Consumer.close``, with tasks in place of threads.

        The event loop does not wait for ``close`` when it ends: await it.
        """
        integer("timeout_ms", timeout_ms, 0, DAY_MS)
        await self._close(timeout_ms, only_processed=self._is_others())

    def _is_others(self) -> bool:
        return self._user not in (None, asyncio.current_task())

    async def _close(self, timeout_ms: int, *, only_processed: bool) -> None:
        if self._closed:
            if self._closer not in (None, asyncio.current_task()):
                await asyncio.wait([self._ended()], timeout=timeout_ms / 1_000)
            return
        if self._loop is not None:
            self._bind()
        self._closed = True
        if self._loop is None:
            return
        self._closer = asyncio.current_task()
        try:
            await self._end(timeout_ms, only_processed=only_processed)
        finally:
            self._closer = None
            self._ended().set_result(None)

    def _ended(self) -> asyncio.Future[None]:
        """Return the future that completes when the one ``close`` ends."""
        if self._end_of_close is None:
            self._end_of_close = asyncio.get_running_loop().create_future()
        return self._end_of_close

    async def _end(self, timeout_ms: int, *, only_processed: bool) -> None:
        self._subscription.shut()
        rebalancer, errors = self._rebalancer, list[Exception]()
        try:
            if rebalancer is not None:
                reading = await rebalancer.give_up(errors, only_processed=only_processed)
                await self._core.leave(reading, timeout_ms, away=True)
        finally:  # also if it is cancelled: heartbeats would keep the partitions
            await self._to_the_end(self._core.close)
        if rebalancer is not None:
            await rebalancer.end(errors)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the consumer. After an exception, commit processed records only."""
        only_processed = kind is not None or self._is_others()
        await self._close(CLOSE_TIMEOUT_MS_DEFAULT, only_processed=only_processed)

    def __del__(self) -> None:
        if not self._closed and self._loop is not None:
            warnings.warn(
                f"unclosed {self!r}. Call close(), or use `async with`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


def _look_at(future: asyncio.Future[Any]) -> None:
    """Mark the exception of the future as retrieved, because a caller does not have to await it."""
    if not future.cancelled():
        future.exception()
