"""Kafka Streams with exactly_once_v2: each word is counted once, also when brokers are killed."""

from __future__ import annotations

import subprocess
from itertools import cycle, islice
from pathlib import Path

import pytest

from raftlog import Admin, Consumer, NewTopic, Producer
from raftlog.testing import cluster
from tests.kafka_peers.install import CACHE, JAVA_LIBRARY, version_in

VERSION = version_in("java/pom.xml", r"kafka-streams</artifactId>\s*<version>(.*?)<")
WORDS = [f"word-{number}".encode() for number in range(10)]
ROUNDS, PER_ROUND = 6, 3_000
SILENCE_MS = 60_000

pytestmark = [pytest.mark.peers, pytest.mark.integration, pytest.mark.timeout(400)]


@pytest.mark.feature("Kafka Streams", VERSION, "exactly_once_v2 while brokers are killed")
def test_each_word_is_counted_once(tmp_path: Path) -> None:
    with cluster(3) as brokers:
        with Admin(brokers.bootstrap) as admin:
            admin.create_topics([NewTopic(name, 3, 3) for name in ("words", "counts")])
        library = f"{CACHE / 'java/peer'}:{JAVA_LIBRARY}/*"
        command = ["java", "-cp", library, "WordCount", brokers.bootstrap, str(tmp_path)]
        counter = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        counts: dict[bytes, list[int]] = {word: [] for word in WORDS}
        try:
            with (
                Producer(brokers.bootstrap) as producer,
                Consumer(brokers.bootstrap, auto_offset_reset="earliest") as consumer,
            ):
                consumer.subscribe(["counts"])
                for number in range(ROUNDS):
                    producer.send_many("words", list(islice(cycle(WORDS), PER_ROUND)))
                    producer.flush()
                    victim = brokers.brokers[number % 3]
                    victim.kill()
                    left = PER_ROUND
                    victim.start()
                    while left:
                        records = consumer.poll(SILENCE_MS)
                        assert records, f"{left} outputs of round {number} are missing"
                        left -= len(records)
                        for record in records:
                            counts[record.key].append(int(record.value))
        finally:
            assert counter.stdin is not None
            counter.stdin.close()
            counter.wait(60)
    expected = list(range(1, ROUNDS * PER_ROUND // len(WORDS) + 1))
    assert counts == dict.fromkeys(WORDS, expected)
