"""Threads that run blocking calls for the event loop. They own nothing and decide nothing.

A dedicated thread on a ``SimpleQueue`` adds about 30 µs to an fdatasync of 150 µs;
``run_in_executor`` adds 65 µs (two wake-ups in both cases; the difference is its future and its
lock).
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

from raftlog.errors import StorageFailedError

T = TypeVar("T")
# Called on the loop with (result, None) or (None, error).
Done: TypeAlias = Callable[[Any, Exception | None], None]

JOIN_SECONDS_MAX: Final = 1.0  # a thread that is stuck in a hung disk is abandoned


class Unfinished:
    """Jobs that were submitted and have not ended. For one event loop."""

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}
        self._submitted = 0

    @property
    def oldest(self) -> int | None:
        """Return the number of the oldest job; None if there is none."""
        return next(iter(self._numbers), None)

    def until(self, done: Done) -> Done:
        """Return a wrapper of ``done`` for a job that is submitted now and ends with it."""
        self._submitted = number = self._submitted + 1
        self._numbers[number] = None

        def ended(result: Any, error: Exception | None) -> None:
            del self._numbers[number]
            done(result, error)

        return ended


class Workers:
    """``count`` threads over one queue. Results are delivered on the loop."""

    def __init__(self, loop: AbstractEventLoop, *, count: int, name: str) -> None:
        self.unfinished = Unfinished()
        self._loop = loop
        self._queue: SimpleQueue[tuple[Callable[[], Any], Done] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"raftlog-{name}-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        """Run ``work`` in a thread, then ``done`` on the loop."""
        self._queue.put((work, self.unfinished.until(done)))

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread. Returns its result or raises its error."""
        future = self._loop.create_future()

        def done(result: T, error: Exception | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self.submit(work, done)
        answer: T = await future
        return answer

    def stop(self) -> None:
        """End the threads once the queue is empty. Nothing may be submitted after that."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(JOIN_SECONDS_MAX)

    def _work(self) -> None:
        call_soon = self._loop.call_soon_threadsafe
        while (item := self._queue.get()) is not None:
            work, done = item
            result: Any = None
            failure: Exception | None = None
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - raised, or judged, on the loop
                failure = error
            if self._loop.is_closed():
                return
            call_soon(done, result, failure)


class Saver:
    """Saves to the disk, one thing at a time."""

    def __init__(
        self,
        worker: Workers,
        loop: AbstractEventLoop,
        on_failed: Callable[[StorageFailedError], None],
    ) -> None:
        """``on_failed``: called when the disk has failed: the broker must stop."""
        self._worker = worker
        self._loop = loop
        self._on_failed = on_failed
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    def save(self, write: Callable[[], None], saved: Callable[[], None]) -> None:
        """Call ``write`` on the worker, and ``saved`` on the loop once it is done. Not while this
        is busy.
        """
        assert self._task is None
        self._task = self._loop.create_task(self._save(write, saved))

    async def stop(self) -> None:
        """Return once nothing is being saved."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _save(self, write: Callable[[], None], saved: Callable[[], None]) -> None:
        try:
            await self._worker.run(write)
            saved()
        except StorageFailedError as error:
            self._on_failed(error)
        finally:
            self._task = None
