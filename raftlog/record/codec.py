"""Decode a batch to Python values, as lists or as ``ConsumerRecord``s. The inverse of ``encoder``.

Every function accepts any bytes, and returns or raises ``CorruptBatchError``. No Python code runs
per record: the interpreter's iterators split and zip the columns. No other thread may change the
bytes during the call.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence, Sized
from io import BytesIO
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, NamedTuple

from raftlog import limits
from raftlog.errors import (
    CorruptBatchError,
    InvalidRequestError,
    KeyRequiredError,
    RecordTooLargeError,
)
from raftlog.record import compression
from raftlog.record import payload as columns
from raftlog.record.batch import (
    COLUMNS,
    HEADER_BYTES,
    BatchBody,
    BatchHeader,
    check,
    check_length,
    seal,
    stamp_compacted,
)
from raftlog.record.compression import Codec, decompress
from raftlog.record.payload import (
    NO_COLUMNS,
    NULL_COLUMN,
    U32_BYTES,
    U64_BYTES,
    Column,
    HeaderColumns,
    HeaderRows,
    Payload,
    header_rows,
    write,
)
from raftlog.types import Buffer, ConsumerRecord, Header, Headers, OffsetAndTimestamp

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


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
    return header, columns.read(body, header)


def open_header(batch: Buffer, *, check_crc: bool) -> tuple[BatchHeader, Payload]:
    """Return the header of one batch; its columns only if its offsets have gaps, else empty ones.

    Raises ``CorruptBatchError``.
    """
    header = check(batch) if check_crc else check_length(batch)
    if header.record_count != header.last_offset_delta + 1:
        return open_batch(batch, check_crc=False)
    return header, NO_COLUMNS


def validate(data: Buffer, *, keys_required: bool = False, oldest_ms: int = 0) -> BatchHeader:
    """Check exactly one batch so that every reader can decode it, and return its header.

    Brokers check the batches of producers with it: checksums, counts, sizes and columns, at no cost
    per record. Raises ``CorruptBatchError``, with ``keys_required`` ``KeyRequiredError`` if a
    record has no key, and ``InvalidRequestError`` if one is older than ``oldest_ms``.
    """
    header, rows = open_batch(data, check_crc=True)
    # guard: a key may be missing in a few records
    lacks_keys = rows.key_lengths is None or rows.key_nulls is not None
    if keys_required and header.record_count and lacks_keys:
        row = 0 if rows.key_nulls is None else columns.u32(rows.key_nulls[:U32_BYTES])[0]
        raise KeyRequiredError(
            f"record {row} of the batch has no key, and the topic is compacted: it keeps the last "
            'record of each key. Send every record with a key (b"" is a key), or set the topic\'s '
            "cleanup.policy to delete"
        )
    # guard: each timestamp is compared with the oldest that is accepted
    if oldest_ms and header.record_count and columns.lowest_of(rows.timestamps) < oldest_ms:
        raise InvalidRequestError(too_old(columns.lowest_of(rows.timestamps), oldest_ms))
    return header


def too_old(timestamp_ms: int, oldest_ms: int) -> str:
    """Return the text of the error for a record that is older than ``oldest_ms``."""
    return (
        f"timestamp {timestamp_ms} is before {oldest_ms}, the oldest that "
        "message.timestamp.before.max.ms of the topic accepts now. Check the producer's clock"
    )


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


# -- encoder ---------------------------------------------------------------------------------------
#
# Encode Python values as a batch body. The inverse of ``decoder``. Reads no bytes from outside.
#
# Invalid arguments raise before compression: ``TypeError`` for a key or value that is not bytes,
# ``InvalidRequestError`` for counts, timestamps, headers and levels, and ``RecordTooLargeError``
# for records that do not fit into a batch.


def encode(
    values: Sequence[Buffer | None],
    *,
    keys: Sequence[Buffer | None] | None = None,
    timestamps_ms: int | Sequence[int],
    headers: Sequence[Headers | Sequence[Header] | None] | None = None,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    lengths: npt.NDArray[np.uint32] | None = None,
    offset_deltas: Sequence[int] | None = None,
    last_offset_delta: int | None = None,
) -> BatchBody:
    """Encode and compress the records of one batch. ``batch.seal`` creates its header.

    ``timestamps_ms``: one for all records, or one for each. ``lengths``: bytes of each value (0 for
    a null), if the caller knows them; they are not checked. ``offset_deltas``: each record's offset
    minus the base offset, for a compacted batch; default: consecutive offsets.
    ``last_offset_delta``: end of the range of a compacted batch, if beyond its last record.
    A payload that compression does not make smaller is stored uncompressed, with codec NONE.
    """
    compression.check_level(codec, level)
    count = count_of(values, keys, headers)
    timestamps, first_timestamp_ms, max_timestamp_ms = timestamps_of(timestamps_ms, count)
    offsets, range_end = _checked_offsets(offset_deltas, count, last_offset_delta)
    header_columns = None if headers is None else _header_rows(headers)
    packed = None if lengths is None else _packed(lengths, count)

    def write_with(keys_column: Column, values_column: Column) -> bytes:
        return write(
            count,
            timestamps=timestamps,
            offsets=offsets,
            keys=keys_column,
            values=values_column,
            headers=header_columns,
        )

    try:
        payload = write_with(_column(keys, "key"), _column(values, "value", packed))
    except TypeError:  # a view of wide items, or not bytes: check each entry
        payload = write_with(_checked_column(keys, "key"), _checked_column(values, "value"))
    return body_of(
        payload,
        codec=codec,
        level=level,
        record_count=count,
        first_timestamp_ms=first_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        last_offset_delta=range_end,
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


def without_records(header: BatchHeader) -> bytes:
    """Return a batch without records in the place of another: the same offsets, and for the check
    of the next batch the same chain value.
    """
    body = hole_of(header.last_offset_delta + 1)
    return (
        stamp_compacted(
            seal(body),
            base_offset=header.base_offset,
            leader_epoch=max(header.leader_epoch, 0),
            append_timestamp_ms=max(header.append_timestamp, 0),
            chain=header.chain,
        )
        + body.payload
    )


def body_of(
    payload: bytes,
    *,
    codec: Codec,
    level: int | None,
    record_count: int,
    first_timestamp_ms: int,
    max_timestamp_ms: int,
    last_offset_delta: int,
) -> BatchBody:
    """Compress ``payload`` and return the body. Raises ``RecordTooLargeError``."""
    stored, codec = compression.compress(payload, codec, level=level)
    if HEADER_BYTES + len(stored) > limits.BATCH_BYTES_MAX:
        raise RecordTooLargeError(
            f"{record_count} records take {len(stored)} bytes, over the {limits.BATCH_BYTES_MAX} "
            "that a batch may have. Send fewer or smaller records in a batch"
        )
    return BatchBody(
        payload=stored,
        codec=codec,
        uncompressed_length=len(payload),
        record_count=record_count,
        first_timestamp_ms=first_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        last_offset_delta=last_offset_delta,
    )


def count_of(values: Sized, *others: Sized | None) -> int:
    """Return the number of records. Raises if the columns have different lengths."""
    count = len(values)
    if not 0 < count <= limits.RECORDS_PER_BATCH_MAX:
        raise InvalidRequestError(
            f"{count} records; a batch has 1 to {limits.RECORDS_PER_BATCH_MAX}"
        )
    for name, other in zip(("keys", "headers"), others, strict=True):
        if other is not None and len(other) != count:
            raise InvalidRequestError(f"{len(other)} {name} for {count} values: give one for each")
    return count


def timestamps_of(timestamps_ms: int | Sequence[int], count: int) -> tuple[bytes, int, int]:
    """Return the column of timestamps, the first and the highest."""
    try:
        if isinstance(timestamps_ms, int):
            column = columns.pack_u64([timestamps_ms]) * count
            first = highest = timestamps_ms
        else:
            column = struct.pack(f"<{count}Q", *timestamps_ms)
            first, highest = int(timestamps_ms[0]), columns.highest_of(column)
    except struct.error as error:
        raise no_timestamps(count, error) from error
    check_highest(highest)
    return column, first, highest


def no_timestamps(count: int, reason: object) -> InvalidRequestError:
    """Return the error for invalid timestamps of ``count`` records."""
    return InvalidRequestError(
        f"timestamps are {count} whole numbers of milliseconds from 1970 on, or one for all: "
        f"{reason}"
    )


def check_highest(timestamp_ms: int) -> None:
    if timestamp_ms > limits.TIMESTAMP_MS_MAX:
        raise InvalidRequestError(
            f"timestamp {timestamp_ms} is over {limits.TIMESTAMP_MS_MAX}, the last millisecond of "
            "the year 9999. Pass milliseconds, not microseconds"
        )


def _checked_offsets(
    offset_deltas: Sequence[int] | None, count: int, last_offset_delta: int | None
) -> tuple[bytes | None, int]:
    """Return the column of offset deltas, or None if they are consecutive; and the last delta."""
    if offset_deltas is None:
        assert last_offset_delta is None, "a range end requires offset deltas"
        return None, count - 1
    assert len(offset_deltas) == count
    packed = columns.pack_u32(offset_deltas)
    last = columns.last(packed)
    end = last if last_offset_delta is None else last_offset_delta
    assert columns.is_increasing(packed) and last <= end, "offsets ascend within their range"
    return (None if end == count - 1 else packed), end


def _packed(lengths: npt.NDArray[np.uint32], count: int) -> bytes:
    assert len(lengths) == count
    return lengths.astype("<u4", copy=False).tobytes()


def _column(
    entries: Sequence[Buffer | None] | None, what: str, lengths: bytes | None = None
) -> Column:
    """Return the column of entries. If one is not bytes, this or ``write`` raises ``TypeError``."""
    if entries is None:
        return NULL_COLUMN
    if lengths is None:
        try:
            lengths = struct.pack(f"<{len(entries)}I", *map(len, entries))  # type: ignore[arg-type]
        except TypeError:
            return _column_with_nulls(entries, what)
        except struct.error as error:
            raise RecordTooLargeError(f"a {what} does not fit any batch: {error}") from error
    return Column(lengths, entries, columns.total(lengths), None)  # type: ignore[arg-type]


def _column_with_nulls(entries: Sequence[Buffer | None], what: str) -> Column:
    nulls = [row for row, entry in enumerate(entries) if entry is None]
    if not nulls:
        raise TypeError(f"a {what} has no length")
    if len(nulls) == len(entries):
        return NULL_COLUMN
    filled = [b"" if entry is None else entry for entry in entries]
    return _column(filled, what)._replace(nulls=columns.pack_u32(nulls))


def _checked_column(entries: Sequence[Buffer | None] | None, what: str) -> Column:
    """Return the column after a check of every entry. ``TypeError`` names the invalid entry."""
    if entries is None:
        return NULL_COLUMN
    return _column([_octets(entry, what, row) for row, entry in enumerate(entries)], what)


def _octets(entry: Buffer | None, what: str, row: int) -> bytes | None:
    if entry is None or isinstance(entry, bytes):
        return entry
    try:
        return memoryview(entry).tobytes()
    except TypeError:
        raise TypeError(
            f"{what} {row} is of type {type(entry).__name__}, not bytes. Encode it (a str with "
            f".encode()), or set a serializer for {what}s in the producer"
        ) from None


def _header_rows(headers: Sequence[Headers | Sequence[Header] | None]) -> HeaderRows | None:
    """Return the array of headers, or None if no record has headers."""
    rows = [row or () for row in headers]
    try:
        pairs = list(chain.from_iterable(rows))
        names = [name.encode() for name, _ in pairs]
        values = [value for _, value in pairs]
        counts = columns.pack_u32([len(row) for row in rows])
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidRequestError(
            f"a record's headers are pairs of a name (str) and a value (bytes or None): {error}"
        ) from error
    if not pairs:
        return None
    check_header_count(len(pairs))
    names_column = _column(names, "header name")
    try:
        return header_rows(counts, names_column, _column(values, "header value"))
    except TypeError:  # as in encode
        return header_rows(counts, names_column, _checked_column(values, "header value"))


def check_header_count(count: int) -> None:
    if count > limits.HEADERS_PER_BATCH_MAX:
        raise InvalidRequestError(
            f"{count} headers; a batch has at most {limits.HEADERS_PER_BATCH_MAX}"
        )
