"""Clusters for nemeses that harm disks: one that only notes what is done to it, and a real one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from raftlog import Admin, NewTopic
from raftlog.errors import BrokerUnavailableError
from raftlog_jepsen.cluster import ClusterUnderTest, Needs
from raftlog_jepsen.control.disks import MARK_ROOM, LoopDiskError, why_not
from raftlog_jepsen.plan import Shape, TopicShape
from tests.integration.load import PATIENCE_S, TOPIC, Load

DISKS = Needs(loop_disks=True)


def shape_of(
    brokers: int, copies: int, *, min_isr: int = 1, flush_policy: str = "durable"
) -> Shape:
    topic = TopicShape(name=TOPIC, partitions=1, replication_factor=copies, min_isr=min_isr)
    return Shape(brokers=brokers, topics=(topic,), flush_policy=flush_policy)


@dataclass
class FakeProcess:
    running: bool = True


class FakeDisk:
    """Remembers what holds: ``error`` is what a write gets; ``forgets`` whether cuts work."""

    def __init__(self, *, forgets: bool = True, has_room: bool = True) -> None:
        self.forgets = forgets
        self.has_room = has_room
        self.is_full = False
        self.error = ""
        self.refuses: str = ""  # to be mounted again
        self.done: list[str] = []
        self._is_marked = False

    def mark(self) -> None:
        if not self.has_room:
            raise LoopDiskError("no room")
        self._is_marked = True

    def marked(self) -> bool:
        return self._is_marked

    def dirty_bytes(self) -> int:
        return 4096 + MARK_ROOM * self._is_marked

    def cut_power(self, *, journal: str) -> None:
        self.done.append(f"cut, journal {journal}")
        self._is_marked = self._is_marked and not self.forgets

    def mount(self) -> None:
        self.done.append("mount")

    def fill(self, leave_bytes: int) -> None:
        if self.error:
            raise LoopDiskError(self.error)
        self.is_full = True

    def free(self) -> None:
        self.is_full = False

    def trigger_error(self) -> None:
        self.error = "EROFS"

    def shutdown(self) -> None:
        self.error = "EIO"

    def remount(self) -> None:
        if self.refuses:
            raise LoopDiskError(self.refuses)
        self.done.append("remount")
        self.error = ""

    def probe(self, size_bytes: int = 4096) -> str:
        return self.error or ("ENOSPC" if self.is_full else "")


@dataclass
class FakeHost:
    disk: FakeDisk | None
    process: FakeProcess = field(default_factory=FakeProcess)


class FakeCluster:
    """Brokers that run when they are started, except for those that are ``stubborn``."""

    def __init__(self, *disks: FakeDisk | None) -> None:
        self.hosts = {number: FakeHost(disk) for number, disk in enumerate(disks, start=1)}
        self.stubborn: set[int] = set()
        self.expected: set[int] = set()

    def running(self) -> set[int]:
        return {number for number, host in self.hosts.items() if host.process.running}

    def kill(self, broker_ids: Collection[int]) -> None:
        for broker_id in broker_ids:
            self.hosts[broker_id].process.running = False

    def start_broker(self, broker_id: int) -> float:
        if broker_id in self.stubborn:
            raise BrokerUnavailableError(f"broker {broker_id} will not")
        self.hosts[broker_id].process.running = True
        return 0.25

    def expect_exit(self, broker_ids: Collection[int]) -> None:
        self.expected |= set(broker_ids)


@dataclass
class FakeLedger:
    """Whose disks are lost."""

    failed: set[int] = field(default_factory=set)
    noted: list[str] = field(default_factory=list)

    def lost(self, targets: Collection[int]) -> None:
        self.failed |= set(targets)
        self.noted.append(f"lost {sorted(targets)}")

    def returned(self, targets: Collection[int]) -> None:
        self.failed -= set(targets)
        self.noted.append(f"returned {sorted(targets)}")


@contextmanager
def loaded(
    directory: Path, shape: Shape, needs: Needs = DISKS
) -> Iterator[tuple[ClusterUnderTest, Load]]:
    """A cluster, on disks that can be harmed, under a load that is judged in the end."""
    if needs.loop_disks and why_not():
        pytest.skip(f"not injected: no disk can be harmed here: {why_not()}")
    running = ClusterUnderTest(shape, needs, directory)
    try:
        running.start()
        topic = shape.topics[0]
        with Admin(running.bootstrap) as admin:
            config = {"min.insync.replicas": str(topic.min_isr)}
            admin.create_topics([NewTopic(topic.name, 1, topic.replication_factor, config)])
        assert running.wait_quiet(PATIENCE_S) == []
        with Load(running.bootstrap) as load:
            yield running, load
        assert running.wait_quiet(PATIENCE_S) == []
        load.check(running.bootstrap)
    finally:
        running.close()
