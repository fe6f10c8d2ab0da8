"""Group commit: one fdatasync at a time per log, for everything appended since the last one began.

The log determines what a sync makes durable (``complete_sync``); the host acts on it.
"""

from __future__ import annotations

import errno
from asyncio import AbstractEventLoop
from collections.abc import Callable

from raftlog.errors import StorageFailedError
from raftlog.server.metrics import Counters
from raftlog.server.workers import Workers
from raftlog.storage import Log, SyncTask


class GroupCommit:
    """Syncs of one log. Invariant: at most one task is in flight, and none after one has
    failed.
    """

    __slots__ = (
        "_began",
        "_counters",
        "_jobs",
        "_log",
        "_loop",
        "_on_durable",
        "_on_failed",
        "_scheduled",
        "_snapshot_due",
        "_stopped",
        "_task",
        "_workers",
    )

    def __init__(
        self,
        log: Log,
        loop: AbstractEventLoop,
        workers: Workers,
        *,
        on_durable: Callable[[], None],
        on_failed: Callable[[StorageFailedError], None],
        counters: Counters,
    ) -> None:
        self._log = log
        self._loop = loop
        self._workers = workers
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._scheduled = False
        self._snapshot_due = False
        self._task: SyncTask | None = None
        self._jobs: list[Callable[[], None]] = []
        self._stopped = False
        self._counters = counters
        self._began = 0.0  # monotonic seconds, of the task

    def request(self, *, snapshot: bool = False) -> None:
        """Sync the log, including everything that this turn of the loop still appends to it.

        With ``snapshot``, also save the data that makes the next start fast.
        """
        self._snapshot_due |= snapshot
        if self._task is None and not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._begin)

    def between_syncs(self, job: Callable[[], None]) -> None:
        """Run ``job`` while no task is in flight, before the next one begins: now, if there is
        none.
        """
        if self._task is None:
            job()
        else:
            self._jobs.append(job)

    def stop(self) -> None:
        """Start no further syncs. ``between_syncs`` reports the end of the last one."""
        self._stopped = True

    def _begin(self) -> None:
        self._scheduled = False
        if self._stopped or self._task is not None:
            return  # a job of the last sync requested one, and its end started it
        self._task = task = self._log.begin_sync(snapshot=self._snapshot_due)
        self._snapshot_due = False
        if task is not None:
            self._began = self._counters.now()
            self._workers.submit(task.run, self._finished)

    def _finished(self, _result: None, error: Exception | None) -> None:
        task, self._task = self._task, None
        assert task is not None
        if error is None:
            self._counters.fsync_seconds.observe(self._counters.now() - self._began)
            self._log.complete_sync(task)
            jobs, self._jobs = self._jobs, []
            for job in jobs:
                job()
            self._begin()  # the disk syncs newer appends while responses are created
            self._on_durable()
            return
        self._stopped = True
        if not isinstance(error, OSError):  # for any error, the outcome of the sync is unknown
            error = OSError(errno.EIO, repr(error))
        failure = self._log.failed_sync(task, error)
        # Otherwise the log is corrupt, and has reported it.
        if isinstance(failure, StorageFailedError):
            self._on_failed(failure)
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            job()
