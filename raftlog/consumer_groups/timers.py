"""Timer heap for members and groups. A heartbeat does not modify it.

An entry is a time at which a check *may* be due. If the check is too early, the shard adds an entry
for the new due time. A session that is renewed a thousand times therefore has one entry.
"""

from __future__ import annotations

import heapq
from itertools import count


class Timers:
    """Heap of due times. Names are (group, member), or (group, "") for the group itself."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, str]] = []
        self._order = count()

    @property
    def next_at(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def add(self, at: float, group: str, member: str = "") -> None:
        heapq.heappush(self._heap, (at, next(self._order), group, member))

    def pop_due(self, now: float) -> tuple[float, str, str] | None:
        """Remove and return (time, group, member) of the first entry with time <= ``now``."""
        if not self._heap or self._heap[0][0] > now:
            return None
        at, _, group, member = heapq.heappop(self._heap)
        return at, group, member
