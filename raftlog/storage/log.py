"""The commit log of one partition on one disk: append, read, sync, cut, drop.

One owner thread; only a ticket's ``run`` may be elsewhere (``tickets``). No replication roles, no
sockets: who may append and what is committed is decided above. Time is an argument. Here stands
what makes a log grow; what it holds, how it becomes durable, and how it shrinks by compaction and
by deletion stand in ``log_reading``, ``log_syncing``, ``log_compacting`` and ``log_cutting``, each
built on the one before.

    log start ≤ high watermark ≤ durable end ≤ log end           (flush.policy=fsync)

Appended bytes are in the page cache at once and durable after the next ticket. The log end moves at
the append; acknowledgements wait for the durable end.
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
    """Where a batch is. A ``duplicate`` was there before; nothing was written."""

    base_offset: Offset
    last_offset: Offset
    append_timestamp_ms: TimestampMs
    duplicate: bool = False


class ReplicatedAppend(NamedTuple):
    """How many batches were taken over, and the log end after them."""

    batch_count: int
    next_offset: Offset


class Log(LogCutting):
    """One partition's log. See ``open`` for how it starts and what it then guarantees."""

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
        """Open (or start) the log in ``directory``, recovering from whatever ended it last.

        ``copy``: the data directory's record of it. Files that are missing or older than recorded
        are damage, and then nothing is created.

        A torn tail is cut (``notes`` say so); with ``cuts_torn`` False it is left as damage that
        ``is_torn``, for a replica whose group decides. Damage leaves the log readable up to it and
        closed to appends (``damage``). What is served after this is durable, but in a log that is
        damaged. Raises ``OSError``.
        """
        opened = open_log(disk, directory, config, copy, cuts_torn=cuts_torn)
        return cls(disk, directory, config, opened)

    # -- as the leader -----------------------------------------------------------------------------

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
        self._write(active, (section, body), stored)
        return Appended(base_offset, self.log_end_offset - 1, now_ms)

    def _begin_epoch(self, leader_epoch: LeaderEpoch) -> None:
        """Note a new epoch, durably, before the first batch that carries it is written."""
        if leader_epoch <= self.epochs.latest:
            assert leader_epoch == self.epochs.latest, "an append with an old leader epoch"
            return
        grown = EpochCache(self.epochs)
        grown.assign(leader_epoch, self.log_end_offset)
        self._files.write_epochs(grown)
        self.epochs = grown

    # -- as a follower -----------------------------------------------------------------------------

    def append_replicated(self, batches: Buffer) -> ReplicatedAppend:
        """Append ``batches`` (one or more, back to back) exactly as the leader has stored them.

        Every batch is checked before any is written: both CRCs, its chain value against the batch
        before it, offsets that follow without a gap from the log end, epochs that do not go back.
        Producers are noted and not checked: the leader has done that. One write for each segment
        touched; no work per record.

        Where a log that has no batch yet begins inside the leader's first batch (whose older
        records were deleted), the log start goes back to where that batch begins.

        Raises ``CorruptBatchError``, and ``ChainMismatchError`` when the log holds something else
        than the leader's below these batches: nothing was written. Raises ``DamagedLogError``,
        ``DiskFullError`` and ``StorageFailedError``: of several segments, some may have been
        written, so ask for more from ``log_end_offset`` on.
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
                    f"a replicated batch of offset {header.base_offset} where {offset} comes next"
                )
            if chain is not None and not verify_chain(header, previous_chain=chain):
                raise ChainMismatchError(
                    f"{self.directory}: the leader's batch at offset {offset} does not follow from "
                    "what this replica holds below it"
                )
            if header.leader_epoch < max(epoch, 0) or header.append_timestamp < 0:
                raise CorruptBatchError(
                    f"a replicated batch at offset {offset} has epoch {header.leader_epoch} and "
                    f"append time {header.append_timestamp}, after epoch {epoch}"
                )
            offset, chain, epoch = header.next_offset, header.chain, header.leader_epoch

    def _append_run(
        self, headers: Sequence[BatchHeader], first: int, view: memoryview
    ) -> tuple[int, memoryview]:
        """Write what goes into one segment; the rest: number of its first batch, and its bytes."""
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
        """The number of the first batch after ``first`` that has to go into another segment."""
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
        """Note the epochs of batches that are about to be written, durably.

        Epochs noted at the log's end whose batches were never written (or were cut) give way: the
        leader's log has none of them.
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

    # -- either ------------------------------------------------------------------------------------

    def _segment_for_append(self, length: int, now_ms: TimestampMs) -> Segment:
        if self._segments:
            active = self._segments[-1]
            if not self._must_roll(active, length, now_ms):
                return active
        return self._roll()

    def _write(self, active: Segment, buffers: Sequence[Buffer], *stored: BatchHeader) -> None:
        """Write stamped batches, at once, and note them."""
        try:
            active.append(buffers, *stored, index_interval_bytes=self.config.index_interval_bytes)
        except OSError as error:
            self._undo(active, error)
            self.epochs.cut(self.log_end_offset)  # noted before a batch that was not written
            raise self._write_failed(error) from error
        self.log_end_offset = stored[-1].next_offset
        for header in stored:
            if header.producer_id >= 0:
                self.producers.note(header)
        self._note_unsynced(active)

    def _undo(self, active: Segment, cause: OSError) -> None:
        """Take back what a failed write left. If that fails, the file's state is unknown.

        The next ticket syncs it: else those bytes could come back once the log has gone on.
        """
        self._note_unsynced(active)
        try:
            active.file.truncate(active.size_bytes)
        except OSError as error:
            raise self._failed(f"cutting a half-written batch off {active.path}", error) from cause

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
