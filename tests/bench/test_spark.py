"""Tests of raftlog.bench.spark, without Spark; tests/spark_source/test_bench.py has all of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog.bench import spark
from raftlog.bench.broker import memory_mib
from raftlog.bench.spark import Contest, Scene, check_installed, compare, forget_peaks, task_workers
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
