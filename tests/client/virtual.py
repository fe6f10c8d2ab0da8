"""Virtual time: an event loop whose clock goes on when nothing else can happen."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

TURNS_MAX = 2_000_000  # a test takes up to 150,000
START_MS = 1_700_000_000_000  # the wall clock's, when the loop's is at 0


class _Selector(selectors.DefaultSelector):
    """Never waits: what would be waited for is the time that passes."""

    loop: VirtualLoop
    turns = 0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        self.turns += 1
        if self.turns > TURNS_MAX:
            raise AssertionError(f"the test has not ended in {TURNS_MAX} turns of its loop")
        if not events and timeout is None:
            raise AssertionError("everything waits, and for nothing that can still happen")
        if not events:
            self.loop.now += timeout or 0.0
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock goes on when nothing else can."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.now = 1_000.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now


class LoopClock:
    """The time of a virtual loop, as a ``raftlog.clock.Clock``."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def wall_ms(self) -> int:
        return START_MS + int(self._loop.now * 1_000)

    def monotonic(self) -> float:
        return self._loop.now
