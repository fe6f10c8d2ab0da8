"""The format "raftlog" from a real Spark: every column of every record, and errors that say why."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import BinaryType, StructField, StructType

from pyspark_raftlog import DefaultSource, create_view, source
from pyspark_raftlog.reader import BatchReader
from pyspark_raftlog.schema import ALL_COLUMNS, read_schema
from pyspark_raftlog.source import RaftlogDataSource
from raftlog import Consumer, Producer, TopicPartition
from raftlog.errors import InvalidRequestError, UnsupportedFeatureError
from raftlog.testing import Cluster
from raftlog.testing.cluster import free_port
from tests.spark_source.fixtures import LoadFunction, NewTopicFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CODECS = ["none", "lz4", "zstd"]
SIZES = [1, 10, 10_000]  # of log batches
MIB = 1 << 20
NEW_YEAR_MS = 1_704_067_200_000  # 2024-01-01T00:00Z


def options(**given: str) -> dict[str, str]:
    return {"bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **given}


# -- without Spark


def test_the_schema_is_the_options() -> None:
    assert RaftlogDataSource.name() == "raftlog"
    assert RaftlogDataSource(options()).schema() == read_schema()
    assert RaftlogDataSource(options(includeHeaders="true")).schema() == ALL_COLUMNS
    chosen = RaftlogDataSource(options(columns="offset, Value")).schema()
    assert chosen.fieldNames() == ["offset", "value"]


def test_what_only_a_stream_or_only_a_batch_allows_has_a_schema_too() -> None:
    for allowed in ({"startingOffsets": "latest"}, {"endingOffsets": "latest"}):
        assert RaftlogDataSource(options(**allowed)).schema() == read_schema()
    with pytest.raises(InvalidRequestError, match="startingOffsets is latest"):
        RaftlogDataSource(options(startingOffsets="latest")).reader(read_schema())


def test_options_are_checked_before_anything_else() -> None:
    with pytest.raises(InvalidRequestError, match=r"bootstrap\.servers is missing"):
        RaftlogDataSource({"subscribe": "t"}).schema()
    with pytest.raises(InvalidRequestError, match="exactly one of the options subscribe"):
        RaftlogDataSource(options(assign='{"t":[0]}')).reader(read_schema())


@pytest.mark.parametrize("kind", [RaftlogDataSource, DefaultSource])
def test_a_secret_of_a_table_is_refused_and_one_of_load_is_not(kind: type[DataSource]) -> None:
    """For load() without a schema, Spark asks for it first. It pickles the source in between."""
    given = options(sasl_password="the secret", sasl_username="alice")
    schema = read_schema()
    for read in (kind(given).reader, kind(given).streamReader):
        with pytest.raises(InvalidRequestError, match="option sasl_password is a secret"):
            read(schema)
    asked = kind(given)
    asked.schema()
    assert isinstance(cloudpickle.loads(cloudpickle.dumps(asked)).reader(schema), BatchReader)


def test_without_pyarrow_every_read_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    source = RaftlogDataSource(options())
    for read in (source.schema, lambda: source.reader(ALL_COLUMNS)):
        with pytest.raises(UnsupportedFeatureError, match=r"pip install -e '\.\[spark\]'"):
            read()


def test_notices_go_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(
        RaftlogDataSource(options(maxOffsetsPerTrigger="5")).reader(read_schema()), BatchReader
    )
    assert "maxOffsetsPerTrigger" in caplog.text


@pytest.mark.integration
def test_notices_of_a_writer_go_to_the_log(
    brokers: Cluster,
    new_topic: NewTopicFunction,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source, "_warned", set())
    given = {"bootstrap.servers": brokers.bootstrap, "topic": new_topic(), "path": "somewhere"}
    schema = StructType([StructField("value", BinaryType())])
    RaftlogDataSource(given).writer(schema, overwrite=False)
    assert "path" in caplog.text
    caplog.clear()
    for _batch in range(3):
        RaftlogDataSource(given).streamWriter(schema, overwrite=False)
    assert caplog.text.count("path") == 1, "once for each query, not for each batch"


# -- every column of every record


def fill(brokers: Cluster, topic: str) -> None:
    """A partition for each codec: log batches of 1, 10 and 10,000 records, and what is odd."""
    for partition, codec in enumerate(CODECS):
        with Producer(
            brokers.bootstrap, compression=codec, linger_ms=1_000, batch_bytes_max=4 * MIB
        ) as producer:
            first = 0
            for size in SIZES:
                for number in range(first, first + size):
                    producer.send(
                        topic,
                        f"value {number} of {codec}".encode(),
                        key=b"key %d" % number,
                        partition=partition,
                        timestamp_ms=NEW_YEAR_MS + number,
                    )
                producer.flush()
                first += size
            headers = [("a", b"1"), ("a", None), ("", b"")]
            for key, value, extra in (
                (None, b"no key", []),
                (b"no value", None, headers),
                (b"", b"", []),
                (None, None, [("one", b"\x00\xff")]),
                (b"large", bytes(range(256)) * (MIB // 256), []),
            ):
                producer.send(topic, value, key=key, headers=extra, partition=partition)
            producer.flush()


def by_the_sdk(brokers: Cluster, topic: str) -> list[dict[str, Any]]:
    """All records of a topic, as Arrow's rows, read with the consumer."""
    found: list[dict[str, Any]] = []
    with Consumer(brokers.bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = [TopicPartition(topic, number) for number in range(len(CODECS))]
        consumer.assign(partitions)
        missing = sum(consumer.end_offsets(partitions).values())
        while len(found) < missing:
            found += [
                {
                    "key": record.key,
                    "value": record.value,
                    "topic": record.topic,
                    "partition": record.partition,
                    "offset": record.offset,
                    "timestamp": datetime.fromtimestamp(record.timestamp_ms / 1_000, UTC),
                    "timestampType": 0,
                    "headers": [{"key": k, "value": v} for k, v in record.headers] or None,
                }
                for record in consumer.poll(5_000)
            ]
    return sorted(found, key=where)


def where(row: dict[str, Any]) -> tuple[int, int]:
    return row["partition"], row["offset"]


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return found


@pytest.fixture(scope="module")
def topic(brokers: Cluster, new_topic: NewTopicFunction) -> str:
    name = new_topic(len(CODECS), max_message_bytes=str(8 * MIB))
    fill(brokers, name)
    return name


@pytest.mark.spark
def test_every_column_of_every_record_is_what_the_sdk_reads(
    brokers: Cluster, load: LoadFunction, topic: str
) -> None:
    expected = by_the_sdk(brokers, topic)
    assert len(expected) == len(CODECS) * (sum(SIZES) + 5)
    frame = load(topic, includeHeaders="true")
    assert frame.schema == ALL_COLUMNS
    assert sorted(rows(frame), key=where) == expected
    without = [{name: row[name] for name in row if name != "headers"} for row in expected]
    small = load(topic, batchMaxRows=333, batchMaxBytes=65_536, minPartitions=7)
    assert sorted(rows(small), key=where) == without


@contextmanager
def conf(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        assert before is not None
        spark.conf.set(name, before)


@pytest.mark.nightly
@pytest.mark.spark
def test_columns_are_chosen_by_option_and_by_schema_alike(load: LoadFunction, topic: str) -> None:
    by_option = load(topic, columns="offset,value,partition")
    by_schema = load(topic, schema="offset bigint, value binary, partition int")
    assert by_option.columns == by_schema.columns == ["offset", "value", "partition"]
    found = sorted(rows(by_option), key=where)
    assert found == sorted(rows(by_schema), key=where)
    assert found[0] == {"offset": 0, "value": b"value 0 of none", "partition": 0}
    assert load(topic, columns="timestampType").distinct().collect() == [(0,)]
    assert load(topic, columns="headers").where("headers is not null").count() == 2 * len(CODECS)
    strict = load(topic, schema="OFFSET bigint not null, Timestamp timestamp")
    assert strict.columns == ["OFFSET", "Timestamp"]
    assert strict.where("offset = 0").count() == len(CODECS)


@pytest.mark.spark
def test_timestamps_are_right_in_every_session_time_zone(
    spark: SparkSession, load: LoadFunction, topic: str
) -> None:
    for zone, shown in (
        ("America/New_York", "2023-12-31 19:00"),
        ("Asia/Tokyo", "2024-01-01 09:00"),
    ):
        with conf(spark, "spark.sql.session.timeZone", zone):
            frame = load(topic).where("partition = 0 and offset < 2")
            found = frame.selectExpr(
                "date_format(timestamp, 'yyyy-MM-dd HH:mm') as shown",
                "unix_millis(timestamp) as ms",
                f"timestamp >= '{shown}:00.001' as is_later",
            ).collect()
            assert sorted(map(tuple, found)) == [
                (shown, NEW_YEAR_MS, False),
                (shown, NEW_YEAR_MS + 1, True),
            ]


@pytest.mark.nightly
@pytest.mark.spark
def test_the_time_of_appending_is_told_from_the_time_of_creation(
    brokers: Cluster, load: LoadFunction, new_topic: NewTopicFunction
) -> None:
    name = new_topic(message_timestamp_type="LogAppendTime")
    with Producer(brokers.bootstrap) as producer:
        producer.send(name, b"x", timestamp_ms=1_000)
    row = load(name).first()
    assert row is not None
    assert row.timestampType == 1
    assert row.timestamp.year > 2000


@pytest.mark.nightly
@pytest.mark.spark
def test_large_arrow_types_change_nothing(
    spark: SparkSession, load: LoadFunction, topic: str
) -> None:
    with conf(spark, "spark.sql.execution.arrow.useLargeVarTypes", "true"):
        frame = load(topic, columns="topic,offset,partition,value").where("offset in (0, 10015)")
        found = sorted(rows(frame), key=where)
    assert [(row["topic"], row["offset"], len(row["value"])) for row in found] == [
        each
        for codec in CODECS
        for each in ((topic, 0, len(f"value 0 of {codec}")), (topic, 10_015, MIB))
    ]


@pytest.mark.spark
def test_a_created_view_is_planned_for_each_query(
    spark: SparkSession, brokers: Cluster, new_topic: NewTopicFunction
) -> None:
    """``CREATE TEMPORARY VIEW ... USING`` is planned once: that is what the manual warns of.

    Names, texts and values with quotes arrive as they are.
    """
    name = new_topic(2)
    spark.sql(
        f"CREATE TEMPORARY VIEW once USING raftlog OPTIONS ("
        f"'bootstrap.servers' '{brokers.bootstrap}', subscribe '{name}', columns 'partition')"
    )
    view = "it's `one`"
    given = {"bootstrap": brokers.bootstrap, "raftlog_client_id": "it's \\ one"}
    create_view(spark, view, name, **given)
    create_view(spark, "headers", name, columns=["value", "headers"], **given)
    counts = []
    with Producer(brokers.bootstrap) as producer:
        for _ in range(2):
            producer.send(name, b"v", headers=[("h", b"1")]).result(timeout=10)
            found = spark.sql("SELECT count(*) FROM `it's ``one```").collect()[0][0]
            counts.append((found, spark.sql("SELECT count(*) FROM once").collect()[0][0]))
    assert counts == [(1, 1), (2, 1)]
    rows = spark.sql("SELECT * FROM headers").collect()
    assert [(bytes(row.value), row.headers[0].key) for row in rows] == [(b"v", "h")] * 2
    with pytest.raises(InvalidRequestError, match="is a secret"):
        create_view(spark, "v", name, raftlog_sasl_password="x", **given)
    for each in (view, "headers", "once"):
        spark.catalog.dropTempView(each)
    for table in spark.catalog.listTables():
        spark.sql(f"DROP TABLE {table.name}")


@pytest.mark.spark
def test_tables_in_sql_take_their_options_where_they_are_used(
    spark: SparkSession, brokers: Cluster, new_topic: NewTopicFunction
) -> None:
    """A view of one sees new records; options of a table itself would be lost, so they are refused.

    Spark's catalog is the session's own, in memory.
    """
    name = new_topic(2)
    address = f"'bootstrap.servers'='{brokers.bootstrap}'"
    where = f"WITH ({address}, 'subscribe'='{name}')"
    spark.sql("CREATE TABLE topics USING raftlog COMMENT 'all of them'")
    spark.sql("CREATE TABLE sink (key string, value string) USING raftlog")
    spark.sql(f"CREATE VIEW clicks AS SELECT cast(value AS string) FROM topics {where}")
    for count in (1, 2):
        spark.sql(f"INSERT INTO sink WITH ({address}, 'topic'='{name}') VALUES ('k', 'v')")
        assert [row[0] for row in spark.sql("SELECT * FROM clicks").collect()] == ["v"] * count
    frame = spark.createDataFrame([("v",)], "value string").write.format("raftlog")
    frame.options(**{"bootstrap.servers": brokers.bootstrap, "topic": name}).saveAsTable("saved")
    assert spark.sql("SELECT count(*) FROM clicks").collect()[0][0] == 3
    spark.sql("CREATE TABLE fields (page string, offset long) USING raftlog")
    spark.sql(
        f"INSERT INTO sink WITH ({address}, 'topic'='{name}') VALUES ('', '{{\"page\": \"/\"}}')"
    )
    json = where.replace(")", ", 'value'='json', 'onError'='null')")
    pages = spark.sql(f"SELECT page FROM fields {json} WHERE page IS NOT NULL AND offset >= 0")
    assert [tuple(row) for row in pages.collect()] == [("/",)]
    spark.sql("DROP TABLE fields")
    given = f"OPTIONS ('bootstrap.servers' '{brokers.bootstrap}', subscribe '{name}')"
    for statement, noted in (
        (f"CREATE TABLE t USING raftlog {given}", "option bootstrap.servers of CREATE TABLE would"),
        (f"CREATE TABLE t USING raftlog {given} AS SELECT 'x' AS value", "INSERT INTO t WITH"),
        ("SELECT * FROM topics", r"no option is given.*SELECT \* FROM t WITH"),
    ):
        with pytest.raises(PySparkException, match=noted):
            spark.sql(statement).collect()
    assert not spark.catalog.tableExists("t")
    spark.sql("DROP VIEW clicks")
    for table in ("topics", "sink", "saved"):
        spark.sql(f"DROP TABLE {table}")


@pytest.mark.nightly
@pytest.mark.spark
def test_a_limit_leaves_a_read_in_the_middle(load: LoadFunction, topic: str) -> None:
    for _ in range(2):
        assert len(load(topic, batchMaxRows=10).limit(3).collect()) == 3
        assert len(load(topic).take(5)) == 5


# -- errors


@pytest.mark.spark
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"columns": "value,ofset"}, "names 'ofset', which is no column: there are key, value"),
        ({"startingOffsets": "{"}, "startingOffsets='{' is not valid"),
        ({"bogus": "1"}, "bogus"),
    ],
)
def test_load_refuses_what_options_cannot_mean(
    load: LoadFunction, given: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message):
        load("t", **given)


@pytest.mark.nightly
@pytest.mark.spark
def test_planning_refuses_what_the_cluster_does_not_have(
    brokers: Cluster, load: LoadFunction, new_topic: NewTopicFunction
) -> None:
    name = new_topic(2)
    inverted = {
        "assign": json.dumps({name: [0]}),
        "startingTimestamp": "5",
        "startingOffsetsByTimestampStrategy": "latest",
        "endingOffsets": json.dumps({name: {"0": 9}}),
    }
    for frame, message in (
        (load(f"{name}x"), f"there is no topic '{name}x'. Did you mean '{name}'"),
        (load(None, assign=json.dumps({name: [5]})), f"topic '{name}' has no partition 5"),
        (load(name, startingOffsets=json.dumps({name: {"0": 1}})), f"does not name {name}:1"),
        (load(None, **inverted), "endingOffsets: .*requested offsets 0 to 8"),
        (load(name, schema="value string"), "declares column 'value' as string: it is binary"),
        (load(name, startingTimestamp="5"), "no record at or after 5"),
    ):
        with pytest.raises(PySparkException, match=message):
            frame.collect()


@pytest.mark.nightly
@pytest.mark.spark
def test_brokers_that_cannot_be_reached_are_named(spark: SparkSession) -> None:
    address = f"127.0.0.1:{free_port()}"
    reader = spark.read.format("raftlog").options(
        **{
            "bootstrap.servers": address,
            "subscribe": "t",
            "raftlog.bootstrap.timeout.ms": "50",
            "numRetries": "1",
        }
    )
    with pytest.raises(
        PySparkException, match=f"bootstrap.servers: 2 attempts .*{address} .connection refused"
    ):
        reader.load().count()
