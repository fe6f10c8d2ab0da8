"""Three brokers as their units run them, restarted one by one under load, as the manual says."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.testing.cluster import free_ports
from tests.cli.conftest import Raftlog, raftlog
from tests.deploy.test_manifests import UNIT

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(300)]
__all__ = ["raftlog"]  # a fixture

STOP_S = 60  # TimeoutStopSec of the unit


class Unit:
    """One broker, as systemd runs the unit: its command, its signal, its settings in a file."""

    def __init__(self, directory: Path, number: int, ports: dict[int, int], http: int) -> None:
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in ports.items())
        self.settings = directory / f"broker-{number}.toml"
        self.settings.write_text(
            f'id = {number}\nlisten = "127.0.0.1:{ports[number]}"\n'
            f'data.dir = "{directory}/broker-{number}"\nhttp.listen = "127.0.0.1:{http}"\n'
            f'voters = "{voters}"\ncluster.secret = "{"s" * 64}"\n'
        )
        self.url = f"http://127.0.0.1:{http}"
        self._log = directory / f"broker-{number}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (line,) = [text for text in UNIT.splitlines() if text.startswith("ExecStart=")]
        program, *arguments = shlex.split(line.removeprefix("ExecStart="))
        assert program.endswith("/raftlog")
        arguments[arguments.index("--config") + 1] = str(self.settings)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "raftlog", *arguments],
                stdin=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_S)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def load(bootstrap: str, topic: str) -> Iterator[list[tuple[TopicPartition, int, bytes]]]:
    """Sends records until the block ends. Yields those that are acknowledged; no send may fail."""
    acknowledged: list[tuple[TopicPartition, int, bytes]] = []
    problems: list[Exception] = []
    stopping = threading.Event()

    def send() -> None:
        number = 0
        try:
            with Producer(bootstrap, acks="all", linger_ms=5) as producer:
                while not stopping.wait(0.01):
                    values = [b"%d" % n for n in range(number, number + 10)]
                    sent = [
                        (v, producer.send(topic, v, partition=n % 3)) for n, v in enumerate(values)
                    ]
                    number += 10
                    for value, future in sent:
                        meta = future.result(60)
                        tp = TopicPartition(meta.topic, meta.partition)
                        acknowledged.append((tp, meta.offset, value))
        except Exception as error:  # noqa: BLE001 - any error of a client fails the test
            problems.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield acknowledged
    finally:
        stopping.set()
        thread.join(90)
    assert problems == []


def test_a_rolling_restart_loses_nothing_and_no_client_sees_an_error(
    tmp_path: Path, raftlog: Raftlog
) -> None:
    ports = dict(enumerate(free_ports(6), start=1))
    http = [ports.pop(number) for number in (4, 5, 6)]
    units = [Unit(tmp_path, n, ports, at) for n, at in zip(ports, http, strict=True)]
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports.values())
    with ExitStack() as stack:
        for unit in units:
            stack.callback(unit.kill)
            unit.start()
        for unit in units:
            assert raftlog("ready", unit.url).status == 0
        with Admin(bootstrap) as admin:
            admin.create_topics([NewTopic("t", 3, 3)])
        with load(bootstrap, "t") as acknowledged:
            for unit in units:
                ran = raftlog("ready", unit.url, "--restart", "--timeout", 60)
                assert ran.status == 0, ran.err
                before = len(acknowledged)
                assert unit.stop() == 0
                unit.start()
                ran = raftlog("ready", unit.url, "--timeout", 60)
                assert ran.status == 0, ran.err
                assert len(acknowledged) > before
        found = read(bootstrap, acknowledged)
    assert len(acknowledged) > 100
    assert [found.get((tp, offset)) for tp, offset, _ in acknowledged] == [
        value for _, _, value in acknowledged
    ]
    assert len(set(found.values())) == len(found) == len(acknowledged)


def read(
    bootstrap: str, acknowledged: list[tuple[TopicPartition, int, bytes]]
) -> dict[tuple[TopicPartition, int], bytes]:
    """All records of the topic, by partition and offset."""
    found: dict[tuple[TopicPartition, int], bytes] = {}
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = sorted({tp for tp, _, _ in acknowledged})
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while len(found) < sum(ends.values()):
            for record in consumer.poll(timeout_ms=1_000):
                tp = TopicPartition(record.topic, record.partition)
                found[tp, record.offset] = record.value or b""
    return found
