"""Mapping of groups to partitions of ``__consumer_offsets``, and so to their coordinators."""

from __future__ import annotations

from raftlog.record.key_hash import partition_of_key


def partition_of_group(group: str, partition_count: int) -> int:
    """Return the partition of ``types.OFFSETS_TOPIC`` that holds all records of ``group``.

    The mapping depends on ``partition_count``, so this must not change after groups exist.
    """
    return partition_of_key(group.encode(), partition_count)
