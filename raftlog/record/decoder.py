"""Decode a batch to Python values, as lists or as ``ConsumerRecord``s. The inverse of ``encoder``.

Every function accepts any bytes, and returns or raises ``CorruptBatchError``. No Python code runs
per record: the interpreter's iterators split and zip the columns. No other thread may change the
bytes during the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from itertools import islice, repeat
from typing import NamedTuple

from raftlog.errors import CorruptBatchError, KeyRequiredError
from raftlog.record import columns, payload
from raftlog.record.batch import COLUMNS, HEADER_BYTES, BatchHeader, check, check_length
from raftlog.record.columns import U32_BYTES, U64_BYTES
from raftlog.record.compression import decompress
from raftlog.record.payload import HeaderColumns, Payload
from raftlog.types import Buffer, ConsumerRecord, Headers, OffsetAndTimestamp


class RecordLists(NamedTuple):
    """The records of a batch as columns of one length. A record without headers has ``()``."""

    offsets: Sequence[int]
    timestamps_ms: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers]


def open_batch(batch: Buffer, *, check_crc: bool) -> tuple[BatchHeader, Payload]:
    """Return the header and the checked, decompressed columns of exactly one batch.

    Raises ``CorruptBatchError``.
    """
    header = check(batch) if check_crc else check_length(batch)
    stored, length = memoryview(batch)[HEADER_BYTES:], header.uncompressed_length
    if header.layout != COLUMNS:
        # Imported with the first batch of a Kafka client. Brokers import it before they serve.
        from raftlog.record import kafka_rows

        return header, kafka_rows.read(stored, header)
    try:
        body = decompress(stored, header.codec, uncompressed_length=length)
    except CorruptBatchError as error:
        raise CorruptBatchError(f"base offset {header.base_offset}: {error}") from error
    return header, payload.read(body, header)


def validate(data: Buffer, *, keys_required: bool = False) -> BatchHeader:
    """Check exactly one batch so that every reader can decode it, and return its header.

    Brokers check the batches of producers with it: checksums, counts, sizes and columns, at no cost
    per record. Raises ``CorruptBatchError``, and with ``keys_required`` ``KeyRequiredError`` if a
    record has no key.
    """
    header, rows = open_batch(data, check_crc=True)
    lacks_keys = rows.key_lengths is None or rows.key_nulls is not None
    if keys_required and header.record_count and lacks_keys:
        row = 0 if rows.key_nulls is None else columns.u32(rows.key_nulls[:U32_BYTES])[0]
        raise KeyRequiredError(
            f"record {row} of the batch has no key, and the topic is compacted: it keeps the last "
            'record of each key. Send every record with a key (b"" is a key), or set the topic\'s '
            "cleanup.policy to delete"
        )
    return header


def decode_lists(batch: Buffer, *, check_crc: bool = True) -> RecordLists:
    """Return the records of a batch as lists. ``check_crc=False``: ``check`` was called before."""
    header, rows = open_batch(batch, check_crc=check_crc)
    count = header.record_count
    return RecordLists(
        offsets=_offsets(header, rows, 0),
        timestamps_ms=_timestamps(header, rows, 0),
        keys=_split_or_nulls(count, 0, rows.key_lengths, rows.key_blob, rows.key_nulls),
        values=_split_or_nulls(count, 0, rows.value_lengths, rows.value_blob, rows.value_nulls),
        headers=[()] * count if rows.headers is None else _headers(rows.headers, 0),
    )


def decode_records(
    batch: Buffer, *, topic: str, partition: int, from_offset: int = 0, check_crc: bool = True
) -> list[ConsumerRecord]:
    """Return the records of a batch from ``from_offset`` on; none if the batch ends before it."""
    header, rows = open_batch(batch, check_crc=check_crc)
    start = first_row(header, rows, from_offset)
    count = header.record_count - start
    if not count:
        return []
    return list(
        map(
            ConsumerRecord,
            repeat(topic, count),
            repeat(partition),
            _offsets(header, rows, start),
            _split_or_nulls(count, start, rows.key_lengths, rows.key_blob, rows.key_nulls),
            _split_or_nulls(count, start, rows.value_lengths, rows.value_blob, rows.value_nulls),
            repeat(()) if rows.headers is None else _headers(rows.headers, start),
            _timestamps(header, rows, start),
            repeat(header.leader_epoch),
        )
    )


def find_timestamp(
    batch: Buffer, timestamp_ms: int, *, from_offset: int = 0
) -> OffsetAndTimestamp | None:
    """Return the first record from ``from_offset`` on with a timestamp of ``timestamp_ms`` or
    later, in offset order.
    """
    header, rows = open_batch(batch, check_crc=True)
    if timestamp_ms > header.newest_timestamp_ms or not header.record_count:
        return None
    row = first_row(header, rows, from_offset)
    if not header.log_append_time:
        row += columns.find_at_least(rows.timestamps[row * U64_BYTES :], max(timestamp_ms, 0))
    if row == header.record_count:
        return None
    if header.log_append_time:
        return OffsetAndTimestamp(_offsets(header, rows, row)[0], header.append_timestamp)
    (found,) = columns.u64(rows.timestamps[row * U64_BYTES : (row + 1) * U64_BYTES])
    return OffsetAndTimestamp(_offsets(header, rows, row)[0], found)


def first_row(header: BatchHeader, rows: Payload, from_offset: int) -> int:
    """Return the row of the first record at or after ``from_offset``; the row count if none is."""
    delta = from_offset - header.base_offset
    if delta <= 0:
        return 0
    if delta > header.last_offset_delta or not header.record_count:
        return header.record_count
    return delta if rows.offsets is None else columns.first_at_least(rows.offsets, delta)


def _offsets(header: BatchHeader, rows: Payload, start: int) -> Sequence[int]:
    base = header.base_offset
    if rows.offsets is None:
        return range(base + start, base + header.record_count)
    return [base + delta for delta in columns.u32(rows.offsets[start * U32_BYTES :])]


def _timestamps(header: BatchHeader, rows: Payload, start: int) -> Sequence[int]:
    if header.log_append_time:
        return [header.append_timestamp] * (header.record_count - start)
    return columns.u64(rows.timestamps[start * U64_BYTES :])


def _split(lengths: memoryview, blob: memoryview, start: int) -> list[bytes]:
    """Return the entries from row ``start`` on. Stream reads are four times as fast as slices."""
    first = columns.total(lengths[: start * U32_BYTES]) if start else 0
    read = BytesIO(blob[first:]).read
    return list(map(read, columns.u32(lengths[start * U32_BYTES :])))


def _split_or_nulls(
    count: int,
    start: int,
    lengths: memoryview | None,
    blob: memoryview,
    nulls: memoryview | None,
) -> list[bytes | None]:
    """Return all ``count`` entries from row ``start`` on."""
    if lengths is None:
        return [None] * count
    entries: list[bytes | None] = [*_split(lengths, blob, start)]
    if nulls is not None:
        for row in columns.u32(nulls[columns.first_at_least(nulls, start) * U32_BYTES :]):
            entries[row - start] = None
    return entries


def _headers(headers: HeaderColumns, start: int) -> list[Headers]:
    first = columns.total(headers.counts[: start * U32_BYTES])
    names = _split(headers.name_lengths, headers.name_blob, first)
    values = _split_or_nulls(
        len(names), first, headers.value_lengths, headers.value_blob, headers.value_nulls
    )
    pairs = zip(map(bytes.decode, names), values, strict=True)
    counts = columns.u32(headers.counts[start * U32_BYTES :])
    return list(map(tuple, map(islice, repeat(pairs), counts)))
