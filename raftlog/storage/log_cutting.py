"""Removal of records from a log: retention, truncation, restart from an empty log.

A base class of ``Log``, derived from ``log_compacting``. A ``DeleteTask`` deletes old records while
the log is in use. Truncation and restart are only for replicas that differ from their leader. They
block, and are durable on return. The caller decides which records to remove.
"""

from __future__ import annotations

from raftlog.disk import NO_ROOM
from raftlog.errors import DamagedLogError
from raftlog.storage import retention
from raftlog.storage.checkpoint import Anchor
from raftlog.storage.disk_tasks import DeleteTask
from raftlog.storage.epoch_cache import EpochCache
from raftlog.storage.log_compacting import LogCompacting
from raftlog.storage.opening import rebuild_producers
from raftlog.storage.producer_state import ProducerTable
from raftlog.storage.retention import SegmentInfo
from raftlog.storage.segment import Segment
from raftlog.types import Offset, TimestampMs


class LogCutting(LogCompacting):
    """Log with deletion and truncation, but without appends."""

    # -- old records -------------------------------------------------------------------------------

    def apply_retention(
        self, *, now_ms: TimestampMs | None, high_watermark: Offset
    ) -> DeleteTask | None:
        """Delete the segments below the log start, and, if cleanup.policy includes ``delete``, the
        segments that exceed retention.ms or retention.bytes.

        Returns a ticket that the caller must run, or None. ``now_ms``: current time in ms; None if
        the clock is not trusted, and then no segment expires by age. ``high_watermark``: records at
        or above it are kept. Raises ``OSError``.
        """
        if now_ms is not None:
            self.producers.expire(now_ms=now_ms)
        if self._ticket is not None or not self._is_writable:
            return None
        count = retention.expired(
            [
                SegmentInfo(s.base_offset, s.next_offset, s.size_bytes, s.summary.newest_age_ms)
                for s in self._segments
                if s.size_bytes
            ],
            now_ms=now_ms,
            retention_ms=self.config.retention_ms if self.config.is_deleted_by_age else -1,
            retention_bytes=self.config.retention_bytes if self.config.is_deleted_by_age else -1,
            log_start_offset=self.log_start_offset,
            high_watermark=high_watermark,
        )
        if count == 0:
            return None
        return self.advance_log_start(
            max(self.log_start_offset, self._segments[count - 1].next_offset)
        )

    def advance_log_start(self, offset: Offset) -> DeleteTask:
        """Delete the records below ``offset``. Durable after the returned ticket has run.

        ``offset``: from the log start to the log end. Complete segments are removed by the ticket,
        or by a later ``apply_retention`` if a sync ticket is not returned yet. Raises ``OSError``.
        """
        assert self.log_start_offset <= offset <= self.log_end_offset
        self.log_start_offset = offset
        self.epochs.advance_start(offset)  # the file keeps them until the next epoch
        dropped: list[Segment] = []
        saved_offset = self._files.snapshot_offset
        if self._ticket is None and self._is_writable:
            # Segments are removed only if a snapshot contains their producers. It exists, or can be
            # written now, because all records that it describes are durable.
            if self.durable_end_offset == self.log_end_offset:
                saved_offset = offset
                self._roll_if_all_is_deleted()
            dropped = self._segments.drop_below(min(offset, saved_offset))
        if dropped:
            self._end_compaction()
            self._anchor = dropped[-1].anchor
        self._unsynced = [s for s in self._unsynced if s not in dropped]
        self._sealed = [s for s in self._sealed if s not in dropped]
        unsaved = dropped and dropped[-1].next_offset > self._files.snapshot_offset
        ticket = DeleteTask(
            disk=self._disk,
            directory=self.directory,
            checkpoint=self._checkpoint,
            files=self._files,
            log_start_offset=offset,
            paths=[path for s in dropped for path in (s.index_path, s.path)],
            snapshot=(self.log_end_offset, self.producers.snapshot()) if unsaved else None,
            anchor=self._anchor if dropped else None,
        )
        self._drops = [*(drop for drop in self._drops if not drop.is_done), ticket]
        return ticket

    def start_is_durable(self, ticket: DeleteTask) -> None:
        """Accept a delete ticket that has run. Its log start is now durable."""
        start = min(ticket.log_start_offset, self.log_start_offset)  # the log may have been cut
        self.durable_start_offset = max(self.durable_start_offset, start)

    def _roll_if_all_is_deleted(self) -> None:
        """Start a new segment if all records are deleted, so that the last segment can be removed
        too. The name of the new, empty segment stores the log end."""
        active = self._segments[-1] if self._segments else None
        if active and active.size_bytes and active.next_offset <= self.log_start_offset:
            try:
                self._roll()
            except OSError as error:
                if error.errno not in NO_ROOM:  # disk full: a later deletion removes it
                    self._write_failed(error)
                    raise

    # -- truncation --------------------------------------------------------------------------------

    def truncate_to(self, offset: Offset) -> None:
        """Truncate the log: remove the batch that contains ``offset`` and all later batches.

        Durable on return. Only for a replica whose last batches its leader does not have.
        ``offset``: from the log start to the log end; a replica that differs below the log start
        uses ``restart_at``. If the log start is inside the removed batch, it moves to the start of
        that batch. The high watermark and the durable end offset are lowered first. A crash at any
        time leaves the log unchanged or truncated.

        Call it on the log's own thread while no sync ticket is out
        (``GroupCommit.between_syncs``). Delete tickets that have not run yet are run here. Raises
        ``DamagedLogError``, ``StorageFailedError``, and ``DiskFullError`` if nothing has changed.
        """
        assert self._ticket is None, "a ticket is out: take it back first"
        assert self.log_start_offset <= offset <= self.log_end_offset
        self._check_writable()
        if offset == self.log_end_offset:
            return
        self._prepare_checkpoint()
        self.sync()
        try:
            self._finish_drops()
            end = self._segments.batch_start(offset)
            self._lower_clean_end(end)
            self._cut_producers(end)
            self._truncate(end)
        except (OSError, DamagedLogError) as error:
            raise self._failed(f"truncating {self.directory}", error) from error

    def _prepare_checkpoint(self) -> None:
        """Allocate the checkpoint file before anything changes. The next steps need no disk
        space."""
        try:
            self._checkpoint.prepare()
        except OSError as error:
            raise self._write_failed(error) from error

    def _finish_drops(self) -> None:
        """Run all pending delete tickets. If one ran later, it would refer to truncated records."""
        for drop in self._drops:
            drop.run()
        self._drops.clear()

    def _cut_producers(self, end: Offset) -> None:
        """Reset the producer state to ``end`` and save it. Later snapshots are removed, and deleted
        segments can no longer be replayed."""
        rebuilt = rebuild_producers(self._files, self._segments, end)
        self.producers.cut(end, rebuilt)
        self._files.try_write_snapshot(end, self.producers.snapshot())

    def _truncate(self, end: Offset) -> None:
        """Truncate the log at ``end``, the start of a batch."""
        self._lower_ends(end)
        self._remove_indexes(end)
        while len(self._segments) > 1 and self._segments[-1].base_offset >= end:
            self._segments.pop_last().remove()
        self._disk.sync_dir(self.directory)
        last = self._segments[-1]
        if last.next_offset > end:
            last.truncate(end, index_interval_bytes=self.config.index_interval_bytes)
            if last.size_bytes == 0:
                self._follow_what_is_before(last)
        self._segments.forget_positions()
        left = list(self._segments)
        self._unsynced = [s for s in self._unsynced if s in left]
        self._sealed = [s for s in self._sealed if s in left[:-1]]
        # Also remove an epoch that starts at ``end``: none of its batches is left (as in Kafka).
        if self.epochs.cut(end - 1):
            self._files.replace_epochs(self.epochs)
        self._files.cut_snapshots(end)

    def _lower_ends(self, end: Offset) -> None:
        """Lower all ends, durably, before the truncation. Otherwise the bytes missing below the
        durable end offset would count as corruption."""
        self.log_end_offset = end
        self.log_start_offset = min(self.log_start_offset, end)
        self.durable_start_offset = min(self.durable_start_offset, end)
        self.durable_end_offset = min(self.durable_end_offset, end)
        self._high_watermark = min(self._high_watermark, end)
        self._checkpoint.update(
            log_start_offset=self.log_start_offset,
            high_watermark=self._high_watermark,
            durable_end_offset=self.durable_end_offset,
            sync=True,
        )

    def _remove_indexes(self, end: Offset) -> None:
        """Remove the indexes that cover records above ``end``, durably. They also prove that these
        records were durable."""
        for segment in self._segments:
            if segment.next_offset > end:
                segment.remove_index()
        self._disk.sync_dir(self.directory)

    def _follow_what_is_before(self, last: Segment) -> None:
        if len(self._segments) > 1:
            last.follow(self._segments[-2].anchor)
        elif self._anchor.offset == last.base_offset:
            last.follow(self._anchor)

    # -- restart from an empty log -----------------------------------------------------------------

    def restart_at(self, offset: Offset) -> None:
        """Remove all records and restart from an empty log at ``offset`` (0 or more), durably.

        Only for a replica that has no batch in common with its leader: it ends below the leader's
        log start, or differs from its first batch on. Epochs and producer state are removed too,
        and the leader's batches restore them. A crash at any time leaves a prefix of the old log
        without gaps, or the new empty log.

        Tickets and errors: see ``truncate_to``.
        """
        assert self._ticket is None, "a ticket is out: take it back first"
        assert offset >= 0
        self._check_writable()
        self._prepare_checkpoint()
        try:
            self._finish_drops()
            self._lower_clean_end(0)
            self._remove_everything()
            self._begin_at(offset)
        except OSError as error:
            raise self._failed(f"restarting {self.directory}", error) from error

    def _remove_everything(self) -> None:
        """Empty the log at its old start. Each intermediate state is a prefix of the log."""
        start = self.log_start_offset
        self._lower_ends(start)
        self._remove_indexes(start)
        while self._segments:
            self._segments.pop_last().remove()
        self._disk.sync_dir(self.directory)
        self._segments.forget_positions()
        self._unsynced, self._sealed, self._new_names = [], [], False
        self._files.cut_snapshots(-1)
        self.producers = ProducerTable()
        self.epochs = EpochCache()
        self._files.replace_epochs(self.epochs)

    def _begin_at(self, offset: Offset) -> None:
        """Move the empty log to ``offset``. The first append creates the first segment."""
        self._anchor = Anchor(offset)
        self.log_start_offset = self.log_end_offset = self.durable_end_offset = offset
        self._high_watermark = offset
        self._checkpoint.update(
            log_start_offset=offset,
            high_watermark=offset,
            durable_end_offset=offset,
            anchor=self._anchor,
            sync=True,
        )
        self.durable_start_offset = offset
