"""Writing: what a task does with its rows, and the writer of a batch. Streams: ``stream_writer``.

A task writes as a producer with a name (``raftlog.client.resumable``): the name says which part of
which write it is, and is the same for every attempt. An attempt asks each partition how many
records of that name are stored, leaves out so many of those that it has for it, and appends the
rest. So a record is stored once, however often the task is tried, and also when two attempts run at
once: then one of them fails.

That takes for granted that every attempt has the same rows in the same order. Otherwise records may
be missing or stored twice. An attempt fails with ``DifferentRowsError`` if a partition has more
records stored than the attempt has for it, or if the last one stored is not, in key and value, the
one that the attempt has in its place. Other differences are not seen. What breaks it:

- rows that come out otherwise the second time: ``rand()``, ``uuid()``, a user function with side
  effects;
- another order: after a shuffle (``repartition``, ``groupBy``, ``join``) it is Spark's to choose,
  and where there are several executors it does not choose the same each time. Fix it by
  ``sortWithinPartitions`` over enough columns as the last step before the write;
- another number of tasks when a write is repeated under its idempotenceId, or a stream's batch
  after a restart: a row is then another task's, which has another name;
- another idempotenceId or idempotenceVersion, another checkpoint;
- more than 7 days between two attempts: so long a partition remembers a name (PRODUCER_EXPIRY_MS),
  and of at most 100,000 names;
- partitions added to a topic between the two: keys then belong elsewhere. Within one write this is
  no danger when the option ``topic`` names the topic: its tasks go by the count that there was when
  the write was planned.

What a task has stored stays stored, also when the write fails as a whole: a log cannot be rolled
back. Written again under the same idempotenceId and idempotenceVersion, the rows that are there are
left out.

An attempt holds PENDING_BYTES_MAX (``routing``) of rows that fill chunks, the producer's
buffer_memory (32 MiB by default) of encoded ones, and Arrow batches as Spark makes them.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from raftlog import TopicPartition, limits
from raftlog.client.resumable import ResumableProducer
from raftlog.clock import SystemClock
from raftlog.errors import InvalidRequestError, RaftlogError, UnknownTopicError
from raftlog.record import BatchBody, Codec
from raftlog.record.arrow_encoder import encode_arrow
from spark_source import clients
from spark_source.client_options import CONNECTION_SETTINGS
from spark_source.clients import Connection
from spark_source.routing import (
    Chunk,
    Chunker,
    Router,
    TopicShape,
    blocks_of,
    chunk_bytes,
)
from spark_source.sink_columns import SinkColumns, sink_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from raftlog.client.delivery import DeliveryFuture
    from spark_source.options import SinkOptions

logger = logging.getLogger(__name__)

# Settings that are this module's to heed; all others are the producer's.
_OWN_SETTINGS: Final = ("compression_level", "batch_bytes_max")


class DifferentRowsError(RaftlogError):
    """An attempt has fewer rows than an earlier one has stored: they are not the same rows."""


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
    with clients.catalogs.lend(_connection(options)) as catalog:
        topic = catalog.topics([options.topic])[options.topic]
    return WritePlan(options, columns, topic.id, topic.partition_count)


def _connection(options: SinkOptions) -> Connection:
    settings = tuple(each for each in options.settings if each[0] in CONNECTION_SETTINGS)
    return Connection(options.bootstrap, connecting=settings)


# -- one attempt of a task -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskReport(WriterCommitMessage):
    """What a task tells the driver. ``skipped``: of its records, those that were stored before."""

    spark_partition: int
    records: int
    skipped: int
    log_partitions: int  # that have records of the task


class Appender(Protocol):
    """What a task needs of a ``ResumableProducer``."""

    def partition_count(self, topic: str) -> int: ...
    def topic_id(self, topic: str) -> str: ...
    def max_message_bytes(self, topic: str) -> int: ...
    def stored(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...
    def append(self, tp: TopicPartition, body: BatchBody) -> DeliveryFuture: ...
    def flush(self, timeout: float | None = None) -> None: ...


# The key and the value of a record.
KeyAndValue: TypeAlias = tuple[bytes | None, bytes | None]
# The last of the records that a partition has stored; None if it cannot be read any more.
Recall: TypeAlias = Callable[[TopicPartition], KeyAndValue | None]


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
        self._stored: dict[TopicPartition, int] = {}
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

        Raises ``DifferentRowsError``, and whatever routing and the producer raise.
        """
        for batch in blocks_of(batches, lambda: len(self._stored)):
            for run in self._router.split(batch):
                size = self._shapes[run.partition.topic].chunk_bytes
                self._send(self._chunker.add(run, chunk_bytes=size))
        self._send(self._chunker.rest())
        self._producer.flush()
        self._settle(all_of_them=True)
        return self._report()

    def _learn(self, topic: str) -> TopicShape:
        """What there is to know of a topic before its first row is sent to a partition."""
        count = self._producer.partition_count(topic)
        if topic == self._plan.options.topic:
            if self._producer.topic_id(topic) != self._plan.topic_id:
                raise UnknownTopicError(
                    f"topic {topic!r} was deleted and made anew after this write was planned: "
                    "what was written before is gone with the old one. Run the write again"
                )
            count = self._plan.partition_count
        message_bytes = min(self._producer.max_message_bytes(topic), self._batch_bytes_max)
        shape = TopicShape(
            count, chunk_bytes(partition_count=count, max_message_bytes=message_bytes)
        )
        self._shapes[topic] = shape
        # All of them: an earlier attempt may have written where this one has nothing to write.
        everywhere = [TopicPartition(topic, partition) for partition in range(count)]
        self._stored.update(self._producer.stored(everywhere))
        return shape

    def _send(self, chunks: Iterator[Chunk]) -> None:
        for chunk in chunks:
            stored = self._stored[chunk.partition]
            if chunk.first < stored <= chunk.first + chunk.records.num_rows:
                self._compare(chunk, stored)
            left = chunk.after(stored)
            if left is not None:
                body = encode_chunk(
                    left.records,
                    now_ms=self._now_ms(),
                    codec=self._plan.options.codec,
                    level=self._level,
                )
                self._on_their_way.append(self._producer.append(left.partition, body))
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

    def _compare(self, chunk: Chunk, stored: int) -> None:
        """See that the last record stored is the one that this attempt has in its place."""
        theirs = self._recall(chunk.partition)
        row = stored - 1 - chunk.first
        ours = (_octets_at(chunk.records, "key", row), _octets_at(chunk.records, "value", row))
        if theirs is not None and theirs != ours:
            raise self._different(
                f"has another record for {chunk.partition} in place {stored - 1} (counted from 0) "
                "than an earlier attempt has stored there"
            )

    def _report(self) -> TaskReport:
        counts = self._chunker.counts()
        for partition, stored in self._stored.items():
            if stored > counts.get(partition, 0):
                raise self._different(
                    f"has {counts.get(partition, 0)} records for {partition}, and an earlier "
                    f"attempt has stored {stored} there"
                )
        return TaskReport(
            spark_partition=self._spark_partition,
            records=sum(counts.values()),
            skipped=sum(self._stored.values()),
            log_partitions=len(counts),
        )

    def _different(self, what: str) -> DifferentRowsError:
        return DifferentRowsError(
            f"Spark partition {self._spark_partition} {what}: the rows, their order or the topic's "
            "partitions are not what they were, so some records may be stored twice, or not at "
            "all. Make the rows the same each time: no rand() or uuid(), the same number of tasks, "
            "a fixed order after a shuffle (sortWithinPartitions); or write them to a table first"
        )


def _octets_at(records: pa.RecordBatch, name: str, row: int) -> bytes | None:
    if name not in records.schema.names:
        return None
    octets: bytes | None = records.column(name)[row].as_py()
    return octets


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
        return TaskReport(spark_partition, records=0, skipped=0, log_partitions=0)
    producer = _producer(plan.options, name=name, epoch=epoch)
    attempt = Attempt(
        plan,
        producer,
        spark_partition=spark_partition,
        first=first,
        now_ms=SystemClock().wall_ms,
        recall=partial(_last_stored, plan.options, producer),
    )
    try:
        return attempt.write(_joined(begun, batches))
    finally:
        producer.close(timeout=0)  # after a failure something is left: the next attempt sends it
        attempt.forget()


def _joined(begun: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield begun
    yield from batches


def _last_stored(
    options: SinkOptions, producer: ResumableProducer, tp: TopicPartition
) -> KeyAndValue | None:
    """A ``Recall``: reads the record. Gone, or not to be had, it is no reason to fail."""
    offset = producer.last_offset(tp)
    if offset is None:
        return None
    try:
        with clients.range_readers.lend(_connection(options)) as reader:
            found = list(reader.read(tp, offset, offset + 1, columns=("key", "value")))
    except RaftlogError as error:
        logger.debug("cannot compare with the record at %s offset %d: %s", tp, offset, error)
        return None
    return next(((row["key"], row["value"]) for batch in found for row in batch.to_pylist()), None)


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


def check_reports(messages: Sequence[WriterCommitMessage | None]) -> tuple[int, int]:
    """Records and, of those, how many were stored before, if every task has told of its own."""
    reports = [message for message in messages if isinstance(message, TaskReport)]
    told = {report.spark_partition for report in reports}
    if len(told) != len(messages):
        raise RaftlogError(
            f"{len(messages)} tasks, of which {len(told)} have told what they wrote: records may "
            "be missing. Write again, under the same idempotenceId if there is one"
        )
    return sum(report.records for report in reports), sum(report.skipped for report in reports)


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
        records, skipped = check_reports(messages)
        logger.info("wrote %d records, %d of them in earlier attempts", records, skipped)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The write has failed. What was stored stays: say so."""
        done = sum(isinstance(message, TaskReport) for message in messages)
        logger.warning(
            "the write failed, and %d of its tasks had ended: their records stay in the log. To "
            "have them left out when the write is repeated, give it the options idempotenceId and "
            "idempotenceVersion",
            done,
        )
