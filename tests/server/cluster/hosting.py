"""``Partitions`` with a store on a simulated disk, and fakes around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftlog.config import BrokerConfig
from raftlog.protocol.security import PEER_PROTOCOL_VERSION
from raftlog.replication.cluster_commands import (
    CreateTopic,
    RaisePeerProtocol,
    founding_state,
)
from raftlog.replication.cluster_state import ClusterChange, TopicRecord
from raftlog.replication.partition_state import Elect, PartitionState
from raftlog.server.cluster.elections import HostedPartition, StateBroadcast
from raftlog.server.cluster.replicas import Partitions
from raftlog.server.partition import Partition
from raftlog.server.topic_table import TopicTable
from raftlog.storage import Store
from tests.server.cluster.fake import DISKS, FakeSurveys, Scene, play


class Hosting:
    """Broker 1 of three, with a store on the simulated disk."""

    def __init__(self, s: Scene) -> None:
        self.s = s
        s.see(2, 3)
        self.roles: list[tuple[HostedPartition, bool]] = []  # and whether its host is closed
        self.topics = TopicTable()
        self.state_broadcast = StateBroadcast(
            1, s.loop, s.plane.as_plane, s.links.as_links, brokers=lambda: [1, 2, 3]
        )
        ids = iter(range(1_000))
        self.store = Store.open(
            s.disk, "/data", broker_id=1, cluster_id="", new_id=lambda: f"id{next(ids)}"
        )
        s.machine.on_change = self._changed
        self.surveys = FakeSurveys(s)
        self.partitions = Partitions(
            1,
            s.me,
            config=BrokerConfig(),
            store=self.store,
            machine=s.machine,
            plane=s.plane.as_plane,
            liveness=s.liveness,
            topics=self.topics,
            services=s.services,
            worker=s.workers,
            state_broadcast=self.state_broadcast,
            surveys=self.surveys,
            on_role=self._role,
            on_ready=lambda: None,
        )

    def _role(self, hosted: HostedPartition) -> None:
        if hosted.host is not None:
            self.roles.append((hosted, hosted.host.closed is not None))

    def _changed(self, change: ClusterChange) -> None:
        self.partitions.schedule_topics(sorted(change.topics))

    async def begin(self) -> None:
        self.s.machine.restore(founding_state("c"))
        self.s.register(1, 2, 3)

    def upgrade(self) -> None:
        """All brokers run this release: topics that are created from now on start with leaders."""
        epochs = self.s.machine.broker_epochs()
        self.s.command(RaisePeerProtocol(version=PEER_PROTOCOL_VERSION, broker_epochs=epochs))

    async def create(
        self, name: str = "t", *, topic_id: str = "T1", partitions: int = 1, replicas: int = 3
    ) -> TopicRecord:
        record: TopicRecord = self.s.command(
            CreateTopic(
                name=name,
                topic_id=topic_id,
                partitions=partitions,
                replication_factor=replicas,
            )
        )
        await self.s.come_to_rest()
        return record

    def hosted(self, topic_id: str = "T1", partition: int = 0) -> HostedPartition:
        hosted = self.partitions.find(topic_id, partition)
        assert hosted is not None
        return hosted

    def host(self, topic_id: str = "T1", partition: int = 0) -> Partition:
        host = self.hosted(topic_id, partition).host
        assert host is not None
        return host

    async def elect(self, leader: int, topic_id: str = "T1", partition: int = 0) -> None:
        hosted = self.hosted(topic_id, partition)
        elect = Elect(hosted.state.version, leader, DISKS[leader], 1)
        hosted.machine.apply(elect.encode())
        await self.s.come_to_rest()

    async def apply(self, command: Any, topic_id: str = "T1") -> PartitionState:
        hosted = self.hosted(topic_id)
        hosted.machine.apply(command.encode())
        await self.s.come_to_rest()
        return hosted.state

    def on_disk(self) -> list[tuple[str, int]]:
        return [(topic.id, partition) for topic, partition, _ in self.store.hosted()]


def hosting(test: Callable[[Hosting], Any]) -> None:
    async def run(s: Scene) -> None:
        h = Hosting(s)
        await h.begin()
        await test(h)
        await h.partitions.stop()

    play(run)
