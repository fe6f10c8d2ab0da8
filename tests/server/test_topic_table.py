"""The topic table: finding partitions, and saying what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from raftlog.config import BrokerConfig, TopicConfig
from raftlog.errors import (
    ClusterNotReadyError,
    InvalidTopicError,
    NotLeaderError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.replication.partition_state import PartitionState
from raftlog.server.clock import BrokerClock
from raftlog.server.disks import DiskWatch, SpaceLevel
from raftlog.server.partition import Partition, ReplicaServices
from raftlog.server.scheduling import Unfinished
from raftlog.server.topic_table import HostedTopic, LogDirMonitor, TopicTable
from raftlog.storage.log_dirs import DiskMeasure, LogDir
from tests.client.virtual import VirtualLoop
from tests.server.cluster.fake import FakeWorkers
from tests.server.harness import FakeClock
from tests.storage.logs import sim_disk


def state(leader: int) -> PartitionState:
    return PartitionState(
        replicas=(leader,),
        witnesses=(),
        min_isr=1,
        leader=leader,
        leader_epoch=4,
        isr={leader: "d"},
        elr={},
        former={},
        version=0,
    )


class FakeLeadership:
    state = state(leader=7)


class FakeHost:
    """Only its leadership matters here."""

    leadership = FakeLeadership()


def hosted(name: str, partitions: int) -> HostedTopic:
    hosts = [cast(Partition, FakeHost()) for _ in range(partitions)]
    return HostedTopic(name, "id-" + name, TopicConfig(), {}, hosts)


@pytest.fixture
def table() -> TopicTable:
    table = TopicTable()
    table.add(hosted("b", 2))
    table.add(hosted("a", 1))
    return table


def test_topics_come_in_the_order_of_their_names(table: TopicTable) -> None:
    assert [topic.name for topic in table] == ["a", "b"]
    assert len(table.hosts()) == 3
    assert table.host("b", 1) is table.topic("b").hosts[1]


@pytest.mark.parametrize(
    ("name", "partition", "error", "words"),
    [
        ("b", 2, UnknownPartitionError, "0 to 1"),
        ("c", 0, UnknownTopicError, "topic create c"),
        ("a/b", 0, InvalidTopicError, "a-z"),
    ],
)
def test_what_is_missing_is_named(
    table: TopicTable, name: str, partition: int, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        table.host(name, partition)


def test_a_removed_topic_is_gone(table: TopicTable) -> None:
    assert table.remove("a").name == "a"
    with pytest.raises(UnknownTopicError):
        table.topic("a")


def test_names_that_differ_by_dots_only() -> None:
    table = TopicTable()
    for name in ("x.a", "x-a"):
        table.add(HostedTopic(name, name, TopicConfig(), {}, []))
    assert table.colliding("x_a") == "x.a"
    assert table.colliding("x.a") is None
    table.remove("x.a")
    assert table.colliding("x_a") is None
    assert not table._similar.keys() - {"x-a"}


def test_states_come_from_the_cluster_where_there_is_one(table: TopicTable) -> None:
    table.state_of = lambda topic_id, partition: state(leader=2) if partition == 1 else None
    unknown, known = (table.info(table.topic("b"), index) for index in range(2))
    assert (unknown.leader, unknown.leader_epoch, unknown.replicas) == (None, -1, [])
    assert (known.leader, known.replicas, known.witnesses) == (2, [2], [])


def test_a_partition_that_is_elsewhere_says_where(table: TopicTable) -> None:
    table.topic("b").hosts[1] = None
    table.state_of = lambda _topic_id, _partition: state(leader=2)
    with pytest.raises(NotLeaderError, match="its replicas are brokers 2"):
        table.host("b", 1)
    assert len(table.hosts()) == 2


def test_a_topic_may_be_unknown_only_because_the_broker_has_just_started(
    table: TopicTable,
) -> None:
    table.is_complete = False
    assert table.topic("a").name == "a"
    with pytest.raises(ClusterNotReadyError, match="just started"):
        table.topic("c")
    with pytest.raises(InvalidTopicError):
        table.topic("a/b")


def test_who_wants_to_know_is_told_of_topics_that_come_go_or_grow(table: TopicTable) -> None:
    noted: list[list[str]] = []
    table.on_change = lambda: noted.append([topic.name for topic in table])
    table.add(hosted("c", 1))
    table.extend(table.topic("c"), [None])
    table.extend(table.topic("c"), [])
    assert len(table.topic("c").hosts) == 2
    table.remove("a")
    assert noted == [["a", "b", "c"], ["a", "b", "c"], ["b", "c"]]


# -- log dirs --------------------------------------------------------------------------------------
#
# The services of partitions, by log directory, and what the broker says of its directories.


class Scene:
    """Directory "a" works, and "b" has failed at the start."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.workers, self.busy = FakeWorkers(self.loop), FakeWorkers(self.loop)
        self.workers.unfinished = self.busy.unfinished = Unfinished()
        self.a, self.b = (LogDir(sim_disk(), f"disks/{id_}", id_) for id_ in "ab")
        self.b.fail("it is not there")
        services = ReplicaServices(
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
        self.noted: list[Any] = []
        self.monitor.start(
            on_failed=self.noted.append, on_hung=self.noted.append, while_hung=lambda: None
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
    assert scene.noted == [scene.a]
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
    assert scene.noted == [scene.a]
    assert "a bad cable" in scene.monitor.problem(scene.a)
    assert scene.monitor.space(scene.a).free_bytes == -1
