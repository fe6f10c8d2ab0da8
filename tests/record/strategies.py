"""Hypothesis strategies for records, and for batches that somebody has tampered with."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from raftlog import limits
from raftlog.record import HEADER_BYTES, Codec
from raftlog.record.compression import compress
from raftlog.types import Headers
from tests.record.batches import (
    ALL_CODECS,
    NOW_MS,
    batch_of,
    column_of,
    forged,
    headers_of,
    payload_of,
    resealed,
    stamped,
    u32,
    u64,
)

entries = st.none() | st.binary(max_size=40)
timestamps = st.integers(0, limits.TIMESTAMP_MS_MAX) | st.integers(NOW_MS, NOW_MS + 3)
header_rows = st.lists(
    st.tuples(st.text(st.characters(codec="utf-8"), max_size=4), entries), max_size=3
).map(tuple)
codecs = st.sampled_from(ALL_CODECS)
numpy_thresholds = st.sampled_from([1, 256])  # see batches.numpy_from


@dataclass(frozen=True)
class Records:
    """What goes into a batch, a list for each column."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    headers: list[Headers] | None
    timestamps_ms: list[int]
    offset_deltas: list[int] | None

    def encoded(self, codec: Codec) -> bytes:
        return batch_of(
            self.values,
            keys=self.keys,
            headers=self.headers,
            timestamps_ms=self.timestamps_ms,
            offset_deltas=self.offset_deltas,
            codec=codec,
        )


@st.composite
def records(draw: st.DrawFn, count_max: int = 20) -> Records:
    count = draw(st.integers(1, count_max))

    def column(of: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
        return st.lists(of, min_size=count, max_size=count)

    gaps = draw(st.none() | column(st.integers(0, 5)))
    deltas = None if gaps is None else [sum(gaps[: row + 1]) + row for row in range(count)]
    return Records(
        values=draw(column(entries)),
        keys=draw(st.none() | column(entries)),
        headers=draw(st.none() | column(header_rows)),
        timestamps_ms=draw(column(timestamps)),
        offset_deltas=deltas,
    )


@st.composite
def stored_batches(draw: st.DrawFn) -> bytes:
    """A proper batch as some leader stored it."""
    return stamped(
        draw(records()).encoded(draw(codecs)),
        base_offset=draw(st.integers(0, (1 << 63) - 1_000)),
        leader_epoch=draw(st.integers(0, (1 << 31) - 1)),
        log_append_time=draw(st.booleans()),
        previous_chain=draw(st.integers(0, (1 << 64) - 1)),
    )


lying_fields = st.fixed_dictionaries(
    {},
    optional={
        "record_count": st.integers(0, 30),
        "last_offset_delta": st.integers(0, 100),
        "max_timestamp": timestamps,
        "uncompressed_length": st.integers(0, 3_000),
        "attributes": st.integers(0, 70),
        "leader_flags": st.integers(0, 4),
    },
)


@st.composite
def tampered_batches(draw: st.DrawFn) -> bytes:
    """A proper batch with a few bytes of its payload changed, and sums that agree again.

    Bytes are changed before or after it was compressed; now and then the header lies as well.
    """
    codec = draw(codecs)
    data = stamped(draw(records()).encoded(Codec.NONE), base_offset=draw(st.integers(0, 1_000)))
    payload = data[HEADER_BYTES:]
    if draw(st.booleans()):
        payload = draw(tampered(payload))
        stored, codec = compress(payload, codec)
    else:
        stored, codec = compress(payload, codec)
        stored = draw(tampered(stored))
    fields = {
        "length": HEADER_BYTES + len(stored),
        "uncompressed_length": len(stored) if codec is Codec.NONE else len(payload),
        "attributes": int(codec),
    }
    if draw(st.integers(0, 4)) == 0:
        fields |= draw(lying_fields)
    return resealed(data[:HEADER_BYTES] + stored, **fields)


@st.composite
def tampered(draw: st.DrawFn, data: bytes) -> bytes:
    """``data`` with a few bytes changed, cut out or put in."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        position = draw(st.integers(0, len(changed)))
        put_in = draw(st.binary(max_size=4))
        removed = draw(st.just(len(put_in)) | st.integers(0, 4))
        changed[position : position + removed] = put_in
    return bytes(changed)


odd_fields = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.integers(-5, 5),
    st.text(max_size=3),
    st.lists(st.none(), max_size=2),
)


@st.composite
def odd_columns(draw: st.DrawFn) -> bytes:
    """A batch of columns of which one or two are not as they should be, with the right sums."""
    proper = draw(records(count_max=4))
    count = len(proper.values)
    small = st.integers(0, 5) | st.integers(0, (1 << 32) - 1)
    integers = st.lists(small, min_size=count, max_size=count) | st.lists(small, max_size=4)
    odd = integers.map(lambda column: u32(*column)) | integers.map(sorted).map(
        lambda column: u32(*column)
    )
    headers = headers_of(proper.headers or [])
    fields: list[Any] = [
        u64(*[NOW_MS] * count),
        None,
        *column_of(proper.keys or [None] * count),
        *column_of(proper.values),
        *(headers or ()),
    ]
    for _ in range(draw(st.integers(0, 2))):
        fields[draw(st.integers(0, len(fields) - 1))] = draw(odd | odd_fields)
    stamps, offsets = fields[:2]
    payload = payload_of(
        count,
        timestamps=stamps,
        offsets=offsets,
        keys=fields[2:5],
        values=fields[5:8],
        headers=fields[8:] or None,
    )
    last = (
        struct.unpack_from("<I", offsets, len(offsets) - 4)[0] if is_column(offsets) else count - 1
    )
    return forged(payload, record_count=count, last_offset_delta=max(last, count - 1))


def is_column(field: object) -> bool:
    return isinstance(field, bytes) and len(field) >= 4


@st.composite
def garbage_payloads(draw: st.DrawFn) -> bytes:
    """Any bytes for a payload, in a header that is right about them."""
    payload = draw(st.binary(min_size=1, max_size=300))
    return forged(
        payload,
        attributes=draw(codecs),
        uncompressed_length=draw(st.just(len(payload)) | st.integers(9, 1 << 26)),
    )
