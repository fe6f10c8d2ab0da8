"""Taking records away from a log: deleting old ones, cutting a tail, beginning anew.

The upper middle part of ``Log``, above ``log_compacting``. Old records go by ``DeleteTask``, while
the log goes on. A tail goes, or everything, only where a replica's leader has other records: that
is done at once, and durable on return. Which records may go is decided above.
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
    """A log that takes no records yet, and can lose those that it has."""

    # -- old records -------------------------------------------------------------------------------

    def apply_retention(
        self, *, now_ms: TimestampMs | None, high_watermark: Offset
    ) -> DeleteTask | None:
        """Drop what retention.ms and retention.bytes no longer keep, if cleanup.policy has them
        apply, and what lies below the log start; run the ticket, if any.

        ``now_ms``: None while the time is not known for sure; then nothing expires by age.
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
        """Delete the records below ``offset`` (at most the log end); durable once the ticket has
        run. Raises ``OSError``.

        Whole segments go at once, or at a later retention: not while a ticket is out.
        """
        assert self.log_start_offset <= offset <= self.log_end_offset
        self.log_start_offset = offset
        self.epochs.advance_start(offset)  # its file keeps the old ones until the next epoch
        dropped: list[Segment] = []
        saved_offset = self._files.snapshot_offset
        if self._ticket is None and self._is_writable:
            # Segments go only when a snapshot keeps their producers: it is there, or it may be
            # written at once, because all that it speaks of is durable.
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
        """The ticket has run."""
        start = min(ticket.log_start_offset, self.log_start_offset)  # the log may have been cut
        self.durable_start_offset = max(self.durable_start_offset, start)

    def _roll_if_all_is_deleted(self) -> None:
        """Then the last segment can go too. The empty one after it carries the log end."""
        active = self._segments[-1] if self._segments else None
        if active and active.size_bytes and active.next_offset <= self.log_start_offset:
            try:
                self._roll()
            except OSError as error:
                if error.errno not in NO_ROOM:  # without room it goes another time
                    self._write_failed(error)
                    raise

    # -- a tail ------------------------------------------------------------------------------------

    def truncate_to(self, offset: Offset) -> None:
        """Cut the batch that holds ``offset`` and all after it, durably, before this returns.

        Only for a replica whose tail its leader does not have, and not below the log start: what is
        wrong from there on takes ``restart_at``. The log start goes back where it lay inside that
        batch. The high watermark goes back too, before anything else does, and so does what says
        how much was durable: a crash at any moment leaves the log as it was, or cut.

        No sync ticket may be out: the caller does this between two syncs, on the log's own thread,
        and waits for the ticket until then (``GroupCommit.between_syncs``). Drop tickets may be
        out: those that have not run yet are run here. Raises ``DamagedLogError``,
        ``StorageFailedError``, and ``DiskFullError`` where nothing could even be begun.
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
        """Have its room before anything changes: all else makes do without."""
        try:
            self._checkpoint.prepare()
        except OSError as error:
            raise self._write_failed(error) from error

    def _finish_drops(self) -> None:
        """A drop that ran later would speak of records that are gone by then."""
        for drop in self._drops:
            drop.run()
        self._drops.clear()

    def _cut_producers(self, end: Offset) -> None:
        """Save them as of ``end``: later snapshots go, and dropped segments cannot be asked."""
        rebuilt = rebuild_producers(self._files, self._segments, end)
        self.producers.cut(end, rebuilt)
        self._files.try_write_snapshot(end, self.producers.snapshot())

    def _truncate(self, end: Offset) -> None:
        """Cut the log at ``end``, where a batch starts."""
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
        # Also an epoch that starts right here: none of its batches is left (as Kafka does it).
        if self.epochs.cut(end - 1):
            self._files.replace_epochs(self.epochs)
        self._files.cut_snapshots(end)

    def _lower_ends(self, end: Offset) -> None:
        """What says that more is durable goes first: bytes missing below that would be damage."""
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
        """The same goes for indexes that reach beyond ``end``."""
        for segment in self._segments:
            if segment.next_offset > end:
                segment.remove_index()
        self._disk.sync_dir(self.directory)

    def _follow_what_is_before(self, last: Segment) -> None:
        if len(self._segments) > 1:
            last.follow(self._segments[-2].anchor)
        elif self._anchor.offset == last.base_offset:
            last.follow(self._anchor)

    # -- everything --------------------------------------------------------------------------------

    def restart_at(self, offset: Offset) -> None:
        """Drop everything and begin anew, empty, at ``offset`` (0 or more), durably.

        Only for a replica that holds nothing its leader still has, or nothing that fits it: it ends
        below the leader's log start, or differs from its first batch on. Epochs and producers go as
        well: the leader's batches bring them back. A crash at any moment leaves a part of what was
        there, from its log start on without gaps, or the new beginning.

        Tickets and errors: as for ``truncate_to``.
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
        """Leave the log empty at its old start, by way of prefixes of itself."""
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
        """The empty log moves to ``offset``. Its first batch will bring its first segment."""
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
