"""Which partition of ``__consumer_offsets`` a group belongs to, and so who coordinates it."""

from __future__ import annotations

from raftlog.record.key_hash import partition_of_key


def partition_of_group(group: str, partition_count: int) -> int:
    """The partition of ``types.OFFSETS_TOPIC`` that holds all records of ``group``.

    It is for ever: the topic's partition count must not change once there are groups.
    """
    return partition_of_key(group.encode(), partition_count)
