"""A broker's threads, as events: work is done at one moment of virtual time, some time after it
was asked for.

The moment lies anywhere between the start and the end of the delay. So a crash may find the disk as
it was before, or changed with nobody told; and bytes that are appended while a sync is under way
may, or may not, be covered by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from raftlog.server.workers import Done, Workers
from raftlog.testing.disk import Stopped
from raftlog.testing.simulator.loop import NodeLoop

WAKE_S: Final = 50e-6  # from the queue to a thread


class SimWorkers(Workers):
    """The ``Workers`` of a simulated process. They end with it."""

    def __init__(
        self,
        loop: NodeLoop,
        *,
        count: int,
        delay_s: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        """``count``: how many pieces of work may be under way at a time. ``delay_s``: how long the
        next one takes, in seconds. ``chance``: as ``random.random``; when within that time.
        """
        self._loop: NodeLoop = loop
        self._free = count
        self._delay_s = delay_s
        self._chance = chance
        self._backlog: deque[tuple[Callable[[], Any], Done]] = deque()

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        self._backlog.append((work, done))
        self._begin()

    def stop(self) -> None:
        """Do at once what nobody has begun; what is under way comes to its end by itself."""
        while self._backlog:
            self._do(self._backlog.popleft()[0])

    def _begin(self) -> None:
        if self._free and self._backlog:
            self._free -= 1
            work, done = self._backlog.popleft()
            delay_s = WAKE_S + self._delay_s()
            before_s = delay_s * self._chance()
            self._loop.call_later(before_s, self._perform, work, done, delay_s - before_s)

    def _perform(self, work: Callable[[], Any], done: Done, after_s: float) -> None:
        result, error = self._do(work)
        if self._loop.is_alive:  # the work may have ended the process
            self._loop.call_later(after_s, self._finish, done, result, error)

    def _do(self, work: Callable[[], Any]) -> tuple[Any, Exception | None]:
        try:
            return work(), None
        except Stopped:
            self._loop.on_stopped()
            return None, None
        except Exception as error:  # noqa: BLE001 - raised, or judged, on the loop
            return None, error

    def _finish(self, done: Done, result: Any, error: Exception | None) -> None:
        self._free += 1
        self._begin()
        done(result, error)
