"""Comparison of a task's rows with the records that earlier attempts stored in a topic. Pure.

A repeated task can have its rows in another order: Spark guarantees no order after a shuffle. So
the stored records are read back as a multiset of digests. A row whose digest is in the multiset is
skipped, and removes one entry. The order of the rows, and their batches in earlier attempts, make
no difference.

A digest is xxh3 of 128 bits over key, value and headers. If the DataFrame has a column
``timestamp``, a row with a time is compared with that time as well. A row without a time gets the
time of the write, which differs in each attempt, so its time is not compared. Different rows with
the same digest would be treated as one row: for 2^24 rows, the probability is 2^-81.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_intdigest, xxh3_128_digest

if TYPE_CHECKING:
    import numpy.typing as npt

    Digests: TypeAlias = npt.NDArray[np.bytes_]  # of 16 bytes each
    Mask: TypeAlias = npt.NDArray[np.bool_]

# Maximum that one attempt reads back, over all partitions. Each takes 24 bytes, and 24 more if
# the DataFrame has timestamps.
STORED_RECORDS_MAX: Final = 1 << 24
# Columns that ``Stored.of`` needs, by their names in ``decode_arrow``.
COLUMNS: Final = ("key", "value", "headers", "timestamp", "timestamp_type")

_DIGEST: Final = "S16"
_NULL: Final = -1  # the length of a null
_US_PER_MS: Final = 1_000
_BROKERS_TIME: Final = 1  # a ``timestamp_type``


class Rows(NamedTuple):
    """Digests of rows. ``timed``, ``has_time``: None without a column ``timestamp``."""

    contents: Digests
    timed: Digests | None = None  # with the time, where ``has_time``
    has_time: Mask | None = None

    @classmethod
    def of(cls, records: pa.RecordBatch) -> Rows:
        """Create from rows with a subset of the columns of ``routing.record_schema``."""
        contents = digests_of(records)
        if "timestamp" not in records.schema.names:
            return cls(contents)
        times = records["timestamp"]
        has_time = times.is_valid().to_numpy(zero_copy_only=False)
        return cls(contents, _timed(contents, times.fill_null(0).to_numpy()), has_time)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Return the rows of all parts, with times if all parts have times."""
        contents = np.concatenate([part.contents for part in parts] or [np.empty(0, _DIGEST)])
        timed = [part.timed for part in parts if part.timed is not None]
        has_time = [part.has_time for part in parts if part.has_time is not None]
        if not parts or len(timed) < len(parts):
            return cls(contents)
        return cls(contents, np.concatenate(timed), np.concatenate(has_time))

    def where(self, mask: Mask) -> Rows:
        """Return the rows that ``mask`` selects."""
        if self.timed is None or self.has_time is None:
            return Rows(self.contents[mask])
        return Rows(self.contents[mask], self.timed[mask], self.has_time[mask])


class Stored:
    """Records of earlier attempts in a topic. A record that matches a row is removed."""

    def __init__(self, contents: Multiset, times: Multiset | None) -> None:
        """``times``: digests of contents with times; None if times are not compared."""
        self._contents = contents
        self._times = times

    @classmethod
    def of(cls, portions: Iterable[pa.RecordBatch], *, with_times: bool) -> Stored:
        """Create from stored records with the columns ``COLUMNS``.

        ``with_times``: whether rows have times. Times are not compared if the topic's
        ``message.timestamp.type`` is LogAppendTime: then the stored times are the broker's.
        """
        contents: list[Digests] = []
        timed: list[Digests] = []
        for portion in portions:
            contents.append(digests_of(portion))
            if with_times and pc.any(pc.equal(portion["timestamp_type"], _BROKERS_TIME)).as_py():
                with_times = False
            if with_times:
                timed.append(_timed(contents[-1], times_ms_of(portion)))
        return cls(Multiset(contents), Multiset(timed) if with_times else None)

    @classmethod
    def joined(cls, parts: Sequence[Stored]) -> Stored:
        """Return the records of all parts together."""
        times = [part._times for part in parts if part._times is not None]
        return cls(
            Multiset([part._contents.rest() for part in parts]),
            Multiset([each.rest() for each in times]) if len(times) == len(parts) else None,
        )

    def rest(self) -> Stored:
        """Return the records that match no row yet."""
        return Stored.joined([self])

    def compared(self, rows: Rows) -> Rows:
        """Return ``rows`` with what is compared of them: without times where these are not."""
        return Rows(rows.contents) if self._times is None else rows

    @property
    def count(self) -> int:
        """Number of records that were read back and match no row yet."""
        return self._contents.count

    def take(self, rows: Rows) -> Mask:
        """Return which rows of an attempt are stored, and remove one stored record for each."""
        digests = rows.contents
        if self._times is None or rows.timed is None or rows.has_time is None:
            return self._contents.take(digests)
        # A row with a time removes a record of that time. A row without a time removes a record
        # of any time: contents only count it, so it never removes one that a later row needs.
        may_be: Mask = ~rows.has_time
        may_be[rows.has_time] = self._times.take(rows.timed[rows.has_time])
        is_stored = np.zeros(len(digests), np.bool_)
        is_stored[may_be] = self._contents.take(digests[may_be])
        return is_stored


class Wanted:
    """Rows of which equal records are to be found among stored ones, for their content."""

    def __init__(self, rows: Rows) -> None:
        has_time = (
            np.zeros(len(rows.contents), np.bool_) if rows.has_time is None else rows.has_time
        )
        self._by_content = _counts(rows.contents[~has_time])
        self._by_time = {} if rows.timed is None else _counts(rows.timed[has_time])

    @property
    def count(self) -> int:
        """Number of rows that no record was found for yet."""
        return sum(self._by_content.values()) + sum(self._by_time.values())

    def take(self, portion: pa.RecordBatch) -> pa.RecordBatch:
        """Return a copy of a stored record for each row that is equal to it, and remove these rows.

        ``portion``: with the columns ``COLUMNS``. Returns the columns of
        ``routing.record_schema``; a row without a time has a null there.
        """
        contents = digests_of(portion)
        times_ms = times_ms_of(portion)
        timed = _timed(contents, times_ms) if self._by_time else contents
        indexes: list[int] = []
        times: list[int | None] = []
        for wanted, digests in ((self._by_time, timed), (self._by_content, contents)):
            if not wanted:
                continue
            for row in np.flatnonzero(np.isin(digests, np.array(list(wanted), _DIGEST))).tolist():
                count = wanted.pop(bytes(digests[row]), 0)
                indexes += [row] * count
                times += [int(times_ms[row]) if wanted is self._by_time else None] * count
        found = portion.take(pa.array(indexes, pa.int64()))
        columns = [found.column(name) for name in ("value", "key", "headers")]
        columns.append(pa.array(times, pa.int64()))
        return pa.RecordBatch.from_arrays(columns, ["value", "key", "headers", "timestamp"])


def _counts(digests: Digests) -> dict[bytes, int]:
    distinct, counts = np.unique(digests, return_counts=True)
    return dict(zip(distinct.tolist(), counts.tolist(), strict=True))


class Multiset:
    """Digests with their multiplicity."""

    def __init__(self, digests: list[Digests]) -> None:
        together = np.concatenate(digests) if digests else np.empty(0, _DIGEST)
        self._distinct, self._counts = np.unique(together, return_counts=True)
        self.count = len(together)

    def rest(self) -> Digests:
        """Return what was not removed, each digest as often as it is left."""
        return np.repeat(self._distinct, self._counts)

    def take(self, digests: Digests) -> Mask:
        """Return which of ``digests`` are contained, and remove each of these once."""
        is_taken = np.zeros(len(digests), np.bool_)
        if not self.count or not len(digests):
            return is_taken
        places = np.searchsorted(self._distinct, digests)
        places[places == len(self._distinct)] = 0
        rows = np.flatnonzero(self._distinct[places] == digests)
        if not len(rows):
            return is_taken
        rows = rows[np.argsort(places[rows], kind="stable")]
        found = places[rows]
        # Number of earlier rows of this call with the same digest.
        starts = np.flatnonzero(np.r_[True, found[1:] != found[:-1]])
        before = np.arange(len(found)) - np.repeat(starts, np.diff(np.r_[starts, len(found)]))
        is_there = before < self._counts[found]
        is_taken[rows[is_there]] = True
        np.subtract.at(self._counts, found[is_there], 1)
        self.count -= int(is_there.sum())
        return is_taken


def hashes_of(records: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    """Return a hash of 64 bits of all that each row has, also of its time, if it has one."""
    if records.schema.names == ["value"]:  # the usual case, in half of the time
        values = records["value"].fill_null(b"").to_pylist()
        return np.fromiter(map(xxh3_64_intdigest, values), np.uint64, len(values))
    rows = Rows.of(records)
    digests = rows.contents
    if rows.timed is not None and rows.has_time is not None:
        digests = np.where(rows.has_time, rows.timed, digests)
    return np.ascontiguousarray(np.frombuffer(digests.tobytes(), np.uint64)[::2])


def times_ms_of(portion: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the timestamps of stored records with the columns ``COLUMNS``."""
    times_us: npt.NDArray[np.int64] = portion["timestamp"].cast(pa.int64()).to_numpy()
    return times_us // _US_PER_MS


def digests_of(records: pa.RecordBatch) -> Digests:
    """Return the digest of each record's key, value and headers. A missing column is all nulls."""
    return _digests(_octets(records))


def _octets(records: pa.RecordBatch) -> pa.Array:
    """Encode each record: the lengths of key and value, key, value, and the headers."""
    names, count = records.schema.names, records.num_rows
    lengths = np.full((count, 2), _NULL, "<i4")
    parts = []
    for index, name in enumerate(("key", "value")):
        if name in names:
            column = records[name]
            lengths[:, index] = pc.binary_length(column).fill_null(_NULL).to_numpy()
            parts.append(column.fill_null(b""))
    if "headers" in names:
        parts.append(pa.array(map(_header_octets, records["headers"].to_pylist()), pa.binary()))
    return pc.binary_join_element_wise(_fixed(lengths.tobytes(), 8), *parts, b"")


def _header_octets(headers: list[dict[str, Any]] | None) -> bytes:
    """Encode headers. A null and an empty list are equal: they are stored alike."""
    pairs = [(header["key"], header["value"]) for header in headers or ()]
    return repr(pairs).encode() if pairs else b""


def _timed(digests: Digests, times_ms: npt.NDArray[np.int64]) -> Digests:
    """Return digests over digests and times."""
    pairs = np.empty(len(digests), [("digest", _DIGEST), ("time", "<i8")])
    pairs["digest"], pairs["time"] = digests, times_ms
    return _digests(_fixed(pairs.tobytes(), pairs.itemsize))


def _fixed(octets: bytes, width: int) -> pa.Array:
    count = len(octets) // width
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(width), count, [None, pa.py_buffer(octets)]
    )
    return fixed.cast(pa.binary())


def _digests(octets: pa.Array) -> Digests:
    return np.frombuffer(b"".join(map(xxh3_128_digest, octets.to_pylist())), _DIGEST)
