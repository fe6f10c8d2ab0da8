"""Executors and drivers are killed, tasks doubled or repeated: each row is stored once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from raftlog import Admin, NewTopic, Producer
from raftlog.testing import cluster
from raftlog.testing.fork_server import python_path
from tests.spark_source.sinks import stored_records

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.nightly]

ROOT = Path(__file__).resolve().parents[2]
ROWS = 12_000


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


@pytest.mark.nightly
@pytest.mark.parametrize(("fault", "evidence"), [("kill", "killed"), ("speculate", "speculated")])
def test_a_task_that_runs_twice_after_a_shuffle_stores_each_row_once(
    tmp_path: Path, fault: str, evidence: str
) -> None:
    """The second attempt gets its rows in another order; with speculation, both run at a time."""
    with cluster(brokers=3, with_relays=False) as brokers, Admin(brokers.bootstrap) as admin:
        admin.create_topics([NewTopic("shuffled", 3)])
        done = run("shuffled_write", brokers.bootstrap, "shuffled", ROWS, tmp_path, fault)
        assert done.returncode == 0, done.stderr.decode()[-4_000:]
        assert (tmp_path / evidence).exists(), "the fault happened"
        stored = stored_records(brokers.bootstrap, "shuffled").values()
    values = [int(record.value or b"") for records in stored for record in records]
    assert sorted(values) == list(range(ROWS))


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
