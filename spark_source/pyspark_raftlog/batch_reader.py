"""Batch read: offset ranges, fixed once for each ``load()``, and the tasks that read them.

The driver queries the start and end offset of every partition once. Records that are appended later
are read by the next ``load()``. Tasks get exact ranges of offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_raftlog import client_pool
from pyspark_raftlog.bounds import Extent, extent, resolve_end, resolve_start, select
from pyspark_raftlog.catalog import Catalog
from pyspark_raftlog.client_pool import connection_of
from pyspark_raftlog.options import SourceOptions
from pyspark_raftlog.planning import (
    Loss,
    LossKind,
    PartitionNow,
    PartitionRange,
    Verdict,
    judge,
    split,
)
from pyspark_raftlog.task_reader import read_partition, settings_of
from raftlog.errors import InvalidRequestError
from raftlog.types import Offset, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger("raftlog.spark")


class BatchReader(DataSourceReader):
    """Reads topics as they are at planning time. Created and planned on the driver."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self._settings = settings_of(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Return one input partition per task. Spark calls this once for each ``load()``."""
        options = self.options
        with client_pool.catalogs.lend(connection_of(options)) as catalog:
            ranges = self._ranges(catalog)
        pieces = split(
            ranges,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )
        return [InputPartition(piece) for piece in pieces]

    def _ranges(self, catalog: Catalog) -> list[PartitionRange]:
        return plan_ranges(catalog, self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of one input partition. Spark calls this on an executor."""
        return read_partition(partition, self._settings)


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
    latest = now.latest[tp]
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
    there = PartitionNow(topic_id, now.earliest[tp], latest)
    return judge(wanted, there, asked_by=options.ending_option)
