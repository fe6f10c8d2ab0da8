"""Batches to one ``pyarrow.RecordBatch``, buffer by buffer: no object per record is ever made.

Needs the extra, ``pip install raftlog[arrow]``. pyarrow is imported by the first call and not
before, so that a program that never asks for Arrow neither needs it nor waits for it.

The columns of several batches are joined first and become Arrow's once, which is what makes many
small batches cheap. The blobs of a single uncompressed batch are not copied: the result holds on to
the batch's memory, so a caller must not write to it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from raftlog.errors import InvalidRequestError, UnsupportedFeatureError
from raftlog.record import columns
from raftlog.record.batch import BatchHeader
from raftlog.record.columns import U32_BYTES, U64_BYTES
from raftlog.record.decoder import first_row, open_batch
from raftlog.record.payload import HeaderColumns, Payload
from raftlog.types import Buffer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_ARROW_OFFSET_MAX: Final = (1 << 31) - 1  # Arrow's binary, string and list count in 32 bits
_US_PER_MS: Final = 1_000
_I32: Final = struct.Struct("=i")  # as Arrow wants it: the machine's own order
_U64: Final = struct.Struct("<Q")


def decode_arrow(
    batches: Sequence[Buffer],
    *,
    topic: str,
    partition: int,
    from_offset: int = 0,
    check_crc: bool = True,
) -> pa.RecordBatch:
    """The records of ``batches`` from ``from_offset`` on, in the schema of ``arrow_schema``.

    ``headers`` is null for a record that has none. ``InvalidRequestError`` when a column would take
    more than the 2 GiB that one Arrow array may have.
    """
    rows = _Rows()
    schema = arrow_schema()
    for batch in batches:
        header, payload = open_batch(batch, check_crc=check_crc)
        rows.add(header, payload, first_row(header, payload, from_offset))
    return rows.to_arrow(schema, topic=topic, partition=partition)


@cache
def arrow_schema() -> pa.Schema:
    """The schema of what ``decode_arrow`` returns. Every field is nullable, as Spark wants it."""
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


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise UnsupportedFeatureError(
            f"reading records as Arrow needs pyarrow: pip install raftlog[arrow] ({error})"
        ) from error
    return pa


class _Rows:
    """The columns of the batches added so far."""

    def __init__(self) -> None:
        self.count = 0
        self.counts: list[int] = []  # rows taken of each batch
        self.shifts: list[int] = []  # of each batch: the offset of a row less its number here
        self.sparse: list[tuple[slice, int, Buffer]] = []  # rows, base offset, deltas to it
        self.timestamps: list[Buffer] = []
        self.epochs: list[Buffer] = []
        self.keys = _Column("keys")
        self.values = _Column("values")
        self.header_counts: list[Buffer] = []
        self.header_names = _Column("header names")
        self.header_values = _Column("header values")

    def add(self, header: BatchHeader, payload: Payload, start: int) -> None:
        """The rows of a batch from ``start`` on."""
        count = header.record_count - start
        if not count:
            return
        self.counts.append(count)
        self.shifts.append(header.base_offset + start - self.count)
        if payload.offsets is not None:
            rows = slice(self.count, self.count + count)
            deltas = payload.offsets[start * U32_BYTES :]
            self.sparse.append((rows, header.base_offset, deltas))
        if header.log_append_time:
            self.timestamps.append(_U64.pack(header.append_timestamp) * count)
        else:
            self.timestamps.append(payload.timestamps[start * U64_BYTES :])
        self.epochs.append(_I32.pack(header.leader_epoch) * count)
        self.count += count
        self.keys.add(start, count, payload.key_lengths, payload.key_blob, payload.key_nulls)
        self.values.add(
            start, count, payload.value_lengths, payload.value_blob, payload.value_nulls
        )
        self._add_headers(start, count, payload.headers)

    def _add_headers(self, start: int, count: int, headers: HeaderColumns | None) -> None:
        if headers is None:
            self.header_counts.append(bytes(count * U32_BYTES))
            return
        first = columns.total(headers.counts[: start * U32_BYTES])
        held = len(headers.name_lengths) // U32_BYTES - first
        self.header_counts.append(headers.counts[start * U32_BYTES :])
        self.header_names.add(first, held, headers.name_lengths, headers.name_blob, None)
        self.header_values.add(
            first, held, headers.value_lengths, headers.value_blob, headers.value_nulls
        )

    def to_arrow(self, schema: pa.Schema, *, topic: str, partition: int) -> pa.RecordBatch:
        import numpy as np

        pa = _pyarrow()
        shifts = np.array(self.shifts, np.int64)
        if len(shifts) != 1:
            shifts = np.repeat(shifts, np.array(self.counts, np.int64))
        offsets = np.arange(self.count) + shifts
        for rows, base_offset, deltas in self.sparse:
            offsets[rows] = columns.u32_array(deltas) + np.int64(base_offset)
        timestamps = columns.u64_array(_joined(self.timestamps)).view("<i8") * _US_PER_MS
        key, value, headers, timestamp = (
            schema.field(name).type for name in ("key", "value", "headers", "timestamp")
        )
        return pa.RecordBatch.from_arrays(
            [
                _repeated(topic, self.count),
                self._fixed(pa.int32(), _I32.pack(partition) * self.count),
                self._fixed(pa.int64(), offsets),
                self.keys.to_arrow(key),
                self.values.to_arrow(value),
                self._headers_to_arrow(headers),
                self._fixed(timestamp, timestamps),
                self._fixed(pa.int32(), _joined(self.epochs)),
            ],
            schema=schema,
        )

    def _fixed(self, data_type: pa.DataType, numbers: Buffer | npt.NDArray[Any]) -> pa.Array:
        pa = _pyarrow()
        return pa.Array.from_buffers(data_type, self.count, [None, pa.py_buffer(numbers)])

    def _headers_to_arrow(self, list_type: pa.DataType) -> pa.Array:
        pa = _pyarrow()
        if not self.header_names.count:
            return pa.nulls(self.count, list_type)
        struct_type = list_type.value_type
        pairs = pa.StructArray.from_arrays(
            [
                self.header_names.to_arrow(struct_type.field("key").type),
                self.header_values.to_arrow(struct_type.field("value").type),
            ],
            fields=list(struct_type),
        )
        counts = columns.u32_array(_joined(self.header_counts))
        buffers = [_bitmap(counts > 0), _ends(counts, len(pairs), "headers")]
        return pa.Array.from_buffers(list_type, self.count, buffers, children=[pairs])


class _Column:
    """Entries of several batches, to become the buffers of one binary or string array."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.count = 0
        self.lengths: list[Buffer] = []
        self.blobs: list[Buffer] = []
        self.nulls: list[slice | npt.NDArray[np.int64]] = []
        self.is_all_null = True

    def add(
        self,
        start: int,
        count: int,
        lengths: memoryview | None,
        blob: memoryview,
        nulls: memoryview | None,
    ) -> None:
        """The ``count`` entries from ``start`` on."""
        if lengths is None:
            self.lengths.append(bytes(count * U32_BYTES))
            self.nulls.append(slice(self.count, self.count + count))
        else:
            self.is_all_null = False
            first = columns.total(lengths[: start * U32_BYTES]) if start else 0
            self.lengths.append(lengths[start * U32_BYTES :])
            self.blobs.append(blob[first:])
            if nulls is not None:
                kept = nulls[columns.first_at_least(nulls, start) * U32_BYTES :]
                rows = columns.u32_array(kept).astype("i8")
                self.nulls.append(rows + (self.count - start))
        self.count += count

    def to_arrow(self, data_type: pa.DataType) -> pa.Array:
        import numpy as np

        pa = _pyarrow()
        if self.is_all_null:
            return pa.nulls(self.count, data_type)
        validity = None
        if self.nulls:
            is_valid = np.ones(self.count, np.bool_)
            for rows in self.nulls:
                is_valid[rows] = False
            validity = _bitmap(is_valid)
        size_bytes = sum(map(len, self.blobs))
        ends = _ends(columns.u32_array(_joined(self.lengths)), size_bytes, self.what)
        blob = pa.py_buffer(_joined(self.blobs))
        return pa.Array.from_buffers(data_type, self.count, [validity, ends, blob])


def _joined(buffers: list[Buffer]) -> Buffer:
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


def _repeated(text: str, count: int) -> pa.Array:
    """``text``, ``count`` times."""
    import numpy as np

    pa = _pyarrow()
    octets = text.encode()
    size_bytes = len(octets) * count
    _check_size(size_bytes, "topic names")
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(octets))
    blob = pa.py_buffer(octets * count)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), blob])


def _ends(counts: npt.NDArray[np.uint32], total: int, what: str) -> pa.Buffer:
    """The buffer that says where each entry ends, after a 0. ``total`` is the sum of ``counts``."""
    import numpy as np

    _check_size(total, what)
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
            f"{what} of {size} together, over the {_ARROW_OFFSET_MAX} of one Arrow array: decode "
            "fewer batches at a time"
        )
