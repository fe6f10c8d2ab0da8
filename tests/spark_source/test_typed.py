"""Reads with value=typed: fields of values that have the ID of a schema, as columns."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from pyspark_raftlog import RaftlogDataSource, create_view
from pyspark_raftlog.schema import arrow_schema
from pyspark_raftlog.typed import check_typed_schema, typed_schema
from raftlog import Admin, Producer
from raftlog.errors import (
    DeserializationError,
    InvalidRequestError,
    SchemaError,
    UnsupportedFeatureError,
)
from raftlog.registry.formats import AVRO, JSON, parse
from raftlog.registry.values import encoder_of, with_id
from raftlog.testing import Cluster
from tests.spark_source.fixtures import LoadFunction, NewTopicFunction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
NEW = {**OLD, "fields": [
    {"name": "a", "type": "long"},
    {"name": "offset", "type": ["null", "string"], "default": None},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
]}  # fmt: skip
WIDE = {"type": "record", "name": "Wide", "fields": [
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                               "scale": 2}},
    {"name": "sides", "type": {"type": "map", "values": "int"}},
    {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 2}},
    {"name": "points", "type": {"type": "array", "items": {
        "type": "record", "name": "Point", "fields": [
            {"name": "x", "type": "double"},
            {"name": "at", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        ]}}},
    {"name": "daily", "type": {"type": "int", "logicalType": "time-millis"}},
    {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
    {"name": "union", "type": ["int", "string"]},
]}  # fmt: skip


class Registry:
    """Registers schemas of topics, and sends values with their IDs."""

    def __init__(self, brokers: Cluster, admin: Admin) -> None:
        self.bootstrap = brokers.bootstrap
        self.admin = admin

    def put(self, topic: str, schema: Any, kind: str = AVRO) -> int:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = {"schema": text, "schemaType": kind}
        path = f"/subjects/{topic}-value/versions"
        found: int = self.admin.call_schema_registry("POST", path, body)["id"]
        return found

    def send(self, topic: str, *values: bytes | None) -> None:
        with Producer(self.bootstrap) as producer:
            producer.send_many(topic, list(values), partition=0).result(timeout=10)


@pytest.fixture
def registry(brokers: Cluster, admin: Admin) -> Registry:
    return Registry(brokers, admin)


def avro(schema: Any, value: Any, schema_id: int) -> bytes:
    return with_id(schema_id, encoder_of(parse(AVRO, json.dumps(schema)))(value))


def read(
    registry: Registry, topic: str, *, given: StructType | None = None, **options: str
) -> list[dict[str, Any]]:
    """Plan and read a topic as Spark would, without Spark."""
    texts = {"bootstrap.servers": registry.bootstrap, "subscribe": topic, "value": "typed"}
    source = RaftlogDataSource(texts | options)
    schema = source.schema() if given is None else given
    assert isinstance(schema, StructType)
    reader = source.reader(schema)
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            assert isinstance(batch, pa.RecordBatch)
            assert batch.schema == arrow_schema(schema)
            rows += batch.to_pylist()
    return rows


# -- without brokers


def test_fields_take_the_place_of_the_value() -> None:
    fields = pa.schema([("page", pa.string()), ("Offset", pa.int32()), ("t", pa.decimal256(40))])
    with pytest.raises(UnsupportedFeatureError, match=r"'t', which is decimal256\(40, 0\). Name"):
        typed_schema(fields, None, include_headers=False)
    found = typed_schema(fields.remove(2), None, include_headers=False)
    assert found.simpleString() == (
        "struct<key:binary,page:string,value_Offset:int,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int>"
    )
    chosen = typed_schema(fields, ["headers", "value_offset", "KEY"], include_headers=False)
    assert chosen.fieldNames() == ["headers", "value_Offset", "key"]
    with pytest.raises(InvalidRequestError, match="'value', which is no column: there are key, p"):
        typed_schema(fields, ["value"], include_headers=False)
    twins = pa.schema([("Name", pa.int32()), ("name", pa.string())])
    for name in twins.names:
        found = typed_schema(twins, [name], include_headers=False)
        assert (found.fieldNames(), found[0].dataType.simpleString()) == (
            [name],
            {"Name": "int", "name": "string"}[name],
        )


def test_a_schema_of_the_user_is_compared_with_that_of_the_registry() -> None:
    fields = pa.schema([("page", pa.string()), ("ms", pa.int32())])
    given = StructType().add("offset", LongType()).add("page", StringType())
    assert check_typed_schema(given, fields, None) is given
    with pytest.raises(InvalidRequestError, match="'ms' as bigint: it is int in the registry"):
        check_typed_schema(StructType().add("ms", LongType()), fields, None)
    with pytest.raises(
        InvalidRequestError, match=r"'user', which is no field .* there are page, ms"
    ):
        check_typed_schema(StructType().add("user", LongType()), fields, None)


@pytest.mark.parametrize(
    "selected", [{"subscribe": "a,b"}, {"subscribePattern": "a"}, {"assign": '{"a":[0],"b":[0]}'}]
)
def test_a_read_of_several_topics_is_refused(selected: dict[str, str]) -> None:
    source = RaftlogDataSource({"bootstrap.servers": "a:1", "value": "typed", **selected})
    with pytest.raises(InvalidRequestError, match="value=typed reads one topic"):
        source.schema()


# -- with brokers


@pytest.mark.spark
def test_values_of_all_versions_have_the_columns_of_the_latest(
    registry: Registry, new_topic: NewTopicFunction
) -> None:
    topic = new_topic()
    with pytest.raises(SchemaError, match=f"no schema for the values of {topic} .*Register it as"):
        read(registry, topic)
    old = registry.put(topic, OLD)
    registry.send(topic, avro(OLD, {"a": 1}, old), None)
    new = registry.put(topic, NEW)
    registry.send(topic, avro(NEW, {"a": 2, "offset": "x", "at": 1_500}, new))
    found = read(registry, topic, columns="offset,a,value_offset,at")
    assert [(row["offset"], row["a"], row["value_offset"]) for row in found] == [
        (0, 1, None), (1, None, None), (2, 2, "x")
    ]  # fmt: skip
    assert [row["at"] and row["at"].timestamp() for row in found] == [0, None, 1.5]
    given = StructType().add("a", LongType())
    assert read(registry, topic, given=given) == [{"a": 1}, {"a": None}, {"a": 2}]
    registry.send(topic, b"no schema", avro(NEW, {"a": 3, "offset": None, "at": 0}, new))
    with pytest.raises(DeserializationError, match=r"offset 3 is not a value with a schema"):
        read(registry, topic)
    found = read(registry, topic, onError="null", startingOffsets=json.dumps({topic: {"0": 3}}))
    assert [row["a"] for row in found] == [None, 3]


@pytest.mark.spark
def test_json_is_read_and_protobuf_is_refused(
    registry: Registry, new_topic: NewTopicFunction
) -> None:
    topic, other = new_topic(), new_topic()
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "any": {}}}
    key = registry.put(topic, schema, JSON)
    registry.send(topic, with_id(key, b'{"n": 1, "any": {"x": 1}}'))
    assert read(registry, topic, columns="n,any") == [{"n": 1, "any": '{"x": 1}'}]
    registry.put(other, 'syntax = "proto3"; message M { int32 n = 1; }', "PROTOBUF")
    with pytest.raises(UnsupportedFeatureError, match="reads Avro and JSON, and the schema is"):
        read(registry, other)


@pytest.mark.spark
def test_spark_reads_typed_values_also_in_a_view(
    spark: SparkSession,
    brokers: Cluster,
    registry: Registry,
    load: LoadFunction,
    new_topic: NewTopicFunction,
) -> None:
    topic = new_topic()
    key = registry.put(topic, WIDE)
    wide = {"price": Decimal("1.25"), "sides": {"n": 1}, "code": b"ab",
            "points": [{"x": 0.5, "at": 1_000}], "daily": 5, "clock": 7,
            "union": "x"}  # fmt: skip
    registry.send(topic, avro(WIDE, wide, key))
    frame = load(topic, value="typed", columns="price,sides,code,points,daily,clock,union")
    row = frame.first()
    assert row is not None
    assert (row.price, row.sides, bytes(row.code)) == (Decimal("1.25"), {"n": 1}, b"ab")
    assert (row.points[0].x, row.points[0].at.isoformat()) == (0.5, "1970-01-01T00:00:01")
    assert (row.daily.microsecond, row.clock.microsecond, row.union) == (5_000, 7, '"x"')
    create_view(spark, "wide", topic, bootstrap=brokers.bootstrap, value="typed", columns=["price"])
    for count in (1, 2):
        found = spark.sql("SELECT sum(price), count(*) FROM wide").collect()
        assert found[0][0] == count * Decimal("1.25")
        registry.send(topic, avro(WIDE, wide, key))
    spark.catalog.dropTempView("wide")
    for table in spark.catalog.listTables():
        spark.sql(f"DROP TABLE {table.name}")
