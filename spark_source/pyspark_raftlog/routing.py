"""Which partition each row goes to, and which rows an earlier attempt has stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    CharType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
    VarcharType,
)
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from raftlog import TopicPartition, limits
from raftlog.errors import (
    InvalidRequestError,
    UnknownPartitionError,
)
from raftlog.record.arrow import partitions_of_arrow

if TYPE_CHECKING:
    import numpy.typing as npt

    Digests: TypeAlias = npt.NDArray[np.bytes_]  # of 16 bytes each
    Mask: TypeAlias = npt.NDArray[np.bool_]
    Int64s: TypeAlias = npt.NDArray[np.int64]

# -- sink columns ----------------------------------------------------------------------------------
#
# The columns that a sink accepts: names, types, and advice for other columns. Pure.
#
# The names are those of Spark's Kafka connector, and ``timestamp``: the record's own time, which a
# replay into another topic keeps.


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Index of each written column in a DataFrame; None if it is missing."""

    value: int
    key: int | None = None
    headers: int | None = None
    topic: int | None = None
    partition: int | None = None
    timestamp: int | None = None


_TEXT: Final = (StringType, CharType, VarcharType)
_OCTETS: Final = (BinaryType, *_TEXT)
_INTEGER: Final = (ByteType, ShortType, IntegerType, LongType)


def _is_headers(data_type: DataType) -> bool:
    """Return whether the type is array<struct<key, value>>, in this order and case: Arrow casts
    fields by their names, and one of another name would be lost."""
    if not isinstance(data_type, ArrayType) or not isinstance(data_type.elementType, StructType):
        return False
    fields = data_type.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, _TEXT)
        and isinstance(fields[1].dataType, _OCTETS)
    )


# Columns of a read that are not written. A table without listed columns has both.
_OF_READS: Final = frozenset({"offset", "timestamptype"})
# Accepted types of each column: text for messages, and the check.
_COLUMNS: Final[dict[str, tuple[str, Callable[[DataType], bool]]]] = {
    "value": ("string or binary", lambda kind: isinstance(kind, _OCTETS)),
    "key": ("string or binary", lambda kind: isinstance(kind, _OCTETS)),
    "headers": ("array<struct<key:string,value:binary>>", _is_headers),
    "topic": ("string", lambda kind: isinstance(kind, _TEXT)),
    "partition": ("int", lambda kind: isinstance(kind, _INTEGER)),
    "timestamp": ("timestamp", lambda kind: isinstance(kind, TimestampType)),
}


def sink_columns(schema: StructType, *, topic: str | None) -> SinkColumns:
    """Return the columns of a DataFrame to write, if the sink accepts them.

    ``topic``: the option; if it is set, a column ``topic`` is ignored. Names are case-insensitive.
    Raises ``InvalidRequestError``, which contains the remedy.
    """
    found: dict[str, int] = {}
    for index, column in enumerate(schema.fields):
        name = column.name.lower()
        if name not in _COLUMNS:
            raise InvalidRequestError(_unknown_column(column.name, schema))
        if name in found:
            raise InvalidRequestError(f"the DataFrame has two columns {name!r}: drop one of them")
        wanted, fits = _COLUMNS[name]
        if not fits(column.dataType):
            raise InvalidRequestError(
                f"column {column.name!r} is {column.dataType.simpleString()}, where {wanted} is "
                f"needed. {_cast_advice(name, column.dataType)}"
            )
        found[name] = index
    if "value" not in found:
        raise InvalidRequestError(
            "the DataFrame has no column 'value', which becomes the records' values: create one, "
            'for example with .selectExpr("to_json(struct(*)) AS value")'
        )
    if topic is None and "topic" not in found:
        raise InvalidRequestError(
            "no topic to write to: set the option topic, or add a column 'topic'"
        )
    if topic is not None:
        found.pop("topic", None)
    return SinkColumns(**found)


def _unknown_column(name: str, schema: StructType) -> str:
    if name.lower() in _OF_READS and {each.name.lower() for each in schema.fields} >= _OF_READS:
        return (
            f"column {name!r} is only read: brokers assign it. Leave it out: .select('key', "
            "'value'). For INSERT INTO a table that was created without columns, to which Spark "
            "adds all that it has: insert into a table of the columns to write, as in CREATE TABLE "
            "sink (key string, value string) USING raftlog"
        )
    known = [repr(field.name) for field in schema.fields if field.name.lower() in _COLUMNS]
    if known:
        advice = f"Leave it out: .select({', '.join(known)})"
    else:
        advice = 'Put all columns into one: .selectExpr("to_json(struct(*)) AS value")'
    return f"column {name!r} is not a column of records: {', '.join(_COLUMNS)}. {advice}"


def _cast_advice(name: str, data_type: DataType) -> str:
    if name == "headers":
        return "Its fields are named key and value, in this order and in lower case"
    if isinstance(data_type, (StructType, ArrayType)):
        return f'Turn it into text: .withColumn("{name}", to_json("{name}"))'
    return f'Cast it: .withColumn("{name}", col("{name}").cast("{_COLUMNS[name][0].split()[0]}"))'


# -- recall ----------------------------------------------------------------------------------------
#
# Comparison of a task's rows with the records that earlier attempts stored in a topic. Pure.
#
# A repeated task can have its rows in another order: Spark guarantees no order after a shuffle. So
# the stored records are read back as a multiset of digests. A row whose digest is in the multiset
# is skipped, and removes one entry. The order of the rows, and their batches in earlier attempts,
# make no difference.
#
# A digest is xxh3 of 128 bits over key, value and headers. If the DataFrame has a column
# ``timestamp``, a row with a time is compared with that time as well. A row without a time gets the
# time of the write, which differs in each attempt, so its time is not compared. Different rows with
# the same digest would be treated as one row: for 2^24 rows, the probability is 2^-81.


# Maximum that one attempt reads back, over all partitions. Each takes 24 bytes, and 24 more if
# the DataFrame has timestamps.
STORED_RECORDS_MAX: Final = 1 << 24
# Columns that ``Stored.of`` needs, by their names in ``decode_arrow``.
COLUMNS: Final = ("key", "value", "headers", "timestamp", "timestamp_type")

_DIGEST: Final = "S16"
_NULL: Final = -1  # the length of a null
_NULL_HASH: Final = np.uint64(1)  # another one than that of an empty value
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
        # guard: equal rows of one batch are counted
        is_there = before < self._counts[found]
        is_taken[rows[is_there]] = True
        # guard: a stored record matches one row
        np.subtract.at(self._counts, found[is_there], 1)
        self.count -= int(is_there.sum())
        return is_taken


def hashes_of(records: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    """Return a hash of 64 bits of all that each row has, also of its time, if it has one."""
    if records.schema.names == ["value"]:  # the usual case, in half of the time
        values = records["value"].fill_null(b"").to_pylist()
        hashes = np.fromiter(map(xxh3_64_intdigest, values), np.uint64, len(values))
        hashes[records["value"].is_null().to_numpy(zero_copy_only=False)] = _NULL_HASH
        return hashes
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


# -- routing ---------------------------------------------------------------------------------------
#
# Routing of rows to partitions of topics, and grouping into chunks of one batch each. Pure.
#
# A record's partition depends on the row, the task, the number of equal rows and the partition
# count of the topic. It does not depend on the order of the rows, time or chance. So every attempt
# of a task has the same records for each partition, and two attempts at once do not store equal
# records in two partitions.
#
# The partition is the row's ``partition`` if that is not null; else the hash of the key, as in
# Kafka's clients (murmur2). Records without a key are distributed evenly: by a hash of all that
# they have, shifted by the task's number; of equal ones, each goes to the partition after the one
# before. Columns are processed as Arrow arrays, without Python code per row.


CHUNK_BYTES: Final = limits.MIB // 2
BLOCK_BYTES_MAX: Final = 16 * limits.MIB
BLOCK_ROWS_PER_PARTITION: Final = 128
PENDING_BYTES_MAX: Final = 64 * limits.MIB  # total of the unfinished chunks of one task

# Maximum of a record without its key, value and headers: timestamp 8, two lengths 8, two indexes of
# nulls 8, header count 4.
RECORD_BYTES: Final = 28
# A header without its name and value: two lengths 8, an index of nulls 4.
HEADER_BYTES: Final = 12
# A batch without its records: its header, and the framing of the columns.
_BATCH_BYTES: Final = 256


# Different records without a key, of one task and topic, of which equal ones are counted. They take
# 32 bytes each.
OCCURRENCES_MAX: Final = 1 << 22


# -- rows ------------------------------------------------------------------------------------------


@cache
def record_schema() -> pa.Schema:
    """Schema of a chunk. ``timestamp``: ms since 1970; null: the time of sending."""
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.schema(
        [
            ("value", pa.binary()),
            ("key", pa.binary()),
            ("headers", pa.list_(header)),
            ("timestamp", pa.int64()),
        ]
    )


class TopicShape(NamedTuple):
    """Partition count and chunk size of a topic: see ``chunk_bytes``."""

    partition_count: int
    chunk_bytes: int


def chunk_bytes(*, partition_count: int, max_message_bytes: int) -> int:
    """Return the approximate chunk size of a topic. Only a chunk of one record reaches twice that.

    Half of the maximum batch size of the topic, or less if the unfinished chunks of all partitions
    would exceed ``PENDING_BYTES_MAX``.
    """
    fits = (max_message_bytes - _BATCH_BYTES) // 2
    return max(1, min(CHUNK_BYTES, PENDING_BYTES_MAX // partition_count, fits))


def blocks_of(
    batches: Iterable[pa.RecordBatch], partition_count: Callable[[], int]
) -> Iterator[pa.RecordBatch]:
    """Join small batches, so that a block has rows for each of ``partition_count()`` partitions.

    The cost to split a batch grows with the number of partitions. A block ends at
    BLOCK_ROWS_PER_PARTITION rows per partition or at BLOCK_BYTES_MAX bytes.
    """
    held: list[pa.RecordBatch] = []
    row_count = size_bytes = 0
    for batch in batches:
        held.append(batch)
        row_count += batch.num_rows
        size_bytes += batch.nbytes
        if (
            row_count >= partition_count() * BLOCK_ROWS_PER_PARTITION
            or size_bytes >= BLOCK_BYTES_MAX
        ):
            yield _joined_rows(held)
            held, row_count, size_bytes = [], 0, 0
    if held:
        yield _joined_rows(held)


def _joined_rows(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class Run(NamedTuple):
    """Rows of one Arrow batch for one partition, and the maximum encoded bytes of each."""

    partition: TopicPartition
    records: pa.RecordBatch  # with a subset of the columns of ``record_schema``
    sizes: Int64s


class Router:
    """Splits the Arrow batches of one task by partition, and counts the rows."""

    def __init__(
        self,
        columns: SinkColumns,
        *,
        topic: str | None,
        first: int,
        where: str,
        shape_of: Callable[[str], TopicShape],
    ) -> None:
        """``topic``: of all rows; None: each row has a topic.

        ``first``: partitions by which records without a key are shifted: equal for all attempts of
        a task, different for each task. So tasks of one equal row each do not all write to one
        partition. ``where``: name of the task's rows in messages.
        ``shape_of``: called once for each topic.
        """
        self.row_count = 0  # rows that were split
        self._columns = columns
        self._topic = topic
        self._first = first
        self._where = where
        self._shape_of = cache(shape_of)
        self._seen: dict[str, Occurrences] = {}  # records without a key, by topic

    def split(self, batch: pa.RecordBatch) -> Iterator[Run]:
        """Return the batch's rows by partition, in row order within each partition.

        Raises ``InvalidRequestError`` and ``UnknownPartitionError``, which name the row, and the
        errors of ``shape_of``.
        """
        if batch.num_rows:
            records, sizes = self._records(batch)
            partitions = self._column(batch, self._columns.partition, pa.int64())
            for topic, rows in self._by_topic(batch):
                yield from self._by_partition(topic, rows, records, sizes, partitions)
        self.row_count += batch.num_rows

    # -- columns

    def _column(self, batch: pa.RecordBatch, index: int | None, data_type: pa.DataType) -> Any:
        """Return a column as ``data_type``, without a copy of text; None if it is missing."""
        if index is None:
            return None
        column = batch.column(index)
        if column.type == data_type:
            return column
        try:
            return column.cast(data_type)
        except pa.ArrowInvalid as error:
            raise InvalidRequestError(
                f"{self._where}: {batch.num_rows} rows do not fit one Arrow array of "
                f"{data_type}: lower spark.sql.execution.arrow.maxRecordsPerBatch ({error})"
            ) from error

    def _records(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Int64s]:
        columns, schema = self._columns, record_schema()
        value = self._column(batch, columns.value, schema.field("value").type)
        sizes = RECORD_BYTES + _lengths(value)
        found = {"value": value}
        if columns.key is not None:
            found["key"] = self._column(batch, columns.key, schema.field("key").type)
            sizes += _lengths(found["key"])
        if columns.headers is not None:
            found["headers"] = self._column(batch, columns.headers, schema.field("headers").type)
            sizes += self._header_sizes(found["headers"])
        if columns.timestamp is not None:
            found["timestamp"] = self._timestamps(batch, columns.timestamp)
        return pa.RecordBatch.from_arrays(list(found.values()), list(found)), sizes

    def _header_sizes(self, headers: Any) -> Int64s:
        ends = np.cumsum(_integers(pc.list_value_length(headers)))
        names = pc.struct_field(headers.flatten(), 0)
        if names.null_count:
            missing = int(np.flatnonzero(names.is_null())[0])
            row = int(np.searchsorted(ends, missing, side="right"))
            raise InvalidRequestError(
                f"{self._row(row)}: a header without a key. Leave such headers out, or coalesce() "
                "their keys"
            )
        return header_sizes(headers, ends)

    def _timestamps(self, batch: pa.RecordBatch, index: int) -> Any:
        times_us = self._column(batch, index, pa.timestamp("us", batch.column(index).type.tz))
        is_null = times_us.is_null().to_numpy(zero_copy_only=False)
        times_ms = _integers(times_us.cast(pa.int64())) // _US_PER_MS
        wrong = (times_ms < 0) | (times_ms > limits.TIMESTAMP_MS_MAX)
        if wrong.any():
            row = int(wrong.argmax())
            raise InvalidRequestError(
                f"{self._row(row)}: the timestamp is {times_ms[row]} ms from 1970, and must be "
                f"0 to {limits.TIMESTAMP_MS_MAX} (the year 9999). Correct it, or set it to null"
            )
        return pa.array(times_ms, mask=is_null)

    # -- partitions

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, Int64s | None]]:
        """Return each topic, in the order of the first rows, and its rows; None: all rows."""
        if self._topic is not None:
            yield self._topic, None
            return
        topics = self._column(batch, self._columns.topic, pa.string())
        if topics.null_count:
            row = int(topics.is_null().to_numpy(zero_copy_only=False).argmax())
            raise InvalidRequestError(
                f"{self._row(row)}: its topic is null. Name one in each row, or set the option "
                "topic for all rows"
            )
        encoded = topics.dictionary_encode()
        codes = encoded.indices.to_numpy()
        for code, topic in enumerate(encoded.dictionary.to_pylist()):
            yield topic, None if len(encoded.dictionary) == 1 else np.flatnonzero(codes == code)

    def _by_partition(
        self, topic: str, rows: Int64s | None, records: pa.RecordBatch, sizes: Int64s, given: Any
    ) -> Iterator[Run]:
        if rows is not None:
            indexes = pa.array(rows)
            records, sizes = records.take(indexes), sizes[rows]
            given = None if given is None else given.take(indexes)
        chosen = self._partitions(topic, rows, records, given)
        if (chosen == chosen[0]).all():
            yield Run(TopicPartition(topic, int(chosen[0])), records, sizes)
            return
        for partition, indexes in _groups(chosen):
            part = records.take(pa.array(indexes))
            yield Run(TopicPartition(topic, partition), part, sizes[indexes])

    def _partitions(
        self, topic: str, rows: Int64s | None, records: pa.RecordBatch, given: Any
    ) -> Int64s:
        count = self._shape_of(topic).partition_count
        if "key" in records.schema.names:
            chosen: Int64s = partitions_of_arrow(records.column("key"), count)
        else:
            chosen = np.full(records.num_rows, -1, np.int64)
        if given is not None:
            is_given = given.is_valid().to_numpy(zero_copy_only=False)
            wanted = _integers(given)
            wrong = is_given & ((wanted < 0) | (wanted >= count))
            if wrong.any():
                index = int(wrong.argmax())
                raise UnknownPartitionError(
                    f"{self._row(index if rows is None else int(rows[index]))}: there is no "
                    f"partition {wanted[index]} of topic {topic!r}, which has {count}: 0 to "
                    f"{count - 1}, or null to select it by the key"
                )
            chosen = np.where(is_given, wanted, chosen)
        is_keyless = chosen < 0
        if is_keyless.all():
            return self._evenly(topic, records, count)
        if is_keyless.any():
            keyless = records.filter(pa.array(is_keyless))
            chosen[is_keyless] = self._evenly(topic, keyless, count)
        return chosen

    def _evenly(self, topic: str, records: pa.RecordBatch, count: int) -> Int64s:
        """Return partitions for records without a key."""
        # guard: a row without a key is routed by its content
        hashes = hashes_of(records)
        seen = self._seen.setdefault(topic, Occurrences())
        place = (hashes % np.uint64(count)).astype(np.int64)
        return (self._first + place + seen.add(hashes)) % count

    def _row(self, row: int) -> str:
        return f"{self._where}, row {self.row_count + row} (counted from 0)"


class Occurrences:
    """How often records were seen, by their hashes: a table with open addressing in arrays.

    Of more than ``OCCURRENCES_MAX`` different records, only the first ones are counted.
    """

    def __init__(self) -> None:
        self._used = 0
        self._resize(1 << 12)

    def _resize(self, size: int) -> None:
        self._hashes = np.zeros(size, np.uint64)  # 0: the place is free
        self._counts = np.zeros(size, np.int64)

    def add(self, hashes: npt.NDArray[np.uint64]) -> Int64s:
        """Return how often each record was seen before, also in ``hashes``, and count them."""
        hashes = np.maximum(hashes, np.uint64(1))
        order = np.argsort(hashes, kind="stable")
        in_order = hashes[order]
        starts = np.flatnonzero(np.r_[True, in_order[1:] != in_order[:-1]])[: len(hashes)]
        counts = np.diff(starts, append=len(hashes))
        known = self._count(in_order[starts], counts)
        found = np.empty(len(hashes), np.int64)
        found[order] = np.arange(len(hashes)) + np.repeat(known - starts, counts)
        return found

    def _count(self, distinct: npt.NDArray[np.uint64], counts: Int64s) -> Int64s:
        """Return the counts of these hashes, and add ``counts`` to them."""
        while 2 * (self._used + len(distinct)) > len(self._hashes):
            if self._used + len(distinct) > OCCURRENCES_MAX:
                break
            is_used = self._hashes > 0
            old, old_counts = self._hashes[is_used], self._counts[is_used]
            self._used = 0
            self._resize(4 * len(self._hashes))
            self._insert(old, old_counts)
        return self._insert(distinct, counts)

    def _insert(self, distinct: npt.NDArray[np.uint64], counts: Int64s) -> Int64s:
        found = np.zeros(len(distinct), np.int64)
        left = np.arange(len(distinct))
        mask = len(self._hashes) - 1
        places = (distinct & np.uint64(mask)).astype(np.int64)
        # Double hashing: the steps are odd, so each visits all places.
        steps = (distinct >> np.uint64(40)).astype(np.int64) | 1
        while len(left):
            at = places[left]
            is_free = self._hashes[at] == 0
            if is_free.any() and self._used + len(left) <= OCCURRENCES_MAX:
                self._hashes[at[is_free]] = distinct[left[is_free]]  # of those of a place, the last
            is_here = self._hashes[at] == distinct[left]
            here = left[is_here]
            found[here] = self._counts[places[here]]
            self._used += int((found[here] == 0).sum())
            self._counts[places[here]] += counts[here]
            left = left[~is_here & (self._hashes[at] != 0)]
            places[left] = (places[left] + steps[left]) & mask
        return found


def _groups(partitions: Int64s) -> Iterator[tuple[int, Int64s]]:
    """Return each partition, in the order of the first rows, and its rows in row order."""
    order = np.argsort(partitions, kind="stable")
    starts = np.flatnonzero(np.diff(partitions[order], prepend=-1))
    rows = np.split(order, starts[1:])
    for group in sorted(rows, key=lambda group: int(group[0])):
        yield int(partitions[group[0]]), group


def _integers(column: Any) -> Int64s:
    """Return a column as an array of integers; 0 for a null."""
    integers: Int64s = column.cast(pa.int64()).fill_null(0).to_numpy()
    return integers


def _lengths(column: Any) -> Int64s:
    return _integers(pc.binary_length(column))


def sizes_of(records: pa.RecordBatch) -> Int64s:
    """Return the maximum encoded bytes of each record, which has the columns of
    ``record_schema``."""
    sizes = RECORD_BYTES + _lengths(records.column("value")) + _lengths(records.column("key"))
    headers = records.column("headers")
    ends = np.cumsum(_integers(pc.list_value_length(headers)))
    return sizes + header_sizes(headers, ends)


def header_sizes(headers: Any, ends: Int64s) -> Int64s:
    """Return the maximum encoded bytes of each record's headers. ``ends``: sums of their counts."""
    pairs = headers.flatten()
    upto = np.zeros(len(pairs) + 1, np.int64)
    lengths = _lengths(pc.struct_field(pairs, 0)) + _lengths(pc.struct_field(pairs, 1))
    np.cumsum(HEADER_BYTES + lengths, out=upto[1:])
    sizes: Int64s = np.diff(upto[ends], prepend=0)
    return sizes


# -- chunks ----------------------------------------------------------------------------------------


class Chunk(NamedTuple):
    """Records of a task for one partition that become one batch."""

    partition: TopicPartition
    records: pa.RecordBatch  # with a subset of the columns of ``record_schema``; at least one row


class _Begun:
    """Unfinished chunk of a partition."""

    def __init__(self) -> None:
        self.pieces: list[pa.RecordBatch] = []
        self.size_bytes = 0
        self.passed_bytes = 0  # of all records of the partition so far, including ``pieces``


class Chunker:
    """Collects the runs of each partition into chunks.

    A chunk ends before the record that takes the partition's sum of bytes over the next multiple of
    ``chunk_bytes``; a larger record is a separate chunk. When the records in all begun chunks
    exceed ``PENDING_BYTES_MAX``, all of them end.
    """

    def __init__(self) -> None:
        self._begun: dict[TopicPartition, _Begun] = {}
        self._pending_bytes = 0

    def add(self, run: Run, *, chunk_bytes: int) -> Iterator[Chunk]:
        """Return the chunks that the records of ``run`` complete."""
        begun = self._begun.get(run.partition)
        if begun is None:
            begun = self._begun[run.partition] = _Begun()
        passed = begun.passed_bytes
        begun.passed_bytes += int(run.sizes.sum())
        if begun.passed_bytes // chunk_bytes == passed // chunk_bytes:  # no multiple is crossed
            self._gather(begun, run.records, begun.passed_bytes - passed)
        else:
            yield from self._cut(begun, run, passed, chunk_bytes)
        if self._pending_bytes > PENDING_BYTES_MAX:
            yield from self.rest()

    def _cut(self, begun: _Begun, run: Run, passed: int, chunk_bytes: int) -> Iterator[Chunk]:
        ends = np.cumsum(run.sizes) + passed
        crosses = ends // chunk_bytes > (ends - run.sizes) // chunk_bytes
        large = np.flatnonzero(run.sizes > chunk_bytes)
        cuts = np.flatnonzero(crosses)
        if len(large):
            cuts = np.union1d(cuts, large + 1)
        row = 0
        for cut in cuts.tolist():
            self._gather_rows(begun, run, row, cut)
            if begun.pieces:
                yield self._close(run.partition, begun)
            row = cut
        self._gather_rows(begun, run, row, len(ends))

    def rest(self) -> Iterator[Chunk]:
        """Return the unfinished chunks."""
        for partition, begun in self._begun.items():
            if begun.pieces:
                yield self._close(partition, begun)

    def _gather_rows(self, begun: _Begun, run: Run, start: int, end: int) -> None:
        if start < end:
            part = run.records.slice(start, end - start)
            self._gather(begun, part, int(run.sizes[start:end].sum()))

    def _gather(self, begun: _Begun, records: pa.RecordBatch, size_bytes: int) -> None:
        begun.pieces.append(records)
        begun.size_bytes += size_bytes
        self._pending_bytes += size_bytes

    def _close(self, partition: TopicPartition, begun: _Begun) -> Chunk:
        chunk = Chunk(partition, _joined_rows(begun.pieces))
        self._pending_bytes -= begun.size_bytes
        begun.pieces, begun.size_bytes = [], 0
        return chunk
