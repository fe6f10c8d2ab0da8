"""Commit log of one partition on one disk: append, read, sync, compact, truncate, delete.

A log has one owner thread. Only ``run`` of a task may execute in another thread (``disk_tasks``,
``cleaner``). No replication roles and no sockets: the caller decides when to append and what is
committed. Time is an argument.

    log start ≤ high watermark ≤ durable end ≤ log end           (flush.policy=fsync)

Appended bytes are in the page cache immediately and durable after the next sync task. An append
moves the log end; acknowledgements wait for the durable end offset.

A ``DeleteTask`` deletes old records while the log is in use. Truncation and restart are only for
replicas that differ from their leader. They block, and are durable on return. ``compactor`` plans
compaction; the log replaces its segments with the cleaned ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.config.keys import INT64_MAX
from raftlog.disk import MISSING, NO_DESCRIPTOR, NO_ROOM, Disk
from raftlog.errors import (
    ChainMismatchError,
    CorruptBatchError,
    DamagedLogError,
    DiskFullError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    StorageFailedError,
)
from raftlog.limits import VALIDATED_ON_LOOP_BYTES_MAX
from raftlog.record import (
    HEADER_BYTES,
    LEADER_BYTES,
    BatchHeader,
    check_batches,
    find_timestamp,
    parse_header,
    payload,
    split_checked,
    stamp,
    verify_chain,
)
from raftlog.storage.checkpoint import Anchor, Copy
from raftlog.storage.compaction import TICKET_BYTES, Compactable, CompactionStatus, Compactor
from raftlog.storage.disk_tasks import DeleteTask, SyncTask
from raftlog.storage.log_dirs import LogDir
from raftlog.storage.opening import Opened, headers_from, open_log
from raftlog.storage.producer_state import ProducerTable
from raftlog.storage.segment import EpochCache, Kept, Segment, SegmentList, TimestampSearch
from raftlog.storage.state_files import storage_error
from raftlog.types import NO_BASE_OFFSET, NO_TIMESTAMP, Buffer, LeaderEpoch, Offset, TimestampMs

if TYPE_CHECKING:
    from raftlog.storage.compaction import CompactionTask


class Log:
    """Log of one partition. See ``open`` for recovery and guarantees."""

    def __init__(self, disk: Disk, directory: str, config: TopicConfig, opened: Opened) -> None:
        self.directory = directory
        self.log_dir = opened.log_dir
        self.config = config
        self.damage = opened.damage  # description of the corruption; "" if there is none
        # True if the corruption may be a torn write, which was never acknowledged. It may be
        # truncated then.
        self.is_torn = opened.is_torn
        # Why acknowledged records may be missing although no batch is corrupt; "" if none can be.
        self.doubt = ""
        self.notes: Sequence[str] = opened.notes  # actions of recovery, for the log
        self.epochs = opened.epochs
        self.producers = opened.producers
        self.log_start_offset: Offset = opened.log_start_offset
        self.log_end_offset: Offset = opened.log_end_offset
        self.durable_end_offset: Offset = opened.log_end_offset
        self.durable_start_offset: Offset = opened.log_start_offset  # no crash reverts it
        # End of reads in a corrupt log; None: the log end.
        self._readable_end = opened.readable_end_offset if opened.damage else None
        self._disk = disk
        self._files = opened.files
        self._checkpoint = opened.checkpoint
        self._segments = SegmentList(opened.segments)
        # Predecessor of the first remaining batch, if known.
        self._anchor = opened.checkpoint.latest.anchor
        self._high_watermark = opened.checkpoint.latest.high_watermark  # saved with every sync
        self._unsynced: list[Segment] = []
        self._sealed = opened.unindexed  # the next task writes their index files
        self._new_names = self._new_epochs = False  # since the last sync task
        self._task: SyncTask | None = None
        self._drops: list[DeleteTask] = []  # created, may not be done yet
        self._failure: StorageFailedError | None = None
        self._compactor = Compactor(
            disk, opened.checkpoint, opened.compaction_files, opened.compaction_state
        )
        self.on_missing: Callable[[], None] = lambda: None  # called when files are missing
        self._forget_cleaned_markers(self.producers)

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        config: TopicConfig,
        copy: Copy | None = None,
        *,
        cuts_torn: bool = True,
        log_dir: LogDir | None = None,
    ) -> Log:
        """Open or create the log in ``directory``, and recover it from a crash.

        ``log_dir``: the log directory in which it is; if that has failed, no file is accessed.
        ``copy``: the data directory's record of this copy. Files that are missing or older than
        recorded count as corruption, and then nothing is created.

        ``cuts_torn``: True truncates a torn write and reports it in ``notes``. False keeps it as
        corruption with ``is_torn`` set, for a replica whose group decides.

        A corrupt log (``damage``) is readable up to the corruption and rejects appends. In a log
        that is not corrupt, all records are durable after the open. Raises ``OSError``.
        """
        opened = open_log(disk, directory, config, copy, cuts_torn=cuts_torn, log_dir=log_dir)
        return cls(disk, directory, config, opened)

    # -- state -------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Newest epoch that the log has seen, or -1."""
        return self.epochs.latest

    @property
    def last_epoch(self) -> LeaderEpoch:
        """Epoch of the last batch, even if that batch was deleted; -1 if unknown.

        A follower sends it in its fetch requests. It does not send ``leader_epoch``, because an
        epoch without batches does not describe the contents of the log (KAFKA-15510).
        """
        return self._anchor_of_next.leader_epoch

    @property
    def chain(self) -> int:
        """Hash-chain value of the last batch, even if that batch was deleted; 0 if unknown, or if
        the log never had a batch."""
        return self._anchor_of_next.chain

    @property
    def high_watermark(self) -> Offset:
        """Highest offset passed to ``note_high_watermark``, including calls before the last start.

        After a power failure it can be old. It is never above the log end.
        """
        return self._bounded(self._high_watermark)

    @property
    def acknowledged_end_offset(self) -> Offset:
        """End of the records that may be acknowledged: the durable end offset, or the log end with
        ``flush.policy=os``."""
        # guard: only what is durable is acknowledged
        return self.log_end_offset if self.config.flush_policy == "os" else self.durable_end_offset

    @property
    def readable_end_offset(self) -> Offset:
        """End of the readable records: the start of the corruption, or the log end."""
        # guard: reads stop at corruption
        return self.log_end_offset if self._readable_end is None else self._readable_end

    def chain_at(self, offset: Offset) -> int | None:
        """Return the hash-chain value of the last batch that ends at or below ``offset``.

        If two replicas have the same value at an offset, they hold the same log up to it, whether
        or not either of them has compacted it. Returns None if the value is unknown, which is the
        case inside a compacted batch: the batches that ended there were merged.

        ``offset``: between log start and log end. Reads a few headers. Raises
        ``OffsetOutOfRangeError`` and ``DamagedLogError``.
        """
        self.check_range(offset)
        if offset == self.log_end_offset:
            return self._known_chain
        header = self._segments.batch_of(offset)
        if header.is_compacted and header.base_offset < offset:
            return None
        return self._chain_below(header.base_offset)

    def _chain_below(self, base: Offset) -> int | None:
        """Return the hash-chain value before the batch at ``base``; None if unknown."""
        if base > self._segments[0].base_offset:
            return self._segments.batch_before(base).chain
        return self._anchor.chain if self._anchor.is_known_at(base) else None

    @property
    def _anchor_of_next(self) -> Anchor:
        """Predecessor of the next batch."""
        if self._segments:
            return self._segments[-1].anchor
        if self._anchor.offset == self.log_end_offset:
            return self._anchor
        return Anchor(self.log_end_offset)

    @property
    def _known_chain(self) -> int | None:
        """Like ``chain``, but None if unknown."""
        anchor = self._anchor_of_next
        return anchor.chain if anchor.is_known_at(self.log_end_offset) else None

    def _bounded(self, offset: Offset) -> Offset:
        return min(max(offset, self.log_start_offset), self.log_end_offset)

    # -- reading -----------------------------------------------------------------------------------

    def read(self, *, start_offset: Offset, end_offset: Offset, bytes_max: int) -> list[bytes]:
        """Return complete batches from the one that contains ``start_offset``, up to
        ``end_offset`` (exclusive).

        ``bytes_max``: maximum size in bytes; at least one batch is returned if there is one. The
        first batch may start below ``start_offset``. Does not verify checksums, see ``verify``.
        Raises ``OffsetOutOfRangeError`` and ``DamagedLogError``.
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
                f"offset {offset} is outside {self.log_start_offset} to {self.log_end_offset}. "
                "Start from `earliest` or `latest`, or from an offset in this range"
            )

    def offset_for_timestamp(
        self, timestamp_ms: TimestampMs, *, end_offset: Offset, skip_aborted: bool = False
    ) -> TimestampSearch:
        """Return the first record below ``end_offset`` with a timestamp of at least
        ``timestamp_ms``, or None. ``skip_aborted``: pass over aborted transactions.

        Yields work for a thread, the decompression of a large batch; ``send`` passes its result.
        Raises ``DamagedLogError``, also if that record may be in the corrupt part of the log.
        """
        from_offset = self.log_start_offset
        while (newer := self._find_newer(timestamp_ms, from_offset)) is not None:
            segment, position, header = newer
            if skip_aborted and self.producers.transactions.has_aborted(header):
                # Only the CRC of the whole batch covers whose it is.
                # guard: a search by time skips no corrupt batch as an aborted one
                segment.check_batch(position, header)
                # guard: a search by time passes over an aborted transaction in steps
                yield None
                from_offset = max(header.next_offset, self.log_start_offset)
                continue
            batch = segment.pread(header.length, position)
            decode = partial(find_timestamp, batch, timestamp_ms, from_offset=from_offset)
            # guard: a search by time decompresses large batches in a thread
            is_large = header.uncompressed_length > VALIDATED_ON_LOOP_BYTES_MAX
            try:
                found = (yield decode) if is_large else decode()
            except CorruptBatchError as error:
                raise segment.damaged(position, error) from error
            if found is not None:
                return found if found.offset < end_offset else None
            from_offset = max(header.next_offset, self.log_start_offset)  # it may have moved
        if self.damage:
            raise DamagedLogError(self.damage)
        return None

    def _find_newer(
        self, timestamp_ms: TimestampMs, from_offset: Offset
    ) -> tuple[Segment, int, BatchHeader] | None:
        for segment in self._segments:
            newer = segment.find_newer(timestamp_ms, from_offset=from_offset)
            if newer is not None:
                return segment, *newer
        return None

    @property
    def newest_timestamp_ms(self) -> TimestampMs:
        """The highest timestamp of the log's records; ``NO_TIMESTAMP`` if there is none."""
        return max(
            (segment.summary.newest_timestamp_ms for segment in self._segments),
            default=NO_TIMESTAMP,
        )

    # -- as the leader -----------------------------------------------------------------------------

    def append(
        self,
        batch: Buffer,
        header: BatchHeader,
        *,
        leader_epoch: LeaderEpoch,
        now_ms: TimestampMs,
        at_offset: Offset = NO_BASE_OFFSET,
    ) -> Appended:
        """Append a validated batch as the leader. Assigns offsets, epoch, time and chain value.

        ``header``: result of ``record.validate(batch)``.
        ``at_offset``: offset of a mirrored batch, which must be the log end. The limits of the
        topic for sizes and timestamps do not apply to it, because its source has applied them.

        If the method raises, nothing was appended. Raises ``RecordTooLargeError``,
        ``InvalidRequestError`` (timestamp), ``OutOfOrderSequenceError`` (also for ``at_offset``),
        ``ProducerFencedError``, ``DiskFullError``, ``DamagedLogError`` and ``StorageFailedError``.
        """
        self._check_writable()
        is_mirrored = at_offset != NO_BASE_OFFSET
        check(header, self.config, now_ms=now_ms, is_mirrored=is_mirrored)
        if header.producer_id >= 0 and not header.is_control:
            # guard: producers are checked
            earlier = self.producers.check(header)
            if earlier is not None:
                return Appended(
                    earlier.base_offset,
                    earlier.last_offset,
                    earlier.append_timestamp_ms,
                    duplicate=True,
                )
            self.producers.check_transaction(header)
        return self._append(batch, header, leader_epoch, now_ms, at_offset)

    def append_marker(
        self, batch: Buffer, *, leader_epoch: LeaderEpoch, now_ms: TimestampMs
    ) -> Appended:
        """Append the control batch of a marker that ``producers`` needs. Raises the errors of
        ``append`` that concern the disk."""
        self._check_writable()
        return self._append(batch, parse_header(batch), leader_epoch, now_ms, NO_BASE_OFFSET)

    def _append(
        self,
        batch: Buffer,
        header: BatchHeader,
        leader_epoch: LeaderEpoch,
        now_ms: TimestampMs,
        at_offset: Offset,
    ) -> Appended:
        """Append a checked batch."""
        base_offset = self.log_end_offset
        is_mirrored = at_offset != NO_BASE_OFFSET
        # guard: a mirrored batch goes to its offset or nowhere
        if is_mirrored and at_offset != base_offset:
            raise not_at_end(at_offset, base_offset)
        try:
            active = self._segment_for_append(header.length, now_ms)
        except OSError as error:
            raise self._write_failed(error) from error
        self._begin_epoch(leader_epoch)
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
        self._write(active, (section, body), stored)
        return Appended(base_offset, self.log_end_offset - 1, now_ms)

    def _begin_epoch(self, leader_epoch: LeaderEpoch) -> None:
        """Add a new epoch, before its first batch is written. The next sync saves it."""
        if leader_epoch <= self.epochs.latest:
            # guard: old leader may not append
            assert leader_epoch == self.epochs.latest, "an append with an old leader epoch"
            return
        self.epochs.assign(leader_epoch, self.log_end_offset)
        # guard: a sync saves the leader's new epoch
        self._new_epochs = True

    # -- as a follower -----------------------------------------------------------------------------

    def append_replicated(self, batches: Buffer) -> ReplicatedAppend:
        """Append ``batches`` (one or more, adjacent) exactly as the leader has stored them.

        All batches are checked before the first write: both CRCs, the hash chain, offsets without
        gaps from the log end on, and epochs that do not decrease. Producer state is updated but not
        checked, because the leader has checked it. One write per segment; no work per record.

        If the log has no batch and starts inside the leader's first batch (whose older records
        were deleted), the log start moves back to the base offset of that batch.

        Raises ``CorruptBatchError``, or ``ChainMismatchError`` if the log differs from the leader's
        log below these batches. Nothing was written then. Raises ``DamagedLogError``,
        ``DiskFullError`` and ``StorageFailedError``; some segments may have been written then, so
        continue fetching from ``log_end_offset``.
        """
        self._check_writable()
        headers = check_batches(batches)
        if self._starts_inside(headers[0]):
            check_replicated(headers, self.directory, headers[0].base_offset)
            self.restart_at(headers[0].base_offset)
        else:
            chain = self._known_chain
            epoch = self.last_epoch if chain is not None else -1
            check_replicated(headers, self.directory, self.log_end_offset, chain, epoch)
        view = memoryview(batches)
        first = 0
        while first < len(headers):
            first, view = self._append_run(headers, first, view)
        return ReplicatedAppend(len(headers), self.log_end_offset)

    def _starts_inside(self, header: BatchHeader) -> bool:
        begins_anew = self._known_chain is None
        return begins_anew and header.base_offset < self.log_end_offset < header.next_offset

    def _append_run(
        self, headers: Sequence[BatchHeader], first: int, view: memoryview
    ) -> tuple[int, memoryview]:
        """Write the batches that go into one segment. Returns the index of the first remaining
        batch, and the remaining bytes."""
        header = headers[first]
        try:
            active = self._segment_for_append(header.length, header.append_timestamp)
        except OSError as error:
            raise self._write_failed(error) from error
        run = headers[first : self._end_of_run(headers, first, active)]
        self._note_epochs(run)
        size = sum(header.length for header in run)
        self._write(active, (view[:size],), *run)
        return first + len(run), view[size:]

    def _end_of_run(self, headers: Sequence[BatchHeader], first: int, active: Segment) -> int:
        """Return the index of the first batch after ``first`` that goes into another segment."""
        size = active.size_bytes + headers[first].length
        first_append_ms = headers[first].append_timestamp
        if active.size_bytes:
            first_append_ms = active.summary.first_append_ms
        for number in range(first + 1, len(headers)):
            size += headers[number].length
            age_ms = headers[number].append_timestamp - first_append_ms
            if size > self.config.segment_bytes or age_ms >= self.config.segment_age_max_ms:
                return number
        return len(headers)

    def _note_epochs(self, run: Sequence[BatchHeader]) -> None:
        """Add the epochs of batches, before the batches are written. The next sync saves them.

        Epochs at the log end whose batches were never written, or were truncated, are removed. The
        leader's log has no batch of them.
        """
        latest = self.epochs.latest
        if run[0].leader_epoch == latest == run[-1].leader_epoch:
            return
        grown = EpochCache(self.epochs if self._known_chain is not None else ())
        if run[0].leader_epoch < latest:
            grown.cut(self.log_end_offset - 1)
        for header in run:
            if header.leader_epoch > grown.latest:
                grown.assign(header.leader_epoch, header.base_offset)
        # guard: a sync saves the epochs of copied batches
        self.epochs, self._new_epochs = grown, True

    # -- as leader or follower ---------------------------------------------------------------------

    def _segment_for_append(self, length: int, now_ms: TimestampMs) -> Segment:
        if self._segments:
            active = self._segments[-1]
            if not self._must_roll(active, length, now_ms):
                return active
        return self._roll()

    def _write(self, active: Segment, buffers: Sequence[Buffer], *stored: BatchHeader) -> None:
        """Write stamped batches with one write, and update the log's state."""
        try:
            active.append(buffers, *stored, index_interval_bytes=self.config.index_interval_bytes)
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:  # else the file was not opened, nor written
                self._undo(active, error)
            # guard: epochs of batches that were not written are forgotten
            self.epochs.cut(self.log_end_offset)  # its first batch was not written
            raise self._write_failed(error) from error
        # guard: durable end moves only with a sync
        self.log_end_offset = stored[-1].next_offset
        for header in stored:
            if header.producer_id >= 0:
                # guard: producers of replicated batches are recorded
                self.producers.note(header)
        self._note_unsynced(active)

    def _undo(self, active: Segment, cause: OSError) -> None:
        """Truncate the bytes of a failed write. If that fails, the file's state is unknown.

        The next task syncs the truncation: a power failure could restore these bytes after later
        appends."""
        # guard: the truncation of a partial write is synced
        self._note_unsynced(active)
        try:
            # guard: a partial write is truncated
            active.file.truncate(active.size_bytes)
        except OSError as error:
            raise self._failed(f"truncating a partial write of {active.path}", error) from cause

    def roll_if_due(self, *, now_ms: TimestampMs) -> bool:
        """Start a new segment if the active one is older than segment.ms. Returns True if it did.

        ``now_ms``: current time in ms. Raises ``DiskFullError``, ``DamagedLogError`` and
        ``StorageFailedError``.
        """
        if not self._is_writable or not self._segments:
            return False
        if not self._must_roll(self._segments[-1], 0, now_ms):
            return False
        try:
            self._roll()
        except OSError as error:
            raise self._write_failed(error) from error
        return True

    # -- segments ----------------------------------------------------------------------------------

    def _must_roll(self, active: Segment, length: int, now_ms: TimestampMs) -> bool:
        if active.size_bytes == 0:
            return False
        age_ms = now_ms - active.summary.first_append_ms
        return (
            active.size_bytes + length > self.config.segment_bytes
            or age_ms >= self.config.segment_age_max_ms
        )

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
        if self._task is None:
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
        # No reader may ask for the last stable offset here, as in a follower.
        self.producers.transactions.commit(self._high_watermark)

    def begin_sync(self, *, snapshot: bool = False) -> SyncTask | None:
        """Return a task that makes the whole log durable; None if there is nothing to do or if
        another task is outstanding.

        ``snapshot``: True also saves indexes and producer state, which make the next start faster.
        """
        if self._task is not None or not self._is_writable or not self._segments:
            return None
        active = self._segments[-1]
        is_saved = self._files.snapshot_offset == self.log_end_offset
        keep_index = snapshot and active.indexed_bytes != active.size_bytes
        keep_producers = bool(self._sealed) or (snapshot and not is_saved)
        saved_mark = self._bounded(self._checkpoint.latest.high_watermark)
        keep_mark = snapshot and saved_mark != self.high_watermark
        is_kept = keep_index or keep_producers or keep_mark
        if not (self._unsynced or self._new_names or self._new_epochs or is_kept):
            return None
        indexed = [*self._sealed, active] if keep_index else self._sealed
        self._task = SyncTask(
            disk=self._disk,
            directory=self.directory,
            data=[segment.file for segment in self._unsynced],
            new_names=self._new_names,
            epochs=EpochCache(self.epochs) if self._new_epochs else None,
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
        self._unsynced, self._sealed, self._new_names, self._new_epochs = [], [], False, False
        return self._task

    def complete_sync(self, task: SyncTask) -> None:
        """Accept a task that has run. The records that it covers are now durable."""
        self._take_back(task)
        # guard: durable end is what the task covers
        self.durable_end_offset = max(self.durable_end_offset, task.end_offset)
        self._segments.remember(task.end_offset, task.end_position)
        self._segments.close_surplus(keep=self._unsynced)

    def failed_sync(self, task: SyncTask, error: OSError) -> DamagedLogError | StorageFailedError:
        """Accept a task whose ``run`` raised ``error``. The log rejects further writes.

        If files are missing, the log is corrupt (``DamagedLogError``). Otherwise the disk has
        failed (``StorageFailedError``): it is unknown which unsynced bytes are durable, and another
        sync could succeed without writing them.
        """
        self._take_back(task)
        # guard: failed fsync is fatal
        return self._failed(f"syncing {self.directory}", error)

    def _take_back(self, task: SyncTask) -> None:
        assert task is self._task
        self._task = None
        if self.damage and not self.is_offline:  # found since the task began
            with suppress(OSError):
                # guard: a sync leaves no index of corrupt bytes
                self._remove_indexes(self.readable_end_offset)

    def record_copy(self) -> None:
        """Record this copy in the data directory, durably. Any thread may call. Raises
        ``OSError``."""
        self._checkpoint.update(sync=True)

    def sync(self) -> None:
        """Make the whole log durable. Blocks. Raises ``StorageFailedError`` and
        ``DamagedLogError``."""
        while (task := self.begin_sync()) is not None:
            self._run(task)

    def _run(self, task: SyncTask) -> None:
        try:
            task.run()
        except OSError as error:
            raise self.failed_sync(task, error) from error
        self.complete_sync(task)

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
        # guard: a corrupt log rejects writes
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
        # guard: missing files are corruption of their log
        if isinstance(error, OSError) and error.errno in MISSING:
            return self._note_missing(str(error))
        # guard: a failed disk takes down its replicas only
        if self.log_dir.is_cause_of(error):
            self.log_dir.fail(f"{doing} failed: {error}")
            return self.go_offline()
        # guard: failed write is fatal
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
        self._compactor.cancel()
        if self.is_offline or (self.damage and self.readable_end_offset <= offset):
            return
        self.damage, self._readable_end = reason, self._bounded(offset)
        self.is_torn = False
        with suppress(OSError):
            self._checkpoint.update(sync=True)
            self._remove_indexes(offset)

    @property
    def is_offline(self) -> bool:
        """Whether its log directory has failed: no file is accessed until the next start."""
        return bool(self.log_dir.failure)

    def go_offline(self) -> DamagedLogError:
        """Mark the log as corrupt, without access to its files. Returns the error to raise."""
        if self.damage != self.log_dir.failure:
            self._compactor.cancel()
            self.damage, self.is_torn = self.log_dir.failure, False
            self._readable_end = self.log_start_offset
            self.on_missing()
        return DamagedLogError(self.damage)

    def check_place(self) -> None:
        """Mark the log as corrupt if its active files, or their directory, were removed or moved,
        or if its log directory has failed. Fast enough to call often."""
        if self.is_offline:
            self.go_offline()
        if not self._is_writable:
            return
        if not self._checkpoint.is_in_place:
            self._note_missing(self._checkpoint.path)
        elif self._segments and not self._segments[-1].is_in_place():
            self._note_missing(self._segments[-1].path)

    def _note_missing(self, what: str) -> DamagedLogError:
        """Mark the log as corrupt: files are missing, and a start would not find their records."""
        with suppress(OSError):  # it cannot be looked at now: its next probe decides
            # guard: a missing log directory is offline
            self.log_dir.check_place()
        if self.is_offline:
            return self.go_offline()
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
        """Return the end of the valid batches, and the reason if the next one is corrupt, or ""."""
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
                for header, _ in split_checked(part):
                    follows = chain is None or verify_chain(header, previous_chain=chain)
                    # guard: a scrub checks chains
                    if header.base_offset != offset or not follows:
                        raise CorruptBatchError("it does not follow the previous batch")
                    offset, chain = header.next_offset, header.chain
        except CorruptBatchError as error:
            return offset, f"{self.directory} is corrupt at offset {offset}: {error}"
        except DamagedLogError as error:
            return offset, str(error)
        return offset, unreadable

    # -- old records -------------------------------------------------------------------------------

    def apply_retention(
        self, *, now_ms: TimestampMs | None, high_watermark: Offset
    ) -> DeleteTask | None:
        """Delete the segments below the log start, and, if cleanup.policy includes ``delete``, the
        segments that exceed retention.ms or retention.bytes.

        Returns a task that the caller must run, or None. ``now_ms``: current time in ms; None if
        the clock is not trusted, and then no segment expires by age. ``high_watermark``: records at
        or above it are kept. Raises ``OSError``.
        """
        if now_ms is not None:
            self.producers.expire(now_ms=now_ms)
        if self._task is not None or not self._is_writable:
            return None
        count = self._expired(now_ms, high_watermark)
        if count == 0:
            return None
        return self.advance_log_start(
            max(self.log_start_offset, self._segments[count - 1].next_offset)
        )

    def interrupted_deletions(self) -> list[DeleteTask]:
        """Return the tasks that were not run, or whose ``run`` has failed: their files are left."""
        return [drop for drop in self._drops if not drop.is_done] if self._is_writable else []

    def expired_bytes(self, *, now_ms: TimestampMs | None, high_watermark: Offset) -> int:
        """Return the bytes that ``apply_retention`` would delete, possibly at a later time."""
        count = self._expired(now_ms, high_watermark)
        return sum(segment.size_bytes for segment in self._segments[:count])

    def _expired(self, now_ms: TimestampMs | None, high_watermark: Offset) -> int:
        """Return the number of the oldest segments that retention deletes."""
        return count_expired(
            self._segments,
            self.config,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
            high_watermark=high_watermark,
        )

    def advance_log_start(self, offset: Offset) -> DeleteTask:
        """Delete the records below ``offset``. Durable after the returned task has run.

        ``offset``: from the log start to the log end. Complete segments are removed by the task,
        or by a later ``apply_retention`` if a sync task is not returned yet. Raises ``OSError``.
        """
        assert self.log_start_offset <= offset <= self.log_end_offset
        # guard: a log start counts when it is durable
        self.log_start_offset = offset
        self.producers.transactions.forget_below(offset)
        self.epochs.advance_start(offset)  # the file keeps them until the next epoch
        dropped: list[Segment] = []
        saved_offset = self._files.snapshot_offset
        if self._task is None and self._is_writable:
            # Segments are removed only if a snapshot contains their producers. It exists, or can be
            # written now, because all records that it describes are durable.
            if self.durable_end_offset == self.log_end_offset:
                saved_offset = offset
                self._roll_if_all_is_deleted()
            # guard: segments wait for a snapshot of their producers
            dropped = self._segments.drop_below(min(offset, saved_offset))
        if dropped:
            self._compactor.cancel()
            self._anchor = dropped[-1].anchor
        self._unsynced = [s for s in self._unsynced if s not in dropped]
        self._sealed = [s for s in self._sealed if s not in dropped]
        unsaved = dropped and dropped[-1].next_offset > self._files.snapshot_offset
        task = DeleteTask(
            disk=self._disk,
            directory=self.directory,
            checkpoint=self._checkpoint,
            files=self._files,
            log_start_offset=offset,
            paths=[path for s in dropped for path in (s.index_path, s.path)],
            snapshot=(self.log_end_offset, self.producers.snapshot()) if unsaved else None,
            anchor=self._anchor if dropped else None,
        )
        self._drops = [*(drop for drop in self._drops if not drop.is_done), task]
        return task

    def start_is_durable(self, task: DeleteTask) -> None:
        """Accept a delete task that has run. Its log start is now durable."""
        start = min(task.log_start_offset, self.log_start_offset)  # the log may be truncated
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
        time leaves the log unchanged or truncated; a power failure can also leave some of the
        removed batches, from the first of them on.

        Call it on the log's own thread while no sync task is outstanding
        (``LogFlusher.between_syncs``). Delete tasks that have not run yet are run here. Raises
        ``DamagedLogError``, ``StorageFailedError``, and ``DiskFullError`` if nothing has changed.
        """
        # guard: no truncation during a sync
        assert self._task is None, "a sync task is outstanding: complete it first"
        assert self.log_start_offset <= offset <= self.log_end_offset
        self._check_writable()
        if offset == self.log_end_offset:
            return
        self._prepare_checkpoint()
        self.sync()
        cut = self._find_cut(offset)
        try:
            self._finish_drops()
            # guard: the clean end is lowered before a truncation
            self._compactor.lower_clean_end(cut.end)
            self._cut_producers(cut)
            self._truncate(cut)
        except (OSError, DamagedLogError) as error:
            raise self._failed(f"truncating {self.directory}", error) from error

    def _find_cut(self, offset: Offset) -> _Cut:
        """Read all that a truncation needs, before anything changes.

        Raises ``DamagedLogError`` and marks the log as corrupt: a corrupt header must not decide
        which batches are removed.
        """
        segment = self._segments.segment_of(offset)
        last = segment.base_offset  # of the batches that were read
        try:
            kept = segment.kept_before(offset)
            end = kept.headers[-1].next_offset if kept.headers else segment.base_offset
            if self._needs_no_replay(segment, kept, end):
                return _Cut(end, kept, None)
            producers = self._files.read_snapshot(log_end_offset=end)
            last = self._files.snapshot_offset
            for header in headers_from(self._segments, last, end):
                last = header.base_offset
                if header.has_producer:
                    producers.note(header)
            # guard: a truncation forgets transactions without their markers
            self._forget_cleaned_markers(producers)
        except DamagedLogError as error:
            # guard: corruption that a truncation finds is recorded
            self.note_damage(str(error), offset=last)
            raise
        return _Cut(end, kept, producers)

    def _needs_no_replay(self, segment: Segment, kept: Kept, end: Offset) -> bool:
        """Return whether the producers are known after a truncation; else they are replayed, which
        takes a second per gigabyte."""
        later = [each for each in self._segments if each.base_offset > segment.base_offset]
        try:
            # guard: no corrupt batch is removed without a replay
            removed = chain(segment.checked(kept.end), *(each.checked() for each in later))
            return self.producers.needs_no_replay(removed, end)
        except DamagedLogError:
            return False

    def _prepare_checkpoint(self) -> None:
        """Allocate the checkpoint file before anything changes. The next steps need no disk
        space."""
        try:
            self._checkpoint.prepare()
        except OSError as error:
            raise self._write_failed(error) from error

    def _finish_drops(self) -> None:
        """Run all pending delete tasks. If one ran later, it would refer to truncated records."""
        for drop in self._drops:
            # guard: deletions end before a truncation
            drop.run()
        self._drops.clear()

    def _cut_producers(self, cut: _Cut) -> None:
        """Reset the producer state to the new end and save it. Later snapshots are removed, and
        deleted segments can no longer be replayed."""
        # guard: producers are truncated
        self.producers.cut(cut.end, cut.producers)
        self._files.try_write_snapshot(cut.end, self.producers.snapshot())

    def _truncate(self, cut: _Cut) -> None:
        """Remove all batches from the new end on."""
        end = cut.end
        # guard: the durable end is lowered before a truncation
        self._lower_ends(end)
        self._remove_indexes(end)
        while len(self._segments) > 1 and self._segments[-1].base_offset >= end:
            self._segments.pop_last().remove()
        # guard: segments are removed durably, the last one first
        self._disk.sync_dir(self.directory)
        last = self._segments[-1]
        if last.next_offset > end:
            last.truncate(cut.kept, index_interval_bytes=self.config.index_interval_bytes)
            if last.size_bytes == 0:
                self._follow_what_is_before(last)
        self._segments.forget_positions()
        left = list(self._segments)
        self._unsynced = [s for s in self._unsynced if s in left]
        self._sealed = [s for s in self._sealed if s in left[:-1]]
        # Also remove an epoch that starts at ``end``: none of its batches is left (as in Kafka).
        # guard: the epoch file is truncated too
        # guard: epochs are truncated with their batches
        if self.epochs.cut(end - 1):
            self._files.write_epochs(self.epochs)
        # guard: snapshots are truncated
        self._files.cut_snapshots(end)

    def _lower_ends(self, end: Offset) -> None:
        """Lower all ends, durably, before the truncation. Otherwise the bytes missing below the
        durable end offset would count as corruption."""
        self.log_end_offset = end
        self.log_start_offset = min(self.log_start_offset, end)
        self.durable_start_offset = min(self.durable_start_offset, end)
        self.durable_end_offset = min(self.durable_end_offset, end)
        self._high_watermark = min(self._high_watermark, end)
        # guard: the durable end is lowered durably
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
        # guard: indexes are removed before their batches
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

        Tasks and errors: see ``truncate_to``.
        """
        assert self._task is None, "a sync task is outstanding: complete it first"
        assert offset >= 0
        self._check_writable()
        self._prepare_checkpoint()
        try:
            self._finish_drops()
            self._compactor.lower_clean_end(0)
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
        self._unsynced, self._sealed, self._new_names, self._new_epochs = [], [], False, False
        self._files.cut_snapshots(-1)
        self.producers = ProducerTable()
        self.epochs = EpochCache()
        self._files.write_epochs(self.epochs)

    def _begin_at(self, offset: Offset) -> None:
        """Move the empty log to ``offset``. The first append creates the first segment."""
        self._anchor = Anchor(offset)
        self.log_start_offset = self.log_end_offset = self.durable_end_offset = offset
        self._high_watermark = offset
        # guard: a restart from an empty log is durable
        self._checkpoint.update(
            log_start_offset=offset,
            high_watermark=offset,
            durable_end_offset=offset,
            anchor=self._anchor,
            sync=True,
        )
        self.durable_start_offset = offset

    # -- compaction --------------------------------------------------------------------------------

    @property
    def compaction(self) -> CompactionStatus:
        return self._compactor.status(self._segments, self._sure_start)

    @property
    def tombstones_removed_below(self) -> Offset:
        """Offset below which tombstones may be missing, while other replicas still have their keys.
        See ``replication.following``."""
        return self._compactor.state.tombstones_removed_below

    @property
    def clean_end_offset(self) -> Offset:
        return self._compactor.state.clean_end_offset

    @property
    def _sure_start(self) -> Offset:
        """Durable log start: records below it are permanently deleted. A crash can restore records
        at or above it."""
        return min(self.log_start_offset, self._checkpoint.latest.log_start_offset)

    @property
    def _may_get_back_more(self) -> bool:
        """True if a crash could restore segments that were deleted from the list.

        A pass would not see these segments and would mark the log as clean. A later pass could then
        remove a tombstone while a restored segment still contains records of its key.
        """
        # guard: no pass before a deletion is durable
        return any(drop.paths and not drop.is_done for drop in self._drops)

    def _compactable(self, high_watermark: Offset) -> Compactable:
        return Compactable(
            directory=self.directory,
            config=self.config,
            sealed=self._segments[:-1],
            candidates=self._cleanable(high_watermark),
            log_start=self._sure_start,
            producers=self.producers,
        )

    def _cleanable(self, high_watermark: Offset) -> list[Segment]:
        """Return the segments that a pass may rewrite, a prefix of the log."""
        # guard: compaction ends at the last stable offset
        stable = self.producers.transactions.last_stable_offset(high_watermark)
        # guard: only committed, durable records in a snapshot are compacted
        bound = min(stable, self.durable_end_offset, self._files.snapshot_offset)
        found: list[Segment] = []
        for segment in self._segments[:-1]:
            # guard: segments that wait for their index are not compacted
            is_busy = segment in self._unsynced or segment in self._sealed
            if segment.next_offset > bound or is_busy or not segment.size_bytes:
                break
            found.append(segment)
        return found

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
        return self._compactor.dirty_ratio(
            self._compactable(high_watermark),
            now_ms=now_ms,
            tombstones_kept_from=tombstones_kept_from,
        )

    def begin_compaction(
        self,
        *,
        now_ms: TimestampMs,
        high_watermark: Offset,
        chance_seed: int,
        memory_bytes: int,
        tombstones_kept_from: Offset = INT64_MAX,
        task_bytes: int = TICKET_BYTES,
    ) -> CompactionTask | None:
        """Return a task that compacts a part of the log; None if no pass is due, if a task is
        not returned yet, or if the log is not writable.

        A pass over a large log takes several tasks, to limit the additional disk space. Call the
        method again after each task.

        ``now_ms``: current time in ms. ``high_watermark``: records at or above it are not
        compacted. ``chance_seed``: 64 bits that producers must not know. ``memory_bytes``: limit of
        the key map (32 bytes per key; see ``OffsetMap``). ``tombstones_kept_from``: tombstones at
        or above this offset are kept. ``task_bytes``: maximum bytes of segments per task, but
        at least one group; default 1 GiB.

        Raises ``OSError``, and ``DamagedLogError`` if planning reads a corrupt batch.
        """
        if self._task is not None or not self._is_writable or self._compactor.is_busy:
            return None
        if not self.config.is_compacted:
            self._compactor.cancel()
        if not self.config.is_compacted or self._may_get_back_more:
            return None
        return self._compactor.begin(
            self._compactable(high_watermark),
            now_ms=now_ms,
            chance_seed=chance_seed,
            memory_bytes=memory_bytes,
            tombstones_kept_from=tombstones_kept_from,
            task_bytes=task_bytes,
        )

    def complete_compaction(self, task: CompactionTask) -> None:
        """Accept a task that has run, and replace the segments by the cleaned ones.

        The replacement is durable after the next sync. After a crash before it, the next start
        performs the replacement again. A stale task is discarded. Do not call this while a sync
        task is not returned. Raises ``StorageFailedError`` and ``DamagedLogError``.
        """
        assert self._task is None, "a sync task is outstanding: complete it first"
        if task.is_stale or task.error is not None or not self._is_writable:
            self.abandon_compaction(task)
            return
        try:
            self._compactor.complete(task)
        except OSError as error:
            raise self._failed(f"swapping segments of {self.directory}", error) from error
        for swap, segment in task.cleaned:
            self._segments.swap(swap.replaced, segment)
            self._sealed.append(segment)
            self._new_names = True
        work = task.work
        # guard: transactions without their markers are forgotten
        self.producers.transactions.keep_aborted(
            lambda each: (
                each.marker_offset >= work.done_offset or work.keeps_marker(each.marker_offset)
            )
        )

    def _forget_cleaned_markers(self, producers: ProducerTable) -> None:
        """Forget the transactions whose markers compaction has removed since the snapshot of
        ``producers``. An open one would hold up readers, and an aborted one would drop the next
        records of its producer, up to its next marker. Nothing of them is left.
        """
        if self.damage:
            return
        # guard: compaction has ended the transactions below its end
        producers.end_below(self.clean_end_offset)
        transactions = producers.transactions
        removed_below = self.tombstones_removed_below  # and markers
        if removed_below and transactions.aborted_count:
            transactions.forget_below(self.log_start_offset)
            # guard: a start forgets transactions without their markers
            transactions.keep_aborted(
                lambda each: (
                    each.marker_offset >= removed_below or self._has_marker(each.marker_offset)
                )
            )

    def _has_marker(self, offset: Offset) -> bool:
        """Whether the marker is still stored there. If not, compaction has written a batch in its
        place. Bytes that cannot be read do not tell: readers, and the scrub, find that corruption.
        """
        try:
            # guard: a corrupt marker is not a removed one
            return not self._segments.batch_of(offset).is_compacted
        except DamagedLogError:
            return True

    def abandon_compaction(self, task: CompactionTask) -> None:
        """Discard a task, whether it has run or failed. The log does not change.

        If the task found a corrupt batch, the log is marked as corrupt (``note_damage``). After a
        failed write, the log rejects further writes. Do not call this while ``run`` executes.
        """
        error = task.error
        if isinstance(error, DamagedLogError):
            # guard: corruption that compaction finds is recorded
            self.note_damage(str(error), offset=task.damage_offset)
        elif isinstance(error, OSError) and (error.errno not in NO_ROOM or task.is_unsure):
            self._failed(f"compacting {self.directory}", error)
        try:
            self._compactor.abandon(task)
        except OSError as failure:
            self._failed(f"discarding a compaction of {self.directory}", failure)
        if task.lost_indexes:
            names = {base for swap, _segment in task.cleaned for base in swap.replaced}
            self._sealed += [s for s in self._segments[:-1] if s.base_offset in names]

    def note_missing_tombstones(self, below: Offset) -> None:
        """Record that tombstones below ``below`` may be missing. Durable on return.

        For a log that will be copied from a replica that has removed these tombstones. Call it
        after ``restart_at``: there must be no task and no unsettled swap. Raises
        ``DiskFullError`` (nothing has changed then), ``DamagedLogError`` and
        ``StorageFailedError``.
        """
        try:
            self._compactor.note_missing_tombstones(below)
        except OSError as error:
            raise self._write_failed(error) from error

    # -- closing -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Make the log durable, save indexes and producer state, and close the files. Raises
        ``StorageFailedError``."""
        if self._is_writable and self._task is None:
            try:
                self._compactor.finish_swaps()
            except OSError as error:
                if error.errno not in NO_ROOM:  # if the disk is full, the next start does it
                    self._failed(f"closing {self.directory}", error)
        try:
            if (task := self.begin_sync(snapshot=True)) is not None:
                with suppress(DamagedLogError):  # files are missing: the next start detects it
                    self._run(task)
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
        self._compactor.cancel()
        for segment in self._segments:
            segment.close()
        self._checkpoint.close()


# -- retention -------------------------------------------------------------------------------------
#
# Retention planning: the number of old segments to delete. Pure functions; ``Log`` deletes.


class SegmentInfo(NamedTuple):
    """Retention's view of a segment. ``newest_age_ms``: time that the age of the newest record is
    computed from."""

    base_offset: Offset
    next_offset: Offset
    size_bytes: int
    newest_age_ms: TimestampMs


def expired(
    segments: Sequence[SegmentInfo],
    *,
    now_ms: TimestampMs | None,
    retention_ms: int,
    retention_bytes: int,
    log_start_offset: Offset,
    high_watermark: Offset,
) -> int:
    """Return the number of the oldest ``segments`` (ascending) to delete.

    A limit of -1 means no limit. With ``now_ms`` None, no segment expires by age. A segment is
    deleted if it is below the log start, if its newest record is older than ``retention_ms``, or if
    the log without it still holds ``retention_bytes``. Only a prefix of the segments is deleted,
    and no record at or above the high watermark.
    """
    excess_bytes = sum(segment.size_bytes for segment in segments) - retention_bytes
    oldest_ms = None if now_ms is None or retention_ms < 0 else now_ms - retention_ms
    count = 0
    for segment in segments:
        below_start = segment.next_offset <= log_start_offset
        too_old = oldest_ms is not None and segment.newest_age_ms < oldest_ms
        too_big = retention_bytes >= 0 and excess_bytes >= segment.size_bytes
        if segment.next_offset > high_watermark or not (below_start or too_old or too_big):
            break
        excess_bytes -= segment.size_bytes
        count += 1
    return count


def count_expired(
    segments: Iterable[Segment],
    config: TopicConfig,
    *,
    now_ms: TimestampMs | None,
    log_start_offset: Offset,
    high_watermark: Offset,
) -> int:
    """Return the number of the oldest segments that the settings of a topic delete: ``expired``."""
    return expired(
        [
            SegmentInfo(s.base_offset, s.next_offset, s.size_bytes, s.summary.newest_age_ms)
            for s in segments
            if s.size_bytes
        ],
        now_ms=now_ms,
        retention_ms=config.retention_ms if config.is_deleted_by_age else -1,
        retention_bytes=config.retention_bytes if config.is_deleted_by_age else -1,
        log_start_offset=log_start_offset,
        high_watermark=high_watermark,
    )


# -- admission -------------------------------------------------------------------------------------
#
# Admission checks for batches of producers and of leaders. Pure functions, no I/O.


def check(
    header: BatchHeader, config: TopicConfig, *, now_ms: TimestampMs, is_mirrored: bool = False
) -> None:
    """Check a batch of a producer. Raises ``RecordTooLargeError``, or ``InvalidRequestError`` if a
    timestamp is too far from the broker's clock or the batch is marked as compacted.

    ``is_mirrored``: another cluster has admitted the records. They may be old, and compaction may
    have joined them in a batch that exceeds max.message.bytes.
    """
    # guard: only a broker writes compacted batches
    if header.is_compacted:
        raise InvalidRequestError(
            "the batch is marked as compacted. Only brokers write compacted batches: clear the "
            "flag and send the records again"
        )
    if is_mirrored:
        return
    if header.sent_bytes > config.max_message_bytes:
        raise RecordTooLargeError(
            f"batch of {header.sent_bytes} bytes is over max.message.bytes="
            f"{config.max_message_bytes}. Send smaller batches or increase the topic setting"
        )
    # Compaction leaves gaps in the offsets. Each remaining record then stores its own offset.
    offsets_bytes = header.record_count * payload.U32_BYTES
    if HEADER_BYTES + header.uncompressed_length + offsets_bytes > limits.BATCH_BYTES_MAX:
        raise RecordTooLargeError(
            f"{header.record_count} records of {header.uncompressed_length} bytes uncompressed, "
            f"plus {payload.U32_BYTES} bytes each, are over {limits.BATCH_BYTES_MAX} bytes. "
            "Send fewer or smaller records in a batch"
        )
    if config.message_timestamp_type == "LogAppendTime" or not header.has_timestamps:
        return
    for distance_ms, limit_ms, side in (
        (header.max_timestamp - now_ms, config.message_timestamp_after_max_ms, "after"),
        (now_ms - header.first_timestamp, config.message_timestamp_before_max_ms, "before"),
    ):
        if distance_ms > limit_ms:
            raise InvalidRequestError(
                f"timestamp is {distance_ms} ms {side} the broker's clock, over "
                f"message.timestamp.{side}.max.ms={limit_ms}. Check the producer's clock"
            )


def not_at_end(at_offset: Offset, log_end_offset: Offset) -> OutOfOrderSequenceError:
    """Return the error of a mirrored batch whose offset is not the end of the log."""
    return OutOfOrderSequenceError(
        f"mirrored batch for offset {at_offset} was rejected, because the log ends at offset "
        f"{log_end_offset}: another producer has written, or records are missing. Stop other "
        "producers of the topic, and restart the mirror"
    )


def check_replicated(
    headers: Sequence[BatchHeader],
    directory: str,
    offset: Offset,
    chain: int | None = None,
    epoch: LeaderEpoch = -1,
) -> None:
    """Check that batches of a leader continue the log in ``directory``.

    ``offset``, ``chain``, ``epoch``: end of that log; hash-chain value and epoch of its last batch.
    ``chain`` is None if it is unknown. Raises ``CorruptBatchError`` for a gap, an epoch that
    decreases or a missing append time, and ``ChainMismatchError``.
    """
    for header in headers:
        # guard: offsets of replicated batches
        if header.base_offset != offset:
            raise CorruptBatchError(
                f"replicated batch has base offset {header.base_offset}, expected {offset}"
            )
        # guard: hash chain of replicated batches
        if chain is not None and not verify_chain(header, previous_chain=chain):
            raise ChainMismatchError(
                f"{directory}: the hash chain of the leader's batch at offset {offset} "
                "does not match the batches of this replica below it"
            )
        # guard: epochs of replicated batches
        if header.leader_epoch < max(epoch, 0) or header.append_timestamp < 0:
            raise CorruptBatchError(
                f"replicated batch at offset {offset} has epoch {header.leader_epoch} and "
                f"append time {header.append_timestamp}, after epoch {epoch}"
            )
        offset, chain, epoch = header.next_offset, header.chain, header.leader_epoch


# -- appended --------------------------------------------------------------------------------------
#
# Results of appends to a log.


class _Cut(NamedTuple):
    """What a truncation leaves: the new end, what remains of its segment, and the producers, None
    if they need no replay."""

    end: Offset
    kept: Kept
    producers: ProducerTable | None


class Appended(NamedTuple):
    """Offsets of an appended batch. ``duplicate``: the batch was already stored; nothing was
    written."""

    base_offset: Offset
    last_offset: Offset
    append_timestamp_ms: TimestampMs
    duplicate: bool = False


class ReplicatedAppend(NamedTuple):
    """Number of appended batches, and the log end after them."""

    batch_count: int
    next_offset: Offset
