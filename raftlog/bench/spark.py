"""Benchmarks of reads and writes of topics with Spark: on one cluster, in one session.

Each result is compared with bounds in alternate rounds of the same run: Spark's transfer from
Python with data from memory, Parquet with the same records, and rows without a writer.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import raftlog
from pyspark_raftlog import register
from raftlog import Admin, Producer
from raftlog.bench import spark_sources as sources
from raftlog.bench.broker import PROC, memory_mib
from raftlog.bench.figures import Figure, new_topic, target
from raftlog.bench.spark_sources import values_of
from raftlog.errors import UnsupportedFeatureError
from raftlog.install import install_command
from raftlog.testing.fork_server import SOURCE, python_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


BROKERS: Final = 3
PLAN_PARTITIONS: Final = 1_000
SMALL_PART: Final = 10  # reads of rows, and the smaller topic, have one in this many records
WRITE_PART: Final = 3  # a round of writes has one in this many records
_CALL_RECORDS: Final = 9_000  # of 100 bytes: about one batch
_VALUES_MAX: Final = 90_000  # number of different values
_FILL_TIMEOUT_S: Final = 600
_BATCH_ROWS: Final = 10_000  # the default of batchMaxRows


@dataclass(frozen=True, slots=True)
class Scene:
    """Cluster, session and data of the measurements."""

    spark: SparkSession
    bootstrap: str
    home: Path  # directory for files, on the disk to measure
    value_bytes: int
    partitions: int
    rounds: int

    def frame(self, topic: str, **options: str) -> DataFrame:
        """Return the topic as a DataFrame, loaded as by users."""
        return (
            self.spark.read.format("raftlog")
            .option("bootstrap.servers", self.bootstrap)
            .option("subscribe", topic)
            .options(**options)
            .load()
        )


def everything(
    directory: Path | None,
    *,
    records: int,
    value_bytes: int,
    partitions: int,
    rounds: int,
    kafka_jars: Path | None = None,
) -> Iterator[Sequence[Figure]]:
    """Run all benchmarks. Yields the results of one table at a time.

    ``kafka_jars``: directory of Spark's connector for Kafka and of what it needs. Its read of the
    same topic is compared then.
    """
    jars = () if kafka_jars is None else sorted(kafka_jars.glob("*.jar"))
    with target(directory, brokers=BROKERS) as brokers, session(brokers.directory, jars) as spark:
        scene = Scene(spark, brokers.bootstrap, brokers.directory, value_bytes, partitions, rounds)
        yield from measure(scene, records=records)


def measure(scene: Scene, *, records: int) -> Iterator[Sequence[Figure]]:
    """Run all benchmarks on a running cluster and session. Topics are deleted afterwards."""
    register(scene.spark)
    sources.register(scene.spark)
    yield [plan(scene, partitions=PLAN_PARTITIONS)]
    few = max(1, records // SMALL_PART)
    with filled(scene, few) as small, filled(scene, records) as large:
        yield memory(scene, {small: few, large: records})
        parquet = str(scene.home / f"parquet-{uuid.uuid4().hex[:8]}")
        scene.frame(large).write.parquet(parquet)
        yield reading(scene, large=large, records=records, small=small, few=few, parquet=parquet)
        yield tables(scene, large, records, parquet)
        yield writing(scene, large, records // WRITE_PART)


@contextmanager
def filled(scene: Scene, records: int) -> Iterator[str]:
    """Create a topic with ``records`` records, in batches as of a usual producer."""
    values = values_of(min(records, _VALUES_MAX), scene.value_bytes)
    with new_topic(scene.bootstrap, scene.partitions) as topic:
        with Producer(scene.bootstrap) as producer:
            sent = 0
            while sent < records:
                first = sent % len(values)
                some = values[first : first + min(_CALL_RECORDS, records - sent)]
                producer.send_many(topic, some)
                sent += len(some)
            producer.flush(timeout=_FILL_TIMEOUT_S)
        yield topic


# -- plan ------------------------------------------------------------------------------------------


def plan(scene: Scene, *, partitions: int) -> Figure:
    """Measure the seconds from ``load()`` until Spark has planned one task for each partition.

    ``first_s``: of the first plan in a session, which starts Python processes and loads classes of
    Spark. ``later_s``: median of the others. ``cluster_s``: the part of those for queries of the
    brokers and for planning.
    """
    from pyspark_raftlog.options import SourceOptions
    from pyspark_raftlog.reader import BatchReader
    from pyspark_raftlog.schema import read_schema

    with new_topic(scene.bootstrap, partitions) as topic:
        with Producer(scene.bootstrap) as producer:
            for number in range(partitions):
                producer.send(topic, b"x", partition=number)
            producer.flush(timeout=_FILL_TIMEOUT_S)

        options = {"bootstrap.servers": scene.bootstrap, "subscribe": topic}
        reader = BatchReader(SourceOptions.parse(options, streaming=False), read_schema())
        planned = 0

        def load() -> None:
            execution = scene.frame(topic)._jdf.queryExecution()  # there is no public API
            found = execution.toRdd().getNumPartitions()
            assert found == (planned or found), f"{found} tasks, and {planned} were planned"

        first_s = seconds(load)
        planned = len(reader.partitions())  # connects
        later_s = statistics.median(seconds(load) for _ in range(scene.rounds))
        cluster_s = statistics.median(seconds(reader.partitions) for _ in range(scene.rounds))
    return Figure(
        {
            "partitions": partitions,
            "first_s": first_s,
            "later_s": later_s,
            "cluster_s": cluster_s,
        },
        {
            "benchmark": f"plan {partitions:,} partitions",
            "s": f"{later_s:.2f}",
            "of that, cluster s": f"{cluster_s:.2f}",
            "first in a session s": f"{first_s:.2f}",
        },
    )


# -- memory ----------------------------------------------------------------------------------------


def memory(scene: Scene, topics: dict[str, int]) -> list[Figure]:
    """Measure the largest resident memory of a Python worker that reads each topic.

    ``topics``: number of records by name. Returns MiB, the smallest topic first. ``rest_mib``:
    before the first read.
    """
    to_nowhere(from_memory(scene, _BATCH_ROWS))  # starts the workers
    rest_mib = max(memory_mib(pid)[0] for pid in task_workers())
    found = []
    for topic, records in topics.items():
        forget_peaks(task_workers())
        to_nowhere(scene.frame(topic))
        workers = task_workers()
        peak_mib = max(memory_mib(pid)[1] for pid in workers)
        found.append(_memory_figure(scene, records, len(workers), rest_mib, peak_mib))
    return found


def _memory_figure(
    scene: Scene, records: int, workers: int, rest_mib: float, peak_mib: float
) -> Figure:
    return Figure(
        {
            "records": records,
            "value_bytes": scene.value_bytes,
            "workers": workers,
            "rest_mib": rest_mib,
            "peak_mib": peak_mib,
        },
        {
            "Python workers' memory": f"reading {records:,} of {scene.value_bytes} bytes",
            "workers": f"{workers}",
            "idle MiB": f"{rest_mib:.0f}",
            "peak MiB": f"{peak_mib:.0f}",
        },
    )


def from_memory(scene: Scene, records: int) -> DataFrame:
    """Return at least ``records`` records from memory, without a topic."""
    return (
        scene.spark.read.format(sources.FromMemory.name())
        .option("records", records)
        .option("tasks", scene.partitions)
        .option("batchRows", _BATCH_ROWS)
        .option("valueBytes", scene.value_bytes)
        .load()
    )


# -- rates -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Contest:
    """One of the compared operations: its name, the records of a round, and the round."""

    name: str
    records: int
    run: Callable[[], None]


def compare(scene: Scene, subject: str, contests: Sequence[Contest]) -> list[Figure]:
    """Measure all operations once per round. ``subject``: name of the first one.

    Returns the median of records per second. ``ratio``: rate of the first operation divided by the
    rate of this one.
    """
    rates: dict[str, list[float]] = {contest.name: [] for contest in contests}
    for number in range(scene.rounds):
        for contest in contests if number % 2 == 0 else reversed(contests):
            rates[contest.name].append(contest.records / seconds(contest.run))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    first = medians[contests[0].name]
    return [
        _rate(scene, subject, contest, medians[contest.name], first / medians[contest.name])
        for contest in contests
    ]


def _rate(
    scene: Scene, subject: str, contest: Contest, records_per_s: float, ratio: float
) -> Figure:
    return Figure(
        {
            "name": contest.name,
            "records": contest.records,
            "value_bytes": scene.value_bytes,
            "rounds": scene.rounds,
            "records_per_s": records_per_s,
            "subject": subject,
            "ratio": ratio,
        },
        {
            "benchmark": contest.name,
            "records": f"{contest.records:,}",
            "value bytes": f"{scene.value_bytes}",
            "records/s": f"{records_per_s:,.0f}",
            f"{subject} over it": f"{ratio:.2f}",
        },
    )


def reading(
    scene: Scene, *, large: str, records: int, small: str, few: int, parquet: str
) -> list[Figure]:
    """Measure reads of a topic as Arrow batches and as rows, of memory, and of Parquet."""
    as_rows = (
        scene.spark.read.format(sources.AsRows.name())
        .option("bootstrap", scene.bootstrap)
        .option("topic", small)
    )
    frames: list[tuple[str, int, Callable[[], DataFrame]]] = [
        ("read a topic", records, lambda: scene.frame(large)),
        ("read from memory", records, lambda: from_memory(scene, records)),
        ("read a topic, as rows", few, as_rows.load),
        ("read Parquet", records, lambda: scene.spark.read.parquet(parquet)),
        ("read values and offsets", records, lambda: scene.frame(large, columns="value,offset")),
    ]
    if scene.spark.conf.get("spark.jars", ""):
        by_kafka = scene.spark.read.format("kafka").options(
            **{"kafka.bootstrap.servers": scene.bootstrap, "subscribe": large}
        )
        frames.append(("read a topic, by Spark's connector for Kafka", records, by_kafka.load))
    for frame in (scene.frame(small), as_rows.load()):
        found = frame.count()  # also warms up
        assert found == few, f"{found} records were read, {few} were written"
    contests = [Contest(name, count, _reads(load)) for name, count, load in frames]
    return compare(scene, "Arrow read", contests)


def tables(scene: Scene, topic: str, records: int, parquet: str) -> list[Figure]:
    """Measure the same topic and files without Spark, in this process: to Arrow, and by DuckDB."""
    import duckdb

    aggregate = "SELECT count(*), max(octet_length(value)) FROM "

    def to_arrow() -> None:
        found = sum(batch.num_rows for batch in _scan(scene, topic).reader())
        assert found == records, f"{found} records were read, {records} were written"

    def by_duckdb(source: str) -> None:
        with duckdb.connect() as database:
            if source == "topic":
                database.register("topic", _scan(scene, topic, columns=["value"]).reader())
            found = database.sql(aggregate + source).fetchall()[0][0]
        assert found == records, f"{found} records were read, {records} were written"

    return compare(
        scene,
        "DuckDB on a topic",
        [
            Contest("DuckDB on a topic", records, lambda: by_duckdb("topic")),
            Contest("raftlog.scan to Arrow", records, to_arrow),
            Contest("DuckDB on Parquet", records, lambda: by_duckdb(f"'{parquet}/*.parquet'")),
        ],
    )


def _scan(scene: Scene, topic: str, **settings: Any) -> raftlog.Scan:
    return raftlog.scan(topic, bootstrap=scene.bootstrap, **settings)


def _reads(load: Callable[[], DataFrame]) -> Callable[[], None]:
    return lambda: to_nowhere(load())


def writing(scene: Scene, large: str, wanted: int) -> list[Figure]:
    """Measure writes of ``wanted`` values to a topic, and to a sink that discards them.

    The values are in Spark's cache, which is cheap to read. The topic has the default settings: all
    brokers sync every record.
    """
    frame = scene.frame(large, columns="value,offset")
    frame = frame.where(f"offset < {max(1, wanted // scene.partitions)}").select("value").cache()
    records = frame.count()
    with new_topic(scene.bootstrap, scene.partitions) as topic:
        to_topic = (
            frame.write.format("raftlog")
            .option("bootstrap.servers", scene.bootstrap)
            .option("topic", topic)
            .mode("append")
        )
        to_drain = frame.write.format(sources.Drain.name()).mode("append")
        for each in (to_topic, to_drain):
            each.save()  # warms up
        contests = [
            Contest("write to a topic", records, to_topic.save),
            Contest("write to a sink that discards all", records, to_drain.save),
        ]
        rates = compare(scene, "write", contests)
        with Admin(scene.bootstrap) as admin:
            stored = sum(end or 0 for end in admin.offsets(topic).values())
    expected = records * (scene.rounds + 1)
    assert stored == expected, f"{stored} records are stored, {expected} were written"
    frame.unpersist()
    return rates


# -- spark session ---------------------------------------------------------------------------------
#
# Spark session of benchmarks on this machine, and the memory of its Python workers.


SLOTS: Final = 2  # tasks at a time
_DRIVER_MEMORY: Final = "2g"
_TASK_WORKER: Final = b"pyspark.daemon\0pyspark.worker"  # in the command line of task processes
_RESET_PEAK: Final = "5"  # see proc(5), clear_refs


def check_installed() -> None:
    """Raise ``UnsupportedFeatureError`` if PySpark, pyarrow or Java is missing."""
    for name, extra in (("pyspark", "spark"), ("pyarrow", "spark"), ("duckdb", "sql")):
        if find_spec(name) is None:
            raise UnsupportedFeatureError(
                f"the benchmarks of Spark require {name}. Run {install_command(extra)}"
            )
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=f"{home}/bin" if home else None) is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise UnsupportedFeatureError(
            f"Spark requires Java, but there is none {where}. Install JDK 17 (Debian: apt install "
            "openjdk-17-jre-headless), or set JAVA_HOME to its directory"
        )


@contextmanager
def session(home: Path, jars: Sequence[Path] = ()) -> Iterator[SparkSession]:
    """Run a session with ``SLOTS`` slots and its files in ``home``. ``jars``: added to Spark's."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{SLOTS}]").appName("raftlog bench spark")
    for name, value in (_settings(home) | {"spark.jars": ",".join(map(str, jars))}).items():
        builder = builder.config(name, value)
    with _environment(_worker_environment()):
        started = builder.getOrCreate()
    started.sparkContext.setLogLevel("ERROR")
    try:
        yield started
    finally:
        started.stop()


def _settings(home: Path) -> dict[str, str]:
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": _DRIVER_MEMORY,
        "spark.local.dir": str(home / "spark"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _worker_environment() -> dict[str, str]:
    """Return the environment of Python workers, which by default run the first ``python3`` with its
    default path."""
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **python_path(SOURCE),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Change the environment while the block runs. Java keeps the environment of its start."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def to_nowhere(frame: DataFrame) -> None:
    """Compute all rows of all columns. Spark discards them."""
    frame.write.format("noop").mode("overwrite").save()


def seconds(work: Callable[[], Any]) -> float:
    """Return the duration of ``work()`` in seconds."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


# -- memory ----------------------------------------------------------------------------------------


def task_workers() -> list[int]:
    """Return the descendant processes that run tasks, without the one that forks them."""
    parents = dict(_parents())
    daemons = {pid for pid in parents if _runs_tasks(pid) and _is_below(pid, os.getpid(), parents)}
    return sorted(pid for pid in daemons if parents[pid] in daemons)


def _parents() -> Iterator[tuple[int, int]]:
    """Yield the pid and the parent pid of each process. Skips processes that have just ended."""
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # pid (name) state parent ...: the name can contain spaces and brackets.
                after_name = (entry / "stat").read_text().rpartition(")")[2]
                yield int(entry.name), int(after_name.split()[1])


def _runs_tasks(pid: int) -> bool:
    with suppress(OSError):
        return _TASK_WORKER in (PROC / str(pid) / "cmdline").read_bytes()
    return False


def _is_below(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    while pid and pid != ancestor:
        pid = parents.get(pid, 0)
    return pid == ancestor


def forget_peaks(pids: list[int]) -> None:
    """Reset the peak memory of these processes."""
    for pid in pids:
        (PROC / str(pid) / "clear_refs").write_text(_RESET_PEAK)
