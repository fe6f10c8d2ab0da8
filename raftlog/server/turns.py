"""Who may work on the event loop, and for how long: long requests are done in steps, by turns.

A handler whose request may name thousands of partitions is a generator. It yields where others may
go first, and it yields work for a thread where one piece of it would hold the loop. A connection
works for ``SHARE_SECONDS`` at a time, all of them together for ``TURN_SECONDS`` of each turn of the
loop; those that are not done then wait in a queue, in the order in which they asked. Reads the
clock and nothing else: with a clock that stands still (the simulator's) there is always time left.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias

from raftlog.limits import SHARE_SECONDS, TURN_SECONDS

# What is run in a thread. The generator gets its result in its place, or what it raises.
ThreadWork: TypeAlias = Callable[[], Any]
# Yields None where others may go first.
Steps: TypeAlias = Generator[ThreadWork | None, Any, None]


class Worker(Protocol):
    """A connection, as its turns see it."""

    def take_turn(self) -> None:
        """Work until there is no time left, and ask for another turn if there is more to do."""
        ...


class Turns:
    """Of one event loop.

    Args:
        now: Seconds, monotonic; read after each step.
    """

    def __init__(self, loop: AbstractEventLoop, now: Callable[[], float]) -> None:
        self._loop = loop
        self._now = now
        self._waiting: deque[Worker] = deque()
        self._turn_ends = 0.0
        self._share_ends = 0.0
        self._in_turn = False  # the end of this turn of the loop is scheduled

    def begin_share(self) -> None:
        """A connection begins to work: what came over it is read."""
        now = self._now()
        if not self._in_turn:
            self._in_turn = True
            self._turn_ends = now + TURN_SECONDS
            self._loop.call_soon(self._next_turn)
        self._share_ends = min(now + SHARE_SECONDS, self._turn_ends)

    def has_time(self) -> bool:
        """Whether the connection that works now may take another step."""
        return self._now() < self._share_ends

    def wait(self, worker: Worker) -> None:
        """Call ``worker.take_turn`` when it is its turn, in a later turn of the loop."""
        self._waiting.append(worker)
        if not self._in_turn:
            self._in_turn = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """A new turn of the loop: those that wait go first. One of them always makes a step."""
        now = self._now()
        self._turn_ends = now + TURN_SECONDS
        for _ in range(len(self._waiting)):
            self._share_ends = now + SHARE_SECONDS
            self._waiting.popleft().take_turn()
            now = self._now()
            if now >= self._turn_ends:
                break
        self._turn_ends = now + TURN_SECONDS  # for what is read after this
        self._in_turn = bool(self._waiting)
        if self._waiting:
            self._loop.call_soon(self._next_turn)
