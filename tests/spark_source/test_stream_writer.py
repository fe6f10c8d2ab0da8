"""Streams into topics: each batch once, whatever Spark repeats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from pyspark_raftlog import writer as stream_writer
from pyspark_raftlog.options import SinkOptions
from pyspark_raftlog.writer import (
    SinkColumns,
    StreamWriter,
    TaskReport,
    WritePlan,
    plan_write,
    producer_of,
    write_rows,
)
from raftlog.errors import InvalidRequestError, ProducerFencedError, UnsupportedFeatureError
from raftlog.testing import Cluster
from tests.spark_source.fixtures import NewTopicFunction
from tests.spark_source.sinks import FailingSink, stored_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = StructType().add("value", BinaryType()).add("topic", "string")


def writer() -> StreamWriter:
    options = SinkOptions.parse({"bootstrap.servers": "127.0.0.1:1"}, streaming=True)
    with pytest.MonkeyPatch.context() as patches:
        plan = WritePlan(options, SinkColumns(value=0))
        patches.setattr(stream_writer, "plan_write", lambda *_: plan)
        return StreamWriter(options, SCHEMA, False)


class FakeContext:
    """Of a task of Spark partition 3, in a batch of a query if ``properties`` say so."""

    def __init__(self, properties: dict[str, str]) -> None:
        self.properties = properties

    def get(self) -> FakeContext:
        return self

    def partitionId(self) -> int:  # noqa: N802 - Spark's
        return 3

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's
        return self.properties.get(name)


BATCH_40000 = {"sql.streaming.queryId": "abc", "streaming.sql.batchId": "40000"}


def test_a_name_and_an_epoch_stand_for_one_task_of_one_batch() -> None:
    def name(**changes: Any) -> tuple[str, int]:
        what = {"query_id": "abc", "topic": "t", "batch_id": 0, "partition": 0}
        return producer_of(**{**what, **changes})

    assert name() == ("spark:abc:t:0:0", 0)
    assert name(batch_id=32_767) == ("spark:abc:t:0:0", 32_767)
    assert name(batch_id=32_768) == ("spark:abc:t:1:0", 0)
    others = [name(query_id="abd"), name(topic="u"), name(topic=None), name(partition=1)]
    assert len({name(), *others}) == 5


def test_a_task_writes_as_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    report = TaskReport(3, 1, 0, 0, 1)
    asked: dict[str, Any] = {}

    def write(plan: object, batches: object, **how: Any) -> TaskReport:
        asked.update(how)
        return report

    monkeypatch.setattr(stream_writer, "TaskContext", FakeContext(BATCH_40000))
    monkeypatch.setattr(stream_writer, "write_rows", write)
    assert writer().write(iter([])) is report
    assert asked == {
        "name": "spark:abc::1:3",
        "epoch": 40_000 - 32_768,
        "spark_partition": 3,
        "first": 40_003,
    }


def test_a_task_of_no_batch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_writer, "TaskContext", FakeContext({}))
    with pytest.raises(UnsupportedFeatureError, match=r"sql\.streaming\.queryId.*foreachBatch"):
        writer().write(iter([]))


def test_a_batch_that_comes_late_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(plan: object, batches: object, **how: Any) -> TaskReport:
        raise ProducerFencedError("t:0: a later epoch has written")

    monkeypatch.setattr(stream_writer, "TaskContext", FakeContext(BATCH_40000))
    monkeypatch.setattr(stream_writer, "write_rows", write)
    with pytest.raises(ProducerFencedError, match=r"batch 40000 of query abc .*checkpoint.*t:0"):
        writer().write(iter([]))


def test_an_output_that_replaces_what_was_there_is_refused() -> None:
    options = SinkOptions.parse({"bootstrap.servers": "127.0.0.1:1"}, streaming=True)
    with pytest.raises(InvalidRequestError, match=r'not overwritten: use \.outputMode\("append"\)'):
        StreamWriter(options, SCHEMA, True)


# -- on Spark, or at least on brokers --------------------------------------------------------------


@pytest.mark.spark
def test_a_task_of_an_older_batch_is_shut_out(
    brokers: Cluster, new_topic: NewTopicFunction
) -> None:
    topic = new_topic(1)
    options = SinkOptions.parse(
        {"bootstrap.servers": brokers.bootstrap, "topic": topic}, streaming=True
    )
    plan = plan_write(options, StructType().add("value", BinaryType()))

    def write(batch_id: int, *values: str) -> TaskReport:
        name, epoch = producer_of(query_id="q", topic=topic, batch_id=batch_id, partition=0)
        batch = pa.RecordBatch.from_arrays([pa.array(values)], names=["value"])
        return write_rows(
            plan, iter([batch]), name=name, epoch=epoch, spark_partition=0, first=batch_id
        )

    first = write(4, "a", "b")
    assert (first.name, first.epoch) == (f"spark:q:{topic}:0", 4)
    assert (first.records, first.skipped, first.unmatched, first.log_partitions) == (2, 0, 0, 1)
    assert write(4, "b", "a").skipped == 2
    assert write(4, "c", "b", "a").skipped == 2
    assert write(5, "d").skipped == 0
    with pytest.raises(ProducerFencedError):
        write(4, "a", "b", "c")
    assert stored_values(brokers.bootstrap, topic) == ["a", "b", "c", "d"]


class Copy:
    """A query that copies lines of files to a topic, ``files_per_batch`` at a time."""

    files_per_batch = 1

    def __init__(self, spark: SparkSession, directory: Path, brokers: Cluster, topic: str) -> None:
        self.lines = directory / "lines"
        self.lines.mkdir(exist_ok=True)
        self.checkpoint = directory / "checkpoint"
        self.options = {"bootstrap.servers": brokers.bootstrap, "topic": topic}
        self.spark = spark

    def add_file(self, *values: str) -> None:
        count = len(list(self.lines.iterdir()))
        (self.lines / f"{count}.txt").write_text("\n".join(values) + "\n")

    def run(self, sink: str = "raftlog", mode: str = "append") -> list[int]:
        """To the end of what there is; the batches that were run."""
        frame = self.spark.readStream.option("maxFilesPerTrigger", self.files_per_batch).text(
            str(self.lines)
        )
        started = (
            frame.repartition(2, "value")
            .writeStream.format(sink)
            .options(**self.options)
            .option("checkpointLocation", str(self.checkpoint))
            .outputMode(mode)
            .trigger(availableNow=True)
            .start()
        )
        started.awaitTermination()
        return [progress.batchId for progress in started.recentProgress if progress.numInputRows]

    def forget_commit(self, batch_id: int) -> None:
        """As if Spark had died after the batch, before it was noted down."""
        for name in (str(batch_id), f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink()


@pytest.mark.spark
@pytest.mark.parametrize("transactional", ["false", "true"])
def test_a_batch_that_is_repeated_is_stored_once(
    spark: SparkSession,
    brokers: Cluster,
    new_topic: NewTopicFunction,
    tmp_path: Path,
    transactional: str,
) -> None:
    """Its commit is lost, then its commit fails after its tasks have failed twice, then it ends."""
    topic = new_topic(3)
    spark.dataSource.register(FailingSink)
    copy = Copy(spark, tmp_path, brokers, topic)
    copy.options["transactional"] = transactional
    values = [str(number) for number in range(60)]
    copy.add_file(*values[:20])
    copy.add_file(*values[20:40])
    assert copy.run() == [0, 1]
    copy.forget_commit(1)
    copy.add_file(*values[40:])
    with pytest.raises(Exception, match="no commit"):
        copy.run("raftlog-failing")
    assert stored_values(brokers.bootstrap, topic) == sorted(values[:40])
    assert copy.run() == [1, 2]
    assert stored_values(brokers.bootstrap, topic) == sorted(values)

    if transactional == "true":
        return
    other = Copy(spark, tmp_path, brokers, topic)
    other.checkpoint = tmp_path / "another checkpoint"
    other.files_per_batch = 3
    assert other.run() == [0]
    assert stored_values(brokers.bootstrap, topic) == sorted(values * 2), "each query its own"


@pytest.mark.spark
def test_a_stream_that_cannot_be_written_is_refused(
    spark: SparkSession, brokers: Cluster, tmp_path: Path, new_topic: NewTopicFunction
) -> None:
    copy = Copy(spark, tmp_path, brokers, f"{new_topic(1)}-not")
    copy.add_file("a line")
    with pytest.raises(Exception, match="there is no topic"):
        copy.run()
