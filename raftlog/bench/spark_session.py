"""Spark session of benchmarks on this machine, and the memory of its Python workers."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raftlog.bench.memory import PROC
from raftlog.errors import UnsupportedFeatureError
from raftlog.install import install_command
from raftlog.testing.fork_server import SOURCE, python_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLOTS: Final = 2  # tasks at a time
_DRIVER_MEMORY: Final = "2g"
_TASK_WORKER: Final = b"pyspark.daemon\0pyspark.worker"  # in the command line of task processes
_RESET_PEAK: Final = "5"  # see proc(5), clear_refs


def check_installed() -> None:
    """Raise ``UnsupportedFeatureError`` if PySpark, pyarrow or Java is missing."""
    for name in ("pyspark", "pyarrow"):
        if find_spec(name) is None:
            raise UnsupportedFeatureError(
                f"the benchmarks of Spark require {name}. Run {install_command('spark')}"
            )
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=f"{home}/bin" if home else None) is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise UnsupportedFeatureError(
            f"Spark requires Java, but there is none {where}. Install JDK 17 (Debian: apt install "
            "openjdk-17-jre-headless), or set JAVA_HOME to its directory"
        )


@contextmanager
def session(home: Path) -> Iterator[SparkSession]:
    """Run a session with ``SLOTS`` slots and its files in ``home``."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{SLOTS}]").appName("raftlog bench spark")
    for name, value in _settings(home).items():
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
