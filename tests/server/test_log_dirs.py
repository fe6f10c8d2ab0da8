"""The services of partitions, by log directory, and what the broker says of its directories."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from raftlog.config import BrokerConfig
from raftlog.server.disks import DiskWatch, SpaceLevel
from raftlog.server.partition import BrokerClock, HostServices
from raftlog.server.scheduling import Unfinished
from raftlog.server.topic_table import LogDirMonitor
from raftlog.storage.log_dirs import DiskMeasure, LogDir
from tests.client.virtual import VirtualLoop
from tests.server.cluster.paper import PaperWorkers
from tests.server.harness import FakeClock
from tests.storage.logs import sim_disk


class Scene:
    """Directory "a" works, and "b" has failed at the start."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.workers, self.busy = PaperWorkers(self.loop), PaperWorkers(self.loop)
        self.workers.unfinished = self.busy.unfinished = Unfinished()
        self.a, self.b = (LogDir(sim_disk(), f"disks/{id_}", id_) for id_ in "ab")
        self.b.fail("it is not there")
        services = HostServices(
            clock=BrokerClock(FakeClock()),
            loop=self.loop,
            sync_workers=self.workers,
            disk=DiskWatch(self.loop, sync=self.workers, timeout_s=5.0),
            on_failed=self.never,
            on_damage=self.never,
        )
        self.monitor = LogDirMonitor(
            [self.a, self.b],
            BrokerConfig(disk_stall_timeout_ms=2_000),
            services,
            {"a": self.busy},
        )
        self.told: list[Any] = []
        self.monitor.start(
            on_failed=self.told.append, on_hung=self.told.append, while_hung=lambda: None
        )

    def never(self, _what: object) -> None:
        raise AssertionError

    def run(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.monitor.stop()
    made.loop.close()


def test_a_directory_that_works_has_services_of_its_own(scene: Scene) -> None:
    services = scene.monitor.services
    assert list(services.log_dirs) == ["a"]
    own = services.log_dirs["a"]
    assert own.sync_workers is not services.sync_workers
    assert own.disk is not services.disk
    assert own.space is not services.space
    assert own.on_failed == services.on_failed


def test_a_disk_that_hangs_gets_no_new_replicas_until_it_works(scene: Scene) -> None:
    watched = scene.monitor.watched["a"]
    assert watched.workers is scene.busy
    end = scene.busy.unfinished.until(lambda _result, _error: None)
    scene.run(1)
    assert not scene.a.is_avoided()
    scene.run(2)
    assert scene.told == [scene.a]
    assert scene.a.is_avoided()
    assert scene.monitor.is_hung(scene.a)
    assert "disks/a completes no sync" in scene.monitor.problem(scene.a)
    end(None, None)
    scene.run(1)
    assert not scene.a.is_avoided()
    assert scene.monitor.problem(scene.a) == ""


def test_a_disk_that_fills_up_gets_no_new_replicas(scene: Scene) -> None:
    space = scene.monitor.space(scene.a)
    space.measured(DiskMeasure(10, 1_000))
    assert space.level is SpaceLevel.READ_ONLY or space.level is SpaceLevel.NO_PRODUCERS
    assert scene.a.is_avoided()
    assert "10 of 1,000 bytes of the disk of disks/a are free" in scene.monitor.problem(scene.a)


def test_failures_are_told_and_named(scene: Scene) -> None:
    (problem,) = scene.monitor.problems
    assert "disks/b has failed: it is not there" in problem
    assert scene.monitor.space(scene.b).free_bytes == -1
    assert not scene.monitor.is_hung(scene.b)
    scene.a.fail("a bad cable")
    scene.a.fail("and again")
    assert scene.told == [scene.a]
    assert "a bad cable" in scene.monitor.problem(scene.a)
    assert scene.monitor.space(scene.a).free_bytes == -1
