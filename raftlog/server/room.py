"""Whether a log finds room on the disk to grow, and for how long it has not.

Noted by the log's host at every refusal; while all is well nothing is noted, and nothing is
counted. What follows from it is decided by who gives out roles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# A log that found no room for so long leaves what only a log with room can do to another broker.
FULL_SECONDS: Final = 1.0
# Where all disks are full nobody is better than the last one: each time in vain is so many times
# rarer than the one before, up to a longest wait.
SLOWER: Final = 4.0
FULL_SECONDS_MAX: Final = 60.0
_SLOWER_TIMES_MAX: Final = 3  # by then it is the longest wait


class Room:
    """Of one log. ``now`` is monotonic seconds."""

    __slots__ = ("_in_vain", "_now", "_since", "is_short")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: float | None = None  # the first refusal after the last success, in this role
        self._in_vain = [0, 0]  # times that it gave way, as a follower and as the leader
        self.is_short = False  # something was refused, and nothing was appended since

    def refused(self) -> None:
        """There was no room."""
        self.is_short = True
        if self._since is None:
            self._since = self._now()

    def found(self) -> None:
        """There was room. To be told only while it ``is_short``; more often does no harm."""
        self.is_short, self._since, self._in_vain = False, None, [0, 0]

    def begin_role(self) -> None:
        """What was refused in an older role says nothing of this one."""
        self._since = None

    def is_overdue(self, *, leads: bool) -> bool:
        """Whether it has lasted too long for a leader, or for a follower in sync."""
        if self._since is None:
            return False
        times = min(self._in_vain[leads], _SLOWER_TIMES_MAX)
        patience = min(FULL_SECONDS * SLOWER**times, FULL_SECONDS_MAX)
        return self._now() - self._since >= patience

    def gave_way(self, *, leads: bool) -> None:
        """It leads no more, or is not in sync any more, for want of room."""
        self._in_vain[leads] += 1
        self._since = None
