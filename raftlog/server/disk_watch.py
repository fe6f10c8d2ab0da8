"""Notices a disk that hangs: a sync that was asked for and does not come back.

A disk that fails says so; one that hangs says nothing, and whoever waits for it waits for ever. Two
things can hang, on one disk or on two: the syncs of logs, and those of the consensus journal. Other
work on the disk (creating topics, compaction) may take long on a disk that works. So while it does,
the broker has something small synced, which is watched as logs' syncs are. What follows is decided
by others: ``hindrance`` for logs, the broker for the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from raftlog.server.workers import Workers

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.25
# Other work that takes longer is reason to try whether the disk still ends a sync.
DOUBT_SECONDS: Final = 1.0
# Where logs hang already, a journal that has waited for so long is on the same disk.
JOURNAL_SECONDS: Final = 1.0


class _Oldest:
    """For how long the oldest piece of work of some threads has been the oldest one.

    Only time in which the event loop ran counts: a process that was stopped, or a machine that was
    suspended, has not waited for its disk.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._oldest: int | None = None
        self.seconds = 0.0

    def look(self, passed_s: float) -> None:
        oldest = self._workers.unfinished.oldest
        if oldest is None or oldest != self._oldest:
            self._oldest, self.seconds = oldest, 0.0
        else:
            self.seconds += passed_s


class DiskWatch:
    """``is_hung``: no sync of a log has ended for ``timeout_s``, though one was asked for."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        sync: Workers,
        journal: Workers,
        others: Sequence[Workers] = (),
        timeout_s: float,
    ) -> None:
        self.timeout_s = timeout_s
        self.is_hung = False
        self._loop = loop
        self._logs = _Oldest(sync)
        self._journal = _Oldest(journal)
        self._others = [_Oldest(workers) for workers in others]
        self._timer: asyncio.TimerHandle | None = None
        self._looked_at = 0.0

    @property
    def is_in_doubt(self) -> bool:
        """Whether other work on the disk takes so long that the disk may hang."""
        return any(oldest.seconds >= DOUBT_SECONDS for oldest in self._others)

    @property
    def is_journal_hung(self) -> bool:
        """Whether this broker cannot vote, nor agree to anything, for want of its disk."""
        patience = min(JOURNAL_SECONDS, self.timeout_s) if self.is_hung else self.timeout_s
        return self._journal.seconds >= patience

    def start(self, *, on_logs_hung: Callable[[], None], while_hung: Callable[[], None]) -> None:
        """``on_logs_hung``: called when it begins; ``while_hung``: at every look while logs or the
        journal hang.
        """

        def look() -> None:
            self._timer = self._loop.call_later(LOOK_SECONDS, look)
            now = self._loop.time()
            passed_s, self._looked_at = min(now - self._looked_at, 2 * LOOK_SECONDS), now
            for oldest in (self._logs, self._journal, *self._others):
                oldest.look(passed_s)
            was_hung, self.is_hung = self.is_hung, self._logs.seconds >= self.timeout_s
            if self.is_hung and not was_hung:
                logger.error(
                    "disk hung: seconds=%.1f. A sync has not ended. This broker acknowledges "
                    "nothing until it ends, and transfers leadership to other in-sync replicas. "
                    "Check the disk (dmesg, SMART)",
                    self._logs.seconds,
                )
                on_logs_hung()
            elif was_hung and not self.is_hung:
                logger.warning("disk recovered: reason=sync_ended")
            if self.is_hung or self.is_journal_hung:
                while_hung()

        self._looked_at = self._loop.time()
        self._timer = self._loop.call_later(LOOK_SECONDS, look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
