"""Making a log durable: tickets for group commit, new segments, what a bad disk means.

The middle part of ``Log``, above ``log_reading``. What is written, and when, is decided above.
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
    """A log that takes no records yet, and can be made durable and closed."""

    def __init__(self, disk: Disk, directory: str, config: TopicConfig, opened: Opened) -> None:
        super().__init__(disk, directory, config, opened)
        self._unsynced: list[Segment] = []
        self._sealed = opened.unindexed  # their index files are to be written by the next ticket
        self._new_names = False
        self._ticket: SyncTask | None = None
        self._failure: StorageFailedError | None = None
        self.on_missing: Callable[[], None] = _ignore  # told when files turned out to be missing

    # -- whether it may be written -----------------------------------------------------------------

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
        """What an error means that a disk operation ended with while ``doing`` (a phrase such as
        "writing x"): no room, damage of this log alone, or a disk that is not to be trusted."""
        failure = storage_error(doing, error) if isinstance(error, OSError) else None
        return failure if isinstance(failure, DiskFullError) else self._failed(doing, error)

    def _write_failed(self, error: OSError) -> DiskFullError | DamagedLogError | StorageFailedError:
        return self.disk_failed(f"writing to {self.directory}", error)

    def _failed(self, doing: str, error: Exception) -> DamagedLogError | StorageFailedError:
        if isinstance(error, OSError) and error.errno in MISSING:
            return self._note_missing(str(error))
        self._failure = StorageFailedError(f"{doing} failed: {error}")
        return self._failure

    # -- damage ------------------------------------------------------------------------------------

    def note_damage(self, reason: str, *, offset: Offset) -> None:
        """Stop serving from ``offset`` on, and take no more writes: a batch there proved bad.

        The next start will look for itself: the index that vouches for those bytes is removed, so
        that they are read, and the durable end is made sure of, so that they are not taken for a
        torn tail. Where the disk refuses even that, only this process knows.
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
        """Note it as damage if the files that are written to were removed or moved away, maybe with
        their directory. Quick.
        """
        if not self._is_writable:
            return
        if not self._checkpoint.is_in_place:
            self._note_missing(self._checkpoint.path)
        elif self._segments and not self._segments[-1].is_in_place():
            self._note_missing(self._segments[-1].path)

    def _note_missing(self, what: str) -> DamagedLogError:
        """Files vanished behind the broker's back: no start would find what they hold."""
        if not self.damage or self.readable_end_offset > self.log_start_offset:
            reason = f"{self.directory} is not where it was, or lacks files: {what}"
            self.note_damage(
                ". ".join(filter(None, (reason, self._checkpoint.advice))),
                offset=self.log_start_offset,
            )
            self.on_missing()
        return DamagedLogError(self.damage)

    def verify(self, start_offset: Offset, *, bytes_max: int) -> Offset:
        """Check stored batches from the one that holds ``start_offset`` on: both sums, and chains.

        Up to ``bytes_max`` bytes, one batch at least; returns where to go on, at last the end of
        what is readable. ``read`` checks none of this: a scrub calls it, now and then, and who
        doubts what it has read. What is bad is noted (``note_damage``), and raised as
        ``DamagedLogError``; what is good before it stays readable. Files that were closed are
        closed again.
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
        """See ``verify``: where it ended, and why it went no further if something is bad."""
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
                        raise CorruptBatchError("it does not follow from the batch before it")
                    offset, chain = header.next_offset, header.chain
        except CorruptBatchError as error:
            return offset, f"{self.directory} is damaged at offset {offset}: {error}"
        except DamagedLogError as error:
            return offset, str(error)
        return offset, unreadable

    # -- segments ----------------------------------------------------------------------------------

    @property
    def _segment_ms(self) -> int:
        """A compacted log must seal what is to be compacted, in time for max.compaction.lag.ms."""
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
        """Start a new active segment at the log end. On ``OSError`` nothing has changed."""
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
        """Let the next syncs save ``offset``, for ``high_watermark`` after a restart. Never lower
        than before; at most the log end."""
        self._high_watermark = max(self._high_watermark, self._bounded(offset))

    def begin_sync(self, *, snapshot: bool = False) -> SyncTask | None:
        """Work that makes all of the log durable; None when there is none or a ticket is out.

        With ``snapshot`` the ticket also saves what makes the next start quick.
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
        """Take back a ticket that has run: what it covers is durable from now on."""
        assert ticket is self._ticket
        self._ticket = None
        self.durable_end_offset = max(self.durable_end_offset, ticket.end_offset)
        self._segments.remember(ticket.end_offset, ticket.end_position)
        self._segments.close_surplus(keep=self._unsynced)

    def failed_sync(self, ticket: SyncTask, error: OSError) -> DamagedLogError | StorageFailedError:
        """Take back a ticket whose ``run`` raised: the log takes no more writes.

        If files of it are missing, it is damaged. If not, the disk has failed: which of the
        unsynced bytes are on the disk is unknown, and syncing again would not tell.
        """
        assert ticket is self._ticket
        self._ticket = None
        return self._failed(f"syncing {self.directory}", error)

    def record_copy(self) -> None:
        """Have the data directory record this copy, durably. Any thread may call. Raises
        ``OSError``.
        """
        self._checkpoint.update(sync=True)

    def sync(self) -> None:
        """Make all of the log durable here and now. Raises ``StorageFailedError``."""
        while (ticket := self.begin_sync()) is not None:
            self._run(ticket)

    def _run(self, ticket: SyncTask) -> None:
        try:
            ticket.run()
        except OSError as error:
            raise self.failed_sync(ticket, error) from error
        self.complete_sync(ticket)

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable, save what makes the next start quick, close the files."""
        try:
            if (ticket := self.begin_sync(snapshot=True)) is not None:
                with suppress(DamagedLogError):  # files are missing: the next start notices that
                    self._run(ticket)
            if self._is_writable:
                self._sync_checkpoint()
        finally:
            self.abandon()

    def _sync_checkpoint(self) -> None:
        """Make the last checkpoint durable, and the data directory's record of it."""
        try:
            self._checkpoint.sync()
        except OSError as error:
            failure = self._write_failed(error)
            if isinstance(failure, StorageFailedError):
                raise failure from error

    def abandon(self) -> None:
        """Let go of the files and write nothing more."""
        for segment in self._segments:
            segment.close()
        self._checkpoint.close()


def _ignore() -> None:
    """Nobody is to be told."""
