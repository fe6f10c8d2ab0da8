"""Brokers, workers, executors and drivers are killed: every record is read once, or stored once."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from pyspark.sql.datasource import DataSourceReader, DataSourceWriter, InputPartition
from pyspark.sql.types import StructType

from pyspark_raftlog.options import SinkOptions, SourceOptions
from pyspark_raftlog.reader import BatchReader
from pyspark_raftlog.source import RaftlogDataSource
from pyspark_raftlog.writer import BatchWriter, TaskReport
from raftlog import Admin, NewTopic, Producer
from raftlog.testing import Cluster, cluster, wait_until
from raftlog.testing.cluster import free_ports
from raftlog.testing.fork_server import python_path
from tests.spark_source import truth
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


def spark_environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        **python_path(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", f"tests.spark_source.{program}", *map(str, arguments)],
        env=spark_environment(),
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


# -- four queries whose results are known ----------------------------------------------------------

# Everything that can die under ``truth``, dies: drivers and a broker; on a Standalone cluster also
# an executor, a worker and the master.


Strikes = list[Callable[[], object]]
# Spark waits 10 s for a Python worker. On a busy machine it may need more, and the driver dies.
PYTHON_TOO_LATE = "Python worker failed to connect back"


@contextlib.contextmanager
def known_topics(seed: int) -> Iterator[tuple[Cluster, Callable[[], None]]]:
    """Brokers with the topics of ``truth``, and the check of what these have in the end."""
    orders, payments = truth.events(seed)
    wanted = truth.expected(orders, payments)
    with cluster(brokers=3, with_relays=False) as brokers:
        with Admin(brokers.bootstrap) as admin, Producer(brokers.bootstrap) as producer:
            admin.create_topics([NewTopic(name, 3) for name in ("orders", "payments", *wanted)])
            for topic, events, key in (("orders", orders, "user"), ("payments", payments, "order")):
                values = [json.dumps(event).encode() for event in events]
                keys = [str(event[key]).encode() for event in events]
                producer.send_many(topic, values, keys).result(timeout=60)

        def check() -> None:
            for topic, values in wanted.items():
                stored = stored_records(brokers.bootstrap, topic).values()
                found = Counter((each.value or b"").decode() for rows in stored for each in rows)
                assert found == values, topic

        yield brokers, check


def run_truth(brokers: Cluster, folder: Path, strikes: Strikes, *master: str) -> int:
    """Run the program to its end, and the next of ``strikes`` after every 4 batches. It is killed
    and started again where that is ``kill_driver``. Returns how often it was started, without the
    starts that Spark ended by its own time limit.
    """
    too_late = 0
    arguments = [sys.executable, "-m", "tests.spark_source.truth", brokers.bootstrap, str(folder)]
    due = {4 * number: strike for number, strike in enumerate(strikes, 1)}
    for starts in itertools.count(1):
        log = folder / f"log-{starts}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*arguments, *master],
                env=spark_environment(),
                cwd=folder,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            if strike_until_dead(process, due, folder):
                continue
            status, said = process.wait(900), log.read_text()
            if status and PYTHON_TOO_LATE in said and too_late < 2:
                too_late += 1
                continue
            assert status == 0, said[-4_000:]
            assert not due, f"it ended after {batches_done(folder)} batches"
            return starts - too_late
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    raise AssertionError


def strike_until_dead(
    process: subprocess.Popen[bytes], due: dict[int, Callable[[], object]], folder: Path
) -> bool:
    """Take what is due while the program runs. Returns whether the program is to be killed."""

    def is_next() -> bool:
        return process.poll() is not None or batches_done(folder) >= min(due)

    while due:
        wait_until(is_next, timeout_s=300, what=f"{min(due)} batches")
        if process.poll() is not None:
            break
        strike = due.pop(min(due))
        if strike is kill_driver:
            return True
        strike()
    return False


def kill_driver() -> None:
    """Stands for the end of the program, which ``run_truth`` brings."""


def batches_done(folder: Path) -> int:
    return len(list(folder.glob("*/commits/[0-9]*")))


def kill_leader(brokers: Cluster) -> None:
    leader = brokers.leader("joined", 0)
    assert leader is not None
    brokers.broker(leader).kill()
    brokers.broker(leader).start()


@pytest.mark.spark
@pytest.mark.integration
@pytest.mark.nightly
def test_four_queries_are_exact_while_drivers_and_a_broker_die(tmp_path: Path) -> None:
    with known_topics(1) as (brokers, check):
        strikes: Strikes = [kill_driver, partial(kill_leader, brokers), kill_driver, kill_driver]
        assert run_truth(brokers, tmp_path, strikes) == 4
        check()


@pytest.mark.spark
@pytest.mark.integration
@pytest.mark.nightly
def test_four_queries_are_exact_on_a_standalone_cluster_that_dies(tmp_path: Path) -> None:
    with known_topics(2) as (brokers, check), Standalone(tmp_path / "standalone") as spark:
        strikes: Strikes = [
            spark.kill_executor,
            spark.kill_worker,
            partial(kill_leader, brokers),
            spark.kill_master,
            kill_driver,
            spark.kill_executor,
        ]
        assert run_truth(brokers, tmp_path, strikes, spark.address) == 2
        check()


class Standalone:
    """A Standalone cluster: a master that recovers from files, and two workers with one core."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = free_ports(5)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.address = f"spark://127.0.0.1:{self._ports[0]}"

    def __enter__(self) -> Standalone:
        self._folder.mkdir()
        self._start("master")
        for number in (1, 2):
            self._start(f"worker-{number}")
        return self

    def __exit__(self, *_error: object) -> None:
        for name in list(self._running):
            self._end(name)

    def kill_executor(self) -> None:
        os.kill(self._executor_of("worker-1"), signal.SIGKILL)

    def kill_worker(self) -> None:
        self._end("worker-2")
        self._start("worker-2")

    def kill_master(self) -> None:
        self._end("master")
        self._start("master")

    def _executor_of(self, worker: str) -> int:
        group = self._running[worker].pid

        def found() -> list[int]:
            return [pid for pid in pids_of(group) if b"CoarseGrainedExecutor" in command_of(pid)]

        wait_until(lambda: bool(found()), timeout_s=120, what="an executor")
        return found()[0]

    def _start(self, name: str) -> None:
        number = int(name[-1]) if name != "master" else 0
        java = "org.apache.spark.deploy"
        ports = ["--host", "127.0.0.1", "--webui-port", "0"]
        if number:
            place = ["--work-dir", str(self._folder / name), "--port", str(self._ports[number])]
            size = ["--cores", "1", "--memory", "1g"]
            command = [f"{java}.worker.Worker", *ports, *place, *size, self.address]
        else:
            command = [f"{java}.master.Master", *ports, "--port", str(self._ports[0])]
        recovery = f"-Dspark.deploy.recoveryDirectory={self._folder / 'recovery'}"
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [str(Path(pyspark.__path__[0]) / "bin" / "spark-class"), *command],
                env=spark_environment()
                | {"SPARK_DAEMON_JAVA_OPTS": f"-Dspark.deploy.recoveryMode=FILESYSTEM {recovery}"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _end(self, name: str) -> None:
        process = self._running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a worker has its executors in its group
        process.wait()


def pids_of(group: int) -> list[int]:
    """The processes of a group."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(each.name)) == group:
                found.append(int(each.name))
    return found


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
