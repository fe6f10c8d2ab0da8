"""Role of each copy on this broker: leader, follower, waiting, or being replaced.

It is set by the committed state of the partition's own group only (S24). A state that may be older
than one that this broker acted on before its start is not used yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from raftlog.consensus import Applied, GroupStatus, Outcome, Unknown
from raftlog.errors import StorageFailedError
from raftlog.replication.cluster_state import ClusterMachine
from raftlog.replication.commands import ChangeIsr, ChangeReplicas, Command
from raftlog.replication.election import has_leader
from raftlog.replication.partition_state import Accepted, PartitionState
from raftlog.server.cluster import damage, step_down
from raftlog.server.cluster.hosted_partition import CopyChange, Event, HostedPartition, Stage
from raftlog.server.cluster.liveness import Incarnation, Liveness
from raftlog.server.cluster.surveys import Surveys
from raftlog.server.consensus_plane import ConsensusPlane
from raftlog.server.partition import HostServices, Partition

logger = logging.getLogger(__name__)

# Not a command of a partition: applying it changes nothing, and shows which state this broker has
# applied.
NO_OP: Final = b""


class RoleEffects(Protocol):
    """Effects of the decisions of a ``RoleManager``."""

    def role_changed(self, hosted: HostedPartition) -> None:
        """Process that the partition's host began to lead or to follow."""
        ...

    def schedule(self, hosted: HostedPartition) -> None:
        """Check the role soon."""
        ...

    def schedule_copy_change(self, hosted: HostedPartition) -> None:
        """Do ``RoleManager.copy_change`` soon."""
        ...


class RoleManager:
    """Call ``poll`` for a partition when its state has changed, and periodically."""

    def __init__(
        self,
        broker_id: int,
        me: Incarnation,
        *,
        lag_max_seconds: float,
        replacement_delay_seconds: float,
        machine: ClusterMachine,
        plane: ConsensusPlane,
        liveness: Liveness,
        services: HostServices,
        surveys: Surveys,
        effects: RoleEffects,
    ) -> None:
        self._broker_id = broker_id
        self._me = me
        self._lag_max_seconds = lag_max_seconds
        self._replacement_delay_seconds = replacement_delay_seconds
        self._machine = machine
        self._plane = plane
        self._liveness = liveness
        self._services = services
        self._surveys = surveys
        self._effects = effects

    def poll(self, hosted: HostedPartition) -> None:
        """Set the role of the partition's host to the committed one. Cheap if it has not changed.

        A failure of one partition does not affect the others. Called periodically, so it is
        retried.
        """
        try:
            self._set_role(hosted)
        except StorageFailedError as error:
            self._services.on_failed(error)
        except Exception:  # no caller would report it
            logger.exception("role change failed, retrying: partition=%s", hosted)

    def _set_role(self, hosted: HostedPartition) -> None:
        host, state = hosted.host, hosted.state
        is_replica = self._is_replica(hosted)
        if host is None:
            if is_replica and self._is_current(hosted):
                self._effects.schedule_copy_change(hosted)  # a witness became a replica
            return
        if host.leader_epoch > state.leader_epoch:
            return  # the group's log is being replayed
        suspect = host.log.damage or host.log.doubt
        if host.closed is not None:
            # The replacement of the copy is in progress, or has failed.
            if self._must_accept(hosted):
                self._effects.schedule_copy_change(hosted)
            elif suspect and self._is_current(hosted):
                self._release_copy(hosted)
            return
        is_elected = self._is_elected(state)
        if is_elected:
            hosted.on(Event.ELECTED)
        if is_elected and not suspect:
            self._lead(hosted, host)
        elif self._must_accept(hosted):
            self._effects.schedule_copy_change(hosted)
        elif (not is_replica and not self._has_vote(hosted)) or self._is_current(hosted):
            self._follow(hosted, host, is_replica=is_replica)

    def _follow(self, hosted: HostedPartition, host: Partition, *, is_replica: bool) -> None:
        """Copy from the leader, wait for a leader, or replace the copy."""
        state, suspect = hosted.state, host.log.damage or host.log.doubt
        can_follow = is_replica and state.leader != self._broker_id and not suspect
        leader = state.leader if can_follow else None
        if (host.leader, host.leader_epoch) != (leader, state.leader_epoch) or host.leadership:
            host.unclean_epoch = state.unclean_epoch
            host.follow(leader, state.leader_epoch)
            self._effects.role_changed(hosted)
        if not is_replica:
            if self._may_delete(hosted):
                self._effects.schedule_copy_change(hosted)
        elif suspect:
            self._release_copy(hosted)
        else:
            self._step_down(hosted, host)

    def _is_elected(self, state: PartitionState) -> bool:
        """Whether this broker was elected in this incarnation and on its current disk."""
        return (
            state.leader == self._broker_id
            and state.isr.get(self._broker_id) == self._me.directory_id
            and state.leader_boot == self._me.boot
        )

    def _must_accept(self, hosted: HostedPartition) -> bool:
        """Whether this broker was elected with a copy that may lack acknowledged records, because
        it is the best one left. It then continues with that copy.
        """
        host, state = hosted.host, hosted.state
        if host is None or not self._is_elected(state):
            return False
        may_lead = host.log.is_torn or (host.log.doubt and not host.log.damage)
        return bool(may_lead) and state.unclean_epoch == state.leader_epoch

    def _lead(self, hosted: HostedPartition, host: Partition) -> None:
        state = hosted.state
        if host.leadership is not None and host.leader_epoch == state.leader_epoch:
            host.on_state(state)
            self._step_down(hosted, host)
            self.review(hosted)
            return
        host.lead(state, self._broker_id, lag_max_seconds=self._lag_max_seconds)
        logger.info("became leader: partition=%s epoch=%d", hosted, state.leader_epoch)
        self._effects.role_changed(hosted)

    def _is_current(self, hosted: HostedPartition) -> bool:
        """Whether this broker may act on the state that it knows. If not, propose the no-op."""
        if hosted.stage is not Stage.REPLAYED:
            return hosted.is_current
        hosted.on(Event.NO_OP_PROPOSED)

        def done(outcome: Outcome) -> None:
            if isinstance(outcome, Applied):
                hosted.on(Event.NO_OP_APPLIED)
                self._effects.schedule(hosted)
            else:
                hosted.on(Event.NO_OP_FAILED)

        self._plane.propose_bytes(hosted.group_id, NO_OP, done)
        return False

    def _has_vote(self, hosted: HostedPartition) -> bool:
        """Whether this data directory votes in the group's generation. Without a vote it can commit
        no no-op, and need not: it would have stored a later generation with its vote first.
        """
        voters = self._plane.voters(hosted.group_id)
        return voters.get(self._broker_id) == self._me.directory_id

    def _is_replica(self, hosted: HostedPartition) -> bool:
        """Whether this broker is a replica, by the newest state that it knows. Without a vote it
        receives no commands, and the cluster's state may be newer.
        """
        state, record = hosted.state, self._machine.topic_by_id(hosted.topic_id)
        if record is not None:
            held = record.partitions[hosted.partition]
            if held.version > state.version and not self._has_vote(hosted):
                return self._broker_id in held.replicas and self._broker_id in state.replicas
        return self._broker_id in state.replicas

    def _may_delete(self, hosted: HostedPartition) -> bool:
        """Whether the cluster group, too, has committed that this broker is no longer a replica. A
        broker that is no longer a voter either waits for the generation without its vote.
        """
        record = self._machine.topic_by_id(hosted.topic_id)
        if record is None:
            return False
        assignment = record.partitions[hosted.partition]
        if self._broker_id in assignment.replicas:
            return False
        return self._broker_id in assignment.witnesses or not self._has_vote(hosted)

    def copy_change(self, hosted: HostedPartition) -> CopyChange | None:
        """Return the change that this broker's copy needs now; None if it needs none."""
        host, is_replica = hosted.host, self._is_replica(hosted)
        if host is None and is_replica:
            return CopyChange.CREATE
        if self._must_accept(hosted):
            return CopyChange.ACCEPT
        is_suspect = host is not None and bool(host.log.damage or host.log.doubt)
        if is_suspect and self._next_step(hosted) is CopyChange.REPLACE:
            return CopyChange.REPLACE
        may_delete = not is_replica and self._may_delete(hosted)
        return CopyChange.DELETE if may_delete else None

    def _yield(
        self,
        hosted: HostedPartition,
        command: Command,
        accepted: Callable[[PartitionState], None],
    ) -> None:
        """Propose to stop leading, or to leave the ISR. If it fails, the next review repeats it."""
        assert hosted.stage is Stage.CURRENT
        hosted.on(Event.YIELD_PROPOSED)

        def done(outcome: Outcome) -> None:
            hosted.on(Event.YIELD_ENDED)
            if isinstance(outcome, Applied) and isinstance(outcome.result, Accepted):
                accepted(outcome.result.state)

        self._plane.propose_bytes(hosted.group_id, command.encode(), done)

    # -- damage

    def _release_copy(self, hosted: HostedPartition) -> None:
        """Take the next step to replace a copy that may lack records, if none is in flight."""
        if hosted.stage is Stage.YIELDING:
            return
        command = self._next_step(hosted)
        if command is CopyChange.REPLACE:
            self._effects.schedule_copy_change(hosted)
        if command is None or isinstance(command, CopyChange):
            return  # None: no other broker has a copy, so this one is all that is left

        def accepted(state: PartitionState) -> None:
            if isinstance(command, ChangeIsr):
                hosted.fenced_in = state.leader_epoch
            self._effects.schedule(hosted)

        self._yield(hosted, command, accepted)

    def _next_step(self, hosted: HostedPartition) -> Command | CopyChange | None:
        host = hosted.host
        return damage.next_step(
            hosted.state,
            self._broker_id,
            fenced_in=hosted.fenced_in,
            has_leader=has_leader(hosted.state, self._liveness),
            is_offline=host is not None and host.log.is_offline,
            is_sound=lambda broker: self._surveys.is_sound(hosted, broker),
            choose_other=lambda: self._surveys.choose(hosted, without=self._broker_id),
        )

    # -- disks that are full or hang

    def _step_down(self, hosted: HostedPartition, host: Partition) -> None:
        """Transfer to other brokers what the disk of this broker prevents, if the problem
        persists.
        """
        leads = host.leadership is not None
        if not host.must_yield() or hosted.stage is Stage.YIELDING:
            return
        command: Command | None = step_down.next_step_down(
            hosted.state, self._broker_id, self._liveness
        )
        is_late = host.hindrance.seconds >= self._replacement_delay_seconds
        if command is None and is_late and not self._is_moving(hosted):
            command = step_down.successor(
                hosted.state,
                self._broker_id,
                replication_factor=hosted.replication_factor,
                is_live=self._liveness.is_live,
            )
        if command is None:
            return
        action = "leadership_transferred" if leads else "left_isr"
        if isinstance(command, ChangeReplicas):
            action = "witness_replaces_replica"

        def accepted(_state: PartitionState) -> None:
            logger.warning(
                "replica yields: partition=%s action=%s reason=%s. Check the disk of this broker "
                "(free space, dmesg, SMART)",
                hosted,
                action,
                host.hindrance,
            )
            host.hindrance.yielded(leads=leads)

        self._yield(hosted, command, accepted)

    def _is_moving(self, hosted: HostedPartition) -> bool:
        """Whether an operator has requested other replicas for the partition."""
        record = self._machine.topic_by_id(hosted.topic_id)
        return record is not None and record.partitions[hosted.partition].target is not None

    # -- the in-sync replicas

    def review(self, hosted: HostedPartition) -> None:
        """Propose the ISR change that is needed, if there is one and none is in flight."""
        host = hosted.host
        leadership = None if host is None else host.leadership
        if host is None or leadership is None:
            return
        if host.log.damage:
            # Corruption was just found: this broker must stop leading.
            self._effects.schedule(hosted)
            return
        host.obstacle = self._obstacle(hosted)
        change = leadership.isr_change(
            self._services.loop.time(),
            self._liveness,
            # A move adds a replica for some time, and a new replication factor adds it later.
            min_isr=host.log.config.effective_min_isr(
                min(len(hosted.state.replicas), hosted.replication_factor)
            ),
            may_propose=lambda: self._hears_who_decides(hosted),
        )
        if change is None:
            return

        def done(outcome: Outcome) -> None:
            accepted = isinstance(outcome, Applied) and isinstance(outcome.result, Accepted)
            if accepted:
                logger.info("partition changed: partition=%s command=%s", hosted, change)
            leadership.proposal_done(change, None if isinstance(outcome, Unknown) else accepted)

        self._plane.propose_bytes(hosted.group_id, change.encode(), done)

    def _hears_who_decides(self, hosted: HostedPartition) -> bool:
        """Whether the leader of the partition's group is heard; or, if this broker is that leader,
        the majority that must commit. Without it, a proposal waits.
        """
        group = self._plane.status(hosted.group_id)
        if group.leader is None or not self._liveness.is_linked(group.leader):
            return True
        if group.leader != self._broker_id:
            return self._liveness.is_heard(group.leader)
        return self._hears_majority(group)

    def _hears_majority(self, group: GroupStatus) -> bool:
        heard = [voter for voter in group.voters if self._liveness.is_heard(voter)]
        return 2 * len(heard) > len(group.voters)

    def _obstacle(self, hosted: HostedPartition) -> str:
        """Return why this leader can commit nothing now, by the state of its links; "" if it can.

        A rejected append is always safe, and better than an append that may never be acknowledged.
        """
        state = hosted.state
        gone = [broker for broker in state.isr if not self._liveness.is_live(broker)]
        if not gone:
            return ""
        names = ", ".join(map(str, gone))
        if len(state.isr) - len(gone) < state.min_isr:
            return (
                f"cannot reach in-sync replicas {names}, and min.insync.replicas="
                f"{state.min_isr}. Nothing was appended. Start the missing brokers or lower "
                "min.insync.replicas"
            )
        group = self._plane.status(hosted.group_id)
        if group.leader is None and not self._hears_majority(group):
            return (
                f"cannot reach in-sync replicas {names}, and no majority of the voters of the "
                "partition is connected to remove them. Nothing was appended. Start the missing "
                "brokers, or see `raftlog cluster recover`"
            )
        return ""
