"""Compaction of one log: a task is taken from it, run in a thread, and returned to it.

``raftlog.storage`` decides which records are removed, and replaces files safely. This module
decides when it runs (never while the log is being synced), limits the thread (it shares the
interpreter's lock with the loop, and the disk with the syncs), and cancels it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from raftlog.errors import RaftlogError
from raftlog.server.flusher import GroupCommit
from raftlog.server.workers import Workers
from raftlog.storage import Log
from raftlog.types import Offset

if TYPE_CHECKING:
    from raftlog.storage import CompactionTask

# Maximum sleep of a throttled thread before it checks for cancellation.
SLEEP_SECONDS_MAX: Final = 0.1
# The loop also needs the interpreter's lock. After this time without a pause, the thread releases
# it, for long enough that the loop gets it before the thread returns: sleep(0) does not guarantee
# that.
WORK_SECONDS_MAX: Final = 0.0005
YIELD_SECONDS: Final = 0.00005

Pause: TypeAlias = Callable[[int], None]


def stand_still(seconds: float) -> None:
    """Sleep. ``time.sleep`` fails with EINVAL under libfaketime, which sets wall clocks."""
    threading.Event().wait(seconds)


class GivenUpError(Exception):
    """The compaction was cancelled. Raised in its thread, and handled by its owner only."""


class Terms(NamedTuple):
    """Parameters of a compaction."""

    now_ms: int
    chance_seed: int
    memory_bytes: int


class Pass(NamedTuple):
    """Result of a compaction. ``error``: None if it completed, or was cancelled."""

    is_done: bool = False
    error: Exception | None = None


Finished: TypeAlias = Callable[[Pass], None]


class Pace:
    """Called by a compaction after each step, in its thread: yields to other threads, and limits
    the rate.

    Raises ``GivenUpError`` once ``is_given_up`` returns True.
    """

    def __init__(
        self,
        is_given_up: Callable[[], bool],
        *,
        bytes_per_second: int = 0,
        sleep: Callable[[float], None] = stand_still,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``bytes_per_second``: of reading and writing together; 0 means no limit."""
        self._is_given_up = is_given_up
        self._bytes_per_second = bytes_per_second
        self._sleep = sleep
        self._monotonic = monotonic
        self._free_at = self._yielded_at = monotonic()

    def __call__(self, size_bytes: int) -> None:
        """``size_bytes``: read or written since the last call."""
        self._poll()
        now = self._monotonic()
        if self._bytes_per_second:
            self._throttle(size_bytes, now)
        elif now - self._yielded_at >= WORK_SECONDS_MAX:
            self._sleep(YIELD_SECONDS)
            self._yielded_at = self._monotonic()

    def _throttle(self, size_bytes: int, now: float) -> None:
        """Sleep until the work so far is within the rate limit."""
        self._free_at = max(self._free_at, now) + size_bytes / self._bytes_per_second
        while (left := self._free_at - now) > 0:
            self._sleep(min(left, SLEEP_SECONDS_MAX))
            self._poll()
            now = self._monotonic()

    def _poll(self) -> None:
        if self._is_given_up():
            raise GivenUpError


class LogCompaction:
    """Compactions of one log. Invariant: at most one is in progress, and the log is not truncated
    and its files are not removed until it ends.
    """

    __slots__ = ("_commit", "_is_out", "_log", "_waiting", "closed")

    def __init__(self, log: Log, commit: GroupCommit) -> None:
        self.closed: RaftlogError | None = None  # reason why no compaction starts any longer
        self._log = log
        self._commit = commit
        self._is_out = False
        self._waiting: list[Callable[[], None]] = []  # called at the end of the one in progress

    @property
    def is_given_up(self) -> bool:
        """Whether the compaction in progress must end soon. Read by its thread."""
        return self.closed is not None or bool(self._waiting)

    def when_over(self, job: Callable[[], None]) -> None:
        """Cancel the compaction in progress, and call ``job`` when it has ended. Without one, call
        ``job`` immediately.
        """
        if self._is_out:
            self._waiting.append(job)
        else:
            job()

    def begin(
        self,
        terms: Terms,
        *,
        high_watermark: Callable[[], Offset],
        tombstones_kept_from: Callable[[], Offset],
        workers: Workers,
        pause: Pause,
        finished: Finished,
    ) -> None:
        """Compact the log, if it is worthwhile; ``finished`` gets the result.

        Only records below ``high_watermark()``. Therefore members of the ISR never lack
        compacted records (see ``replication.following.must_restart``). Tombstones at or above
        ``tombstones_kept_from()`` are kept.
        """
        assert not self._is_out, "one compaction at a time"
        self._is_out = True
        self._commit.between_syncs(
            partial(
                self._begin, terms, high_watermark, tombstones_kept_from, workers, pause, finished
            )
        )

    def _begin(
        self,
        terms: Terms,
        high_watermark: Callable[[], Offset],
        tombstones_kept_from: Callable[[], Offset],
        workers: Workers,
        pause: Pause,
        finished: Finished,
    ) -> None:
        if self.is_given_up:
            self._over(finished, Pass())
            return
        try:
            task = self._log.begin_compaction(
                now_ms=terms.now_ms,
                high_watermark=high_watermark(),
                tombstones_kept_from=tombstones_kept_from(),
                chance_seed=terms.chance_seed,
                memory_bytes=terms.memory_bytes,
            )
        except (RaftlogError, OSError) as error:
            self._over(finished, Pass(error=error))
            return
        if task is None:
            self._over(finished, Pass())
            return

        def came_back(_result: None, error: Exception | None) -> None:
            self._commit.between_syncs(partial(self._end, task, error, finished))

        workers.submit(partial(task.run, pause), came_back)

    def _end(self, task: CompactionTask, error: Exception | None, finished: Finished) -> None:
        """Process the end of the thread's work on the task. Called between syncs."""
        # The log cannot use a stale task, because it lost records during the compaction.
        is_done = error is None and not self.is_given_up and not task.is_stale
        try:
            if is_done:
                self._log.complete_compaction(task)
            else:
                self._log.abandon_compaction(task)
        except (RaftlogError, OSError) as failure:
            is_done, error = False, failure
        self._commit.request()  # makes the new files durable, and their indexes
        self._over(finished, Pass(is_done, None if isinstance(error, GivenUpError) else error))

    def _over(self, finished: Finished, outcome: Pass) -> None:
        self._is_out = False
        waiting, self._waiting = self._waiting, []
        for job in waiting:
            job()
        finished(outcome)
