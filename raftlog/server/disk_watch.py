"""Detection of a disk that hangs: a sync was requested and does not complete.

A disk that fails returns errors; one that hangs returns nothing, and every wait for it is
indefinite. Two things can hang, on one disk or on two: the syncs of logs, and those of the
consensus journal. Other work on the disk (creation of topics, compaction) may take long on a disk
that works. So while it does, the broker syncs a small file, which is watched like the syncs of
logs. Other modules react: ``hindrance`` for logs, the broker for the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from raftlog.server.workers import Workers

logger = logging.getLogger(__name__)

WATCH_SECONDS: Final = 0.25
# Seconds. If other work takes longer, the broker tests whether the disk still completes a sync.
SUSPECT_SECONDS: Final = 1.0
# Seconds. If logs hang already, a journal that has waited for this time is on the same disk.
JOURNAL_SECONDS: Final = 1.0


class _Oldest:
    """Measures for how long the oldest job of some threads has been the oldest one.

    Only time in which the event loop ran counts: a process that was stopped, or a machine that was
    suspended, has not waited for its disk.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._oldest: int | None = None
        self.seconds = 0.0

    def check(self, passed_s: float) -> None:
        oldest = self._workers.unfinished.oldest
        if oldest is None or oldest != self._oldest:
            self._oldest, self.seconds = oldest, 0.0
        else:
            self.seconds += passed_s


class DiskWatch:
    """``is_hung``: no sync of a log has completed for ``timeout_s``, though one was requested."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        sync: Workers,
        journal: Workers | None = None,
        others: Sequence[Workers] = (),
        timeout_s: float,
        directory: str = "",
    ) -> None:
        """``journal``: of the data directory only. ``directory``: for the log of the broker; "" for
        the data directory."""
        self._directory = directory
        self.timeout_s = timeout_s
        self.is_hung = False
        self._loop = loop
        self._logs = _Oldest(sync)
        self._journal = None if journal is None else _Oldest(journal)
        self._others = [_Oldest(workers) for workers in others]
        self._timer: asyncio.TimerHandle | None = None
        self._checked_at = 0.0

    @property
    def is_suspect(self) -> bool:
        """Whether other work on the disk takes so long that the disk may hang."""
        return any(oldest.seconds >= SUSPECT_SECONDS for oldest in self._others)

    @property
    def is_journal_hung(self) -> bool:
        """Whether this broker can neither vote nor commit, because its journal waits for the
        disk.
        """
        if self._journal is None:
            return False
        patience = min(JOURNAL_SECONDS, self.timeout_s) if self.is_hung else self.timeout_s
        return self._journal.seconds >= patience

    def start(self, *, on_logs_hung: Callable[[], None], while_hung: Callable[[], None]) -> None:
        """``on_logs_hung``: called when the logs begin to hang. ``while_hung``: called at every
        check while logs or the journal hang.
        """

        def check() -> None:
            self._timer = self._loop.call_later(WATCH_SECONDS, check)
            now = self._loop.time()
            passed_s, self._checked_at = min(now - self._checked_at, 2 * WATCH_SECONDS), now
            for oldest in (self._logs, self._journal, *self._others):
                if oldest is not None:
                    oldest.check(passed_s)
            was_hung, self.is_hung = self.is_hung, self._logs.seconds >= self.timeout_s
            if self.is_hung and not was_hung:
                logger.error(
                    "disk hung: seconds=%.1f directory=%s. A sync has not ended. This broker "
                    "acknowledges nothing there until it ends, and transfers leadership to other "
                    "in-sync replicas. Check the disk (dmesg, SMART)",
                    self._logs.seconds,
                    self._directory or "data.dir",
                )
                on_logs_hung()
            elif was_hung and not self.is_hung:
                logger.warning("disk recovered: reason=sync_ended")
            if self.is_hung or self.is_journal_hung:
                while_hung()

        self._checked_at = self._loop.time()
        self._timer = self._loop.call_later(WATCH_SECONDS, check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
