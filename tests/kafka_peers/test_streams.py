"""Stream processors with exactly-once processing: each word is counted once, also when brokers and
the processor are killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import cycle, islice
from pathlib import Path

import pytest

from raftlog import Admin, Consumer, NewTopic, Producer
from raftlog.testing import cluster
from tests.kafka_peers.install import CACHE, FRAMEWORKS, HERE, JAVA_LIBRARY, version_in

WORDS = [f"word-{number}".encode() for number in range(10)]
SILENCE_MS = 60_000
STREAMS = version_in("java/pom.xml", r"kafka-streams</artifactId>\s*<version>(.*?)<")
QUIX = version_in("python/frameworks.txt", r"quixstreams==(\S+)")
JAVA = ("java", "-cp", f"{CACHE / 'java/peer'}:{JAVA_LIBRARY}/*", "WordCount")

pytestmark = [pytest.mark.peers, pytest.mark.integration, pytest.mark.timeout(600)]


def program(name: str) -> tuple[str, ...]:
    return (sys.executable, str(HERE / f"python/{name}.py"))


def processor(command: tuple[str, ...], rounds: int, each: int, version: str, name: str) -> object:
    guarantee = "exactly once while brokers and the processor are killed"
    feature = pytest.mark.feature(name, version, guarantee)
    return pytest.param(command, rounds, each, marks=feature, id=name)


@pytest.mark.parametrize(
    ("command", "rounds", "each"),
    [
        processor(JAVA, 6, 3_000, STREAMS, "Kafka Streams"),
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
