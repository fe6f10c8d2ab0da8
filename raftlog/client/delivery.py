"""Outcome of sent records: one ``Delivery`` per batch, which the futures of its records share.

A future per record with its own lock would cost more than sending the record. So a
``DeliveryFuture`` is a ``Delivery`` and an index; the ``Delivery`` implements waits, callbacks and
results. This module does not depend on how batches are sent.

Threads: the I/O thread resolves a delivery once; any thread can call everything else. Callbacks
need no lock, because ``append`` and ``popleft`` of ``deque`` are atomic. The I/O thread sets
``done`` before it empties the callback queue, and ``add_callback`` checks ``done`` after it
appends. So each callback runs exactly once. The only lock is for ``concurrent.futures.wait``, which
needs a consistent view of several futures.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from threading import RLock
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from raftlog.client.threads import pending_of, wait_for
from raftlog.errors import RaftlogError, counted
from raftlog.types import NO_TIMESTAMP, OffsetRange, RecordMetadata, TimestampMs

logger: Final = logging.getLogger(__name__)

NO_OFFSET: Final = -1  # of a record sent with acks=0

T = TypeVar("T")

_resolving: Final = RLock()  # held while a batch becomes done


class Journey(NamedTuple):
    """Times of a batch, for traces. ``sent_at``, ``answered_at``: monotonic seconds of the client.

    ``appended_s``, ``synced_s``, ``done_s``: seconds since ``broker`` began with the request (see
    ``ProduceTimes``). ``last``: the broker whose disk was the last one; None if unknown.
    """

    broker: int
    sent_at: float
    answered_at: float
    appended_s: float
    synced_s: float
    done_s: float
    last: int | None


class Delivery:
    """Outcome of one batch. Invariant: once ``done``, only ``retrieved`` changes."""

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "append_timestamp_ms",
        "base_offset",
        "done",
        "error",
        "journey",
        "partition",
        "retrieved",
        "timestamps_ms",
        "topic",
    )

    def __init__(
        self, topic: str, partition: int, timestamps_ms: Sequence[TimestampMs] | TimestampMs
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.timestamps_ms = timestamps_ms  # one per record, or one for all
        self.base_offset = NO_OFFSET
        self.append_timestamp_ms: TimestampMs = NO_TIMESTAMP  # set if the leader sets timestamps
        self.error: RaftlogError | None = None
        self.journey: Journey | None = None  # of a traced batch that was stored
        self.done = False
        self.retrieved = False  # the application has seen the outcome
        self._callbacks: deque[Callable[[], object]] = deque()

    @classmethod
    def failed(cls, topic: str, partition: int, error: RaftlogError) -> Delivery:
        """Return a delivery that failed before its batch was queued."""
        delivery = cls(topic, partition, NO_TIMESTAMP)
        delivery.fail(error)
        return delivery

    def succeed(self, base_offset: int, append_timestamp_ms: TimestampMs) -> None:
        self.base_offset = base_offset
        self.append_timestamp_ms = append_timestamp_ms
        self._finish()

    def fail(self, error: RaftlogError) -> None:
        self.error = error
        self._finish()

    def _finish(self) -> None:
        assert not self.done, "a delivery is resolved once"
        with _resolving:
            self.done = True
        self._run_callbacks()

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when done: now if it already is, else from the I/O thread."""
        self._callbacks.append(callback)
        if self.done:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        callbacks = self._callbacks
        while callbacks:
            try:
                callback = callbacks.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                callback()
            except Exception:
                logger.exception(
                    "done callback failed: partition=%s:%d", self.topic, self.partition
                )

    def __del__(self) -> None:
        if self.error is not None and not self.retrieved and logger is not None:
            # When the interpreter exits, module names may already be None.
            logger.error(
                "records not delivered and no future checked: topic=%s error=%s: %s. Check the "
                "futures that send() returns",
                self.topic,
                type(self.error).__name__,
                self.error,
            )


class _Future(Generic[T]):
    """Common part of both futures: wait for deliveries, then return a value or raise an error."""

    __slots__ = ()

    def _pending(self) -> Delivery | None:
        """Return the first unfinished delivery in input order, or None."""
        raise NotImplementedError

    def _error(self) -> RaftlogError | None:
        """Return the delivery error, or None. All deliveries are done."""
        raise NotImplementedError

    def _value(self) -> T:
        """Return the value. All deliveries have succeeded."""
        raise NotImplementedError

    def _outcome(self) -> T:
        """Return the value, or raise the error. All deliveries are done."""
        self._mark_retrieved()
        error = self._error()
        if error is not None:
            raise error.with_traceback(None)
        return self._value()

    def done(self) -> bool:
        """Return True if the outcome is known, so that ``result`` does not block."""
        return self._pending() is None

    def result(self, timeout: float | None = None) -> T:
        """Wait up to ``timeout`` seconds (default: no limit) and return the outcome.

        Raises the delivery error of the record (see ``raftlog.errors``), or ``TimeoutError`` if
        there is no outcome yet. In that case the producer continues to send the record.
        """
        if not wait_for(self._pending, timeout):
            raise TimeoutError(
                f"no acknowledgement within {timeout} s. The producer continues to send the "
                "record for up to delivery_timeout_ms. Call result() again to wait longer"
            )
        return self._outcome()

    def exception(self, timeout: float | None = None) -> RaftlogError | None:
        """Wait like ``result``, and return the delivery error, or None without one."""
        try:
            self.result(timeout)
        except RaftlogError as error:
            return error
        return None

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call ``callback(future)`` when done: now if it already is, else from the I/O thread.

        Keep the callback short, and do not block in it: the client sends and receives nothing while
        it runs. Its exceptions are logged.
        """

        def call(_value: T | None, _error: RaftlogError | None) -> None:
            self._mark_retrieved()
            try:
                callback(self)
            except Exception:
                logger.exception("done callback failed")

        self.observe(call)

    def observe(self, callback: Callable[[T | None, RaftlogError | None], object]) -> None:
        """Call ``callback(value, error)`` when done, as ``add_done_callback`` does, for code that
        only watches: if no other code sees an error, the producer logs it.
        """
        pending = self._pending()
        if pending is not None:
            pending.add_callback(lambda: self.observe(callback))
            return
        error = self._error()
        callback(None if error is not None else self._value(), error)

    def _mark_retrieved(self) -> None:
        """Note that the application has seen the outcome."""
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, T]:
        yield from until_done(self._pending).__await__()
        return self._outcome()

    def running(self) -> bool:
        """Return True if the record is still being sent."""
        return not self.done()

    def cancel(self) -> bool:
        """Return False: a queued record cannot be cancelled."""
        return False

    def cancelled(self) -> bool:
        """Return False."""
        return False

    # ``concurrent.futures.wait`` and ``as_completed`` use these attributes (CPython's Lib/
    # concurrent/futures/_base.py): they acquire the ``_condition`` of each future, read its
    # ``_state``, and append a waiter to its ``_waiters``. No future becomes done under the lock.

    @property
    def _condition(self) -> object:
        return _resolving

    @property
    def _state(self) -> str:
        return "FINISHED" if self.done() else "PENDING"

    @property
    def _waiters(self) -> _Waiters:
        return _Waiters(self)


class _Waiters:
    """Waiters of one future, as the list that ``concurrent.futures`` expects."""

    __slots__ = ("_future",)

    def __init__(self, future: _Future[Any]) -> None:
        self._future = future

    def append(self, waiter: Any) -> None:
        if not self._future.done():  # the caller already knows finished futures
            self._future.add_done_callback(waiter.add_result)

    def remove(self, _waiter: Any) -> None:
        """Do nothing: a waiter ignores late notifications."""


async def until_done(pending: Callable[[], Delivery | None]) -> None:
    """Wait, in any event loop, until ``pending()`` is None."""
    while (delivery := pending()) is not None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        delivery.add_callback(partial(_wake, loop, waiter))
        await waiter


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(_release, waiter)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class DeliveryFuture(_Future[RecordMetadata], msgspec.Struct, eq=False, gc=False):
    """Outcome of one ``send``: a ``RecordMetadata``, or the delivery error.

    ``result()`` blocks; ``await future`` does not, and works in any event loop.
    """

    # There is one for each record. A structure that the garbage collector does not track costs a
    # third of an object: its only cycle, through a callback, ends when the delivery is resolved.
    # For the same reason, the methods of a program's loop do not call those of ``_Future``.

    _delivery: Delivery
    _index: int

    def _pending(self) -> Delivery | None:
        return None if self._delivery.done else self._delivery

    def done(self) -> bool:
        return self._delivery.done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        delivery = self._delivery
        if not delivery.done or delivery.error is not None:
            return super().result(timeout)
        delivery.retrieved = True
        return self._value()

    result.__doc__ = _Future.result.__doc__

    def add_done_callback(self, callback: Callable[[DeliveryFuture], object]) -> None:
        delivery = self._delivery
        delivery.retrieved = True  # the callback sees the outcome
        delivery.add_callback(partial(callback, self))

    add_done_callback.__doc__ = _Future.add_done_callback.__doc__

    def _mark_retrieved(self) -> None:
        self._delivery.retrieved = True

    @property
    def journeys(self) -> list[Journey]:
        """The times of the batch, for traces; empty if it was not traced."""
        journey = self._delivery.journey
        return [] if journey is None else [journey]

    def _error(self) -> RaftlogError | None:
        return self._delivery.error

    def _value(self) -> RecordMetadata:
        delivery, index = self._delivery, self._index
        offset, stamp = delivery.base_offset, delivery.append_timestamp_ms
        if offset != NO_OFFSET:
            offset += index
        if stamp == NO_TIMESTAMP:
            stamps = delivery.timestamps_ms
            stamp = stamps if isinstance(stamps, int) else int(stamps[index])
        return RecordMetadata(delivery.topic, delivery.partition, offset, stamp)

    def __repr__(self) -> str:
        delivery = self._delivery
        state = "pending" if not delivery.done else repr(delivery.error or "delivered")
        return f"<DeliveryFuture {delivery.topic}:{delivery.partition} {state}>"


class RangesFuture(_Future[list[OffsetRange]]):
    """Outcome of one ``send_many``: the offsets of its records, as ranges in input order.

    Without keys, the ranges in sequence correspond to the records in input order. With keys or a
    partitioner, the ranges of each partition correspond to the records of that partition in input
    order. If any record cannot be delivered, ``result`` raises the first such error;
    ``acknowledged`` returns the ranges of the others.
    """

    __slots__ = ("_parts", "_waited")

    def __init__(self, parts: list[tuple[Delivery, int, int]]) -> None:
        self._parts = parts  # (delivery, index of the first record in it, record count)
        self._waited = 0  # Invariant: the parts before it are done

    def _pending(self) -> Delivery | None:
        parts = self._parts
        waited = self._waited
        while waited < len(parts) and parts[waited][0].done:
            waited += 1
        self._waited = waited
        return parts[waited][0] if waited < len(parts) else None

    def _mark_retrieved(self) -> None:
        for delivery, _, _ in self._parts:
            delivery.retrieved = True

    @property
    def journeys(self) -> list[Journey]:
        """The times of the batches, for traces; empty if they were not traced."""
        found = {id(delivery): delivery.journey for delivery, _, _ in self._parts}
        return [journey for journey in found.values() if journey is not None]

    def _error(self) -> RaftlogError | None:
        """Return the first error, in the order of the records."""
        return next((part[0].error for part in self._parts if part[0].error is not None), None)

    def _value(self) -> list[OffsetRange]:
        return self.acknowledged()

    def acknowledged(self) -> list[OffsetRange]:
        """Return the ranges that are acknowledged so far, also if other records have failed."""
        ranges = []
        for delivery, index, count in self._parts:
            if not delivery.done or delivery.error is not None:
                continue
            base = delivery.base_offset
            first = base if base == NO_OFFSET else base + index
            last = base if base == NO_OFFSET else first + count - 1
            ranges.append(OffsetRange(delivery.topic, delivery.partition, first, last))
        return ranges

    def __repr__(self) -> str:
        state = "pending" if self._pending() else "done"
        return (
            f"<RangesFuture of {counted(sum(part[2] for part in self._parts), 'record')}, {state}>"
        )


def outcomes(
    futures: Iterable[DeliveryFuture], timeout: float | None = None
) -> list[RecordMetadata | RaftlogError]:
    """Wait for many records, and return the ``RecordMetadata`` or the delivery error of each.

    ``futures``: of ``send``, of any producers. The result is in their order; nothing is raised for
    records that were not delivered. ``timeout``: seconds for all (default: no limit). Raises
    ``TimeoutError`` if some have no outcome by then; their producers continue to send them.
    """
    listed = list(futures)
    missing = list(dict.fromkeys(future._delivery for future in reversed(listed)))
    if not wait_for(pending_of(missing), timeout):
        left = sum(not delivery.done for delivery in missing)
        raise TimeoutError(
            f"{counted(left, 'batch', 'batches')} without an acknowledgement within "
            f"{timeout} s. The producer continues to send for up to delivery_timeout_ms"
        )
    found: list[RecordMetadata | RaftlogError] = []
    for future in listed:
        delivery = future._delivery
        delivery.retrieved = True
        found.append(future._value() if delivery.error is None else delivery.error)
    return found
