"""Topics of the cluster, for the group coordinator.

A coordinator removes the committed offsets of deleted topics. So it must not treat a topic as
deleted that this broker has not received yet. The log contains the version of the cluster's state
that its last coordinator had, and ``GroupShard`` waits until this broker has that version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from raftlog.consumer_groups import TopicInfo
from raftlog.consumer_groups.values import Topics
from raftlog.server.cluster.node import ClusterNode
from raftlog.server.topic_table import TopicTable


class TopicSource(Protocol):
    """Source of topics for the coordinator."""

    def topics(self) -> Topics:
        """Return all current topics."""
        ...

    def version_of(self, topics: Topics) -> int:
        """Return the version that members get: it increases when topics have changed."""
        ...


class OwnTopics:
    """Topics in single-broker mode: the broker's own table, always current."""

    def __init__(self, table: TopicTable, wall_ms: Callable[[], int]) -> None:
        self._table = table
        self._wall_ms = wall_ms
        self._version = 0

    def topics(self) -> Topics:
        self._version = max(self._version + 1, self._wall_ms())
        return Topics({topic.name: TopicInfo(topic.id, len(topic.hosts)) for topic in self._table})

    def version_of(self, topics: Topics) -> int:  # noqa: ARG002 - there is one
        """Version that starts with the time, so that it also increases from one incarnation to the
        next.
        """
        return self._version


class AgreedTopics:
    """Topics in a cluster: the committed state that this broker has received."""

    def __init__(self, cluster: ClusterNode) -> None:
        self._cluster = cluster

    def topics(self) -> Topics:
        machine = self._cluster.machine
        agreed = machine.topics.items()
        infos = {name: TopicInfo(topic.id, len(topic.partitions)) for name, topic in agreed}
        return Topics(infos, machine.version)

    def version_of(self, topics: Topics) -> int:
        """Version of the cluster's state: the same on every broker."""
        return topics.version
