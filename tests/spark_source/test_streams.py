"""Streams on a real Spark and real brokers: every record once, over restarts and changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_raftlog.offsets import LAG, RESERVED_KEY, lag_of
from raftlog import Admin, NewTopic, Producer, TopicPartition
from raftlog.testing import Cluster
from tests.spark_source.queries import Query, places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Append = Callable[[str, int, int], None]
NewQuery = Callable[..., Query]


@pytest.fixture
def append(brokers: Cluster) -> Append:
    """``append(topic, partition, count)``: so many records more."""

    def more(topic: str, partition: int, count: int) -> None:
        with Producer(brokers.bootstrap) as producer:  # a new one knows of new partitions
            producer.send_many(topic, [b"v"] * count, partition=partition).result()

    return more


@pytest.fixture
def new_query(spark: SparkSession, brokers: Cluster, tmp_path: Path) -> NewQuery:
    """``new_query(**options)``: a query on the brokers, with a checkpoint of its own."""

    def make(**options: str) -> Query:
        return Query(
            spark,
            tmp_path / "checkpoint",
            **{"bootstrap.servers": brokers.bootstrap, "startingOffsets": "earliest"} | options,
        )

    return make


def test_available_now_drains_to_its_target_and_a_restart_finds_what_is_new(
    new_query: NewQuery, admin: Admin, append: Append, new_topic: Callable[..., str]
) -> None:
    first, group = new_topic(2), "group-of-the-stream"
    later = f"{first}-later"
    append(first, 0, 60)
    append(first, 1, 20)
    query = new_query(
        subscribePattern=f"^{first}", maxOffsetsPerTrigger="32", groupId=group, commitOffsets="true"
    )

    def grow(batch_id: int) -> None:
        append(first, 0, 10)
        if batch_id == 1:
            admin.add_partitions(first, 3)
            append(first, 2, 5)
            admin.create_topics([NewTopic(later)])
            append(later, 0, 7)

    query.drain(during=grow)
    assert query.batches[0] == []
    assert query.read() == places(first, 0, 0, 60) + places(first, 1, 0, 20)
    assert [len(batch) for batch in query.batches.values()] == [0, 32, 32, 16]
    assert [each["numInputRows"] for each in query.progress if each["numInputRows"]] == [32, 32, 16]
    assert query.batches[1] == places(first, 0, 0, 24) + places(first, 1, 0, 8), "in proportion"

    shown = query.progress[1]["sources"][0]["latestOffset"]
    assert (
        shown[RESERVED_KEY][LAG] == {first: sum(lag_of(query.progress[1]).values())} != {first: 0}
    )

    (described,) = admin.describe_groups([group])
    assert {(each.topic, each.partition): (each.offset, each.lag) for each in described.partitions
            } == {(first, 0): (60, 40), (first, 1): (20, 0)}  # fmt: skip

    query.drain(maxOffsetsPerTrigger="1000")
    assert query.read() == sorted(
        places(first, 0, 0, 100)
        + places(first, 1, 0, 20)
        + places(first, 2, 0, 5)
        + places(later, 0, 0, 7)
    )
    (described,) = admin.describe_groups([group])
    assert [each.lag for each in described.partitions] == [0, 0, 0, 0]


@pytest.mark.nightly
def test_a_batch_that_was_not_noted_down_is_repeated_exactly(
    new_query: NewQuery, append: Append, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    append(topic, 0, 10)
    query = new_query(subscribe=topic, startingOffsets="latest", minPartitions="3")
    query.drain()
    query.forget_commit(0)
    append(topic, 0, 5)
    query.drain()
    assert query.batches == {0: [], 1: places(topic, 0, 10, 15)}, "though latest is elsewhere now"

    planned = query.planned(1)
    query.forget_commit(1)
    append(topic, 0, 7)
    query.batches.clear()
    query.drain()
    assert query.batches == {1: places(topic, 0, 10, 15), 2: places(topic, 0, 15, 22)}
    assert query.planned(1) == planned


@pytest.mark.nightly
def test_an_idle_stream_makes_no_batches_and_a_restart_loses_nothing(
    new_query: NewQuery, append: Append, new_topic: Callable[..., str], spark: SparkSession
) -> None:
    topic = new_topic(12)  # "10" comes before "2", where text is not sorted by number
    append(topic, 11, 10)
    query = new_query(subscribe=topic, startingOffsets="latest")
    every_trigger = "spark.sql.streaming.noDataProgressEventInterval"
    spark.conf.set(every_trigger, "0")
    try:
        running = query.start({"processingTime": "0 seconds"})
        try:
            running.processAllAvailable()
            append(topic, 11, 3)
            running.processAllAvailable()
            seen = {each.timestamp for each in running.recentProgress}
            while len({each.timestamp for each in running.recentProgress} - seen) < 5:
                assert running.exception() is None
                running.processAllAvailable()
        finally:
            running.stop()
    finally:
        spark.conf.unset(every_trigger)
    assert query.numbers("offsets") == [0, 1]
    append(topic, 11, 2)
    query.drain()
    assert query.read() == places(topic, 11, 10, 15)


@pytest.mark.nightly
def test_records_deleted_under_a_stream_are_named_or_left_out(
    new_query: NewQuery, admin: Admin, append: Append, new_topic: Callable[..., str]
) -> None:
    from pyspark.errors import StreamingQueryException

    topic = new_topic()
    append(topic, 0, 100)
    query = new_query(subscribe=topic, maxOffsetsPerTrigger="20")

    def age(batch_id: int) -> None:
        if batch_id == 1:
            admin.delete_records({TopicPartition(topic, 0): 70})

    with pytest.raises(StreamingQueryException) as failed:
        query.drain(during=age)
    assert "DataLossError: data loss (aged out)" in str(failed.value)
    assert f"topic '{topic}' partition 0: requested offset" in str(failed.value)
    assert "deleted offsets 20 to 69" in str(failed.value)
    assert query.read() == places(topic, 0, 0, 20)

    query.drain(failOnDataLoss="false")
    assert query.read() == places(topic, 0, 0, 20) + places(topic, 0, 70, 100)
    assert query.batches[2] == places(topic, 0, 70, 90), "what is lost takes no room in a batch"

    admin.delete_topics([topic])
    admin.create_topics([NewTopic(topic)])
    append(topic, 0, 120)
    with pytest.raises(StreamingQueryException, match=r"data loss \(topic recreated\)"):
        query.drain()
