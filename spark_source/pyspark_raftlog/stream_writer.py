"""Writer of a streaming query: stores each batch exactly once, also if Spark replays it.

A task writes as producer ``spark:<query id>:<topic>:<batch // 32768>:<Spark partition>`` with the
batch's number, modulo 32768, as its epoch (``writer`` says how such a producer works). The query id
comes from the checkpoint and is the same after each restart. So

- a batch that is replayed after a crash between its last task and the commit log finds the records
  that it has stored, and stores the rest;
  - the newer batch's epoch fences a task of an older batch that is still running;
  - two queries, or one query that writes two topics, use different producer names.

Spark replays a batch from the same offsets of its sources. ``writer`` describes what must be equal,
and the effect if it is not. Do not restore an older copy of the checkpoint: its batches are fenced
as late ones.

Spark has only outputMode "append" for sinks like this one: "complete" is refused here, "update" by
Spark. For those, and where rows have to be sorted before they are written, which Spark does not do
in a stream, there is ``foreachBatch`` with a batch write: its idempotenceVersion is the batch's
number.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_raftlog.writer import (
    TaskReport,
    check_append,
    plan_write,
    settle,
    write_rows,
)
from raftlog.errors import ProducerFencedError, UnsupportedFeatureError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_raftlog.options import SinkOptions

logger = logging.getLogger("raftlog.spark")

EPOCHS: Final = 1 << 15  # of one producer name: 0 to 32767

_NO_REWRITE: Final = (
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


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a batch of a query. Spark creates one per batch, and another for its commit."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        """Check the write before any work. Raises the errors of ``plan_write``."""
        check_append(overwrite, instead=_NO_REWRITE)
        self._plan = plan_write(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Run one attempt of a task. Spark calls this on an executor."""
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        query_id, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if not query_id or batch is None:
            raise UnsupportedFeatureError(
                f"Spark did not set the query and batch of the task ({_QUERY_ID}, {_BATCH_ID}): "
                "exactly-once stream writes need them. Use foreachBatch, with "
                "idempotenceId and idempotenceVersion"
            )
        partition, batch_id = context.partitionId(), int(batch)
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
