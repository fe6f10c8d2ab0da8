"""MirrorMaker 2 copies topics, their settings and the offsets of groups into a raftlog cluster."""

from __future__ import annotations

import contextlib
import subprocess
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
    NewTopic,
    ResourceType,
)

import raftlog
from raftlog.errors import UnknownGroupError, UnknownTopicError
from raftlog.testing import cluster
from raftlog.testing.cluster import wait_until
from tests.kafka_peers.install import version_in
from tests.kafka_peers.kafka_broker import JAVA, kafka_broker

VERSION = version_in("java/pom.xml", r"kafka-tools</artifactId>\s*<version>(.*?)<")
TIMEOUT_S = 180
EACH = 5_000  # records of a round
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

pytestmark = [pytest.mark.peers, pytest.mark.integration, pytest.mark.timeout(900)]


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
        assert self._producer.flush(TIMEOUT_S) == 0
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

    wait_until(has_all, timeout_s=TIMEOUT_S, what=f"the values of {topic}", progress=found.__len__)
    consumer.commit(asynchronous=False)
    consumer.close()


def source(name: str, run: Any, guarantee: str) -> object:
    feature = f"topics, settings and offsets of groups from {name} to raftlog, {guarantee}"
    marks = pytest.mark.feature("MirrorMaker 2", VERSION, feature)
    return pytest.param(run, guarantee, marks=marks, id=f"{name} {guarantee}")


@pytest.mark.parametrize(
    ("source", "guarantee"),
    [
        source("raftlog", raftlog_source, "exactly once"),
        source("Kafka", kafka_source, "at least once"),
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
        new = NewTopic(TOPIC, 2, 1, config={"retention.ms": "777777777"})
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
        wait_until(
            lambda: mirrored() >= EACH, timeout_s=TIMEOUT_S, what="copies", progress=mirrored
        )
        assert retention() == "777777777"
        wait_until(
            lambda: group_position() >= EACH, timeout_s=TIMEOUT_S, what="the group's offsets"
        )
        set_retention(admin, None)
        wait_until(lambda: retention() is None, timeout_s=TIMEOUT_S, what="the default")
        before = mirrored()
        later = orders.write()
        wait_until(lambda: mirrored() > before, timeout_s=TIMEOUT_S, what="more copies")
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
