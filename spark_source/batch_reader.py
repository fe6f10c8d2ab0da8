"""A batch read: what it consists of, fixed once for each ``load()``, and the tasks that read it.

The driver looks up both ends of every partition and never again: what is appended afterwards is for
the next ``load()``. Tasks get exact ranges of offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from raftlog.errors import InvalidRequestError
from raftlog.spark_source import client_pool
from raftlog.spark_source.bounds import Extent, extent, resolve_end, resolve_start, select
from raftlog.spark_source.catalog import Catalog
from raftlog.spark_source.client_pool import connection_of
from raftlog.spark_source.options import SourceOptions
from raftlog.spark_source.planning import (
    Loss,
    LossKind,
    PartitionNow,
    PartitionRange,
    Verdict,
    judge,
    split,
)
from raftlog.spark_source.task_reader import read_partition, settings_of
from raftlog.types import Offset, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class BatchReader(DataSourceReader):
    """Reads topics as they are now. Made, and asked for its partitions, on the driver."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self._settings = settings_of(options, schema)

    def partitions(self) -> list[InputPartition]:
        """One for each task. Spark asks once for each ``load()``."""
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
        """The records of one of them, on an executor."""
        return read_partition(partition, self._settings)


def plan_ranges(catalog: Catalog, options: SourceOptions) -> list[PartitionRange]:
    """What a read consists of, a range for each partition that has something to read.

    Raises ``UnknownTopicError``, ``UnknownPartitionError``, ``InvalidRequestError`` for bounds that
    do not fit, and ``DataLossError``; without ``failOnDataLoss``, logs what is not there.
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
            f"{options.starting_option}: topic {tp.topic!r} partition {tp.partition} is to be read "
            f"from offset {start}, but it has none from {latest} on yet"
        )
        nothing = PartitionRange(tp.topic, topic_id, tp.partition, latest, latest)
        return Verdict(nothing, Loss(LossKind.BEYOND_END, what, "nothing of it is read"))
    if start > end:
        raise InvalidRequestError(
            f"topic {tp.topic!r} partition {tp.partition} is to be read from offset {start} "
            f"({options.starting_option}) to before offset {end} ({options.ending_option}): the "
            "end is before the start. Change one of them"
        )
    there = PartitionNow(topic_id, now.earliest[tp], latest)
    return judge(wanted, there, asked_by=options.ending_option)
