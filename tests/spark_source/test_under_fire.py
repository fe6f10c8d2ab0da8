"""Brokers and workers are killed under a batch write: every row is stored once, in its order.

Reads under fire are in ``test_batch_faults`` and ``test_batch_reader``, streams in
``test_stream_faults``, and a query whose driver is killed in ``test_examples``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import StructType

from pyspark_raftlog.options import SinkOptions
from pyspark_raftlog.source import RaftlogDataSource
from pyspark_raftlog.writer import BatchWriter, TaskReport
from raftlog import Admin, NewTopic
from raftlog.testing import Cluster, wait_until
from tests.spark_source.sinks import stored_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.integration]

ROWS, TASKS, KEYS = 2_000, 2, 10


def write_while(
    spark: SparkSession, bootstrap: str, topic: str, strike: Callable[[], object]
) -> None:
    """Write ROWS rows; ``strike`` is called in a task, when some of its rows are stored.

    In a worker process of Spark's, once its attempt has given away 5 of 10 batches.
    """

    class StruckWriter(BatchWriter):
        def write(self, iterator: Iterator[Any]) -> TaskReport:
            return super().write(self._struck(iterator))

        def _struck(self, batches: Iterator[Any]) -> Iterator[Any]:
            for number, batch in enumerate(batches):
                if number == 5:
                    with Admin(bootstrap) as admin:
                        wait_until(lambda: any(admin.offsets(topic).values()), timeout_s=60)
                    strike()
                yield batch

    class Struck(RaftlogDataSource):  # a class of a function travels by value
        @classmethod
        def name(cls) -> str:
            return "struck"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            options = SinkOptions.parse(self.options, streaming=False)
            return StruckWriter(options, schema, overwrite)

    spark.dataSource.register(Struck)
    frame = spark.range(ROWS, numPartitions=TASKS).selectExpr(
        f"cast(id % {KEYS} as string) AS key", "cast(id as string) AS value"
    )
    options = {
        "bootstrap.servers": bootstrap,
        "topic": topic,
        "raftlog.batch.bytes.max": "1024",  # so that there is something to store before the end
    }
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(ROWS // TASKS // 10))
    try:
        frame.write.format("struck").mode("append").options(**options).save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def check_stored_once(bootstrap: str, topic: str) -> None:
    """Every row, and of each task the rows of a key in their order."""
    by_key: dict[int, list[int]] = {key: [] for key in range(KEYS)}
    for records in stored_records(bootstrap, topic).values():
        for record in records:
            by_key[int(record.key or b"")].append(int(record.value or b""))
    half = ROWS // TASKS
    for key, found in by_key.items():
        assert sorted(found) == list(range(key, ROWS, KEYS))
        for first in range(0, ROWS, half):
            of_task = [number for number in found if first <= number < first + half]
            assert of_task == sorted(of_task)


@pytest.mark.nightly
def test_a_worker_killed_in_mid_write_stores_nothing_twice(
    spark: SparkSession, three: Cluster, tmp_path: Path
) -> None:
    with Admin(three.bootstrap) as admin:
        admin.create_topics([NewTopic("worker", 3)])

    def strike() -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        (tmp_path / f"{context.partitionId()}-{context.attemptNumber()}").touch()
        if context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    write_while(spark, three.bootstrap, "worker", strike)
    attempts = sorted(path.name for path in tmp_path.iterdir())
    assert attempts == ["0-0", "0-1", "1-0", "1-1"], "both tasks were killed once"
    check_stored_once(three.bootstrap, "worker")


def test_a_leader_killed_in_mid_write_costs_nothing(
    spark: SparkSession, three: Cluster, tmp_path: Path
) -> None:
    with Admin(three.bootstrap) as admin:
        admin.create_topics([NewTopic("leader", 3)])
    leader = three.leader("leader", 0)
    assert leader is not None
    pid, killed = three.broker(leader).pid, tmp_path / "killed"
    assert pid

    def strike() -> None:
        if not killed.exists():
            killed.touch()
            os.kill(pid, signal.SIGKILL)

    write_while(spark, three.bootstrap, "leader", strike)
    assert not three.broker(leader).running
    check_stored_once(three.bootstrap, "leader")
