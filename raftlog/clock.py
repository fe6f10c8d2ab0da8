"""The only module that reads the system clocks. Other modules receive a ``Clock`` or a number."""

from __future__ import annotations

import time
from typing import Protocol

from raftlog.types import TimestampMs


class Clock(Protocol):
    """A wall clock and a monotonic clock."""

    def wall_ms(self) -> TimestampMs:
        """Return milliseconds since 1970-01-01T00:00Z. May jump: for records, not for timeouts."""
        ...

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start. Never decreases; not comparable across hosts."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> TimestampMs:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)  # no wrapper: called for each request
