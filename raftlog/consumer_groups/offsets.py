"""Committed offsets of one group: storage, lookup and expiry. ``commits`` checks the committer."""

from __future__ import annotations

from collections.abc import Iterator

from raftlog.consumer_groups.records import OffsetValue
from raftlog.consumer_groups.values import Committed, Topics
from raftlog.types import NO_LEADER_EPOCH, Offset, TopicPartition


class OffsetTable:
    """Committed offsets by topic and partition.

    An offset is valid for one topic ID. If a topic is deleted and recreated with the same name, its
    old offsets are ignored.
    """

    __slots__ = ("_topics", "count")

    def __init__(self) -> None:
        self._topics: dict[str, dict[int, OffsetValue]] = {}
        self.count = 0

    def __iter__(self) -> Iterator[tuple[TopicPartition, OffsetValue]]:
        """Iterate over all offsets, sorted by topic and partition.

        Each topic's partitions are copied first, so the caller can remove the current item.
        """
        for topic in sorted(self._topics):
            for partition, value in sorted(self._topics[topic].items()):
                yield TopicPartition(topic, partition), value

    def __contains__(self, where: TopicPartition) -> bool:
        return where.partition in self._topics.get(where.topic, ())

    def value(self, where: TopicPartition) -> OffsetValue | None:
        """Return what is stored for a partition, possibly of an earlier topic of that name."""
        return self._topics.get(where.topic, {}).get(where.partition)

    def put(self, where: TopicPartition, value: OffsetValue) -> None:
        partitions = self._topics.setdefault(where.topic, {})
        self.count += where.partition not in partitions
        partitions[where.partition] = value

    def remove(self, where: TopicPartition) -> bool:
        """Remove an offset. Return whether it existed."""
        partitions = self._topics.get(where.topic)
        if partitions is None or partitions.pop(where.partition, None) is None:
            return False
        self.count -= 1
        if not partitions:
            del self._topics[where.topic]
        return True

    def topics(self) -> list[str]:
        """Return the names of the topics, sorted."""
        return sorted(self._topics)

    def of_topic(self, topic: str, topic_id: str) -> list[tuple[int, Offset]]:
        """Return the partitions of a topic and their offsets, in any order."""
        return [
            (partition, value.offset)
            for partition, value in self._topics.get(topic, {}).items()
            if value.topic_id == topic_id
        ]

    def committed(self, where: TopicPartition, topics: Topics) -> Committed:
        """Return the committed offset, or offset -1 if there is none for the current topic ID."""
        value = self._topics.get(where.topic, {}).get(where.partition)
        info = topics.by_name.get(where.topic)
        if value is None or info is None or value.topic_id != info.id:
            return Committed(where.topic, where.partition)
        return Committed(
            topic=where.topic,
            partition=where.partition,
            offset=value.offset,
            leader_epoch=max(value.leader_epoch, NO_LEADER_EPOCH),
            metadata=value.metadata,
            committed_at_ms=value.committed_at_ms,
        )

    def without_topic(self, topics: Topics) -> list[TopicPartition]:
        """Return the partitions whose offsets belong to deleted topics."""
        return sorted(
            TopicPartition(topic, partition)
            for topic, partitions in self._topics.items()
            for partition, value in partitions.items()
            if value.topic_id not in topics.names
        )

    def committed_before(self, time_ms: int) -> list[TopicPartition]:
        """Return the partitions whose last commit is older than ``time_ms``."""
        return [where for where, value in self if value.committed_at_ms < time_ms]
