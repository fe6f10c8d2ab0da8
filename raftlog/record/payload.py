"""The payload of layout 1: columns in one msgpack array. Writes it, and reads it with all checks.

Compressed as a whole by the batch's codec, and little-endian inside:

    [n, timestamps, offsets, key_lens, key_blob, key_null, value_lens, value_blob, value_null,
     headers]

    n            uint, the batch's record_count
    timestamps   bin, n × u64, ms, at most limits.TIMESTAMP_MS_MAX
    offsets      nil when dense (base_offset, base_offset + 1, …) or when there is no record, else
                 bin, n × u32, ascending: deltas to base_offset, at most last_offset_delta (less if
                 compaction has removed the last record, also in a mirror's copy)
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

import struct
import sys
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from raftlog import limits
from raftlog.errors import CorruptBatchError, RecordTooLargeError, counted
from raftlog.record.batch import BatchHeader
from raftlog.record.compression import Pool
from raftlog.types import Buffer

if TYPE_CHECKING:
    import msgpack
    import numpy as np
    import numpy.typing as npt


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


_EMPTY: Final = memoryview(b"")
NO_COLUMNS: Final = Payload(0, _EMPTY, None, None, _EMPTY, None, None, _EMPTY, None, None)
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
    (first,), highest = u64(timestamps[:U64_BYTES]), highest_of(timestamps)
    if first != header.first_timestamp or highest != header.max_timestamp:
        return (
            f"first timestamp {first}, highest {highest}, where the header says "
            f"{header.first_timestamp} and {header.max_timestamp}"
        )
    if offsets is None:
        return "" if header.is_dense else f"no offsets, but {header.last_offset_delta + 1} in range"
    if len(offsets) != count * U32_BYTES:
        return f"{len(offsets)} bytes of offsets for {counted(count, 'record')}"
    if last(offsets) > header.last_offset_delta or not is_increasing(offsets):
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
    if total(lengths) != len(blob):
        return f"{what}s of {total(lengths)} bytes where there are {len(blob)}"
    if nulls is None:
        return ""
    if not len(nulls) or len(nulls) % U32_BYTES:
        return f"{len(nulls)} bytes of rows with null {what}s"
    if last(nulls) >= count or not is_increasing(nulls):
        return f"rows with null {what}s do not ascend within {count}"
    if not are_zero_at(lengths, nulls):
        return f"a null {what} with a length"
    return ""


def _fault_of_headers(headers: HeaderColumns, record_count: int) -> str:
    """Return what is invalid in the records' headers; "" if nothing is."""
    if len(headers.counts) != record_count * U32_BYTES:
        return f"{len(headers.counts)} bytes of header counts for {counted(record_count, 'record')}"
    count = total(headers.counts)
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
    if not is_ascii and splits_a_character(headers.name_blob, headers.name_lengths):
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


# -- columns ---------------------------------------------------------------------------------------
#
# Arithmetic over packed little-endian integers, without an object per integer.
#
# numpy processes long columns. ``struct`` is faster for short ones, and a program with small
# batches only never loads numpy. Callers have checked that a column's length is a whole number of
# integers. No function raises.


U32_BYTES: Final = 4
U64_BYTES: Final = 8
# Integers; below this number a loop is faster than a call into numpy. Clients work without numpy.
NUMPY_FROM: Final = 256 if find_spec("numpy") is not None else sys.maxsize


def u32(column: Buffer) -> Sequence[int]:
    """The unsigned 32-bit integers of ``column`` as Python's."""
    return struct.unpack(f"<{len(column) // U32_BYTES}I", column)


def u64(column: Buffer) -> Sequence[int]:
    """The unsigned 64-bit integers of ``column`` as Python's."""
    return struct.unpack(f"<{len(column) // U64_BYTES}Q", column)


def pack_u32(integers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(integers)}I", *integers)


def pack_u64(integers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(integers)}Q", *integers)


def u32_array(column: Buffer) -> npt.NDArray[np.uint32]:
    import numpy as np

    return np.frombuffer(column, "<u4")


def u64_array(column: Buffer) -> npt.NDArray[np.uint64]:
    import numpy as np

    return np.frombuffer(column, "<u8")


def total(column: Buffer) -> int:
    """The sum of unsigned 32-bit integers."""
    if len(column) < NUMPY_FROM * U32_BYTES:
        return sum(u32(column))
    return int(u32_array(column).sum(dtype="u8"))


def is_increasing(column: Buffer) -> bool:
    """Return whether unsigned 32-bit integers are strictly increasing."""
    if len(column) < NUMPY_FROM * U32_BYTES:
        return all(before < after for before, after in pairwise(u32(column)))
    array = u32_array(column)
    return bool((array[1:] > array[:-1]).all())


def last(column: Buffer) -> int:
    """Return the last of at least one unsigned 32-bit integer."""
    integer: int = struct.unpack_from("<I", column, len(column) - U32_BYTES)[0]
    return integer


def first_at_least(column: Buffer, bound: int) -> int:
    """Return the index of the first increasing unsigned 32-bit integer at or above ``bound``."""
    if len(column) < NUMPY_FROM * U32_BYTES:
        return bisect_left(u32(column), bound)
    return int(u32_array(column).searchsorted(bound))


def are_zero_at(column: Buffer, indexes: Buffer) -> bool:
    """Return whether the unsigned 32-bit integers at ``indexes`` (in range) are all 0."""
    if len(indexes) < NUMPY_FROM * U32_BYTES:
        return not any(
            struct.unpack_from("<I", column, index * U32_BYTES)[0] for index in u32(indexes)
        )
    return not u32_array(column)[u32_array(indexes)].any()


def highest_of(column: Buffer) -> int:
    """Return the highest of at least one unsigned 64-bit integer."""
    if len(column) < NUMPY_FROM * U64_BYTES:
        return max(u64(column))
    return int(u64_array(column).max())


def lowest_of(column: Buffer) -> int:
    """Return the lowest of at least one unsigned 64-bit integer."""
    if len(column) < NUMPY_FROM * U64_BYTES:
        return min(u64(column))
    return int(u64_array(column).min())


def find_at_least(column: Buffer, bound: int) -> int:
    """Return the index of the first unsigned 64-bit integer at or above ``bound``; the count if
    there is none.
    """
    count = len(column) // U64_BYTES
    if count < NUMPY_FROM:
        found = (index for index, integer in enumerate(u64(column)) if integer >= bound)
        return next(found, count)
    is_found = u64_array(column) >= bound
    index = int(is_found.argmax())
    return index if is_found[index] else count


def splits_a_character(blob: Buffer, lengths: Buffer) -> bool:
    """Return whether an entry of ``blob`` (valid UTF-8 as a whole) starts inside a character."""
    if len(lengths) < NUMPY_FROM * U32_BYTES:
        view = memoryview(blob)
        return any(
            view[start] & 0xC0 == 0x80 for start in accumulate(u32(lengths)) if start < len(view)
        )
    import numpy as np

    starts: npt.NDArray[Any] = u32_array(lengths).cumsum(dtype="i8")
    octets = np.frombuffer(blob, "u1")
    firsts = octets[starts[starts < len(octets)]]
    return bool(((firsts & 0xC0) == 0x80).any())  # 0b10xxxxxx continues a character
