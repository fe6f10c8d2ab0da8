"""When to look at which member or group next: a heap that a heartbeat does not touch.

An entry is a time at which something *may* be due. Whoever is looked at too early gets an entry for
the time at which it is due by then; so a session that is renewed a thousand times has one entry.
"""

from __future__ import annotations

import heapq
from itertools import count


class Timers:
    """Names are (group, member), or (group, "") for the group itself."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, str]] = []
        self._order = count()

    @property
    def next_at(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def add(self, at: float, group: str, member: str = "") -> None:
        heapq.heappush(self._heap, (at, next(self._order), group, member))

    def pop_due(self, now: float) -> tuple[float, str, str] | None:
        """(time, group, member) of the first entry that is not later than ``now``."""
        if not self._heap or self._heap[0][0] > now:
            return None
        at, _, group, member = heapq.heappop(self._heap)
        return at, group, member
