"""Replication factor of internal topics: it follows the growth of the cluster.

``__consumer_offsets`` is created with the brokers that are up when the first group commits, and no
operator creates it; ``__schemas`` and ``__transaction_state`` likewise. When more brokers join, or
are back, the leader of the ``cluster`` group gives them the replicas that they would get now,
unless a setting says how many they have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from raftlog.consensus import Applied, Outcome
from raftlog.replication.cluster_commands import BrokerRecord, Move, Reassign, TopicRecord
from raftlog.replication.cluster_state import ClusterMachine, Refused
from raftlog.replication.placement import PlacedPartition, change_replication_factor, usual_copies
from raftlog.server.cluster.membership import CLUSTER_GROUP, Liveness
from raftlog.server.consensus_plane import ConsensusPlane
from raftlog.types import OFFSETS_TOPIC, SCHEMAS_TOPIC, TRANSACTIONS_TOPIC

logger = logging.getLogger(__name__)

# Seconds: not at once, because brokers join and restart one after the other.
CHECK_SECONDS: Final = 10.0
RAISED: Final = (OFFSETS_TOPIC, SCHEMAS_TOPIC, TRANSACTIONS_TOPIC)


def raised(topic: TopicRecord, brokers: Sequence[BrokerRecord], factor: int) -> Reassign | None:
    """Return the command that adds replicas to each partition, as ``change_replication_factor``
    places them. None while replicas move, and if the topic has as many.

    ``brokers``: those that can get replicas, at least ``factor``.
    """
    parts = topic.partitions
    # guard: the topic of groups gets the replicas that it lacked
    if topic.replication_factor >= factor or any(part.target is not None for part in parts):
        return None
    placed = [PlacedPartition(topic.name, n, part.replicas) for n, part in enumerate(parts)]
    moves = tuple(
        Move(each.partition, each.after, parts[each.partition].version)
        for each in change_replication_factor(placed, factor, brokers)
    )
    return Reassign(topic_id=topic.id, moves=moves, replication_factor=factor)


class InternalTopics:
    """Call ``poll`` often."""

    def __init__(
        self,
        *,
        machine: ClusterMachine,
        plane: ConsensusPlane,
        liveness: Liveness,
        founders: int,
        topics: Sequence[str],
        now: Callable[[], float],
    ) -> None:
        """``topics``: those whose replication factor no setting says."""
        self._topics = topics
        self._machine = machine
        self._plane = plane
        self._liveness = liveness
        self._founders = founders
        self._now = now
        self._deciding = False
        self._checked_at = now()

    def poll(self) -> None:
        now = self._now()
        if self._deciding or now - self._checked_at < CHECK_SECONDS:
            return
        self._checked_at = now
        if not self._plane.leads(CLUSTER_GROUP):
            return
        factor = usual_copies(self._machine.brokers.values(), founders=self._founders)
        there = [
            record for record in self._machine.placeable() if self._liveness.is_live(record.id)
        ]
        for name in self._topics if len(there) >= factor else ():
            topic = self._machine.topics.get(name)
            command = None if topic is None else raised(topic, there, factor)
            if topic is not None and command is not None:
                self._propose(topic, command, factor)
                return  # the next one at the next check

    def _propose(self, topic: TopicRecord, command: Reassign, factor: int) -> None:
        logger.info(
            "replicas are added: topic=%s replication_factor=%d before=%d",
            topic.name, factor, topic.replication_factor,
        )  # fmt: skip
        self._deciding = True
        self._plane.propose_bytes(CLUSTER_GROUP, command.encode(), self._done)

    def _done(self, outcome: Outcome) -> None:
        self._deciding = False
        if not isinstance(outcome, Applied) or isinstance(outcome.result, Refused):
            logger.debug("proposal failed: outcome=%s", outcome)
