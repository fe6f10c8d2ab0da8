"""What became of records that were sent: one ``Delivery`` per batch, shared by its futures.

A future per record with a lock of its own would cost more than sending the record. So a
``DeliveryFuture`` is a batch's ``Delivery`` and an index into it, and waiting, callbacks and the
result stand in the former. Nothing here knows how a batch travels.

Threads: a delivery is resolved once, by the I/O thread; everything else may be called from any
thread. Callbacks need no lock: ``deque``'s append and popleft are atomic, the resolver sets
``done`` before it empties the queue of callbacks, and ``add_callback`` checks ``done`` afterwards:
so each callback runs, and runs once. The one lock is for ``concurrent.futures.wait``, which has to
see several futures at one moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from threading import RLock
from typing import Any, Final, Generic, TypeVar

from raftlog.client.waiting import wait_for
from raftlog.errors import RaftlogError
from raftlog.types import NO_TIMESTAMP, OffsetRange, RecordMetadata, TimestampMs

logger: Final = logging.getLogger(__name__)

NO_OFFSET: Final = -1  # of a record that was sent with acks=0

T = TypeVar("T")

_resolving: Final = RLock()  # held for the moment in which a batch becomes done


class Delivery:
    """The fate of one batch. Invariant: once ``done``, nothing in it changes but ``looked_at``."""

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "append_timestamp_ms",
        "base_offset",
        "done",
        "error",
        "looked_at",
        "partition",
        "timestamps_ms",
        "topic",
    )

    def __init__(
        self, topic: str, partition: int, timestamps_ms: Sequence[TimestampMs] | TimestampMs
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.timestamps_ms = timestamps_ms  # of each record, or one for all
        self.base_offset = NO_OFFSET
        self.append_timestamp_ms: TimestampMs = NO_TIMESTAMP  # set when the leader stamps records
        self.error: RaftlogError | None = None
        self.done = False
        self.looked_at = False  # someone has asked a future of it: an error was not unseen
        self._callbacks: deque[Callable[[], object]] = deque()

    @classmethod
    def failed(cls, topic: str, partition: int, error: RaftlogError) -> Delivery:
        """One that failed before it began."""
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
        """Call ``callback`` once it is done: at once if it is, else from the I/O thread."""
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
                logger.exception("a done callback of %s:%d raised", self.topic, self.partition)

    def timestamp_ms(self, index: int) -> TimestampMs:
        if self.append_timestamp_ms != NO_TIMESTAMP:
            return self.append_timestamp_ms
        stamps = self.timestamps_ms
        return stamps if isinstance(stamps, int) else int(stamps[index])

    def __del__(self) -> None:
        if self.error is not None and not self.looked_at and logger is not None:
            # At the exit of the interpreter, the module's names may be None already.
            logger.error(
                "records for topic %s were not delivered, and nobody asked their futures: %s: %s",
                self.topic,
                type(self.error).__name__,
                self.error,
            )


def pending_of(deliveries: list[Delivery]) -> Callable[[], Delivery | None]:
    """A function that gives one of ``deliveries`` that is not done; None when all are."""

    def pending() -> Delivery | None:
        while deliveries and deliveries[-1].done:
            deliveries.pop()
        return deliveries[-1] if deliveries else None

    return pending


class _Future(Generic[T]):
    """What the two kinds of future share: waiting for some deliveries, then a value or an error."""

    __slots__ = ()

    def _pending(self) -> Delivery | None:
        """The first delivery that is not done, in input order."""
        raise NotImplementedError

    def _outcome(self) -> T:
        """The value, or raise the error. Everything is done by now."""
        raise NotImplementedError

    def done(self) -> bool:
        """Whether the broker has acknowledged or refused, so that ``result`` does not block."""
        return self._pending() is None

    def result(self, timeout: float | None = None) -> T:
        """Wait up to ``timeout`` seconds (default: for ever) and return the outcome.

        Raises the record's delivery error (see ``raftlog.errors``), or ``TimeoutError`` when the
        wait is over and nothing is decided yet: the record is still being sent.
        """
        if not wait_for(self._pending, timeout):
            raise TimeoutError(
                f"no acknowledgement within {timeout} s; the record is still being sent: wait "
                "longer, or see delivery_timeout_ms"
            )
        return self._outcome()

    def exception(self, timeout: float | None = None) -> RaftlogError | None:
        """Like ``result``, but return the delivery error, or None when there is none."""
        try:
            self.result(timeout)
        except RaftlogError as error:
            return error
        return None

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call ``callback(future)`` when it is done: at once if it is, else from the I/O thread.

        Keep it short, and do not block in it: while it runs, nothing is sent or received. What it
        raises is logged.
        """
        pending = self._pending()
        if pending is not None:
            pending.add_callback(lambda: self.add_done_callback(callback))
            return
        self._look()
        try:
            callback(self)
        except Exception:
            logger.exception("a done callback raised")

    def _look(self) -> None:
        """Note that somebody sees the outcome."""
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, T]:
        yield from until_done(self._pending).__await__()
        return self._outcome()

    def running(self) -> bool:
        """Whether the record is still being sent."""
        return not self.done()

    def cancel(self) -> bool:
        """False: a record that was queued is sent."""
        return False

    def cancelled(self) -> bool:
        """False."""
        return False

    # What ``concurrent.futures.wait`` and ``as_completed`` use of a future (CPython's Lib/
    # concurrent/futures/_base.py): they take each one's ``_condition``, read its ``_state``, and
    # append themselves to its ``_waiters``. While the lock is held no future becomes done.

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
    """The waiters of one future, as ``concurrent.futures`` expects them: a list."""

    __slots__ = ("_future",)

    def __init__(self, future: _Future[Any]) -> None:
        self._future = future

    def append(self, waiter: Any) -> None:
        if not self._future.done():  # of those that are done, the caller knows
            self._future.add_done_callback(waiter.add_result)

    def remove(self, _waiter: Any) -> None:
        """Nothing: a waiter that is notified late ignores it."""


async def until_done(pending: Callable[[], Delivery | None]) -> None:
    """Wait, in any event loop, until ``pending()`` is None: until nothing is pending."""
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


class DeliveryFuture(_Future[RecordMetadata]):
    """The outcome of one ``send``: a ``RecordMetadata``, or why the record was not delivered.

    ``result()`` blocks; ``await future`` does not, and works in any event loop.
    """

    __slots__ = ("_delivery", "_index")

    def __init__(self, delivery: Delivery, index: int) -> None:
        self._delivery = delivery
        self._index = index

    def _pending(self) -> Delivery | None:
        return None if self._delivery.done else self._delivery

    def done(self) -> bool:
        return self._delivery.done

    def _look(self) -> None:
        self._delivery.looked_at = True

    def _outcome(self) -> RecordMetadata:
        delivery = self._delivery
        delivery.looked_at = True
        if delivery.error is not None:
            raise delivery.error.with_traceback(None)
        offset = delivery.base_offset
        return RecordMetadata(
            delivery.topic,
            delivery.partition,
            offset if offset == NO_OFFSET else offset + self._index,
            delivery.timestamp_ms(self._index),
        )

    def __repr__(self) -> str:
        delivery = self._delivery
        state = "pending" if not delivery.done else repr(delivery.error or "delivered")
        return f"<DeliveryFuture {delivery.topic}:{delivery.partition} {state}>"


class RangesFuture(_Future[list[OffsetRange]]):
    """The outcome of one ``send_many``: the offsets of its records, as ranges in input order.

    Records without a key: the ranges, one after the other, are the records in the order given. With
    keys, or with a partitioner, each partition's ranges are that partition's records in the order
    given. If any record could not be delivered, ``result`` raises the first such error.
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

    def _look(self) -> None:
        for delivery, _, _ in self._parts:
            delivery.looked_at = True

    def _outcome(self) -> list[OffsetRange]:
        self._look()
        ranges = []
        for delivery, index, count in self._parts:
            if delivery.error is not None:
                raise delivery.error.with_traceback(None)
            base = delivery.base_offset
            first = base if base == NO_OFFSET else base + index
            last = base if base == NO_OFFSET else first + count - 1
            ranges.append(OffsetRange(delivery.topic, delivery.partition, first, last))
        return ranges

    def __repr__(self) -> str:
        state = "pending" if self._pending() else "done"
        return f"<RangesFuture of {sum(part[2] for part in self._parts)} records, {state}>"
