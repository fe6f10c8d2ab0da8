"""Stream processors, and Spark's own connector for Kafka."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

import raftlog
from raftlog import Admin, Consumer, NewTopic, Producer
from raftlog.testing import cluster
from tests.kafka_peers.install import (
    CACHE,
    FLINK_LIBRARY,
    FRAMEWORKS,
    HERE,
    JAVA_LIBRARY,
    PYSPARK,
    SPARK_LIBRARY,
    version_in,
)
from tests.kafka_peers.records import native_read, native_write, some_records

# -- stream processors -----------------------------------------------------------------------------

# Stream processors with exactly-once processing: each word is counted once, also when brokers and
# the processor are killed.


WORDS = [f"word-{number}".encode() for number in range(10)]
SILENCE_MS = 60_000
STREAMS = version_in("java/pom.xml", r"kafka-streams</artifactId>\s*<version>(.*?)<")
QUIX = version_in("python/frameworks.txt", r"quixstreams==(\S+)")
FLINK = version_in("flink/pom.xml", r"flink-connector-kafka</artifactId>\s*<version>(.*?)<")
JAVA = ("java", "-cp", f"{CACHE / 'java/peer'}:{JAVA_LIBRARY}/*", "WordCount")
FLINK_JAVA = ("java", "-cp", f"{CACHE / 'flink/peer'}:{FLINK_LIBRARY}/*", "FlinkCount")


def program(name: str) -> tuple[str, ...]:
    return (sys.executable, str(HERE / f"python/{name}.py"))


def processor(command: tuple[str, ...], rounds: int, each: int, version: str, name: str) -> object:
    guarantee = "exactly once while brokers and the processor are killed"
    feature = pytest.mark.feature(name, version, guarantee)
    return pytest.param(command, rounds, each, marks=feature, id=name)


@pytest.mark.peers
@pytest.mark.integration
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("command", "rounds", "each"),
    [
        processor(JAVA, 6, 3_000, STREAMS, "Kafka Streams"),
        processor(FLINK_JAVA, 6, 3_000, FLINK, "Flink"),
        processor(program("quix_count"), 4, 1_000, QUIX, "Quix Streams"),
    ],
)
def test_each_word_is_counted_once(
    command: tuple[str, ...], rounds: int, each: int, tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(FRAMEWORKS)}
    with cluster(3) as brokers:
        with Admin(brokers.bootstrap) as admin:
            admin.create_topics([NewTopic(name, 3, 3) for name in ("words", "counts")])
        words = [*command, brokers.bootstrap, str(tmp_path)]

        read, write = os.pipe()  # a processor in Java ends with its input

        def start() -> subprocess.Popen[bytes]:
            nowhere = subprocess.DEVNULL
            return subprocess.Popen(
                words, env=environment, stdin=read, stdout=nowhere, stderr=nowhere
            )

        counts: dict[bytes, list[int]] = {word: [] for word in WORDS}
        counter = start()
        try:
            with (
                Producer(brokers.bootstrap) as producer,
                Consumer(brokers.bootstrap, auto_offset_reset="earliest") as consumer,
            ):
                consumer.subscribe(["counts"])
                for number in range(rounds):
                    sent = list(islice(cycle(WORDS), each))
                    producer.send_many("words", sent, keys=sent)
                    producer.flush()
                    victim = brokers.brokers[number % 3]
                    victim.kill()
                    if number % 2:
                        counter.kill()
                        counter.wait()
                        counter = start()
                    victim.start()
                    left = each
                    while left > 0:
                        records = consumer.poll(SILENCE_MS)
                        assert records, f"{left} outputs of round {number} are missing"
                        left -= len(records)
                        for record in records:
                            counts[record.key].append(int(record.value))
        finally:
            counter.terminate()
            counter.wait(60)
            os.close(read)
            os.close(write)
    expected = list(range(1, rounds * each // len(WORDS) + 1))
    assert counts == dict.fromkeys(WORDS, expected)


# -- Spark -----------------------------------------------------------------------------------------

# Spark's own connector for Kafka with topics of raftlog's clients.


VERSION = version_in("spark/pom.xml", r"2\.13</artifactId>\s*<version>(.*?)<")
# PySpark has these; a second copy of Scala's library would not load.
IN_PYSPARK = ("scala-library", "hadoop-", "slf4j", "lz4-java", "snappy-java")


@pytest.mark.peers
@pytest.mark.integration
@pytest.mark.feature("Spark's connector", VERSION, "batch and streaming, source and sink")
@pytest.mark.timeout(300)
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
