"""Writing: the attempt of a task, and the writer of a batch. Streams: ``stream_writer``.

A task writes as a named producer (``raftlog.client.resumable``): the name identifies the part and
the write, and is equal for every attempt. An attempt reads back the records of that name, skips its
rows that are among them (each as often as it is stored), and appends the rest. A partition accepts
a batch only from an attempt that has read all earlier records of the name. So each row is stored
once, for any number of attempts and any order of the rows, and also if two attempts run at once:
then one of them fails, or both fail and are repeated.

Every attempt must have the same rows. The following break that:

- rows with different values each time: ``rand()``, ``uuid()``, a user function with side effects.
  All rows of the attempt that succeeds are stored, and also records of earlier attempts. The
  driver logs their number (``unmatched``);
- another number of tasks when a write is repeated under its idempotenceId, or a stream's batch
  after a restart: a row then belongs to another task, which has another name;
- another idempotenceId or idempotenceVersion, another checkpoint;
- more than 7 days between two attempts: a partition keeps the state of a name for
  PRODUCER_EXPIRY_MS, and of at most 100,000 names;
  - partitions added to a topic between the two: keys then map to other partitions. Within one write
  that has the option ``topic`` this is safe: its tasks use the partition count at planning time.

Records of an earlier attempt that retention, compaction or delete-records has deleted cannot be
compared: the attempt fails with ``StoredRecordsGoneError``, unless the option ``allowDuplicates``
is set. One attempt reads back at most STORED_RECORDS_MAX records (``recall``).

Records that a task has stored stay in the log, also if the write fails: a log cannot be rolled
back. A repeated write with the same idempotenceId and idempotenceVersion skips these rows.

Memory of an attempt: PENDING_BYTES_MAX (``routing``) for unfinished chunks, the producer's
buffer_memory (default: 32 MiB) for encoded ones, Spark's Arrow batches, and digests of the records
that were read back.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from raftlog import TopicPartition, limits
from raftlog.client.resumable import ResumableProducer
from raftlog.clock import SystemClock
from raftlog.errors import (
    InvalidRequestError,
    RaftlogError,
    RefusedError,
    UnknownTopicError,
    UnsupportedFeatureError,
)
from raftlog.record import BatchBody, Codec
from raftlog.record.arrow_encoder import encode_arrow
from raftlog.spark_source import client_pool
from raftlog.spark_source.client_options import CONNECTION_SETTINGS
from raftlog.spark_source.client_pool import Connection
from raftlog.spark_source.recall import COLUMNS, STORED_RECORDS_MAX, Stored
from raftlog.spark_source.routing import (
    Chunk,
    Chunker,
    Router,
    Run,
    TopicShape,
    blocks_of,
    chunk_bytes,
)
from raftlog.spark_source.sink_columns import SinkColumns, sink_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from raftlog.client.delivery import DeliveryFuture
    from raftlog.spark_source.options import SinkOptions

logger = logging.getLogger(__name__)

# Settings that this module applies; it passes all others to the producer.
_OWN_SETTINGS: Final = ("compression_level", "batch_bytes_max")


class StoredRecordsGoneError(RefusedError):
    """Records of an earlier attempt were deleted, so its stored rows are unknown."""


# -- the plan --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Plan shared by all tasks of a write. Created on the driver, pickled to the executors.

    ``topic_id`` and ``partition_count``: of the topic of the option, at planning time; empty and 0
    if rows name their topics.
    """

    options: SinkOptions
    columns: SinkColumns
    topic_id: str = ""
    partition_count: int = 0


def plan_write(options: SinkOptions, schema: StructType) -> WritePlan:
    """Check the columns, and that the topic exists.

    Raises ``InvalidRequestError`` for columns, ``UnknownTopicError``, and the errors of
    ``Catalog`` (``BrokerUnavailableError``) if no broker responds in time.
    """
    columns = sink_columns(schema, topic=options.topic)
    if options.topic is None:
        return WritePlan(options, columns)
    with client_pool.catalogs.lend(_connection(options)) as catalog:
        topic = catalog.topics([options.topic])[options.topic]
    return WritePlan(options, columns, topic.id, topic.partition_count)


def _connection(options: SinkOptions) -> Connection:
    settings = tuple(each for each in options.settings if each[0] in CONNECTION_SETTINGS)
    return Connection(options.bootstrap, connecting=settings)


# -- one attempt of a task -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskReport(WriterCommitMessage):
    """What a task reports to the driver.

    ``skipped``: number of its records that earlier attempts had stored. ``unmatched``: number of
    records that earlier attempts had stored and that match no row of this attempt.
    """

    spark_partition: int
    records: int
    skipped: int
    unmatched: int
    log_partitions: int  # number of partitions with records of the task


class Appender(Protocol):
    """Functions of a ``ResumableProducer`` that a task uses."""

    def partition_count(self, topic: str) -> int: ...
    def topic_id(self, topic: str) -> str: ...
    def max_message_bytes(self, topic: str) -> int: ...
    def stored(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...
    def append(self, tp: TopicPartition, body: BatchBody) -> DeliveryFuture: ...
    def flush(self, timeout: float | None = None) -> None: ...


# Reads the stored records of earlier attempts in a partition, with the columns ``recall.COLUMNS``.
Recall: TypeAlias = Callable[[TopicPartition], Iterator[pa.RecordBatch]]


class Attempt:
    """One attempt of a task to write the rows that are not stored yet."""

    def __init__(
        self,
        plan: WritePlan,
        producer: Appender,
        *,
        spark_partition: int,
        first: int,
        now_ms: Callable[[], int],
        recall: Recall,
    ) -> None:
        """``first``: see ``Router``. ``now_ms``: the time of records without a timestamp."""
        self._plan = plan
        self._producer = producer
        self._spark_partition = spark_partition
        self._now_ms = now_ms
        self._recall = recall
        settings = plan.options.producer_settings()
        self._level: Any = settings.get("compression_level")
        self._batch_bytes_max: Any = settings.get("batch_bytes_max", limits.BATCH_BYTES_MAX)
        self._shapes: dict[str, TopicShape] = {}
        self._stored: dict[TopicPartition, Stored] = {}  # where earlier attempts have records
        self._stored_count = 0  # number of records that were read back
        self._record_count = 0
        self._partitions: set[TopicPartition] = set()  # that have records of this attempt
        self._in_flight: deque[DeliveryFuture] = deque()
        self._chunker = Chunker()
        self._router = Router(
            plan.columns,
            topic=plan.options.topic,
            first=first,
            where=f"Spark partition {spark_partition}",
            shape_of=self._learn,
        )

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskReport:
        """Write all rows. When it returns, every in-sync replica has them.

        Raises ``StoredRecordsGoneError``, and the errors of routing and the producer.
        """
        for batch in blocks_of(batches, self._partition_count):
            for run in self._router.split(batch):
                self._record_count += run.records.num_rows
                self._partitions.add(run.partition)
                size = self._shapes[run.partition.topic].chunk_bytes
                for left in self._not_stored(run):
                    self._send(self._chunker.add(left, chunk_bytes=size))
        self._send(self._chunker.rest())
        self._producer.flush()
        self._check_results(all_of_them=True)
        unmatched = sum(stored.count for stored in self._stored.values())
        return TaskReport(
            spark_partition=self._spark_partition,
            records=self._record_count,
            skipped=self._stored_count - unmatched,
            unmatched=unmatched,
            log_partitions=len(self._partitions),
        )

    def _partition_count(self) -> int:
        return sum(shape.partition_count for shape in self._shapes.values())

    def _learn(self, topic: str) -> TopicShape:
        """Query the shape of a topic and its stored records, before its first row is routed."""
        count = self._producer.partition_count(topic)
        if topic == self._plan.options.topic:
            if self._producer.topic_id(topic) != self._plan.topic_id:
                raise UnknownTopicError(
                    f"topic {topic!r} was deleted and recreated after this write was planned: "
                    "records of this write in the old topic are deleted. Run the write again"
                )
            count = self._plan.partition_count
        message_bytes = min(self._producer.max_message_bytes(topic), self._batch_bytes_max)
        shape = TopicShape(
            count, chunk_bytes(partition_count=count, max_message_bytes=message_bytes)
        )
        self._shapes[topic] = shape
        # All partitions: an earlier attempt may have written to one that has no rows now.
        everywhere = [TopicPartition(topic, partition) for partition in range(count)]
        self._read_back(self._producer.stored(everywhere))
        return shape

    def _read_back(self, counts: Mapping[TopicPartition, int]) -> None:
        """Read the records of earlier attempts. ``counts``: number of records by partition."""
        total = self._stored_count + sum(counts.values())
        if total > STORED_RECORDS_MAX:
            raise UnsupportedFeatureError(
                f"Spark partition {self._spark_partition}: earlier attempts have stored {total} "
                f"records; at most {STORED_RECORDS_MAX} are compared with the rows of a new one. "
                "Use more tasks, with fewer rows each: .repartition(...)"
            )
        with_times = self._plan.columns.timestamp is not None
        for partition, count in counts.items():
            if count:
                stored = Stored.of(self._recall(partition), with_times=with_times)
                if stored.count != count and not self._plan.options.allow_duplicates:
                    raise self._gone(partition, count, stored.count)
                self._stored[partition] = stored
                self._stored_count += stored.count

    def _gone(self, partition: TopicPartition, count: int, found: int) -> StoredRecordsGoneError:
        return StoredRecordsGoneError(
            f"Spark partition {self._spark_partition}: earlier attempts have stored {count} "
            f"records in {partition}, and {found} of them can be read: retention, compaction or "
            "delete-records deleted the others, so it is unknown which rows are not stored yet. "
            "To write all rows that are not found, which may store some of them twice, set the "
            "option allowDuplicates=true"
        )

    def _not_stored(self, run: Run) -> Iterator[Run]:
        """Return a run without the records that are stored already; it can be empty."""
        stored = self._stored.get(run.partition)
        if stored is None or not (is_stored := stored.take(run.records)).any():
            yield run
        elif not is_stored.all():
            left = run.records.filter(pa.array(~is_stored))
            yield Run(run.partition, left, run.sizes[~is_stored])

    def _send(self, chunks: Iterator[Chunk]) -> None:
        for chunk in chunks:
            body = encode_chunk(
                chunk.records,
                now_ms=self._now_ms(),
                codec=self._plan.options.codec,
                level=self._level,
            )
            self._in_flight.append(self._producer.append(chunk.partition, body))
            self._check_results()

    def _check_results(self, *, all_of_them: bool = False) -> None:
        """Raise the failure of a chunk that was sent, if one is known."""
        waiting = self._in_flight
        while waiting and (all_of_them or waiting[0].done()):
            waiting.popleft().result()

    def forget(self) -> None:
        """Discard the results of batches that were in flight when the producer was closed."""
        for future in self._in_flight:
            future.exception(timeout=0)


def encode_chunk(
    records: pa.RecordBatch, *, now_ms: int, codec: Codec, level: int | None
) -> BatchBody:
    """Encode a chunk as a batch. ``now_ms``: the time of records without a timestamp."""
    names = records.schema.names
    timestamps = records.column("timestamp").fill_null(now_ms) if "timestamp" in names else now_ms
    return encode_arrow(
        records.column("value"),
        keys=records.column("key") if "key" in names else None,
        headers=records.column("headers") if "headers" in names else None,
        timestamps_ms=timestamps,
        codec=codec,
        level=level,
    )


def write_rows(
    plan: WritePlan,
    batches: Iterator[pa.RecordBatch],
    *,
    name: str,
    epoch: int,
    spark_partition: int,
    first: int,
) -> TaskReport:
    """Write a task's rows as producer ``name``. Without rows, no producer is created."""
    begun = next((batch for batch in batches if batch.num_rows), None)
    if begun is None:
        return TaskReport(spark_partition, records=0, skipped=0, unmatched=0, log_partitions=0)
    producer = _producer(plan.options, name=name, epoch=epoch)
    attempt = Attempt(
        plan,
        producer,
        spark_partition=spark_partition,
        first=first,
        now_ms=SystemClock().wall_ms,
        recall=partial(_stored_records, plan, producer),
    )
    try:
        return attempt.write(_joined(begun, batches))
    finally:
        producer.close(timeout=0)  # after a failure, the next attempt sends the rest
        attempt.forget()


def _joined(begun: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield begun
    yield from batches


def _stored_records(
    plan: WritePlan, producer: ResumableProducer, tp: TopicPartition
) -> Iterator[pa.RecordBatch]:
    """Read the stored records that are not deleted (a ``Recall``)."""
    extent = producer.extent(tp)
    assert extent is not None, "called only for partitions with stored records"
    connection, (start, end) = _connection(plan.options), extent
    with client_pool.catalogs.lend(connection) as catalog:
        start = max(start, catalog.earliest([tp])[tp])
    if start < end:
        with client_pool.range_readers.lend(connection) as reader:
            yield from reader.read(
                tp,
                start,
                end,
                topic_id=producer.topic_id(tp.topic),
                columns=COLUMNS,
                producer=producer.identity,
            )


def _producer(options: SinkOptions, *, name: str, epoch: int) -> ResumableProducer:
    settings: dict[str, Any] = options.producer_settings()
    for own in _OWN_SETTINGS:
        settings.pop(own, None)
    return ResumableProducer(options.bootstrap, name=name, epoch=epoch, **settings)


# -- driver ----------------------------------------------------------------------------------------


def check_append(overwrite: bool, *, instead: str) -> None:
    """Reject a write that would replace the topic's records. ``instead``: the remedy."""
    if overwrite:
        raise InvalidRequestError(
            f"a topic can only be appended to, not overwritten: {instead}. To start with an empty "
            "topic, create a new one, or delete its records with `raftlog topic delete-records`"
        )


class WriteTotals(NamedTuple):
    """Sums of the reports of a write's tasks: see ``TaskReport``."""

    records: int
    skipped: int
    unmatched: int


def check_reports(messages: Sequence[WriterCommitMessage | None]) -> WriteTotals:
    """Return the sums if every task has reported. Logs a warning for unmatched records."""
    reports = [message for message in messages if isinstance(message, TaskReport)]
    reported = {report.spark_partition for report in reports}
    if len(reported) != len(messages):
        raise RaftlogError(
            f"{len(reported)} of {len(messages)} tasks have reported their records: records may "
            "be missing. Repeat the write, with the same idempotenceId if one was set"
        )
    totals = WriteTotals(
        sum(report.records for report in reports),
        sum(report.skipped for report in reports),
        sum(report.unmatched for report in reports),
    )
    if totals.unmatched:
        logger.warning(
            "repeated tasks had different rows: records=%d skipped=%d unmatched=%d. All rows are "
            "stored; the unmatched records are of earlier attempts. Avoid rand(), uuid() and "
            "similar functions, or write to a table first",
            *totals,
        )
    return totals


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame. Created once on the driver, pickled to the attempts of all tasks."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        """Check the write before any work. Raises the errors of ``plan_write``."""
        check_append(overwrite, instead='use .mode("append")')
        self._plan = plan_write(options, schema)
        self._write_id = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Run one attempt of a task. Spark calls this on an executor."""
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        partition = context.partitionId()
        return write_rows(
            self._plan,
            iterator,
            name=f"spark-batch:{self._write_id}:{partition}",
            epoch=0,
            spark_partition=partition,
            first=partition,
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Check that all tasks have reported. Their records are already committed."""
        totals = check_reports(messages)
        logger.info("write done: records=%d skipped=%d unmatched=%d", *totals)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log that the write has failed, and that stored records stay."""
        done = sum(isinstance(message, TaskReport) for message in messages)
        logger.warning(
            "write failed: completed_tasks=%d. Their records stay in the log. To skip them in a "
            "repeated write, set the options idempotenceId and idempotenceVersion",
            done,
        )
