"""Time shares of connections on the event loop: long requests are processed in steps, by turns.

A handler whose request may contain thousands of partitions is a generator. It yields where other
requests may run first, and it yields work for a thread where one piece of it would block the loop.
A connection runs for ``SHARE_SECONDS`` at a time, all of them together for ``TURN_SECONDS`` of each
turn of the loop. Unfinished ones then wait in a queue, in the order of their requests. It uses only
the clock: with a clock that stands still (the simulator's) there is always time left.
"""

from __future__ import annotations

import asyncio
import math
import threading
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Generator, Iterable
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from raftlog.errors import RaftlogError, StorageFailedError
from raftlog.limits import SHARE_SECONDS, TURN_SECONDS
from raftlog.types import Offset

# -- workers ---------------------------------------------------------------------------------------
#
# Threads that run blocking calls for the event loop. They own nothing and decide nothing.
#
# A dedicated thread on a ``SimpleQueue`` adds about 30 µs to an fdatasync of 150 µs;
# ``run_in_executor`` adds 65 µs (two wake-ups in both cases; the difference is its future and its
# lock).


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


# -- scheduling ------------------------------------------------------------------------------------


R = TypeVar("R")

# Work to run in a thread. The generator gets its result, or its error is raised there.
ThreadWork: TypeAlias = Callable[[], Any]
# Yields None where other requests may run first.
Steps: TypeAlias = Generator[ThreadWork | None, Any, None]

ITEMS_PER_STEP: Final = 128  # of a request: takes less than a millisecond


def in_steps(items: Iterable[T], make: Callable[[T], R]) -> Generator[None, Any, list[R]]:
    """Return ``make(item)`` of all items; some in each step."""
    made: list[R] = []
    for item in items:
        made.append(make(item))
        if not len(made) % ITEMS_PER_STEP:
            yield None
    return made


class Worker(Protocol):
    """A connection, as its turns see it."""

    def take_turn(self) -> None:
        """Work until there is no time left, and request another turn if there is more to do."""
        ...


class Turns:
    """Turns of one event loop.

    ``now``: seconds, monotonic; read after each step. ``observe``: called with the seconds that a
    connection has waited for its turn.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        now: Callable[[], float],
        observe: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        self._loop = loop
        self._now = now
        self._observe = observe
        self._waiting: deque[tuple[Worker, float]] = deque()  # with the start of its wait
        self.share_began = 0.0  # seconds of ``now``; of the current share
        self._turn_ends = 0.0
        self._share_ends = 0.0
        self._in_turn = False  # the end of this turn of the loop is scheduled

    def begin_share(self) -> None:
        """Begin the share of a connection: its received bytes are processed."""
        self.share_began = now = self._now()
        if not self._in_turn:
            self._in_turn = True
            self._turn_ends = now + TURN_SECONDS
            self._loop.call_soon(self._next_turn)
        self._share_ends = min(now + SHARE_SECONDS, self._turn_ends)

    def has_time(self) -> bool:
        """Whether the current connection may take another step."""
        # guard: long requests yield
        return self._now() < self._share_ends

    def wait(self, worker: Worker) -> None:
        """Call ``worker.take_turn`` in a later turn of the loop, in order."""
        self._waiting.append((worker, self._now()))
        if not self._in_turn:
            self._in_turn = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """Begin a new turn of the loop: waiting connections go first. At least one of them makes a
        step.
        """
        if not self._waiting:
            self._in_turn = False
            return
        now = self._now()
        self._turn_ends = now + TURN_SECONDS
        for _ in range(len(self._waiting)):
            self.share_began = now
            self._share_ends = now + SHARE_SECONDS
            worker, since = self._waiting.popleft()
            self._observe(now - since)
            worker.take_turn()
            now = self._now()
            if now >= self._turn_ends:
                break
        self._turn_ends = now + TURN_SECONDS  # for bytes read after this
        self._in_turn = bool(self._waiting)
        if self._waiting:
            self._loop.call_soon(self._next_turn)


# -- budgets ---------------------------------------------------------------------------------------
#
# Two broker-wide memory budgets: incomplete requests, and responses that wait for clients.
#
# Both may be exceeded by one request or response, so that one can always finish: a budget below the
# size of one request slows the broker down and never stops it.


class Reading(Protocol):
    """A connection, as the request budget sees it."""

    received_bytes: int  # total since the connection was opened

    @property
    def stalled_since_seconds(self) -> float | None:
        """Time since which a request is incomplete and its rest is being read; else None."""
        ...

    def abort(self, reason: str) -> None: ...

    def pause_for_memory(self) -> None: ...

    def resume_from_memory(self) -> None: ...


class RequestBudget:
    """Bytes of requests of all connections: incomplete, waiting, or not answered yet.

    Over ``bytes_max``, only the connection whose request began first continues to read. Its request
    completes (or times out) and releases memory, so that connections cannot block each other
    indefinitely.

    ``on_short`` is called whenever another connection has to wait.
    """

    def __init__(self, bytes_max: int, *, on_short: Callable[[], None] = lambda: None) -> None:
        self._bytes_max = bytes_max
        self._on_short = on_short
        self._held: dict[Reading, int] = {}  # in the order in which the requests began
        self._paused: dict[Reading, None] = {}
        self.bytes = 0

    @property
    def is_waited_for(self) -> bool:
        """Whether a connection waits for memory."""
        return bool(self._paused)

    def set(self, connection: Reading, size: int) -> None:
        """Set the size, in bytes, of the incomplete request of ``connection``."""
        before = self._held.get(connection, 0)
        if size == before:
            return
        self.bytes += size - before
        if size:
            self._held[connection] = size
        else:
            del self._held[connection]
        if size < before:
            self._resume()
        elif self.bytes > self._bytes_max and connection is not next(iter(self._held)):
            if connection not in self._paused:
                self._on_short()
            self._paused[connection] = None
            connection.pause_for_memory()

    def has_plenty(self) -> bool:
        """Whether three quarters of the budget are free."""
        return self.bytes <= self._bytes_max // 4

    def holders(self) -> list[Reading]:
        """Return the connections that hold memory, in the order in which their requests began."""
        return list(self._held)

    def forget(self, connection: Reading) -> None:
        """Forget a closed connection."""
        self._paused.pop(connection, None)
        self.set(connection, 0)

    def _resume(self) -> None:
        if self.bytes <= self._bytes_max:
            ready, self._paused = list(self._paused), {}
        else:
            oldest = next(iter(self._held))
            ready = [oldest] if oldest in self._paused else []
            self._paused.pop(oldest, None)
        for connection in ready:
            connection.resume_from_memory()


class ResponseBudget:
    """Bytes of responses that the kernel has not accepted yet, of all connections with slow
    readers.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[object, int] = {}
        self._waiting: deque[Callable[[], None]] = deque()
        self._admitting = False
        self.bytes = 0

    @property
    def full(self) -> bool:
        return self.bytes >= self._bytes_max

    @property
    def is_waited_for(self) -> bool:
        """Whether a connection waits for memory."""
        return bool(self._waiting)

    def set(self, connection: object, size: int) -> None:
        """Set the size, in bytes, of the unread responses of ``connection``."""
        self.bytes += size - self._held.pop(connection, 0)
        if size:
            self._held[connection] = size
        if self._admitting:  # a connection that was just admitted has written
            return
        self._admitting = True
        while self._waiting and not self.full:
            self._waiting.popleft()()
        self._admitting = False

    def when_room(self, ready: Callable[[], None]) -> None:
        """Call ``ready`` when there is memory, in the order of the calls."""
        self._waiting.append(ready)


# -- timer coalescing ------------------------------------------------------------------------------
#
# Timer coalescing: long waits end together, so that an idle broker sleeps longer.
#
# A wait of a second or more ends up to a tenth of a second late, at a time shared with many others.
# Clients that are answered together also return together: a thousand idle clients wake a broker a
# few times a second, not hundreds of times (like ``timer_slack`` of Linux and coalesced timers
# elsewhere).


SLACK_S: Final = 0.1
LONG_S: Final = 1.0  # a shorter wait ends at its exact time


def coalesced_deadline(now: float, wait_s: float) -> float:
    """Return the end of a wait of ``wait_s`` seconds that begins ``now``, on the same clock."""
    end = now + wait_s
    return end if wait_s < LONG_S else math.ceil(end / SLACK_S) * SLACK_S


# -- rounds ----------------------------------------------------------------------------------------
#
# Shared rounds of an expensive query: each costs a round trip, so only one is in flight at a time.
#
# A result counts for every caller that called before its query was sent, and for none that called
# later. Both users query whether this broker still leads, for which an earlier result is not valid.


class Rounds:
    """Rounds of one query, numbered from 1."""

    __slots__ = ("_answered", "_ask", "_begun", "_under_way", "_waiting")

    def __init__(self, ask: Callable[[Acknowledge], None]) -> None:
        """``ask``: sends the query and calls its argument once, with None or the error."""
        self._ask = ask
        self._begun = self._answered = 0  # round numbers; the last successful one
        self._under_way: list[Acknowledge] | None = None
        self._waiting: list[Acknowledge] = []

    @property
    def mark(self) -> int:
        """The current moment. Rounds that begin from now on have a higher number."""
        return self._begun

    def ask(self, done: Acknowledge, *, since: int | None = None) -> None:
        """Call ``done`` with the result of a query that was sent after the mark ``since``.

        The default of ``since`` is this call. Calls it at once, if such a result exists already.
        """
        # guard: an old confirmation renews no lease
        if since is not None and since < self._answered:
            done(None)
            return
        self._waiting.append(done)
        if self._under_way is None:
            self._begin()

    def _begin(self) -> None:
        # guard: a leadership confirmation covers earlier requests only
        self._under_way, self._waiting = self._waiting, []
        self._begun += 1
        self._ask(self._done)

    def _done(self, error: RaftlogError | None) -> None:
        asked, self._under_way = self._under_way, None
        assert asked is not None
        if error is None:
            self._answered = self._begun
        for done in asked:
            done(error)
        if self._waiting and self._under_way is None:
            self._begin()


# -- offset waiters --------------------------------------------------------------------------------
#
# Callbacks that wait for a log to reach an offset. Called in offset order, or all failed.


# Called once: with None, or with the reason why the offset will never be reached.
Acknowledge: TypeAlias = Callable[[RaftlogError | None], None]


class Watcher(Protocol):
    """Object to wake when there is more to read (a waiting fetch)."""

    def wake(self) -> None: ...


class OffsetWaiters:
    """Waiters in the order of arrival. Each one is called once."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[Offset, Acknowledge]] = deque()

    def add(self, end_offset: Offset, done: Acknowledge) -> None:
        """Call ``done`` when the log contains everything below ``end_offset``."""
        self._waiting.append((end_offset, done))

    def reached(self, offset: Offset) -> None:
        """Call the waiters up to ``offset``. A duplicate may wait behind newer batches; no waiter
        before it has a lower end.
        """
        waiting = self._waiting
        # guard: waiters complete only up to the committed offset
        while waiting and waiting[0][0] <= offset:
            waiting.popleft()[1](None)

    def refuse(self, reason: RaftlogError) -> None:
        """Fail all waiters: this replica will never reach their offsets."""
        while self._waiting:
            self._waiting.popleft()[1](reason)
