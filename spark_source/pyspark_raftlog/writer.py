"""Writing: the attempt of a task, and the writers of batches and streams.

A task writes as a named producer (``raftlog.client.resumable``). The name identifies the write, the
member the task; both are equal for every attempt. An attempt reads back the records of its name in
the whole topic, skips its rows that are among them (each as often as it is stored), and appends the
rest. A partition accepts a batch only from an attempt that has read all earlier records of the
name. So each row is stored once, for any number of attempts and any order of the rows, and also if
two attempts run at once: then one of them fails, or both fail and are repeated.

A write can be repeated (a batch with an idempotenceId, a batch of a stream) with its rows in other
tasks, and after the topic has got more partitions. So for a row that its own name has not stored,
the attempt looks among the records that the other names of the write had stored before this run
(``WritePlan.topics``). A row that is there is *held back*: an equal row of another task may be the
stored one. When all tasks are done, the driver knows which stored records no row of the same task
has taken (``Work.left``), gives them to the rows that were held back, and appends what is missing
(``settle``, ADR 83). Rows that are stored nowhere are appended at once.

Every attempt must have the same rows. Otherwise (``rand()``, ``uuid()``, a source that changed),
the write fails with ``DifferentRowsError`` after its rows are stored; with the option
``allowDuplicates``, the driver logs their number. These end the guarantee, and nothing can tell:

- another idempotenceId or idempotenceVersion, another checkpoint;
- more than 7 days between two attempts: a partition keeps the state of a name for
  PRODUCER_EXPIRY_MS, and of at most 100,000 names.

Records of an earlier attempt that retention, compaction or delete-records has deleted cannot be
compared: the attempt fails with ``StoredRecordsGoneError``, unless the option ``allowDuplicates``
is set. One attempt reads back at most STORED_RECORDS_MAX records (``routing``).

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
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    StructType,
)

from pyspark_raftlog import clients
from pyspark_raftlog.clients import Connection
from pyspark_raftlog.options import CONNECTION_SETTINGS
from raftlog import TopicPartition, limits
from raftlog.client.accumulator import ProducerIdAndEpoch
from raftlog.client.resumable import ResumableProducer
from raftlog.clock import SystemClock
from raftlog.errors import (
    InvalidRequestError,
    ProducerFencedError,
    RaftlogError,
    RefusedError,
    UnknownTopicError,
    UnsupportedFeatureError,
)
from raftlog.record import BatchBody, Codec
from raftlog.record.arrow import encode_arrow
from raftlog.security.producer_ids import MEMBERS
from raftlog.types import Offset

if TYPE_CHECKING:
    import numpy.typing as npt

    from pyspark_raftlog.catalog import Catalog
    from pyspark_raftlog.options import SinkOptions
    from raftlog.client.delivery import DeliveryFuture
    from raftlog.protocol.records import DescribedProducer

    Digests: TypeAlias = npt.NDArray[np.bytes_]  # of 16 bytes each
    Mask: TypeAlias = npt.NDArray[np.bool_]
    Int64s: TypeAlias = npt.NDArray[np.int64]
from pyspark_raftlog.routing import (
    COLUMNS,
    STORED_RECORDS_MAX,
    Chunk,
    Chunker,
    Router,
    Rows,
    Run,
    SinkColumns,
    Stored,
    TopicShape,
    Wanted,
    blocks_of,
    chunk_bytes,
    sink_columns,
    sizes_of,
)

# -- stream writer ---------------------------------------------------------------------------------
#
# Writer of a streaming query: stores each batch exactly once, also if Spark replays it.
#
# A task writes as producer ``spark:<query id>:<topic>:<batch // 32768>:<Spark partition>`` with the
# batch's number, modulo 32768, as its epoch (``writer`` says how such a producer works). The query
# id comes from the checkpoint and is the same after each restart. So
#
# - a batch that is replayed after a crash between its last task and the commit log finds the
# records   that it has stored, and stores the rest;   - the newer batch's epoch fences a task of an
# older batch that is still running;   - two queries, or one query that writes two topics, use
# different producer names.
#
# Spark replays a batch from the same offsets of its sources. ``writer`` describes what must be
# equal, and the effect if it is not. Do not restore an older copy of the checkpoint: its batches
# are fenced as late ones.
#
# Spark has only outputMode "append" for sinks like this one: "complete" is refused here, "update"
# by Spark. For those, and where rows have to be sorted before they are written, which Spark does
# not do in a stream, there is ``foreachBatch`` with a batch write: its idempotenceVersion is the
# batch's number.


logger = logging.getLogger("raftlog.spark")

EPOCHS: Final = 1 << 15  # of one producer name: 0 to 32767

NO_REWRITE: Final = (
    'use .outputMode("append"), or write each batch yourself, in foreachBatch, with the options '
    "idempotenceId and idempotenceVersion=<batch id>"
)
# Spark's local properties that identify the query and the batch of a task.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


def producer_of(
    *, query_id: str, topic: str | None, batch_id: int, partition: int
) -> tuple[str, int]:
    """Return the producer name and epoch of a task."""
    age, epoch = divmod(batch_id, EPOCHS)
    return f"spark:{query_id}:{topic or ''}:{age}:{partition}", epoch


def batch_of_task() -> tuple[str, int, int]:
    """Return the query, the batch and the Spark partition of the current task of a stream.

    Raises ``UnsupportedFeatureError`` if Spark does not tell them.
    """
    context = TaskContext.get()
    assert context is not None, "Spark calls this in a task"
    query_id, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if not query_id or batch is None:
        raise UnsupportedFeatureError(
            f"Spark did not set the query and batch of the task ({_QUERY_ID}, {_BATCH_ID}): "
            "exactly-once stream writes need them. Use foreachBatch, with "
            "idempotenceId and idempotenceVersion"
        )
    return query_id, int(batch), context.partitionId()


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a batch of a query. Spark creates one per batch, and another for its commit."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        """Check the write before any work. Raises the errors of ``plan_write``."""
        check_append(overwrite, instead=NO_REWRITE)
        self._plan = plan_write(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Run one attempt of a task. Spark calls this on an executor."""
        query_id, batch_id, partition = batch_of_task()
        name, epoch = producer_of(
            query_id=query_id,
            topic=self._plan.options.topic,
            batch_id=batch_id,
            partition=partition,
        )
        try:
            return write_rows(
                self._plan,
                iterator,
                name=name,
                epoch=epoch,
                spark_partition=partition,
                first=partition + batch_id,
            )
        except ProducerFencedError as error:
            raise ProducerFencedError(
                f"batch {batch_id} of query {query_id} is late: the query has written a later "
                "one. Either another run of it uses the same checkpoint, or the checkpoint is an "
                f"older copy: use the newest, or start with a new one ({error})"
            ) from error

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Complete the batch: see ``settle``."""
        totals = settle(self._plan, messages)
        logger.info("batch done: batch=%d records=%d skipped=%d unmatched=%d", batchId, *totals)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log that the batch has failed. Stored records are skipped when Spark replays it."""
        done = sum(isinstance(message, TaskReport) for message in messages)
        logger.warning(
            "batch failed: batch=%d completed_tasks=%d. Their records stay in the log, and are "
            "skipped when the query restarts and replays the batch",
            batchId,
            done,
        )


# -- writer ----------------------------------------------------------------------------------------


# Settings that this module applies; it passes all others to the producer.
OWN_SETTINGS: Final = ("compression_level", "batch_bytes_max")
BYTES_SETTINGS: Final = ("batch_bytes_max", "buffer_memory")  # limits of a batch

DRIVER: Final = MEMBERS - 1  # member of a write's name under which its driver writes
# Partitions of all topics in the plan of a write; with more of them, it has no topics.
PLANNED_MAX: Final = 10_000
ENDS_PATIENCE_MS: Final = 2_000  # for the ends of all topics
BLOCK_ROWS: Final = 10_000  # that the driver appends at a time
OTHER_ROWS: Final = "repeated tasks had other rows than before"


class StoredRecordsGoneError(RefusedError):
    """Records of an earlier attempt were deleted, so its stored rows are unknown."""


class DifferentRowsError(RefusedError):
    """A repeated write had other rows than before, so records are stored that are not its rows."""


# -- the plan --------------------------------------------------------------------------------------


class PlannedTopic(NamedTuple):
    """A topic at planning time. ``ends``: of its partitions; None if no earlier run is possible."""

    id: str
    partition_count: int
    ends: tuple[Offset, ...] | None = None

    def end_of(self, tp: TopicPartition) -> Offset:
        """Return the end of a partition; 0 for one that was added since."""
        if self.ends is None or tp.partition >= len(self.ends):
            return 0
        return self.ends[tp.partition]


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Plan shared by all tasks of a write. Created on the driver, pickled to the executors.

    ``topics``: the topic of the option; or all topics, if rows name theirs. So all tasks see the
    same number of partitions, and tell records of earlier runs from those of this one.
    """

    options: SinkOptions
    columns: SinkColumns
    topics: Mapping[str, PlannedTopic] = field(default_factory=dict)


def plan_write(options: SinkOptions, schema: StructType) -> WritePlan:
    """Check the columns, and that the topic exists.

    Raises ``InvalidRequestError`` for columns, ``UnknownTopicError``, and the errors of
    ``Catalog`` (``BrokerUnavailableError``) if no broker responds in time.
    """
    columns = sink_columns(schema, topic=options.topic)
    with clients.catalogs.lend(connection_of_sink(options)) as catalog:
        if options.topic is None:
            topics = catalog.matching(lambda _: True)
        else:
            topics = catalog.topics([options.topic])
        if sum(topic.partition_count for topic in topics.values()) > PLANNED_MAX:
            return WritePlan(options, columns)
        planned = {
            name: PlannedTopic(topic.id, topic.partition_count) for name, topic in topics.items()
        }
        if options.is_repeatable and options.topic is not None:
            planned = _with_ends(planned, catalog)
    if options.is_repeatable and options.topic is None:
        planned = _with_ends_in_time(planned, options)
    return WritePlan(options, columns, planned)


def _with_ends_in_time(
    topics: Mapping[str, PlannedTopic], options: SinkOptions
) -> dict[str, PlannedTopic]:
    """Return nothing if an end is not known soon: it may be of a topic that is not written to.

    Without the ends, all records count as those of earlier runs: see ``Attempt``.
    """
    connection = connection_of_sink(options)
    connecting = tuple(each for each in connection.connecting if each[0] != "request_timeout_ms")
    hasty = replace(connection, timeout_ms=ENDS_PATIENCE_MS, retries=0, connecting=connecting)
    try:
        with clients.catalogs.lend(hasty) as catalog:
            return _with_ends(topics, catalog)
    except RaftlogError as error:
        logger.warning("the write is planned without the ends of all topics: %s", error)
        return {}


def _with_ends(topics: Mapping[str, PlannedTopic], catalog: Catalog) -> dict[str, PlannedTopic]:
    partitions = {
        name: [TopicPartition(name, number) for number in range(topic.partition_count)]
        for name, topic in topics.items()
    }
    everywhere = [tp for tps in partitions.values() for tp in tps]
    # Records of earlier runs can be behind an open transaction of another producer.
    ends = catalog.latest(everywhere, isolation="uncommitted")
    return {
        name: topic._replace(ends=tuple(ends[tp] for tp in partitions[name]))
        for name, topic in topics.items()
    }


def connection_of_sink(options: SinkOptions) -> Connection:
    """Return the connection that the options of a write describe.

    Its range readers do not wait for the open transactions of others: what a write stores by name
    is in no transaction.
    """
    settings = tuple(each for each in options.settings if each[0] in CONNECTION_SETTINGS)
    reading = (("isolation", "uncommitted"),)
    return Connection(options.bootstrap, connecting=settings, reading=reading)


# -- one attempt of a task -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Work:
    """What the task has done in one topic, for ``settle``.

    ``left``: records of the task's name that match none of its rows. ``held``: rows that were held
    back. ``is_repeated``: the write had stored records here before.
    """

    topic: str
    topic_id: str
    records: int
    left: Stored
    held: Rows
    is_repeated: bool


@dataclass(frozen=True, slots=True)
class Report(WriterCommitMessage):
    """What a task sends to the driver when it has ended."""

    spark_partition: int


ReportT = TypeVar("ReportT", bound=Report)


@dataclass(frozen=True, slots=True)
class TaskReport(Report):
    """What a task reports to the driver.

    ``skipped``: number of its records that were stored, as far as the task can tell: those held
    back count. ``unmatched``: number of records that earlier attempts of the task had stored and
    that match no row of this attempt. ``name`` and ``epoch``: of the write; empty and 0 if it is
    never repeated, and of a task of a stream without rows.
    """

    records: int
    skipped: int
    unmatched: int
    log_partitions: int  # number of partitions with records of the task
    name: str = ""
    epoch: int = 0
    works: tuple[Work, ...] = field(default=(), compare=False, repr=False)


class Extent(NamedTuple):
    """Records of some producers in a partition, from ``start`` to before ``end``."""

    partition: TopicPartition
    start: Offset
    end: Offset
    producers: frozenset[ProducerIdAndEpoch]
    records: int  # that were stored; retention may have deleted some


class Appender(Protocol):
    """Functions of a ``ResumableProducer`` that a task uses."""

    @property
    def identity(self) -> ProducerIdAndEpoch: ...
    def partition_count(self, topic: str) -> int: ...
    def topic_id(self, topic: str) -> str: ...
    def max_message_bytes(self, topic: str) -> int: ...
    def stored(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...
    def extent(self, tp: TopicPartition) -> tuple[Offset, Offset] | None: ...
    def relatives(self, tp: TopicPartition) -> tuple[DescribedProducer, ...]: ...
    def append(self, tp: TopicPartition, body: BatchBody) -> DeliveryFuture: ...
    def flush(self, timeout: float | None = None) -> None: ...


# Reads the stored records of an extent that are not deleted, with the columns ``routing.COLUMNS``.
Recall: TypeAlias = Callable[[Extent], Iterator[pa.RecordBatch]]


def shape_of(options: SinkOptions, partition_count: int, max_message_bytes: int) -> TopicShape:
    """Return the shape of a topic. A batch fits in the topic, and in the producer's memory."""
    settings = options.producer_settings()
    bytes_max = [int(settings.get(name, max_message_bytes)) for name in BYTES_SETTINGS]
    size = chunk_bytes(
        partition_count=partition_count, max_message_bytes=min(max_message_bytes, *bytes_max)
    )
    return TopicShape(partition_count, size)


class _Sender:
    """Appends runs of records in chunks of one batch each."""

    def __init__(self, plan: WritePlan, producer: Appender, now_ms: Callable[[], int]) -> None:
        self._plan = plan
        self._producer = producer
        self._now_ms = now_ms
        self._level: Any = plan.options.producer_settings().get("compression_level")
        self._in_flight: deque[DeliveryFuture] = deque()
        self._chunker = Chunker()

    def shape(self, topic: str, partition_count: int) -> TopicShape:
        return shape_of(
            self._plan.options, partition_count, self._producer.max_message_bytes(topic)
        )

    def add(self, run: Run, shape: TopicShape) -> None:
        self._send(self._chunker.add(run, chunk_bytes=shape.chunk_bytes))

    def finish(self) -> None:
        """Send the rest. When it returns, every in-sync replica has all records."""
        self._send(self._chunker.rest())
        self._producer.flush()
        self._check_results(all_of_them=True)

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


class _Topic:
    """A topic that a task writes to, and the stored records of the write there.

    ``old``: records of the task from before this run. The topic may have had fewer partitions, so
    they are compared with the rows of all partitions. ``own``: its records of this run, which other
    attempts may write at the same time, by partition. ``others``: extents of the other tasks, from
    before this run; ``foreign``: their records, when they are needed.
    """

    def __init__(
        self,
        shape: TopicShape,
        old: Stored,
        own: dict[TopicPartition, Stored],
        others: list[Extent],
    ) -> None:
        self.shape = shape
        self.old = old
        self.own = own
        self.others = others
        self.foreign: Stored | None = None
        self.is_repeated = bool(old.count or own or others)
        self.held: list[Rows] = []
        self.records = 0

    @property
    def left(self) -> Stored:
        """Records of the task that match no row yet."""
        return Stored.joined([self.old, *self.own.values()])


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
        self._recall = recall
        self._topics: dict[str, _Topic] = {}
        self._stored_count = 0  # number of records that were read back
        self._skipped = 0
        self._partitions: set[TopicPartition] = set()  # that have records of this attempt
        self._sender = _Sender(plan, producer, now_ms)
        self._router = Router(
            plan.columns,
            topic=plan.options.topic,
            first=first,
            where=f"Spark partition {spark_partition}",
            shape_of=self._learn,
        )

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskReport:
        """Write all rows. When it returns, every in-sync replica has them, or they are held back.

        Raises ``StoredRecordsGoneError``, and the errors of routing and the producer.
        """
        for batch in blocks_of(batches, self._partition_count):
            for run in self._router.split(batch):
                topic = self._topics[run.partition.topic]
                topic.records += run.records.num_rows
                self._partitions.add(run.partition)
                left = self._not_stored(run, topic)
                if left is not None:
                    self._sender.add(left, topic.shape)
        self._sender.finish()
        works = tuple(
            Work(
                name,
                self._producer.topic_id(name),
                topic.records,
                topic.left,
                Rows.joined(topic.held),
                is_repeated=topic.is_repeated,
            )
            for name, topic in self._topics.items()
        )
        return TaskReport(
            spark_partition=self._spark_partition,
            records=sum(topic.records for topic in self._topics.values()),
            skipped=self._skipped,
            unmatched=sum(work.left.count for work in works),
            log_partitions=len(self._partitions),
            works=works,
        )

    def _partition_count(self) -> int:
        return sum(topic.shape.partition_count for topic in self._topics.values())

    def _learn(self, topic: str) -> TopicShape:
        """Query the shape of a topic and its stored records, before its first row is routed."""
        producer, topic_id = self._producer, self._producer.topic_id(topic)
        planned = self._plan.topics.get(topic)
        known = producer.partition_count(topic)
        if planned is None or (planned.id != topic_id and self._plan.options.topic is None):
            # Not looked at: all records count as those of earlier runs. More rows than necessary
            # are held back, and the driver appends them.
            ends = (limits.OFFSET_MAX + 1,) * known if self._plan.options.is_repeatable else None
            planned = PlannedTopic(topic_id, known, ends)
        if planned.id != topic_id:
            raise UnknownTopicError(
                f"topic {topic!r} was deleted and recreated after this write was planned: "
                "records of this write in the old topic are deleted. Run the write again"
            )
        shape = self._sender.shape(topic, planned.partition_count)
        # All partitions: an earlier attempt may have written to one that has no rows now, and an
        # earlier run may have found another number of them.
        everywhere = [
            TopicPartition(topic, number) for number in range(max(known, planned.partition_count))
        ]
        counts = producer.stored(everywhere)
        if self._stored_count + sum(counts.values()) > STORED_RECORDS_MAX:
            raise self._too_many(self._stored_count + sum(counts.values()))
        old, own, others = [], {}, []
        for tp in everywhere:
            end = planned.end_of(tp)
            if counts[tp]:
                before, since = self._read_own(tp, counts[tp], end)
                old.append(before)
                if since.count:
                    own[tp] = since
            if (extent := others_extent(producer, tp, before=end)) is not None:
                others.append(extent)
        self._topics[topic] = _Topic(shape, Stored.joined(old), own, others)
        return shape

    def _read_own(self, tp: TopicPartition, count: int, end: Offset) -> tuple[Stored, Stored]:
        """Read the records of the task: those below ``end``, and the others."""
        whole = own_extent(self._producer, tp, count)
        before = whole._replace(end=max(min(whole.end, end), whole.start))
        since = whole._replace(start=min(max(whole.start, end), whole.end))
        found = tuple(self._stored_in(extent) for extent in (before, since))
        self._check_all(tp, count, sum(stored.count for stored in found))
        self._stored_count += count
        return found[0], found[1]

    def _read_others(self, extents: Sequence[Extent]) -> Stored:
        total = self._stored_count + sum(extent.records for extent in extents)
        if total > STORED_RECORDS_MAX:
            raise self._too_many(total)
        parts = [self._stored_in(extent) for extent in extents]
        for extent, stored in zip(extents, parts, strict=True):
            self._check_all(extent.partition, extent.records, stored.count)
        return Stored.joined(parts)

    def _stored_in(self, extent: Extent) -> Stored:
        portions = self._recall(extent) if extent.start < extent.end else iter(())
        return Stored.of(portions, with_times=self._plan.columns.timestamp is not None)

    def _check_all(self, tp: TopicPartition, count: int, found: int) -> None:
        where = f"Spark partition {self._spark_partition}"
        check_all(where, tp, count, found, self._plan.options)

    def _too_many(self, total: int) -> UnsupportedFeatureError:
        return UnsupportedFeatureError(
            f"Spark partition {self._spark_partition}: earlier attempts have stored {total} "
            f"records; at most {STORED_RECORDS_MAX} are compared with the rows of a new one. "
            "Use more tasks, with fewer rows each: .repartition(...)"
        )

    def _not_stored(self, run: Run, topic: _Topic) -> Run | None:
        """Return the rows of a run that are not stored; None if there is none."""
        if not topic.is_repeated:
            return run
        rows = Rows.of(run.records)
        is_new = ~topic.old.take(rows)
        if run.partition in topic.own:
            is_new[is_new] = ~topic.own[run.partition].take(rows.where(is_new))
        # guard: rows are looked for among the records of the other tasks
        if topic.others and is_new.any():
            if topic.foreign is None:
                topic.foreign = self._read_others(topic.others)
            is_held = np.zeros(len(is_new), np.bool_)
            is_held[is_new] = topic.foreign.take(rows.where(is_new))
            if is_held.any():
                topic.held.append(topic.foreign.compared(rows.where(is_held)))
            is_new &= ~is_held
        self._skipped += int((~is_new).sum())
        if is_new.all():
            return run
        if not is_new.any():
            return None
        return Run(run.partition, run.records.filter(pa.array(is_new)), run.sizes[is_new])

    def forget(self) -> None:
        """Discard the results of batches that were in flight when the producer was closed."""
        self._sender.forget()


def own_extent(producer: Appender, tp: TopicPartition, count: int) -> Extent:
    """Return where the ``count`` records are that the producer has stored."""
    extent = producer.extent(tp)
    assert extent is not None, "called only for partitions with stored records"
    return Extent(tp, *extent, frozenset([producer.identity]), count)


def others_extent(
    producer: Appender,
    tp: TopicPartition,
    *,
    before: Offset,
    but: Container[int] = (),
) -> Extent | None:
    """Return where the other names of the write have records below ``before``; None if nowhere.

    ``but``: members to leave out.
    """
    found = [
        each
        for each in producer.relatives(tp)
        if each.first_offset < before and each.producer_id % MEMBERS not in but
    ]
    if not found:
        return None
    return Extent(
        tp,
        min(each.first_offset for each in found),
        min(max(each.last_offset for each in found) + 1, before),
        frozenset(ProducerIdAndEpoch(each.producer_id, each.producer_epoch) for each in found),
        sum(each.last_sequence + 1 for each in found if each.last_offset < before),
    )


def check_all(where: str, tp: TopicPartition, count: int, found: int, options: SinkOptions) -> None:
    """Raise ``StoredRecordsGoneError`` if fewer records than ``count`` can be read."""
    # guard: stored records that were deleted end the attempt
    if found < count and not options.allow_duplicates:
        raise StoredRecordsGoneError(
            f"{where}: earlier attempts have stored {count} records in {tp}, and {found} of them "
            "can be read: retention, compaction or delete-records deleted the others, so it is "
            "unknown which rows are not stored yet. To write all rows that are not found, which "
            "may store some of them twice, set the option allowDuplicates=true"
        )


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
    """Write a task's rows. Without rows, no producer is created.

    ``name``: of the write, and behind the last colon the number of the task.
    """
    begun = next((batch for batch in batches if batch.num_rows), None)
    if begun is None:
        report = TaskReport(spark_partition, records=0, skipped=0, unmatched=0, log_partitions=0)
        if plan.options.write_id is None:
            return report
        return replace(report, name=name.rpartition(":")[0], epoch=epoch)
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
        report = attempt.write(_joined(begun, batches))
    finally:
        producer.close(timeout=0)  # after a failure, the next attempt sends the rest
        attempt.forget()
    if producer.member is None:
        return report
    return replace(report, name=producer.name, epoch=epoch)


def _joined(begun: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield begun
    yield from batches


def _stored_records(
    plan: WritePlan, producer: ResumableProducer, extent: Extent
) -> Iterator[pa.RecordBatch]:
    """Read the stored records that are not deleted (a ``Recall``)."""
    connection, tp = connection_of_sink(plan.options), extent.partition
    with clients.catalogs.lend(connection) as catalog:
        start = max(extent.start, catalog.earliest([tp])[tp])
    if start < extent.end:
        with clients.range_readers.lend(connection) as reader:
            yield from reader.read(
                tp,
                start,
                extent.end,
                topic_id=producer.topic_id(tp.topic),
                columns=COLUMNS,
                producers=extent.producers,
            )


def _producer(options: SinkOptions, *, name: str, epoch: int) -> ResumableProducer:
    """``name``: see ``write_rows``. The names of a write that is repeated are a family."""
    settings: dict[str, Any] = options.producer_settings()
    for own in OWN_SETTINGS:
        settings.pop(own, None)
    if not options.is_repeatable:
        return ResumableProducer(options.bootstrap, name=name, epoch=epoch, **settings)
    family, _, member = name.rpartition(":")
    if int(member) > DRIVER:
        raise UnsupportedFeatureError(
            f"Spark partition {member}: a write with an idempotenceId, or a batch of a stream, has "
            f"at most {DRIVER} tasks. Use fewer: .coalesce(...)"
        )
    return ResumableProducer(
        options.bootstrap, name=family, member=int(member), epoch=epoch, **settings
    )


# -- driver ----------------------------------------------------------------------------------------


def check_append(overwrite: bool, *, instead: str) -> None:
    """Reject a write that would replace the topic's records. ``instead``: the remedy."""
    if overwrite:
        raise InvalidRequestError(
            f"a topic can only be appended to, not overwritten: {instead}. To start with an empty "
            "topic, create a new one, or delete its records with `raftlog topic delete-records`"
        )


class WriteTotals(NamedTuple):
    """Sums of the reports of a write's tasks: see ``TaskReport``.

    ``unmatched``: stored records of the write that are none of its rows.
    """

    records: int
    skipped: int
    unmatched: int


def check_reports(
    messages: Sequence[WriterCommitMessage | None], kind: type[ReportT]
) -> list[ReportT]:
    """Return the reports if every task has reported. Raises ``RaftlogError``."""
    reports = [message for message in messages if isinstance(message, kind)]
    reported = {report.spark_partition for report in reports}
    if len(reported) != len(messages):
        raise RaftlogError(
            f"{len(reported)} of {len(messages)} tasks have reported their records: records may "
            "be missing. Repeat the write, with the same idempotenceId if one was set"
        )
    return reports


def settle(plan: WritePlan, messages: Sequence[WriterCommitMessage | None]) -> WriteTotals:
    """Complete a write whose tasks have ended: append the rows that they held back, if missing.

    Raises ``DifferentRowsError`` if stored records of the write are none of its rows; with
    ``allowDuplicates``, logs a warning.
    """
    reports = check_reports(messages, TaskReport)
    names = {(report.name, report.epoch) for report in reports if report.name}
    assert len(names) <= 1, "all tasks of a write have its name"
    works = [work for report in reports for work in report.works]
    unmatched = sum(work.left.count for work in works)
    # A batch write without rows has a name, too: an earlier run may have had some.
    if names and (not works or any(work.is_repeated for work in works)):
        ((name, epoch),) = names
        producer = _producer(plan.options, name=f"{name}:{DRIVER}", epoch=epoch)
        try:
            recall = partial(_stored_records, plan, producer)
            made = Settlement(plan, producer, reports, now_ms=SystemClock().wall_ms, recall=recall)
            unmatched = made.run()
        finally:
            producer.close(timeout=0)
    totals = WriteTotals(
        sum(report.records for report in reports),
        sum(report.skipped for report in reports),
        unmatched,
    )
    if unmatched:
        text = f"{OTHER_ROWS}: records={totals[0]} skipped={totals[1]} unmatched={totals[2]}"
        # guard: stored records that are no rows fail the write
        if not plan.options.allow_duplicates:
            raise DifferentRowsError(
                f"{text}. All rows are stored; the unmatched records are of earlier attempts. "
                "Avoid rand(), uuid() and similar functions, or write to a table first. To accept "
                "such records, set the option allowDuplicates=true"
            )
        logger.warning("%s. They stay in the log (allowDuplicates=true)", text)
    return totals


class Settlement:
    """What the driver does when the tasks of a repeated write have ended."""

    def __init__(
        self,
        plan: WritePlan,
        producer: Appender,
        reports: Sequence[TaskReport],
        *,
        now_ms: Callable[[], int],
        recall: Recall,
    ) -> None:
        """``producer``: the driver's own, which writes under the last member of the name."""
        self._plan = plan
        self._producer = producer
        self._recall = recall
        self._sender = _Sender(plan, producer, now_ms)
        self._works: dict[str, dict[int, Work]] = {}  # by topic and task
        for report in reports:
            for work in report.works:
                self._works.setdefault(work.topic, {})[report.spark_partition] = work
        if not self._works and plan.options.topic is not None:
            self._works[plan.options.topic] = {}

    def run(self) -> int:
        """Append what is missing. Returns the number of stored records that are no rows."""
        try:
            unmatched = sum(self._settle(topic, works) for topic, works in self._works.items())
            self._sender.finish()
        finally:
            self._sender.forget()
        return unmatched

    def _settle(self, topic: str, works: Mapping[int, Work]) -> int:
        if any(work.topic_id != self._producer.topic_id(topic) for work in works.values()):
            raise UnknownTopicError(
                f"topic {topic!r} was deleted and recreated during this write. Run the write again"
            )
        count = self._producer.partition_count(topic)
        everywhere = [TopicPartition(topic, number) for number in range(count)]
        counts = self._producer.stored(everywhere)
        mine = [own_extent(self._producer, tp, counts[tp]) for tp in everywhere if counts[tp]]
        absent = [*mine, *self._others(everywhere, but=works)]
        rest = Stored.joined([*(work.left for work in works.values()), *self._read_back(absent)])
        held = Rows.joined([work.held for work in works.values() if len(work.held.contents)])
        missing = held.where(~rest.take(held))
        # guard: rows that were held back and are missing are appended
        if len(missing.contents):
            self._append(missing, [*mine, *self._others(everywhere, but=())])
        # A run with other tasks that still writes has other names: nothing else would tell.
        stored = sum(counts.values()) + len(missing.contents)
        stored += sum(
            each.last_sequence + 1 for tp in everywhere for each in self._producer.relatives(tp)
        )
        return max(rest.count, stored - sum(work.records for work in works.values()))

    def _others(self, everywhere: Iterable[TopicPartition], *, but: Container[int]) -> list[Extent]:
        found = (
            others_extent(self._producer, tp, before=limits.OFFSET_MAX + 1, but=but)
            for tp in everywhere
        )
        return [extent for extent in found if extent is not None]

    def _read_back(self, extents: Iterable[Extent]) -> list[Stored]:
        with_times = self._plan.columns.timestamp is not None
        parts = []
        for extent in extents:
            parts.append(Stored.of(self._recall(extent), with_times=with_times))
            check_all(
                "the driver",
                extent.partition,
                extent.records,
                parts[-1].count,
                self._plan.options,
            )
        return parts

    def _append(self, missing: Rows, extents: Iterable[Extent]) -> None:
        """Append these rows. An equal record of each is in ``extents``: it has the content."""
        wanted = Wanted(missing)
        for extent in extents:
            shape = self._sender.shape(extent.partition.topic, 1)
            for portion in self._recall(extent):
                copies = wanted.take(portion)
                for first in range(0, copies.num_rows, BLOCK_ROWS):
                    records = copies.slice(first, BLOCK_ROWS)
                    run = Run(extent.partition, records, sizes_of(records))
                    self._sender.add(run, shape)
        assert not wanted.count, "a row is held back only if an equal record was read"


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
        """Complete the write: see ``settle``."""
        totals = settle(self._plan, messages)
        logger.info("write done: records=%d skipped=%d unmatched=%d", *totals)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log that the write has failed, and that stored records stay."""
        done = sum(isinstance(message, TaskReport) for message in messages)
        logger.warning(
            "write failed: completed_tasks=%d. Their records stay in the log. To skip them in a "
            "repeated write, set the options idempotenceId and idempotenceVersion",
            done,
        )
