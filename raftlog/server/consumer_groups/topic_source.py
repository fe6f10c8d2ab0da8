"""Which topics there are, for the coordinator of consumer groups.

A coordinator drops the offsets of topics that are gone. So it must not take a topic for gone of
which this broker has merely not heard yet. The log says which version of the cluster's state its
last coordinator had seen, and ``GroupShard`` waits until this broker has come so far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from raftlog.consumer_groups import TopicInfo
from raftlog.consumer_groups.values import Topics
from raftlog.server.cluster.node import ClusterNode
from raftlog.server.topic_table import TopicTable


class TopicSource(Protocol):
    """Where the coordinator has them from."""

    def topics(self) -> Topics:
        """All of them as of now."""
        ...

    def version_of(self, topics: Topics) -> int:
        """What members are told: it grows when topics have changed."""
        ...


class OwnTopics:
    """Of a broker that stands alone: its table is what there is, and nobody has seen more."""

    def __init__(self, table: TopicTable, wall_ms: Callable[[], int]) -> None:
        self._table = table
        self._wall_ms = wall_ms
        self._version = 0

    def topics(self) -> Topics:
        self._version = max(self._version + 1, self._wall_ms())
        return Topics({topic.name: TopicInfo(topic.id, len(topic.hosts)) for topic in self._table})

    def version_of(self, topics: Topics) -> int:  # noqa: ARG002 - there is one
        """Begins with the time, so that it grows from one run to the next, too."""
        return self._version


class AgreedTopics:
    """Of a broker among others: what was agreed on, as far as this broker has heard of it."""

    def __init__(self, cluster: ClusterNode) -> None:
        self._cluster = cluster

    def topics(self) -> Topics:
        machine = self._cluster.machine
        agreed = machine.topics.items()
        infos = {name: TopicInfo(topic.id, len(topic.partitions)) for name, topic in agreed}
        return Topics(infos, machine.version)

    def version_of(self, topics: Topics) -> int:
        """That of the cluster's state: every broker comes by the same ones."""
        return topics.version
