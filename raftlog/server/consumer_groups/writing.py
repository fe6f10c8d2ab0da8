"""Records of a step as batches for the log: one batch, unless they are too many for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from raftlog import limits
from raftlog.consumer_groups import GroupRecord
from raftlog.record import Codec, encode, seal
from raftlog.types import TimestampMs

# Below this size, compression saves nothing worth its time.
COMPRESSED_FROM_BYTES: Final = 4 * limits.KIB
RECORD_OVERHEAD_BYTES: Final = 32  # lengths and times, at most, in the columns of a payload
BATCH_OVERHEAD_BYTES: Final = 1_024  # headers of a batch and of its columns, at most


def batches_of(
    records: Sequence[GroupRecord], *, now_ms: TimestampMs, bytes_max: int
) -> Iterator[bytes]:
    """Return ``records`` in their order as batches of at most ``bytes_max`` bytes, where possible.

    A record is never split: if it is too large, so is its batch, and the log rejects it.
    """
    room = bytes_max - BATCH_OVERHEAD_BYTES
    start, size = 0, 0
    for index, record in enumerate(records):
        record_size = _size_of(record)
        if size + record_size > room and index > start:
            yield _batch(records[start:index], size, now_ms=now_ms)
            start, size = index, 0
        size += record_size
    if start < len(records):
        yield _batch(records[start:], size, now_ms=now_ms)


def _size_of(record: GroupRecord) -> int:
    return len(record.key) + len(record.value or b"") + RECORD_OVERHEAD_BYTES


def _batch(records: Sequence[GroupRecord], size: int, *, now_ms: TimestampMs) -> bytes:
    body = encode(
        [record.value for record in records],
        keys=[record.key for record in records],
        timestamps_ms=now_ms,
        codec=Codec.LZ4 if size >= COMPRESSED_FROM_BYTES else Codec.NONE,
    )
    return seal(body) + body.payload
