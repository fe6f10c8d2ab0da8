"""Kafka Connect: connectors of files with several workers, and MirrorMaker 2."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.admin import (
    NewTopic as KafkaNewTopic,
)

import raftlog
from raftlog import Admin, NewTopic, scan
from raftlog.errors import UnknownGroupError, UnknownTopicError
from raftlog.testing import cluster
from raftlog.testing.cluster import free_port, wait_until
from tests.kafka_peers.install import version_in
from tests.kafka_peers.kafka_broker import JAVA, kafka_broker

pytestmark = [pytest.mark.peers, pytest.mark.integration, pytest.mark.timeout(900)]

# -- connectors ------------------------------------------------------------------------------------

# Kafka Connect with several workers: a file becomes a topic, and a topic becomes a file, while
# workers and brokers are killed.


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


# -- MirrorMaker -----------------------------------------------------------------------------------

# MirrorMaker 2 copies topics, their settings and the offsets of groups into a raftlog cluster.


MIRROR_S = 180
TOPIC, COPY, GROUP = "orders", "source.orders", "readers"
MIRROR = {
    "clusters": "source,target",
    "source->target.enabled": "true",
    "source->target.topics": TOPIC,
    "source->target.groups": GROUP,
    "target->source.enabled": "false",
    "emit.heartbeats.enabled": "false",
    "sync.topic.acls.enabled": "false",
    "sync.topic.configs.interval.seconds": "1",
    "refresh.topics.interval.seconds": "1",
    "refresh.groups.interval.seconds": "1",
    "emit.checkpoints.interval.seconds": "1",
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
    "offset.lag.max": "0",
    "replication.factor": "3",
    "checkpoints.topic.replication.factor": "3",
    "offset-syncs.topic.replication.factor": "1",
    "source.offset.storage.replication.factor": "1",
    "dedicated.mode.enable.internal.rest": "true",
    "listeners": "http://127.0.0.1:0",
    "scheduled.rebalance.max.delay.ms": "0",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1000",
    "producer.transaction.timeout.ms": "10000",
}


@contextlib.contextmanager
def raftlog_source(directory: Path) -> Iterator[str]:
    with cluster(1, directory=directory, with_relays=False) as brokers:
        yield brokers.bootstrap


@contextlib.contextmanager
def kafka_source(directory: Path) -> Iterator[str]:
    with kafka_broker(directory) as address:
        yield str(address)


class Mirror:
    """The process of MirrorMaker."""

    def __init__(self, path: Path, settings: Mapping[str, str]) -> None:
        self._path = path
        path.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        self.start()

    def start(self) -> None:
        with self._path.with_suffix(".log").open("ab") as log:
            words = (*JAVA, "org.apache.kafka.connect.mirror.MirrorMaker", self._path)
            self._process = subprocess.Popen(words, stdout=log, stderr=log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Orders:
    """Writes the records of the topic, and knows them: partition, key and value."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self.written: list[tuple[int, bytes, bytes]] = []

    def write(self) -> set[bytes]:
        """Write as many records as a round has. Returns their values."""
        numbers = range(len(self.written), len(self.written) + EACH)
        added = [(number % 2, b"key-%d" % number, b"value-%d" % number) for number in numbers]
        for partition, key, value in added:
            self._producer.produce(TOPIC, value, key, partition)
            self._producer.poll(0)
        assert self._producer.flush(MIRROR_S) == 0
        self.written += added
        return {value for _, _, value in added}


def set_retention(admin: AdminClient, value: str | None) -> None:
    kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry("retention.ms", value or "", incremental_operation=kind)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()


def consume(bootstrap: str, topic: str, values: set[bytes]) -> None:
    """Read as a member of the group until it has all values, and commit."""
    config = {"bootstrap.servers": bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest"}
    consumer = Consumer({**config, "enable.auto.commit": False})
    consumer.subscribe([topic])
    found: set[bytes | None] = set()

    def has_all() -> bool:
        found.update(message.value() for message in consumer.consume(500, 1.0))
        return values <= found

    wait_until(
        has_all,
        timeout_s=MIRROR_S,
        what=f"the values of {topic}",
        progress=found.__len__,
    )
    consumer.commit(asynchronous=False)
    consumer.close()


def source_cluster(name: str, run: Any, guarantee: str) -> object:
    feature = f"topics, settings and offsets of groups from {name} to raftlog, {guarantee}"
    marks = pytest.mark.feature("MirrorMaker 2", VERSION, feature)
    return pytest.param(run, guarantee, marks=marks, id=f"{name} {guarantee}")


@pytest.mark.parametrize(
    ("source", "guarantee"),
    [
        source_cluster("raftlog", raftlog_source, "exactly once"),
        source_cluster("Kafka", kafka_source, "at least once"),
    ],
)
def test_topics_settings_and_groups_are_mirrored(
    source: Any, guarantee: str, tmp_path: Path
) -> None:
    is_exact = guarantee == "exactly once"
    exact = {"target.exactly.once.source.support": "enabled"} if is_exact else {}
    with contextlib.ExitStack() as stack:
        (tmp_path / "source").mkdir()
        address = stack.enter_context(source(tmp_path / "source"))
        brokers = stack.enter_context(cluster(3, with_relays=False))
        admin = AdminClient({"bootstrap.servers": address})
        new = KafkaNewTopic(TOPIC, 2, 1, config={"retention.ms": "777777777"})
        admin.create_topics([new])[TOPIC].result()
        orders = Orders(address)
        target = stack.enter_context(raftlog.Admin(brokers.bootstrap))

        def mirrored() -> int:
            with contextlib.suppress(UnknownTopicError):
                return sum(offset or 0 for offset in target.offsets(COPY).values())
            return 0

        def retention() -> str | None:
            (topic,) = target.describe_topics([COPY])
            is_set = "retention.ms" in topic.config_overrides
            return topic.config["retention.ms"] if is_set else None

        def group_position() -> int:
            with contextlib.suppress(UnknownGroupError):
                return sum(one.offset for one in target.group_offsets(GROUP).values())
            return 0

        consume(address, TOPIC, orders.write())
        settings = {
            **MIRROR,
            **exact,
            "source.bootstrap.servers": address,
            "target.bootstrap.servers": brokers.bootstrap,
        }
        mirror = Mirror(tmp_path / "mirror.properties", settings)
        stack.callback(mirror.kill)
        wait_until(lambda: mirrored() >= EACH, timeout_s=MIRROR_S, what="copies", progress=mirrored)
        assert retention() == "777777777"
        wait_until(lambda: group_position() >= EACH, timeout_s=MIRROR_S, what="the group's offsets")
        set_retention(admin, None)
        wait_until(lambda: retention() is None, timeout_s=MIRROR_S, what="the default")
        before = mirrored()
        later = orders.write()
        wait_until(lambda: mirrored() > before, timeout_s=MIRROR_S, what="more copies")
        mirror.kill()
        later |= orders.write()
        brokers.brokers[0].kill()
        mirror.start()
        brokers.brokers[0].start()
        consume(brokers.bootstrap, COPY, later)
        table = raftlog.scan(COPY, bootstrap=brokers.bootstrap).to_arrow()
    found = list(
        zip(*(table[name].to_pylist() for name in ("partition", "key", "value")), strict=True)
    )
    if is_exact:
        for partition in range(2):
            expected = [one for one in orders.written if one[0] == partition]
            assert [one for one in found if one[0] == partition] == expected
    else:
        assert Counter(found) >= Counter(orders.written)
