"""Filters that Spark hands over: what is left out is never more than what they take away."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from raftlog import Producer, TopicPartition
from raftlog.spark_source.batch_reader import BatchReader
from raftlog.spark_source.planning import PartitionRange
from raftlog.spark_source.pushdown import Pruning, PushdownReader, is_pushing_down, pruning_of
from raftlog.spark_source.schema import read_schema
from raftlog.spark_source.source import RaftlogDataSource
from raftlog.testing import Cluster
from tests.spark_source.fixtures import LoadFunction, NewTopicFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NO_ZONE = datetime(2020, 1, 1, tzinfo=UTC).replace(tzinfo=None)
RANGES = [
    PartitionRange("a", "a-id", 0, 10, 20),
    PartitionRange("a", "a-id", 1, 0, 5),
    PartitionRange("b", "b-id", 0, 0, 40),
]
WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
CONF = "spark.sql.python.filterPushdown.enabled"


def time(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def timestamp_ms(offset: int) -> int:
    """Not in order: every second record is three behind."""
    return 10 * (offset - 3 * (offset % 2))


def first_at(times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
    """The first record at or after a time, over all offsets that there might be."""
    return {
        tp: next((o for o in range(100) if timestamp_ms(o) >= at), None) for tp, at in times.items()
    }


def left(*filters: Filter) -> list[tuple[str, int, int, int]]:
    found = pruning_of(filters).narrowed(RANGES, first_at)
    return [(each.topic, each.partition, each.start, each.end) for each in found]


ALL = [("a", 0, 10, 20), ("a", 1, 0, 5), ("b", 0, 0, 40)]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], ALL),
        ([EqualTo(("topic",), "a"), EqualTo(("partition",), 1)], [("a", 1, 0, 5)]),
        ([In(("TOPIC",), ("b", "c", None))], [("b", 0, 0, 40)]),
        ([In(("topic",), ("c",))], []),
        ([EqualTo(("topic",), "a"), EqualTo(("topic",), "b")], []),
        ([GreaterThan(("offset",), 14), LessThanOrEqual(("offset",), 16)],
         [("a", 0, 15, 17), ("b", 0, 15, 17)]),
        ([GreaterThanOrEqual(("offset",), 14), LessThan(("offset",), 16)],
         [("a", 0, 14, 16), ("b", 0, 14, 16)]),
        ([EqualTo(("offset",), 4)], [("a", 1, 4, 5), ("b", 0, 4, 5)]),
        ([In(("offset",), (12, 3))], [("a", 0, 10, 13), ("a", 1, 3, 5), ("b", 0, 3, 13)]),
        ([In(("offset",), ())], []),
        ([EqualTo(("offset",), -1)], []),
        # The first record that is not before 150 ms is at offset 16: 15 is 30 ms late.
        ([GreaterThan(("timestamp",), time(145_001))], [("a", 0, 16, 20), ("b", 0, 16, 40)]),
        ([EqualTo(("timestamp",), time(160_000))], [("a", 0, 16, 20), ("b", 0, 16, 40)]),
        ([GreaterThan(("timestamp",), time(10_000_000))], []),
        ([GreaterThan(("timestamp",), time(-5))], ALL),
        ([GreaterThan(("timestamp",), datetime.max.replace(tzinfo=UTC))], []),
        # Nothing follows from these.
        ([LessThan(("timestamp",), time(0))], ALL),
        ([EqualTo(("value",), b"x"), Not(EqualTo(("topic",), "a"))], ALL),
        ([IsNotNull(("offset",)), StringStartsWith(("topic",), "a")], ALL),
        ([EqualTo(("headers", "offset"), 1), EqualTo(("offset",), "7")], ALL),
        ([GreaterThan(("timestamp",), NO_ZONE), GreaterThan(("offset",), 1.5)], ALL),
    ],
)  # fmt: skip
def test_what_filters_leave(
    filters: list[Filter], expected: list[tuple[str, int, int, int]]
) -> None:
    assert left(*filters) == expected


def holds(condition: Filter, row: Mapping[str, object]) -> bool:
    """As Spark has it."""
    value = row[condition.attribute[0]]  # type: ignore[attr-defined]
    given = condition.value  # type: ignore[attr-defined]
    if isinstance(condition, EqualTo):
        return bool(value == given)
    if isinstance(condition, In):
        return value in given
    if isinstance(condition, GreaterThan):
        return bool(value > given)
    if isinstance(condition, GreaterThanOrEqual):
        return bool(value >= given)
    if isinstance(condition, LessThan):
        return bool(value < given)
    assert isinstance(condition, LessThanOrEqual)
    return bool(value <= given)


VALUES = {
    "topic": st.sampled_from(["a", "b", "c"]),
    "partition": st.integers(-1, 2),
    "offset": st.integers(-2, 45),
    "timestamp": st.integers(-2_000, 460_000).map(time),
}
KINDS = [EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]


def conditions(column: str) -> st.SearchStrategy[Filter]:
    one = st.builds(lambda kind, v: kind((column,), v), st.sampled_from(KINDS), VALUES[column])
    some = st.lists(VALUES[column], max_size=3).map(lambda values: In((column,), tuple(values)))
    return one | some


@given(st.lists(st.sampled_from(sorted(VALUES)).flatmap(conditions), max_size=4))
def test_no_record_that_the_filters_let_through_is_left_out(filters: list[Filter]) -> None:
    kept = left(*filters)
    for each in RANGES:
        for offset in range(each.start, each.end):
            row = {
                "topic": each.topic,
                "partition": each.partition,
                "offset": offset,
                "timestamp": time(timestamp_ms(offset) * 1_000),
            }
            if all(holds(condition, row) for condition in filters):
                assert any(
                    (topic, partition) == (each.topic, each.partition) and start <= offset < end
                    for topic, partition, start, end in kept
                )


def test_without_a_time_nobody_is_asked() -> None:
    def nobody(times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        raise AssertionError(times)

    assert len(pruning_of([GreaterThan(("offset",), 3)]).narrowed(RANGES, nobody)) == 3
    late = pruning_of([EqualTo(("topic",), "c"), GreaterThan(("timestamp",), time(1))])
    assert late.narrowed(RANGES, nobody) == []


# -- the reader


def test_only_the_worker_that_pushes_filters_gets_a_reader_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
    wanted, plain = (
        RaftlogDataSource({**options, "filterPushdown": "true"}),
        RaftlogDataSource(options),
    )
    assert not is_pushing_down()
    assert type(wanted.reader(read_schema())) is BatchReader
    assert not hasattr(BatchReader, "pushFilters") or (
        BatchReader.pushFilters is BatchReader.__mro__[1].pushFilters  # type: ignore[attr-defined]
    ), "to define it at all breaks every read while Spark's own setting is off"
    monkeypatch.setitem(sys.modules, WORKER, ModuleType(WORKER))
    assert is_pushing_down()
    assert type(plain.reader(read_schema())) is BatchReader
    assert type(wanted.reader(read_schema())) is PushdownReader


def test_every_filter_goes_back_to_spark(caplog: pytest.LogCaptureFixture) -> None:
    source = RaftlogDataSource({"bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
    batch = source.reader(read_schema())
    assert isinstance(batch, BatchReader)
    reader = PushdownReader(batch.options, read_schema())
    harmless: list[Filter] = [EqualTo(("value",), b"x")]
    assert list(reader.pushFilters(harmless)) == harmless
    assert not caplog.records
    filters: list[Filter] = [EqualTo(("topic",), "t"), GreaterThan(("offset",), 3)]
    assert [id(each) for each in reader.pushFilters(filters)] == [*map(id, filters)]
    assert "Scan it once" in caplog.text
    assert Pruning() == pruning_of(harmless)


@pytest.fixture(scope="module")
def topic(brokers: Cluster, new_topic: NewTopicFunction) -> str:
    """Two partitions of 10 records, one second apart from 1970 on."""
    name = new_topic(2)
    with Producer(brokers.bootstrap) as producer:
        for number in range(20):
            producer.send(name, b"x", partition=number % 2, timestamp_ms=number // 2 * 1_000)
        producer.flush()
    return name


def positions(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.collect())


@pytest.mark.nightly
@pytest.mark.spark
def test_with_sparks_own_setting_off_nothing_is_pushed_and_nothing_breaks(
    spark: SparkSession, load: LoadFunction, topic: str
) -> None:
    assert spark.conf.get(CONF) == "false"
    frame = load(topic, filterPushdown="true")
    assert positions(frame.where("partition = 1 and offset >= 8")) == [(1, 8), (1, 9)]
    assert frame.count() == 20


@pytest.mark.nightly
@pytest.mark.spark
def test_filters_prune_what_is_read(spark: SparkSession, load: LoadFunction, topic: str) -> None:
    spark.conf.set(CONF, "true")
    try:
        for condition, tasks, expected in (
            ("partition = 1 and offset >= 8", 1, [(1, 8), (1, 9)]),
            ("timestamp >= timestamp_millis(8500)", 2, [(0, 9), (1, 9)]),
            ("offset in (3, 5)", 2, [(p, o) for p in (0, 1) for o in (3, 5)]),
            ("topic = 'another'", 1, []),  # Spark makes one task of none
        ):
            frame = load(topic, filterPushdown="true").where(condition)
            assert frame.rdd.getNumPartitions() == tasks, condition
            assert positions(frame) == expected
        assert load(topic).where("partition = 1").rdd.getNumPartitions() == 2, "not by default"
    finally:
        spark.conf.unset(CONF)


@pytest.mark.spark
@pytest.mark.xfail(strict=True, reason="Spark 4.3.0 keeps one scan's filters for all of a load()")
def test_one_load_can_be_scanned_with_different_filters(
    spark: SparkSession, load: LoadFunction, topic: str
) -> None:
    """When this passes, filters can be pushed by default."""
    spark.conf.set(CONF, "true")
    try:
        frame = load(topic, filterPushdown="true")
        one, other = frame.where("partition = 0"), frame.where("partition = 1")
        assert one.union(other).count() == 20
    finally:
        spark.conf.unset(CONF)
