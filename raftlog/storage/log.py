"""Commit log of one partition on one disk: append, read, sync, truncate, delete.

A log has one owner thread. Only ``run`` of a ticket may execute in another thread (``disk_tasks``).
No replication roles and no sockets: the caller decides when to append and what is committed. Time
is an argument. This module contains the appends. The base classes are in ``log_reading`` (state and
reads), ``log_syncing`` (durability), ``log_compacting`` (compaction) and ``log_cutting`` (deletion
and truncation), each derived from the one before.

    log start ≤ high watermark ≤ durable end ≤ log end           (flush.policy=fsync)

Appended bytes are in the page cache immediately and durable after the next sync ticket. An append
moves the log end; acknowledgements wait for the durable end offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raftlog.config import TopicConfig
from raftlog.disk import Disk
from raftlog.errors import ChainMismatchError, CorruptBatchError
from raftlog.record import (
    HEADER_BYTES,
    LEADER_BYTES,
    BatchHeader,
    check_batches,
    parse_header,
    stamp,
    verify_chain,
)
from raftlog.storage import admission
from raftlog.storage.copies import Copy
from raftlog.storage.epoch_cache import EpochCache
from raftlog.storage.log_cutting import LogCutting
from raftlog.storage.opening import open_log
from raftlog.storage.segment import Segment
from raftlog.types import Buffer, LeaderEpoch, Offset, TimestampMs


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


class Log(LogCutting):
    """Log of one partition. See ``open`` for recovery and guarantees."""

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        config: TopicConfig,
        copy: Copy | None = None,
        *,
        cuts_torn: bool = True,
    ) -> Log:
        """Open or create the log in ``directory``, and recover it from a crash.

        ``copy``: the data directory's record of this copy. Files that are missing or older than
        recorded count as corruption, and then nothing is created.

        ``cuts_torn``: True truncates a torn write and reports it in ``notes``. False keeps it as
        corruption with ``is_torn`` set, for a replica whose group decides.

        A corrupt log (``damage``) is readable up to the corruption and rejects appends. In a log
        that is not corrupt, all records are durable after the open. Raises ``OSError``.
        """
        opened = open_log(disk, directory, config, copy, cuts_torn=cuts_torn)
        return cls(disk, directory, config, opened)

    # -- as the leader -----------------------------------------------------------------------------

    def append(
        self, batch: Buffer, header: BatchHeader, *, leader_epoch: LeaderEpoch, now_ms: TimestampMs
    ) -> Appended:
        """Append a validated batch as the leader. Assigns offsets, epoch, time and chain value.

        ``header``: result of ``record.validate(batch)``. If the method raises, nothing was
        appended. Raises ``RecordTooLargeError``, ``InvalidRequestError`` (timestamp),
        ``OutOfOrderSequenceError``, ``ProducerFencedError``, ``DiskFullError``, ``DamagedLogError``
        and ``StorageFailedError``.
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
        self._write(active, (section, body), stored)
        return Appended(base_offset, self.log_end_offset - 1, now_ms)

    def _begin_epoch(self, leader_epoch: LeaderEpoch) -> None:
        """Save a new epoch, durably, before its first batch is written."""
        if leader_epoch <= self.epochs.latest:
            assert leader_epoch == self.epochs.latest, "an append with an old leader epoch"
            return
        grown = EpochCache(self.epochs)
        grown.assign(leader_epoch, self.log_end_offset)
        self._files.write_epochs(grown)
        self.epochs = grown

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
            self._check_continues(headers, headers[0].base_offset, None)
            self.restart_at(headers[0].base_offset)
        else:
            self._check_continues(headers, self.log_end_offset, self._known_chain)
        view = memoryview(batches)
        first = 0
        while first < len(headers):
            first, view = self._append_run(headers, first, view)
        return ReplicatedAppend(len(headers), self.log_end_offset)

    def _starts_inside(self, header: BatchHeader) -> bool:
        begins_anew = self._known_chain is None
        return begins_anew and header.base_offset < self.log_end_offset < header.next_offset

    def _check_continues(
        self, headers: Sequence[BatchHeader], offset: Offset, chain: int | None
    ) -> None:
        epoch = self.last_epoch if chain is not None else -1
        for header in headers:
            if header.base_offset != offset:
                raise CorruptBatchError(
                    f"replicated batch has base offset {header.base_offset}, expected {offset}"
                )
            if chain is not None and not verify_chain(header, previous_chain=chain):
                raise ChainMismatchError(
                    f"{self.directory}: the hash chain of the leader's batch at offset {offset} "
                    "does not match the batches of this replica below it"
                )
            if header.leader_epoch < max(epoch, 0) or header.append_timestamp < 0:
                raise CorruptBatchError(
                    f"replicated batch at offset {offset} has epoch {header.leader_epoch} and "
                    f"append time {header.append_timestamp}, after epoch {epoch}"
                )
            offset, chain, epoch = header.next_offset, header.chain, header.leader_epoch

    def _append_run(
        self, headers: Sequence[BatchHeader], first: int, view: memoryview
    ) -> tuple[int, memoryview]:
        """Write the batches that go into one segment. Returns the index of the first remaining
        batch, and the remaining bytes."""
        header = headers[first]
        try:
            active = self._segment_for_append(header.length, header.append_timestamp)
            run = headers[first : self._end_of_run(headers, first, active)]
            self._note_epochs(run)
        except OSError as error:
            raise self._write_failed(error) from error
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
            if size > self.config.segment_bytes or age_ms >= self._segment_ms:
                return number
        return len(headers)

    def _note_epochs(self, run: Sequence[BatchHeader]) -> None:
        """Save the epochs of batches, durably, before the batches are written.

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
        self._files.write_epochs(grown)
        self.epochs = grown

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
            self._undo(active, error)
            self.epochs.cut(self.log_end_offset)  # its first batch was not written
            raise self._write_failed(error) from error
        self.log_end_offset = stored[-1].next_offset
        for header in stored:
            if header.producer_id >= 0:
                self.producers.note(header)
        self._note_unsynced(active)

    def _undo(self, active: Segment, cause: OSError) -> None:
        """Truncate the bytes of a failed write. If that fails, the file's state is unknown.

        The next ticket syncs the truncation. Otherwise a power failure could restore these bytes
        after later appends.
        """
        self._note_unsynced(active)
        try:
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
