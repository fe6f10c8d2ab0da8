"""The only reads of time. Everything above takes a ``Clock`` (or a number) as an argument."""

from __future__ import annotations

import time
from typing import Protocol

from raftlog.types import TimestampMs


class Clock(Protocol):
    """Two clocks: one that people read and one that only grows."""

    def wall_ms(self) -> TimestampMs:
        """Milliseconds since 1970-01-01T00:00Z. May jump: for records, never for a timeout."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start. Never goes back; means nothing on another machine."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> TimestampMs:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)  # the function itself: it is called for each request
