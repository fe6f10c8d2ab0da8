"""Removal of brokers from the cluster: the leader of the ``cluster`` group moves their replicas.

``DecommissionBroker`` marks the broker in the cluster state. All steps that follow are derived from
committed state, so they continue after any crash: replicas move (``replication.reassignment``),
partition controllers replace witnesses, and the voters of the cluster group change
(``replication.cluster_voters``). Then ``RemoveBroker`` removes it. The broker itself proposes that,
when it has no vote in any group; for one that is fenced, the leader does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from raftlog.consensus import Applied, Outcome
from raftlog.replication.cluster_commands import ClusterCommand, Reassign, RemoveBroker
from raftlog.replication.cluster_state import BrokerRecord, ClusterMachine, Refused
from raftlog.replication.draining import next_moves
from raftlog.server.cluster.hosted_partition import HostedPartition
from raftlog.server.cluster.liveness import Incarnation, Liveness
from raftlog.server.cluster.membership import CLUSTER_GROUP
from raftlog.server.cluster.subscription import ClusterSubscription
from raftlog.server.consensus_plane import ConsensusPlane

logger = logging.getLogger(__name__)

CHECK_AGAIN_SECONDS: Final = 1.0  # without a change of the cluster state; brokers fail and return


class Decommissioning:
    """Call ``poll`` often. It is cheap while no broker is being decommissioned."""

    def __init__(
        self,
        broker_id: int,
        me: Incarnation,
        *,
        machine: ClusterMachine,
        plane: ConsensusPlane,
        liveness: Liveness,
        subscription: ClusterSubscription,
        members: Callable[[], Iterable[HostedPartition]],
        now: Callable[[], float],
    ) -> None:
        self._broker_id = broker_id
        self._me = me
        self._machine = machine
        self._plane = plane
        self._liveness = liveness
        self._subscription = subscription
        self._members = members
        self._now = now
        self._deciding = False
        self._polled = (-1, 0.0)  # version and time of the last check

    def poll(self) -> None:
        """Propose the next step, if there is one and none is in flight."""
        machine, now = self._machine, self._now()
        leaving = [record for _, record in sorted(machine.brokers.items()) if record.draining]
        version, checked_at = self._polled
        is_due = version != machine.version or now - checked_at >= CHECK_AGAIN_SECONDS
        if not leaving or self._deciding or not is_due:
            return
        self._polled = machine.version, now
        command: ClusterCommand | None = self._own_removal(leaving)
        if command is None and self._plane.leads(CLUSTER_GROUP):
            command = self._moves(leaving) or self._removal(leaving)
        if command is not None:
            self._propose(command)

    def _moves(self, leaving: Iterable[BrokerRecord]) -> Reassign | None:
        moves = next_moves(
            self._machine.topics,
            leaving=frozenset(record.id for record in leaving),
            brokers=[
                record
                for _, record in sorted(self._machine.brokers.items())
                if not record.draining and self._liveness.is_live(record.id)
            ],
        )
        if moves is not None:
            logger.info(
                "replicas leave brokers that are decommissioned: brokers=%s topic_id=%s moves=%d",
                [record.id for record in leaving],
                moves.topic_id,
                len(moves.moves),
            )
        return moves

    def _removal(self, leaving: Iterable[BrokerRecord]) -> RemoveBroker | None:
        voters = self._subscription.voters
        for record in leaving:
            is_gone = record.fenced and record.id not in voters
            if is_gone and not self._machine.uses_of(record.id):
                return RemoveBroker(id=record.id, broker_epoch=record.broker_epoch)
        return None

    def _own_removal(self, leaving: Iterable[BrokerRecord]) -> RemoveBroker | None:
        """The removal of this broker, once no group needs its vote any more."""
        mine = next((record for record in leaving if record.id == self._broker_id), None)
        if (
            mine is None
            or (mine.directory_id, mine.boot) != (self._me.directory_id, self._me.boot)
            or self._broker_id in self._subscription.voters
            or any(map(self._votes_on, self._members()))
            or self._machine.uses_of(self._broker_id)
        ):
            return None
        return RemoveBroker(id=mine.id, broker_epoch=mine.broker_epoch)

    def _votes_on(self, member: HostedPartition) -> bool:
        voters = self._plane.voters(member.group_id)
        return voters.get(self._broker_id) == self._me.directory_id

    def _propose(self, command: ClusterCommand) -> None:
        self._deciding = True

        def done(outcome: Outcome) -> None:
            self._deciding = False
            if not isinstance(outcome, Applied) or isinstance(outcome.result, Refused):
                logger.debug("proposal failed: command=%s outcome=%s", command, outcome)

        self._plane.propose_bytes(CLUSTER_GROUP, command.encode(), done)
