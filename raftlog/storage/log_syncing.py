"""Durability of a log: sync tickets for group commit, new segments, disk failures, verification.

A base class of ``Log``, derived from ``log_reading``. Derived classes write the batches.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from raftlog.config import TopicConfig
from raftlog.disk import MISSING, Disk
from raftlog.errors import (
    CorruptBatchError,
    DamagedLogError,
    DiskFullError,
    StorageFailedError,
)
from raftlog.record import check, split, verify_chain
from raftlog.storage.disk_tasks import SyncTask
from raftlog.storage.faults import storage_error
from raftlog.storage.log_reading import LogReading
from raftlog.storage.opening import Opened
from raftlog.storage.segment import Segment
from raftlog.types import Offset, TimestampMs


class LogSyncing(LogReading):
    """Log with syncs, segment rolls and ``close``, but without appends."""

    def __init__(self, disk: Disk, directory: str, config: TopicConfig, opened: Opened) -> None:
        super().__init__(disk, directory, config, opened)
        self._unsynced: list[Segment] = []
        self._sealed = opened.unindexed  # the next ticket writes their index files
        self._new_names = False
        self._ticket: SyncTask | None = None
        self._failure: StorageFailedError | None = None
        self.on_missing: Callable[[], None] = _ignore  # called when files are missing

    # -- failures ----------------------------------------------------------------------------------

    @property
    def is_all_durable(self) -> bool:
        return self._failure is None and self.durable_end_offset == self.log_end_offset

    @property
    def _is_writable(self) -> bool:
        return self._failure is None and not self.damage

    def _check_writable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.damage:
            raise DamagedLogError(self.damage)

    def disk_failed(
        self, doing: str, error: Exception
    ) -> DiskFullError | DamagedLogError | StorageFailedError:
        """Return the error for a disk operation that failed while ``doing`` (a phrase such as
        "writing x").

        ``DiskFullError`` if disk space or file descriptors ran out, ``DamagedLogError`` if files of
        this log are missing, else ``StorageFailedError``. After the last two, the log rejects
        writes.
        """
        failure = storage_error(doing, error) if isinstance(error, OSError) else None
        return failure if isinstance(failure, DiskFullError) else self._failed(doing, error)

    def _write_failed(self, error: OSError) -> DiskFullError | DamagedLogError | StorageFailedError:
        return self.disk_failed(f"writing to {self.directory}", error)

    def _failed(self, doing: str, error: Exception) -> DamagedLogError | StorageFailedError:
        if isinstance(error, OSError) and error.errno in MISSING:
            return self._note_missing(str(error))
        self._failure = StorageFailedError(f"{doing} failed: {error}")
        return self._failure

    # -- corruption --------------------------------------------------------------------------------

    def note_damage(self, reason: str, *, offset: Offset) -> None:
        """Mark the log as corrupt from ``offset`` on: stop reads there, and reject writes.

        The next start detects the corruption again. For this, the indexes that cover these bytes
        are removed, so that recovery reads the bytes. The durable end offset is synced, so that
        recovery does not treat them as a torn write. If the disk rejects these changes, only this
        process knows of the corruption.
        """
        if self.damage and self.readable_end_offset <= offset:
            return
        self.damage, self._readable_end = reason, self._bounded(offset)
        self.is_torn = False
        with suppress(OSError):
            self._checkpoint.update(sync=True)
            for segment in self._segments:
                if segment.next_offset > offset:
                    segment.remove_index()
            self._disk.sync_dir(self.directory)

    def check_place(self) -> None:
        """Mark the log as corrupt if its active files, or their directory, were removed or moved.

        Fast enough to call often.
        """
        if not self._is_writable:
            return
        if not self._checkpoint.is_in_place:
            self._note_missing(self._checkpoint.path)
        elif self._segments and not self._segments[-1].is_in_place():
            self._note_missing(self._segments[-1].path)

    def _note_missing(self, what: str) -> DamagedLogError:
        """Mark the log as corrupt: files are missing, and a start would not find their records."""
        if not self.damage or self.readable_end_offset > self.log_start_offset:
            reason = f"{self.directory} was moved, or files in it are missing: {what}"
            self.note_damage(
                ". ".join(filter(None, (reason, self._checkpoint.advice))),
                offset=self.log_start_offset,
            )
            self.on_missing()
        return DamagedLogError(self.damage)

    def verify(self, start_offset: Offset, *, bytes_max: int) -> Offset:
        """Verify both checksums and the hash chain of stored batches.

        Starts at the batch that contains ``start_offset``, and checks up to ``bytes_max`` bytes,
        but at least one batch. Returns the offset to continue from; at the end, this is the end of
        the readable records. ``read`` performs none of these checks. The scrubber calls this method
        at intervals, and a leader calls it if a follower received a corrupt batch.

        Raises ``DamagedLogError`` for a corrupt batch and marks the log as corrupt
        (``note_damage``); valid batches before it stay readable. Files that were closed before the
        call are closed again.
        """
        self.check_range(start_offset)
        if start_offset >= self.readable_end_offset:
            return self.readable_end_offset
        with self._segments.leaving_closed():
            offset, reason = self._check_batches(start_offset, bytes_max)
        if not reason:
            return offset
        self.note_damage(reason, offset=offset)
        raise DamagedLogError(reason)

    def _check_batches(self, start_offset: Offset, bytes_max: int) -> tuple[Offset, str]:
        """Implement ``verify``. Returns the end of the valid batches, and the reason if the batch
        there is corrupt, or ""."""
        offset, end, unreadable = start_offset, self.readable_end_offset, ""
        try:
            offset = self._segments.batch_start(start_offset)
            chain = self._chain_below(offset)
            try:
                parts = self.read(start_offset=start_offset, end_offset=end, bytes_max=bytes_max)
            except DamagedLogError as error:
                unreadable = str(error)
                end = self._segments.first_unreadable(offset, bytes_max=bytes_max)
                parts = self.read(start_offset=start_offset, end_offset=end, bytes_max=bytes_max)
            for part in parts:
                for batch in split(part):
                    header = check(batch)
                    follows = chain is None or verify_chain(header, previous_chain=chain)
                    if header.base_offset != offset or not follows:
                        raise CorruptBatchError("it does not follow the previous batch")
                    offset, chain = header.next_offset, header.chain
        except CorruptBatchError as error:
            return offset, f"{self.directory} is corrupt at offset {offset}: {error}"
        except DamagedLogError as error:
            return offset, str(error)
        return offset, unreadable

    # -- segments ----------------------------------------------------------------------------------

    @property
    def _segment_ms(self) -> int:
        """Maximum age of the active segment in ms. A compacted log must seal its segments within
        max.compaction.lag.ms, because only sealed segments are compacted."""
        config = self.config
        return (
            min(config.segment_ms, config.max_compaction_lag_ms)
            if (config.is_compacted)
            else config.segment_ms
        )

    def _must_roll(self, active: Segment, length: int, now_ms: TimestampMs) -> bool:
        if active.size_bytes == 0:
            return False
        age_ms = now_ms - active.summary.first_append_ms
        return active.size_bytes + length > self.config.segment_bytes or age_ms >= self._segment_ms

    def _roll(self) -> Segment:
        """Start a new active segment at the log end. On ``OSError`` the log is unchanged."""
        self._checkpoint.prepare()
        segment = Segment(self._disk, self.directory, self.log_end_offset)
        segment.create()
        self._new_names = True
        segment.follow(self._anchor_of_next)
        if self._segments:
            self._sealed.append(self._segments[-1])
        self._segments.append(segment)
        if self._ticket is None:
            self._segments.close_surplus(keep=self._unsynced)
        return segment

    def _note_unsynced(self, active: Segment) -> None:
        if not self._unsynced or self._unsynced[-1] is not active:
            self._unsynced.append(active)

    # -- syncing -----------------------------------------------------------------------------------

    def note_high_watermark(self, offset: Offset) -> None:
        """Set the high watermark that the next syncs save. ``offset`` is limited to the log end; a
        lower value than before has no effect."""
        self._high_watermark = max(self._high_watermark, self._bounded(offset))

    def begin_sync(self, *, snapshot: bool = False) -> SyncTask | None:
        """Return a ticket that makes the whole log durable; None if there is nothing to do or if
        another ticket is not returned yet.

        ``snapshot``: True also saves indexes and producer state, which make the next start faster.
        """
        if self._ticket is not None or not self._is_writable or not self._segments:
            return None
        active = self._segments[-1]
        is_saved = self._files.snapshot_offset == self.log_end_offset
        keep_index = snapshot and active.indexed_bytes != active.size_bytes
        keep_producers = bool(self._sealed) or (snapshot and not is_saved)
        saved_mark = self._bounded(self._checkpoint.latest.high_watermark)
        keep_mark = snapshot and saved_mark != self.high_watermark
        if not (self._unsynced or self._new_names or keep_index or keep_producers or keep_mark):
            return None
        indexed = [*self._sealed, active] if keep_index else self._sealed
        self._ticket = SyncTask(
            disk=self._disk,
            directory=self.directory,
            data=[segment.file for segment in self._unsynced],
            new_names=self._new_names,
            end_offset=self.log_end_offset,
            end_position=active.size_bytes,
            high_watermark=self.high_watermark,
            checkpoint=self._checkpoint,
            files=self._files,
            indexes=[(segment.index_path, segment.encode_index()) for segment in indexed],
            snapshots=(
                [(self.log_end_offset, self.producers.snapshot())] if keep_producers else []
            ),
        )
        self._unsynced, self._sealed, self._new_names = [], [], False
        return self._ticket

    def complete_sync(self, ticket: SyncTask) -> None:
        """Accept a ticket that has run. The records that it covers are now durable."""
        assert ticket is self._ticket
        self._ticket = None
        self.durable_end_offset = max(self.durable_end_offset, ticket.end_offset)
        self._segments.remember(ticket.end_offset, ticket.end_position)
        self._segments.close_surplus(keep=self._unsynced)

    def failed_sync(self, ticket: SyncTask, error: OSError) -> DamagedLogError | StorageFailedError:
        """Accept a ticket whose ``run`` raised ``error``. The log rejects further writes.

        If files are missing, the log is corrupt (``DamagedLogError``). Otherwise the disk has
        failed (``StorageFailedError``): it is unknown which unsynced bytes are durable, and another
        sync could succeed without writing them.
        """
        assert ticket is self._ticket
        self._ticket = None
        return self._failed(f"syncing {self.directory}", error)

    def record_copy(self) -> None:
        """Record this copy in the data directory, durably. Any thread may call. Raises
        ``OSError``."""
        self._checkpoint.update(sync=True)

    def sync(self) -> None:
        """Make the whole log durable. Blocks. Raises ``StorageFailedError`` and
        ``DamagedLogError``."""
        while (ticket := self.begin_sync()) is not None:
            self._run(ticket)

    def _run(self, ticket: SyncTask) -> None:
        try:
            ticket.run()
        except OSError as error:
            raise self.failed_sync(ticket, error) from error
        self.complete_sync(ticket)

    # -- closing -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Make the log durable, save indexes and producer state, and close the files. Raises
        ``StorageFailedError``."""
        try:
            if (ticket := self.begin_sync(snapshot=True)) is not None:
                with suppress(DamagedLogError):  # files are missing: the next start detects it
                    self._run(ticket)
            if self._is_writable:
                self._sync_checkpoint()
        finally:
            self.abandon()

    def _sync_checkpoint(self) -> None:
        """Make the last checkpoint and the data directory's record of it durable."""
        try:
            self._checkpoint.sync()
        except OSError as error:
            failure = self._write_failed(error)
            if isinstance(failure, StorageFailedError):
                raise failure from error

    def abandon(self) -> None:
        """Close the files without writing."""
        for segment in self._segments:
            segment.close()
        self._checkpoint.close()


def _ignore() -> None:
    """Default of ``on_missing``: do nothing."""
