"""Sparse index of a segment: offset to position, timestamp to position, and a segment summary.

An index is a cache of the segment's batch headers. It is written when a segment is sealed and at
checkpoints. It contains its own checksum and the length of the log that it covers. It is rebuilt
from the segment if it is missing or wrong. Therefore it is never synced, and the log takes
precedence over it.

One entry describes the batch that starts at ``position``: the offset of its first record, and the
newest timestamp of all records *before* it. Entries are at least ``index.interval.bytes`` of log
apart. The batch at position 0 has no entry.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import Final

from raftlog.record.checksum import crc32c
from raftlog.types import NO_TIMESTAMP, LeaderEpoch, Offset, TimestampMs

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

    @property
    def last_position(self) -> int:
        return self.positions[-1] if self.positions else 0

    def position_for_offset(self, offset: Offset) -> int:
        """Return the position to start reading for ``offset``: a batch start at or before it."""
        entry = bisect_right(self.offsets, offset)
        return self.positions[entry - 1] if entry else 0

    def position_for_timestamp(self, timestamp_ms: TimestampMs) -> int:
        """Return the position to start reading for the first record with a timestamp of at least
        ``timestamp_ms``."""
        entry = bisect_left(self.timestamps, timestamp_ms)
        return self.positions[entry - 1] if entry else 0

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
