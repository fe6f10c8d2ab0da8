"""Batches for tests: proper ones in a line, and forged ones whose sums are right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgpack

from raftlog.record import LEADER_BYTES, BatchHeader, encode, parse_header, seal, stamp
from raftlog.record import batch as batch_module
from raftlog.record import payload as columns
from raftlog.record.batch import crc32c
from raftlog.record.compression import COLUMN_CODECS
from raftlog.types import Buffer, Headers

NOW_MS: Final = 1_700_000_000_000
BAR: Final = "\N{BOX DRAWINGS LIGHT VERTICAL}"  # three bytes of UTF-8


def batch_of(
    values: Sequence[Buffer | None],
    *,
    timestamps_ms: int | Sequence[int] = NOW_MS,
    producer: tuple[int, int, int] = (-1, -1, -1),
    is_transactional: bool = False,
    **options: Any,
) -> bytes:
    """A batch as a producer sends it; ``producer`` is (id, epoch, base sequence)."""
    body = encode(values, timestamps_ms=timestamps_ms, **options)
    producer_id, producer_epoch, base_sequence = producer
    header = seal(
        body,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
    )
    return header + body.payload


def stamped(
    data: bytes,
    *,
    base_offset: int = 0,
    leader_epoch: int = 0,
    append_timestamp_ms: int = NOW_MS,
    log_append_time: bool = False,
    previous_chain: int = 0,
) -> bytes:
    """The batch as a leader stores it."""
    section, _ = stamp(
        parse_header(data),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        append_timestamp_ms=append_timestamp_ms,
        log_append_time=log_append_time,
        previous_chain=previous_chain,
    )
    return section + data[LEADER_BYTES:]


def resealed(data: bytes, **fields: int) -> bytes:
    """The batch with other header ``fields``, and sums that agree with whatever is there."""
    packed = batch_module._HEADER.unpack_from(data)
    header = BatchHeader._make(packed)._replace(**fields)
    raw = bytearray(batch_module._HEADER.pack(*header) + data[batch_module.HEADER_BYTES :])
    if "leader_crc" not in fields:
        raw[36:40] = crc32c(bytes(raw[:36])).to_bytes(4, "little")
    if "crc32c" not in fields:
        raw[40:44] = crc32c(bytes(raw[44:])).to_bytes(4, "little")
    return bytes(raw)


def forged(payload: bytes, **fields: int) -> bytes:
    """A batch of one record at ``NOW_MS`` around any ``payload``, but for the ``fields`` given."""
    data = batch_of([b""])[: batch_module.HEADER_BYTES] + payload
    fields = {"length": len(data), "uncompressed_length": len(payload)} | fields
    return resealed(data, **fields)


def u32(*integers: int) -> bytes:
    return columns.pack_u32(integers)


def u64(*integers: int) -> bytes:
    return columns.pack_u64(integers)


def payload_of(
    count: int,
    *,
    timestamps: object = None,
    offsets: object = None,
    keys: Sequence[object] = (None, b"", None),
    values: Sequence[object] = (None, b"", None),
    headers: object = None,
) -> bytes:
    """The payload drawn in ``raftlog.record.payload``, by another library's hand."""
    stamps = u64(*[NOW_MS] * count) if timestamps is None else timestamps
    packed: bytes = msgpack.packb([count, stamps, offsets, *keys, *values, headers])
    return packed


def column_of(entries: Sequence[bytes | None]) -> tuple[bytes | None, bytes, bytes | None]:
    """One column as drawn, the slow way."""
    nulls = [row for row, entry in enumerate(entries) if entry is None]
    if len(nulls) == len(entries):
        return None, b"", None
    octets = [entry or b"" for entry in entries]
    return u32(*map(len, octets)), b"".join(octets), u32(*nulls) if nulls else None


def headers_of(rows: Sequence[Headers]) -> list[bytes | None] | None:
    """The headers' array as drawn, the slow way."""
    pairs = [pair for row in rows for pair in row]
    if not pairs:
        return None
    names = column_of([name.encode() for name, _ in pairs])
    return [u32(*map(len, rows)), *names[:2], *column_of([value for _, value in pairs])]


@contextmanager
def numpy_from(integers: int) -> Iterator[None]:
    """Let numpy take over from ``integers`` on: tests of a handful of records then reach it."""
    usual = columns.NUMPY_FROM
    columns.NUMPY_FROM = integers
    try:
        yield
    finally:
        columns.NUMPY_FROM = usual


ALL_CODECS: Final = COLUMN_CODECS
