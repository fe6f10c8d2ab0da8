"""The mirror as a process between two real clusters: it and brokers of each side are killed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.testing import Cluster, cluster

pytestmark = pytest.mark.integration

PARTITIONS = [TopicPartition("t", number) for number in range(2)]
BATCHES = 36
DELETED = 70  # inside of the second batch: the copy begins with a hole
VALUES = [b"%d" % number * 20 for number in range(50)]


@pytest.fixture(scope="module")
def source() -> Iterator[Cluster]:
    with cluster(brokers=3) as started:
        yield started


@pytest.fixture(scope="module")
def target() -> Iterator[Cluster]:
    with cluster(brokers=3) as started:
        yield started


def contents(bootstrap: str) -> list[list[tuple[object, ...]]]:
    """Offset, value and time of each record of each partition."""
    found: list[list[tuple[object, ...]]] = []
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        for tp in PARTITIONS:
            consumer.assign([tp])
            end = consumer.end_offsets([tp])[tp]
            records = []
            while consumer.position(tp) < end:
                records += consumer.poll(timeout_ms=1_000, max_records=10_000)
            found.append([(record.offset, record.value, record.timestamp_ms) for record in records])
    return found


class MirrorProcess:
    """``raftlog mirror``, started again after each kill."""

    def __init__(self, source: Cluster, target: Cluster) -> None:
        self._command = [
            *(sys.executable, "-m", "raftlog", "mirror", "--topics", "t", "--json"),
            *("--from", source.bootstrap, "--to", target.bootstrap),
        ]

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*self._command, *more], stdout=subprocess.PIPE)


def produce(source: Cluster, go_on: threading.Semaphore) -> None:
    """Send batches: the first third at once, the others when the test lets it continue."""
    with Producer(source.bootstrap) as producer:
        for number in range(BATCHES):
            if number >= BATCHES // 3:
                go_on.acquire(timeout=20)
            for tp in PARTITIONS:
                producer.send_many(tp.topic, VALUES, partition=tp.partition).result(timeout=60)


def wait_for_copies(running: subprocess.Popen[bytes], count: int) -> None:
    """Read the progress of a running mirror until it has copied ``count`` records."""
    assert running.stdout is not None
    for line in running.stdout:
        if json.loads(line)["records"] >= count:
            return
    pytest.fail("the mirror ended early")


def test_kills_lose_and_repeat_no_record(source: Cluster, target: Cluster, tmp_path: Path) -> None:
    with Admin(source.bootstrap) as admin:
        admin.create_topics([NewTopic("t", len(PARTITIONS), 3)])
        with Producer(source.bootstrap) as producer:
            for tp in PARTITIONS * 2:
                producer.send_many(tp.topic, VALUES, partition=tp.partition).result(timeout=60)
        admin.delete_records(dict.fromkeys(PARTITIONS, DELETED))
    go_on = threading.Semaphore(0)
    writing = threading.Thread(target=produce, args=(source, go_on))
    writing.start()
    mirror = MirrorProcess(source, target)
    victims = (None, source, target, None)
    for step, victim in enumerate(victims):
        with mirror.start() as running:
            for _ in range(BATCHES // 6):
                go_on.release()
            wait_for_copies(running, 1)
            if victim is not None:
                victim.brokers[step % 3].kill()
                wait_for_copies(running, 2 * len(VALUES))
            running.kill()
    for _ in range(BATCHES):
        go_on.release()
    writing.join()
    with mirror.start("--once") as last:
        out, _ = last.communicate(timeout=60)
    assert last.returncode == 0
    assert json.loads(out.splitlines()[-1])["lag"] == 0
    expected = contents(source.bootstrap)
    count = (BATCHES + 2) * len(VALUES) - DELETED
    assert [len(records) for records in expected] == [count] * len(PARTITIONS)
    assert contents(target.bootstrap) == expected
    for side in (source, target):
        side.start()
