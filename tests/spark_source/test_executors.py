"""Executors that are processes of their own, killed or doubled: each row is stored once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog import Admin, NewTopic
from raftlog.testing import cluster
from tests.spark_source.sinks import stored_records

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.nightly]

ROOT = Path(__file__).resolve().parents[2]
ROWS = 12_000


@pytest.mark.parametrize(("fault", "evidence"), [("kill", "killed"), ("speculate", "speculated")])
def test_a_task_that_runs_twice_after_a_shuffle_stores_each_row_once(
    tmp_path: Path, fault: str, evidence: str
) -> None:
    """The second attempt gets its rows in another order; with speculation, both run at a time."""
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with cluster(brokers=3, with_relays=False) as brokers, Admin(brokers.bootstrap) as admin:
        admin.create_topics([NewTopic("shuffled", 3)])
        program = [sys.executable, "-m", "tests.spark_source.shuffled_write", brokers.bootstrap]
        done = subprocess.run(
            [*program, "shuffled", str(ROWS), str(tmp_path), fault],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()[-4_000:]
        assert (tmp_path / evidence).exists(), "the fault happened"
        stored = stored_records(brokers.bootstrap, "shuffled").values()
    values = [int(record.value or b"") for records in stored for record in records]
    assert sorted(values) == list(range(ROWS))
