"""Writing: what a task does with its rows, and the writer of a batch. Streams: ``stream_writer``.

A task writes as a producer with a name (``raftlog.client.resumable``): the name says which part of
which write it is, and is the same for every attempt. An attempt that finds records of that name
reads them back, skips those of its rows that are among them (each as often as it is there), and
appends the rest. A partition accepts a batch only from an attempt that knows all records of the
name before it. So each row is stored once, for any number of attempts and any order of the rows,
and also if two attempts run at once: then one of them fails, or both fail and are repeated.

What every attempt must have is the same rows. What breaks that:

- rows with other values each time: ``rand()``, ``uuid()``, a user function with side effects. All
  rows of the attempt that succeeds are stored; besides them there are records of earlier attempts.
  The driver's log says how many (``unmatched``);
- another number of tasks when a write is repeated under its idempotenceId, or a stream's batch
  after a restart: a row is then another task's, which has another name;
- another idempotenceId or idempotenceVersion, another checkpoint;
- more than 7 days between two attempts: so long a partition remembers a name (PRODUCER_EXPIRY_MS),
  and of at most 100,000 names;
- partitions added to a topic between the two: keys then belong elsewhere. Within one write this is
  no danger when the option ``topic`` names the topic: its tasks go by the count that there was when
  the write was planned.

Records that an earlier attempt stored and that retention, compaction or delete-records took since
cannot be compared: the attempt fails with ``StoredRecordsGoneError``, unless the option
``allowDuplicates`` is set. One attempt reads back at most STORED_RECORDS_MAX records (``recall``).

What a task has stored stays stored, also when the write fails as a whole: a log cannot be rolled
back. Written again under the same idempotenceId and idempotenceVersion, the rows that are there are
left out.

An attempt holds PENDING_BYTES_MAX (``routing``) of rows that fill chunks, the producer's
buffer_memory (32 MiB by default) of encoded ones, Arrow batches as Spark makes them, and digests of
what it has read back.
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

# Settings that are this module's to heed; all others are the producer's.
_OWN_SETTINGS: Final = ("compression_level", "batch_bytes_max")


class StoredRecordsGoneError(RefusedError):
    """Records that an earlier attempt stored were deleted since: which rows, is unknown."""


# -- the plan --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What all tasks of a write have in common; made on the driver, travels to the executors.

    ``topic_id`` and ``partition_count``: of the topic that the option names, when the write was
    planned; empty and 0 where rows name their topics.
    """

    options: SinkOptions
    columns: SinkColumns
    topic_id: str = ""
    partition_count: int = 0


def plan_write(options: SinkOptions, schema: StructType) -> WritePlan:
    """Check the columns, and that the topic is there. Raises what says why it cannot be written.

    ``InvalidRequestError`` for columns, ``UnknownTopicError``, ``BrokerUnavailableError`` and the
    like when no broker answers in time.
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

    ``skipped``: of its records, those that earlier attempts had stored. ``unmatched``: records that
    earlier attempts had stored, and that are none of this one's.
    """

    spark_partition: int
    records: int
    skipped: int
    unmatched: int
    log_partitions: int  # that have records of the task


class Appender(Protocol):
    """Functions of a ``ResumableProducer`` that a task uses."""

    def partition_count(self, topic: str) -> int: ...
    def topic_id(self, topic: str) -> str: ...
    def max_message_bytes(self, topic: str) -> int: ...
    def stored(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...
    def append(self, tp: TopicPartition, body: BatchBody) -> DeliveryFuture: ...
    def flush(self, timeout: float | None = None) -> None: ...


# The records that earlier attempts have stored in a partition, with the columns ``recall.COLUMNS``.
Recall: TypeAlias = Callable[[TopicPartition], Iterator[pa.RecordBatch]]


class Attempt:
    """One attempt of a task to write its rows: those that are not stored yet."""

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
        """``first``: see ``Router``. ``now_ms``: the time of records that say none."""
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
        self._stored_count = 0  # of the records that were read back
        self._record_count = 0
        self._partitions: set[TopicPartition] = set()  # that have records of this attempt
        self._on_their_way: deque[DeliveryFuture] = deque()
        self._chunker = Chunker()
        self._router = Router(
            plan.columns,
            topic=plan.options.topic,
            first=first,
            where=f"Spark partition {spark_partition}",
            shape_of=self._learn,
        )

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskReport:
        """Write all rows; when it returns, every in-sync replica has them.

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
        self._settle(all_of_them=True)
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
        """Values of a topic that are queried before its first row is sent to a partition."""
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
        # All of them: an earlier attempt may have written where this one has nothing to write.
        everywhere = [TopicPartition(topic, partition) for partition in range(count)]
        self._read_back(self._producer.stored(everywhere))
        return shape

    def _read_back(self, counts: Mapping[TopicPartition, int]) -> None:
        """Read what earlier attempts have stored. ``counts``: how many records, by partition."""
        total = self._stored_count + sum(counts.values())
        if total > STORED_RECORDS_MAX:
            raise UnsupportedFeatureError(
                f"Spark partition {self._spark_partition}: earlier attempts have stored {total} "
                f"records; at most {STORED_RECORDS_MAX} are compared with the rows of a new one. "
                "Write in more tasks, with fewer rows each: .repartition(...)"
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
            "delete-records took the others, so it is unknown which rows are still to be written. "
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
            self._on_their_way.append(self._producer.append(chunk.partition, body))
            self._settle()

    def _settle(self, *, all_of_them: bool = False) -> None:
        """Raise the failure of a chunk that was sent, if one is known."""
        waiting = self._on_their_way
        while waiting and (all_of_them or waiting[0].done()):
            waiting.popleft().result()

    def forget(self) -> None:
        """The producer was closed before all was sent: what became of that, is seen."""
        for future in self._on_their_way:
            future.exception(timeout=0)


def encode_chunk(
    records: pa.RecordBatch, *, now_ms: int, codec: Codec, level: int | None
) -> BatchBody:
    """The batch of a chunk. ``now_ms``: the time of records that have none."""
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
    """An attempt to write a task's rows as producer ``name``. A task without rows does nothing."""
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
        producer.close(timeout=0)  # after a failure something is left: the next attempt sends it
        attempt.forget()


def _joined(begun: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield begun
    yield from batches


def _stored_records(
    plan: WritePlan, producer: ResumableProducer, tp: TopicPartition
) -> Iterator[pa.RecordBatch]:
    """A ``Recall``: those that are not deleted."""
    extent = producer.extent(tp)
    assert extent is not None, "it has records there"
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


# -- the driver's side -----------------------------------------------------------------------------


def check_append(overwrite: bool, *, instead: str) -> None:
    """Refuse a write that is to replace what the topic has. ``instead``: what to do."""
    if overwrite:
        raise InvalidRequestError(
            f"a topic can only be appended to, not overwritten: {instead}. To begin with an empty "
            "topic, make a new one, or delete its records with `raftlog topic delete-records`"
        )


class WriteTotals(NamedTuple):
    """Sums of the reports of a write's tasks: see ``TaskReport``."""

    records: int
    skipped: int
    unmatched: int


def check_reports(messages: Sequence[WriterCommitMessage | None]) -> WriteTotals:
    """The sums, if every task has reported. Warns of records that are no row."""
    reports = [message for message in messages if isinstance(message, TaskReport)]
    told = {report.spark_partition for report in reports}
    if len(told) != len(messages):
        raise RaftlogError(
            f"{len(messages)} tasks, of which {len(told)} have told what they wrote: records may "
            "be missing. Write again, under the same idempotenceId if there is one"
        )
    totals = WriteTotals(
        sum(report.records for report in reports),
        sum(report.skipped for report in reports),
        sum(report.unmatched for report in reports),
    )
    if totals.unmatched:
        logger.warning(
            "repeated tasks had other rows than before: records=%d skipped=%d unmatched=%d. All "
            "rows are stored; the unmatched records are of earlier attempts. Avoid rand(), uuid() "
            "and the like, or write to a table first",
            *totals,
        )
    return totals


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame. The one object, made on the driver, travels to every task's attempts."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        """Raises what says why it cannot be written, before any work: see ``plan_write``."""
        check_append(overwrite, instead='say .mode("append")')
        self._plan = plan_write(options, schema)
        self._write_id = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """One attempt of a task, on an executor."""
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
        """All tasks are done, and what they wrote is committed: see that none is missing."""
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
