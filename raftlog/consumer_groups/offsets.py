"""The offsets that one group has committed: kept, found, expired. Who may commit is elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from raftlog.consumer_groups.records import OffsetValue
from raftlog.consumer_groups.values import Committed, Topics
from raftlog.types import TopicPartition


class OffsetTable:
    """By topic and partition. An offset belongs to one topic id: that of a topic which was deleted
    and made anew under the same name counts for nothing.
    """

    __slots__ = ("_topics", "count")

    def __init__(self) -> None:
        self._topics: dict[str, dict[int, OffsetValue]] = {}
        self.count = 0

    def __iter__(self) -> Iterator[tuple[TopicPartition, OffsetValue]]:
        """All of them, by topic and partition. The table may be changed meanwhile."""
        for topic in sorted(self._topics):
            for partition, value in sorted(self._topics[topic].items()):
                yield TopicPartition(topic, partition), value

    def __contains__(self, where: TopicPartition) -> bool:
        return where.partition in self._topics.get(where.topic, ())

    def put(self, where: TopicPartition, value: OffsetValue) -> None:
        partitions = self._topics.setdefault(where.topic, {})
        self.count += where.partition not in partitions
        partitions[where.partition] = value

    def remove(self, where: TopicPartition) -> bool:
        """Whether there was one."""
        partitions = self._topics.get(where.topic)
        if partitions is None or partitions.pop(where.partition, None) is None:
            return False
        self.count -= 1
        if not partitions:
            del self._topics[where.topic]
        return True

    def committed(self, where: TopicPartition, topics: Topics) -> Committed:
        """What is committed there, for the topic as it is now."""
        value = self._topics.get(where.topic, {}).get(where.partition)
        info = topics.by_name.get(where.topic)
        if value is None or info is None or value.topic_id != info.id:
            return Committed(where.topic, where.partition)
        return Committed(
            topic=where.topic,
            partition=where.partition,
            offset=value.offset,
            leader_epoch=value.leader_epoch,
            metadata=value.metadata,
            committed_at_ms=value.committed_at_ms,
        )

    def without_topic(self, topics: Topics) -> list[TopicPartition]:
        """Those of topics that are no more."""
        return [
            TopicPartition(topic, partition)
            for topic, partitions in sorted(self._topics.items())
            for partition, value in sorted(partitions.items())
            if value.topic_id not in topics.names
        ]

    def committed_before(self, time_ms: int) -> list[TopicPartition]:
        """Those whose last commit is older."""
        return [where for where, value in self if value.committed_at_ms < time_ms]
