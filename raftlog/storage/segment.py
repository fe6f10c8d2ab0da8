"""One segment: a file of complete, adjacent batches, and its sparse index.

A segment knows the positions and offsets of its batches. The log is responsible for durability,
producers, epochs and retention.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from raftlog import limits
from raftlog.disk import NO_DESCRIPTOR, Disk, File
from raftlog.errors import CorruptBatchError, DamagedLogError
from raftlog.record import (
    HEADER_BYTES,
    BatchHeader,
    parse_header,
)
from raftlog.storage import index as index_codec
from raftlog.storage.checkpoint import Anchor
from raftlog.storage.index import SparseIndex, Summary
from raftlog.types import Buffer, Offset, OffsetAndTimestamp, TimestampMs

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
# Offsets in file names have 20 digits, so that names sort in offset order.
NAME_DIGITS: Final = 20

# Read size in bytes for scans of a whole segment.
_WALK_BYTES: Final = 256 * limits.KIB

# Search by time in steps. It yields work for any thread; ``send`` passes its result.
Found: TypeAlias = OffsetAndTimestamp | None
TimestampSearch: TypeAlias = Generator[Callable[[], Found], Found, Found]


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
        if header.record_count:  # else compaction has removed its records, and their timestamps
            age_ms = min(age_ms, header.newest_timestamp_ms)
        summary.newest_age_ms = max(summary.newest_age_ms, age_ms)
        summary.newest_timestamp_ms = max(summary.newest_timestamp_ms, header.newest_timestamp_ms)
        summary.log_bytes = position + header.length
        summary.next_offset = header.next_offset
        summary.chain = header.chain
        summary.leader_epoch = header.leader_epoch

    def encode_index(self) -> bytes:
        """Return the content of the index file. Write it only after the segment was synced."""
        self.indexed_bytes = self.size_bytes
        return index_codec.encode(self.base_offset, self.index, self.summary)

    # -- reading -----------------------------------------------------------------------------------

    def pread(self, size: int, position: int) -> bytes:
        """Read ``size`` bytes at ``position``. They must be inside the segment.

        Raises ``DamagedLogError``, also if the file is missing or cannot be opened, and ``OSError``
        if this process has no file descriptor left.
        """
        try:
            data = self.file.pread(size, position)
        except OSError as error:
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
        """Return position and header of the batch that contains ``offset``, or of the next one."""
        assert self.base_offset <= offset < self.next_offset
        position = self.index.position_for_offset(offset)
        header = self.header_at(position)
        while header.next_offset <= offset:
            position += header.length
            header = self.header_at(position)
        return position, header

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
        end = self.size_bytes
        while position < end:
            chunk = self.pread(min(_WALK_BYTES, end - position), position)
            start = position
            while position - start + HEADER_BYTES <= len(chunk):
                try:
                    header = parse_header(chunk, position - start)
                except CorruptBatchError as error:
                    raise self.damaged(position, error) from error
                yield position, header
                position += header.length
            if position == start:
                raise self.damaged(position, "incomplete batch header")

    def find_newer(
        self, timestamp_ms: TimestampMs, *, from_offset: Offset
    ) -> tuple[int, BatchHeader] | None:
        """Return position and header of the first batch that ends after ``from_offset`` and has a
        record with a timestamp of at least ``timestamp_ms``, or None."""
        if self.summary.newest_timestamp_ms < timestamp_ms:
            return None
        for position, header in self.headers(self.index.position_for_timestamp(timestamp_ms)):
            if header.newest_timestamp_ms >= timestamp_ms and header.next_offset > from_offset:
                return position, header
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

    def truncate(self, offset: Offset, *, index_interval_bytes: int) -> None:
        """Truncate the batch that contains ``offset`` and all later ones, durably. The caller has
        removed the index file."""
        kept = []
        for _position, header in self.headers():
            if header.next_offset > offset:
                break
            kept.append(header)
        self._keep(kept, index_interval_bytes)
        self.file.truncate(self.size_bytes)
        self.file.sync()

    def forget_bad(self, *, index_interval_bytes: int) -> None:
        """End the segment before its first corrupt header, for this process only."""
        kept = []
        with suppress(DamagedLogError):
            for _position, header in self.headers():
                kept.append(header)
        self._keep(kept, index_interval_bytes)

    def _keep(self, headers: Sequence[BatchHeader], index_interval_bytes: int) -> None:
        self.index, self.summary = SparseIndex(), Summary(self.base_offset)
        for header in headers:
            self.note(header, index_interval_bytes=index_interval_bytes)
