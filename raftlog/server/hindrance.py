"""Whether its disk lets a log grow: there is room, and syncs end. And for how long it has not.

Noted by the log's host at every refusal, and by who gives out roles for a disk that ends no sync;
while all is well nothing is noted, and nothing is counted. What follows is decided by who gives out
roles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# A log that found no room for so long leaves what only a log with room can do to another broker. A
# disk is called hung after a longer time (``disk_watch``), so nothing is added to that.
FULL_SECONDS: Final = 1.0
# Where all disks are full nobody is better than the last one: each time in vain is so many times
# rarer than the one before, up to a longest wait.
SLOWER: Final = 4.0
FULL_SECONDS_MAX: Final = 60.0
_SLOWER_TIMES_MAX: Final = 3  # by then it is the longest wait


class Hindrance:
    """Of one log. ``now`` is monotonic seconds."""

    __slots__ = ("_began", "_in_vain", "_now", "_since", "is_held_up", "is_short")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: float | None = None  # the first sign of it since all was well, in this role
        self._began: float | None = None  # the same, in any role
        self._in_vain = [0, 0]  # times that it gave way, as a follower and as the leader
        self.is_short = False  # something was refused for want of room, and nothing appended since
        self.is_held_up = False  # the disk ends no sync, or too few of them

    def __str__(self) -> str:
        return "disk_full" if self.is_short else "disk_hung"

    def refused(self) -> None:
        """There was no room."""
        self.is_short = True
        self._begin()

    def found(self) -> None:
        """There was room. To be called only while it ``is_short``; more often does no harm."""
        self.is_short = False
        self._end()

    def hold_up(self, is_held_up: bool) -> None:
        """Whether syncs take too long. To be called again and again while they do."""
        was_held_up, self.is_held_up = self.is_held_up, is_held_up
        if is_held_up:
            self._begin()
        elif was_held_up:
            self._end()

    def _begin(self) -> None:
        now = self._now()
        self._since = now if self._since is None else self._since
        self._began = now if self._began is None else self._began

    def _end(self) -> None:
        if not (self.is_short or self.is_held_up):
            self._since, self._began, self._in_vain = None, None, [0, 0]

    @property
    def seconds(self) -> float:
        """For how long it has lasted, in whatever roles; 0 while all is well."""
        return 0.0 if self._began is None else self._now() - self._began

    def begin_role(self) -> None:
        """What happened in an older role says nothing of this one."""
        self._since = None

    def is_overdue(self, *, leads: bool) -> bool:
        """Whether it has lasted too long for a leader, or for a follower in sync."""
        if self._since is None:
            return False
        times = min(self._in_vain[leads], _SLOWER_TIMES_MAX)
        patience = min(FULL_SECONDS * SLOWER**times, FULL_SECONDS_MAX)
        if self.is_held_up and not times:
            patience = 0.0
        return self._now() - self._since >= patience

    def gave_way(self, *, leads: bool) -> None:
        """It leads no more, or is not in sync any more, for that reason."""
        self._in_vain[leads] += 1
        self._since = None
