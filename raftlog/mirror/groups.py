"""Committed offsets of consumer groups that a mirror copies. Pure.

Offsets are the same in both clusters. So an offset is copied unchanged when all records below it
are in the target. What happens to a group that exists in the target is a ``Policy``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from raftlog.types import Offset, OffsetAndMetadata, TopicPartition


class Policy(Enum):
    """Offsets of groups that exist in the target.

    ADVANCE: never move back, because consumers may have continued there. KEEP: leave the group
    unchanged. OVERWRITE: set them.
    """

    ADVANCE = "advance"
    KEEP = "keep"
    OVERWRITE = "overwrite"


def commits_due(
    source: Mapping[TopicPartition, OffsetAndMetadata],
    target: Mapping[TopicPartition, OffsetAndMetadata],
    copied: Mapping[TopicPartition, tuple[TopicPartition, Offset]],
    policy: Policy = Policy.ADVANCE,
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
        known = target[copy].offset if copy in target else -1
        if offset > known or (offset < known and policy is not Policy.ADVANCE):
            found[copy] = OffsetAndMetadata(offset, committed.metadata)
    return found
