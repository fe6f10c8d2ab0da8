"""Planning of the compaction of one log: when a pass is due, and what each task compacts.

The log owns one ``Compactor`` and calls it on its own thread. A task (``cleaner``) does the work
in any thread while the log is in use. The log then replaces the files and its list of segments
together. The result of a task is discarded if the log loses records or becomes corrupt while the
task runs.

Only sealed segments are compacted whose records are committed, durable and covered by a producer
snapshot. Such records are never truncated, and compaction keeps the producer state that recovery
needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.config.keys import INT64_MAX
from raftlog.disk import Disk
from raftlog.storage import compaction
from raftlog.storage.checkpoint import CheckpointFile
from raftlog.storage.compaction import CompactionState, LastPass, SegmentInfo
from raftlog.storage.compaction_files import CompactionFiles
from raftlog.storage.producer_state import ProducerTable
from raftlog.storage.segment import Segment
from raftlog.types import Offset, TimestampMs

if TYPE_CHECKING:  # the first compaction imports numpy
    from raftlog.storage.cleaner import CompactionTask, Pass, Source

# Maximum bytes of segments in one task. A task needs this much additional disk space.
TICKET_BYTES: Final = limits.GIB
# Value of ``dirty_ratio`` if a pass is due although few or no records are dirty.
_RATIO_WHEN_DUE: Final = 0.001


@dataclass(frozen=True, slots=True)
class CompactionStatus:
    """Compaction status for operators. ``dirty_bytes``: bytes of batches that were never compacted,
    including the active segment."""

    clean_end_offset: Offset
    dirty_bytes: int
    is_under_way: bool
    last: LastPass | None


@dataclass(frozen=True, slots=True)
class Compactable:
    """The parts of a log that a pass is planned from."""

    directory: str
    config: TopicConfig
    sealed: Sequence[Segment]
    candidates: Sequence[Segment]  # first sealed segments: committed, durable, in a snapshot
    log_start: Offset  # durable
    producers: ProducerTable


class Compactor:
    """Compaction state of one log, with the pass and the task in progress."""

    def __init__(
        self,
        disk: Disk,
        checkpoint: CheckpointFile,
        files: CompactionFiles,
        state: CompactionState,
    ) -> None:
        self._disk = disk
        self._checkpoint = checkpoint
        self._files = files
        self._state = state
        self._has_swaps = False  # the file contains swaps that this process has performed
        self._task: CompactionTask | None = None
        self._pass: Pass | None = None  # started and not complete

    @property
    def is_busy(self) -> bool:
        """True while a task is not returned."""
        return self._task is not None

    @property
    def state(self) -> CompactionState:
        return self._state

    def status(self, segments: Iterable[Segment], log_start: Offset) -> CompactionStatus:
        clean_end = self._clean_end(log_start)
        return CompactionStatus(
            self._state.clean_end_offset,
            sum(_dirty_bytes(segment, clean_end) for segment in segments),
            self._task is not None or self._pass is not None,
            self._state.last,
        )

    def _clean_end(self, log_start: Offset) -> Offset:
        return max(self._state.clean_end_offset, log_start)

    # -- planning ----------------------------------------------------------------------------------

    def dirty_ratio(
        self, log: Compactable, *, now_ms: TimestampMs, tombstones_kept_from: Offset
    ) -> float:
        """See ``Log.dirty_ratio``."""
        if self._pass is not None:
            return 1.0
        segments = self._old_enough(log, now_ms)
        return self._ratio_if_due(log, segments, now_ms, tombstones_kept_from)

    def _old_enough(self, log: Compactable, now_ms: TimestampMs) -> list[Segment]:
        """Return the candidates before the first that has dirty records younger than
        min.compaction.lag.ms."""
        lag_ms, clean_end = log.config.min_compaction_lag_ms, self._clean_end(log.log_start)
        found: list[Segment] = []
        for segment in log.candidates:
            last = segment.next_offset - 1
            if last >= clean_end and lag_ms and _append_ms(segment, last) > now_ms - lag_ms:
                break
            found.append(segment)
        return found

    def _ratio_if_due(
        self,
        log: Compactable,
        segments: Sequence[Segment],
        now_ms: TimestampMs,
        tombstones_kept_from: Offset,
    ) -> float:
        config, clean_end = log.config, self._clean_end(log.log_start)
        ratio = compaction.dirty_ratio([_info(segment, clean_end) for segment in segments])
        if ratio and ratio >= config.min_cleanable_dirty_ratio:
            return ratio
        if ratio and config.max_compaction_lag_ms < INT64_MAX:
            first = next(s for s in segments if s.next_offset > clean_end)
            oldest_ms = _append_ms(first, max(clean_end, first.base_offset))
            if oldest_ms < now_ms - config.max_compaction_lag_ms:
                return ratio
        is_due = self._state.has_only_due_tombstones(
            now_ms=now_ms,
            retention_ms=config.delete_retention_ms,
            kept_from=tombstones_kept_from,
        )
        covered = segments[-1].next_offset if segments else 0
        return _RATIO_WHEN_DUE if is_due and covered >= clean_end else 0.0

    # -- one task --------------------------------------------------------------------------------

    def begin(
        self,
        log: Compactable,
        *,
        now_ms: TimestampMs,
        chance_seed: int,
        memory_bytes: int,
        tombstones_kept_from: Offset,
        task_bytes: int,
    ) -> CompactionTask | None:
        """See ``Log.begin_compaction``. Every task is passed to ``complete`` or ``abandon``."""
        assert self._task is None
        if self._pass is None:
            self._pass = self._plan_pass(
                log, now_ms, chance_seed, memory_bytes, tombstones_kept_from
            )
        if self._pass is not None:
            self._task = self._ticket_of(log, self._pass, task_bytes)
        return self._task

    def _plan_pass(
        self,
        log: Compactable,
        now_ms: TimestampMs,
        seed: int,
        memory_bytes: int,
        tombstones_kept_from: Offset,
    ) -> Pass | None:
        from raftlog.storage.cleaner import Pass

        segments = self._old_enough(log, now_ms)
        if not self._ratio_if_due(log, segments, now_ms, tombstones_kept_from):
            return None
        clean_end = self._clean_end(log.log_start)
        due_below = self._state.tombstones_due_below(
            now_ms=now_ms,
            retention_ms=log.config.delete_retention_ms,
            kept_from=tombstones_kept_from,
        )
        return Pass(
            began_ms=now_ms,
            seed=seed,
            memory_bytes=memory_bytes,
            dirty=[_source(s, clean_end) for s in segments if s.next_offset > clean_end],
            clean_end=clean_end,
            limit=segments[-1].next_offset,
            log_start=log.log_start,
            due_below=due_below,
            remembered=frozenset(log.producers.newest_base_offsets()),
            state=self._state.removing_tombstones(due_below),
        )

    def _ticket_of(self, log: Compactable, work: Pass, task_bytes: int) -> CompactionTask:
        """Return a task for the next segments: at least one group, and not more bytes than are
        free on the disk. The disk can still become full during the work."""
        from raftlog.storage.cleaner import BATCH_BYTES_TARGET, CompactionTask

        end = work.limit if work.end_offset < 0 else work.end_offset
        segments = {
            s.base_offset: s
            for s in log.sealed
            if s.base_offset < end and s.base_offset >= work.done_offset
        }
        grouped = compaction.groups(
            [_info(s, work.clean_end) for s in segments.values()],
            segment_bytes=log.config.segment_bytes,
        )
        bytes_max = min(task_bytes, self._disk.free_bytes(log.directory))
        return CompactionTask(
            disk=self._disk,
            files=self._files,
            checkpoint=self._checkpoint,
            work=work,
            groups=[
                [_source(segments[info.base_offset], work.clean_end) for info in group]
                for group in compaction.first_groups(grouped, bytes_max=bytes_max)
            ],
            index_interval_bytes=log.config.index_interval_bytes,
            bytes_target=min(BATCH_BYTES_TARGET, log.config.max_message_bytes),
            settles=self._has_swaps,
        )

    def complete(self, task: CompactionTask) -> None:
        """Accept a task that has run, and replace the files of its segments. Raises
        ``OSError``."""
        self._accept(task)
        self._state = task.state
        if task.work.is_done:
            self._pass = None
        if task.cleaned:
            self._has_swaps = True
            self._files.carry_out([swap for swap, _segment in task.cleaned])

    def abandon(self, task: CompactionTask) -> None:
        """Discard a task and its plan. Raises ``OSError``."""
        self._accept(task)
        self._pass = None
        if task.is_planned:
            self._files.replace(self._state)
            task.discard()

    def _accept(self, task: CompactionTask) -> None:
        assert task is self._task
        self._task = None
        if task.is_settled:
            self._has_swaps = False

    # -- other changes of the log ------------------------------------------------------------------

    def cancel(self) -> None:
        """End the current pass and mark its task as stale: the log loses records or is
        corrupt."""
        self._pass = None
        if self._task is not None:
            self._task.is_stale = True

    def lower_clean_end(self, end: Offset) -> None:
        """Lower the clean end to ``end``, durably, before the log is truncated there.

        Records that are appended after the truncation are dirty, and no later start may perform
        older swaps. Raises ``OSError``.
        """
        self.cancel()
        is_planned = self._task is not None and self._task.withdraw()
        state = self._state.cut(end)
        if self._has_swaps:
            self._disk.sync_dir(self._files.directory)
        if self._has_swaps or is_planned or state != self._state:
            self._files.replace(state)
        self._state, self._has_swaps = state, False

    def finish_swaps(self) -> None:
        """Remove the performed swaps from the file, durably. Raises ``OSError``."""
        if self._has_swaps:
            self._disk.sync_dir(self._files.directory)
            self._files.write(self._state)
            self._has_swaps = False

    def note_missing_tombstones(self, below: Offset) -> None:
        """See ``Log.note_missing_tombstones``. Raises ``OSError``."""
        assert self._task is None and not self._has_swaps
        state = self._state.lacking_tombstones(below)
        self._files.write(state)
        self._state = state


def _append_ms(segment: Segment, offset: Offset) -> TimestampMs:
    """Return the append time of the batch that contains ``offset``. Raises ``DamagedLogError``."""
    was_open = segment.is_open
    try:
        return segment.find(offset)[1].append_timestamp
    finally:
        if not was_open:
            segment.close()


def _dirty_position(segment: Segment, clean_end: Offset) -> int:
    """Return the position of a batch that starts at or before ``clean_end``."""
    return segment.index.position_for_offset(clean_end) if clean_end > segment.base_offset else 0


def _dirty_bytes(segment: Segment, clean_end: Offset) -> int:
    """Return the dirty bytes of a segment. If the clean part ends inside the segment, the value is
    an estimate from the index."""
    if segment.next_offset <= clean_end:
        return 0
    return segment.size_bytes - _dirty_position(segment, clean_end)


def _info(segment: Segment, clean_end: Offset) -> SegmentInfo:
    dirty_bytes = _dirty_bytes(segment, clean_end)
    return SegmentInfo(segment.base_offset, segment.next_offset, segment.size_bytes, dirty_bytes)


def _source(segment: Segment, clean_end: Offset) -> Source:
    from raftlog.storage.cleaner import Source

    return Source(
        segment.base_offset,
        segment.next_offset,
        segment.path,
        segment.size_bytes,
        _dirty_position(segment, clean_end),
    )
