"""Compacting a log: when there is something to gain, and how the outcome takes its place.

The middle part of ``Log``, above ``log_syncing``. The work itself is in a ticket (``cleaner``),
which any thread may run while the log goes on; what it has made takes its place on the log's own
thread, the files and the list of segments at once. A log that loses records meanwhile, or meets
damage, has no use for it any more.

Only sealed segments are compacted, and of those what is committed, durable and in a snapshot of the
producers: nothing of it is cut again, and no start needs more of its producers than is kept.
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

if TYPE_CHECKING:  # numpy is loaded by the first compaction
    from raftlog.storage.cleaner import CompactionTicket, Pass, Source

# Of segments in one ticket: as much room is needed beside the log while it is out.
TICKET_BYTES: Final = limits.GIB
# What ``dirty_ratio`` says where few records, or none, are dirty, and a pass is due all the same.
_RATIO_WHEN_DUE: Final = 0.001


@dataclass(frozen=True, slots=True)
class CompactionStatus:
    """For people. ``dirty_bytes``: in batches that were never compacted, the newest included."""

    clean_end_offset: Offset
    dirty_bytes: int
    is_under_way: bool
    last: LastPass | None


class LogCompacting(LogSyncing):
    """A log that takes no records yet, and can be compacted."""

    def __init__(self, disk: Disk, directory: str, config: TopicConfig, opened: Opened) -> None:
        super().__init__(disk, directory, config, opened)
        self._compaction_files = opened.compaction_files
        self._compaction_state = opened.compaction_state
        self._has_swaps = False  # the file has some that this process has carried out
        self._compaction: CompactionTicket | None = None
        self._pass: Pass | None = None  # begun, and not yet through the log
        self._drops: list[DeleteTask] = []  # handed out, perhaps not done yet

    @property
    def tombstones_removed_below(self) -> Offset:
        """Below it, tombstones may be missing whose keys other replicas still have; see
        ``replication.following``."""
        return self._compaction_state.tombstones_removed_below

    # -- what there is to gain ---------------------------------------------------------------------

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
        """The share of dirty bytes in what may be compacted, above 0, if a pass is due; else 0.

        One that was begun comes first, with 1. Parameters: as of ``begin_compaction``. Raises
        ``DamagedLogError``.
        """
        if not self._is_writable or not self.config.is_compacted or self._may_get_back_more:
            return 0.0
        if self._pass is not None:
            return 1.0
        segments = self._cleanable(now_ms, high_watermark)
        return self._ratio_if_due(segments, now_ms, tombstones_kept_from)

    @property
    def _may_get_back_more(self) -> bool:
        """Whether a crash may bring back segments that were dropped.

        A pass that did not see them would say that all is clean. Then a tombstone may go, and what
        it deletes be in one of them.
        """
        return any(drop.paths and not drop.is_done for drop in self._drops)

    @property
    def _sure_start(self) -> Offset:
        """Below it records are gone for good; from there on a crash may bring some back."""
        return min(self.log_start_offset, self._checkpoint.latest.log_start_offset)

    @property
    def _clean_end(self) -> Offset:
        return max(self._compaction_state.clean_end_offset, self._sure_start)

    def _cleanable(self, now_ms: TimestampMs, high_watermark: Offset) -> list[Segment]:
        """The segments that a pass may rewrite, from the first on."""
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
        """About: as the index has it, where the clean part ends inside the segment."""
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
        """Work that compacts some of the log; None when none is due, or something is in the way.

        A pass over a large log takes several tickets, each for at most ``ticket_bytes`` of segments
        (or one), so that not all of the log needs room twice: call again. ``chance_seed`` (64 bits)
        has to be unknown to producers; ``memory_bytes`` bounds the map of keys (32 bytes each; see
        ``OffsetMap``). Tombstones at or above ``tombstones_kept_from`` stay. Not while a sync is
        out. Raises ``OSError``, and ``DamagedLogError`` where even a look at the log meets damage.
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
        """For the segments that come next. One group at least, and no more than there is room for:
        whether that is enough only writing will tell."""
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
        """Take back a ticket that has run: the cleaned segments take their places.

        Durable with the next sync, or else done again by the next start. Nothing happens when the
        log has lost some of those segments meanwhile. Not while a sync is out. Raises
        ``StorageFailedError``.
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
        """Take back a ticket that is of no use, whether it has run or failed: the log is as it was.

        What it has found to be damaged is noted (``note_damage``). A disk that has failed to write
        is not written to again. Not while its ``run`` is under way.
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
        """Note, durably before this returns, that tombstones below that offset may be missing.

        For a log that is about to be copied from a replica that has removed them. Neither a ticket
        nor cleaned segments may be out: call it after ``restart_at``. Raises ``DiskFullError``
        (nothing has changed then) and ``StorageFailedError``.
        """
        assert self._compaction is None and not self._has_swaps
        state = self._compaction_state.lacking_tombstones(below)
        try:
            self._compaction_files.write(state)
        except OSError as error:
            raise self._write_failed(error) from error
        self._compaction_state = state

    # -- what else happens to the log --------------------------------------------------------------

    def _end_compaction(self) -> None:
        """The log loses records, or is damaged: what is under way is of no use any more."""
        self._pass = None
        if self._compaction is not None:
            self._compaction.is_stale = True

    def _lower_clean_end(self, end: Offset) -> None:
        """The log is about to be cut at ``end``. Durably, before it is.

        What comes there will be dirty; and no start may carry out swaps of before the cut. Raises
        ``OSError``.
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
                if error.errno not in NO_ROOM:  # without room, the next start does it
                    self._failed(f"closing {self.directory}", error)
        super().close()

    def abandon(self) -> None:
        self._end_compaction()
        super().abandon()


def _append_ms(segment: Segment, offset: Offset) -> TimestampMs:
    """When the batch that holds ``offset`` was appended. Raises ``DamagedLogError``."""
    was_open = segment.is_open
    try:
        return segment.find(offset)[1].append_timestamp
    finally:
        if not was_open:
            segment.close()


def _dirty_position(segment: Segment, clean_end: Offset) -> int:
    """A batch's start at or before ``clean_end``."""
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
