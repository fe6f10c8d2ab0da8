"""Advances the log start offset of a partition, by deletion requests and retention.

Whole segments are deleted, so this module also rolls the active segment by its age. The log start
offset changes at once; the files are deleted in a thread, and never while the log is being synced.
The caller decides the offset.
"""

from __future__ import annotations

from collections.abc import Callable

from raftlog.errors import DamagedLogError, DiskFullError, RaftlogError, StorageFailedError
from raftlog.server.flusher import GroupCommit
from raftlog.server.offset_waiters import Acknowledge
from raftlog.server.workers import Workers
from raftlog.storage import DeleteTask, Log
from raftlog.types import Offset


class LogStartAdvancer:
    """Deletions of one log. With ``closed`` set, none is started."""

    __slots__ = (
        "_commit",
        "_log",
        "_on_failed",
        "_on_start",
        "_out",
        "_quiet",
        "_workers",
        "closed",
    )

    def __init__(
        self,
        log: Log,
        commit: GroupCommit,
        workers: Workers,
        *,
        on_start: Callable[[], None],
        on_failed: Callable[[StorageFailedError], None],
    ) -> None:
        """``on_start``: called when a new log start offset is durable."""
        self.closed: RaftlogError | None = None  # reason why none is started
        self._log = log
        self._commit = commit
        self._workers = workers
        self._on_start = on_start
        self._on_failed = on_failed
        self._out = 0
        self._quiet: list[Callable[[], None]] = []

    def advance_log_start(self, before_offset: Offset, done: Acknowledge) -> None:
        """Delete the records below ``before_offset``; call ``done`` once that is durable."""

        def drop() -> None:
            if self.closed is not None:
                done(self.closed)
                return
            # The log may have been truncated since the request.
            offset = min(before_offset, self._log.log_end_offset)
            offset = max(offset, self._log.log_start_offset)
            self._run(lambda: self._log.advance_log_start(offset), done)

        self._commit.between_syncs(drop)

    def apply_retention(self, *, now_ms: int | None, high_watermark: Offset) -> None:
        """Delete the records that the topic's retention expires. Called between syncs. ``now_ms``:
        see ``Log.apply_retention``.
        """
        self._run(
            lambda: self._log.apply_retention(now_ms=now_ms, high_watermark=high_watermark),
            _ignore,
        )

    def roll_if_due(self, *, now_ms: int) -> bool:
        """Start a segment if the last one is old enough, and return whether it was. Called between
        syncs.
        """
        try:
            return self._log.roll_if_due(now_ms=now_ms)
        except (DiskFullError, DamagedLogError):
            return False  # producers get the error of a full disk; rolling can wait
        except StorageFailedError as error:
            self._on_failed(error)
            return False

    def when_quiet(self, done: Callable[[], None]) -> None:
        """Call ``done``, after the close, once no thread uses the files of the log."""
        assert self.closed is not None
        self._quiet.append(done)
        self._commit.between_syncs(self._check_quiet)

    def disk_error(self, what: str, error: Exception) -> RaftlogError:
        """Return the error for a failure of the disk. One that leaves its state unknown is
        reported.
        """
        failure = self._log.disk_failed(what, error)
        if isinstance(failure, StorageFailedError):
            self._on_failed(failure)
        return failure

    def _run(self, plan: Callable[[], DeleteTask | None], done: Acknowledge) -> None:
        """Take a deletion task from the log and run it; the log start offset has already
        changed.
        """
        what = f"deleting old records in {self._log.directory}"
        try:
            task = plan()
        except OSError as error:
            done(self.disk_error(what, error))
            return
        if task is None:
            done(None)
            return
        self._out += 1

        def finished(_result: None, error: Exception | None) -> None:
            self._out -= 1
            if error is None:
                self._log.start_is_durable(task)
                self._on_start()
            done(None if error is None else self.disk_error(what, error))
            self._commit.between_syncs(self._check_quiet)

        self._workers.submit(task.run, finished)

    def _check_quiet(self) -> None:
        if self.closed is not None and self._out == 0:
            waiting, self._quiet = self._quiet, []
            for done in waiting:
                done()


def _ignore(_outcome: RaftlogError | None) -> None:
    """Ignore the outcome: retention is retried at the next round; a failed disk was already
    reported.
    """
