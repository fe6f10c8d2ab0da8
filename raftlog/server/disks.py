"""Watermarks of free disk space, so that a broker refuses growth before its disk is full. Pure.

Below the first watermark, producers are refused, and replication continues: a leader with a fuller
disk than its followers transfers its leadership. Below the second one, followers copy nothing
either. Internal topics and the consensus journal are small, and a full cluster must still commit
offsets and elect leaders: they can use the rest. A level is left with hysteresis, so that retention
does not end and begin it with every segment. The idea is that of Elasticsearch's
``cluster.routing.allocation.disk.watermark`` (low, high and flood stage).

The same watermarks apply to inodes, with their percentage and at most ``INODES_KEPT`` inodes.
Without watermarks, or when they were too small, writes fail: then this is the reason, until a write
succeeds again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final

from raftlog import limits
from raftlog.config.address import PERCENT_MAX, Watermark
from raftlog.errors import DiskFullError, FileLimitError, RaftlogError
from raftlog.server.scheduling import Workers
from raftlog.storage.log_dirs import DiskMeasure
from raftlog.types import TopicPartition, is_internal_topic

CHECK_SECONDS: Final = 1.0  # between two measurements of the free space
QUARANTINE_SECONDS: Final = 60.0  # between two measurements of the copies in quarantine
# A level is left at a multiple of its watermark, in percent.
RELEASE_PERCENT: Final = 120
# Free inodes below which the watermarks apply, if their percentage is not less.
INODES_KEPT: Final = 1_000
# Measurements after the last failed write. If the disk then takes a write, the failure is over.
FAILURE_CHECKS: Final = 30
FILES_SPARE: Final = 8  # with fewer free descriptors, the broker says so
NO_WATERMARK: Final = Watermark()
ADVICE: Final = (
    "Free disk space: lower retention.ms or retention.bytes, delete records or topics, or add "
    "brokers. `raftlog explain disk` shows what uses the space"
)


def _lacking(measure: DiskMeasure) -> str:
    """Return why no file can be created or opened; "" if one can."""
    if measure.free_inodes == 0:
        return "no inode is left (`df -i` shows them). Delete topics, or raise segment.bytes"
    left = measure.open_files_max - measure.open_files
    if measure.open_files >= 0 and 0 <= left < FILES_SPARE:
        return (
            f"{measure.open_files} of {measure.open_files_max} file descriptors of this process "
            "are open (RLIMIT_NOFILE). Close connections, or raise LimitNOFILE= of the service "
            "and restart"
        )
    return ""


class SpaceLevel(IntEnum):
    """Restriction by the free space. A higher one includes the lower ones."""

    NORMAL = 0
    NO_PRODUCERS = 1
    READ_ONLY = 2

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")


class DiskSpace:
    """The last measurement, and the level that follows. Bytes are -1 before the first one."""

    def __init__(
        self,
        *,
        producers: Watermark = NO_WATERMARK,
        replication: Watermark = NO_WATERMARK,
        what: str = "the disk",
    ) -> None:
        """``what``: the disk, in the reason."""
        self._what = what
        self.last = DiskMeasure(-1, -1)
        self.failure = ""  # error of the last write, if it failed
        self._failure_checks = 0  # since then
        self.quarantine_bytes = 0  # of corrupt copies that are kept; measured less often
        self.level = SpaceLevel.NORMAL
        # The highest level first.
        self._watermarks = (
            (SpaceLevel.READ_ONLY, "disk.watermark.replication", replication),
            (SpaceLevel.NO_PRODUCERS, "disk.watermark.producers", producers),
        )

    @property
    def free_bytes(self) -> int:
        return self.last.free_bytes

    @property
    def size_bytes(self) -> int:
        return self.last.size_bytes

    def measured(self, measure: DiskMeasure) -> bool:
        """Record a measurement. Returns whether the level changed, or failing writes began or
        ended.
        """
        self.last = measure
        before, self.level = self.level, self._next_level()
        is_over, lacking = False, _lacking(measure)
        if lacking:
            is_new, self.failure, self._failure_checks = not self.failure, lacking, 0
            return self.level is not before or is_new
        if self.failure:
            self._failure_checks = 0 if measure.failure else self._failure_checks + 1
            is_over = self._failure_checks >= FAILURE_CHECKS
            self.failure = "" if is_over else measure.failure or self.failure
        return self.level is not before or is_over

    def write_failed(self, error: DiskFullError) -> None:
        """Record a write that failed, although no watermark refused it."""
        self.failure, self._failure_checks = str(error), 0

    def write_succeeded(self) -> None:
        """Record a write that succeeded, of a log whose last one had failed."""
        self.failure = ""

    def _next_level(self) -> SpaceLevel:
        for level, _name, watermark in self._watermarks:
            needed = self._needed(watermark, is_active=self.level >= level)
            if self.free_bytes < needed or self._lacks_inodes(watermark, self.level >= level):
                return level
        return SpaceLevel.NORMAL

    def _lacks_inodes(self, watermark: Watermark, is_active: bool) -> bool:
        free, total = self.last.free_inodes, self.last.inodes
        if free < 0 or watermark.free_bytes(1 << 30) == 0:
            return False
        needed = min(INODES_KEPT, total * (watermark.percent or PERCENT_MAX) // 100)
        return free < (needed * RELEASE_PERCENT // 100 if is_active else needed)

    def _needed(self, watermark: Watermark, *, is_active: bool) -> int:
        """Return the free bytes from which a level does not apply."""
        needed = watermark.free_bytes(self.size_bytes)
        return needed * RELEASE_PERCENT // 100 if is_active else needed

    def check_producer(self, where: TopicPartition) -> None:
        """Raise ``DiskFullError`` if producers may not append to this partition now."""
        self._check(SpaceLevel.NO_PRODUCERS, where)

    def check_replication(self, where: TopicPartition) -> None:
        """Raise ``DiskFullError`` if followers may not append to this partition now."""
        self._check(SpaceLevel.READ_ONLY, where)

    def _check(self, level: SpaceLevel, where: TopicPartition) -> None:
        # guard: internal topics may use the last disk space
        if self.level >= level and not is_internal_topic(where.topic):
            raise DiskFullError(f"{where}: {self.reason}. {ADVICE}")

    @property
    def reason(self) -> str:
        """Why growth is refused, or writes fail; "" if neither."""
        for level, name, watermark in self._watermarks:
            if self.level is level:
                what = (
                    "writes are refused, and followers on this broker copy nothing"
                    if level is SpaceLevel.READ_ONLY
                    else "producers are refused"
                )
                if self._lacks_inodes(watermark, is_active=True):
                    return (
                        f"{what}: {self.last.free_inodes:,} of {self.last.inodes:,} inodes of "
                        f"{self._what} are free (`df -i` shows them). Delete topics, or raise "
                        "segment.bytes so that there are fewer files"
                    )
                end = self._needed(watermark, is_active=True)
                return (
                    f"{what}: {self.free_bytes:,} of {self.size_bytes:,} bytes of {self._what} are "
                    f"free, which is below {name}={watermark}, until {end:,} bytes are free"
                )
        return f"writes to {self._what} fail: {self.failure}" if self.failure else ""

    @property
    def state(self) -> str:
        """``failing`` if writes fail at the normal level; else the level."""
        is_failing = self.failure and self.level is SpaceLevel.NORMAL
        return "failing" if is_failing else str(self.level)


# -- journal reserve -------------------------------------------------------------------------------
#
# Disk space reserved for the consensus journal, so that a full disk does not stop votes.
#
# Without a reserve, records use the last bytes of the disk, and a leader cannot even commit the
# transfer of its leadership. The space is allocated after the end of the journal, and is not part
# of the file.


logger = logging.getLogger(__name__)

# A command of a partition's group needs about 200 bytes: enough for thousands of them.
KEPT_BYTES: Final = 4 * limits.MIB
AGAIN_SECONDS: Final = 10.0  # seconds until the next attempt, after there was not enough space


class JournalReserve:
    """Call ``poll`` regularly: while the reserve is large enough, it costs one comparison."""

    def __init__(
        self,
        reserve: Callable[[int], None],
        *,
        size: Callable[[], int],
        worker: Workers,
        now: Callable[[], float],
    ) -> None:
        """``reserve``: see ``Store.reserve_for_journal``. ``size``: of the journal, in bytes.

        ``worker``: the journal's own worker, so that its file is not replaced during the call.
        """
        self._reserve = reserve
        self._size = size
        self._worker = worker
        self._now = now
        self._kept_at: int | None = None  # size of the file, in bytes, when the space was reserved
        self._not_before = float("-inf")
        self._is_out = False

    def poll(self) -> None:
        """Reserve space again, if half of it is used or the file was replaced."""
        size = self._size()
        kept_at = self._kept_at
        if kept_at is not None and kept_at <= size < kept_at + KEPT_BYTES // 2:
            return
        if self._is_out or self._now() < self._not_before:
            return
        self._is_out = True
        self._not_before = self._now() + AGAIN_SECONDS

        def done(_result: None, error: Exception | None) -> None:
            self._is_out = False
            if error is None:
                self._kept_at = size
                self._not_before = float("-inf")
            else:
                logger.debug("journal reserve not allocated: error=%s", error)

        self._worker.submit(lambda: self._reserve(KEPT_BYTES), done)


# -- disk watch ------------------------------------------------------------------------------------
#
# Detection of a disk that hangs: a sync was requested and does not complete.
#
# A disk that fails returns errors; one that hangs returns nothing, and every wait for it is
# indefinite. Two things can hang, on one disk or on two: the syncs of logs, and those of the
# consensus journal. Other work on the disk (creation of topics, compaction) may take long on a disk
# that works. So while it does, the broker syncs a small file, which is watched like the syncs of
# logs. Other modules react: ``DiskProblem`` for logs, the broker for the journal.


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
            # guard: a suspended process has not waited for its disk
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


# -- disk problems ---------------------------------------------------------------------------------
#
# Disk problems of one log: a full disk or a disk that hangs, and their duration.
#
# The log's host records every refused append; the role manager records a disk that completes no
# sync. Without problems, nothing is recorded and nothing is counted. The role manager decides the
# reaction.


# Seconds. A log without disk space for this time transfers its role to another broker. A disk
# counts as hung after a longer time (``disk_watch``), so nothing is added for it.
FULL_SECONDS: Final = 1.0
# If all disks are full, no broker is better than the last one: each failed transfer multiplies the
# time to the next one by this factor, up to a maximum.
SLOWER: Final = 4.0
FULL_SECONDS_MAX: Final = 60.0
_SLOWER_TIMES_MAX: Final = 3  # after that, the maximum applies


class DiskProblem:
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
        # guard: useless leadership transfers become rarer
        self._futile[leads] += 1
        self._since = None
