"""The writer of a streaming query: each of its batches is stored once, also when it is replayed.

A task writes as producer ``spark:<query id>:<topic>:<batch // 32768>:<Spark partition>`` with the
batch's number, modulo 32768, as its epoch (``writer`` says how such a producer works). The query id
comes from the checkpoint and is the same after each restart. So

- a batch that is replayed, after a crash between its last task and the commit log, finds what it
  has stored, and stores the rest;
- a task of an older batch that still runs somewhere is shut out by the newer batch's epoch;
- two queries, or one query that writes two topics, have nothing in common.

Spark replays a batch from the same offsets of its sources. What else has to be the same, and what
happens when it is not, is told in ``writer``. Above all: keep ``spark.sql.shuffle.partitions`` and
the sources' ``minPartitions`` as they were between a crash and the next start; and do not go back
to an older copy of the checkpoint: its batches are taken for late ones, and refused.

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

from raftlog.errors import ProducerFencedError, UnsupportedFeatureError
from raftlog.spark_source.writer import (
    TaskReport,
    check_append,
    check_reports,
    plan_write,
    write_rows,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from raftlog.spark_source.options import SinkOptions

logger = logging.getLogger(__name__)

EPOCHS: Final = 1 << 15  # of one producer name: 0 to 32767

_NO_REWRITE: Final = (
    'say .outputMode("append"), or write each batch by yourself, in foreachBatch, with the options '
    "idempotenceId and idempotenceVersion=<batch id>"
)
# Where Spark tells a task which batch of which query it works for.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


def producer_of(
    *, query_id: str, topic: str | None, batch_id: int, partition: int
) -> tuple[str, int]:
    """The name and the epoch under which a task writes."""
    age, epoch = divmod(batch_id, EPOCHS)
    return f"spark:{query_id}:{topic or ''}:{age}:{partition}", epoch


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query. Spark makes one for each batch, and another for its commit."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        """Raises what says why it cannot be written, before any work: see ``plan_write``."""
        check_append(overwrite, instead=_NO_REWRITE)
        self._plan = plan_write(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """One attempt of a task, on an executor."""
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        query_id, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if not query_id or batch is None:
            raise UnsupportedFeatureError(
                f"Spark does not say which batch of which query this is ({_QUERY_ID}, {_BATCH_ID}):"
                " without that a stream cannot be written once. Use foreachBatch, with "
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
                f"batch {batch_id} of query {query_id} comes late: the query has written a later "
                "one. Either another run of it uses the same checkpoint, or the checkpoint is an "
                f"older copy: take the newest, or start with a new one ({error})"
            ) from error

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """All tasks are done, and what they wrote is committed: see that none is missing."""
        totals = check_reports(messages)
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
