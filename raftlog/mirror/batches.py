"""Batches that a mirror appends: copies, and holes for deleted offsets. Pure.

A copy has the payload and the offset range of its original. Only batches of Kafka's clients
and the rest of a joined batch are decoded. The producer fields are those of the mirror, so that a
partition accepts each copy once (docs/adr/0017). A sequence counts offsets.
"""

from __future__ import annotations

from collections.abc import Iterator

from raftlog.client.consumer_core import Checked
from raftlog.client.resumable import RECORDS_MAX
from raftlog.errors import CorruptBatchError
from raftlog.record import (
    COLUMNS,
    HEADER_BYTES,
    BatchBody,
    BatchHeader,
    Codec,
    parse_header,
)
from raftlog.record.payload import NULL_COLUMN, write
from raftlog.types import Buffer, Offset

# Offsets of one epoch of the mirror's producer, and thus of one hole.
SPAN_MAX = RECORDS_MAX


def copy_of(header: BatchHeader, data: Buffer) -> BatchBody:
    """Return the body of a batch with the same payload and range of offsets."""
    return BatchBody(
        payload=bytes(memoryview(data)[HEADER_BYTES:]),
        codec=header.codec,
        uncompressed_length=header.uncompressed_length,
        record_count=header.record_count,
        first_timestamp_ms=header.first_timestamp,
        max_timestamp_ms=header.max_timestamp,
        last_offset_delta=header.last_offset_delta,
    )


def hole_of(count: int) -> BatchBody:
    """Return the body of a batch of ``count`` offsets without a record."""
    payload = write(
        0, timestamps=b"", offsets=None, keys=NULL_COLUMN, values=NULL_COLUMN, headers=None
    )
    return BatchBody(
        payload=payload,
        codec=Codec.NONE,
        uncompressed_length=len(payload),
        record_count=0,
        first_timestamp_ms=0,
        max_timestamp_ms=0,
        last_offset_delta=count - 1,
    )


def holes(start: Offset, end: Offset) -> Iterator[BatchBody]:
    """Yield batches without records for the offsets from ``start`` to before ``end``."""
    while start < end:
        count = min(end - start, SPAN_MAX)
        yield hole_of(count)
        start += count


def bodies(batch: Checked, position: Offset) -> Iterator[BatchBody]:
    """Yield the bodies to append at ``position``, so that the copy ends at the end of ``batch``.

    Offsets before the batch, which its source has deleted, become holes. The source may have joined
    batches by compaction, so that ``position`` is inside of one: only its rest is then copied. A
    batch of a Kafka client is copied as columns, because its checksum covers the producer fields.
    Raises ``CorruptBatchError`` if ``position`` is inside of a batch that was never compacted.
    """
    header, data = batch
    yield from holes(position, header.base_offset)
    is_whole = header.base_offset >= position
    if is_whole and header.layout == COLUMNS:
        yield copy_of(header, data)
    elif header.next_offset > position:
        if not (is_whole or header.is_compacted):
            raise CorruptBatchError(
                f"the copy ends at offset {position}, inside the source batch with offsets "
                f"{header.base_offset} to {header.next_offset - 1}. It is a copy of another log"
            )
        from raftlog.record.compaction import tail_of  # imports numpy

        rest = tail_of(data, max(position, header.base_offset))
        yield copy_of(parse_header(rest), rest)
