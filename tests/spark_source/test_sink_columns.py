"""The sink's columns: what is taken, and what is said of everything else, before any work."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_raftlog.routing import SinkColumns, sink_columns
from pyspark_raftlog.schema import read_schema
from raftlog.errors import InvalidRequestError

HEADERS = StructType().add("key", StringType()).add("value", BinaryType())


def test_columns_may_be_text_or_bytes_and_come_in_any_order_and_case() -> None:
    schema = (
        StructType()
        .add("Partition", IntegerType())
        .add("TIMESTAMP", TimestampType())
        .add("topic", StringType())
        .add("headers", ArrayType(HEADERS))
        .add("key", StringType())
        .add("Value", BinaryType())
    )
    assert sink_columns(schema, topic=None) == SinkColumns(
        value=5, key=4, headers=3, topic=2, partition=0, timestamp=1
    )
    assert sink_columns(schema, topic="clicks").topic is None, "the option goes before the column"
    assert sink_columns(StructType().add("value", StringType()), topic="t") == SinkColumns(value=0)


def with_value(name: str, data_type: DataType) -> StructType:
    return StructType().add("value", StringType()).add(name, data_type)


@pytest.mark.parametrize(
    ("schema", "topic", "noted"),
    [
        (StructType().add("key", StringType()), "t", r"no column 'value'.*to_json"),
        (
            StructType().add("value", StringType()),
            None,
            "no topic to write to: set the option topic, or add a column 'topic'",
        ),
        (
            StructType().add("value", LongType()),
            "t",
            r"'value' is bigint, where string or binary is needed. Cast it.*cast\(\"string\"\)",
        ),
        (StructType().add("value", HEADERS), "t", r"is struct<.*>, where.*to_json"),
        (with_value("key", DoubleType()), "t", "'key' is double"),
        (with_value("topic", IntegerType()), None, "'topic' is int, where string"),
        (with_value("topic", IntegerType()), "t", "'topic' is int, where string"),
        (with_value("partition", StringType()), "t", r"cast\(\"int\"\)"),
        (with_value("timestamp", DateType()), "t", "where timestamp is needed"),
        (with_value("timestamp", TimestampNTZType()), "t", "where timestamp is"),
        (with_value("headers", HEADERS), "t", "where array<struct<key:string,value"),
        (
            with_value(
                "headers",
                ArrayType(StructType().add("value", BinaryType()).add("key", StringType())),
            ),
            "t",
            "named key and value, in this order",
        ),
        (
            with_value("offset", LongType()),
            "t",
            r"'offset' is not a column of records.*\.select\('value'\)",
        ),
        (
            read_schema(),
            "t",
            r"'offset' is only read.*For INSERT INTO a table .* CREATE TABLE sink \(key string",
        ),
        (StructType().add("line", StringType()), "t", r"'line'.*to_json\(struct"),
        (with_value("VALUE", StringType()), "t", "two columns 'value'"),
    ],
)
def test_columns_that_cannot_be_written_are_refused(
    schema: StructType, topic: str | None, noted: str
) -> None:
    with pytest.raises(InvalidRequestError, match=noted):
        sink_columns(schema, topic=topic)
