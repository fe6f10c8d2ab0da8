"""Descriptions of topics whose leader has removed tombstones, for tests of copies."""

from __future__ import annotations

from dataclasses import replace

from raftlog.client.descriptions import TopicDescription


def without_tombstones(topic: TopicDescription, below: int) -> TopicDescription:
    parts = (replace(part, tombstones_removed_below=below) for part in topic.partitions)
    return replace(topic, partitions=tuple(parts))
