"""Task of a read on an executor: reads one exact range of a partition, batch by batch.

The range reader retries and changes replicas. This module detects records that were planned and no
longer exist.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructType

from pyspark_raftlog import client_pool
from pyspark_raftlog.client_pool import Connection, connection_of
from pyspark_raftlog.options import SourceOptions
from pyspark_raftlog.planning import Loss, PartitionRange, damaged, judge
from pyspark_raftlog.schema import arrow_columns, arrow_schema
from raftlog.errors import (
    CorruptBatchError,
    DamagedLogError,
    OffsetOutOfRangeError,
    RaftlogError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.types import Offset

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

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


def settings_of(options: SourceOptions, schema: StructType) -> ReadSettings:
    """Return the options that the tasks use."""
    return ReadSettings(
        connection_of(options),
        schema,
        options.batch_max_rows,
        options.batch_max_bytes,
        options.fetch_timeout_ms,
        options.fail_on_data_loss,
    )


def read_partition(partition: InputPartition, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """Read the ``PartitionRange`` in ``partition``. Spark also creates partitions without one.

    Raises ``DataLossError``, and the errors of the range reader.
    """
    wanted = partition.value
    return iter(()) if wanted is None else _read(wanted, settings)


def _read(wanted: PartitionRange, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    columns, schema = arrow_columns(settings.schema), arrow_schema(settings.schema)
    count = len(columns)
    if "offset" not in columns:
        columns.append("offset")  # needed to resume; not passed to Spark
    where = columns.index("offset")
    left, tries = wanted, 0
    has_warned = False
    while left.size:
        try:
            for batch in _batches(left, columns, settings):
                left = replace(left, start=_last(batch.column(where)) + 1)
                tries = 0
                yield pa.RecordBatch.from_arrays(batch.columns[:count], schema=schema)
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


def _batches(
    wanted: PartitionRange, columns: list[str], settings: ReadSettings
) -> Iterator[pa.RecordBatch]:
    with client_pool.range_readers.lend(settings.connection) as reader:
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
    with client_pool.catalogs.lend(settings.connection) as catalog:
        now = catalog.now([wanted.topic_partition])[wanted.topic_partition]
    verdict = judge(wanted, now)
    return verdict.range, verdict.loss
