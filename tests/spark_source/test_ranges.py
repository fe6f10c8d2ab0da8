"""``read_range``: exactly the records in a range, and errors for ranges that make no sense."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pyspark_raftlog import read_range
from pyspark_raftlog.offsets import Bound, Time, Word
from pyspark_raftlog.options import SourceOptions
from pyspark_raftlog.ranges import _texts, ms_at_or_after
from raftlog import Producer, limits
from raftlog.errors import InvalidRequestError
from raftlog.testing import Cluster
from tests.spark_source.fixtures import NewTopicFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Range = Callable[..., "DataFrame"]
MIDNIGHT = datetime(2024, 5, 1, tzinfo=UTC)
LATE = 7  # this record is half an hour behind the others of its partition


@pytest.fixture(scope="module")
def topic(brokers: Cluster, new_topic: NewTopicFunction) -> str:
    """Three partitions of 10 records, one hour apart from midnight on; the third is empty."""
    name = new_topic(3)
    first_ms = ms_at_or_after(MIDNIGHT)
    with Producer(brokers.bootstrap) as producer:
        for partition in (0, 1):
            for hour in range(10):
                at_ms = first_ms + (hour * 3_600_000 if hour != LATE else 5_400_000)
                value = f"{partition}/{hour}".encode()
                producer.send(name, value, partition=partition, timestamp_ms=at_ms)
        producer.flush()
    return name


@pytest.fixture
def ranged(spark: SparkSession, brokers: Cluster, topic: str) -> Range:
    def read(**given: Any) -> DataFrame:
        return read_range(spark, topic, bootstrap=brokers.bootstrap, **given)

    return read


def values(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.value).decode() for row in frame.collect())


def test_arguments_are_the_options_that_they_name() -> None:
    """Those of TLS and SASL are called as in Python; all others have dots."""
    given = {"sasl_username": "alice", "raftlog_client_id": "job", "failOnDataLoss": False}
    texts = _texts(given, "a:1") | {"subscribe": "t"}
    options = SourceOptions.parse(texts, streaming=False)
    assert dict(options.connection) == {"client_id": "job", "sasl_username": "alice"}
    assert not options.fail_on_data_loss


@pytest.mark.spark
def test_partitions_and_offsets(ranged: Range) -> None:
    assert len(values(ranged())) == 20
    assert values(ranged(partitions=1, offsets=(8, None))) == ["1/8", "1/9"]
    assert values(ranged(partitions=[0, 1], offsets=(None, 1))) == ["0/0", "1/0"]
    assert values(ranged(offsets={0: (3, 5), 1: (9, None)})) == ["0/3", "0/4", "1/9"]
    frame = ranged(partitions=[0], columns=["offset"], maxRecordsPerPartition=2)
    assert frame.columns == ["offset"]
    assert frame.rdd.getNumPartitions() == 5


@pytest.mark.spark
def test_times_are_exact(ranged: Range) -> None:
    """In any zone, with records out of order, and in partitions that have none so late."""
    cest = timezone(timedelta(hours=2))
    five = datetime(2024, 5, 1, 7, tzinfo=cest)
    frame = ranged(time=(five, MIDNIGHT + timedelta(hours=7)), columns=["value"])
    assert frame.columns == ["value"]
    assert values(frame) == ["0/5", "0/6", "1/5", "1/6"]
    assert values(ranged(time=(MIDNIGHT + timedelta(hours=9), None))) == ["0/9", "1/9"]
    end_ms = ms_at_or_after(MIDNIGHT + timedelta(hours=2))
    assert values(ranged(partitions=0, time=(None, end_ms))) == ["0/0", "0/1"]
    late = ranged(partitions=0, time=(None, end_ms), late_ms=6 * 3_600_000)
    assert values(late) == ["0/0", "0/1", "0/7"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"offsets": (1, 2)}, "Set partitions"),
        ({"offsets": {0: (1, 2)}, "time": (1, 2)}, "offsets or time, not both"),
        ({"time": (MIDNIGHT.replace(tzinfo=None), None)}, "pass a datetime with a time zone"),
        ({"time": (True, None)}, "True is not a time"),
        ({"time": (2, 1)}, "ends before it begins"),
        ({"time": (1, 2), "late_ms": -1}, "late_ms=-1 is negative"),
    ],
)
def test_ranges_that_make_no_sense(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_range(cast("SparkSession", None), "t", **given)  # it does not come so far


FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("time", "bounds"),
    [
        ((MIDNIGHT.replace(year=1900), -1), (Time(0), Time(0))),
        ((FIRST, LAST), (Time(0), Word.LATEST)),
        ((LAST, None), (Time(limits.TIMESTAMP_MS_MAX), Word.LATEST)),
    ],
)
def test_no_record_is_from_before_1970_or_from_after_9999(
    time: tuple[datetime, Any], bounds: tuple[Bound, Bound]
) -> None:
    given: dict[str, str] = {}
    frame = SimpleNamespace(where=lambda _condition: frame)
    reader = SimpleNamespace(
        format=lambda _name: reader,
        options=lambda **texts: given.update(texts) or SimpleNamespace(load=lambda: frame),
    )
    spark = cast("SparkSession", SimpleNamespace(read=reader))
    read_range(spark, "t", time=time, bootstrap="a:1")
    options = SourceOptions.parse(given, streaming=False)
    assert (options.starting, options.ending) == bounds


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC), 1_001),
        (datetime(1970, 1, 1, 0, 0, 1, 1_000, tzinfo=UTC), 1_001),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))), -3_600_000),
    ],
)
def test_times_are_rounded_up(time: datetime, expected: int) -> None:
    assert ms_at_or_after(time) == expected
