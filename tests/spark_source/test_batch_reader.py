"""A batch read: what it consists of, that it is fixed, and that it is exact whatever dies."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_raftlog.options import SourceOptions
from pyspark_raftlog.planning import DataLossError, LossKind, PartitionRange
from pyspark_raftlog.reader import BatchReader, plan_ranges
from pyspark_raftlog.schema import read_schema
from pyspark_raftlog.source import RaftlogDataSource
from raftlog import Admin, Producer, TopicPartition
from raftlog.errors import InvalidRequestError
from raftlog.testing import Cluster
from tests.spark_source.fakes import FakeAdmin, FakePartition, catalog_of
from tests.spark_source.fixtures import LoadFunction, NewTopicFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def plan(**given: str) -> list[tuple[str, int, int, int]]:
    """Of ``a:0``, which has 5 to 9, ``a:1``, which has none, and ``b:0``, which has 2 to 29."""
    admin = FakeAdmin(
        {"a": [FakePartition(5, 10), FakePartition(4, 4)], "b": [FakePartition(2, 30)]}
    )
    options = SourceOptions.parse({"bootstrap.servers": "127.0.0.1:1", **given}, streaming=False)
    found = plan_ranges(catalog_of(admin), options)
    assert all(each.topic_id == f"{each.topic}-id" for each in found)
    return [(each.topic, each.partition, each.start, each.end) for each in found]


# -- planning


def test_it_is_all_that_there_is_without_what_is_empty() -> None:
    assert plan(subscribe="a,b") == [("a", 0, 5, 10), ("b", 0, 2, 30)]
    assert plan(subscribePattern="c") == []


def test_exact_ranges() -> None:
    found = plan(
        assign='{"a":[0],"b":[0]}',
        startingOffsets='{"a":{"0":7},"b":{"0":29}}',
        endingOffsets='{"a":{"0":9},"b":{"0":-1}}',
    )
    assert found == [("a", 0, 7, 9), ("b", 0, 29, 30)]
    assert plan(assign='{"b":[0]}', startingTimestamp="41", endingTimestamp="61") == [
        ("b", 0, 5, 7)
    ]
    assert plan(assign='{"b":[0]}', startingOffsets='{"b":{"0":30}}') == []


def test_an_end_before_the_start_names_the_partition_and_both_options() -> None:
    with pytest.raises(
        InvalidRequestError,
        match=r"topic 'b' partition 0: start offset 20 \(startingOffsets\), end "
        r"offset 5 \(endingTimestamp\): the end is before the start",
    ):
        plan(assign='{"b":[0]}', startingOffsets='{"b":{"0":20}}', endingTimestamp="41")


@pytest.mark.parametrize(
    ("given", "kind", "message", "left"),
    [
        (
            {"startingOffsets": '{"b":{"0":1}}'},
            LossKind.AGED_OUT,
            "requested offsets 1 to 29",
            [(2, 30)],
        ),
        (
            {"endingOffsets": '{"b":{"0":1}}'},
            LossKind.AGED_OUT,
            "requested offsets 0, but its log has offsets 2 to 29",
            [],
        ),
        (
            {"startingTimestamp": "3", "endingOffsets": '{"b":{"0":1}}'},
            LossKind.AGED_OUT,
            "requested offsets 0, but its log has offsets 2 to 29",
            [],
        ),
        (
            {"endingOffsets": '{"b":{"0":31}}'},
            LossKind.BEYOND_END,
            "endingOffsets: .*'b'",
            [(2, 30)],
        ),
        (
            {"startingOffsets": '{"b":{"0":31}}'},
            LossKind.BEYOND_END,
            "startingOffsets: topic 'b' partition 0 from offset 31, but .* offset is 30",
            [],
        ),
    ],
)
def test_what_is_not_there_is_a_loss(
    given: dict[str, str],
    kind: LossKind,
    message: str,
    left: list[tuple[int, int]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(DataLossError, match=message) as raised:
        plan(subscribe="b", **given)
    assert raised.value.kind is kind
    with caplog.at_level(logging.WARNING):
        found = plan(subscribe="b", failOnDataLoss="false", **given)
    assert [(start, end) for *_, start, end in found] == left
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_what_travels_to_the_executors_can_be_pickled() -> None:
    given = {"bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "includeHeaders": "true"}
    options = SourceOptions.parse(given, streaming=False)
    sent = (
        RaftlogDataSource(given),
        BatchReader(options, read_schema()),
        InputPartition(PartitionRange("t", "id", 0, 1, 2)),
    )
    pickler: Any = CPickleSerializer()
    source, reader, partition = pickler.loads(pickler.dumps(sent))
    assert source.options == given
    assert vars(reader) == vars(sent[1])
    assert partition.value == sent[2].value


# -- on a real Spark


def fill(brokers: Cluster, topic: str, count: int, partitions: int = 1, first: int = 0) -> None:
    """Records whose values count from ``first``, dealt out to the partitions one by one."""
    with Producer(brokers.bootstrap) as producer:
        for partition in range(partitions):
            numbers = range(first + partition, first + count, partitions)
            producer.send_many(topic, [b"%d" % n for n in numbers], partition=partition)
        producer.flush()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


@pytest.mark.spark
def test_one_load_is_one_snapshot(
    brokers: Cluster, load: LoadFunction, new_topic: NewTopicFunction
) -> None:
    topic = new_topic(2)
    fill(brokers, topic, 10, 2)
    frame = load(topic)
    assert frame.count() == 10
    fill(brokers, topic, 5, 2, first=10)
    assert frame.count() == 10
    assert frame.where("value is not null").count() == 10
    assert numbers(load(topic)) == [*range(15)]


@pytest.mark.nightly
@pytest.mark.spark
def test_nothing_to_read_is_an_empty_frame_with_its_columns(
    brokers: Cluster, load: LoadFunction, new_topic: NewTopicFunction
) -> None:
    empty, filled = new_topic(), new_topic()
    fill(brokers, filled, 3)
    nothing = {
        "assign": json.dumps({filled: [0]}),
        "startingOffsets": json.dumps({filled: {"0": 3}}),
    }
    for frame in (
        load(empty),
        load(None, subscribePattern="no such topic"),
        load(None, **nothing),
    ):
        assert frame.columns == read_schema().fieldNames()
        assert frame.collect() == []


@pytest.mark.spark
def test_a_partition_is_split_as_asked_for_and_stays_whole(
    brokers: Cluster, load: LoadFunction, new_topic: NewTopicFunction
) -> None:
    topic = new_topic(2)
    fill(brokers, topic, 1_000, 2)
    for options, tasks in (
        ({}, 2),
        ({"minPartitions": 5}, 5),
        ({"maxRecordsPerPartition": 120}, 10),
        ({"minPartitions": 3, "maxRecordsPerPartition": 499}, 4),
    ):
        frame = load(topic, **options)
        assert frame.rdd.getNumPartitions() == tasks
        assert numbers(frame) == [*range(1_000)]
    # A range begins and ends in the middle of a log batch.
    bounds = {
        "startingOffsets": json.dumps({topic: {"0": 7, "1": 499}}),
        "endingOffsets": json.dumps({topic: {"0": 13, "1": -1}}),
    }
    frame = load(topic, batchMaxRows=4, **bounds)
    assert numbers(frame) == [*range(14, 26, 2), 999]


@pytest.mark.nightly
@pytest.mark.spark
def test_what_retention_took_fails_or_is_left_out(
    brokers: Cluster, admin: Admin, load: LoadFunction, new_topic: NewTopicFunction
) -> None:
    topic = new_topic()
    fill(brokers, topic, 10)
    planned = load(topic)
    assert planned.count() == 10
    forgiving = load(topic, failOnDataLoss="false")
    assert forgiving.count() == 10
    admin.delete_records({TopicPartition(topic, 0): 4})
    start = json.dumps({topic: {"0": 2}})
    with pytest.raises(
        AnalysisException, match=f"data loss .aged out.: topic '{topic}' partition 0"
    ):
        load(topic, startingOffsets=start).count()
    assert numbers(load(topic, startingOffsets=start, failOnDataLoss="false")) == [*range(4, 10)]
    # It was all there when these were planned.
    with pytest.raises(
        PySparkException, match=f"data loss .aged out.: topic '{topic}' partition 0"
    ):
        planned.count()
    assert numbers(forgiving) == [*range(4, 10)]


@pytest.mark.nightly
@pytest.mark.spark
def test_a_topic_that_was_made_anew_is_not_mistaken_for_the_old_one(
    brokers: Cluster, admin: Admin, load: LoadFunction, new_topic: NewTopicFunction
) -> None:
    topic = new_topic()
    fill(brokers, topic, 3)
    planned = load(topic)
    assert planned.count() == 3
    admin.delete_topics([topic])
    new_topic(name=topic)
    fill(brokers, topic, 5)
    with pytest.raises(PySparkException, match=r"data loss .topic recreated.: .*recreated since"):
        planned.count()
    assert load(topic).count() == 5


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.parametrize("dying", ["the reader", "a function behind it"])
def test_a_worker_that_dies_in_mid_read_changes_nothing(
    spark: SparkSession,
    brokers: Cluster,
    new_topic: NewTopicFunction,
    dying: str,
) -> None:
    topic = new_topic(2)
    fill(brokers, topic, 1_000, 2)

    def dies(where: str, given: Iterable[Any]) -> Iterator[Any]:
        """Ends the process at the third of ``given``, but not the second time."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, each in enumerate(given):
            if where == dying and number == 2 and context.attemptNumber() == 0:
                os._exit(1)
            yield each

    class MortalReader(BatchReader):
        def read(self, partition: InputPartition) -> Iterator[Any]:
            return dies("the reader", super().read(partition))

    class Mortal(RaftlogDataSource):  # a class of a function travels by value
        @classmethod
        def name(cls) -> str:
            return "mortal"

        def reader(self, schema: StructType) -> DataSourceReader:
            return MortalReader(SourceOptions.parse(self.options, streaming=False), schema)

    def behind(rows: Iterable[Any]) -> Iterable[Any]:
        return dies("a function behind it", rows)

    spark.dataSource.register(Mortal)
    options = {"bootstrap.servers": brokers.bootstrap, "subscribe": topic, "batchMaxRows": "50"}
    frame = spark.read.format("mortal").options(**options).load()
    rows = frame.rdd.mapPartitions(behind).collect()
    assert sorted(int(row.value) for row in rows) == [*range(1_000)]
