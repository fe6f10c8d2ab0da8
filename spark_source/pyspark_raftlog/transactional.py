"""Writing in transactions: each write is stored as a whole, or not at all (option transactional).

Tasks encode their rows and store nothing: the batches travel to the driver in the commit messages.
When all tasks have ended, the driver stores them in one transaction, with the number of the write
(``raftlog.client.resumable``). So

- readers of committed records see all rows of a write together, and none of a write that failed;
- a write that is repeated finds its number, and stores nothing: rows are not compared, and may
  differ;
- a task that runs twice, or late, cannot store anything.

All rows of a write pass through the driver: at most ``STAGED_BYTES_MAX``. Reasons: ADR 88.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyspark_raftlog import clients
from pyspark_raftlog.options import SinkOptions
from pyspark_raftlog.routing import (
    Chunk,
    Chunker,
    Router,
    SinkColumns,
    TopicShape,
    blocks_of,
    sink_columns,
)
from pyspark_raftlog.writer import (
    NO_REWRITE,
    OWN_SETTINGS,
    Report,
    batch_of_task,
    check_append,
    check_reports,
    connection_of_sink,
    encode_chunk,
    shape_of,
)
from raftlog import TopicPartition, limits
from raftlog.client.resumable import Step, StepProducer
from raftlog.client.settings import BATCH_BYTES_MIN
from raftlog.clock import SystemClock
from raftlog.errors import ProducerFencedError, UnsupportedFeatureError
from raftlog.record import BatchBody

STAGED_BYTES_MAX: Final = 64 * limits.MIB  # encoded rows of one write
NOTE: Final = "last batch that Spark has stored"

logger = logging.getLogger("raftlog.spark")


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Plan shared by all tasks of a write. Created on the driver, pickled to the executors."""

    options: SinkOptions
    columns: SinkColumns
    topic: str
    topic_id: str
    shape: TopicShape


@dataclass(frozen=True, slots=True)
class StagedRows(Report):
    """What a task sends to the driver. ``query_id``, ``batch_id``: of a stream."""

    records: int
    batches: tuple[tuple[int, BatchBody], ...] = field(repr=False)  # with their partition
    query_id: str = ""
    batch_id: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(body.size_bytes for _, body in self.batches)


def plan_stage(options: SinkOptions, schema: StructType) -> StagePlan:
    """Check the columns, and that the topic exists.

    Raises ``InvalidRequestError`` for columns, ``UnknownTopicError``, and the errors of ``Catalog``
    (``BrokerUnavailableError``) if no broker responds in time.
    """
    topic = options.topic
    assert topic is not None, "SinkOptions requires it with transactional"
    columns = sink_columns(schema, topic=topic)
    with clients.catalogs.lend(connection_of_sink(options)) as catalog:
        listed = catalog.topics([topic])[topic]
        (described,) = catalog.admin.describe_topics([topic])
    message_bytes = int(described.config["max.message.bytes"])
    shape = shape_of(options, listed.partition_count, message_bytes)
    return StagePlan(options, columns, topic, listed.id, shape)


def stage(
    plan: StagePlan,
    batches: Iterator[pa.RecordBatch],
    *,
    spark_partition: int,
    first: int,
    now_ms: int,
) -> StagedRows:
    """Encode the rows of a task. ``first``: see ``Router``. ``now_ms``: time of rows without one.

    Raises ``UnsupportedFeatureError`` for too many bytes, and the errors of routing.
    """
    level: Any = plan.options.producer_settings().get("compression_level")
    chunker = Chunker()
    router = Router(
        plan.columns,
        topic=plan.topic,
        first=first,
        where=f"Spark partition {spark_partition}",
        shape_of=lambda _: plan.shape,
    )
    staged: list[tuple[int, BatchBody]] = []
    size_bytes = 0

    def add(chunks: Iterator[Chunk]) -> None:
        nonlocal size_bytes
        for chunk in chunks:
            body = encode_chunk(chunk.records, now_ms=now_ms, codec=plan.options.codec, level=level)
            staged.append((chunk.partition.partition, body))
            size_bytes += body.size_bytes
            check_size(size_bytes)

    for batch in blocks_of(batches, lambda: plan.shape.partition_count):
        for run in router.split(batch):
            add(chunker.add(run, chunk_bytes=plan.shape.chunk_bytes))
    add(chunker.rest())
    return StagedRows(spark_partition, router.row_count, tuple(staged))


def check_size(size_bytes: int) -> None:
    """Raise ``UnsupportedFeatureError`` if a write has more bytes than ``STAGED_BYTES_MAX``."""
    if size_bytes > STAGED_BYTES_MAX:
        raise UnsupportedFeatureError(
            f"transactional=true: the rows of one write pass through the driver, and have more "
            f"than {STAGED_BYTES_MAX} encoded bytes. Write less at once (for a stream: "
            "maxOffsetsPerTrigger or maxBytesPerTrigger), or leave the option out: rows are "
            "stored once without it, too"
        )


def publish(
    plan: StagePlan,
    messages: Sequence[WriterCommitMessage | None],
    *,
    transactional_id: str,
    step: Step | None,
) -> bool:
    """Store the rows of all tasks in one transaction. Return False if the step is stored already.

    Raises ``RaftlogError`` if a task has not reported, and the errors of ``StepProducer.store``.
    """
    staged = check_reports(messages, StagedRows)
    check_size(sum(each.size_bytes for each in staged))
    batches = [
        (TopicPartition(plan.topic, partition), body)
        for each in sorted(staged, key=lambda each: each.spark_partition)
        for partition, body in each.batches
    ]
    if not batches:
        return True
    settings: dict[str, Any] = plan.options.producer_settings()
    for own in OWN_SETTINGS:
        settings.pop(own, None)
    settings["batch_bytes_max"] = BATCH_BYTES_MIN  # batches are already encoded
    producer = StepProducer(
        plan.options.bootstrap, transactional_id=transactional_id, linger_ms=0, **settings
    )
    try:
        return producer.store(batches, topic_ids={plan.topic: plan.topic_id}, step=step)
    finally:
        with suppress(TimeoutError):
            producer.close(timeout=0)


class TransactionalStreamWriter(DataSourceStreamArrowWriter):
    """Writes a batch of a query. Spark creates one per batch, and another for its commit."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        """Check the write before any work. Raises the errors of ``plan_stage``."""
        check_append(overwrite, instead=NO_REWRITE)
        self._plan = plan_stage(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Encode the rows of a task. Spark calls this on an executor."""
        query_id, batch_id, partition = batch_of_task()
        staged = stage(
            self._plan,
            iterator,
            spark_partition=partition,
            first=partition + batch_id,
            now_ms=SystemClock().wall_ms(),
        )
        return StagedRows(partition, staged.records, staged.batches, query_id, batch_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Store the batch, unless it is stored."""
        staged = check_reports(messages, StagedRows)
        queries = {each.query_id for each in staged}
        assert len(queries) <= 1, "all tasks of a batch are of one query"
        query_id = "".join(queries)
        name = f"spark:{query_id}:{self._plan.topic}"
        group = f"spark-sink:{query_id}"
        try:
            is_new = publish(
                self._plan,
                messages,
                transactional_id=name,
                step=Step(group, TopicPartition(self._plan.topic, 0), batchId, NOTE),
            )
        except ProducerFencedError as error:
            raise ProducerFencedError(
                f"batch {batchId} of query {query_id} is late, or another run of the query uses "
                "the same checkpoint: use the newest copy of it, or start with a new one "
                f"({error})"
            ) from error
        count = sum(each.records for each in staged)
        logger.info("batch done: batch=%d records=%d new=%s", batchId, count, is_new)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log that the batch has failed. Nothing of it is visible."""
        done = sum(isinstance(message, StagedRows) for message in messages)
        logger.warning("batch failed: batch=%d completed_tasks=%d", batchId, done)


class TransactionalBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame. Created once on the driver, pickled to the attempts of all tasks."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        """Check the write before any work. Raises the errors of ``plan_stage``."""
        check_append(overwrite, instead='use .mode("append")')
        self._plan = plan_stage(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Encode the rows of a task. Spark calls this on an executor."""
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        partition = context.partitionId()
        return stage(
            self._plan,
            iterator,
            spark_partition=partition,
            first=partition,
            now_ms=SystemClock().wall_ms(),
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Store the rows, unless this version of the idempotenceId is stored."""
        options, topic = self._plan.options, self._plan.topic
        step = None
        name = uuid.uuid4().hex
        if options.idempotence_id is not None and options.idempotence_version is not None:
            name = options.idempotence_id
            where = TopicPartition(topic, 0)
            step = Step(f"spark-batch:{name}", where, options.idempotence_version, NOTE)
        try:
            is_new = publish(
                self._plan, messages, transactional_id=f"spark-batch:{name}:{topic}", step=step
            )
        except ProducerFencedError as error:
            raise ProducerFencedError(
                f"a later idempotenceVersion of {name!r} is stored, or another run writes at the "
                f"same time. With transactional=true, versions increase ({error})"
            ) from error
        logger.info("write done: new=%s", is_new)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log that the write has failed. Nothing of it is visible."""
        done = sum(isinstance(message, StagedRows) for message in messages)
        logger.warning("write failed: completed_tasks=%d", done)
