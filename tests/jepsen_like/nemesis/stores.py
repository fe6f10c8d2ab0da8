"""Clusters for nemeses that change files: one whose brokers only open their data, and real ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from raftlog import Admin, NewTopic
from raftlog.config.address import Address
from raftlog.consensus.journal import Journal
from raftlog.disk import OsDisk
from raftlog.errors import BrokerUnavailableError, RaftlogError
from raftlog.storage import Store
from raftlog.types import TopicPartition
from raftlog_jepsen.cluster import ClusterUnderTest, Needs
from raftlog_jepsen.nemesis.base import Expectation
from raftlog_jepsen.plan import Shape, TopicShape
from raftlog_jepsen.status import ClusterStatus, PartitionStatus
from tests.integration.load import PATIENCE_S, TOPIC, Load
from tests.storage.logs import append, fill

SETTINGS = {"segment.bytes": "16384", "retention.ms": "-1"}
BATCH_BYTES = 2_000
CLUSTER_ID = "cluster"


def shape_of(brokers: int, copies: int, *, partitions: int = 1, min_isr: int = 1) -> Shape:
    topic = TopicShape(
        name=TOPIC, partitions=partitions, replication_factor=copies, min_isr=min_isr
    )
    return Shape(brokers=brokers, topics=(topic,))


def make_data(data_dir: Path, broker_id: int, *, partitions: int = 1) -> None:
    """A broker's data directory as a SIGKILL leaves it, with all kinds of files in it.

    Three segments in each partition; indexes cover all but the last batch, which is synced.
    """
    store = Store.open(OsDisk(), str(data_dir), broker_id=broker_id, cluster_id=CLUSTER_ID)
    store.host_partitions(
        TOPIC, "topic-id", range(partitions), total_partitions=partitions, overrides=SETTINGS
    )
    for number in range(partitions):
        log = store.log(TOPIC, number)
        fill(log, 18, size=BATCH_BYTES, sync=False)
        append(log, b"by a producer", producer=(7, 0, 0))
        task = log.begin_sync(snapshot=True)
        assert task is not None
        task.run()
        log.complete_sync(task)
        fill(log, 1, size=BATCH_BYTES)
    store.abandon()
    journal = Journal.open(OsDisk(), store.journal_path)
    for number in range(6):
        journal.note_peer(9, "directory", number + 1)
        journal.sync()
    journal.close()


@dataclass
class FakeProcess:
    log_path: Path
    running: bool = True

    def stop(self) -> None:
        self.running = False


@dataclass
class FakeHost:
    process: FakeProcess
    data_dir: Path
    address: Address = Address("127.0.0.1", 1)


@dataclass
class FakeCluster:
    """Brokers that recover their data when they start, and say what that finds, and no more.

    Starting one that has nothing gives it an empty directory; ``wary``: peers refuse to work with
    these, once they start.
    """

    directory: Path
    shape: Shape
    hosts: dict[int, FakeHost] = field(default_factory=dict)
    wary: set[int] = field(default_factory=set)
    starts: list[int] = field(default_factory=list)
    expected: set[int] = field(default_factory=set)

    def up(self) -> set[int]:
        return {number for number, host in self.hosts.items() if host.process.running}

    def kill(self, broker_ids: Collection[int]) -> None:
        for broker_id in broker_ids:
            self.hosts[broker_id].process.running = False

    def expect_exit(self, broker_ids: Collection[int]) -> None:
        self.expected |= set(broker_ids)

    def start_broker(self, broker_id: int) -> float:
        host = self.hosts[broker_id]
        if host.process.running:
            return 0.0
        self.starts.append(broker_id)
        with host.process.log_path.open("a") as log:
            try:
                self._open(host.data_dir, broker_id)
            except RaftlogError as error:
                log.write(f"raftlog broker {broker_id}: {error}\n")
                raise BrokerUnavailableError(
                    f"broker {broker_id} ended with status 1: raftlog broker {broker_id}: {error}"
                ) from error
            if broker_id in self.wary:
                self.wary.discard(broker_id)
                log.write("broker 9 and this one cannot work together: an old copy\n")
        host.process.running = True
        return 0.25

    def _open(self, data_dir: Path, broker_id: int) -> None:
        store = Store.open(OsDisk(), str(data_dir), broker_id=broker_id, cluster_id="")
        is_new = not store.identity.cluster_id
        store.adopt_cluster_id(CLUSTER_ID)
        try:
            Journal.open(OsDisk(), store.journal_path, create=is_new).close()
        finally:
            store.abandon()

    def status(self) -> ClusterStatus:
        everybody = frozenset(self.hosts)
        return {
            TopicPartition(TOPIC, 0): PartitionStatus(
                topic=TOPIC,
                partition=0,
                leader=1,
                leader_epoch=1,
                replicas=tuple(self.hosts),
                isr=everybody,
                caught_up=everybody,
            )
        }


def fake_cluster(directory: Path, *, brokers: int = 3, partitions: int = 1) -> FakeCluster:
    """With data; all of them run."""
    cluster = FakeCluster(directory, shape_of(brokers, brokers, partitions=partitions))
    for number in cluster.shape.broker_ids:
        data_dir = directory / f"broker-{number}"
        make_data(data_dir, number, partitions=partitions)
        log_path = directory / f"broker-{number}.log"
        log_path.touch()
        cluster.hosts[number] = FakeHost(FakeProcess(log_path), data_dir)
    return cluster


@dataclass
class FakeLedger:
    """Answers ``answers`` in their order, and then allows everything."""

    answers: list[str] = field(default_factory=list)
    asked: list[tuple[int, ...]] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)

    def may_lose(self, targets: Collection[int], *, recoverable: bool = False) -> str:
        self.asked.append(tuple(sorted(targets)))
        return self.answers.pop(0) if self.answers else ""

    def may_stop(self, targets: Collection[int]) -> Expectation:
        return "available"

    def lost(self, targets: Collection[int]) -> None:
        self.failed |= set(targets)

    def returned(self, targets: Collection[int]) -> None:
        self.failed -= set(targets)


@contextmanager
def loaded(
    directory: Path, shape: Shape, needs: Needs | None = None
) -> Iterator[tuple[ClusterUnderTest, Load]]:
    """A cluster under a load that is judged in the end, when all has to be well again."""
    running = ClusterUnderTest(shape, needs or Needs(), directory)
    try:
        running.start()
        (topic,) = shape.topics
        config = {**SETTINGS, "min.insync.replicas": str(topic.min_isr)}
        with Admin(running.bootstrap) as admin:
            admin.create_topics(
                [NewTopic(topic.name, topic.partitions, topic.replication_factor, config)]
            )
        assert running.wait_quiet(PATIENCE_S) == []
        with Load(running.bootstrap, partitions=topic.partitions) as load:
            load.goes_on(count=200)
            yield running, load
            load.goes_on(count=100)
        assert running.wait_quiet(PATIENCE_S) == []
        assert running.unexpected_exits() == []
        load.check(running.bootstrap)
    finally:
        running.close()
