"""Compaction of a log: when a pass is due, and how cleaned segments replace the old ones.

A base class of ``Log``, derived from ``log_syncing``. A ticket (``cleaner``) does the work. Any
thread may run it while the log is in use. The log's own thread then replaces the files and the list
of segments together. The result of a ticket is discarded if the log loses records or becomes
corrupt while the ticket runs.

Only sealed segments are compacted whose records are committed, durable and covered by a producer
snapshot. Such records are never truncated, and compaction keeps the producer state that recovery
needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.config.keys import INT64_MAX
from raftlog.disk import NO_ROOM, Disk
from raftlog.errors import DamagedLogError
from raftlog.storage import compaction
from raftlog.storage.compaction import LastPass, SegmentInfo
from raftlog.storage.disk_tasks import DeleteTask
from raftlog.storage.log_syncing import LogSyncing
from raftlog.storage.opening import Opened
from raftlog.storage.segment import Segment
from raftlog.types import Offset, TimestampMs

if TYPE_CHECKING:  # the first compaction imports numpy
    from raftlog.storage.cleaner import CompactionTicket, Pass, Source

# Maximum bytes of segments in one ticket. A ticket needs this much additional disk space.
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


class LogCompacting(LogSyncing):
    """Log with compaction, but without appends."""

    def __init__(self, disk: Disk, directory: str, config: TopicConfig, opened: Opened) -> None:
        super().__init__(disk, directory, config, opened)
        self._compaction_files = opened.compaction_files
        self._compaction_state = opened.compaction_state
        self._has_swaps = False  # the file contains swaps that this process has performed
        self._compaction: CompactionTicket | None = None
        self._pass: Pass | None = None  # started and not complete
        self._drops: list[DeleteTask] = []  # created, may not be done yet

    @property
    def tombstones_removed_below(self) -> Offset:
        """Offset below which tombstones may be missing, while other replicas still have their keys.
        See ``replication.following``."""
        return self._compaction_state.tombstones_removed_below

    # -- planning ----------------------------------------------------------------------------------

    @property
    def compaction(self) -> CompactionStatus:
        state = self._compaction_state
        dirty = sum(self._dirty_bytes(segment, self._clean_end) for segment in self._segments)
        is_under_way = self._compaction is not None or self._pass is not None
        return CompactionStatus(state.clean_end_offset, dirty, is_under_way, state.last)

    def dirty_ratio(
        self,
        *,
        now_ms: TimestampMs,
        high_watermark: Offset,
        tombstones_kept_from: Offset = INT64_MAX,
    ) -> float:
        """Return the ratio of dirty bytes to compactable bytes if a pass is due, else 0.

        Returns 1 for a pass that was started, so that it is continued first. Parameters: see
        ``begin_compaction``. Raises ``DamagedLogError``.
        """
        if not self._is_writable or not self.config.is_compacted or self._may_get_back_more:
            return 0.0
        if self._pass is not None:
            return 1.0
        segments = self._cleanable(now_ms, high_watermark)
        return self._ratio_if_due(segments, now_ms, tombstones_kept_from)

    @property
    def _may_get_back_more(self) -> bool:
        """True if a crash could restore segments that were deleted from the list.

        A pass would not see these segments and would mark the log as clean. A later pass could then
        remove a tombstone while a restored segment still contains records of its key.
        """
        return any(drop.paths and not drop.is_done for drop in self._drops)

    @property
    def _sure_start(self) -> Offset:
        """Durable log start: records below it are permanently deleted. A crash can restore records
        at or above it."""
        return min(self.log_start_offset, self._checkpoint.latest.log_start_offset)

    @property
    def _clean_end(self) -> Offset:
        return max(self._compaction_state.clean_end_offset, self._sure_start)

    def _cleanable(self, now_ms: TimestampMs, high_watermark: Offset) -> list[Segment]:
        """Return the segments that a pass may rewrite, a prefix of the log."""
        bound = min(high_watermark, self.durable_end_offset, self._files.snapshot_offset)
        lag_ms = self.config.min_compaction_lag_ms
        found: list[Segment] = []
        for segment in self._segments[:-1]:
            is_busy = segment in self._unsynced or segment in self._sealed
            if segment.next_offset > bound or is_busy or not segment.size_bytes:
                break
            last = segment.next_offset - 1
            is_dirty = last >= self._clean_end
            if is_dirty and lag_ms and _append_ms(segment, last) > now_ms - lag_ms:
                break
            found.append(segment)
        return found

    def _ratio_if_due(
        self, segments: Sequence[Segment], now_ms: TimestampMs, tombstones_kept_from: Offset
    ) -> float:
        config, clean_end = self.config, self._clean_end
        ratio = compaction.dirty_ratio([self._info(segment) for segment in segments])
        if ratio and ratio >= config.min_cleanable_dirty_ratio:
            return ratio
        if ratio and config.max_compaction_lag_ms < INT64_MAX:
            first = next(s for s in segments if s.next_offset > clean_end)
            oldest_ms = _append_ms(first, max(clean_end, first.base_offset))
            if oldest_ms < now_ms - config.max_compaction_lag_ms:
                return ratio
        is_due = self._compaction_state.has_only_due_tombstones(
            now_ms=now_ms,
            retention_ms=config.delete_retention_ms,
            kept_from=tombstones_kept_from,
        )
        covered = segments[-1].next_offset if segments else 0
        return _RATIO_WHEN_DUE if is_due and covered >= clean_end else 0.0

    def _info(self, segment: Segment) -> SegmentInfo:
        dirty_bytes = self._dirty_bytes(segment, self._clean_end)
        return SegmentInfo(
            segment.base_offset, segment.next_offset, segment.size_bytes, dirty_bytes
        )

    @staticmethod
    def _dirty_bytes(segment: Segment, clean_end: Offset) -> int:
        """Return the dirty bytes of a segment. If the clean part ends inside the segment, the value
        is an estimate from the index."""
        if segment.next_offset <= clean_end:
            return 0
        return segment.size_bytes - _dirty_position(segment, clean_end)

    # -- one ticket --------------------------------------------------------------------------------

    def begin_compaction(
        self,
        *,
        now_ms: TimestampMs,
        high_watermark: Offset,
        chance_seed: int,
        memory_bytes: int,
        tombstones_kept_from: Offset = INT64_MAX,
        ticket_bytes: int = TICKET_BYTES,
    ) -> CompactionTicket | None:
        """Return a ticket that compacts a part of the log; None if no pass is due, if a ticket is
        not returned yet, or if the log is not writable.

        A pass over a large log takes several tickets, to limit the additional disk space. Call the
        method again after each ticket.

        ``now_ms``: current time in ms. ``high_watermark``: records at or above it are not
        compacted. ``chance_seed``: 64 bits that producers must not know. ``memory_bytes``: limit of
        the key map (32 bytes per key; see ``OffsetMap``). ``tombstones_kept_from``: tombstones at
        or above this offset are kept. ``ticket_bytes``: maximum bytes of segments per ticket, but
        at least one group; default 1 GiB.

        Raises ``OSError``, and ``DamagedLogError`` if planning reads a corrupt batch.
        """
        if self._compaction is not None or self._ticket is not None or not self._is_writable:
            return None
        if not self.config.is_compacted:
            self._pass = None
        if not self.config.is_compacted or self._may_get_back_more:
            return None
        if self._pass is None:
            self._pass = self._plan_pass(
                now_ms, high_watermark, chance_seed, memory_bytes, tombstones_kept_from
            )
        if self._pass is not None:
            self._compaction = self._ticket_of(self._pass, ticket_bytes)
        return self._compaction

    def _plan_pass(
        self,
        now_ms: TimestampMs,
        high_watermark: Offset,
        seed: int,
        memory_bytes: int,
        tombstones_kept_from: Offset,
    ) -> Pass | None:
        from raftlog.storage.cleaner import Pass

        segments = self._cleanable(now_ms, high_watermark)
        if not self._ratio_if_due(segments, now_ms, tombstones_kept_from):
            return None
        clean_end = self._clean_end
        due_below = self._compaction_state.tombstones_due_below(
            now_ms=now_ms,
            retention_ms=self.config.delete_retention_ms,
            kept_from=tombstones_kept_from,
        )
        return Pass(
            began_ms=now_ms,
            seed=seed,
            memory_bytes=memory_bytes,
            dirty=[_source(s, clean_end) for s in segments if s.next_offset > clean_end],
            clean_end=clean_end,
            limit=segments[-1].next_offset,
            log_start=self._sure_start,
            due_below=due_below,
            remembered=frozenset(self.producers.newest_base_offsets()),
            state=self._compaction_state.removing_tombstones(due_below),
        )

    def _ticket_of(self, work: Pass, ticket_bytes: int) -> CompactionTicket:
        """Return a ticket for the next segments: at least one group, and not more bytes than are
        free on the disk. The disk can still become full during the work."""
        from raftlog.storage.cleaner import BATCH_BYTES_TARGET, CompactionTicket

        end = work.limit if work.end_offset < 0 else work.end_offset
        segments = {
            s.base_offset: s
            for s in self._segments[:-1]
            if s.base_offset < end and s.base_offset >= work.done_offset
        }
        grouped = compaction.groups(
            [self._info(s) for s in segments.values()], segment_bytes=self.config.segment_bytes
        )
        bytes_max = min(ticket_bytes, self._disk.free_bytes(self.directory))
        return CompactionTicket(
            disk=self._disk,
            files=self._compaction_files,
            checkpoint=self._checkpoint,
            work=work,
            groups=[
                [_source(segments[info.base_offset], work.clean_end) for info in group]
                for group in compaction.first_groups(grouped, bytes_max=bytes_max)
            ],
            index_interval_bytes=self.config.index_interval_bytes,
            bytes_target=min(BATCH_BYTES_TARGET, self.config.max_message_bytes),
            settles=self._has_swaps,
        )

    def complete_compaction(self, ticket: CompactionTicket) -> None:
        """Accept a ticket that has run, and replace the segments by the cleaned ones.

        The replacement is durable after the next sync. After a crash before it, the next start
        performs the replacement again. A stale ticket is discarded. Do not call this while a sync
        ticket is not returned. Raises ``StorageFailedError`` and ``DamagedLogError``.
        """
        assert ticket is self._compaction
        assert self._ticket is None, "a ticket is out: take it back first"
        if ticket.is_stale or ticket.error is not None or not self._is_writable:
            self.abandon_compaction(ticket)
            return
        self._take_back(ticket)
        self._compaction_state = ticket.state
        if ticket.work.is_done:
            self._pass = None
        if not ticket.cleaned:
            return
        self._has_swaps = True
        try:
            self._compaction_files.carry_out([swap for swap, _segment in ticket.cleaned])
        except OSError as error:
            raise self._failed(f"swapping segments of {self.directory}", error) from error
        for swap, segment in ticket.cleaned:
            self._segments.swap(swap.replaced, segment)
            self._sealed.append(segment)
        self._new_names = True

    def abandon_compaction(self, ticket: CompactionTicket) -> None:
        """Discard a ticket, whether it has run or failed. The log does not change.

        If the ticket found a corrupt batch, the log is marked as corrupt (``note_damage``). After a
        failed write, the log rejects further writes. Do not call this while ``run`` executes.
        """
        assert ticket is self._compaction
        self._take_back(ticket)
        self._pass = None
        error = ticket.error
        if isinstance(error, DamagedLogError):
            self.note_damage(str(error), offset=ticket.damage_offset)
        elif isinstance(error, OSError) and (error.errno not in NO_ROOM or ticket.is_unsure):
            self._failed(f"compacting {self.directory}", error)
        if ticket.is_planned:
            try:
                self._compaction_files.replace(self._compaction_state)
                ticket.discard()
            except OSError as failure:
                self._failed(f"taking back a compaction of {self.directory}", failure)
        if ticket.lost_indexes:
            names = {base for swap, _segment in ticket.cleaned for base in swap.replaced}
            self._sealed += [s for s in self._segments[:-1] if s.base_offset in names]

    def _take_back(self, ticket: CompactionTicket) -> None:
        self._compaction = None
        if ticket.is_settled:
            self._has_swaps = False

    def note_missing_tombstones(self, below: Offset) -> None:
        """Record that tombstones below ``below`` may be missing. Durable on return.

        For a log that will be copied from a replica that has removed these tombstones. Call it
        after ``restart_at``: there must be no ticket and no unsettled swap. Raises
        ``DiskFullError`` (nothing has changed then), ``DamagedLogError`` and
        ``StorageFailedError``.
        """
        assert self._compaction is None and not self._has_swaps
        state = self._compaction_state.lacking_tombstones(below)
        try:
            self._compaction_files.write(state)
        except OSError as error:
            raise self._write_failed(error) from error
        self._compaction_state = state

    # -- other changes of the log ------------------------------------------------------------------

    def _end_compaction(self) -> None:
        """End the current pass and mark its ticket as stale: the log loses records or is
        corrupt."""
        self._pass = None
        if self._compaction is not None:
            self._compaction.is_stale = True

    def _lower_clean_end(self, end: Offset) -> None:
        """Lower the clean end to ``end``, durably, before the log is truncated there.

        Records that are appended after the truncation are dirty, and no later start may perform
        older swaps. Raises ``OSError``.
        """
        self._end_compaction()
        ticket = self._compaction
        is_planned = ticket is not None and ticket.withdraw()
        state = self._compaction_state.cut(end)
        if self._has_swaps:
            self._disk.sync_dir(self.directory)
        if self._has_swaps or is_planned or state != self._compaction_state:
            self._compaction_files.replace(state)
        self._compaction_state, self._has_swaps = state, False

    def note_damage(self, reason: str, *, offset: Offset) -> None:
        self._end_compaction()
        super().note_damage(reason, offset=offset)

    def close(self) -> None:
        if self._has_swaps and self._is_writable and self._ticket is None:
            try:
                self._disk.sync_dir(self.directory)
                self._compaction_files.write(self._compaction_state)
                self._has_swaps = False
            except OSError as error:
                if error.errno not in NO_ROOM:  # if the disk is full, the next start does it
                    self._failed(f"closing {self.directory}", error)
        super().close()

    def abandon(self) -> None:
        self._end_compaction()
        super().abandon()


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


def _source(segment: Segment, clean_end: Offset) -> Source:
    from raftlog.storage.cleaner import Source

    return Source(
        segment.base_offset,
        segment.next_offset,
        segment.path,
        segment.size_bytes,
        _dirty_position(segment, clean_end),
    )
