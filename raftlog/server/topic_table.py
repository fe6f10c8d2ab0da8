"""Which topics and partitions this broker serves, as the event loop sees them.

The store's catalog is what is on the disk, and is changed by administration in a thread; this table
is changed on the loop only, after the disk has it (creation) or before (deletion).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from raftlog.config import TopicConfig
from raftlog.errors import UnknownPartitionError, UnknownTopicError
from raftlog.protocol.metadata import PartitionInfo
from raftlog.server.replica_host import PartitionHost
from raftlog.types import check_topic_name


@dataclass(slots=True)
class HostedTopic:
    """Invariant: partition ``i`` is ``hosts[i]``."""

    name: str
    id: str
    config: TopicConfig
    overrides: Mapping[str, str]
    hosts: list[PartitionHost] = field(default_factory=list)

    def partition_infos(self, *, broker_id: int) -> list[PartitionInfo]:
        """Who leads each partition: while there is one broker, it does."""
        return [
            PartitionInfo(
                partition=partition,
                leader=broker_id,
                leader_epoch=host.leader_epoch,
                replicas=[broker_id],
                isr=[broker_id],
            )
            for partition, host in enumerate(self.hosts)
        ]


class TopicTable:
    """Topics by name, in the order of their names when iterated."""

    def __init__(self) -> None:
        self._topics: dict[str, HostedTopic] = {}

    def __iter__(self) -> Iterator[HostedTopic]:
        return iter([self._topics[name] for name in sorted(self._topics)])

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    @property
    def partition_count(self) -> int:
        return sum(len(topic.hosts) for topic in self._topics.values())

    def add(self, topic: HostedTopic) -> None:
        assert topic.name not in self._topics
        self._topics[topic.name] = topic

    def remove(self, name: str) -> HostedTopic:
        return self._topics.pop(name)

    def topic(self, name: str) -> HostedTopic:
        """Raises ``InvalidTopicError`` or ``UnknownTopicError``."""
        topic = self._topics.get(name)
        if topic is None:
            check_topic_name(name)
            raise UnknownTopicError(
                f"there is no topic {name!r}; create it first (raftlog topic create {name})"
            )
        return topic

    def host(self, name: str, partition: int) -> PartitionHost:
        """Raises what ``topic`` raises, or ``UnknownPartitionError``."""
        topic = self._topics.get(name) or self.topic(name)
        if partition < len(topic.hosts):
            return topic.hosts[partition]
        raise UnknownPartitionError(
            f"topic {name} has no partition {partition}: it has {len(topic.hosts)} "
            f"(0 to {len(topic.hosts) - 1})"
        )

    def hosts(self) -> list[PartitionHost]:
        """Every partition's, as of now."""
        return [host for topic in self._topics.values() for host in topic.hosts]
