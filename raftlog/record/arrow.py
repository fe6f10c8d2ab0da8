"""Decode batches to one ``pyarrow.RecordBatch``, buffer by buffer, without an object per record.

Requires the extra ``arrow``. The first call imports pyarrow, so that programs
without Arrow neither need it nor load it.

The columns of several batches are joined first and converted once, which makes many small batches
cheap. The blobs of a single uncompressed batch are not copied: the result refers to the batch's
memory, so a caller must not write to it. Only requested columns are built.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from murmurhash2 import murmurhash2

from raftlog import limits
from raftlog.errors import InvalidRequestError, RecordTooLargeError, UnsupportedFeatureError
from raftlog.install import install_command
from raftlog.record import compression
from raftlog.record.batch import BatchBody, BatchHeader
from raftlog.record.codec import (
    body_of,
    check_header_count,
    check_highest,
    count_of,
    first_row,
    no_timestamps,
    open_batch,
    open_header,
    timestamps_of,
)
from raftlog.record.compression import Codec
from raftlog.record.payload import (
    U32_BYTES,
    U64_BYTES,
    HeaderRows,
    JoinedColumn,
    Payload,
    first_at_least,
    header_rows,
    total,
    u32_array,
    u64_array,
    write,
)
from raftlog.types import Buffer, Offset

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
from raftlog.record.key_hash import KAFKA_SEED, POSITIVE

# Columns whose values are in the header of a batch without gaps between its offsets.
_IN_HEADERS: Final = frozenset({"topic", "partition", "offset", "leader_epoch", "timestamp_type"})
TIMESTAMP_TYPE: Final = "timestamp_type"  # a column that is built only if it is named

_ARROW_OFFSET_MAX: Final = (1 << 31) - 1  # Arrow's binary, string and list count in 32 bits
_US_PER_MS: Final = 1_000
_I32: Final = struct.Struct("=i")  # native byte order, as in Arrow
_U64: Final = struct.Struct("<Q")


def decode_arrow(
    batches: Sequence[Buffer],
    *,
    topic: str,
    partition: int,
    from_offset: Offset = 0,
    to_offset: Offset | None = None,
    check_crc: bool = True,
    columns: Sequence[str] | None = None,
) -> pa.RecordBatch:
    """Return the records of ``batches`` from ``from_offset`` on, below ``to_offset`` if it is set.

    ``columns``: names of the columns to build, in this order, of those in ``arrow_schema``
    (default: all of them) and "timestamp_type" (int32: 0 producer's time, 1 broker's time).

    ``headers`` is null for a record without headers. Raises ``InvalidRequestError`` if a column
    exceeds the 2 GiB of one Arrow array, and for unknown columns.

    If all columns are in the headers of batches, payloads are not decompressed.
    """
    schema = arrow_schema() if columns is None else schema_of(columns)
    built = [(field, _BUILDERS[field.name](topic, partition)) for field in schema]
    adders = [builder.add for _, builder in built if not isinstance(builder, _Constant)]
    open_one = open_header if _IN_HEADERS.issuperset(schema.names) else open_batch
    count = 0
    for batch in batches:
        header, payload = open_one(batch, check_crc=check_crc)
        start, stop = first_row(header, payload, from_offset), header.record_count
        if to_offset is not None:
            stop = first_row(header, payload, to_offset)
        if start < stop:
            rows = _Rows(header, payload, start, stop, count)
            for add in adders:
                add(rows)
            count += stop - start
    arrays = [builder.to_arrow(field.type, count) for field, builder in built]
    return _pyarrow().RecordBatch.from_arrays(arrays, schema=schema)


@cache
def arrow_schema() -> pa.Schema:
    """Return the schema of ``decode_arrow``. Every field is nullable, as Spark requires."""
    pa = _pyarrow()
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(header)),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("leader_epoch", pa.int32()),
        ]
    )


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of ``decode_arrow`` for ``columns``.

    Raises ``InvalidRequestError`` if there is no column, a duplicate or an unknown one.
    """
    if isinstance(columns, str):
        raise TypeError(f"columns={columns!r}: a list of names, such as [{columns!r}]")
    names = tuple(columns)
    if not names or len(set(names)) < len(names):
        raise InvalidRequestError(f"columns={list(names)!r}: name one at least, and each once")
    unknown = [name for name in names if name not in _BUILDERS]
    if unknown:
        raise InvalidRequestError(
            f"columns={list(names)!r}: there is no {unknown[0]!r}; there are {', '.join(_BUILDERS)}"
        )
    return _schema_of(names)


@cache
def _schema_of(names: tuple[str, ...]) -> pa.Schema:
    pa = _pyarrow()
    known = arrow_schema().append(pa.field(TIMESTAMP_TYPE, pa.int32()))
    return pa.schema([known.field(name) for name in names])


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise UnsupportedFeatureError(
            f"reading records as Arrow needs pyarrow. Run {install_command('arrow')} ({error})"
        ) from error
    return pa


# -- columns ---------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """Rows ``start`` to ``stop`` of a batch, one at least, after ``before`` rows of others."""

    header: BatchHeader
    payload: Payload
    start: int
    stop: int
    before: int

    @property
    def number(self) -> int:
        return self.stop - self.start


class _Builder(Protocol):
    """One column of the result."""

    def add(self, rows: _Rows) -> None:
        """Add the values of these rows."""

    def to_arrow(self, data_type: pa.DataType, count: int) -> pa.Array:
        """Return all ``count`` rows that were added."""


class _Constant:
    """Values that every row shares."""

    def add(self, rows: _Rows) -> None:
        pass


class _Topic(_Constant):
    def __init__(self, topic: str, _partition: int) -> None:
        self._octets = topic.encode()

    def to_arrow(self, data_type: pa.DataType, count: int) -> pa.Array:
        import numpy as np

        octets = self._octets
        _check_size(len(octets) * count, "topic names")
        ends = np.arange(count + 1, dtype=np.int32)
        ends *= len(octets)
        pa = _pyarrow()
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(octets * count)]
        return pa.Array.from_buffers(data_type, count, buffers)


class _Partition(_Constant):
    def __init__(self, _topic: str, partition: int) -> None:
        self._packed = _I32.pack(partition)

    def to_arrow(self, data_type: pa.DataType, count: int) -> pa.Array:
        return _fixed(data_type, count, self._packed * count)


class _Offsets:
    def __init__(self, _topic: str, _partition: int) -> None:
        self._counts: list[int] = []  # rows taken of each batch
        self._shifts: list[int] = []  # of each batch: the offset of a row less its number here
        self._sparse: list[tuple[slice, int, Buffer]] = []  # rows, base offset, deltas to it

    def add(self, rows: _Rows) -> None:
        header, payload, start, stop, before = rows
        self._counts.append(stop - start)
        self._shifts.append(header.base_offset + start - before)
        if payload.offsets is not None:
            places = slice(before, before + stop - start)
            deltas = payload.offsets[start * U32_BYTES : stop * U32_BYTES]
            self._sparse.append((places, header.base_offset, deltas))

    def to_arrow(self, data_type: pa.DataType, count: int) -> pa.Array:
        import numpy as np

        if len(self._shifts) == 1:
            offsets = np.arange(self._shifts[0], self._shifts[0] + count, dtype=np.int64)
        else:
            offsets = np.arange(count, dtype=np.int64)
            offsets += np.repeat(np.array(self._shifts, np.int64), np.array(self._counts, np.int64))
        for places, base_offset, deltas in self._sparse:
            offsets[places] = u32_array(deltas) + np.int64(base_offset)
        return _fixed(data_type, count, offsets)


class _Timestamps:
    def __init__(self, _topic: str, _partition: int) -> None:
        self._columns: list[Buffer] = []

    def add(self, rows: _Rows) -> None:
        header = rows.header
        if header.log_append_time:
            self._columns.append(_U64.pack(header.append_timestamp) * rows.number)
        else:
            timestamps = rows.payload.timestamps
            self._columns.append(timestamps[rows.start * U64_BYTES : rows.stop * U64_BYTES])

    def to_arrow(self, data_type: pa.DataType, count: int) -> pa.Array:
        timestamps = u64_array(_joined(self._columns)).view("<i8") * _US_PER_MS
        return _fixed(data_type, count, timestamps)


class _PerBatch:
    """A number that all rows of a batch have in common."""

    def __init__(self, number: Callable[[BatchHeader], int]) -> None:
        self._number = number
        self._columns: list[Buffer] = []

    def add(self, rows: _Rows) -> None:
        self._columns.append(_I32.pack(self._number(rows.header)) * rows.number)

    def to_arrow(self, data_type: pa.DataType, count: int) -> pa.Array:
        return _fixed(data_type, count, _joined(self._columns))


class _Entries:
    """Entries of several batches, to become the buffers of one binary or string array."""

    def __init__(self, what: str) -> None:
        self.count = 0
        self._what = what
        self._lengths: list[Buffer] = []
        self._blobs: list[Buffer] = []
        self._nulls: list[slice | npt.NDArray[np.int64]] = []
        self._is_all_null = True

    def add_entries(
        self,
        start: int,
        stop: int,
        lengths: memoryview | None,
        blob: memoryview,
        nulls: memoryview | None,
    ) -> None:
        """Add the entries ``start`` to ``stop``. ``nulls``: the rows that are null."""
        count = stop - start
        if lengths is None:
            self._lengths.append(bytes(count * U32_BYTES))
            self._nulls.append(slice(self.count, self.count + count))
        else:
            self._is_all_null = False
            if count * U32_BYTES != len(lengths):
                first = total(lengths[: start * U32_BYTES])
                lengths = lengths[start * U32_BYTES : stop * U32_BYTES]
                blob = blob[first : first + total(lengths)]
            self._lengths.append(lengths)
            self._blobs.append(blob)
            if nulls is not None:
                first, last = first_at_least(nulls, start), first_at_least(nulls, stop)
                rows = u32_array(nulls[first * U32_BYTES : last * U32_BYTES]).astype("i8")
                self._nulls.append(rows + (self.count - start))
        self.count += count

    def to_arrow(self, data_type: pa.DataType, count: int) -> pa.Array:
        import numpy as np

        pa = _pyarrow()
        if self._is_all_null:
            return pa.nulls(count, data_type)
        validity = None
        if self._nulls:
            is_valid = np.ones(count, np.bool_)
            for rows in self._nulls:
                is_valid[rows] = False
            validity = _bitmap(is_valid)
        size_bytes = sum(map(len, self._blobs))
        ends = _ends(u32_array(_joined(self._lengths)), size_bytes, self._what)
        blob = pa.py_buffer(_joined(self._blobs))
        return pa.Array.from_buffers(data_type, count, [validity, ends, blob])


class _Keys(_Entries):
    def __init__(self, _topic: str, _partition: int) -> None:
        super().__init__("keys")

    def add(self, rows: _Rows) -> None:
        at = rows.payload
        self.add_entries(rows.start, rows.stop, at.key_lengths, at.key_blob, at.key_nulls)


class _Values(_Entries):
    def __init__(self, _topic: str, _partition: int) -> None:
        super().__init__("values")

    def add(self, rows: _Rows) -> None:
        at = rows.payload
        self.add_entries(rows.start, rows.stop, at.value_lengths, at.value_blob, at.value_nulls)


class _Headers:
    def __init__(self, _topic: str, _partition: int) -> None:
        self._counts: list[Buffer] = []
        self._names = _Entries("header names")
        self._values = _Entries("header values")

    def add(self, rows: _Rows) -> None:
        headers = rows.payload.headers
        if headers is None:
            self._counts.append(bytes(rows.number * U32_BYTES))
            return
        counts = headers.counts[rows.start * U32_BYTES : rows.stop * U32_BYTES]
        first = total(headers.counts[: rows.start * U32_BYTES])
        last = first + total(counts)
        self._counts.append(counts)
        self._names.add_entries(first, last, headers.name_lengths, headers.name_blob, None)
        self._values.add_entries(
            first, last, headers.value_lengths, headers.value_blob, headers.value_nulls
        )

    def to_arrow(self, data_type: pa.DataType, count: int) -> pa.Array:
        pa = _pyarrow()
        held = self._names.count
        if not held:
            return pa.nulls(count, data_type)
        pair = data_type.value_type
        pairs = pa.StructArray.from_arrays(
            [
                self._names.to_arrow(pair.field("key").type, held),
                self._values.to_arrow(pair.field("value").type, held),
            ],
            fields=list(pair),
        )
        counts = u32_array(_joined(self._counts))
        buffers = [_bitmap(counts > 0), _ends(counts, held, "headers")]
        return pa.Array.from_buffers(data_type, count, buffers, children=[pairs])


_BUILDERS: Final[Mapping[str, Callable[[str, int], _Builder]]] = {
    "topic": _Topic,
    "partition": _Partition,
    "offset": _Offsets,
    "key": _Keys,
    "value": _Values,
    "headers": _Headers,
    "timestamp": _Timestamps,
    "leader_epoch": lambda _topic, _partition: _PerBatch(lambda header: header.leader_epoch),
    TIMESTAMP_TYPE: lambda _topic, _partition: _PerBatch(lambda header: header.log_append_time),
}


# -- Arrow buffers ---------------------------------------------------------------------------------


def _fixed(data_type: pa.DataType, count: int, numbers: Buffer | npt.NDArray[Any]) -> pa.Array:
    pa = _pyarrow()
    return pa.Array.from_buffers(data_type, count, [None, pa.py_buffer(numbers)])


def _joined(buffers: list[Buffer]) -> Buffer:
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


def _ends(counts: npt.NDArray[np.uint32], size: int, what: str) -> pa.Buffer:
    """Return the buffer of a 0 and the end of each entry. ``size`` is the sum of ``counts``."""
    import numpy as np

    _check_size(size, what)
    ends = np.zeros(len(counts) + 1, np.int32)
    ends[1:] = counts
    np.cumsum(ends, out=ends)
    return _pyarrow().py_buffer(ends)


def _bitmap(is_valid: npt.NDArray[np.bool_]) -> pa.Buffer:
    import numpy as np

    return _pyarrow().py_buffer(np.packbits(is_valid, bitorder="little"))


def _check_size(size: int, what: str) -> None:
    if size > _ARROW_OFFSET_MAX:
        raise InvalidRequestError(
            f"{what} of {size} together, over the {_ARROW_OFFSET_MAX} of one Arrow array. Decode "
            "fewer batches at a time"
        )


# -- arrow encoder ---------------------------------------------------------------------------------
#
# Encode Arrow arrays as a batch body, buffer by buffer: the inverse of ``arrow``.
#
# Bytes and errors are those of ``encode`` for the same records. Requires the extra ``arrow``.


NULL_JOINED: Final = JoinedColumn(None, b"", None)


def encode_arrow(
    values: pa.Array,
    *,
    keys: pa.Array | None = None,
    headers: pa.Array | None = None,
    timestamps_ms: int | pa.Array | npt.NDArray[np.int64],
    codec: Codec = Codec.NONE,
    level: int | None = None,
) -> BatchBody:
    """Encode and compress the records of one batch, as ``encode`` does for Python values.

    ``values``, ``keys``: arrays, chunked arrays or slices of bytes or text (stored as UTF-8), with
    nulls. ``headers``: lists of structs of a name, ``key``, and a ``value``; null or empty for a
    record without headers. ``timestamps_ms``: one for all records, or one for each.

    Raises ``TypeError`` for an array of another type, ``InvalidRequestError`` for counts,
    timestamps, headers and levels, and ``RecordTooLargeError`` for records that do not fit into a
    batch.
    """
    compression.check_level(codec, level)
    count = count_of(values, keys, headers)
    timestamps, first_timestamp_ms, max_timestamp_ms = _timestamps(timestamps_ms, count)
    payload = write(
        count,
        timestamps=timestamps,
        offsets=None,
        keys=NULL_JOINED if keys is None else _column(keys, "key"),
        values=_column(values, "value"),
        headers=None if headers is None else _headers(headers),
    )
    return body_of(
        payload,
        codec=codec,
        level=level,
        record_count=count,
        first_timestamp_ms=first_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        last_offset_delta=count - 1,
    )


class Octets(NamedTuple):
    """An array's entries: the start and end of each in ``blob``. A null entry is empty."""

    ends: npt.NDArray[Any]  # one more than entries: the start of the first, then each end
    blob: npt.NDArray[np.uint8]
    nulls: npt.NDArray[np.int64] | None  # their rows, ascending, if there are any

    @property
    def lengths(self) -> npt.NDArray[Any]:
        lengths: npt.NDArray[Any] = self.ends[1:] - self.ends[:-1]
        return lengths


def octets_of(array: pa.Array | pa.ChunkedArray, what: str) -> Octets | None:
    """Return the entries of an array of bytes or text; None if all are null.

    Copies only bytes of null entries, several chunks, and views. Raises ``TypeError`` for an array
    of another type. ``what``: the name of the entries in the error.
    """
    array = _flat(array, what)
    if array.null_count == len(array):
        return None
    nulls = _null_rows(array) if array.null_count else None
    ends, blob = _ends_and_blob(array)
    if nulls is not None and (ends[nulls + 1] != ends[nulls]).any():
        is_text = "string" in str(array.type)
        ends, blob = _ends_and_blob(array.fill_null("" if is_text else b""))
    return Octets(ends, blob, nulls)


def _flat(array: pa.Array | pa.ChunkedArray, what: str) -> pa.Array:
    """Return the array as one array of a type that has a blob."""
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if not isinstance(array, pa.Array):
        raise TypeError(f"{what}s of type {type(array).__name__}. Pass a pyarrow array")
    types, kind = pa.types, array.type
    if (
        types.is_binary(kind)
        or types.is_string(kind)
        or types.is_large_binary(kind)
        or types.is_large_string(kind)
        or types.is_null(kind)
    ):
        return array
    if types.is_fixed_size_binary(kind) or types.is_binary_view(kind) or types.is_string_view(kind):
        return array.cast(pa.large_binary())
    raise TypeError(
        f"{what}s of Arrow's type {kind}, not bytes. Cast them to binary or string first"
    )


def _ends_and_blob(array: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    import numpy as np

    number = np.dtype(np.int64 if str(array.type).startswith("large_") else np.int32)
    _, ends, blob = array.buffers()
    return (
        np.frombuffer(ends, number, len(array) + 1, array.offset * number.itemsize),
        np.frombuffer(b"" if blob is None else blob, np.uint8),
    )


def _null_rows(array: pa.Array) -> npt.NDArray[np.int64]:
    import numpy as np

    first, shift = divmod(array.offset, 8)
    bits = np.frombuffer(array.buffers()[0], np.uint8)[first:]
    is_valid = np.unpackbits(bits, count=shift + len(array), bitorder="little")
    return np.flatnonzero(is_valid[shift:] == 0)


def _column(array: pa.Array | pa.ChunkedArray, what: str) -> JoinedColumn:
    octets = octets_of(array, what)
    if octets is None:
        return NULL_JOINED
    ends, blob, nulls = octets
    return JoinedColumn(
        octets.lengths.astype("<u4").tobytes(),
        blob[int(ends[0]) : int(ends[-1])].data,
        None if nulls is None else nulls.astype("<u4").tobytes(),
    )


def _timestamps(
    timestamps_ms: int | pa.Array | npt.NDArray[np.int64], count: int
) -> tuple[bytes, int, int]:
    """Return the column of timestamps, the first and the highest."""
    import numpy as np
    import pyarrow as pa

    if isinstance(timestamps_ms, int):
        return timestamps_of(timestamps_ms, count)
    if isinstance(timestamps_ms, pa.Array | pa.ChunkedArray):
        if timestamps_ms.null_count:
            raise no_timestamps(count, f"{timestamps_ms.null_count} are null")
        kind = str(timestamps_ms.type)
        numbers = np.asarray(timestamps_ms)
    else:
        numbers = np.asarray(timestamps_ms)
        kind = str(numbers.dtype)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise no_timestamps(count, f"they are of type {kind}")
    if len(numbers) != count:
        raise no_timestamps(count, f"there are {len(numbers)}")
    if numbers.min() < 0:
        raise no_timestamps(count, f"one is {numbers.min()}")
    highest = int(numbers.max())
    check_highest(highest)
    return numbers.astype("<u8").tobytes(), int(numbers[0]), highest


def _headers(array: pa.Array | pa.ChunkedArray) -> HeaderRows | None:
    """Return the array of headers, or None if no record has headers."""
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    kind = array.type
    if pa.types.is_null(kind):
        return None
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    fields = set(kind.value_type.names) if is_list and pa.types.is_struct(kind.value_type) else None
    if fields != {"key", "value"}:
        raise _no_headers(f"these are of Arrow's type {kind}, not list<struct<key, value>>")
    pairs = array.flatten()  # without entries under nulls or outside the slice
    check_header_count(len(pairs))
    if not len(pairs):
        return None
    names, values = pairs.field("key"), pairs.field("value")
    if pairs.null_count or names.null_count:
        raise _no_headers("one is null, or its name is")
    if not any(is_text(names.type) for is_text in (pa.types.is_string, pa.types.is_large_string)):
        raise _no_headers(f"the names are of Arrow's type {names.type}")
    try:
        names.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _no_headers(error) from error
    counts = array.value_lengths().fill_null(0)
    size = names.nbytes + values.nbytes
    if size > limits.BATCH_UNCOMPRESSED_BYTES_MAX:
        raise RecordTooLargeError(
            f"headers of {size} bytes, over the {limits.BATCH_UNCOMPRESSED_BYTES_MAX} that one "
            "batch may have. Send fewer records in a batch"
        )
    packed = counts.to_numpy().astype("<u4").tobytes()
    return header_rows(packed, _column(names, "header name"), _column(values, "header value"))


def _no_headers(reason: object) -> InvalidRequestError:
    return InvalidRequestError(
        f"a record's headers are pairs of a name (str) and a value (bytes or None): {reason}"
    )


# -- arrow keys ------------------------------------------------------------------------------------
#
# The partitions of the keys of an Arrow array: ``key_hash`` for all keys at a time.
#
# MurmurHash2 of 32 bits (Austin Appleby, public domain, MurmurHash2.cpp) processes a key four bytes
# at a time. Here each step processes one word of all keys. Keys are sorted by their number of
# words, longest first, so that the keys with a word left are always a prefix of the array.


NO_PARTITION: Final = -1  # of a record without a key

_M: Final = 0x5BD1E995
_WORD: Final = 4
_LONG: Final = 256  # bytes; longer keys, of which there are few, are hashed one by one
_ROWS: Final = 8_192  # at a time: intermediate results fit into the processor's cache


def partitions_of_arrow(keys: pa.Array | pa.ChunkedArray, count: int) -> npt.NDArray[np.int64]:
    """Return the partition of each key among ``count``, as ``partition_of_key``; -1 for a null.

    ``keys``: an array of bytes or text (hashed as UTF-8). Raises ``InvalidRequestError`` if
    ``count`` is out of range, and ``TypeError`` for an array of another type.
    """
    import numpy as np

    if not 1 <= count <= limits.PARTITIONS_PER_TOPIC_MAX:
        raise InvalidRequestError(
            f"{count} partitions: a topic has 1 to {limits.PARTITIONS_PER_TOPIC_MAX}"
        )
    octets = octets_of(keys, "key")
    if octets is None:
        return np.full(len(keys), NO_PARTITION, np.int64)
    ends, blob, nulls = octets
    found = np.empty(len(ends) - 1, np.uint32)
    for first in range(0, len(found), _ROWS):
        some = ends[first : first + _ROWS + 1]
        found[first : first + _ROWS] = _hashes(blob[int(some[0]) : int(some[-1])], some - some[0])
    found &= np.uint32(POSITIVE)
    found %= np.uint32(count)
    partitions = found.astype(np.int64)
    if nulls is not None:
        partitions[nulls] = NO_PARTITION
    return partitions


def _hashes(blob: npt.NDArray[np.uint8], ends: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Return the hash of each entry of ``blob``. ``ends``: a 0, then the end of each entry."""
    import numpy as np

    lengths = ends[1:] - ends[:-1]
    longest = int(lengths.max())
    if longest == lengths.min() and longest % _WORD == 0 and 0 < longest <= _LONG:
        words = np.frombuffer(blob.tobytes(), "<u4").reshape(len(lengths), longest // _WORD)
        hashes = np.full(len(lengths), KAFKA_SEED ^ longest, np.uint32)
        for column in words.T:
            _mix(hashes, column * np.uint32(_M))
        return _finish(hashes)
    if longest > _LONG:
        return _hashes_with_long(blob, ends, lengths)
    return _hashes_of_any(blob, ends[:-1], lengths)


def _hashes_with_long(
    blob: npt.NDArray[np.uint8], ends: npt.NDArray[Any], lengths: npt.NDArray[Any]
) -> npt.NDArray[np.uint32]:
    import numpy as np

    hashes = np.empty(len(lengths), np.uint32)
    is_long = lengths > _LONG
    short = np.flatnonzero(~is_long)
    if len(short):
        hashes[short] = _hashes_of_any(blob, ends[short], lengths[short])
    octets = blob.data
    for row in np.flatnonzero(is_long).tolist():
        key = bytes(octets[int(ends[row]) : int(ends[row + 1])])
        hashes[row] = murmurhash2(key, KAFKA_SEED)
    return hashes


def _hashes_of_any(
    blob: npt.NDArray[np.uint8], starts: npt.NDArray[Any], lengths: npt.NDArray[Any]
) -> npt.NDArray[np.uint32]:
    """Return the hashes of entries of different lengths, none of them long."""
    import numpy as np

    order = np.argsort(-lengths.astype(np.int16), kind="stable")  # a radix sort, the longest first
    lengths = lengths[order].astype(np.uint32)
    at = starts[order].astype(np.int64)
    padded = np.zeros(len(blob) + _WORD, np.uint8)
    padded[: len(blob)] = blob
    # The four bytes from each byte on, as a word.
    words = np.ndarray(len(blob) + 1, "<u4", padded, strides=(1,))
    hashes = np.uint32(KAFKA_SEED) ^ lengths
    counts = lengths // np.uint32(_WORD)
    has_more = np.searchsorted(-counts.astype(np.int16), -np.arange(int(counts[0])), side="left")
    for still in has_more.tolist():  # how many have a word of this number
        _mix(hashes[:still], words[at[:still]] * np.uint32(_M))
        at[:still] += _WORD
    left = lengths % np.uint32(_WORD)
    rows = np.flatnonzero(left)
    mask = (np.uint32(1) << (left[rows] * np.uint32(8))) - np.uint32(1)
    hashes[rows] = (hashes[rows] ^ (words[at[rows]] & mask)) * np.uint32(_M)
    result = np.empty_like(hashes)
    result[order] = _finish(hashes)
    return result


def _mix(hashes: npt.NDArray[np.uint32], words: npt.NDArray[np.uint32]) -> None:
    """One round, in place. ``words``: the entries' next ones, multiplied once; written to."""
    import numpy as np

    words ^= words >> np.uint32(24)
    words *= np.uint32(_M)
    hashes *= np.uint32(_M)
    hashes ^= words


def _finish(hashes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    import numpy as np

    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(_M)
    hashes ^= hashes >> np.uint32(15)
    return hashes
