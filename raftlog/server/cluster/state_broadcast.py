"""Broadcast of partition states to the brokers that are not voters of the partition.

Those brokers respond to metadata requests with them. The leader of a partition's group sends its
state, and so does the leader of the partition: a new partition has a leader before its group has
one (ADR 64). The version shows which of two states is newer, so a state may arrive twice, or late.
All states are sent again periodically, to replace lost ones.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable
from typing import Final

from raftlog.protocol import api as apis
from raftlog.protocol.replication import EncodedPartitionState, PartitionStatesRequest
from raftlog.replication.partition_state import PartitionState, decode_state
from raftlog.server.cluster.backlog import Backlog
from raftlog.server.cluster.hosted_partition import HostedPartition
from raftlog.server.consensus_plane import ConsensusPlane
from raftlog.server.peers.links import PeerLinks

AT_ONCE: Final = 500  # partitions, in one turn of the loop

logger = logging.getLogger(__name__)


class StateBroadcast:
    """``received``: states received from other brokers, by topic id and partition."""

    def __init__(
        self,
        broker_id: int,
        loop: AbstractEventLoop,
        plane: ConsensusPlane,
        links: PeerLinks,
        *,
        brokers: Callable[[], Iterable[int]],
        recovery: Callable[[], str] = str,
    ) -> None:
        """``recovery``: the last one in this broker's history of the cluster."""
        self._broker_id = broker_id
        self._plane = plane
        self._links = links
        self._brokers = brokers
        self._recovery = recovery
        self._unsent = Backlog(loop, self.send, at_once=AT_ONCE)
        self.received: dict[tuple[str, int], PartitionState] = {}

    def send_all(self, partitions: Iterable[HostedPartition]) -> None:
        """``send``, soon, for some of the partitions at a time."""
        self._unsent.add(partitions)

    def send(self, partitions: list[HostedPartition]) -> None:
        """Send the states to brokers that are not voters of these partitions, if this broker leads
        the group or the partition.
        """
        others = [b for b in self._brokers() if b != self._broker_id and self._links.is_up(b)]
        by_broker: dict[int, list[EncodedPartitionState]] = {}
        for hosted in partitions:
            state = hosted.state
            voters = {*state.replicas, *state.witnesses}
            strangers = [broker for broker in others if broker not in voters]
            leads = hosted.is_known and state.leader == self._broker_id
            if not strangers or not (leads or self._plane.leads(hosted.group_id)):
                continue
            encoded = EncodedPartitionState(
                topic_id=hosted.topic_id,
                partition=hosted.partition,
                version=state.version,
                state=state.encode(),
            )
            for broker in strangers:
                by_broker.setdefault(broker, []).append(encoded)
        for broker, states in by_broker.items():
            request = PartitionStatesRequest(states=states, recovery=self._recovery())
            self._links.notify(broker, apis.PARTITION_STATES, request)

    def receive(self, states: Iterable[EncodedPartitionState], recovery: str = "") -> None:
        """Store states that are newer than the known ones. Bytes that are not a state are ignored,
        and the states of another history: their versions are higher than all of this one, although
        the cluster may not accept that history. They are sent again, should it do so.
        """
        if recovery != self._recovery():
            return
        for encoded in states:
            key = encoded.topic_id, encoded.partition
            known = self.received.get(key)
            if known is not None and known.version >= encoded.version:
                continue
            try:
                state = decode_state(encoded.state)
            except ValueError as error:
                logger.warning(
                    "state broadcast rejected: topic_id=%s partition=%d error=%s", *key, error
                )
                continue
            if known is None or known.version < state.version:
                self.received[key] = state

    def forget(self, topic_id: str) -> None:
        """Forget a deleted topic."""
        for key in [key for key in self.received if key[0] == topic_id]:
            del self.received[key]
