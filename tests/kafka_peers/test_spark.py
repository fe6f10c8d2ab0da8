"""Spark's own connector for Kafka with topics of raftlog's clients."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import raftlog
from tests.kafka_peers.install import HERE, PYSPARK, SPARK_LIBRARY, version_in
from tests.kafka_peers.records import native_read, native_write, some_records

VERSION = version_in("spark/pom.xml", r"2\.13</artifactId>\s*<version>(.*?)<")
# PySpark has these; a second copy of Scala's library would not load.
IN_PYSPARK = ("scala-library", "hadoop-", "slf4j", "lz4-java", "snappy-java")

pytestmark = [
    pytest.mark.peers,
    pytest.mark.integration,
    pytest.mark.feature("Spark's connector", VERSION, "batch and streaming, source and sink"),
    pytest.mark.timeout(300),
]


def test_spark_reads_and_writes(bootstrap: str, topic: str, tmp_path: Path) -> None:
    written = native_write(bootstrap, topic, some_records(500), "zstd")
    copy = f"{topic}-copy"
    with raftlog.Admin(bootstrap) as admin:
        admin.create_topics([raftlog.NewTopic(copy, 2)])
    jars = [str(jar) for jar in SPARK_LIBRARY.glob("*.jar") if not jar.name.startswith(IN_PYSPARK)]
    script = HERE / "spark/words.py"
    done = subprocess.run(
        [sys.executable, script, bootstrap, topic, copy, ",".join(jars), tmp_path / "checkpoint"],
        env={**os.environ, "PYTHONPATH": str(PYSPARK), "SPARK_HOME": str(PYSPARK / "pyspark")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert "batch 500" in done.stdout
    assert "copied 1000" in done.stdout
    # The batch and the stream have each written every record.
    copied = [{**one, "offset": 0} for one in native_read(bootstrap, copy, 1_000)]
    twice = [{**one, "offset": 0} for one in written] * 2
    assert sorted(map(repr, map(_sorted, copied))) == sorted(map(repr, map(_sorted, twice)))


def _sorted(record: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted(record.items())
