"""Tests of raftlog.bench.spark, without Spark; tests/spark_source/test_bench.py has all of it."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_raftlog.schema import arrow_schema, read_schema
from raftlog.bench import spark
from raftlog.bench.broker import memory_mib
from raftlog.bench.figures import Target
from raftlog.bench.kafka import KafkaTarget, measure
from raftlog.bench.spark import Contest, Scene, check_installed, compare, forget_peaks, task_workers
from raftlog.bench.spark_sources import AsRows, Drain, DrainWriter, FromMemory, values_of
from raftlog.errors import UnsupportedFeatureError


def test_all_are_compared_with_the_first_in_rounds_that_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    costs = {"subject": iter([1.0, 2.0, 4.0]), "other": iter([8.0, 1.0, 4.0])}

    def costing(run: object) -> float:
        assert callable(run)
        run()
        return next(costs[order[-1]])

    monkeypatch.setattr(spark, "seconds", costing)
    scene = Scene(None, "", tmp_path, value_bytes=10, partitions=1, rounds=3)  # type: ignore[arg-type]
    contests = [
        Contest("subject", 100, lambda: order.append("subject")),
        Contest("other", 40, lambda: order.append("other")),
    ]
    subject, other = compare(scene, "subject", contests)
    assert order == ["subject", "other", "other", "subject", "subject", "other"]
    assert (subject.values["records_per_s"], subject.values["ratio"]) == (50.0, 1.0)
    assert (other.values["records_per_s"], other.values["ratio"]) == (10.0, 5.0)
    assert other.cells["subject over it"] == "5.00"


# -- spark session ---------------------------------------------------------------------------------
#
# Tests of raftlog.bench.spark: what is needed, and who takes memory. Without Spark.


# Forks a worker, and tells when that is there, as Spark's daemon does.
DAEMON = """
import os, sys
ready, begun = os.pipe()
if not os.fork():
    os.write(begun, b"!")
    sys.stdin.read()
    os._exit(0)
os.read(ready, 1)
print("begun", flush=True)
sys.stdin.read()
os.wait()
"""


def test_java_is_missed_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UnsupportedFeatureError, match="Install JDK 17"):
        check_installed()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedFeatureError, match="on the PATH"):
        check_installed()


def test_pyspark_is_missed_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedFeatureError, match=r"pip install -e '\.\[spark\]'"):
        check_installed()


@pytest.mark.integration
def test_workers_are_found_below_this_process_without_their_daemon() -> None:
    command = [sys.executable, "-c", DAEMON, "-m", "pyspark.daemon", "pyspark.worker"]
    before = task_workers()  # of a session that other tests share
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdin is not None
        daemon.stdout.readline()
        (worker,) = set(task_workers()) - set(before)
        assert worker != daemon.pid
        daemon.stdin.close()
    assert task_workers() == before


def test_the_peak_is_counted_anew() -> None:
    ballast = bytearray(64 * 1024 * 1024)
    ballast[:: os.sysconf("SC_PAGE_SIZE")] = bytes(len(ballast[:: os.sysconf("SC_PAGE_SIZE")]))
    del ballast
    _, before = memory_mib(os.getpid())
    forget_peaks([os.getpid()])
    now, after = memory_mib(os.getpid())
    assert now <= after < before


# -- kafka -----------------------------------------------------------------------------------------
#
# Tests of raftlog.bench.kafka.


@pytest.mark.integration
def test_targets_are_compared_with_the_first_one(broker: Target) -> None:
    targets = [
        KafkaTarget("one", broker.bootstrap, broker.pids),
        KafkaTarget("other", broker.bootstrap),
    ]
    one, other = measure(targets, records=10_000, value_bytes=50, trips=20, rounds=1)
    assert one.values["ratio"] == 1.0
    assert other.values["ratio"] > 0
    assert one.values["produce_cpu_ns"] >= 0
    assert other.values["produce_cpu_ns"] is None
    assert one.cells.keys() == other.cells.keys()
    assert 0 < one.values["p50_us"] <= one.values["p99_us"]


# -- spark sources ---------------------------------------------------------------------------------
#
# Tests of raftlog.bench.spark_sources; as Spark calls them, without Spark.


@pytest.mark.parametrize("records", [1, 10, 11, 40])
def test_memory_gives_what_was_asked_for_in_batches_of_one_size(records: int) -> None:
    options = {"records": records, "tasks": 2, "batchrows": 5, "valuebytes": 100}
    source = FromMemory({name: str(number) for name, number in options.items()})
    reader = source.reader(source.schema())
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert {batch.num_rows for batch in batches} == {5}
    assert records <= sum(batch.num_rows for batch in batches) < records + 2 * 5


def test_memory_gives_the_columns_of_the_real_source() -> None:
    source = FromMemory({"records": "3", "tasks": "1", "batchrows": "3", "valuebytes": "20"})
    assert source.schema() == AsRows({}).schema() == read_schema()
    reader = source.reader(source.schema())
    (batch,) = reader.read(reader.partitions()[0])
    assert batch.schema == arrow_schema(read_schema())
    assert {len(value) for value in batch.column("value").to_pylist()} == {20}


def test_the_drain_counts_what_it_drops() -> None:
    batches = [pa.record_batch({"value": [b"a", b"b"]}), pa.record_batch({"value": [b"c"]})]
    writer = Drain({}).writer(read_schema(), False)
    assert isinstance(writer, DrainWriter)
    assert writer.write(iter(batches)).rows == 3


@pytest.mark.parametrize("size", [1, 2, 3, 60, 100, 1_000])
def test_values_are_of_the_size_asked_for(size: int) -> None:
    assert {len(value) for value in values_of(50, size)} == {size}


def test_values_differ_and_are_the_same_every_time() -> None:
    values = values_of(1_000, 100)
    assert len(set(values)) == 1_000
    assert values == values_of(1_000, 100)


def test_values_compress_as_lines_of_a_log_do() -> None:
    joined = b"".join(values_of(5_000, 100))
    assert 2 < len(joined) / len(zlib.compress(joined)) < 6
