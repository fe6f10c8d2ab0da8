"""Time shares of connections on the event loop: long requests are processed in steps, by turns.

A handler whose request may contain thousands of partitions is a generator. It yields where other
requests may run first, and it yields work for a thread where one piece of it would block the loop.
A connection runs for ``SHARE_SECONDS`` at a time, all of them together for ``TURN_SECONDS`` of each
turn of the loop. Unfinished ones then wait in a queue, in the order of their requests. It uses only
the clock: with a clock that stands still (the simulator's) there is always time left.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from raftlog.limits import SHARE_SECONDS, TURN_SECONDS

T = TypeVar("T")
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
