"""Compaction of batches: retained rows are written to new batches that cover the same offsets.

The caller selects the rows. ``Rewriter`` accepts batches in offset order and returns the batches to
store instead, which cover the same offsets without a gap:

    before   [0 1 2 3] [4 5] [6 7 8] [9]        each with its own chain value: a, b, c, d
    kept       1         5      7
    after    [. 1 . . . 5 . 7 . .]              chain value d: the next batch follows from it

- Batches of one leader epoch are joined up to the size limit; a batch never spans two epochs.
- A batch that loses no record, and is not small, is stored unchanged.
- The last batch of a producer stays a separate batch, possibly without records: a replica without
  a producer snapshot reads the producer's sequence from its header.
- A marker is stored unchanged, or removed. The committed records of a transaction become plain
  ones, so that they do not need its marker.

numpy and the interpreter's iterators copy the columns: no Python code runs per record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import compress as pick
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from raftlog import limits
from raftlog.record import compression, payload
from raftlog.record.batch import (
    HEADER_BYTES,
    BatchBody,
    BatchHeader,
    parse_header,
    seal,
    stamp_compacted,
)
from raftlog.record.codec import open_batch
from raftlog.record.compression import Codec
from raftlog.record.payload import NULL_COLUMN, Column, HeaderColumns, HeaderRows, Payload
from raftlog.types import NO_PRODUCER_ID, NO_SEQUENCE, Buffer

Mask: TypeAlias = npt.NDArray[np.bool_]

# Bytes; a batch of this size that loses no record is stored unchanged. Smaller ones are joined.
COPIED_BYTES_MIN: Final = 64 * limits.KIB
_NO_INTEGERS: Final = np.zeros(0, np.uint32)


# -- original batches ------------------------------------------------------------------------------


class Original(NamedTuple):
    """A batch to compact: checked and unpacked. ``offsets``: the offset of each record."""

    header: BatchHeader
    data: Buffer
    rows: Payload
    offsets: npt.NDArray[np.int64]

    @property
    def has_keys(self) -> bool:
        """Whether any record has a key."""
        return self.rows.key_lengths is not None

    @property
    def is_marker(self) -> bool:
        """Whether it is a control batch. Its record has a key that no other record replaces."""
        return self.header.is_control

    def keys(self) -> list[bytes]:
        """The key of each record; ``b""`` without a key. Only valid if ``has_keys``."""
        assert self.rows.key_lengths is not None
        read = BytesIO(self.rows.key_blob).read
        return list(map(read, payload.u32(self.rows.key_lengths)))

    def keyed(self) -> Mask:
        """A mask of the records that have a key."""
        return ~_nulls(self.header.record_count, self.rows.key_lengths, self.rows.key_nulls)

    def tombstones(self) -> Mask:
        """A mask of the records that have no value."""
        return _nulls(self.header.record_count, self.rows.value_lengths, self.rows.value_nulls)


def open_original(data: Buffer) -> Original:
    """Check and unpack exactly one stored batch. Raises ``CorruptBatchError``."""
    header, rows = open_batch(data, check_crc=True)
    base = header.base_offset
    if rows.offsets is None:
        offsets = np.arange(base, base + header.record_count, dtype=np.int64)
    else:
        offsets = payload.u32_array(rows.offsets) + np.int64(base)
    return Original(header, data, rows, offsets)


def _nulls(count: int, lengths: Buffer | None, nulls: Buffer | None) -> Mask:
    found = np.full(count, lengths is None)
    if nulls is not None:
        found[payload.u32_array(nulls)] = True
    return found


# -- retained records ------------------------------------------------------------------------------


class _Entries(NamedTuple):
    """Kept entries of a column. ``lengths`` None: every entry is null."""

    entry_count: int
    lengths: npt.NDArray[np.uint32] | None
    blob: Buffer
    nulls: npt.NDArray[np.uint32]  # rows


class _Part(NamedTuple):
    """The retained records of one batch."""

    timestamps: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.int64]
    keys: _Entries
    values: _Entries
    header_counts: npt.NDArray[np.uint32] | None
    header_names: _Entries
    header_values: _Entries
    size_bytes: int


_NO_ENTRIES: Final = _Entries(0, None, b"", _NO_INTEGERS)


def _part(original: Original, kept: Mask | None, count: int) -> _Part:
    """Return the ``count`` records that ``kept`` marks; None marks all."""
    header, rows = original.header, original.rows
    offsets = original.offsets if kept is None else original.offsets[kept]
    if header.log_append_time:
        timestamps = np.full(count, header.append_timestamp, np.uint64)
    else:
        timestamps = payload.u64_array(rows.timestamps)
        timestamps = timestamps if kept is None else timestamps[kept]
    keys = _entries(rows.key_lengths, rows.key_blob, rows.key_nulls, kept, count)
    values = _entries(rows.value_lengths, rows.value_blob, rows.value_nulls, kept, count)
    counts, names, header_values = _header_entries(rows.headers, kept)
    fixed = count * (payload.U64_BYTES + 3 * payload.U32_BYTES)  # time, offset, two lengths
    heads = len(names.blob) + len(header_values.blob) + 2 * payload.U32_BYTES * names.entry_count
    size = fixed + len(keys.blob) + len(values.blob) + heads
    return _Part(timestamps, offsets, keys, values, counts, names, header_values, size)


def _entries(
    lengths: memoryview | None,
    blob: memoryview,
    nulls: memoryview | None,
    kept: Mask | None,
    count: int,
) -> _Entries:
    if lengths is None:
        return _Entries(count, None, b"", _NO_INTEGERS)
    all_lengths = payload.u32_array(lengths)
    rows = _NO_INTEGERS if nulls is None else payload.u32_array(nulls)
    if kept is None:
        return _Entries(count, all_lengths, blob, rows)
    read = BytesIO(blob).read
    taken = b"".join(pick(map(read, payload.u32(lengths)), kept.tobytes()))
    if nulls is not None:
        new_rows = np.cumsum(kept, dtype=np.uint32) - np.uint32(1)
        rows = new_rows[rows[kept[rows]]]
    return _Entries(count, all_lengths[kept], taken, rows)


def _header_entries(
    headers: HeaderColumns | None, kept: Mask | None
) -> tuple[npt.NDArray[np.uint32] | None, _Entries, _Entries]:
    """Return the number of headers of each record, the names and the values."""
    if headers is None:
        return None, _NO_ENTRIES, _NO_ENTRIES
    counts = payload.u32_array(headers.counts)
    mask = None if kept is None else np.repeat(kept, counts)
    counts = counts if kept is None else counts[kept]
    held = int(counts.sum())
    names = _entries(headers.name_lengths, headers.name_blob, None, mask, held)
    values = _entries(headers.value_lengths, headers.value_blob, headers.value_nulls, mask, held)
    return counts, names, values


# -- batches to store ------------------------------------------------------------------------------


class Rewritten(NamedTuple):
    """A batch to store: the concatenated ``buffers``, which start with ``header``."""

    header: BatchHeader
    buffers: tuple[Buffer, ...]


@dataclass(slots=True)
class _Run:
    """Batches of one epoch that are joined. ``last`` is the header of the last of them.

    ``only``: the batch, if there is one only and it loses no record: it can be stored unchanged.
    """

    base_offset: int
    last: BatchHeader
    only: Original | None = None
    parts: list[_Part] = field(default_factory=list)
    record_count: int = 0
    header_count: int = 0
    size_bytes: int = 0

    def add(self, last: BatchHeader, part: _Part | None) -> None:
        self.last = last
        if part is not None:
            self.parts.append(part)
            self.record_count += len(part.offsets)
            self.header_count += part.header_names.entry_count
            self.size_bytes += part.size_bytes


class Rewriter:
    """Accepts consecutive batches and returns the batches to store instead, in order.

    Keeps about ``bytes_target`` bytes, and one more batch, in memory.
    """

    def __init__(self, *, bytes_target: int) -> None:
        """``bytes_target``: the most bytes of a joined batch before compression."""
        self._bytes_target = bytes_target
        self._run: _Run | None = None

    def add(
        self, original: Original, kept: Mask, *, keeps_producer: bool = False
    ) -> list[Rewritten]:
        """Add the next batch and retain the records that ``kept`` marks.

        ``keeps_producer``: it stays a separate batch, with its producer's sequence.
        """
        header = original.header
        count = int(np.count_nonzero(kept))
        is_whole = count == header.record_count
        is_marker = original.is_marker and is_whole
        may_stay = is_marker or (is_whole and not header.is_transactional)
        if keeps_producer or is_marker:
            alone = _as_it_is(original) if may_stay else _alone(original, kept, count)
            return [*self.finish(), alone]
        run = self._run
        is_large = may_stay and header.length >= COPIED_BYTES_MIN
        if is_large and (run is None or run.parts or run.last.leader_epoch != header.leader_epoch):
            return [*self.finish(), _as_it_is(original)]
        part = _part(original, None if is_whole else kept, count) if count else None
        done = [] if run is None or self._has_room(run, header, part) else self.finish()
        if self._run is None:
            self._run = _Run(header.base_offset, header, original if may_stay else None)
        else:
            self._run.only = None
        self._run.add(header, part)
        return done

    def _has_room(self, run: _Run, header: BatchHeader, part: _Part | None) -> bool:
        # guard: a compacted batch has one epoch
        if (
            header.leader_epoch != run.last.leader_epoch
            or header.next_offset - 1 - run.base_offset > limits.OFFSET_DELTA_MAX
        ):
            return False
        if part is None or not run.parts:
            return True
        return (
            run.size_bytes + part.size_bytes <= self._bytes_target
            and run.record_count + len(part.offsets) <= limits.RECORDS_PER_BATCH_MAX
            and run.header_count + part.header_names.entry_count <= limits.HEADERS_PER_BATCH_MAX
        )

    def finish(self) -> list[Rewritten]:
        """Return the rewritten batches that were not returned yet."""
        run, self._run = self._run, None
        if run is None:
            return []
        return [_as_it_is(run.only) if run.only is not None else _joined(run)]


def _as_it_is(original: Original) -> Rewritten:
    return Rewritten(original.header, (original.data,))


def _alone(original: Original, kept: Mask, count: int) -> Rewritten:
    """Return one batch for one original batch, with its producer fields."""
    header = original.header
    run = _Run(header.base_offset, header)
    run.add(header, _part(original, kept, count) if count else None)
    return _joined(run, producer=(header.producer_id, header.producer_epoch, header.base_sequence))


def _joined(
    run: _Run, *, producer: tuple[int, int, int] = (NO_PRODUCER_ID, -1, NO_SEQUENCE)
) -> Rewritten:
    last = run.last
    producer_id, producer_epoch, base_sequence = producer
    body = _body(run.parts, run.base_offset, last.next_offset - 1 - run.base_offset, last.codec)
    sealed = seal(
        body,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    header = stamp_compacted(
        sealed,
        base_offset=run.base_offset,
        leader_epoch=last.leader_epoch,
        append_timestamp_ms=last.append_timestamp,
        chain=last.chain,
    )
    return Rewritten(parse_header(header), (header, body.payload))


def _body(
    parts: Sequence[_Part], base_offset: int, last_offset_delta: int, codec: Codec
) -> BatchBody:
    count, first_ms, max_ms = 0, 0, 0
    timestamps, offsets = b"", None
    if parts:
        deltas = np.concatenate([part.offsets for part in parts]) - base_offset
        times = np.concatenate([part.timestamps for part in parts])
        count, first_ms, max_ms = len(deltas), int(times[0]), int(times.max())
        timestamps = times.astype("<u8", copy=False).tobytes()
        if count <= last_offset_delta:
            offsets = deltas.astype("<u4").tobytes()
    packed = payload.write(
        count,
        timestamps=timestamps,
        offsets=offsets,
        keys=_column([part.keys for part in parts]),
        values=_column([part.values for part in parts]),
        headers=_header_rows(parts),
    )
    # Layout 1 has no snappy; lz4 is as fast.
    stored, codec = compression.compress(packed, Codec.LZ4 if codec is Codec.SNAPPY else codec)
    assert HEADER_BYTES + len(stored) <= limits.BATCH_BYTES_MAX, "admission leaves room for this"
    return BatchBody(
        payload=stored,
        codec=codec,
        uncompressed_length=len(packed),
        record_count=count,
        first_timestamp_ms=first_ms,
        max_timestamp_ms=max_ms,
        last_offset_delta=last_offset_delta,
    )


def _column(parts: Sequence[_Entries]) -> Column:
    """Join several columns to one, in the format of ``payload``."""
    if all(part.lengths is None for part in parts):
        return NULL_COLUMN
    lengths: list[npt.NDArray[np.uint32]] = []
    nulls: list[npt.NDArray[np.uint32]] = []
    start = 0
    for part in parts:
        if part.lengths is None:
            lengths.append(np.zeros(part.entry_count, np.uint32))
            nulls.append(np.arange(start, start + part.entry_count, dtype=np.uint32))
        else:
            lengths.append(part.lengths)
            if len(part.nulls):
                nulls.append(part.nulls + np.uint32(start))
        start += part.entry_count
    rows = np.concatenate(nulls) if nulls else _NO_INTEGERS
    if len(rows) == start:
        return NULL_COLUMN
    return Column(
        np.concatenate(lengths).astype("<u4", copy=False).tobytes(),
        [part.blob for part in parts],
        sum(len(part.blob) for part in parts),
        rows.astype("<u4", copy=False).tobytes() if len(rows) else None,
    )


def _header_rows(parts: Sequence[_Part]) -> HeaderRows | None:
    if not any(part.header_names.entry_count for part in parts):
        return None
    counts = [
        np.zeros(len(part.offsets), np.uint32) if part.header_counts is None else part.header_counts
        for part in parts
    ]
    return payload.header_rows(
        np.concatenate(counts).astype("<u4", copy=False).tobytes(),
        _column([part.header_names for part in parts if part.header_names.entry_count]),
        _column([part.header_values for part in parts if part.header_names.entry_count]),
    )


# -- part of a batch -------------------------------------------------------------------------------


def tail_of(data: Buffer, from_offset: int) -> bytes:
    """Return a batch with the records from ``from_offset`` on, as columns.

    ``from_offset``: the start of the batch, or an offset inside it.

    For a replica whose log ends there because it has compacted other batches or has not joined
    them. It has the same history, and the result has the same chain value. Raises
    ``CorruptBatchError``.
    """
    original = open_original(data)
    header = original.header
    assert header.base_offset <= from_offset < header.next_offset
    # guard: a part of a batch has only new offsets
    kept = original.offsets >= from_offset
    count = int(np.count_nonzero(kept))
    run = _Run(from_offset, header)
    run.add(header, _part(original, kept, count) if count else None)
    return b"".join(_joined(run).buffers)
