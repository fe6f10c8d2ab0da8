"""Data sources and a sink for benchmarks, with the same columns and minimal work.

The difference to the real source is the cost of the real source.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from pyspark_raftlog.schema import arrow_columns, arrow_schema, read_schema
from raftlog import Admin, Consumer, TopicPartition
from raftlog.record import decode_arrow, encode, seal
from raftlog.types import Offset

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_POLL_RECORDS: Final = 10_000
_POLL_MS: Final = 10_000
_MS_PER_S: Final = 1_000
_TOPIC: Final = "from-memory"
_TIMESTAMP_TYPE: Final = 0  # CreateTime
_SEED: Final = 2026
_WORDS: Final = "the order was paid and is on its way to the customer, who may track where it is. "


class FromMemory(DataSource):
    """One RecordBatch, returned repeatedly: the maximum rate of any source in Python.

    Options: ``records``, ``tasks``, ``batchRows``, ``valueBytes``.
    """

    @classmethod
    def name(cls) -> str:
        return "raftlog-bench-memory"

    def schema(self) -> StructType:
        return read_schema()

    def reader(self, schema: StructType) -> MemoryReader:
        wanted = {name: int(value) for name, value in self.options.items()}
        return MemoryReader(
            schema,
            batches=-(-wanted["records"] // wanted["tasks"] // wanted["batchrows"]),
            tasks=wanted["tasks"],
            rows=wanted["batchrows"],
            value_bytes=wanted["valuebytes"],
        )


class MemoryReader(DataSourceReader):
    """Returns ``batches`` of ``rows`` rows in each of ``tasks`` tasks."""

    def __init__(
        self, schema: StructType, *, batches: int, tasks: int, rows: int, value_bytes: int
    ) -> None:
        self._schema = schema
        self._batches = batches
        self._tasks = tasks
        self._rows = rows
        self._value_bytes = value_bytes

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        body = encode(values_of(self._rows, self._value_bytes), timestamps_ms=0)
        found = decode_arrow(
            [seal(body) + body.payload],
            topic=_TOPIC,
            partition=partition.value,
            columns=arrow_columns(self._schema),
        )
        batch = pa.RecordBatch.from_arrays(found.columns, schema=arrow_schema(self._schema))
        return repeat(batch, self._batches)


@dataclass(frozen=True, slots=True)
class _Share:
    """Range that one task reads: from the start to before ``end``."""

    partition: int
    end: Offset


class AsRows(DataSource):
    """A topic read with a plain consumer, one tuple for each record: the simplest data source.

    Options: ``bootstrap``, ``topic``.
    """

    @classmethod
    def name(cls) -> str:
        return "raftlog-bench-rows"

    def schema(self) -> StructType:
        return read_schema()

    def reader(self, schema: StructType) -> RowReader:  # noqa: ARG002 - Spark's signature
        return RowReader(self.options["bootstrap"], self.options["topic"])


class RowReader(DataSourceReader):
    """One task for each partition of the topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic

    def partitions(self) -> list[InputPartition]:
        with Admin(self._bootstrap) as admin:
            ends = admin.offsets(self._topic)
        return [InputPartition(_Share(number, end)) for number, end in ends.items() if end]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        share: _Share = partition.value
        with Consumer(self._bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(self._topic, share.partition)])
            position = 0
            while position < share.end:
                for record in consumer.poll(timeout_ms=_POLL_MS, max_records=_POLL_RECORDS):
                    position = record.offset + 1
                    yield (
                        record.key,
                        record.value,
                        record.topic,
                        record.partition,
                        record.offset,
                        datetime.fromtimestamp(record.timestamp_ms / _MS_PER_S, UTC),
                        _TIMESTAMP_TYPE,
                    )


class Drain(DataSource):
    """A sink that discards Arrow batches: the maximum rate of any writer in Python."""

    @classmethod
    def name(cls) -> str:
        return "raftlog-bench-drain"

    def schema(self) -> StructType:
        return read_schema()

    def writer(  # Spark's signature
        self,
        schema: StructType,  # noqa: ARG002
        overwrite: bool,  # noqa: ARG002
    ) -> DrainWriter:
        return DrainWriter()


@dataclass(frozen=True, slots=True)
class Drained(WriterCommitMessage):
    """Number of rows that a task received."""

    rows: int


class DrainWriter(DataSourceArrowWriter):
    """Counts rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Drained:
        return Drained(sum(batch.num_rows for batch in iterator))


def register(spark: SparkSession) -> None:
    """Register the sources and the sink in a session."""
    for source in (FromMemory, AsRows, Drain):
        spark.dataSource.register(source)


# -- values ----------------------------------------------------------------------------------------


def values_of(count: int, value_bytes: int) -> list[bytes]:
    """Return ``count`` values of ``value_bytes`` each (at least 1), the same at each call.

    The values resemble log lines of a web shop. They are all different, so Parquet uses no
    dictionary, and they compress about as well as real lines.
    """
    chance = random.Random(_SEED)
    text = _WORDS * (value_bytes // len(_WORDS) + 2)
    return [_value(chance, text, value_bytes) for _ in range(count)]


def _value(chance: random.Random, text: str, value_bytes: int) -> bytes:
    first = chance.randrange(len(_WORDS))
    line = (
        f'{{"user":"{chance.getrandbits(48):012x}","path":"/item/{chance.randrange(100_000):05d}",'
        f'"ms":{chance.randrange(1_000):03d},"note":"{text[first : first + value_bytes]}'
    )
    return f'{line[: max(0, value_bytes - 2)]}"}}'.encode()[-value_bytes:]
