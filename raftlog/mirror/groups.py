"""Committed offsets of consumer groups that a mirror copies. Pure.

Offsets are the same in both clusters. So an offset is copied unchanged when all records below it
are in the target. An offset never moves back: consumers may have continued in the target.
"""

from __future__ import annotations

from collections.abc import Mapping

from raftlog.types import Offset, OffsetAndMetadata, TopicPartition


def advanced(
    source: Mapping[TopicPartition, OffsetAndMetadata],
    target: Mapping[TopicPartition, OffsetAndMetadata],
    copied: Mapping[TopicPartition, tuple[TopicPartition, Offset]],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets to commit in the target for one group.

    ``source``, ``target``: committed offsets of the group in each cluster. ``copied``: the copy of
    each source partition, and the end of its committed records.
    """
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for tp, committed in source.items():
        if tp not in copied:
            continue
        copy, end = copied[tp]
        offset = min(committed.offset, end)
        if copy not in target or offset > target[copy].offset:
            found[copy] = OffsetAndMetadata(offset, committed.metadata)
    return found
