"""The commit log of one partition on one disk: append, read, sync, cut, drop.

One owner thread; only a ticket's ``run`` may be elsewhere (``tickets``). No replication roles, no
sockets: who may append and what is committed is decided above. Time is an argument.

    log start ≤ high watermark ≤ durable end ≤ log end           (flush.policy=fsync)

Appended bytes are in the page cache at once and durable after the next ticket. The log end moves at
the append; acknowledgements wait for the durable end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raftlog.config import TopicConfig
from raftlog.disk import NO_ROOM, Disk
from raftlog.errors import (
    DamagedLogError,
    DiskFullError,
    OffsetOutOfRangeError,
    StorageFailedError,
)
from raftlog.record import (
    HEADER_BYTES,
    LEADER_BYTES,
    BatchHeader,
    parse_header,
    stamp,
)
from raftlog.storage import admission, retention
from raftlog.storage.faults import storage_error
from raftlog.storage.opening import Opened, open_log, rebuild_producers
from raftlog.storage.retention import SegmentInfo
from raftlog.storage.segment import Segment
from raftlog.storage.segment_list import SegmentList
from raftlog.storage.tickets import DropTicket, SyncTicket
from raftlog.types import Buffer, LeaderEpoch, Offset, OffsetAndTimestamp, TimestampMs


class Appended(NamedTuple):
    """Where a batch is. A ``duplicate`` was there before; nothing was written."""

    base_offset: Offset
    last_offset: Offset
    append_timestamp_ms: TimestampMs
    duplicate: bool = False


class Log:
    """One partition's log. See ``open`` for how it starts and what it then guarantees."""

    def __init__(self, disk: Disk, directory: str, config: TopicConfig, opened: Opened) -> None:
        self.directory = directory
        self.config = config
        self.damage = opened.damage  # what is bad below the durable end; empty when nothing is
        self.notes: Sequence[str] = opened.notes  # what recovery did, for the operator's log
        self.epochs = opened.epochs
        self.producers = opened.producers
        self.log_start_offset: Offset = opened.log_start_offset
        self.log_end_offset: Offset = opened.log_end_offset
        self.durable_end_offset: Offset = opened.log_end_offset
        # Readers stop here: at damage, or at the log end.
        self._readable_end = opened.readable_end_offset if opened.damage else None
        self._disk = disk
        self._files = opened.files
        self._checkpoint = opened.checkpoint
        self._segments = SegmentList(opened.segments)
        self._unsynced: list[Segment] = []
        self._sealed = opened.unindexed  # their index files are to be written by the next ticket
        self._new_names = False
        self._ticket: SyncTicket | None = None
        self._failure: StorageFailedError | None = None

    @classmethod
    def open(cls, disk: Disk, directory: str, config: TopicConfig) -> Log:
        """Open (or start) the log in ``directory``, recovering from whatever ended it last.

        A torn tail is cut (``notes`` say so); damage below the durable point leaves the log
        readable up to it and closed to appends (``damage``). What is served after this is durable.
        Raises ``OSError``.
        """
        return cls(disk, directory, config, open_log(disk, directory, config))

    # -- what is there -----------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The newest epoch that the log has seen, or -1."""
        return self.epochs.latest

    @property
    def chain(self) -> int:
        """The chain value of the last batch; 0 for a log that never had one."""
        return self._segments[-1].summary.chain if self._segments else 0

    @property
    def acknowledged_end_offset(self) -> Offset:
        """What may be acknowledged: synced, or only written with ``flush.policy=os``."""
        return self.log_end_offset if self.config.flush_policy == "os" else self.durable_end_offset

    @property
    def is_failed(self) -> bool:
        return self._failure is not None

    @property
    def _is_writable(self) -> bool:
        return self._failure is None and not self.damage

    # -- appending ---------------------------------------------------------------------------------

    def append(
        self, batch: Buffer, header: BatchHeader, *, leader_epoch: LeaderEpoch, now_ms: TimestampMs
    ) -> Appended:
        """Append a validated batch as the leader: give it offsets, epoch, time and chain value.

        ``header`` is ``record.validate(batch)``'s. Raises ``RecordTooLargeError``,
        ``InvalidRequestError`` (timestamp), ``OutOfOrderSequenceError``, ``ProducerFencedError``,
        ``DiskFullError``, ``DamagedLogError``, ``StorageFailedError``; then nothing was appended.
        """
        self._check_writable()
        admission.check(header, self.config, now_ms=now_ms)
        if header.producer_id >= 0:
            earlier = self.producers.check(header)
            if earlier is not None:
                return Appended(
                    earlier.base_offset,
                    earlier.last_offset,
                    earlier.append_timestamp_ms,
                    duplicate=True,
                )
        base_offset = self.log_end_offset
        try:
            self._begin_epoch(leader_epoch)
            active = self._segment_for_append(header.length, now_ms)
        except OSError as error:
            raise self._write_failed(error) from error
        section, _chain = stamp(
            header,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            append_timestamp_ms=now_ms,
            log_append_time=self.config.message_timestamp_type == "LogAppendTime",
            previous_chain=active.summary.chain,
        )
        body = memoryview(batch)[LEADER_BYTES:]
        stored = parse_header(section + bytes(body[: HEADER_BYTES - LEADER_BYTES]))
        try:
            active.append(
                (section, body), stored, index_interval_bytes=self.config.index_interval_bytes
            )
        except OSError as error:
            self._undo(active, error)
            raise self._write_failed(error) from error
        self._note(stored, active)
        return Appended(base_offset, self.log_end_offset - 1, now_ms)

    def _check_writable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self.damage:
            raise DamagedLogError(self.damage)

    def _begin_epoch(self, leader_epoch: LeaderEpoch) -> None:
        """Note a new epoch, durably, before the first batch that carries it is written."""
        if leader_epoch <= self.epochs.latest:
            assert leader_epoch == self.epochs.latest, "an append with an old leader epoch"
            return
        grown = type(self.epochs)(self.epochs)
        grown.assign(leader_epoch, self.log_end_offset)
        self._files.write_epochs(grown)
        self.epochs = grown

    def _segment_for_append(self, length: int, now_ms: TimestampMs) -> Segment:
        if self._segments:
            active = self._segments[-1]
            if not self._must_roll(active, length, now_ms):
                return active
        return self._roll()

    def _must_roll(self, active: Segment, length: int, now_ms: TimestampMs) -> bool:
        if active.size_bytes == 0:
            return False
        age_ms = now_ms - active.summary.first_append_ms
        return (
            active.size_bytes + length > self.config.segment_bytes
            or age_ms >= self.config.segment_ms
        )

    def _roll(self) -> Segment:
        """Start a new active segment at the log end. On ``OSError`` nothing has changed."""
        self._checkpoint.prepare()
        segment = Segment(self._disk, self.directory, self.log_end_offset)
        segment.create()
        self._new_names = True
        if self._segments:
            segment.follow(self._segments[-1])
            self._sealed.append(self._segments[-1])
        self._segments.append(segment)
        if self._ticket is None:
            self._segments.close_surplus(keep=self._unsynced)
        return segment

    def _note(self, stored: BatchHeader, active: Segment) -> None:
        self.log_end_offset = stored.next_offset
        if stored.producer_id >= 0:
            self.producers.note(stored)
        self._note_unsynced(active)

    def _note_unsynced(self, active: Segment) -> None:
        if not self._unsynced or self._unsynced[-1] is not active:
            self._unsynced.append(active)

    def _undo(self, active: Segment, cause: OSError) -> None:
        """Take back what a failed write left. If that fails, the file's state is unknown.

        The next ticket syncs it: else those bytes could come back once the log has gone on.
        """
        self._note_unsynced(active)
        try:
            active.file.truncate(active.size_bytes)
        except OSError as error:
            raise self._failed(f"cutting a half-written batch off {active.path}", error) from cause

    def _write_failed(self, error: OSError) -> DiskFullError | StorageFailedError:
        failure = storage_error(f"writing to {self.directory}", error)
        if isinstance(failure, StorageFailedError):
            self._failure = failure
        return failure

    def _failed(self, doing: str, error: Exception) -> StorageFailedError:
        self._failure = StorageFailedError(f"{doing} failed: {error}")
        return self._failure

    # -- syncing -----------------------------------------------------------------------------------

    def begin_sync(self, *, snapshot: bool = False) -> SyncTicket | None:
        """Work that makes all of the log durable; None when there is none or a ticket is out.

        With ``snapshot`` the ticket also saves what makes the next start quick.
        """
        if self._ticket is not None or not self._is_writable or not self._segments:
            return None
        active = self._segments[-1]
        is_saved = self._files.snapshot_offset == self.log_end_offset
        keep_index = snapshot and active.indexed_bytes != active.size_bytes
        keep_producers = bool(self._sealed) or (snapshot and not is_saved)
        if not (self._unsynced or self._new_names or keep_index or keep_producers):
            return None
        indexed = [*self._sealed, active] if keep_index else self._sealed
        self._ticket = SyncTicket(
            disk=self._disk,
            directory=self.directory,
            data=[segment.file for segment in self._unsynced],
            new_names=self._new_names,
            end_offset=self.log_end_offset,
            end_position=active.size_bytes,
            checkpoint=self._checkpoint,
            files=self._files,
            indexes=[(segment.index_path, segment.encode_index()) for segment in indexed],
            snapshots=(
                [(self.log_end_offset, self.producers.snapshot())] if keep_producers else []
            ),
        )
        self._unsynced, self._sealed, self._new_names = [], [], False
        return self._ticket

    def complete_sync(self, ticket: SyncTicket) -> None:
        """Take back a ticket that has run: what it covers is durable from now on."""
        assert ticket is self._ticket
        self._ticket = None
        self.durable_end_offset = max(self.durable_end_offset, ticket.end_offset)
        self._segments.remember(ticket.end_offset, ticket.end_position)
        self._segments.close_surplus(keep=self._unsynced)

    def failed_sync(self, ticket: SyncTicket, error: OSError) -> StorageFailedError:
        """Take back a ticket whose ``run`` raised: the log takes no more writes.

        Which of the unsynced bytes are on the disk is unknown, and syncing again would not tell.
        """
        assert ticket is self._ticket
        self._ticket = None
        return self._failed(f"syncing {self.directory}", error)

    def sync(self) -> None:
        """Make all of the log durable here and now. Raises ``StorageFailedError``."""
        while (ticket := self.begin_sync()) is not None:
            self._run(ticket)

    def _run(self, ticket: SyncTicket) -> None:
        try:
            ticket.run()
        except OSError as error:
            raise self.failed_sync(ticket, error) from error
        self.complete_sync(ticket)

    # -- reading -----------------------------------------------------------------------------------

    def read(self, *, start_offset: Offset, end_offset: Offset, bytes_max: int) -> list[bytes]:
        """Whole batches from the one that holds ``start_offset`` on, none at or past
        ``end_offset``.

        At most ``bytes_max`` bytes, but at least one batch where there is one. The first batch may
        begin below ``start_offset``. Raises ``OffsetOutOfRangeError`` and ``DamagedLogError``.
        """
        self.check_range(start_offset)
        if self._readable_end is not None:
            if start_offset >= self._readable_end and start_offset < end_offset:
                raise DamagedLogError(self.damage)
            end_offset = min(end_offset, self._readable_end)
        end_offset = min(end_offset, self.log_end_offset)
        return self._segments.read(
            start_offset=start_offset, end_offset=end_offset, bytes_max=bytes_max
        )

    def check_range(self, offset: Offset) -> None:
        """Raise ``OffsetOutOfRangeError`` unless ``offset`` is between log start and log end."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is outside {self.log_start_offset} to {self.log_end_offset}: "
                "start from `earliest` or `latest`, or from an offset in that range"
            )

    def offset_for_timestamp(
        self, timestamp_ms: TimestampMs, *, end_offset: Offset
    ) -> OffsetAndTimestamp | None:
        """The first record below ``end_offset`` with that timestamp or a later one.

        Raises ``DamagedLogError``, also when the answer may lie in what is damaged.
        """
        for segment in self._segments:
            found = segment.find_timestamp(timestamp_ms, from_offset=self.log_start_offset)
            if found is not None:
                return found if found.offset < end_offset else None
        if self.damage:
            raise DamagedLogError(self.damage)
        return None

    # -- dropping and cutting ----------------------------------------------------------------------

    def apply_retention(self, *, now_ms: TimestampMs, high_watermark: Offset) -> DropTicket | None:
        """Drop what retention.ms and retention.bytes no longer keep; run the ticket, if any."""
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
            retention_ms=self.config.retention_ms,
            retention_bytes=self.config.retention_bytes,
            log_start_offset=self.log_start_offset,
            high_watermark=high_watermark,
        )
        if count == 0:
            return None
        return self.advance_log_start(
            max(self.log_start_offset, self._segments[count - 1].next_offset)
        )

    def advance_log_start(self, offset: Offset) -> DropTicket:
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
        self._unsynced = [s for s in self._unsynced if s not in dropped]
        self._sealed = [s for s in self._sealed if s not in dropped]
        unsaved = dropped and dropped[-1].next_offset > self._files.snapshot_offset
        return DropTicket(
            disk=self._disk,
            directory=self.directory,
            checkpoint=self._checkpoint,
            files=self._files,
            log_start_offset=offset,
            paths=[path for s in dropped for path in (s.index_path, s.path)],
            snapshot=(self.log_end_offset, self.producers.snapshot()) if unsaved else None,
        )

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

    def truncate_to(self, offset: Offset) -> None:
        """Cut the batch that holds ``offset`` and all after it, durably, before this returns.

        Only for a replica whose tail its leader does not have. The log start goes back where it
        lay inside that batch. Raises ``DamagedLogError`` and ``StorageFailedError``.
        """
        assert self._ticket is None, "a ticket is out: take it back first"
        assert self.log_start_offset <= offset <= self.log_end_offset
        self._check_writable()
        if offset == self.log_end_offset:
            return
        self.sync()
        try:
            end = self._segments.batch_start(offset)
            self._cut_producers(end)
            self._truncate(end)
        except (OSError, DamagedLogError) as error:
            raise self._failed(f"truncating {self.directory}", error) from error

    def _cut_producers(self, end: Offset) -> None:
        """Save them as of ``end``: later snapshots go, and dropped segments cannot be asked."""
        rebuilt = rebuild_producers(self._files, self._segments, end)
        self.producers.cut(end, rebuilt)
        self._files.try_write_snapshot(end, self.producers.snapshot())

    def _truncate(self, end: Offset) -> None:
        """Cut the log at ``end``, where a batch starts."""
        self.log_end_offset = end
        self.log_start_offset = min(self.log_start_offset, end)
        self.durable_end_offset = min(self.durable_end_offset, end)
        # What says that more is durable goes first: bytes missing below that would be damage.
        self._checkpoint.update(
            log_start_offset=self.log_start_offset,
            durable_end_offset=self.durable_end_offset,
            sync=True,
        )
        for segment in self._segments:
            if segment.next_offset > end:
                segment.remove_index()
        self._disk.sync_dir(self.directory)
        while len(self._segments) > 1 and self._segments[-1].base_offset >= end:
            self._segments.pop_last().remove()
        self._disk.sync_dir(self.directory)
        last = self._segments[-1]
        if last.next_offset > end:
            last.truncate(end, index_interval_bytes=self.config.index_interval_bytes)
            if last.size_bytes == 0 and len(self._segments) > 1:
                last.follow(self._segments[-2])
        self._segments.forget_positions()
        left = list(self._segments)
        self._unsynced = [s for s in self._unsynced if s in left]
        self._sealed = [s for s in self._sealed if s in left[:-1]]
        if self.epochs.cut(end):
            self._files.replace_epochs(self.epochs)
        self._files.cut_snapshots(end)

    # -- the rest ----------------------------------------------------------------------------------

    def roll_if_due(self, *, now_ms: TimestampMs) -> bool:
        """Start a new segment when the active one is older than segment.ms."""
        if not self._is_writable or not self._segments:
            return False
        if not self._must_roll(self._segments[-1], 0, now_ms):
            return False
        try:
            self._roll()
        except OSError as error:
            raise self._write_failed(error) from error
        return True

    def close(self) -> None:
        """Make everything durable, save what makes the next start quick, close the files."""
        try:
            if (ticket := self.begin_sync(snapshot=True)) is not None:
                self._run(ticket)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the files and write nothing more."""
        for segment in self._segments:
            segment.close()
        self._checkpoint.close()
