"""The main job on the command line: lines in, the same lines out, though the broker is killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raftlog.testing import Cluster, cluster

pytestmark = pytest.mark.integration
Raftlog = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def running() -> Iterator[Cluster]:
    with cluster(brokers=1) as started:
        yield started


@pytest.fixture
def raftlog(running: Cluster) -> Iterator[Raftlog]:
    """Start a command as a process of its own; all are ended with the test."""
    started: list[subprocess.Popen[bytes]] = []
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "RAFTLOG_BOOTSTRAP": running.bootstrap,
    }

    def start(*arguments: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "raftlog", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def test_ten_thousand_lines_come_back_in_order(raftlog: Raftlog, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    lines = [chance.randbytes(chance.randrange(400)).replace(b"\n", b" ") for _ in range(10_000)]
    source = tmp_path / "lines"
    source.write_bytes(b"".join(line + b"\n" for line in lines))
    assert raftlog("topic", "create", "access").wait(timeout=30) == 0
    assert raftlog("produce", "access", "--file", source).wait(timeout=60) == 0
    out, _ = raftlog("tail", "access", "-o", "earliest", "-n", 10_000).communicate(timeout=60)
    assert out == source.read_bytes()


def test_a_producer_and_a_follower_outlive_a_killed_broker(
    raftlog: Raftlog, running: Cluster
) -> None:
    assert raftlog("topic", "create", "t").wait(timeout=30) == 0
    producer, follower = raftlog("produce", "t"), raftlog("tail", "t", "-o", "earliest", "-f")
    assert producer.stdin is not None
    assert producer.stdout is not None
    assert follower.stdout is not None

    def send_and_see(line: bytes) -> None:
        assert producer.stdin is not None
        assert follower.stdout is not None
        producer.stdin.write(line)
        producer.stdin.flush()
        assert follower.stdout.readline() == line

    send_and_see(b"before\n")
    running.brokers[0].kill()
    producer.stdin.write(b"while it is down\n")
    producer.stdin.flush()
    running.brokers[0].start()
    assert follower.stdout.readline() == b"while it is down\n"
    send_and_see(b"after\n")
    producer.stdin.close()
    assert producer.stdout.read().splitlines()[0] == b"3 records to t"
    assert producer.wait(timeout=30) == 0
