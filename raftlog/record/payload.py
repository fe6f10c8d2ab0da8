"""The payload of layout 1: columns in one msgpack array. Writes it, and reads it with all checks.

Compressed as a whole by the batch's codec, and little-endian inside:

    [n, timestamps, offsets, key_lens, key_blob, key_null, value_lens, value_blob, value_null,
     headers]

    n            uint, the batch's record_count
    timestamps   bin, n × u64, ms, at most limits.TIMESTAMP_MS_MAX
    offsets      nil when dense (base_offset, base_offset + 1, …) or when there is no record, else
                 bin, n × u32, ascending: deltas to base_offset, at most last_offset_delta (less if
                 compaction has removed the last record)
    *_lens       bin, n × u32: the length of each entry; nil when every entry is null
    *_blob       bin: the entries, joined
    *_null       nil when none is null (or all are), else bin, m × u32, ascending: the rows that
                 are null; their length is 0
    headers      nil when no record has any, else

    [counts, name_lens, name_blob, value_lens, value_blob, value_null]

    counts       bin, n × u32: number of headers of each record; their sum is h
    name_lens    bin, h × u32; name_blob is UTF-8, and so is each name
    value_*      a column of h entries, as above

``read`` checks that all lengths are consistent: callers can split the blobs without further checks.
Lengths are unsigned because a read of -1 bytes from a Python stream returns all remaining bytes.
The returned views share the memory of the payload. ``decoder`` converts to Python values, ``arrow``
to Arrow arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from raftlog import limits
from raftlog.errors import CorruptBatchError, RecordTooLargeError, counted
from raftlog.record import columns
from raftlog.record.batch import BatchHeader
from raftlog.record.columns import U32_BYTES, U64_BYTES
from raftlog.record.pool import Pool
from raftlog.types import Buffer

if TYPE_CHECKING:
    import msgpack

# -- reading ---------------------------------------------------------------------------------------


class HeaderColumns(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """The headers of all records, in record order."""

    counts: memoryview
    name_lengths: memoryview
    name_blob: memoryview
    value_lengths: memoryview | None
    value_blob: memoryview
    value_nulls: memoryview | None


class Payload(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """The columns of the format above, as views."""

    record_count: int
    timestamps: memoryview
    offsets: memoryview | None
    key_lengths: memoryview | None
    key_blob: memoryview
    key_nulls: memoryview | None
    value_lengths: memoryview | None
    value_blob: memoryview
    value_nulls: memoryview | None
    headers: HeaderColumns | None


_decoder: Final = msgspec.msgpack.Decoder(Payload)


def read(data: Buffer, header: BatchHeader) -> Payload:
    """Return the columns of an uncompressed payload, after all checks against ``header``.

    Raises ``CorruptBatchError``.
    """
    try:
        payload = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptBatchError(
            f"base offset {header.base_offset}: the payload is not an array of columns: {error}"
        ) from error
    count = header.record_count
    fault = (
        _fault_of_rows(payload, header)
        or _fault_of_column("key", count, payload.key_lengths, payload.key_blob, payload.key_nulls)
        or _fault_of_column(
            "value", count, payload.value_lengths, payload.value_blob, payload.value_nulls
        )
    )
    if not fault and payload.headers is not None:
        fault = _fault_of_headers(payload.headers, count)
    if fault:
        raise CorruptBatchError(f"base offset {header.base_offset}: {fault}")
    return payload


def _fault_of_rows(payload: Payload, header: BatchHeader) -> str:
    """Return what is invalid in the count, timestamps or offsets; "" if nothing is."""
    count, timestamps, offsets = header.record_count, payload.timestamps, payload.offsets
    if payload.record_count != count:
        return f"{counted(payload.record_count, 'record')} where the header says {count}"
    if not count:
        return "" if offsets is None and not len(timestamps) else "rows where there are none"
    if len(timestamps) != count * U64_BYTES:
        return f"{len(timestamps)} bytes of timestamps for {counted(count, 'record')}"
    (first,), highest = columns.u64(timestamps[:U64_BYTES]), columns.highest_of(timestamps)
    if first != header.first_timestamp or highest != header.max_timestamp:
        return (
            f"first timestamp {first}, highest {highest}, where the header says "
            f"{header.first_timestamp} and {header.max_timestamp}"
        )
    if offsets is None:
        return "" if header.is_dense else f"no offsets, but {header.last_offset_delta + 1} in range"
    if len(offsets) != count * U32_BYTES:
        return f"{len(offsets)} bytes of offsets for {counted(count, 'record')}"
    if columns.last(offsets) > header.last_offset_delta or not columns.is_increasing(offsets):
        return f"offsets do not ascend within {header.last_offset_delta}"
    return ""


def _fault_of_column(
    what: str, count: int, lengths: memoryview | None, blob: memoryview, nulls: memoryview | None
) -> str:
    """Return what is invalid in a column of ``count`` entries; "" if nothing is."""
    if lengths is None:
        return f"{what}s without lengths" if len(blob) or nulls is not None else ""
    if len(lengths) != count * U32_BYTES:
        return f"{len(lengths)} bytes of {what} lengths for {count} entries"
    if columns.total(lengths) != len(blob):
        return f"{what}s of {columns.total(lengths)} bytes where there are {len(blob)}"
    if nulls is None:
        return ""
    if not len(nulls) or len(nulls) % U32_BYTES:
        return f"{len(nulls)} bytes of rows with null {what}s"
    if columns.last(nulls) >= count or not columns.is_increasing(nulls):
        return f"rows with null {what}s do not ascend within {count}"
    if not columns.are_zero_at(lengths, nulls):
        return f"a null {what} with a length"
    return ""


def _fault_of_headers(headers: HeaderColumns, record_count: int) -> str:
    """Return what is invalid in the records' headers; "" if nothing is."""
    if len(headers.counts) != record_count * U32_BYTES:
        return f"{len(headers.counts)} bytes of header counts for {counted(record_count, 'record')}"
    count = columns.total(headers.counts)
    if count > limits.HEADERS_PER_BATCH_MAX:
        return f"{count} headers; a batch has at most {limits.HEADERS_PER_BATCH_MAX}"
    fault = _fault_of_column(
        "header name", count, headers.name_lengths, headers.name_blob, None
    ) or _fault_of_column(
        "header value", count, headers.value_lengths, headers.value_blob, headers.value_nulls
    )
    if fault:
        return fault
    try:
        names = str(headers.name_blob, "utf-8")
    except UnicodeDecodeError as error:
        return f"header names are not UTF-8: {error.reason} at byte {error.start}"
    is_ascii = len(names) == len(headers.name_blob)
    if not is_ascii and columns.splits_a_character(headers.name_blob, headers.name_lengths):
        return "a header name begins inside a character"
    return ""


# -- writing ---------------------------------------------------------------------------------------


def _new_packer() -> msgpack.Packer:
    import msgpack  # a consumer never needs it

    return msgpack.Packer()


# A packer keeps its buffer. Allocating a new one takes twenty times as long as packing.
_packers: Final = Pool(_new_packer)

# A bin or nil of the array in the format above.
_Bin: TypeAlias = Buffer | None
HeaderRows: TypeAlias = list[_Bin]


class Column(NamedTuple):
    """Entries to write, their packed lengths and their total size."""

    lengths: bytes | None
    entries: Iterable[Buffer]
    size_bytes: int
    nulls: bytes | None

    def packed(self) -> HeaderRows:
        """Return the column's three elements of the array.

        Raises ``TypeError`` if an entry is not a buffer of single bytes: a view of wider items has
        more bytes than its ``len``.
        """
        blob = b"".join(self.entries)
        if len(blob) != self.size_bytes:
            raise TypeError(f"{len(blob)} bytes in all where {self.size_bytes} were counted")
        return [self.lengths, blob, self.nulls]


class JoinedColumn(NamedTuple):
    """A column whose entries are joined already."""

    lengths: bytes | None
    blob: Buffer
    nulls: bytes | None

    @property
    def size_bytes(self) -> int:
        return len(self.blob)

    def packed(self) -> HeaderRows:
        """Return the column's three elements of the array."""
        return [self.lengths, self.blob, self.nulls]


NULL_COLUMN: Final = Column(None, (), 0, None)


def write(
    record_count: int,
    *,
    timestamps: bytes,
    offsets: bytes | None,
    keys: Column | JoinedColumn,
    values: Column | JoinedColumn,
    headers: HeaderRows | None,
) -> bytes:
    """Return the payload. ``headers``: the result of ``header_rows``.

    Raises ``TypeError`` if an entry is not a buffer or has another length than given, and
    ``RecordTooLargeError`` if the payload is over the limit.
    """
    size_bytes = keys.size_bytes + values.size_bytes + len(timestamps)
    if size_bytes > limits.BATCH_UNCOMPRESSED_BYTES_MAX:
        raise RecordTooLargeError(
            f"{record_count} records take {size_bytes} bytes, over the "
            f"{limits.BATCH_UNCOMPRESSED_BYTES_MAX} that one batch may have. Send fewer or smaller "
            "records in a batch"
        )
    rows = [record_count, timestamps, offsets, *keys.packed(), *values.packed(), headers]
    packer = _packers.take()
    payload: bytes = packer.pack(rows)
    _packers.give_back(packer, size_bytes=len(payload))
    return payload


def header_rows(
    counts: bytes, names: Column | JoinedColumn, values: Column | JoinedColumn
) -> HeaderRows:
    """Return the array of headers for ``write``. Raises ``TypeError`` as ``write`` does."""
    assert names.lengths is not None and names.nulls is None
    return [counts, *names.packed()[:2], *values.packed()]
