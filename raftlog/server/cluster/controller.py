"""Partition controller: the Raft leader of a partition's group proposes the partition's leader.

The controller need not be the partition leader, and need not store a copy. It proposes every change
as a compare-and-set; an outdated proposal is rejected, and the partition is checked again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from raftlog.consensus import Applied, Outcome
from raftlog.replication.cluster_commands import ClusterCommand, Reassign, RemoveBroker, SetReplicas
from raftlog.replication.cluster_state import BrokerRecord, ClusterMachine, Done, Refused
from raftlog.replication.draining import next_moves
from raftlog.replication.election import (
    choose_leader,
    choose_preferred,
    choose_replacement,
    fitting_voters,
    has_leader,
    next_step,
    relocated_witness,
    surplus_witness,
)
from raftlog.replication.partition_state import (
    Accepted,
    ChangeReplicas,
    Command,
    Elect,
    ElectUnclean,
)
from raftlog.replication.placement import Assignment, voters_count
from raftlog.server.cluster.elections import HostedPartition, Surveys
from raftlog.server.cluster.membership import (
    CLUSTER_GROUP,
    ClusterSubscription,
    Incarnation,
    Liveness,
)
from raftlog.server.consensus_plane import ConsensusPlane

# -- decommissioning -------------------------------------------------------------------------------
#
# Removal of brokers from the cluster: the leader of the ``cluster`` group moves their replicas.
#
# ``DecommissionBroker`` marks the broker in the cluster state. All steps that follow are derived
# from committed state, so they continue after any crash: replicas move
# (``replication.reassignment``), partition controllers replace witnesses, and the voters of the
# cluster group change (``replication.cluster_voters``). Then ``RemoveBroker`` removes it. The
# broker itself proposes that, when it has no vote in any group; for one that is fenced, the leader
# does.


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
        # guard: a broker leaves when it has no vote in any group
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
        voters = self._plane.voters(member.raft_id)
        return voters.get(self._broker_id) == self._me.directory_id

    def _propose(self, command: ClusterCommand) -> None:
        self._deciding = True

        def done(outcome: Outcome) -> None:
            self._deciding = False
            if not isinstance(outcome, Applied) or isinstance(outcome.result, Refused):
                logger.debug("proposal failed: command=%s outcome=%s", command, outcome)

        self._plane.propose_bytes(CLUSTER_GROUP, command.encode(), done)


# -- controller ------------------------------------------------------------------------------------


# Partitions whose leadership moves back at the same time. Clients follow each move, so not all
# partitions move at once.
REBALANCED_AT_A_TIME: Final = 16
# With a too small ISR, the eligible brokers lead in turn. Each turn is twice as long as the one
# before, up to this number of doublings.
TURNS_DOUBLED_MAX: Final = 5


class PartitionController:
    """Proposes leader elections and replacements for the partitions whose Raft group this broker
    leads.

    ``poll`` is cheap while a partition is healthy.
    """

    def __init__(
        self,
        broker_id: int,
        plane: ConsensusPlane,
        liveness: Liveness,
        *,
        machine: ClusterMachine,
        now: Callable[[], float],
        lag_max_seconds: float,
        replacement_delay_seconds: float,
        rebalance_delay_seconds: float,
        surveys: Surveys,
    ) -> None:
        self._broker_id = broker_id
        self._machine = machine
        self._plane = plane
        self._liveness = liveness
        self._now = now
        self._lag_max_seconds = lag_max_seconds
        self._replacement_delay_seconds = replacement_delay_seconds
        self._rebalance_delay_seconds = rebalance_delay_seconds
        self._surveys = surveys
        self._rebalanced = 0  # since the last check of all partitions

    def poll_all(self, partitions: Iterable[HostedPartition]) -> None:
        self._rebalanced = 0
        for hosted in partitions:
            self.poll(hosted)

    def poll(self, hosted: HostedPartition) -> None:
        """Propose the next change that the partition needs, if this broker leads its group."""
        if hosted.control.is_proposing or not self._plane.leads(hosted.raft_id):
            return
        command: Command | None
        if has_leader(hosted.state, self._liveness):
            command = self._relief(hosted) or self._upkeep(hosted) or self._rebalance(hosted)
        else:
            command = self._election(hosted)
        if command is not None:
            self._propose(hosted, command, hosted.raft_id)
        elif (noted := self._replicas_to_note(hosted)) is not None:
            self._propose(hosted, noted, CLUSTER_GROUP)
        else:
            self._seal_if_due(hosted)

    def _election(self, hosted: HostedPartition) -> Elect | ElectUnclean | None:
        state = hosted.state
        if state.leader_epoch:
            return self._surveys.choose(hosted, first=self._broker_id)
        # A new partition starts with its preferred leader, so that leaders are spread evenly. Its
        # log is empty.
        preferred = state.replicas[0]
        first = preferred if self._liveness.is_live(preferred) else self._broker_id
        return choose_leader(state, self._liveness, arbiter=first)

    def _relief(self, hosted: HostedPartition) -> Elect | None:
        """Elect another leader if the ISR has been too small for long and another eligible broker
        is live. The links of the leader to its followers may be down while its link to this broker
        is up.
        """
        state, notes, now = hosted.state, hosted.control, self._now()
        turn = self._lag_max_seconds * 2 ** min(notes.transfers, TURNS_DOUBLED_MAX)
        if len(state.isr) >= state.min_isr:
            notes.under_min_isr_since = None
            if now - notes.transferred_at >= turn:
                notes.transfers = 0
            return None
        others = {*state.isr, *state.elr} - {state.leader}
        if not any(map(self._liveness.is_live, others)):
            notes.under_min_isr_since = None
            return None
        if notes.under_min_isr_since is None:
            notes.under_min_isr_since = now
        if now - notes.under_min_isr_since < turn:
            return None
        elect = self._surveys.choose(hosted, without=state.leader)
        if not isinstance(elect, Elect):
            return None
        notes.transfers += 1
        notes.under_min_isr_since = notes.transferred_at = now
        return elect

    def _upkeep(self, hosted: HostedPartition) -> ChangeReplicas | Elect | None:
        """Move, replace, add or remove replicas and witnesses, one step at a time: each waits until
        the voters of the group's generation fit the last one.
        """
        # guard: a step waits until the voters fit the last one
        if self._next_voters(hosted) is not None:
            return None
        held = self._assignment(hosted)
        # guard: no automatic replacement while replicas move
        if held is None or held.target is None:
            return (
                self._replacement(hosted)
                or self._relocation(hosted)
                or self._growth(hosted)
                or surplus_witness(
                    hosted.state,
                    voters_most=2 * hosted.replication_factor - 1,
                    is_live=self._liveness.is_live,
                )
            )
        factor, brokers = hosted.replication_factor, self._machine.staying()
        turn = hosted.partition % len(brokers)  # not the same helper for all partitions
        step = next_step(
            hosted.state,
            held.target.replicas,
            self._liveness,
            copies_before=len(held.target.origin),
            voters_wanted=voters_count(factor, max(len(brokers), factor)),
            brokers=brokers[turn:] + brokers[:turn],
        )
        # The cluster group does not record replicas with a witness that was removed.
        # guard: a move that has reached its target gives up a removed witness
        if step is None and hosted.state.replicas == held.target.replicas:
            return self._relocation(hosted)
        return step

    def _assignment(self, hosted: HostedPartition) -> Assignment | None:
        return self._machine.assignment(hosted.topic_id, hosted.partition)

    def _replacement(self, hosted: HostedPartition) -> ChangeReplicas | None:
        return choose_replacement(
            hosted.state,
            replication_factor=hosted.replication_factor,
            dead_seconds=self._liveness.silent_seconds,
            delay_seconds=self._replacement_delay_seconds,
            is_live=self._liveness.is_live,
            may_store=lambda broker: broker not in self._leaving(),
        )

    def _leaving(self) -> set[int]:
        return {*self._machine.brokers} - {*self._machine.staying()}

    def _relocation(self, hosted: HostedPartition) -> ChangeReplicas | None:
        """Replace a witness on a broker that is being decommissioned, or was before this group
        added it."""
        staying = self._machine.staying()
        leaving = {*hosted.state.witnesses} - {*staying}
        if not leaving or not staying:
            return None
        live = list(filter(self._liveness.is_live, staying))
        turn = hosted.partition % max(len(live), 1)
        return relocated_witness(hosted.state, leaving=leaving, brokers=live[turn:] + live[:turn])

    def _growth(self, hosted: HostedPartition) -> ChangeReplicas | None:
        """Add witnesses if there are enough brokers now and were not when the partition was
        created.
        """
        state = hosted.state
        voters = {*state.replicas, *state.witnesses}
        if len(voters) >= 2 * hosted.replication_factor - 1:
            return None
        live = list(filter(self._liveness.is_live, self._machine.staying()))
        if len(live) < hosted.replication_factor:
            return None
        missing = voters_count(hosted.replication_factor, len(live)) - len(voters)
        strangers = [broker for broker in live if broker not in voters]
        if missing <= 0 or len(strangers) < missing:
            return None
        turn = hosted.partition % len(strangers)  # so that not all partitions use the same brokers
        recruits = (strangers[turn:] + strangers[:turn])[:missing]
        return ChangeReplicas(state.version, state.replicas, (*state.witnesses, *recruits))

    def _rebalance(self, hosted: HostedPartition) -> Elect | None:
        """Return leadership to the preferred leader after a delay. Without this, leaders accumulate
        on the brokers that did not fail.
        """
        elect = choose_preferred(hosted.state, self._liveness)
        notes, now = hosted.control, self._now()
        if elect is None:
            notes.nonpreferred_since = None
            return None
        if notes.nonpreferred_since is None:
            notes.nonpreferred_since = now
        is_due = now - notes.nonpreferred_since >= self._rebalance_delay_seconds
        if not is_due or self._rebalanced >= REBALANCED_AT_A_TIME:
            return None
        self._rebalanced += 1
        notes.nonpreferred_since = None
        return elect

    def _replicas_to_note(self, hosted: HostedPartition) -> SetReplicas | None:
        """Return what the partition's group has committed and the cluster group does not know
        yet.
        """
        held, state = self._assignment(hosted), hosted.state
        if held is None:
            return None
        is_known = (held.replicas, held.witnesses) == (state.replicas, state.witnesses)
        ends_move = held.target is not None and held.target.replicas == state.replicas
        if (is_known and not ends_move) or held.version > state.version:
            return None
        if held.version == state.version and not is_known:
            return None
        return SetReplicas(
            topic_id=hosted.topic_id,
            partition=hosted.partition,
            replicas=state.replicas,
            witnesses=state.witnesses,
            version=state.version,
        )

    def _next_voters(self, hosted: HostedPartition) -> dict[int, str] | None:
        """Return the voters that the group's next generation must have; None if the current one
        fits: its voters are the replicas and witnesses, with their current data directories.
        """
        voters = self._plane.voters(hosted.raft_id)
        fitting = fitting_voters(hosted.state, voters, self._liveness.linked_directory)
        return None if fitting == voters else fitting

    def _seal_if_due(self, hosted: HostedPartition) -> None:
        """End the generation if its voters do not fit: a broker joined or left, has restarted with
        an empty disk, or was lost during a recovery.
        """
        fitting = self._next_voters(hosted)
        if fitting is None:
            return
        before = self._plane.voters(hosted.raft_id)
        logger.info(
            "voters changed: group=%s admitted=%s removed=%s",
            hosted,
            sorted(b for b, directory in fitting.items() if before.get(b) != directory),
            sorted(before.keys() - fitting.keys()),
        )
        hosted.control.is_proposing = True

        def done(_outcome: Outcome) -> None:
            hosted.control.is_proposing = False

        self._plane.seal(hosted.raft_id, fitting, done)

    def _propose(
        self, hosted: HostedPartition, command: Command | SetReplicas, raft_id: str
    ) -> None:
        hosted.control.is_proposing = True
        logger.debug("proposing: partition=%s command=%s", hosted, command)

        def done(outcome: Outcome) -> None:
            hosted.control.is_proposing = False
            result = outcome.result if isinstance(outcome, Applied) else None
            if isinstance(result, Accepted):
                logger.info("partition changed: partition=%s command=%s", hosted, command)
            elif not isinstance(result, Done):
                logger.debug(
                    "proposal failed: partition=%s command=%s outcome=%s", hosted, command, outcome
                )

        self._plane.propose_bytes(raft_id, command.encode(), done)
