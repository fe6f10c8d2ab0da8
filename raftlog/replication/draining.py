"""Moves of the replicas of brokers that are being decommissioned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from raftlog.replication.cluster_commands import Move, Reassign, TopicRecord
from raftlog.replication.partition_state import BrokerId
from raftlog.replication.placement import Assignment, Located, PlacedPartition, evacuate

MOVES_PER_COMMAND_MAX: Final = 200


def next_moves(
    topics: Mapping[str, TopicRecord],
    *,
    leaving: Collection[BrokerId],
    brokers: Sequence[Located],
) -> Reassign | None:
    """Return the next moves away from the brokers ``leaving``, of one topic; None if there is none.

    ``brokers``: brokers that can store replicas now. A partition waits if it has replicas on all of
    them. A move in progress to a broker that leaves is replaced. Deterministic.
    """
    loads = Counter(
        broker for topic in topics.values() for held in topic.partitions for broker in _goal(held)
    )
    free = {broker.id for broker in brokers}
    for name, topic in sorted(topics.items()):
        affected = [
            PlacedPartition(name, number, _goal(held))
            for number, held in enumerate(topic.partitions)
            if not set(_goal(held)).isdisjoint(leaving)
            and len(_goal(held)) == topic.replication_factor
            and not free <= set(_goal(held))
        ]
        planned = evacuate(affected[:MOVES_PER_COMMAND_MAX], leaving, brokers, loads=loads)
        moves = [
            Move(
                each.partition,
                each.after,
                topic.partitions[each.partition].version,
                _target(topic.partitions[each.partition]),
            )
            for each in planned
        ]
        if moves:
            return Reassign(topic_id=topic.id, moves=tuple(moves))
    return None


def _target(held: Assignment) -> tuple[BrokerId, ...]:
    return () if held.target is None else held.target.replicas


def _goal(held: Assignment) -> tuple[BrokerId, ...]:
    """Return the replicas that the partition has, or will have after the move in progress."""
    return _target(held) or held.replicas
