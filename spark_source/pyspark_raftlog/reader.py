"""Batch read: offset ranges, fixed once for each ``load()``, and the tasks that read them.

The driver queries the start and end offset of every partition once. Records that are appended later
are read by the next ``load()``. Tasks get exact ranges of offsets.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_raftlog import clients
from pyspark_raftlog.bounds import (
    Extent,
    extent,
    record_sizes,
    resolve_end,
    resolve_start,
    select,
    selects,
    starting_offset,
    view_of,
)
from pyspark_raftlog.clients import Connection, GroupProgress, connection_of
from pyspark_raftlog.offsets import StreamOffset, reported
from pyspark_raftlog.options import SourceOptions
from pyspark_raftlog.planning import (
    UNLIMITED,
    Loss,
    LossKind,
    PartitionNow,
    PartitionRange,
    Rate,
    Sizes,
    StreamPlanner,
    Verdict,
    View,
    damaged,
    error_of,
    judge,
    plan_tasks,
)
from pyspark_raftlog.schema import (
    arrow_columns,
    arrow_schema,
    check_schema,
    is_record_column,
    json_field,
)
from raftlog import limits
from raftlog.client.scan_values import BadValueError, JsonDecoder
from raftlog.errors import (
    CorruptBatchError,
    DamagedLogError,
    DeserializationError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RaftlogError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.types import Offset, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_raftlog.catalog import Catalog
    from pyspark_raftlog.typed import ReaderSchema


# -- task reader -----------------------------------------------------------------------------------
#
# Task of a read on an executor: reads one exact range of a partition, batch by batch.
#
# The range reader retries and changes replicas. This module detects records that were planned and
# no longer exist.


logger = logging.getLogger("raftlog.spark")

_GONE: Final = (OffsetOutOfRangeError, UnknownTopicError, UnknownPartitionError)
_DAMAGED: Final = (CorruptBatchError, DamagedLogError)
_TRIES_MAX: Final = 3  # attempts at one offset that exists by the metadata of the cluster


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Settings shared by all tasks of a read. Spark pickles them to the executors.

    ``timeout_ms``: maximum time without a record before a task fails.
    """

    connection: Connection
    schema: StructType
    rows_max: int  # of one RecordBatch
    bytes_max: int
    timeout_ms: int
    fail_on_data_loss: bool
    null_on_error: bool = False
    typed: ReaderSchema | None = None  # of values with IDs of schemas


def settings_of(options: SourceOptions, schema: StructType) -> ReadSettings:
    """Return the options that the tasks use, for the columns ``schema``.

    Raises ``InvalidRequestError`` for other columns than there are. With ``value=typed``, queries
    the schema registry.
    """
    typed = None
    if options.typed_topic is None:
        check_schema(schema, options.columns, json=options.json)
    else:
        from pyspark_raftlog.typed import ReaderSchema, check_typed_schema

        connection = connection_of(options)
        typed = ReaderSchema.latest(connection, options.typed_topic)
        fields = typed.decoder(connection, null_on_error=False).schema
        check_typed_schema(schema, fields, options.columns)
    return ReadSettings(
        connection_of(options),
        schema,
        options.batch_max_rows,
        options.batch_max_bytes,
        options.fetch_timeout_ms,
        options.fail_on_data_loss,
        options.null_on_error,
        typed,
    )


def read_partition(partition: InputPartition, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """Read the ranges of a task (``plan_tasks``). Spark also creates partitions without one.

    Raises ``DataLossError``, and the errors of the range reader.
    """
    wanted = partition.value
    if wanted is None:
        return iter(())
    ranges = wanted if isinstance(wanted, tuple) else (wanted,)
    return chain.from_iterable(_read(each, settings) for each in ranges)


def _read(wanted: PartitionRange, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    rows = Rows(wanted.topic_partition, settings)
    columns, where = rows.columns, rows.columns.index("offset")
    left, tries = wanted, 0
    has_warned = False
    while left.size:
        try:
            for batch in _batches(left, columns, settings):
                left = replace(left, start=_last(batch.column(where)) + 1)
                tries = 0
                yield rows.of(batch)
            return
        except (*_GONE, *_DAMAGED) as error:
            tries += 1
            left, loss = _what_is_left(left, error, settings)
            if loss is None and tries >= _TRIES_MAX:
                raise
            if loss is not None and settings.fail_on_data_loss:
                raise loss.error() from error
            if loss is not None and not has_warned:
                has_warned = True
                logger.warning("%s", loss.warning())


class Rows:
    """Rows of a task, as Spark expects them. ``columns``: what is read of the records."""

    def __init__(self, tp: TopicPartition, settings: ReadSettings) -> None:
        import pyarrow as pa

        self._tp = tp
        self._schema = arrow_schema(settings.schema)
        self.columns = arrow_columns(settings.schema)
        self._count = len(self.columns)
        fields = [field for field in self._schema if not is_record_column(field.name)]
        self._kind = "a JSON object" if settings.typed is None else "a value with a schema"
        self._decode: Callable[[pa.RecordBatch], list[pa.Array]] | None = None
        if fields:
            named = [field.with_name(json_field(field.name)) for field in fields]
            self._decode = _decoder(pa.schema(named), settings)
            # A header can have the ID of the schema.
            needed = ["value"] if settings.typed is None else ["value", "headers"]
            self.columns += [name for name in needed if name not in self.columns]
        if "offset" not in self.columns:
            self.columns.append("offset")  # needed to resume; not passed to Spark

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch of ``columns``. Raises ``DeserializationError``."""
        import pyarrow as pa

        arrays = batch.columns[: self._count]
        if self._decode is None:
            return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        try:
            decoded = iter(self._decode(batch))
        except BadValueError as error:
            offset = batch.column(self.columns.index("offset"))[error.row]
            raise DeserializationError(
                f"{self._tp}: the value at offset {offset} is not {self._kind} of the types of the "
                f"schema: {error}. Set the option onError=null to read such values as null"
            ) from None
        taken = iter(arrays)
        return pa.RecordBatch.from_arrays(
            [
                next(taken) if is_record_column(field.name) else next(decoded).cast(field.type)
                for field in self._schema
            ],
            schema=self._schema,
        )


def _decoder(
    fields: pa.Schema, settings: ReadSettings
) -> Callable[[pa.RecordBatch], list[pa.Array]]:
    """Return a function that returns these fields of the values of a batch."""
    if settings.typed is None:
        decoder = JsonDecoder(fields, null_on_error=settings.null_on_error)
        return lambda batch: decoder.decode(batch.column("value"))
    from pyspark_raftlog.typed import decoded

    typed = settings.typed.decoder(settings.connection, null_on_error=settings.null_on_error)
    types = dict(zip(fields.names, fields.types, strict=True))
    return lambda batch: decoded(typed, batch, types)


def _batches(
    wanted: PartitionRange, columns: list[str], settings: ReadSettings
) -> Iterator[pa.RecordBatch]:
    with clients.range_readers.lend(settings.connection) as reader:
        yield from reader.read(
            wanted.topic_partition,
            wanted.start,
            wanted.end,
            topic_id=wanted.topic_id,
            columns=columns,
            rows_max=settings.rows_max,
            bytes_max=settings.bytes_max,
            timeout_ms=settings.timeout_ms,
        )


def _last(offsets: pa.Array) -> Offset:
    return int(offsets[len(offsets) - 1].as_py())


def _what_is_left(
    wanted: PartitionRange, error: RaftlogError, settings: ReadSettings
) -> tuple[PartitionRange, Loss | None]:
    """Return the readable part of the range, and the loss, if records are missing."""
    if isinstance(error, _DAMAGED):
        return replace(wanted, start=wanted.end), damaged(wanted, str(error))
    with clients.catalogs.lend(settings.connection) as catalog:
        now = catalog.now([wanted.topic_partition])[wanted.topic_partition]
    verdict = judge(wanted, now)
    return verdict.range, verdict.loss


# -- stream reader ---------------------------------------------------------------------------------
#
# Streaming read: start of the query, end of each batch, and its tasks.
#
# Spark's order of calls, on the driver, in one process per query:
#
#     (prepareForTriggerAvailableNow)  getDefaultReadLimit  initialOffset    once; the last only for
#                                                                            a new query
#     latestOffset(start)  reportLatestOffset  commit(start)  partitions     for each batch
#
# ``read`` is called in other processes, on copies of the reader. So the reader holds no clients
# (see ``pyspark_raftlog.clients``). ``StreamPlanner`` makes the decisions.


T = TypeVar("T")


REST_S: Final = 0.1  # minimum seconds between two queries of an idle cluster
# In place of ReadAllAvailable, which Spark uses for a query of one batch (Trigger.Once): there,
# the first batch must not be empty.
_NO_LIMIT: Final = ReadMaxRows(limits.OFFSET_MAX)
_CERTAIN: Final = frozenset({LossKind.AGED_OUT})  # deleted records stay deleted


@dataclass(frozen=True, slots=True)
class _Now:
    """Offsets of the cluster for one batch. ``earliest``: of the partitions that need it."""

    view: View
    earliest: Mapping[TopicPartition, Offset]
    sizes: Sizes


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reader of topics.

    The first batch is empty: it puts the starting offsets into the checkpoint. A partition that is
    new is read from its earliest record, from the batch after the one in which it was found. With a
    checkpoint, the starting options have no effect.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._settings = settings_of(options, schema)
        self._planner = StreamPlanner(partial(selects, options.selection))
        self._reported: dict[str, Any] | None = None
        self._idle: tuple[StreamOffset, float] | None = None  # of the last empty result
        self._has_logged_notices = False
        self._progress = (
            GroupProgress(options.group_id) if options.commit_offsets and options.group_id else None
        )

    # -- start of the query

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the start of a new query. Spark calls it twice, and to repeat the first batch.

        Raises ``UnknownTopicError``, ``UnknownPartitionError``, ``InvalidRequestError``,
        ``DataLossError``.
        """
        initial = self._planner.initial
        if initial is None:
            initial = self._planner.begin(
                self._query(lambda catalog: starting_offset(catalog, self._options))
            )
        return initial.as_dict()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of this run at the current ends of the partitions."""
        self._planner.aim(self._query(lambda catalog: view_of(catalog, self._options.selection)))

    # -- end of a batch

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the options. Spark passes it back, and supports only one limit."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return _NO_LIMIT

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the end of the batch from ``start``: ``start`` itself if no batch is due.

        Raises ``DataLossError`` if records after ``start`` are lost and ``failOnDataLoss`` is set.
        """
        offset = StreamOffset.from_dict(start)
        return self._query(lambda catalog: self._latest_offset(catalog, offset, limit)).as_dict()

    def _latest_offset(
        self, catalog: Catalog, start: StreamOffset, limit: ReadLimit
    ) -> StreamOffset:
        self._commit_for_group(catalog, start)
        if self._planner.is_first(start) and not isinstance(limit, ReadAllAvailable):
            return start
        rate = self._rate(limit)
        self._rest(start)
        now = self._current(catalog, start, with_sizes=rate.max_bytes is not None)
        step = self._planner.next_step(
            start, now.view, now.earliest, rate=rate, sizes=now.sizes, now_s=time.monotonic()
        )
        self._reported = reported(now.view.offset(), step.end)
        self._check_losses(step.losses)
        self._idle = (start, time.monotonic()) if step.end == start else None
        return step.end

    def _rest(self, start: StreamOffset) -> None:
        """Limit the query rate: without a trigger, Spark calls 100 times a second when idle."""
        if self._idle is not None and self._idle[0] == start:
            time.sleep(max(0.0, self._idle[1] + REST_S - time.monotonic()))

    def _rate(self, limit: ReadLimit) -> Rate:
        """Return Spark's limit, with the options that Spark's limits cannot express."""
        if isinstance(limit, ReadAllAvailable):
            return UNLIMITED
        options = self._options
        return Rate(
            max_offsets=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            max_bytes=limit.max_bytes if isinstance(limit, ReadMaxBytes) else None,
            min_offsets=options.min_offsets_per_trigger,
            max_delay_s=options.max_trigger_delay_ms / 1_000,
        )

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends that ``latestOffset`` queried last, and the lag of each topic.

        For Spark's progress reports only.
        """
        return self._reported

    def _current(self, catalog: Catalog, start: StreamOffset, *, with_sizes: bool) -> _Now:
        """Query the current offsets; repeat while records of ``start`` seem to be lost."""

        def attempt(is_last: bool) -> _Now | None:
            view = view_of(catalog, self._options.selection)
            if self._planner.suspect(start, view) and not is_last:
                return None
            earliest = catalog.earliest(self._planner.changed(start, view))
            return _Now(view, earliest, record_sizes(catalog.admin, view) if with_sizes else {})

        return self._until_certain(attempt)

    def _until_certain(self, attempt: Callable[[bool], T | None]) -> T:
        """Call ``attempt`` until its result is certain. Its argument is True in the last call.

        None is an uncertain result. A topic that is deleted between two queries is uncertain, too.
        """
        for left in range(self._options.retries, -1, -1):
            try:
                found = attempt(not left)
                if found is not None:
                    return found
            except (UnknownTopicError, UnknownPartitionError):
                if not left:
                    raise
            time.sleep(self._options.retry_interval_ms / 1_000)
        raise AssertionError("the last attempt always returns a result")

    def _check_losses(self, losses: tuple[Loss, ...]) -> None:
        if losses and self._options.fail_on_data_loss:
            raise error_of(losses)
        for loss in losses:
            if loss.kind not in _CERTAIN:  # the batch's ranges report those
                logger.warning("%s", loss.warning())

    # -- the tasks of a batch

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one input partition per task; equal for equal ``start``, ``end`` and options.

        Raises ``DataLossError`` if records in between are lost and ``failOnDataLoss`` is set.
        """
        ranges = self._planner.ranges(StreamOffset.from_dict(start), StreamOffset.from_dict(end))
        if ranges:
            ranges = self._query(lambda catalog: self._left_of(catalog, ranges))
        return _tasks(ranges, self._options)

    def _left_of(self, catalog: Catalog, ranges: list[PartitionRange]) -> list[PartitionRange]:
        """Return the readable part of these ranges: retention may have removed records."""

        def attempt(is_last: bool) -> list[Verdict] | None:
            now = catalog.now([wanted.topic_partition for wanted in ranges])
            verdicts = [judge(wanted, now[wanted.topic_partition]) for wanted in ranges]
            is_sure = all(each.loss is None or each.loss.kind in _CERTAIN for each in verdicts)
            return verdicts if is_sure or is_last else None

        verdicts = self._until_certain(attempt)
        losses = [verdict.loss for verdict in verdicts if verdict.loss is not None]
        if losses and self._options.fail_on_data_loss:
            raise error_of(losses)
        for loss in losses:
            logger.warning("%s", loss.warning())
        return [verdict.range for verdict in verdicts if verdict.range.size]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of one input partition. Spark calls this on an executor."""
        return read_partition(partition, self._settings)

    # -- progress

    def commit(self, end: dict[str, Any]) -> None:
        """Report that all records up to ``end`` were processed. Brokers delete no records."""
        if self._progress is not None:
            offset = StreamOffset.from_dict(end)
            self._query(lambda catalog: self._commit_for_group(catalog, offset))

    def _commit_for_group(self, catalog: Catalog, offset: StreamOffset) -> None:
        """Commit ``offset`` for the group: the start of a batch, before Spark's own commit."""
        if self._progress is not None:
            self._progress.commit(catalog.admin, offset, now_s=time.monotonic())

    def stop(self) -> None:
        """Close the clients at the end of the query. Spark does not guarantee this call."""
        clients.catalogs.close()

    def _query(self, query: Callable[[Catalog], T]) -> T:
        if not self._has_logged_notices:
            self._has_logged_notices = True
            for notice in self._options.notices:
                logger.warning("%s", notice)
        with clients.catalogs.lend(connection_of(self._options)) as catalog:
            return query(catalog)


# -- reader ----------------------------------------------------------------------------------------


class BatchReader(DataSourceReader):
    """Reads topics as they are at planning time. Created and planned on the driver."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self._settings = settings_of(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Return one input partition per task. Spark calls this once for each ``load()``."""
        options = self.options
        with clients.catalogs.lend(connection_of(options)) as catalog:
            ranges = self._ranges(catalog)
        return _tasks(ranges, options)

    def _ranges(self, catalog: Catalog) -> list[PartitionRange]:
        return plan_ranges(catalog, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of one input partition. Spark calls this on an executor."""
        return read_partition(partition, self._settings)


def _tasks(ranges: Sequence[PartitionRange], options: SourceOptions) -> list[InputPartition]:
    tasks = plan_tasks(
        ranges,
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
    return [InputPartition(task) for task in tasks]


def plan_ranges(catalog: Catalog, options: SourceOptions) -> list[PartitionRange]:
    """Return the offset range of each partition that has records to read.

    Raises ``UnknownTopicError``, ``UnknownPartitionError``, ``InvalidRequestError`` for bounds that
    do not fit, and ``DataLossError``. Without ``failOnDataLoss``, logs the loss instead.
    """
    selected = select(catalog, options.selection)
    now = extent(catalog, selected.partitions)
    starts = resolve_start(catalog, options, selected, now)
    ends = resolve_end(catalog, options, selected, now)
    found: list[PartitionRange] = []
    for tp in selected.partitions:
        topic_id = selected.topic_ids[tp.topic]
        verdict = _judge(tp, topic_id, starts[tp], ends[tp], now, options)
        wanted = verdict.allowed(fail_on_data_loss=options.fail_on_data_loss)
        if verdict.loss is not None:
            logger.warning("%s", verdict.loss.warning())
        if wanted.size:
            found.append(wanted)
    return found


def _judge(
    tp: TopicPartition,
    topic_id: str,
    start: Offset,
    end: Offset,
    now: Extent,
    options: SourceOptions,
) -> Verdict:
    earliest, latest = now.earliest[tp], now.latest[tp]
    if end < start == earliest:
        start = 0  # all that was to be read was deleted: that is a loss, and no wrong option
    wanted = PartitionRange(tp.topic, topic_id, tp.partition, start, end)
    if start > latest:
        what = (
            f"{options.starting_option}: topic {tp.topic!r} partition {tp.partition} from "
            f"offset {start}, but its log end offset is {latest}"
        )
        nothing = PartitionRange(tp.topic, topic_id, tp.partition, latest, latest)
        return Verdict(nothing, Loss(LossKind.BEYOND_END, what, "none of its records is read"))
    if start > end:
        raise InvalidRequestError(
            f"topic {tp.topic!r} partition {tp.partition}: start offset {start} "
            f"({options.starting_option}), end offset {end} ({options.ending_option}): the "
            "end is before the start. Change one of them"
        )
    there = PartitionNow(topic_id, earliest, latest)
    return judge(wanted, there, asked_by=options.ending_option)
