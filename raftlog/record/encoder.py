"""Encode Python values as a batch body. The inverse of ``decoder``. Reads no bytes from outside.

Invalid arguments raise before compression: ``TypeError`` for a key or value that is not bytes,
``InvalidRequestError`` for counts, timestamps, headers and levels, and ``RecordTooLargeError`` for
records that do not fit into a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence, Sized
from itertools import chain
from typing import TYPE_CHECKING

from raftlog import limits
from raftlog.errors import InvalidRequestError, RecordTooLargeError
from raftlog.record import columns, compression
from raftlog.record.batch import HEADER_BYTES, BatchBody
from raftlog.record.compression import Codec
from raftlog.record.payload import NULL_COLUMN, Column, HeaderRows, header_rows, write
from raftlog.types import Buffer, Header, Headers

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


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
