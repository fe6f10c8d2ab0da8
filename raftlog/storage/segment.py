"""One segment: a file of complete, adjacent batches, and its sparse index.

A segment knows the positions and offsets of its batches. The log is responsible for durability,
producers, epochs and retention.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, overload

from raftlog import limits
from raftlog.disk import NO_DESCRIPTOR, NO_ROOM, Disk, File
from raftlog.errors import CorruptBatchError, DamagedLogError
from raftlog.record import HEADER_BYTES, BatchHeader, parse_header
from raftlog.record.batch import check, crc32c
from raftlog.storage import state_files
from raftlog.storage.checkpoint import Anchor
from raftlog.storage.producer_state import ProducerTable
from raftlog.types import NO_TIMESTAMP, Buffer, LeaderEpoch, Offset, OffsetAndTimestamp, TimestampMs

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
# Offsets in file names have 20 digits, so that names sort in offset order.
NAME_DIGITS: Final = 20

# Read size in bytes for scans of a whole segment.
_WALK_BYTES: Final = 256 * limits.KIB

# Search by time in steps. It yields work for any thread, and ``send`` passes its result; or None
# where other work may be done first.
Found: TypeAlias = OffsetAndTimestamp | None
TimestampSearch: TypeAlias = Generator[Callable[[], Found] | None, Found, Found]


def file_name(base_offset: Offset, suffix: str) -> str:
    return f"{base_offset:0{NAME_DIGITS}d}{suffix}"


def base_offsets(names: Sequence[str], suffix: str) -> list[Offset]:
    """Return the base offsets of the ``names`` that end with ``suffix``, ascending."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(
        int(stem)
        for stem in stems
        if len(stem) == NAME_DIGITS and stem.isascii() and stem.isdecimal()
    )


class Segment:
    """A segment file with its index and summary. Invariant: ``size_bytes`` is the end of a
    batch."""

    def __init__(self, disk: Disk, directory: str, base_offset: Offset) -> None:
        self.base_offset = base_offset
        self.directory = directory
        self.path = f"{directory}/{file_name(base_offset, LOG_SUFFIX)}"
        self.index_path = f"{directory}/{file_name(base_offset, INDEX_SUFFIX)}"
        self.index = SparseIndex()
        self.summary = Summary(base_offset)
        self.indexed_bytes = 0  # covered by the index file, if this process knows it
        self._disk = disk
        self._file: File | None = None

    # -- the file ----------------------------------------------------------------------------------

    def create(self) -> None:
        """Create the file. Its name is durable only after the directory is synced."""
        assert self._file is None
        self._file = self._disk.open(self.path, create=True, pooled=True)

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self.path, pooled=True)
        return self._file

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def is_in_place(self) -> bool:
        """See ``File.is_in_place``."""
        return self._disk.exists(self.path) if self._file is None else self._file.is_in_place()

    @property
    def size_bytes(self) -> int:
        return self.summary.log_bytes

    @property
    def next_offset(self) -> Offset:
        return self.summary.next_offset

    # -- growing -----------------------------------------------------------------------------------

    @property
    def anchor(self) -> Anchor:
        """Predecessor of the next batch: offset, hash-chain value and leader epoch."""
        return Anchor(self.next_offset, self.summary.chain, self.summary.leader_epoch)

    def follow(self, anchor: Anchor) -> None:
        """Set the predecessor of the first batch. The segment must be empty."""
        assert self.size_bytes == 0
        self.summary.chain = anchor.chain
        self.summary.leader_epoch = anchor.leader_epoch

    def append(
        self, buffers: Sequence[Buffer], *headers: BatchHeader, index_interval_bytes: int
    ) -> None:
        """Write stamped batches. On ``OSError`` the segment does not change, but the file may have
        extra bytes at its end."""
        self.file.append(buffers)
        for header in headers:
            self.note(header, index_interval_bytes=index_interval_bytes)

    def note(self, header: BatchHeader, *, index_interval_bytes: int) -> None:
        """Add the batch at position ``summary.log_bytes`` to the summary and the index."""
        summary = self.summary
        position = summary.log_bytes
        if position - self.index.last_position >= max(index_interval_bytes, 1):
            self.index.add(
                offset=header.base_offset,
                newest_before_ms=summary.newest_timestamp_ms,
                position=position,
            )
        if position == 0:
            summary.first_append_ms = header.append_timestamp
        age_ms = header.append_timestamp
        # guard: a batch without records is as old as its append
        if header.record_count:  # else compaction has removed its records, and their timestamps
            age_ms = min(age_ms, header.newest_timestamp_ms)
        summary.newest_age_ms = max(summary.newest_age_ms, age_ms)
        if not header.is_control:
            newest_ms = max(summary.newest_timestamp_ms, header.newest_timestamp_ms)
            summary.newest_timestamp_ms = newest_ms
        summary.log_bytes = position + header.length
        summary.next_offset = header.next_offset
        summary.chain = header.chain
        summary.leader_epoch = header.leader_epoch

    def encode_index(self) -> bytes:
        """Return the content of the index file. Write it only after the segment was synced."""
        self.indexed_bytes = self.size_bytes
        return encode(self.base_offset, self.index, self.summary)

    # -- reading -----------------------------------------------------------------------------------

    def pread(self, size: int, position: int) -> bytes:
        """Read ``size`` bytes at ``position``. They must be inside the segment.

        Raises ``DamagedLogError``, also if the file is missing or cannot be opened, and ``OSError``
        if this process has no file descriptor left.
        """
        try:
            data = self.file.pread(size, position)
        except OSError as error:
            # guard: a segment that cannot be opened is corruption
            if error.errno in NO_DESCRIPTOR:
                raise
            raise self.damaged(position, error) from error
        if len(data) < size:
            raise self.damaged(position + len(data), "unexpected end of file")
        return data

    def header_at(self, position: int) -> BatchHeader:
        """Return the header of the batch at ``position``. Raises ``DamagedLogError``."""
        try:
            return parse_header(self.pread(HEADER_BYTES, position))
        except CorruptBatchError as error:
            raise self.damaged(position, error) from error

    def damaged(self, position: int, error: Exception | str) -> DamagedLogError:
        return DamagedLogError(
            f"{self.path} is corrupt at byte {position}: {error}. "
            "Run `raftlog log verify` on its directory to list all corrupt batches"
        )

    def find(self, offset: Offset) -> tuple[int, BatchHeader]:
        """Return position and header of the batch that contains ``offset``.

        Raises ``DamagedLogError``, also if a batch names offsets that are not its own.
        """
        assert self.base_offset <= offset < self.next_offset
        position = self.index.position_for_offset(offset)
        header = self.header_at(position)
        while header.next_offset <= offset:
            position, before = position + header.length, header
            header = self.header_at(position)
            # guard: a search by offset skips no record
            self._check_follows(position, header, before)
        return position, header

    def _check_follows(self, position: int, header: BatchHeader, before: BatchHeader) -> None:
        """Check that a batch starts where the one before it ends. The leader's CRC covers the
        start of a batch, but not the count of its offsets: the CRC of the whole batch does."""
        if header.base_offset != before.next_offset:
            raise self.damaged(
                position - before.length,
                f"the batch at offset {before.base_offset} ends at {before.next_offset}, and the "
                f"next one starts at {header.base_offset}",
            )

    def end_of_read(self, *, start: int, end: int, bytes_max: int) -> int:
        """Return the end position of a read from ``start``: the end of a batch, at least one batch
        after ``start``. Reads no header if everything up to ``end`` fits."""
        if start + bytes_max >= end:
            return end
        first = start + self.header_at(start).length
        cut = max(self.index.batch_start_before(start + bytes_max), first)
        while cut < end:
            longer = cut + self.header_at(cut).length
            if longer > start + bytes_max:
                break
            cut = longer
        return min(cut, end)

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the positions and headers of the batches from ``position`` on."""
        end, before = self.size_bytes, None
        while position < end:
            chunk = self.pread(min(_WALK_BYTES, end - position), position)
            start = position
            while position - start + HEADER_BYTES <= len(chunk):
                try:
                    header = parse_header(chunk, position - start)
                except CorruptBatchError as error:
                    raise self.damaged(position, error) from error
                if before is not None:
                    # guard: the headers of a segment follow each other
                    self._check_follows(position, header, before)
                yield position, header
                position, before = position + header.length, header
            if position == start:
                raise self.damaged(position, "incomplete batch header")

    def find_newer(
        self, timestamp_ms: TimestampMs, *, from_offset: Offset
    ) -> tuple[int, BatchHeader] | None:
        """Return position and header of the first batch that ends after ``from_offset`` and has a
        record with a timestamp of at least ``timestamp_ms``, or None. Markers of transactions are
        no records: theirs are the times of commits. Raises ``DamagedLogError``.
        """
        if self.summary.newest_timestamp_ms < timestamp_ms:
            return None
        start, end = self.index.positions_for_timestamp(timestamp_ms)
        start = max(start, self.index.position_for_offset(from_offset))
        for position, header in self.headers(start):
            if header.next_offset <= from_offset:
                continue
            has_records = header.record_count and not header.is_control
            if has_records and header.newest_timestamp_ms >= timestamp_ms:
                return position, header
            # Only the CRC of the whole batch covers its timestamps. After ``end`` there can be any
            # number of batches, but only if the first such batch is below ``from_offset``, or has
            # no record.
            if end is None or position < end:
                # guard: a search by time skips no corrupt batch
                self.check_batch(position, header)
        return None

    # -- shrinking ---------------------------------------------------------------------------------

    def remove_index(self) -> None:
        """Remove the index file. It must never cover more than the segment contains."""
        if self._disk.exists(self.index_path):
            self._disk.remove(self.index_path)

    def remove(self) -> None:
        """Remove the files. Durable only after the directory is synced."""
        self.close()
        self.remove_index()
        self._disk.remove(self.path)

    def kept_before(self, offset: Offset) -> Kept:
        """Return the batches that end at or below ``offset``, which the segment contains. If the
        next one starts below it, its bytes are checked: its header could claim the offsets of
        later batches.

        Reads the headers from an index entry on, so that the cost does not grow with the segment.
        Raises ``DamagedLogError``.
        """
        entry = bisect_left(self.index.offsets, offset) - 1
        while True:
            start = self.index.positions[entry] if entry >= 0 else 0
            headers = list(self._headers_before(offset, start))
            if headers or entry < 0:
                end = start + sum(header.length for header in headers)
                return Kept(entry, headers, end)
            entry -= 1  # the chain value of the batch before is needed

    def _headers_before(self, offset: Offset, start: int) -> Iterator[BatchHeader]:
        for position, header in self.headers(start):
            if header.next_offset > offset:
                # guard: a truncation checks the batch that it ends in
                if header.base_offset < offset:
                    self.check_batch(position, header)
                return
            yield header

    def checked(self, position: int = 0) -> Iterator[BatchHeader]:
        """Yield the headers of the batches from ``position`` on, each checked with all bytes of its
        batch."""
        for at, header in self.headers(position):
            self.check_batch(at, header)
            yield header

    def check_batch(self, position: int, header: BatchHeader) -> None:
        """Check all bytes of a batch. Raises ``DamagedLogError``."""
        try:
            check(self.pread(header.length, position))
        except CorruptBatchError as error:
            raise self.damaged(position, error) from error

    def truncate(self, kept: Kept, *, index_interval_bytes: int) -> None:
        """Truncate the batches after ``kept``, durably. The caller has removed the index file."""
        self.summary = self._summary_at(kept.entry)
        self.index.cut(max(kept.entry, 0))
        for header in kept.headers:
            self.note(header, index_interval_bytes=index_interval_bytes)
        self.file.truncate(self.size_bytes)
        # guard: a truncated segment is synced
        self.file.sync()

    def forget_bad(self, *, index_interval_bytes: int) -> None:
        """End the segment before its first corrupt batch, for this process only."""
        kept = []
        with suppress(DamagedLogError):
            for position, header in self.headers():
                # guard: no corrupt batch is kept
                self.check_batch(position, header)
                kept.append(header)
        self.index, self.summary = SparseIndex(), Summary(self.base_offset)
        for header in kept:
            self.note(header, index_interval_bytes=index_interval_bytes)

    def _summary_at(self, entry: int) -> Summary:
        """Return the summary of what is before an index entry; -1: of nothing.

        Chain value and epoch follow with the next batch. The age is that of the whole segment: the
        index does not contain it, and retention only deletes later than it could.
        """
        if entry < 0:
            return Summary(self.base_offset)
        return Summary(
            next_offset=self.index.offsets[entry],
            log_bytes=self.index.positions[entry],
            newest_timestamp_ms=self.index.timestamps[entry],
            newest_age_ms=self.summary.newest_age_ms,
            first_append_ms=self.summary.first_append_ms,
        )


# -- index -----------------------------------------------------------------------------------------
#
# Sparse index of a segment: offset to position, timestamp to position, and a segment summary.
#
# An index is a cache of the segment's batch headers. It is written when a segment is sealed and at
# checkpoints. It contains its own checksum and the length of the log that it covers. It is rebuilt
# from the segment if it is missing or wrong. Therefore it is never synced, and the log takes
# precedence over it.
#
# One entry describes the batch that starts at ``position``: the offset of its first record, and the
# newest timestamp of all records *before* it. Entries are at least ``index.interval.bytes`` of log
# apart. The batch at position 0 has no entry.


# | magic 4 "RLIX" | version 2 | unused 2 | crc32c 4 of all that follows |
# | entries 4 | unused 4 | base_offset 8 | log_bytes 8 | next_offset 8 | chain 8 | leader_epoch 8 |
# | newest_timestamp 8 | newest_age 8 | first_append 8 |                  little-endian
# then the columns: entries × offset 8, entries × newest timestamp before 8, entries × position 4
_PREFIX: Final = struct.Struct("<4sHHI")
_SUMMARY: Final = struct.Struct("<IxxxxqqqQqqqq")
_MAGIC: Final = b"RLIX"
_VERSION: Final = 1
ENTRY_BYTES: Final = 20
assert _PREFIX.size == 12, "the drawing above and the code disagree"
assert _SUMMARY.size == 72, "the drawing above and the code disagree"
assert sys.byteorder == "little", "columns are written in the byte order of memory"
assert array("q").itemsize == 8 and array("I").itemsize == 4


@dataclass(slots=True)
class Summary:
    """Summary of the first ``log_bytes`` bytes of a segment."""

    next_offset: Offset
    log_bytes: int = 0
    chain: int = 0  # hash-chain value of the last batch; 0 if there is none
    leader_epoch: LeaderEpoch = -1  # of the last batch
    newest_timestamp_ms: TimestampMs = NO_TIMESTAMP  # as consumers see timestamps
    # retention.ms counts from this time: the older of record timestamp and append time. A producer
    # clock that is ahead cannot keep a segment indefinitely (ADR 0005).
    newest_age_ms: TimestampMs = NO_TIMESTAMP
    first_append_ms: TimestampMs = NO_TIMESTAMP  # segment.ms counts from it


class Kept(NamedTuple):
    """What a truncation leaves of a segment: all batches before an index entry (-1: none), those of
    ``headers`` from there on, and the position after them."""

    entry: int
    headers: Sequence[BatchHeader]
    end: int


@dataclass(slots=True)
class SparseIndex:
    """Index entries in three columns. Invariant: all three ascend and have the same length."""

    offsets: array[int] = field(default_factory=lambda: array("q"))
    timestamps: array[int] = field(default_factory=lambda: array("q"))
    positions: array[int] = field(default_factory=lambda: array("I"))

    def add(self, *, offset: Offset, newest_before_ms: TimestampMs, position: int) -> None:
        self.offsets.append(offset)
        self.timestamps.append(newest_before_ms)
        self.positions.append(position)

    def cut(self, entries: int) -> None:
        """Keep the first ``entries`` entries only."""
        for column in (self.offsets, self.timestamps, self.positions):
            del column[entries:]

    @property
    def last_position(self) -> int:
        return self.positions[-1] if self.positions else 0

    def position_for_offset(self, offset: Offset) -> int:
        """Return the position to start reading for ``offset``: a batch start at or before it."""
        entry = bisect_right(self.offsets, offset)
        return self.positions[entry - 1] if entry else 0

    def positions_for_timestamp(self, timestamp_ms: TimestampMs) -> tuple[int, int | None]:
        """Return the positions between which the first record with a timestamp of at least
        ``timestamp_ms`` is, if the segment has one. The second is None for the end."""
        entry = bisect_left(self.timestamps, timestamp_ms)
        start = self.positions[entry - 1] if entry else 0
        return start, self.positions[entry] if entry < len(self.positions) else None

    def batch_start_before(self, position: int) -> int:
        """Return the last known batch start at or before ``position``."""
        entry = bisect_right(self.positions, position)
        return self.positions[entry - 1] if entry else 0


def encode(base_offset: Offset, index: SparseIndex, summary: Summary) -> bytes:
    body = b"".join(
        (
            _SUMMARY.pack(
                len(index.offsets),
                base_offset,
                summary.log_bytes,
                summary.next_offset,
                summary.chain,
                summary.leader_epoch,
                summary.newest_timestamp_ms,
                summary.newest_age_ms,
                summary.first_append_ms,
            ),
            index.offsets.tobytes(),
            index.timestamps.tobytes(),
            index.positions.tobytes(),
        )
    )
    return _PREFIX.pack(_MAGIC, _VERSION, 0, crc32c(body)) + body


def decode(data: bytes, *, base_offset: Offset) -> tuple[SparseIndex, Summary] | None:
    """Return the index and summary in ``data``; None if ``data`` is incomplete or corrupt.

    Also returns None if the index belongs to a segment with another base offset.
    """
    if len(data) < _PREFIX.size + _SUMMARY.size:
        return None
    body = memoryview(data)[_PREFIX.size :]
    if _PREFIX.unpack_from(data) != (_MAGIC, _VERSION, 0, crc32c(body)):
        return None
    entries, base, *summary = _SUMMARY.unpack_from(body)
    columns = body[_SUMMARY.size :]
    if base != base_offset or len(columns) != entries * ENTRY_BYTES:
        return None
    index = SparseIndex()
    index.offsets.frombytes(columns[: 8 * entries])
    index.timestamps.frombytes(columns[8 * entries : 16 * entries])
    index.positions.frombytes(columns[16 * entries :])
    log_bytes, next_offset, *rest = summary
    return index, Summary(next_offset, log_bytes, *rest)


# -- epoch cache -----------------------------------------------------------------------------------
#
# Leader epoch cache: the epoch that wrote each range of offsets. No I/O: the log persists it.
#
# An entry (epoch, start offset) covers the batches from that offset up to the next entry. They were
# written in that epoch. An epoch without batches can have an entry too (KAFKA-15608), so that a
# replica knows the newest epoch that it has seen. Sources: KIP-101, KIP-279.


class EpochStart(NamedTuple):
    epoch: LeaderEpoch
    start_offset: Offset


class EpochCache:
    """Leader epoch cache. Invariant: epochs strictly ascend and start offsets never descend."""

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self._entries: list[EpochStart] = []
        for entry in entries:
            self.assign(entry.epoch, entry.start_offset)

    def __iter__(self) -> Iterator[EpochStart]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def latest(self) -> LeaderEpoch:
        """Newest epoch, or -1."""
        return self._entries[-1].epoch if self._entries else -1

    def assign(self, epoch: LeaderEpoch, start_offset: Offset) -> bool:
        """Add the entry (``epoch``, ``start_offset``). Returns False if the epoch is known."""
        if epoch <= self.latest:
            assert epoch == self.latest, "the leader epoch decreased"
            return False
        assert not self._entries or start_offset >= self._entries[-1].start_offset
        self._entries.append(EpochStart(epoch, start_offset))
        return True

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """Return the epoch in which the record at ``offset`` was written; -1 if unknown."""
        index = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[index - 1].epoch if index else -1

    def end_of(self, epoch: LeaderEpoch, *, log_end_offset: Offset) -> EpochStart:
        """Return the largest known epoch that is at most ``epoch``, and its end offset (KIP-279).

        Returns (-1, -1) if every known epoch is larger.
        """
        entries = self._entries
        if entries and epoch >= entries[-1].epoch:
            return EpochStart(entries[-1].epoch, log_end_offset)
        index = bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        if index == 0:
            return EpochStart(-1, -1)
        return EpochStart(entries[index - 1].epoch, entries[index].start_offset)

    def cut(self, log_end_offset: Offset) -> bool:
        """Remove epochs that start above the log end. Returns True if any was removed."""
        before = len(self._entries)
        while self._entries and self._entries[-1].start_offset > log_end_offset:
            self._entries.pop()
        return len(self._entries) != before

    def advance_start(self, log_start_offset: Offset) -> bool:
        """Remove epochs that are completely below the log start. Returns True if the cache
        changed."""
        keep = bisect_right(self._entries, log_start_offset, key=lambda entry: entry.start_offset)
        if keep <= 1:
            return False
        del self._entries[: keep - 1]
        return True


# -- segment list ----------------------------------------------------------------------------------
#
# Segments of one log in offset order, and reads across them.
#
# To make reads fast, the list keeps a few sealed segments open and caches the positions of the
# offsets that readers will probably request next. This module does not write batches.


# Number of cached offset positions. A reader that continues at one of them needs no search.
_POSITIONS_REMEMBERED: Final = 64


class SegmentList:
    """Segments of one log. Invariant: each segment starts at the end offset of the previous one.
    The last one is the active segment."""

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._positions: dict[Offset, int] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @overload
    def __getitem__(self, index: int) -> Segment: ...

    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...

    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        return self._segments[index]

    def append(self, segment: Segment) -> None:
        self._segments.append(segment)

    def drop_below(self, offset: Offset) -> list[Segment]:
        """Remove the sealed segments that end at or below ``offset`` from the list, and return
        them."""
        dropped = []
        while len(self._segments) > 1 and self._segments[0].next_offset <= offset:
            dropped.append(self._segments.pop(0))
            dropped[-1].close()
        return dropped

    def swap(self, replaced: Sequence[Offset], segment: Segment) -> None:
        """Replace the adjacent segments with base offsets ``replaced`` by ``segment``."""
        first = next(
            number for number, s in enumerate(self._segments) if s.base_offset == replaced[0]
        )
        gone = self._segments[first : first + len(replaced)]
        assert [s.base_offset for s in gone] == list(replaced)
        assert segment.next_offset == gone[-1].next_offset
        self._segments[first : first + len(replaced)] = [segment]
        for old in gone:
            old.close()
        self.forget_positions()

    def pop_last(self) -> Segment:
        return self._segments.pop()

    # -- reading -----------------------------------------------------------------------------------

    def read(self, *, start_offset: Offset, end_offset: Offset, bytes_max: int) -> list[bytes]:
        """See ``Log.read``. The caller has checked the range."""
        parts: list[bytes] = []
        while start_offset < end_offset and (bytes_max > 0 or not parts):
            segment = self.segment_of(start_offset)
            try:
                start = self._start_position(segment, start_offset)
                end = self._end_position(segment, end_offset)
                stop = segment.end_of_read(start=start, end=end, bytes_max=bytes_max)
                if parts and stop - start > bytes_max:
                    break
                if stop > start:  # else the only remaining batch contains ``end_offset``
                    parts.append(segment.pread(stop - start, start))
            except DamagedLogError:
                if parts:
                    break  # the next read starts here and raises the error
                raise
            if stop < end:
                # The reader's next request starts at the batch that did not fit.
                self.remember(segment.header_at(stop).base_offset, stop)
                break
            bytes_max -= stop - start
            start_offset = min(end_offset, segment.next_offset)
            self.remember(start_offset, stop)
        return parts

    def batch_of(self, offset: Offset) -> BatchHeader:
        """Return the header of the batch that contains ``offset``."""
        return self._locate(self.segment_of(offset), offset)[1]

    def batch_start(self, offset: Offset) -> Offset:
        """Return the base offset of the batch that contains ``offset``."""
        return self.batch_of(offset).base_offset

    def batch_before(self, offset: Offset) -> BatchHeader:
        """Return the header of the batch before ``offset``. A batch starts at ``offset``, and it is
        not the first batch."""
        return self._locate(self.segment_of(offset - 1), offset - 1)[1]

    def segment_of(self, offset: Offset) -> Segment:
        """Return the segment that contains ``offset``, or the last one."""
        index = bisect_right(self._segments, offset, key=lambda segment: segment.base_offset)
        return self._segments[index - 1]

    def _locate(self, segment: Segment, offset: Offset) -> tuple[int, BatchHeader]:
        """Return position and header of the batch that contains ``offset``."""
        position = self._known_position(segment, offset)
        if position is not None:
            return position, segment.header_at(position)
        return segment.find(offset)

    def _start_position(self, segment: Segment, offset: Offset) -> int:
        """Return the position of the batch that contains ``offset``. The batch may be corrupt."""
        position = self._known_position(segment, offset)
        return segment.find(offset)[0] if position is None else position

    def _known_position(self, segment: Segment, offset: Offset) -> int | None:
        # The end offset of a segment is also the base offset of the next one, at position 0.
        return self._positions.get(offset) if offset > segment.base_offset else None

    def _end_position(self, segment: Segment, end_offset: Offset) -> int:
        """Return the position of ``end_offset``: a batch's base offset, or past the segment.

        Does not read the batch at that position. It may be corrupt, while all below it is valid.
        """
        if end_offset >= segment.next_offset:
            return segment.size_bytes
        known = self._positions.get(end_offset)
        if known is not None:
            return known
        position, header = self._locate(segment, end_offset - 1)
        return position + header.length if header.next_offset <= end_offset else position

    def first_unreadable(self, start_offset: Offset, *, bytes_max: int) -> Offset:
        """Return the first offset at or after ``start_offset`` with an unreadable header.

        ``start_offset`` is a base offset. Searches ``bytes_max`` bytes, but at least one batch, and
        the header after them. Returns ``start_offset`` if all these headers are readable.
        """
        offset, bytes_left = start_offset, bytes_max
        try:
            while offset < self._segments[-1].next_offset:
                segment = self.segment_of(offset)
                for _position, header in segment.headers(segment.find(offset)[0]):
                    if bytes_left < 0:
                        return start_offset
                    bytes_left -= header.length
                    offset = header.next_offset
        except DamagedLogError:
            return offset
        return start_offset

    def remember(self, offset: Offset, position: int) -> None:
        """Cache the position of the batch that starts, or will start, at ``offset``."""
        self._positions.pop(offset, None)
        self._positions[offset] = position
        if len(self._positions) > _POSITIONS_REMEMBERED:
            del self._positions[next(iter(self._positions))]

    def forget_positions(self) -> None:
        self._positions.clear()

    # -- open files --------------------------------------------------------------------------------

    @contextmanager
    def leaving_closed(self) -> Iterator[None]:
        """Close the files that are opened in the block. Otherwise a scan of all logs would leave
        all files open."""
        were_open = {segment for segment in self._segments if segment.is_open}
        try:
            yield
        finally:
            for segment in self._segments:
                if segment not in were_open:
                    segment.close()

    def close_surplus(self, *, keep: Container[Segment]) -> None:
        """Close the oldest open sealed segments above the limit. ``keep``: unsynced segments, which
        stay open."""
        sealed = [s for s in self._segments[:-1] if s.is_open and s not in keep]
        for segment in sealed[: max(0, len(sealed) - limits.OPEN_SEALED_SEGMENTS_MAX)]:
            segment.close()


# -- log files -------------------------------------------------------------------------------------
#
# State files of a log: the epoch cache and producer snapshots.
#
# Both can be rebuilt from the log, so corruption of them is logged and repaired.
#
# - ``epochs``: the epoch cache. It has the epochs of all batches below the durable end offset.
# - ``<offset>.producers``: the producer table as of that offset. It makes the next start faster.


SNAPSHOT_SUFFIX: Final = ".producers"
# After a crash, the newest snapshot may be above the log end. An older one avoids a full replay.
SNAPSHOTS_KEPT: Final = 3


class LogFiles:
    """State files of one partition."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.directory = directory
        self.notes: list[str] = []  # corrupt files, for the operator's log
        # Every producer that wrote below it is in a durable snapshot, or in the log above it.
        self.snapshot_offset: Offset = 0
        self._disk = disk
        self._lock = disk.mutex()  # sync and delete tasks both write snapshots

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            return state_files.read(self._disk, self._path(name))
        except (DamagedLogError, OSError) as error:
            self.notes.append(f"{error}; it is rebuilt from the log")
            return None

    def read_epochs(self) -> EpochCache | None:
        state = self._read("epochs")
        if state is None:
            return None
        return EpochCache(EpochStart(*entry) for entry in state["epochs"])

    def write_epochs(self, epochs: EpochCache) -> None:
        """Replace the file, and sync it and the directory. If the disk is full, remove it: a
        missing cache is rebuilt, and a wrong cache is not. Raises ``OSError``."""
        path = self._path("epochs")
        try:
            state_files.write(self._disk, path, {"epochs": [list(entry) for entry in epochs]})
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            if self._disk.exists(path):
                self._disk.remove(path)
            self._disk.sync_dir(self.directory)

    def read_snapshot(self, *, log_end_offset: Offset) -> ProducerTable:
        """Return the newest usable snapshot at or below ``log_end_offset``, or an empty table.

        Sets ``snapshot_offset`` to the offset of the snapshot.
        """
        for offset in reversed(self._snapshot_offsets()):
            if offset <= log_end_offset:
                state = self._read(file_name(offset, SNAPSHOT_SUFFIX))
                if state is not None:
                    self.snapshot_offset = offset
                    return ProducerTable.from_snapshot(state)
        self.snapshot_offset = 0
        return ProducerTable()

    def cut_snapshots(self, log_end_offset: Offset) -> None:
        """Delete the snapshots above ``log_end_offset`` (-1: all), durably.

        Their batches were truncated. The snapshots would look valid after the log has grown past
        their offset with other batches.
        """
        offsets = self._snapshot_offsets()
        beyond = [offset for offset in offsets if offset > log_end_offset]
        for offset in beyond:
            self._disk.remove(self._path(file_name(offset, SNAPSHOT_SUFFIX)))
        # guard: snapshots are truncated durably
        if beyond:
            self._disk.sync_dir(self.directory)
        kept = offsets[: len(offsets) - len(beyond)]
        self.snapshot_offset = min(self.snapshot_offset, kept[-1] if kept else 0)

    def write_snapshot(self, offset: Offset, state: dict[str, Any]) -> None:
        """Save the producer table as of ``offset``, durably. The log is durable up to ``offset``.
        Raises ``OSError``."""
        text = state_files.text_in_parts(state)
        with self._lock:
            state_files.write(self._disk, self._path(file_name(offset, SNAPSHOT_SUFFIX)), text)
            self.snapshot_offset = max(self.snapshot_offset, offset)
            older = [other for other in self._snapshot_offsets() if other <= offset]
            for old in older[:-SNAPSHOTS_KEPT]:
                self._disk.remove(self._path(file_name(old, SNAPSHOT_SUFFIX)))

    def try_write_snapshot(self, offset: Offset, state: dict[str, Any]) -> bool:
        """Like ``write_snapshot``. Returns False if the disk is full."""
        try:
            self.write_snapshot(offset, state)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return False
        return True

    def _snapshot_offsets(self) -> list[Offset]:
        return base_offsets(self._disk.list_dir(self.directory), SNAPSHOT_SUFFIX)
