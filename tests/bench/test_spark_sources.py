"""Tests of raftlog.bench.spark_sources; as Spark calls them, without Spark."""

from __future__ import annotations

import zlib

import pyarrow as pa
import pytest

from pyspark_raftlog.schema import arrow_schema, read_schema
from raftlog.bench.spark_sources import AsRows, Drain, DrainWriter, FromMemory, values_of


@pytest.mark.parametrize("records", [1, 10, 11, 40])
def test_memory_gives_what_was_asked_for_in_batches_of_one_size(records: int) -> None:
    options = {"records": records, "tasks": 2, "batchrows": 5, "valuebytes": 100}
    source = FromMemory({name: str(number) for name, number in options.items()})
    reader = source.reader(source.schema())
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert {batch.num_rows for batch in batches} == {5}
    assert records <= sum(batch.num_rows for batch in batches) < records + 2 * 5


def test_memory_gives_the_columns_of_the_real_source() -> None:
    source = FromMemory({"records": "3", "tasks": "1", "batchrows": "3", "valuebytes": "20"})
    assert source.schema() == AsRows({}).schema() == read_schema()
    reader = source.reader(source.schema())
    (batch,) = reader.read(reader.partitions()[0])
    assert batch.schema == arrow_schema(read_schema())
    assert {len(value) for value in batch.column("value").to_pylist()} == {20}


def test_the_drain_counts_what_it_drops() -> None:
    batches = [pa.record_batch({"value": [b"a", b"b"]}), pa.record_batch({"value": [b"c"]})]
    writer = Drain({}).writer(read_schema(), False)
    assert isinstance(writer, DrainWriter)
    assert writer.write(iter(batches)).rows == 3


@pytest.mark.parametrize("size", [1, 2, 3, 60, 100, 1_000])
def test_values_are_of_the_size_asked_for(size: int) -> None:
    assert {len(value) for value in values_of(50, size)} == {size}


def test_values_differ_and_are_the_same_every_time() -> None:
    values = values_of(1_000, 100)
    assert len(set(values)) == 1_000
    assert values == values_of(1_000, 100)


def test_values_compress_as_lines_of_a_log_do() -> None:
    joined = b"".join(values_of(5_000, 100))
    assert 2 < len(joined) / len(zlib.compress(joined)) < 6
