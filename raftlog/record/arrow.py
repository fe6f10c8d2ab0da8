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

from raftlog.errors import InvalidRequestError, UnsupportedFeatureError
from raftlog.install import install_command
from raftlog.record.batch import BatchHeader
from raftlog.record.columns import (
    U32_BYTES,
    U64_BYTES,
    first_at_least,
    total,
    u32_array,
    u64_array,
)
from raftlog.record.decoder import first_row, open_batch
from raftlog.record.payload import Payload
from raftlog.types import Buffer, Offset

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

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
    """
    schema = arrow_schema() if columns is None else schema_of(columns)
    built = [(field, _BUILDERS[field.name](topic, partition)) for field in schema]
    adders = [builder.add for _, builder in built if not isinstance(builder, _Constant)]
    count = 0
    for batch in batches:
        header, payload = open_batch(batch, check_crc=check_crc)
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
