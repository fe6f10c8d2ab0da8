"""Kafka Connect with several workers: a file becomes a topic, and a topic becomes a file, while
workers and brokers are killed.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from raftlog import Admin, NewTopic, scan
from raftlog.testing import cluster
from raftlog.testing.cluster import free_port, wait_until
from tests.kafka_peers.install import version_in
from tests.kafka_peers.kafka_broker import JAVA

VERSION = version_in("java/pom.xml", r"kafka-tools</artifactId>\s*<version>(.*?)<")
TIMEOUT_S = 120
EACH = 5_000  # lines per round
FILE = "org.apache.kafka.connect.file.FileStream"
SOURCE = {"connector.class": f"{FILE}SourceConnector", "topic": "lines", "batch.size": "500"}
SINK = {"connector.class": f"{FILE}SinkConnector", "topics": "lines"}
WORKER = {
    "group.id": "workers",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "config.storage.topic": "connect-configs",
    "offset.storage.topic": "connect-offsets",
    "status.storage.topic": "connect-status",
    "offset.flush.interval.ms": "500",
    "scheduled.rebalance.max.delay.ms": "0",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1000",
    "consumer.isolation.level": "read_committed",
}

pytestmark = [pytest.mark.peers, pytest.mark.integration, pytest.mark.timeout(900)]


class Worker:
    """A worker of Connect, and its REST interface."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._path = directory / f"worker-{self.url[-5:]}.properties"
        lines = {**settings, "listeners": self.url}.items()
        self._path.write_text("".join(f"{name}={value}\n" for name, value in lines))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._path.with_suffix(".log").open("ab") as log:
            words = (*JAVA, "org.apache.kafka.connect.cli.ConnectDistributed", self._path)
            self._process = subprocess.Popen(words, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Returns what the worker responds, or ``None`` if it cannot now: a rebalance is on."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return json.loads(response.read() or b"{}")
        except urllib.error.HTTPError as error:
            if error.code not in {404, 409}:
                pytest.fail(f"{method} {path}: {error.code} {error.read().decode()}")
        except OSError:
            assert self._process is not None
            assert self._process.poll() is None, "the worker has ended"
        return None

    def do(self, method: str, path: str, body: Any = None) -> None:
        what = f"{method} {path}"
        wait_until(lambda: self.ask(method, path, body) is not None, timeout_s=TIMEOUT_S, what=what)

    def place(self, connector: str) -> str | None:
        """The address of the worker with the connector's task, if both run."""
        status = self.ask("GET", f"/connectors/{connector}/status")
        tasks = status["tasks"] if status else []
        assert all(task["state"] != "FAILED" for task in tasks), status
        running = [task for task in tasks if task["state"] == "RUNNING"]
        return running[0]["worker_id"] if running else None

    def wait_running(self, connector: str) -> str:
        what = f"a task of {connector} runs"
        wait_until(lambda: self.place(connector) is not None, timeout_s=TIMEOUT_S, what=what)
        place = self.place(connector)
        assert place is not None
        return place


@contextlib.contextmanager
def workers(directory: Path, settings: Mapping[str, str]) -> Iterator[list[Worker]]:
    made = [Worker(directory, settings) for _ in range(2)]
    try:
        for worker in made:
            worker.start()
        yield made
    finally:
        for worker in made:
            worker.kill()


def source(guarantee: str) -> object:
    name = f"file source {guarantee}, and file sink, while workers and brokers are killed"
    return pytest.param(guarantee, marks=pytest.mark.feature("Kafka Connect", VERSION, name))


@pytest.mark.parametrize("guarantee", [source("at least once"), source("exactly once")])
def test_lines_of_a_file_pass_a_topic_while_workers_and_brokers_are_killed(
    guarantee: str, tmp_path: Path
) -> None:
    source, sink = tmp_path / "source", tmp_path / "sink"
    source.touch()
    sink.touch()
    is_exact = guarantee == "exactly once"
    exact = {"exactly.once.source.support": "enabled"} if is_exact else {}
    written: list[str] = []
    seen: set[str] = set()
    rest = ""

    def write(count: int = EACH) -> None:
        added = [f"line {number}" for number in range(len(written), len(written) + count)]
        with source.open("a") as file:
            file.writelines(f"{line}\n" for line in added)
        written.extend(added)

    def arrived() -> int:
        nonlocal rest
        *lines, rest = (rest + output.read()).split("\n")
        seen.update(lines)
        return len(seen)

    def wait_arrived() -> None:
        end = time.monotonic() + TIMEOUT_S
        while arrived() < len(written):
            assert time.monotonic() < end, f"{arrived()} of {len(written)} lines"
            with contextlib.suppress(TimeoutError):
                wait_until(lambda: arrived() >= len(written), timeout_s=2, progress=arrived)
                break
            write(1)  # the source keeps what it has read beyond a batch until the file grows

    with sink.open() as output, cluster(3, with_relays=False) as brokers:
        with Admin(brokers.bootstrap) as admin:
            admin.create_topics([NewTopic("lines", 1, 3)])
        settings = {**WORKER, **exact, "bootstrap.servers": brokers.bootstrap}
        with workers(tmp_path, settings) as pair:
            one, other = pair
            one.do("PUT", "/connectors/source/config", {**SOURCE, "file": str(source)})
            other.do("PUT", "/connectors/sink/config", {**SINK, "file": str(sink)})
            one.wait_running("source")
            write()
            wait_arrived()
            for victim in brokers.brokers:
                place = one.wait_running("source")
                killed, left = (one, other) if one.url.endswith(place) else (other, one)
                before = arrived()
                write()
                wait_until(lambda: arrived() > before, what="work")  # noqa: B023
                killed.kill()
                write()
                left.wait_running("source")
                wait_arrived()
                victim.kill()
                write()
                killed.start()
                victim.start()
                wait_arrived()
                killed.do("GET", "/")
                one.do("DELETE", "/connectors/source")
                write()
                other.do("PUT", "/connectors/source/config", {**SOURCE, "file": str(source)})
                wait_arrived()
        values = scan("lines", bootstrap=brokers.bootstrap).to_arrow()["value"].to_pylist()
    stored = [value.decode() for value in values]
    if is_exact:
        assert stored == written
    else:
        assert set(stored) == set(written)
