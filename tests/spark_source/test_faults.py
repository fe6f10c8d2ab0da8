"""Brokers, workers, executors and drivers are killed: every record is read once, or stored once."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import DataSourceReader, DataSourceWriter, InputPartition
from pyspark.sql.types import StructType

from pyspark_raftlog.options import SinkOptions, SourceOptions
from pyspark_raftlog.reader import BatchReader
from pyspark_raftlog.source import RaftlogDataSource
from pyspark_raftlog.writer import BatchWriter, TaskReport
from raftlog import Admin, NewTopic, Producer
from raftlog.testing import Cluster, cluster, wait_until
from raftlog.testing.fork_server import python_path
from tests.spark_source.queries import Query, places
from tests.spark_source.sinks import stored_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# -- batch reads -----------------------------------------------------------------------------------

# A broker is killed under a batch read, in a cluster of its own: every record is read once.


LOG_BATCHES, RECORDS = 60, 50


@pytest.mark.spark
@pytest.mark.integration
@pytest.mark.nightly
def test_the_leader_that_serves_a_read_is_killed_in_mid_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    with cluster(brokers=3, with_relays=False) as running:
        with Admin(running.bootstrap) as admin, Producer(running.bootstrap) as producer:
            admin.create_topics([NewTopic("t", 2)])
            for number in range(LOG_BATCHES):
                first = number * RECORDS
                values = [b"%d" % n + b" " * 100 for n in range(first, first + RECORDS)]
                producer.send_many("t", values, partition=number % 2).result()
        leader = running.leader("t", 0)
        assert leader is not None
        pid = running.broker(leader).pid or 0
        assert pid
        killed = tmp_path / "killed"

        class KillingReader(BatchReader):
            """Kills the broker that it reads from when it has given its third batch."""

            def read(self, partition: InputPartition) -> Iterator[Any]:
                for number, batch in enumerate(super().read(partition)):
                    if number == 3 and partition.value.partition == 0 and not killed.exists():
                        killed.touch()
                        os.kill(pid, signal.SIGKILL)
                    yield batch

        class Killing(RaftlogDataSource):  # a class of a function travels by value
            @classmethod
            def name(cls) -> str:
                return "killing"

            def reader(self, schema: StructType) -> DataSourceReader:
                return KillingReader(SourceOptions.parse(self.options, streaming=False), schema)

        spark.dataSource.register(Killing)
        options = {
            "bootstrap.servers": running.bootstrap,
            "subscribe": "t",
            "batchMaxRows": "100",
            "raftlog.read.from": "leader",
            "raftlog.max.partition.fetch.bytes": "6000",  # so most of it is still to be fetched
        }
        rows = spark.read.format("killing").options(**options).load().collect()
        assert killed.exists()
    assert Counter(int(row.value) for row in rows) == Counter(range(LOG_BATCHES * RECORDS))


# -- streams ---------------------------------------------------------------------------------------

# A broker is killed under a stream, in a cluster of the test's own: every record is read once.


KILL_AT, LAST_BATCH = 2, 6


@pytest.mark.spark
@pytest.mark.integration
@pytest.mark.nightly
def test_a_leader_killed_under_a_stream_costs_no_record_and_no_end_goes_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    with (
        cluster(brokers=3, with_relays=False) as running,
        Admin(running.bootstrap) as admin,
        Producer(running.bootstrap) as producer,
    ):
        admin.create_topics([NewTopic("t", 2)])
        options = {"bootstrap.servers": running.bootstrap, "subscribe": "t"}
        query = Query(spark, tmp_path / "checkpoint", startingOffsets="earliest", **options)
        ends = {0: 0, 1: 0}

        def append() -> None:
            for partition in ends:
                producer.send_many("t", [b"v"] * 50, partition=partition).result()
                ends[partition] += 50

        def go_on(batch_id: int) -> None:
            if batch_id == KILL_AT:
                leader = running.leader("t", 0)
                assert leader is not None
                running.broker(leader).kill()
            if batch_id < LAST_BATCH:
                append()

        append()
        stream = query.start({"processingTime": "0 seconds"}, during=go_on)
        try:
            while max(query.batches, default=0) < LAST_BATCH:
                stream.processAllAvailable()  # raises what the stream died of
            progress = [json.loads(each.json) for each in stream.recentProgress]
        finally:
            stream.stop()
    assert query.read() == [
        place for partition, end in ends.items() for place in places("t", partition, 0, end)
    ]
    seen = [each["sources"][0]["endOffset"]["t"] for each in progress]
    assert never_goes_back(seen)
    assert seen[-1] == {str(partition): end for partition, end in ends.items()}


def never_goes_back(positions: list[dict[str, Any]]) -> bool:
    return all(
        later[partition] >= offset
        for earlier, later in itertools.pairwise(positions)
        for partition, offset in earlier.items()
    )


# -- batch writes ----------------------------------------------------------------------------------

# Brokers and workers are killed under a batch write: every row is stored once, in its order.
#
# Other reads under fire are in ``test_batch_reader``, and a query whose driver is killed in
# ``test_examples``.


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


@pytest.mark.spark
@pytest.mark.integration
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


@pytest.mark.spark
@pytest.mark.integration
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


# -- executors and drivers -------------------------------------------------------------------------

# Executors and drivers are killed, tasks doubled or repeated: each row is stored once.


ROOT = Path(__file__).resolve().parents[2]
EXECUTORS_ROWS = 12_000


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        **python_path(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return subprocess.run(
        [sys.executable, "-m", f"tests.spark_source.{program}", *map(str, arguments)],
        env=environment,
        cwd=next(part for part in arguments if isinstance(part, Path)),
        capture_output=True,
        timeout=240,
        check=False,
    )


@pytest.mark.spark
@pytest.mark.integration
@pytest.mark.nightly
@pytest.mark.parametrize(("fault", "evidence"), [("kill", "killed"), ("speculate", "speculated")])
def test_a_task_that_runs_twice_after_a_shuffle_stores_each_row_once(
    tmp_path: Path, fault: str, evidence: str
) -> None:
    """The second attempt gets its rows in another order; with speculation, both run at a time."""
    with cluster(brokers=3, with_relays=False) as brokers, Admin(brokers.bootstrap) as admin:
        admin.create_topics([NewTopic("shuffled", 3)])
        done = run("shuffled_write", brokers.bootstrap, "shuffled", EXECUTORS_ROWS, tmp_path, fault)
        assert done.returncode == 0, done.stderr.decode()[-4_000:]
        assert (tmp_path / evidence).exists(), "the fault happened"
        stored = stored_records(brokers.bootstrap, "shuffled").values()
    values = [int(record.value or b"") for records in stored for record in records]
    assert sorted(values) == list(range(EXECUTORS_ROWS))


@pytest.mark.spark
@pytest.mark.integration
@pytest.mark.nightly
@pytest.mark.parametrize("sink", ["sink", "foreach"])
def test_a_stream_after_a_shuffle_stores_each_row_once(tmp_path: Path, sink: str) -> None:
    """Tasks are repeated with their rows in another order, also after a restart of the query."""
    rows = [b"%1000d" % (number % 2_500) for number in range(3_000)]  # some are there twice
    with cluster(brokers=3, with_relays=False) as brokers, Admin(brokers.bootstrap) as admin:
        admin.create_topics([NewTopic("source", 3), NewTopic("target", 3)])
        with Producer(brokers.bootstrap) as producer:
            producer.send_many("source", rows).result(timeout=20)
        arguments = brokers.bootstrap, "source", "target", tmp_path, sink
        assert run("struck_stream", *arguments).returncode != 0
        assert (tmp_path / "killed").exists(), "the fault happened"
        done = run("struck_stream", *arguments)
        assert done.returncode == 0, done.stderr.decode()[-4_000:]
        stored = stored_records(brokers.bootstrap, "target").values()
    assert len(list(tmp_path.glob("failed-*"))) >= 6, "each task failed once"
    assert Counter(record.value for records in stored for record in records) == Counter(rows)
