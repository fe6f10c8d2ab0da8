"""Disk problems of one log: a full disk or a disk that hangs, and their duration.

The log's host records every refused append; the role manager records a disk that completes no sync.
Without problems, nothing is recorded and nothing is counted. The role manager decides the reaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog.errors import FileLimitError, RaftlogError

# Seconds. A log without disk space for this time transfers its role to another broker. A disk
# counts as hung after a longer time (``disk_watch``), so nothing is added for it.
FULL_SECONDS: Final = 1.0
# If all disks are full, no broker is better than the last one: each failed transfer multiplies the
# time to the next one by this factor, up to a maximum.
SLOWER: Final = 4.0
FULL_SECONDS_MAX: Final = 60.0
_SLOWER_TIMES_MAX: Final = 3  # after that, the maximum applies


class Hindrance:
    """Disk problems of one log. ``now`` returns monotonic seconds."""

    __slots__ = ("_began", "_futile", "_now", "_since", "cause", "is_held_up", "is_short")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: float | None = None  # monotonic seconds; start of the problem, in this role
        self._began: float | None = None  # monotonic seconds; start of the problem, in any role
        self._futile = [0, 0]  # number of transfers, as a follower and as the leader
        # An append failed for lack of disk space, and none has succeeded since.
        self.is_short = False
        self.cause = ""  # of the last refused append: "disk_full" or "file_limit"
        self.is_held_up = False  # the disk completes no sync, or too few of them

    def __str__(self) -> str:
        return "disk_hung" if self.is_held_up else self.cause

    def refused(self, error: RaftlogError | None = None) -> None:
        """Record an append that failed with ``error`` for lack of disk space, or of files."""
        self.cause = "file_limit" if isinstance(error, FileLimitError) else "disk_full"
        self.is_short = True
        self._begin()

    def found(self) -> None:
        """Record a successful append. Only needed while ``is_short``; further calls have no
        effect.
        """
        self.is_short = False
        self._end()

    def hold_up(self, is_held_up: bool) -> None:
        """Record whether syncs take too long. Call it periodically while they do."""
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
            self._since, self._began, self._futile = None, None, [0, 0]

    @property
    def seconds(self) -> float:
        """Return the duration in seconds, in any roles; 0 without a problem."""
        return 0.0 if self._began is None else self._now() - self._began

    def begin_role(self) -> None:
        """Restart the measurement: problems in an earlier role do not count for this one."""
        self._since = None

    def is_overdue(self, *, leads: bool) -> bool:
        """Whether it has lasted too long for a leader, or for a follower in sync."""
        if self._since is None:
            return False
        times = min(self._futile[leads], _SLOWER_TIMES_MAX)
        patience = min(FULL_SECONDS * SLOWER**times, FULL_SECONDS_MAX)
        if self.is_held_up and not times:
            patience = 0.0
        return self._now() - self._since >= patience

    def yielded(self, *, leads: bool) -> None:
        """Record that the broker stopped leading, or left the ISR, for this reason."""
        self._futile[leads] += 1
        self._since = None
