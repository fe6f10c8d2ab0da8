"""The payload of layout 2: the records section of a Kafka batch. Converts rows to columns and back.

    kafka_crc u32 BE | kafka_attributes i16 BE | base_timestamp i64 BE | the records section as sent

The first three are fields of the batch that the Kafka client sent (``raftlog.record.kafka_batch``).
The header's ``first_timestamp`` and ``max_timestamp`` are computed from the records, its
``uncompressed_length`` is that of the payload with its records section decompressed.

The records section is compressed as a whole (``raftlog.record.kafka_compression``). It contains one
record after the other. All integers are zigzag varints of up to 5 bytes, or 10 in a ``varlong``:

    length | attributes i8, unused | timestamp delta varlong | offset delta |
    key length, -1: null | key | value length, -1: null | value | header count | headers

    header    name length | name, UTF-8 | value length, -1: null | value

A record ends where its length specifies; the next one begins there. Source: Kafka's documentation,
"Record Batch" and "Record".

The chain of lengths costs one step of Python for each record, except in runs of records of equal
length, which numpy compares at once. numpy also decodes the other varints of many records at once.
Below ``NUMPY_FROM`` records, and without numpy, Python decodes them. Both readers accept the same
bytes.
"""

from __future__ import annotations

import operator
import struct
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from io import BytesIO
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from raftlog import limits
from raftlog.errors import CorruptBatchError
from raftlog.record import kafka_compression
from raftlog.record import payload as columns
from raftlog.record.batch import BatchHeader
from raftlog.record.payload import HeaderColumns, Payload, pack_u32, pack_u64
from raftlog.types import NO_TIMESTAMP, Buffer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Octets: TypeAlias = npt.NDArray[np.uint8]
    Integers: TypeAlias = npt.NDArray[np.int64]

PREFIX: Final = struct.Struct(">Ihq")
# Records; below this number Python is faster than the calls into numpy (40 us per batch).
NUMPY_FROM: Final = 64 if find_spec("numpy") is not None else sys.maxsize
# Records; with more of them, numpy checks faster than ``_check_plain``.
CHECKED_IN_PYTHON_MAX: Final = 256

_PART_RECORDS: Final = 1 << 14  # decoded at a time, which bounds the memory for positions
_RUN_MIN: Final = 64  # records; shorter runs of records of equal length cost more than single steps
_LIVE_MIN: Final = 32  # records with one more header, for which numpy costs less than Python
_INT_BYTES: Final = 5
_LONG_BYTES: Final = 10
# A position can pass the end by a few bytes before it is compared: zeros end each varint there.
_PADDING: Final = bytes(16)
_NULL: Final = b"\x01"  # the length -1
_SMALL: Final = tuple((octet >> 1) ^ -(octet & 1) for octet in range(128))  # of one byte
_STEP_LOW: Final = tuple(2 + ((octet & 127) >> 1) for octet in range(256))  # of two bytes
_STEP_HIGH: Final = tuple(octet << 6 for octet in range(128))
_I64_MAX: Final = (1 << 63) - 1


class RecordsError(CorruptBatchError):
    """Raised by both readers for a section that is not the records that it should have."""


class _Part(NamedTuple):
    """Positions and lengths of records' entries, as lists or NumPy arrays. Length -1: null."""

    timestamp_deltas: Any
    key_at: Any
    key_lengths: Any
    value_at: Any
    value_lengths: Any
    header_counts: Any
    name_at: Any
    name_lengths: Any
    header_value_at: Any
    header_value_lengths: Any


# -- positions -------------------------------------------------------------------------------------


def _parts(section: Buffer, count: int) -> Iterator[tuple[bytes, _Part]]:
    """Yield the records in parts, with the padded section. Raises ``RecordsError``."""
    body = b"".join((section, _PADDING))
    size = len(section)
    position = row = headers = 0
    try:
        while row < count:
            number = min(count - row, _PART_RECORDS)
            read = _part_in_python if count < NUMPY_FROM else _part_in_numpy
            part, position = read(body, size, position, row, number)
            headers += len(part.name_at)
            # guard: Kafka records: headers are limited
            if headers > limits.HEADERS_PER_BATCH_MAX:
                raise RecordsError(f"over {limits.HEADERS_PER_BATCH_MAX} record headers")
            _check_names(body, part)
            row += number
            yield body, part
    except IndexError:
        raise RecordsError(f"the records end before record {count - 1} does") from None
    # guard: Kafka records: the last record ends the section
    if position != size:
        raise RecordsError(f"{size - position} bytes follow the last record")


def _check_names(body: bytes, part: _Part) -> None:
    if not len(part.name_at):
        return
    blob = _entries(body, part.name_at, part.name_lengths)
    try:
        names = str(blob, "utf-8")
    except UnicodeDecodeError as error:
        raise RecordsError(f"header names are not UTF-8: {error.reason}") from error
    is_ascii = len(names) == len(blob)
    # guard: Kafka records: names are UTF-8, one by one
    if not is_ascii and columns.splits_a_character(blob, _lengths(part.name_lengths)):
        raise RecordsError("a header name begins inside a character")


def _part_in_python(
    body: bytes, _size: int, position: int, row: int, count: int
) -> tuple[_Part, int]:
    """Return records ``row`` to ``row + count``, the first at ``position``, and their end."""
    part = _Part([], [], [], [], [], [], [], [], [], [])
    stamps, key_at, keys, value_at, values, counts = part[:6]
    small = _SMALL
    p = position
    for number in range(row, row + count):
        octet = body[p]
        length, p = (small[octet], p + 1) if octet < 128 else _varint(body, p, _INT_BYTES)
        end = p + length
        octet = body[p + 1]
        stamp, p = (small[octet], p + 2) if octet < 128 else _varint(body, p + 1, _LONG_BYTES)
        octet = body[p]
        delta, p = (small[octet], p + 1) if octet < 128 else _varint(body, p, _INT_BYTES)
        # guard: Kafka records: offset deltas, read by python
        if delta != number:
            raise RecordsError(f"record {number} has offset delta {delta}")
        octet = body[p]
        key, p = (small[octet], p + 1) if octet < 128 else _varint(body, p, _INT_BYTES)
        key_at.append(p)
        p += max(0, key)
        # guard: Kafka records: keys, read by python
        if key < -1 or p > end:
            raise RecordsError(f"record {number} has a key of {key} bytes")
        octet = body[p]
        value, p = (small[octet], p + 1) if octet < 128 else _varint(body, p, _INT_BYTES)
        value_at.append(p)
        p += max(0, value)
        # guard: Kafka records: values, read by python
        if value < -1 or p > end:
            raise RecordsError(f"record {number} has a value of {value} bytes")
        octet = body[p]
        held, p = (small[octet], p + 1) if octet < 128 else _varint(body, p, _INT_BYTES)
        if held:
            p = _headers_in_python(body, end, p, held, part)
        # guard: Kafka records: ends of records, read by python
        if p != end:
            raise RecordsError(f"record {number} does not end where its length specifies")
        stamps.append(stamp)
        keys.append(key)
        values.append(value)
        counts.append(held)
    return part, p


def _headers_in_python(body: bytes, end: int, position: int, count: int, part: _Part) -> int:
    """Add the headers of one record to ``part``. Returns their end."""
    p = position
    # guard: Kafka records: header counts, read by python
    if not 0 <= count <= end - p:
        raise RecordsError(f"{count} headers in {end - p} bytes")
    for _ in range(count):
        name, p = _varint(body, p, _INT_BYTES)
        part.name_at.append(p)
        part.name_lengths.append(name)
        p += max(name, 0)
        if name < 0 or p > end:
            raise RecordsError(f"a header name has {name} bytes")
        value, p = _varint(body, p, _INT_BYTES)
        part.header_value_at.append(p)
        part.header_value_lengths.append(value)
        p += max(value, 0)
        if value < -1 or p > end:
            raise RecordsError(f"a header value has {value} bytes")
    return p


def _varint(body: bytes, position: int, bytes_max: int) -> tuple[int, int]:
    """Return the zigzag varint at ``position``, and its end."""
    low, high = body[position], body[position + 1]
    if low < 128:
        return _SMALL[low], position + 1
    if high < 128:
        return (high << 6 | (low & 127) >> 1) ^ -(low & 1), position + 2
    raw = shift = 0
    while True:
        octet = body[position]
        position += 1
        raw |= (octet & 127) << shift
        shift += 7
        if octet < 128:
            break
        if shift == 7 * bytes_max:
            raise RecordsError(f"a varint takes over {bytes_max} bytes")
    if raw >> 64:
        raise RecordsError("a varint has over 64 bits")
    return (raw >> 1) ^ -(raw & 1), position


def _starts(body: bytes, size: int, position: int, count: int) -> tuple[Integers, int]:
    """Return the positions of ``count`` consecutive records, and the end of the last.

    Records of equal length follow each other at equal distances, and one comparison finds them all.
    """
    import numpy as np

    view = memoryview(body)
    found: list[Integers] = []
    p = position
    wait = _RUN_MIN
    while count:
        starts, p = _walk(body, p, min(wait, count))
        found.append(np.array(starts, np.int64))
        count -= len(starts)
        distance = p - starts[-1]
        is_run = count >= _RUN_MIN and distance == starts[-1] - starts[-2]
        span = _RUN_MIN  # grows, since a comparison of many records may find few
        wait *= 2
        while is_run and (rows := min(span, count, (size - p) // distance)) >= _RUN_MIN:
            number = _run(view[p - distance : p + rows * distance], distance)
            found.append(np.arange(p, p + number * distance, distance))
            is_run = number == rows
            count -= number
            p += number * distance
            span *= 4
            if number >= _RUN_MIN:
                wait = _RUN_MIN
    return np.concatenate(found), p


def _run(rows: memoryview, distance: int) -> int:
    """Return how many records follow the first one with the same bytes of their lengths, one after
    the other. Each of these lengths is then the distance to the next record, as in ``_walk``.

    ``rows``: whole multiples of ``distance``, the size of the first record.
    """
    import numpy as np

    table = np.frombuffer(rows, np.uint8).reshape(-1, distance)
    width = next(n for n in range(1, _INT_BYTES + 1) if table[0, n - 1] < 128)
    is_same = (table[1:, :width] == table[0, :width]).all(axis=1)
    # guard: Kafka records: every length in a run
    return len(is_same) if is_same.all() else int(is_same.argmin())


def _walk(body: bytes, position: int, count: int) -> tuple[list[int], int]:
    """The same as ``_starts``, as a list, one step for each record."""
    starts: list[int] = []
    add = starts.append
    low, high = _STEP_LOW, _STEP_HIGH
    p = position
    for _ in range(count):
        add(p)
        octet = body[p]
        if octet < 128:
            p += 1 + (octet >> 1)
        elif (second := body[p + 1]) < 128:
            p += low[octet] + high[second]
        else:
            length, p = _varint(body, p, _INT_BYTES)
            p += max(length, 0)
    return starts, p


def _part_in_numpy(
    body: bytes, size: int, position: int, row: int, count: int
) -> tuple[_Part, int]:
    """The same as ``_part_in_python``."""
    import numpy as np

    starts, end = _starts(body, size, position, count)
    if end > size:
        raise RecordsError(f"the records end before record {row + count - 1} does")
    octets = np.frombuffer(body, np.uint8)
    lengths, at = _varints(octets, starts, _INT_BYTES)
    _check_lengths(lengths, at, size, "record")
    ends = at + lengths
    stamps, at = _varints(octets, at + 1, _LONG_BYTES)
    deltas, at = _varints(octets, at, _INT_BYTES)
    # guard: Kafka records: offset deltas, read by numpy
    if not np.array_equal(deltas, np.arange(row, row + count)):
        raise RecordsError(f"the offset deltas from record {row} on are not consecutive")
    keys, key_at = _varints(octets, at, _INT_BYTES)
    _check_lengths(keys, key_at, size, "key", least=-1)
    values, value_at = _varints(octets, key_at + np.maximum(keys, 0), _INT_BYTES)
    _check_lengths(values, value_at, size, "value", least=-1)
    counts, tails = _varints(octets, value_at + np.maximum(values, 0), _INT_BYTES)
    headers: tuple[Any, ...] = ((), (), (), ())
    if counts.any():
        # guard: Kafka records: header counts, read by numpy
        if counts.min() < 0 or (counts > ends - tails).any():
            raise RecordsError("a record has more headers than bytes")
        headers = _headers_in_numpy(body, octets, size, counts, tails)
    # guard: Kafka records: ends of records, read by numpy
    if not np.array_equal(tails, ends):
        raise RecordsError("a record does not end where its length specifies")
    return _Part(stamps, key_at, keys, value_at, values, counts, *headers), end


def _varints(octets: Octets, positions: Integers, bytes_max: int) -> tuple[Integers, Integers]:
    """Return the zigzag varints at ``positions``, and the end of each."""
    import numpy as np

    first = octets[positions]
    more = first > 127
    ends = positions + 1
    if not more.any():
        return (first >> 1).astype(np.int64) ^ -(first & 1).astype(np.int64), ends
    second = np.where(more, octets[ends], 0)
    if second.max() > 127:
        return _long_varints(octets, positions, bytes_max)
    raw = (first & 127) | second.astype(np.int16) << 7
    return ((raw >> 1) ^ -(raw & 1)).astype(np.int64), ends + more


def _long_varints(octets: Octets, positions: Integers, bytes_max: int) -> tuple[Integers, Integers]:
    """The same as ``_varints``, of any length."""
    import numpy as np

    raw = octets[positions].astype(np.int64)
    ends = positions + 1
    rows = np.flatnonzero(raw > 127)
    raw &= 127
    shift = 7
    while len(rows):
        if shift == 7 * bytes_max:
            raise RecordsError(f"a varint takes over {bytes_max} bytes")
        octet = octets[ends[rows]].astype(np.int64)
        if shift == 63 and octet.max() > 1:
            raise RecordsError("a varint has over 64 bits")
        raw[rows] |= (octet & 127) << shift
        ends[rows] += 1
        rows = rows[octet > 127]
        shift += 7
    return (raw >> 1) & 0x7FFF_FFFF_FFFF_FFFF ^ -(raw & 1), ends


def _check_lengths(
    lengths: Integers, at: Integers, size: int, what: str, *, least: int = 0
) -> None:
    """Check that entries begin and end within the section; ``least``: -1 if they may be null."""
    # guard: Kafka records: lengths, read by numpy
    if lengths.min() < least or (at + lengths).max() > size or at.max() > size:
        raise RecordsError(f"a {what} has a length that the section does not")


def _headers_in_numpy(
    body: bytes, octets: Octets, size: int, counts: Integers, tails: Integers
) -> tuple[Any, Any, Any, Any]:
    """Return the positions and lengths of names and values. Moves ``tails`` to the headers' end.

    Round n decodes header n of all records that have one.
    """
    import numpy as np

    total = int(counts.sum())
    if total > limits.HEADERS_PER_BATCH_MAX:
        raise RecordsError(f"over {limits.HEADERS_PER_BATCH_MAX} record headers")
    found = [np.empty(total, np.int32) for _ in range(4)]  # positions are below 2^31
    live = np.flatnonzero(counts)
    index = (np.cumsum(counts) - counts)[live]
    left = counts[live]
    while len(live) >= _LIVE_MIN:
        names, name_at = _varints(octets, tails[live], _INT_BYTES)
        _check_lengths(names, name_at, size, "header name")
        values, value_at = _varints(octets, name_at + names, _INT_BYTES)
        _check_lengths(values, value_at, size, "header value", least=-1)
        for column, integers in zip(found, (name_at, names, value_at, values), strict=True):
            column[index] = integers
        tails[live] = value_at + np.maximum(values, 0)
        left -= 1
        has_more = left > 0
        live, left, index = live[has_more], left[has_more], index[has_more] + 1
    for row, number, first in zip(live.tolist(), left.tolist(), index.tolist(), strict=True):
        rest = _Part([], [], [], [], [], [], [], [], [], [])
        tails[row] = _headers_in_python(body, size, int(tails[row]), number, rest)
        for column, integers in zip(found, rest[6:], strict=True):
            column[first : first + number] = integers
    return found[0], found[1], found[2], found[3]


# -- reading ---------------------------------------------------------------------------------------


class RowFacts(NamedTuple):
    """The result of ``check``: deltas of timestamps, and what the records need as columns."""

    first_delta: int
    min_delta: int
    max_delta: int
    header_count: int
    keyless: tuple[int, ...]  # records without a key, the first KEYLESS_ROWS_MAX of them


def check(section: Buffer, count: int) -> RowFacts:
    """Check each of the ``count`` records of an uncompressed section, at least one.

    Raises ``RecordsError``.
    """
    if count <= CHECKED_IN_PYTHON_MAX:
        facts = _check_plain(bytes(section) + _PADDING, len(section), count)
        if facts is not None:
            return facts
    lowest: list[int] = []
    highest: list[int] = []
    keyless: list[int] = []
    first_delta = header_count = row = 0
    for _, part in _parts(section, count):
        first_delta = first_delta if row else int(part.timestamp_deltas[0])
        least, most = _range(part.timestamp_deltas)
        lowest.append(least)
        highest.append(most)
        header_count += len(part.name_at)
        if len(keyless) < limits.KEYLESS_ROWS_MAX:
            keyless += _null_rows(part.key_lengths, row)
        row += len(part.key_at)
    missing = tuple(keyless[: limits.KEYLESS_ROWS_MAX])
    return RowFacts(first_delta, min(lowest), max(highest), header_count, missing)


def _check_plain(body: bytes, size: int, count: int) -> RowFacts | None:  # noqa: C901 - no calls
    """The same as ``check`` for a few records, without the positions of their entries, which are
    not needed; None if it finds a record with headers, or one that may be wrong.
    """
    small, low, high = _SMALL, _STEP_LOW, _STEP_HIGH
    stamps: list[int] = []
    keyless: list[int] = []
    p = 0
    try:
        for number in range(count):
            octet = body[p]
            if octet & 1:
                return None  # a negative length
            if octet < 128:
                end = p + 1 + (octet >> 1)
                p += 2  # with the attributes
            elif (second := body[p + 1]) < 128:
                end = p + low[octet] + high[second]
                p += 3
            else:
                length, p = _varint(body, p, _INT_BYTES)
                end = p + length
                p += 1
            octet = body[p]
            if octet < 128:
                stamps.append(small[octet])
                p += 1
            else:
                stamp, p = _varint(body, p, _LONG_BYTES)
                stamps.append(stamp)
            if number < 64 and body[p] == number << 1:
                p += 1
            else:
                delta, p = _varint(body, p, _INT_BYTES)
                if delta != number:
                    return None
            octet = body[p]
            if octet == 1:
                keyless.append(number)
                p += 1
            else:
                key, p = (small[octet], p + 1) if octet < 128 else _varint(body, p, _INT_BYTES)
                if key < 0:
                    return None
                p += key
            octet = body[p] if p < end else 1
            if octet & 1:
                if octet != 1 or p >= end:
                    return None
                p += 1  # null
            elif octet < 128:
                p += 1 + (octet >> 1)
            elif (second := body[p + 1]) < 128:
                p += low[octet] + high[second]
            else:
                value, p = _varint(body, p, _INT_BYTES)
                if value < 0:
                    return None
                p += value
            if p >= size or body[p] or p + 1 != end:
                return None
            p = end
    except (IndexError, RecordsError):
        return None
    if p != size:
        return None
    missing = tuple(keyless[: limits.KEYLESS_ROWS_MAX])
    return RowFacts(stamps[0], min(stamps), max(stamps), 0, missing)


def read(payload: Buffer, header: BatchHeader) -> Payload:
    """Return the columns of a stored payload, if it agrees with ``header``.

    Raises ``CorruptBatchError``.
    """
    try:
        size = header.uncompressed_length - PREFIX.size
        stored = memoryview(payload)[PREFIX.size :]
        section = kafka_compression.decompress(stored, header.codec, size_max=max(size, 0))
        if len(section) != size:
            raise RecordsError(f"records of {len(section)} bytes, where the header has {size}")
        return _columns(section, header)
    except CorruptBatchError as error:
        raise CorruptBatchError(f"base offset {header.base_offset}: {error}") from error


def _columns(section: Buffer, header: BatchHeader) -> Payload:
    count = header.record_count
    stamps: list[bytes] = []
    counts: list[bytes] = []
    keys, values, names, header_values = _Column(), _Column(), _Column(), _Column()
    highest = NO_TIMESTAMP
    base: int | None = None
    for body, part in _parts(section, count):
        if base is None:
            base = header.first_timestamp - int(part.timestamp_deltas[0])
        packed, most = _timestamps(part.timestamp_deltas, base, header)
        highest = max(highest, most)
        stamps.append(packed)
        keys.add(body, part.key_at, part.key_lengths)
        values.add(body, part.value_at, part.value_lengths)
        counts.append(_lengths(part.header_counts))
        names.add(body, part.name_at, part.name_lengths)
        header_values.add(body, part.header_value_at, part.header_value_lengths)
    # guard: Kafka records: stored timestamps
    if highest != header.max_timestamp:
        raise RecordsError(
            f"highest timestamp {highest}, where the header has {header.max_timestamp}"
        )
    headers = None
    if names.count:
        name_lengths, name_blob, _ = names.joined()
        assert name_lengths is not None, "a name is not null"
        header_counts = memoryview(b"".join(counts))
        headers = HeaderColumns(header_counts, name_lengths, name_blob, *header_values.joined())
    return Payload(
        count, memoryview(b"".join(stamps)), None, *keys.joined(), *values.joined(), headers
    )


class _Column:
    """Entries of several parts, to become one column of ``payload``."""

    def __init__(self) -> None:
        self.count = 0
        self._lengths: list[bytes] = []
        self._blobs: list[bytes] = []
        self._nulls: list[int] = []

    def add(self, body: bytes, at: Any, lengths: Any) -> None:
        """Add the entries of ``lengths`` bytes at the positions ``at``."""
        if not len(at):
            return
        self._nulls += _null_rows(lengths, self.count)
        self.count += len(at)
        self._lengths.append(_lengths(lengths))
        self._blobs.append(_entries(body, at, lengths))

    def joined(self) -> tuple[memoryview | None, memoryview, memoryview | None]:
        """Return the lengths, the blob and the null rows, in the format of ``payload``."""
        if len(self._nulls) == self.count:
            return None, memoryview(b""), None
        nulls = memoryview(pack_u32(self._nulls)) if self._nulls else None
        return memoryview(b"".join(self._lengths)), memoryview(b"".join(self._blobs)), nulls


def _timestamps(deltas: Any, base: int, header: BatchHeader) -> tuple[bytes, int]:
    """Return the column of timestamps, and the highest."""
    least, most = (base + delta for delta in _range(deltas))
    if header.first_timestamp == NO_TIMESTAMP:
        # Readers use the append timestamp.
        if least != NO_TIMESTAMP or most != NO_TIMESTAMP:
            raise RecordsError("a timestamp in a batch without timestamps")
        return bytes(len(deltas) * columns.U64_BYTES), most
    if least < 0 or abs(base) > _I64_MAX:
        raise RecordsError(f"timestamp {least} is not a time")
    if isinstance(deltas, list):
        return pack_u64([base + delta for delta in deltas]), most
    packed: bytes = (deltas + base).astype("<u8").tobytes()
    return packed, most


def _range(integers: Any) -> tuple[int, int]:
    if isinstance(integers, list):
        return min(integers), max(integers)
    return int(integers.min()), int(integers.max())


def _null_rows(lengths: Any, first_row: int) -> list[int]:
    """Return the numbers of the null rows. The first row has number ``first_row``."""
    if isinstance(lengths, list):
        return [row for row, length in enumerate(lengths, first_row) if length < 0]
    rows: list[int] = ((lengths < 0).nonzero()[0] + first_row).tolist()
    return rows


def _lengths(lengths: Any) -> bytes:
    """Return the column of lengths: 0 for a null."""
    if isinstance(lengths, list):
        return pack_u32([max(length, 0) for length in lengths])
    packed: bytes = lengths.clip(0).astype("<u4").tobytes()
    return packed


def _entries(body: bytes, at: Any, lengths: Any) -> bytes:
    """Return the joined entries at the positions ``at``."""
    if isinstance(lengths, list):
        return b"".join(body[p : p + max(n, 0)] for p, n in zip(at, lengths, strict=True))
    import numpy as np

    sizes = lengths.clip(0)
    if not sizes.any():
        return b""
    # Stream reads take half the time of slices. They alternate: gap, entry, gap, entry.
    reads = np.empty(2 * len(at), np.int64)
    reads[0] = at[0]
    reads[2::2] = at[1:] - (at + sizes)[:-1]
    reads[1::2] = sizes
    return b"".join(islice(map(BytesIO(body).read, reads.tolist()), 1, None, 2))


# -- writing ---------------------------------------------------------------------------------------


def write(rows: Payload, header: BatchHeader) -> bytes:
    """Return the records section of a batch with these columns, at least one record.

    Timestamps are deltas to ``header.first_timestamp``. A record that compaction has left keeps
    its offset.
    """
    write_with = _write_in_python if header.record_count < NUMPY_FROM else _write_in_numpy
    return write_with(rows, header)


def _write_in_python(rows: Payload, header: BatchHeader) -> bytes:
    count = header.record_count
    stamps = columns.u64(rows.timestamps)
    base = header.first_timestamp
    deltas = range(count) if rows.offsets is None else columns.u32(rows.offsets)
    keys = _split(count, rows.key_lengths, rows.key_blob, rows.key_nulls)
    values = _split(count, rows.value_lengths, rows.value_blob, rows.value_nulls)
    tails = repeat(b"\0", count) if rows.headers is None else _header_bytes(rows.headers)
    out: list[bytes] = []
    for stamp, delta, key, value, tail in zip(stamps, deltas, keys, values, tails, strict=True):
        record = b"".join(
            (b"\0", _zigzag(stamp - base), _zigzag(delta), _entry(key), _entry(value), tail)
        )
        out += (_zigzag(len(record)), record)
    return b"".join(out)


def _write_in_numpy(rows: Payload, header: BatchHeader) -> bytes:
    """The same as ``_write_in_python``. No Python code runs for each record."""
    import numpy as np

    count = header.record_count
    stamps = columns.u64_array(rows.timestamps).astype(np.int64) - header.first_timestamp
    stamp_codes = (stamps << 1) ^ (stamps >> 63)
    if rows.offsets is None:
        delta_codes = np.arange(0, 2 * count, 2)
    else:
        delta_codes = columns.u32_array(rows.offsets).astype(np.int64) << 1
    keys, key_codes = _coded(count, rows.key_lengths, rows.key_nulls)
    values, value_codes = _coded(count, rows.value_lengths, rows.value_nulls)
    tails, tail_sizes = None, np.ones(count, np.int64)
    if rows.headers is not None:
        tails, tail_sizes = _header_bytes_in_numpy(rows.headers)
    sizes = 1 + keys + values + tail_sizes
    for codes in (stamp_codes, delta_codes, key_codes, value_codes):
        sizes += _widths(codes)
    # Each piece costs a step of ``join``, so a record consists of as few as possible: its head
    # also contains the header count of the record before, 0, if none has headers, and the length of
    # its value, if none has a key.
    zeros = sizes & 0
    fields = [sizes << 1, zeros, stamp_codes, delta_codes, key_codes]
    if tails is None:
        fields.insert(0, zeros)
    if rows.key_lengths is None:
        fields.append(value_codes)
    heads, head_sizes = _encoded(*fields)
    if tails is None:  # no record is before the first
        heads, head_sizes[0] = heads[1:], head_sizes[0] - 1
    pieces = [_reads(heads, head_sizes)]
    if rows.key_lengths is not None:
        pieces += _reads(rows.key_blob, keys), _reads(*_encoded(value_codes))
    pieces.append(_reads(rows.value_blob, values))
    if tails is not None:
        return b"".join(chain.from_iterable(zip(*pieces, tails, strict=True)))
    return b"".join(chain(chain.from_iterable(zip(*pieces, strict=True)), (b"\0",)))


def _header_bytes_in_numpy(headers: HeaderColumns) -> tuple[Iterator[bytes], Integers]:
    """Return the encoded headers of each record, with their count, and their sizes in bytes."""
    import numpy as np

    held = len(headers.name_lengths) // columns.U32_BYTES
    names, name_codes = _coded(held, headers.name_lengths, None)
    values, value_codes = _coded(held, headers.value_lengths, headers.value_nulls)
    heads, head_sizes = _encoded(name_codes)
    middles, middle_sizes = _encoded(value_codes)
    pieces = zip(
        _reads(heads, head_sizes),
        _reads(headers.name_blob, names),
        _reads(middles, middle_sizes),
        _reads(headers.value_blob, values),
        strict=True,
    )
    blob = b"".join(chain.from_iterable(pieces))
    ends = np.zeros(held + 1, np.int64)
    np.cumsum(head_sizes + names + middle_sizes + values, out=ends[1:])
    counts = columns.u32_array(headers.counts).astype(np.int64)
    lasts = np.cumsum(counts)
    sizes = ends[lasts] - ends[lasts - counts]
    starts, start_sizes = _encoded(counts << 1)
    tails = map(operator.add, _reads(starts, start_sizes), _reads(blob, sizes))
    return tails, start_sizes + sizes


def _coded(
    count: int, lengths: memoryview | None, nulls: memoryview | None
) -> tuple[Integers, Integers]:
    """Return the sizes of entries, and their zigzag lengths: 1 for a null."""
    import numpy as np

    if lengths is None:
        return np.zeros(count, np.int64), np.ones(count, np.int64)
    sizes = columns.u32_array(lengths).astype(np.int64)
    codes = sizes << 1
    if nulls is not None:
        codes[columns.u32_array(nulls)] = 1
    return sizes, codes


def _encoded(*fields: Integers) -> tuple[bytes, Integers]:
    """Return the varints of ``fields``, row by row, and the size of each row."""
    import numpy as np

    codes = np.stack(fields, axis=1).reshape(-1).view(np.uint64)
    widths = _widths(codes)
    places = np.cumsum(widths) - widths
    out = np.zeros(int(widths.sum()), np.uint8)
    octets = codes & np.uint64(127)
    octets[widths > 1] |= np.uint64(128)
    out[places] = octets
    for nth in range(1, int(widths.max(initial=1))):
        rows = np.flatnonzero(widths > nth)
        octets = codes[rows] >> np.uint64(7 * nth) & np.uint64(127)
        octets[widths[rows] > nth + 1] |= np.uint64(128)
        out[places[rows] + nth] = octets
    return out.tobytes(), widths.reshape(-1, len(fields)).sum(axis=1)


def _widths(codes: Any) -> Integers:
    """Return the size of each varint in bytes."""
    import numpy as np

    codes = codes.view(np.uint64)
    widths = np.ones(len(codes), np.int64)
    rest = codes >> np.uint64(7)
    while rest.any():
        widths += rest > 0
        rest >>= np.uint64(7)
    return widths


def _reads(blob: Buffer, sizes: Integers) -> Iterator[bytes]:
    """Return the consecutive pieces of ``blob`` with these sizes."""
    return map(BytesIO(blob).read, sizes.tolist())


def _split(
    count: int, lengths: memoryview | None, blob: memoryview, nulls: memoryview | None
) -> list[bytes | None]:
    if lengths is None:
        return [None] * count
    entries: list[bytes | None] = list(map(BytesIO(blob).read, columns.u32(lengths)))
    if nulls is not None:
        for row in columns.u32(nulls):
            entries[row] = None
    return entries


def _header_bytes(headers: HeaderColumns) -> Iterator[bytes]:
    """Yield the encoded headers of each record, with their count."""
    held = len(headers.name_lengths) // columns.U32_BYTES
    names = _split(held, headers.name_lengths, headers.name_blob, None)
    values = _split(held, headers.value_lengths, headers.value_blob, headers.value_nulls)
    pairs = map(b"".join, zip(map(_entry, names), map(_entry, values), strict=True))
    for count in columns.u32(headers.counts):
        yield _zigzag(count) + b"".join(islice(pairs, count))


def _entry(entry: bytes | None) -> bytes:
    return _NULL if entry is None else _zigzag(len(entry)) + entry


def _zigzag(integer: int) -> bytes:
    raw = (integer << 1) ^ (integer >> 63)
    if raw < 128:
        return raw.to_bytes(1, "little")
    octets = bytearray()
    while raw > 127:
        octets.append(raw & 127 | 128)
        raw >>= 7
    octets.append(raw)
    return bytes(octets)
