"""Asynchronous producer."""

from __future__ import annotations

import asyncio
import atexit
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final

from raftlog.client.aio.loop_bound import LoopBound
from raftlog.client.batch import TopicQueues
from raftlog.client.delivery import Delivery, DeliveryFuture, RangesFuture
from raftlog.client.producer import CLOSE_AFTER_INTERRUPT_S, ProducerBase, warn_of_undelivered
from raftlog.client.producer_core import ProducerCore
from raftlog.errors import (
    ClosedError,
    KeyRequiredError,
    RaftlogError,
    RecordTooLargeError,
    ThrottledError,
    UnknownPartitionError,
)

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
        queues = self._accumulator.topics.get(topic)
        if queues is None or (partition is not None and queues.lacks(partition)):
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
        run = core.columns_of(values, keys, headers, timestamps_ms)
        try:
            queues = self._accumulator.topics.get(topic)
            if queues is None or (partition is not None and queues.lacks(partition)):
                queues = await self._prepare(topic, partition)
            if partition is not None:
                queues.check_partition(partition)
        except ClosedError:
            raise
        except RaftlogError as error:
            return core.all_failed(topic, len(run.values), error)
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
            await self._core.close()

    async def __aenter__(self) -> AsyncProducer:
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
