"""Scan: the records of a topic as a table of Arrow, read in portions.

A scan fixes its offsets once: every reading of it returns the same records. Where they are, a
``ScanSource`` knows: a cluster, or files. Values can be decoded as text, as JSON, or by the schemas
of the registry.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, Unpack

from raftlog import limits
from raftlog.client.administration.admin import Admin
from raftlog.client.base import ClientEnvironment
from raftlog.client.readers import BYTES_DEFAULT, BYTES_MAX, TIMEOUT_MS_DEFAULT, RangeReader
from raftlog.client.registry import path_of
from raftlog.client.settings import DAY_MS, Bootstrap, SecurityArguments, integer
from raftlog.errors import (
    DeserializationError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    SchemaError,
    UnknownPartitionError,
    UnknownTopicError,
    UnsupportedFeatureError,
)
from raftlog.install import install_command
from raftlog.record.arrow import TIMESTAMP_TYPE, arrow_schema, schema_of
from raftlog.types import Offset, TimestampMs, TopicPartition

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from raftlog.client.scan_dataset import ScanDataset
    from raftlog.client.scan_values import BadValueError, JsonDecoder, TypedDecoder
    from raftlog.registry.formats import Parsed

Place: TypeAlias = Literal["earliest", "latest"] | int | datetime | Mapping[int, int]
Value: TypeAlias = Literal["raw", "text", "json", "typed"]
Condition: TypeAlias = tuple[str, str, Any]

ROWS_DEFAULT: Final = 65_536
COLUMNS_DEFAULT: Final = ("partition", "offset", "timestamp", "key", "value", "headers")
VALUES: Final = ("raw", "text", "json", "typed")
ON_ERROR: Final = ("raise", "null")
_SIMILAR_MAX: Final = 3
_US_PER_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class ScanRange:
    """Offsets of a partition to read, from ``start`` to before ``end``. ``topic_id``: "": any."""

    tp: TopicPartition
    start: Offset
    end: Offset
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class Portions:
    """How to read: columns of ``decode_arrow``, size of a portion, and wait without records."""

    columns: tuple[str, ...]
    rows_max: int
    bytes_max: int
    timeout_ms: int


class ScanSource(Protocol):
    """Where the records of a scan are."""

    def topics(self) -> list[str]:
        """Return the names of all topics, without internal ones, sorted."""
        ...

    def extents(self, topic: str) -> list[ScanRange]:
        """Return all records of each partition. Raises ``UnknownTopicError``."""
        ...

    def at_time(self, ranges: Sequence[ScanRange], time_ms: TimestampMs) -> list[Offset | None]:
        """Return the first offset at or after a time in each partition; None if there is none."""
        ...

    def read(
        self, ranges: Sequence[ScanRange], portions: Portions
    ) -> Iterator[tuple[ScanRange, pa.RecordBatch]]:
        """Yield the records of the ranges, one range after the other."""
        ...


class ClusterSource:
    """Records of a cluster. Each reading has its own connections."""

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        *,
        read_from: str = "replica",
        host: ClientEnvironment | None = None,
        security: SecurityArguments | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._read_from = read_from
        self._host = host
        self._security: SecurityArguments = security or {}

    def _admin(self) -> Admin:
        return Admin(self._bootstrap, host=self._host, **self._security)

    def topics(self) -> list[str]:
        with self._admin() as admin:
            return sorted(admin.list_topics())

    def extents(self, topic: str) -> list[ScanRange]:
        with self._admin() as admin:
            listing = admin.find_topics([topic]).get(topic)
            if listing is None:
                raise UnknownTopicError(no_topic(topic, admin.list_topics()))
            tps = [TopicPartition(topic, number) for number in range(listing.partition_count)]
            starts = admin.list_offsets(dict.fromkeys(tps, "earliest"))
            ends = admin.list_offsets(dict.fromkeys(tps, "latest"))
        found = []
        for tp in tps:
            start, end = starts[tp], ends[tp]
            assert start is not None and end is not None, "only times can have no offset"
            found.append(ScanRange(tp, start.offset, max(start.offset, end.offset), listing.id))
        return found

    def at_time(self, ranges: Sequence[ScanRange], time_ms: TimestampMs) -> list[Offset | None]:
        with self._admin() as admin:
            found = admin.list_offsets({each.tp: time_ms for each in ranges})
        places = (found[each.tp] for each in ranges)
        return [None if place is None else place.offset for place in places]

    def fetch_schema(self, path: str) -> Parsed:
        """Return the schema at a path of the registry. Raises ``SchemaError``."""
        with self._admin() as admin:
            return schema_at(admin, path)

    def read(
        self, ranges: Sequence[ScanRange], portions: Portions
    ) -> Iterator[tuple[ScanRange, pa.RecordBatch]]:
        with RangeReader(
            self._bootstrap, read_from=self._read_from, host=self._host, **self._security
        ) as reader:
            for wanted in ranges:
                for batch in reader.read(
                    wanted.tp,
                    wanted.start,
                    wanted.end,
                    topic_id=wanted.topic_id,
                    columns=portions.columns,
                    rows_max=portions.rows_max,
                    bytes_max=portions.bytes_max,
                    timeout_ms=portions.timeout_ms,
                ):
                    yield wanted, batch


def schema_at(admin: Admin, path: str) -> Parsed:
    """Return the schema at a path of the registry. Raises ``SchemaError``."""
    from raftlog.registry.rest import fetch_schema

    async def get(path: str) -> Any:
        return admin.call_schema_registry("GET", path)

    fetching = fetch_schema(get, path)
    try:
        fetching.send(None)
    except StopIteration as done:
        parsed: Parsed = done.value
        return parsed
    raise AssertionError("a call of Admin returns its result, so nothing is awaited")


def schema_of_values(fetch: Callable[[str], Parsed], topic: str) -> Parsed:
    """Return the latest schema of the values of a topic. ``fetch``: ``schema_at``.

    Raises ``SchemaError`` if there is none, with the remedy.
    """
    subject = f"{topic}-value"
    try:
        return fetch(path_of("subjects", subject, "versions", "latest"))
    except SchemaError as error:
        raise SchemaError(
            f"the schema registry has no schema for the values of {topic} "
            f"({str(error).rstrip('.')}). "
            f"Register it as {subject} (raftlog schema put {subject} FILE), or use "
            "value='raw', or 'json'",
            error.registry_code,
        ) from error


def no_topic(name: str, existing: Iterable[str]) -> str:
    """Return the error for a topic that does not exist, with similar names."""
    similar = get_close_matches(name, existing, _SIMILAR_MAX)
    advice = f". Did you mean {' or '.join(map(repr, similar))}?" if similar else ""
    return f"topic {name!r} does not exist{advice}"


class Scan:
    """Records of a topic, as a table. Nothing is read before one of the methods below.

    A ``Scan`` can be read several times, with the same offsets each time. It has the Arrow stream
    interface (``__arrow_c_stream__``): libraries such as pyarrow, Polars and DuckDB accept it as a
    table.
    """

    def __init__(
        self,
        source: ScanSource,
        topic: str,
        *,
        start: Place = "earliest",
        end: Place = "latest",
        partitions: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        where: Sequence[Condition] = (),
        value: Value = "raw",
        schema: pa.Schema | None = None,
        on_error: Literal["raise", "null"] = "raise",
        rows_max: int = ROWS_DEFAULT,
        bytes_max: int = BYTES_DEFAULT,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
    ) -> None:
        """For the arguments see ``raftlog.scan``."""
        for name, given, known in (("value", value, VALUES), ("on_error", on_error, ON_ERROR)):
            if given not in known:
                raise InvalidRequestError(f"{name}={given!r} is not one of {', '.join(known)}")
        if schema is not None and value != "json":
            raise InvalidRequestError(f"schema= requires value='json', not value={value!r}")
        arrow_schema()  # raises if there is no pyarrow
        self.topic = topic
        self._source = source
        self._value = value
        self._null_on_error = on_error == "null"
        self._given_schema = schema
        self._portions = Portions(
            (),
            integer("rows_max", rows_max, 1, limits.RECORDS_PER_BATCH_MAX),
            integer("bytes_max", bytes_max, 1, BYTES_MAX),
            integer("timeout_ms", timeout_ms, 1, DAY_MS),
        )
        self._decoder: JsonDecoder | TypedDecoder | None = None
        self._names: dict[str, str] = {}  # of columns: names of fields of the value
        bounds = Bounds.of(where)
        self._times = bounds.times
        self.ranges = tuple(self._planned(start, end, partitions, bounds))
        if value == "typed":
            self._decoder = self._typed_decoder()
        self._full: pa.Schema | None = None
        self._columns = None if columns is None else tuple(columns)
        if self._columns is not None and not self._has_fields:
            schema_of(self._columns)

    def __repr__(self) -> str:
        return f"Scan({self.topic!r}, value={self._value!r}, offsets={self.offset_count})"

    @property
    def offset_count(self) -> int:
        """Number of offsets in the scan: at least its number of records."""
        return sum(each.end - each.start for each in self.ranges)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the scan. With ``value="json"`` and no ``schema``: reads the first records."""
        import pyarrow as pa

        if self._full is None:
            self._full = self._field_columns() if self._has_fields else self._record_columns()
        full, names = self._full, self._columns
        if names is None:
            names = tuple(dict.fromkeys((*COLUMNS_DEFAULT, *self._names)))
        elif unknown := [name for name in names if name not in full.names]:
            raise InvalidRequestError(
                f"columns={list(names)!r}: there is no {unknown[0]!r}; there are "
                f"{', '.join(full.names)}"
            )
        return pa.schema([full.field(name) for name in names if name in full.names])

    # -- reading

    def reader(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Return a new reader of all records: partition by partition, in the order of offsets.

        ``columns``: some of ``schema``, in this order. Default: all. Memory does not depend on the
        number of records: a portion of ``bytes_max``, and up to 16 MiB that are fetched ahead. The
        connections end with the last record, or when the reader is deleted.

        Reading raises ``OffsetOutOfRangeError`` if records were deleted since the scan was made,
        ``DeserializationError`` for a value that does not match, and the errors of a consumer.
        """
        import pyarrow as pa

        schema = self.schema
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        return pa.RecordBatchReader.from_batches(schema, self._batches(schema))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """Return all records as a ``pyarrow.Table``."""
        return self.reader().read_all()

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """Return all records as a pandas DataFrame. ``options``: of ``Table.to_pandas``."""
        return self.to_arrow().to_pandas(**options)

    def to_polars(self, *, lazy: bool = False) -> pl.DataFrame | pl.LazyFrame:
        """Return all records as a Polars DataFrame.

        ``lazy``: return a LazyFrame, which reads only the columns that a query uses, in portions.
        """
        polars = _library("polars")
        if not lazy:
            frame: pl.DataFrame = polars.from_arrow(self.to_arrow())
            return frame
        register = _library("polars.io.plugins").register_io_source
        source: pl.LazyFrame = register(self._frames, schema=polars.Schema(self.schema))
        return source

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """Return the scan as a DuckDB relation. A query reads only the columns that it uses.

        Conditions of a query on ``partition``, ``offset`` and ``timestamp`` limit what is read.
        """
        connection = connection or _library("duckdb").connect()
        return connection.from_arrow(self.dataset())

    def dataset(self) -> ScanDataset:
        """Return the scan as a ``pyarrow.dataset.Dataset``, which DuckDB and others accept."""
        from raftlog.client.scan_dataset import ScanDataset

        return ScanDataset(self)

    def limited(self, bounds: Bounds) -> Scan:
        """Return a scan without records that ``bounds`` excludes. It may keep some of them."""
        made = object.__new__(Scan)
        made.__dict__ |= self.__dict__
        made.ranges = tuple(self._from_time(bounds, bounds.limit(self.ranges)))
        return made

    # -- inside

    def _planned(
        self, start: Place, end: Place, partitions: Iterable[int] | None, bounds: Bounds
    ) -> list[ScanRange]:
        ranges = self._source.extents(self.topic)
        for name, place in (("start", start), ("end", end)):
            if isinstance(place, Mapping):
                self._check_numbers(name, place, len(ranges))
        if partitions is not None:
            wanted = sorted(set(partitions))
            self._check_numbers("partitions", wanted, len(ranges))
            ranges = [ranges[number] for number in wanted]
        starts = self._offsets("start", start, ranges)
        ends = self._offsets("end", end, ranges)
        chosen = [
            replace(each, start=first, end=max(first, last))
            for each, first, last in zip(ranges, starts, ends, strict=True)
        ]
        return self._from_time(bounds, bounds.limit(chosen))

    def _check_numbers(self, name: str, numbers: Iterable[int], count: int) -> None:
        for number in numbers:
            if number not in range(count):
                raise UnknownPartitionError(
                    f"{name}: {self.topic} has no partition {number}: it has 0 to {count - 1}"
                )

    def _from_time(self, bounds: Bounds, ranges: list[ScanRange]) -> list[ScanRange]:
        """Return the ranges without the records before the first one at the least time."""
        ranges = [each for each in ranges if each.start < each.end]
        least_us = bounds.times[0]
        if least_us is None or not ranges or not self._source_has_times():
            return ranges
        # The first record that is late enough: all before it are too early.
        firsts = self._first_at(ranges, least_us)
        moved = (
            replace(each, start=each.end if first is None else max(each.start, first))
            for each, first in zip(ranges, firsts, strict=True)
        )
        return [each for each in moved if each.start < each.end]

    def _first_at(self, ranges: Sequence[ScanRange], time_us: int) -> list[Offset | None]:
        """Return the first offset at or after a time in each partition; None if there is none."""
        time_ms = max(0, -(-time_us // _US_PER_MS))  # records have whole milliseconds
        if time_ms > limits.TIMESTAMP_MS_MAX:
            return [None] * len(ranges)
        return self._source.at_time(ranges, time_ms)

    @property
    def _has_fields(self) -> bool:
        """Whether fields of the values become columns."""
        return self._value in ("json", "typed")

    def _source_has_times(self) -> bool:
        return getattr(self._source, "HAS_TIMES", True)

    def _offsets(self, name: str, place: Place, ranges: Sequence[ScanRange]) -> list[Offset]:
        """Return the offset of ``place`` in each partition."""
        if isinstance(place, Mapping):
            return [self._exact(name, place.get(each.tp.partition), each) for each in ranges]
        if isinstance(place, datetime):
            found = self._first_at(ranges, _time_us(name, place))
            return [
                each.end if at is None else _within(at, each)
                for at, each in zip(found, ranges, strict=True)
            ]
        if place == "earliest":
            return [each.start for each in ranges]
        if place == "latest":
            return [each.end for each in ranges]
        if isinstance(place, bool) or not isinstance(place, int):
            raise TypeError(
                f"{name}={place!r} is not 'earliest', 'latest', an offset, a datetime, or a dict "
                "of partition to offset"
            )
        integer(name, place, 0, limits.OFFSET_MAX + 1)
        return [_within(place, each) for each in ranges]

    def _exact(self, name: str, offset: Offset | None, there: ScanRange) -> Offset:
        if offset is None:
            return there.end if name == "end" else there.start
        if not there.start <= offset <= there.end:
            raise OffsetOutOfRangeError(
                f"{name}: {there.tp} has no offset {offset}: it has {there.start} to {there.end}"
            )
        return offset

    def _record_columns(self) -> pa.Schema:
        import pyarrow as pa

        full = schema_of([*arrow_schema().names, TIMESTAMP_TYPE])
        if self._value == "text":
            full = full.set(full.names.index("value"), pa.field("value", pa.string()))
        return full

    def _field_columns(self) -> pa.Schema:
        """Return the columns of the record without its value, and the fields of the value.

        A field with the name of a column gets another name.
        """
        import pyarrow as pa

        names = [*arrow_schema().names, TIMESTAMP_TYPE]
        names.remove("value")
        fields = list(schema_of(names))
        if self._decoder is None:
            self._decoder = self._json_decoder()
        for field in self._decoder.schema:
            name = field.name
            while name in names:
                name = f"value_{name}"
            names.append(name)
            self._names[name] = field.name
            fields.append(field.with_name(name))
        return pa.schema(fields)

    def _json_decoder(self) -> JsonDecoder:
        import pyarrow as pa

        from raftlog.client.scan_values import BadValueError, JsonDecoder, infer

        schema = self._given_schema
        if schema is None:
            portions = replace(self._portions, columns=("offset", "value"))
            for at, batch in self._source.read(self.ranges, portions):
                try:
                    schema = infer(batch.column("value"), null_on_error=self._null_on_error)
                except BadValueError as error:
                    raise self._bad_value(at, batch, error) from None
                if schema is not None:
                    break
        return JsonDecoder(schema or pa.schema([]), null_on_error=self._null_on_error)

    def _typed_decoder(self) -> TypedDecoder:
        from raftlog.client.scan_values import TypedDecoder

        fetch = getattr(self._source, "fetch_schema", None)
        if fetch is None:
            raise UnsupportedFeatureError(
                "value='typed' needs the schema registry of a running cluster: directories and "
                "backups have none. Use bootstrap= without directory=, or value='raw'"
            )
        reader = schema_of_values(fetch, self.topic)
        return TypedDecoder(fetch, reader, null_on_error=self._null_on_error)

    def _bad_value(
        self, at: ScanRange, batch: pa.RecordBatch, error: BadValueError
    ) -> DeserializationError:
        offset = batch.column("offset")[error.row].as_py()
        kind = _KINDS[self._value]
        return DeserializationError(
            f"{at.tp}: the value at offset {offset} is not {kind}: {error}. Set on_error='null' "
            "(--on-error null) to read such values as null"
        )

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the records as ``schema``, some of the columns of the scan."""
        import pyarrow as pa

        names = [name for name in schema.names if name not in self._names]
        fields = [self._names[name] for name in schema.names if name in self._names]
        is_decoded = bool(fields) or (self._value == "text" and "value" in names)
        needed = dict.fromkeys(names)
        if fields:
            needed["value"] = None
        if fields and self._value == "typed":
            needed["headers"] = None  # they can have the ID of the schema
        if is_decoded:
            needed["offset"] = None  # for errors
        if self._times != (None, None):
            needed["timestamp"] = None
        columns = tuple(needed) or ("partition",)
        for at, read in self._source.read(self.ranges, replace(self._portions, columns=columns)):
            batch = self._in_time(read)
            found = {name: batch.column(name) for name in columns}
            if is_decoded:
                found |= self._decoded(at, batch, fields)
            keys = (_field(self._names[name]) if name in self._names else name
                    for name in schema.names)  # fmt: skip
            arrays = [found[key] for key in keys]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _decoded(
        self, at: ScanRange, batch: pa.RecordBatch, fields: Sequence[str]
    ) -> dict[str, pa.Array]:
        """Return the decoded value, or fields of it by ``_field``."""
        from raftlog.client.scan_values import (
            BadValueError,
            JsonDecoder,
            TypedDecoder,
            decode_text,
        )

        try:
            if self._value == "text":
                text = decode_text(batch.column("value"), null_on_error=self._null_on_error)
                return {"value": text}
            assert self._decoder is not None, "created with the columns"
            decoder = self._decoder
            if isinstance(decoder, TypedDecoder):
                columns = decoder.decode(batch.column("value"), batch.column("headers"), fields)
                return dict(zip(map(_field, fields), columns, strict=True))
            if len(fields) < len(decoder.schema):
                decoder = JsonDecoder(
                    _part(decoder.schema, fields), null_on_error=self._null_on_error
                )
            columns = decoder.decode(batch.column("value"))
        except BadValueError as error:
            raise self._bad_value(at, batch, error) from None
        return dict(zip(map(_field, decoder.schema.names), columns, strict=True))

    def _in_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records within the times of ``where``."""
        import pyarrow as pa
        import pyarrow.compute as pc

        least, end = self._times
        if least is None and end is None:
            return batch
        times = batch.column("timestamp").cast(pa.int64())
        mask = pc.less(times, limits.OFFSET_MAX if end is None else end)
        if least is not None:
            mask = pc.and_(mask, pc.greater_equal(times, least))
        return batch.filter(mask)

    def _frames(
        self,
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        _batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        """Source of a LazyFrame."""
        polars = _library("polars")
        left = n_rows
        with self.reader(with_columns) as batches:
            for batch in batches:
                frame = polars.from_arrow(batch)
                if left is not None:
                    frame = frame.head(left)
                    left -= len(frame)
                yield frame if predicate is None else frame.filter(predicate)
                if left == 0:
                    return


_KINDS: Final = {
    "text": "text",
    "json": "a JSON object of the expected types",
    "typed": "of the schema of its topic",
}


def _part(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([schema.field(name) for name in names])


def _field(name: str) -> str:
    """Return the key of a field of the value, apart from the columns of the record."""
    return f"/{name}"


def _within(offset: Offset, there: ScanRange) -> Offset:
    return max(there.start, min(offset, there.end))


def _time_us(name: str, moment: datetime) -> int:
    if moment.tzinfo is None:
        raise InvalidRequestError(
            f"{name}={moment!r} has no time zone. Write datetime(..., tzinfo=UTC)"
        )
    # In UTC: the difference of two times of one zone leaves out that its offset changes.
    days_and_more = moment - datetime.fromtimestamp(0, UTC)
    return (days_and_more.days * 86_400 + days_and_more.seconds) * 1_000_000 + (
        days_and_more.microseconds
    )


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise UnsupportedFeatureError(f"this needs {name}. Run pip install {name}") from error


def scan(
    topic: str,
    *,
    bootstrap: Bootstrap = None,
    directory: str | os.PathLike[str] | None = None,
    start: Place = "earliest",
    end: Place = "latest",
    partitions: Iterable[int] | None = None,
    columns: Sequence[str] | None = None,
    where: Sequence[Condition] = (),
    value: Value = "raw",
    schema: pa.Schema | None = None,
    on_error: Literal["raise", "null"] = "raise",
    rows_max: int = ROWS_DEFAULT,
    bytes_max: int = BYTES_DEFAULT,
    timeout_ms: int = TIMEOUT_MS_DEFAULT,
    read_from: str = "replica",
    **security: Unpack[SecurityArguments],
) -> Scan:
    """Return the records of a topic, up to now, as a table for Arrow, pandas, Polars and DuckDB.

    ``bootstrap``, ``read_from``, security arguments: as for ``Consumer``.
    ``directory``: instead of a cluster, the directory of ``raftlog.open`` or of a stopped broker,
        or the directory or URL of a backup (``raftlog backup``).
    ``start``, ``end``: "earliest", "latest", an offset, a datetime with a time zone (the first
        record at or after it), or a dict of partition to offset. ``end`` is not included. An offset
        is moved into the range of each partition; an offset of a dict must exist. Default: all
        committed records.
    ``partitions``: numbers of partitions. Default: all.
    ``columns``: names, in this order, of topic, partition, offset, timestamp (us, UTC), key,
        value, headers, leader_epoch and timestamp_type. Default: partition, offset, timestamp, key,
        value, headers; with ``value="json"`` and "typed" the fields of the value take its place.
    ``where``: conditions that all rows fulfil, such as ``[("offset", ">=", 100), ("timestamp", "<",
        datetime(...))]``. Columns: partition, offset and timestamp; operators: = == < <= > >=.
    ``value``: "raw": bytes; "text": UTF-8; "json": objects, whose fields become columns; "typed":
        values with the ID of a schema, which get the fields of the latest ``TOPIC-value`` (Avro or
        JSON). A field with the name of a column of the record gets the prefix ``value_``.
    ``schema``: with ``value="json"``, the fields to decode, as a ``pyarrow.Schema``. Fields that it
        does not have are ignored. Default: inferred from the first portion of records that has
        values. Later values must match it.
    ``on_error``: a value of another type raises ``DeserializationError`` ("raise"), or is null
        ("null"). Default: "raise".
    ``rows_max`` (1 to 1,048,576, default: 65,536), ``bytes_max`` (1 to 1 GiB, uncompressed,
        default: 4 MiB): size of the portions that are read.
    ``timeout_ms``: maximum wait for records, 1 to 86,400,000. Default: 30,000.

    Raises ``InvalidRequestError`` or ``TypeError`` for wrong arguments, ``UnknownTopicError``,
    ``OffsetOutOfRangeError``, and ``DataDirectoryError`` if another process uses the directory.
    """
    if directory is None:
        source: ScanSource = ClusterSource(bootstrap, read_from=read_from, security=security)
    elif bootstrap is not None or security:
        raise InvalidRequestError("directory= excludes bootstrap= and security arguments")
    else:
        source = _source_in(os.fspath(directory))
    return Scan(
        source,
        topic,
        start=start,
        end=end,
        partitions=partitions,
        columns=columns,
        where=where,
        value=value,
        schema=schema,
        on_error=on_error,
        rows_max=rows_max,
        bytes_max=bytes_max,
        timeout_ms=timeout_ms,
    )


def _source_in(directory: str) -> ScanSource:
    try:
        files = import_module("raftlog.scanning")
    except ModuleNotFoundError as error:
        raise UnsupportedFeatureError(
            "raftlog-client cannot read directories. Uninstall it, and run "
            f"{install_command()} ({error})"
        ) from error
    source: ScanSource = files.source_in(directory)
    return source


# -- conditions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bounds:
    """Conjunction of conditions: least value and the value after the greatest; None: no bound.

    ``times``: us since 1970.
    """

    offsets: tuple[int | None, int | None] = (None, None)
    partitions: tuple[int | None, int | None] = (None, None)
    times: tuple[int | None, int | None] = (None, None)

    @classmethod
    def of(cls, where: Iterable[Condition]) -> Bounds:
        """Return the bounds of conditions (column, operator, value).

        Columns: offset, partition and timestamp (a datetime with a time zone). Operators: = == < <=
        > >=. Raises ``InvalidRequestError`` for others, and ``TypeError``.
        """
        found: dict[str, tuple[int | None, int | None]] = dict.fromkeys(
            ("offset", "partition", "timestamp"), (None, None)
        )
        for condition in where:
            try:
                name, operator, given = condition
            except (TypeError, ValueError):
                raise InvalidRequestError(
                    f"where: {condition!r} is not (column, operator, value), such as "
                    "('offset', '>=', 100)"
                ) from None
            if name not in found or operator not in _OPERATORS:
                raise InvalidRequestError(
                    f"where: {condition!r}: the column is one of {', '.join(found)}, the operator "
                    f"one of {' '.join(_OPERATORS)}"
                )
            if name != "timestamp":
                number = integer(f"where {name}", given, -(1 << 63), (1 << 63) - 1)
            elif isinstance(given, datetime):
                number = _time_us("where timestamp", given)
            else:
                raise TypeError(f"where: {condition!r}: {given!r} is not a datetime")
            least, end = _OPERATORS[operator](number)
            before = found[name]
            found[name] = (_greater(before[0], least), _smaller(before[1], end))
        return cls(found["offset"], found["partition"], found["timestamp"])

    def limit(self, ranges: Iterable[ScanRange]) -> list[ScanRange]:
        """Return the parts of ranges within the bounds of offsets and partitions."""
        first, last = self.offsets
        kept = []
        for each in ranges:
            least, end = self.partitions
            number = each.tp.partition
            if (least is not None and number < least) or (end is not None and number >= end):
                continue
            start = each.start if first is None else max(each.start, first)
            stop = each.end if last is None else min(each.end, last)
            if start < stop:
                kept.append(replace(each, start=start, end=stop))
        return kept


_OPERATORS: Final[dict[str, Callable[[int], tuple[int | None, int | None]]]] = {
    "=": lambda number: (number, number + 1),
    "==": lambda number: (number, number + 1),
    "<": lambda number: (None, number),
    "<=": lambda number: (None, number + 1),
    ">": lambda number: (number + 1, None),
    ">=": lambda number: (number, None),
}


def _greater(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _smaller(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
