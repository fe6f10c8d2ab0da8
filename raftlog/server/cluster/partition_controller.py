"""Partition controller: the Raft leader of a partition's group proposes the partition's leader.

The controller need not be the partition leader, and need not store a copy. It proposes every change
as a compare-and-set; an outdated proposal is rejected, and the partition is checked again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from raftlog.consensus import Applied, Outcome
from raftlog.replication.cluster_commands import SetReplicas
from raftlog.replication.cluster_state import ClusterMachine, Done
from raftlog.replication.commands import ChangeReplicas, Command, Elect, ElectUnclean
from raftlog.replication.election import (
    choose_leader,
    choose_preferred,
    choose_replacement,
    has_leader,
)
from raftlog.replication.partition_state import Accepted, PartitionState
from raftlog.replication.placement import Assignment, voters_count
from raftlog.replication.reassignment import (
    fitting_voters,
    next_step,
    relocated_witness,
    surplus_witness,
)
from raftlog.server.cluster.hosted_partition import HostedPartition
from raftlog.server.cluster.liveness import Liveness
from raftlog.server.cluster.membership import CLUSTER_GROUP
from raftlog.server.cluster.surveys import Surveys
from raftlog.server.consensus_plane import ConsensusPlane

logger = logging.getLogger(__name__)

# Partitions whose leadership moves back at the same time. Clients follow each move, so not all
# partitions move at once.
REBALANCED_AT_A_TIME: Final = 16
# With a too small ISR, the eligible brokers lead in turn. Each turn is twice as long as the one
# before, up to this number of doublings.
TURNS_DOUBLED_MAX: Final = 5


class PartitionController:
    """Proposes leader elections and replacements for the partitions whose Raft group this broker
    leads.

    ``look`` is cheap while a partition is healthy.
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

    def look_at_all(self, members: Iterable[HostedPartition]) -> None:
        self._rebalanced = 0
        for member in members:
            self.look(member)

    def look(self, member: HostedPartition) -> None:
        """Propose the next change that the partition needs, if this broker leads its group."""
        if member.deciding or not self._plane.leads(member.group_id):
            return
        command: Command | None
        if self.has_leader(member.state):
            command = self._relief(member) or self._upkeep(member) or self._rebalance(member)
        else:
            command = self._election(member)
        if command is not None:
            self._propose(member, command)
        elif (noted := self._replicas_to_note(member)) is not None:
            self._note_replicas(member, noted)
        else:
            self._seal_if_due(member)

    def has_leader(self, state: PartitionState) -> bool:
        """Whether the leader is live, in the same incarnation and on the same disk as at its
        election.
        """
        return has_leader(
            state,
            is_live=self._liveness.is_live,
            directory_of=self._liveness.directory_of,
            boot_of=self._liveness.boot_of,
        )

    def _election(self, member: HostedPartition) -> Elect | ElectUnclean | None:
        state = member.state
        if state.leader_epoch:
            return self._surveys.choose(member, first=self._broker_id)
        # A new partition starts with its preferred leader, so that leaders are spread evenly. Its
        # log is empty.
        is_live = self._liveness.is_live
        return choose_leader(
            state,
            arbiter=state.replicas[0] if is_live(state.replicas[0]) else self._broker_id,
            is_live=is_live,
            directory_of=self._liveness.directory_of,
            boot_of=self._liveness.boot_of,
        )

    def _relief(self, member: HostedPartition) -> Elect | None:
        """Elect another leader if the ISR has been too small for long and another eligible broker
        is live. The links of the leader to its followers may be down while its link to this broker
        is up.
        """
        state, now = member.state, self._now()
        turn = self._lag_max_seconds * 2 ** min(member.turns, TURNS_DOUBLED_MAX)
        if len(state.isr) >= state.min_isr:
            member.stalled_since = None
            if now - member.turn_began >= turn:
                member.turns = 0
            return None
        others = {*state.isr, *state.elr} - {state.leader}
        if not any(map(self._liveness.is_live, others)):
            member.stalled_since = None
            return None
        if member.stalled_since is None:
            member.stalled_since = now
        if now - member.stalled_since < turn:
            return None
        elect = self._surveys.choose(member, without=state.leader)
        if not isinstance(elect, Elect):
            return None
        member.turns += 1
        member.stalled_since = member.turn_began = now
        return elect

    def _upkeep(self, member: HostedPartition) -> ChangeReplicas | Elect | None:
        """Move, replace, add or remove replicas and witnesses, one step at a time: each waits until
        the voters of the group's generation fit the last one.
        """
        if self._next_voters(member) is not None:
            return None
        held = self._assignment(member)
        if held is None or held.target is None:
            return (
                self._replacement(member)
                or self._relocation(member)
                or self._growth(member)
                or surplus_witness(
                    member.state,
                    voters_most=2 * member.replication_factor - 1,
                    is_live=self._liveness.is_live,
                )
            )
        factor, brokers = member.replication_factor, self._machine.staying()
        turn = member.partition % len(brokers)  # not the same helper for all partitions
        return next_step(
            member.state,
            held.target.replicas,
            copies_before=len(held.target.origin),
            voters_wanted=voters_count(factor, max(len(brokers), factor)),
            brokers=brokers[turn:] + brokers[:turn],
            is_live=self._liveness.is_live,
            directory_of=self._liveness.directory_of,
            boot_of=self._liveness.boot_of,
        )

    def _assignment(self, member: HostedPartition) -> Assignment | None:
        record = self._machine.topic_by_id(member.topic_id)
        return None if record is None else record.partitions[member.partition]

    def _replacement(self, member: HostedPartition) -> ChangeReplicas | None:
        return choose_replacement(
            member.state,
            replication_factor=member.replication_factor,
            dead_seconds=self._liveness.silent_seconds,
            delay_seconds=self._replacement_delay_seconds,
            is_live=self._liveness.is_live,
            may_store=lambda broker: broker not in self._leaving(),
        )

    def _leaving(self) -> set[int]:
        return {*self._machine.brokers} - {*self._machine.staying()}

    def _relocation(self, member: HostedPartition) -> ChangeReplicas | None:
        """Replace a witness on a broker that is being decommissioned."""
        leaving = self._leaving()
        if leaving.isdisjoint(member.state.witnesses):
            return None
        live = list(filter(self._liveness.is_live, self._machine.staying()))
        turn = member.partition % max(len(live), 1)
        return relocated_witness(member.state, leaving=leaving, brokers=live[turn:] + live[:turn])

    def _growth(self, member: HostedPartition) -> ChangeReplicas | None:
        """Add witnesses if there are enough brokers now and were not when the partition was
        created.
        """
        state = member.state
        voters = {*state.replicas, *state.witnesses}
        if len(voters) >= 2 * member.replication_factor - 1:
            return None
        live = list(filter(self._liveness.is_live, self._machine.staying()))
        if len(live) < member.replication_factor:
            return None
        missing = voters_count(member.replication_factor, len(live)) - len(voters)
        strangers = [broker for broker in live if broker not in voters]
        if missing <= 0 or len(strangers) < missing:
            return None
        turn = member.partition % len(strangers)  # so that not all partitions use the same brokers
        recruits = (strangers[turn:] + strangers[:turn])[:missing]
        return ChangeReplicas(state.version, state.replicas, (*state.witnesses, *recruits))

    def _rebalance(self, member: HostedPartition) -> Elect | None:
        """Return leadership to the preferred leader after a delay. Without this, leaders accumulate
        on the brokers that did not fail.
        """
        elect = choose_preferred(
            member.state,
            is_live=self._liveness.is_live,
            directory_of=self._liveness.directory_of,
            boot_of=self._liveness.boot_of,
        )
        if elect is None:
            member.misled_since = None
            return None
        now = self._now()
        if member.misled_since is None:
            member.misled_since = now
        is_due = now - member.misled_since >= self._rebalance_delay_seconds
        if not is_due or self._rebalanced >= REBALANCED_AT_A_TIME:
            return None
        self._rebalanced += 1
        member.misled_since = None
        return elect

    def _replicas_to_note(self, member: HostedPartition) -> SetReplicas | None:
        """Return what the partition's group has committed and the cluster group does not know
        yet.
        """
        held, state = self._assignment(member), member.state
        if held is None:
            return None
        is_known = (held.replicas, held.witnesses) == (state.replicas, state.witnesses)
        ends_move = held.target is not None and held.target.replicas == state.replicas
        if (is_known and not ends_move) or held.version > state.version:
            return None
        if held.version == state.version and not is_known:
            return None
        return SetReplicas(
            topic_id=member.topic_id,
            partition=member.partition,
            replicas=state.replicas,
            witnesses=state.witnesses,
            version=state.version,
        )

    def _note_replicas(self, member: HostedPartition, command: SetReplicas) -> None:
        member.deciding = True

        def done(outcome: Outcome) -> None:
            if not (isinstance(outcome, Applied) and isinstance(outcome.result, Done)):
                logger.debug(
                    "proposal failed: partition=%s command=%s outcome=%s", member, command, outcome
                )
            self._decided(member)

        self._plane.propose_bytes(CLUSTER_GROUP, command.encode(), done)

    def _next_voters(self, member: HostedPartition) -> dict[int, str] | None:
        """Return the voters that the group's next generation must have; None if the current one
        fits: its voters are the replicas and witnesses, with their current data directories.
        """
        voters = self._plane.status(member.group_id).voters
        fitting = fitting_voters(member.state, voters, self._liveness.linked_directory)
        return None if fitting == voters else fitting

    def _seal_if_due(self, member: HostedPartition) -> None:
        """End the generation if its voters do not fit: a broker joined or left, has restarted with
        an empty disk, or was lost during a recovery.
        """
        fitting = self._next_voters(member)
        if fitting is None:
            return
        before = self._plane.status(member.group_id).voters
        logger.info(
            "voters changed: group=%s admitted=%s removed=%s",
            member,
            sorted(b for b, directory in fitting.items() if before.get(b) != directory),
            sorted(before.keys() - fitting.keys()),
        )
        member.deciding = True
        self._plane.seal(member.group_id, fitting, lambda _outcome: self._decided(member))

    def _propose(self, member: HostedPartition, command: Command) -> None:
        member.deciding = True
        logger.debug("proposing: partition=%s command=%s", member, command)

        def done(outcome: Outcome) -> None:
            if isinstance(outcome, Applied) and isinstance(outcome.result, Accepted):
                logger.info("partition changed: partition=%s command=%s", member, command)
            else:
                logger.debug(
                    "proposal failed: partition=%s command=%s outcome=%s", member, command, outcome
                )
            self._decided(member)

        self._plane.propose_bytes(member.group_id, command.encode(), done)

    def _decided(self, member: HostedPartition) -> None:
        member.deciding = False
