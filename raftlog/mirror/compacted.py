"""Copies of compacted partitions: whether a copy has every tombstone that it needs. Pure.

Compaction of the source removes a tombstone some time after the records that it deletes. A copy
that has such a record, and reads the source only after that, never gets the tombstone: its key
would come back permanently. Followers have the same problem, and the same answer: see
``replication.leadership.must_restart``, which proves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import starmap

from raftlog.client.descriptions import PartitionDescription, TopicDescription
from raftlog.errors import LeaderNotAvailableError
from raftlog.replication.leadership import copied_without, must_restart
from raftlog.types import LeaderEpoch, Offset, TopicPartition


@dataclass(frozen=True, slots=True)
class Known:
    """What a copy had when it was last compared with its source.

    ``end``: its end offset. ``copied_below``: of a copy that began as an empty one in this leader
    epoch: ``leadership.copied_without``.
    """

    epoch: LeaderEpoch
    end: Offset
    copied_below: Offset = 0

    def checked(self, source: PartitionDescription, end: Offset) -> Known:
        """Return what the copy has after ``is_whole`` with this source. Above ``end``, it has read
        nothing before.
        """
        kept = self.copied_below if source.leader_epoch == self.epoch else 0
        return Known(source.leader_epoch, max(self.end, end), kept)


def by_partition(
    topics: Iterable[TopicDescription],
) -> dict[TopicPartition, PartitionDescription]:
    """Raises ``LeaderNotAvailableError`` if the leader of a compacted partition did not report."""
    found = {}
    for topic in topics:
        for part in topic.partitions:
            name = TopicPartition(topic.name, part.partition)
            if "compact" in topic.config.get("cleanup.policy", ""):
                check_leader(name, part)
            found[name] = part
    return found


def check_leader(name: TopicPartition, source: PartitionDescription) -> None:
    """Raise ``LeaderNotAvailableError`` if the description is not of the leader, from which copies
    are read: other replicas have removed other tombstones."""
    # guard: only the leader of a copy says which tombstones it has removed
    if not source.by_leader:
        raise LeaderNotAvailableError(
            f"{name}: the leader does not respond, so it is unknown which marks of deleted keys it "
            "has removed. Try again once it is reachable"
        )


def begun(source: PartitionDescription) -> Known:
    """Return what a copy has that begins now, as an empty one."""
    lacks = copied_without(
        removed_below=source.tombstones_removed_below, clean_end=source.clean_end_offset
    )
    return Known(source.leader_epoch, source.log_start_offset, lacks)


def is_whole(
    known: Known, source: PartitionDescription, read: Mapping[LeaderEpoch, Offset]
) -> bool:
    """Return whether the copy has all tombstones that it needs, up to what it has read until now.

    ``source``: described after that. The copy has read from ``known.end`` on since. ``read``: what
    the leaders of each epoch had removed when it did (``BatchReader.take_removed_below``): it may
    have read from one that no longer leads.
    """

    def lacks(epoch: LeaderEpoch, removed_below: Offset) -> bool:
        # guard: another leader has removed other tombstones
        is_same = epoch == known.epoch
        # guard: a copy has all tombstones of what it has read
        return must_restart(
            log_end=known.end,
            copied_below=known.copied_below if is_same else 0,
            removed_below=removed_below,
        )

    if lacks(source.leader_epoch, source.tombstones_removed_below):
        return False
    # guard: a copy compares with each leader that it has read from
    return not any(starmap(lacks, read.items()))
