"""Partitions that this broker votes on or stores: open, close, and set their role.

Topics come from the state of the ``cluster`` group, the leader of a partition from the state of
the partition's own group. A host changes its role only here, and only by a committed state (S24).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from raftlog.config import BrokerConfig
from raftlog.consensus import Applied, GroupStatus, Outcome, Unknown
from raftlog.errors import (
    DiskHungError,
    NotLeaderError,
    RaftlogError,
    StorageFailedError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.replication.cluster_commands import (
    FenceBroker,
    InitialState,
    first_state,
    partition_events,
)
from raftlog.replication.cluster_state import ClusterMachine, TopicRecord
from raftlog.replication.election import BrokerView, choose_replacement, has_leader, transfer
from raftlog.replication.partition_state import (
    Accepted,
    BrokerId,
    ChangeIsr,
    ChangeReplicas,
    Command,
    Elect,
    ElectUnclean,
    PartitionMachine,
    PartitionState,
)
from raftlog.server.administration import quiet
from raftlog.server.cluster.elections import (
    Backlog,
    CopyChange,
    Event,
    HostedPartition,
    Stage,
    StateBroadcast,
    Surveys,
    raft_id,
)
from raftlog.server.cluster.membership import CLUSTER_GROUP, Incarnation, Liveness, Membership
from raftlog.server.consensus_plane import ConsensusPlane
from raftlog.server.partition import Partition, ReplicaServices
from raftlog.server.scheduling import Workers
from raftlog.server.topic_table import HostedTopic, TopicTable
from raftlog.storage import Log, Store
from raftlog.types import LeaderEpoch, TopicPartition

# -- handover --------------------------------------------------------------------------------------
#
# Controlled shutdown: transfer leadership before a stop, to avoid an election timeout.
#
# The broker transfers its partitions to live members of the ISR. Then it has itself fenced, so that
# no controller elects it and leaders remove it from their ISRs. It copies until they have: the high
# watermark of a partition waits for every member of its ISR. If any of this fails, nothing is lost:
# the other brokers detect the stop (Kafka's controlled shutdown, KIP-841).


logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.02
TRANSFERS_AT_A_TIME: Final = 500


class Handover:
    """The shutdown of one broker. Call ``run`` once."""

    def __init__(
        self,
        broker_id: int,
        *,
        machine: ClusterMachine,
        plane: ConsensusPlane,
        liveness: Liveness,
        membership: Membership,
        leading: Callable[[], Iterable[HostedPartition]],
        hosted: Callable[[], Iterable[HostedPartition]],
        voters: Callable[[], Collection[int]],
    ) -> None:
        """``leading``, ``hosted``: the partitions that this broker leads, and stores or votes for,
        now. ``voters``: of the cluster group.
        """
        self._broker_id = broker_id
        self._machine = machine
        self._plane = plane
        self._liveness = liveness
        self._membership = membership
        self._leading = leading
        self._hosted = hosted
        self._voters = voters

    async def run(self, *, seconds_max: float) -> None:
        """Return when others lead all partitions that they can, or after ``seconds_max``. Raises
        nothing.
        """
        self._membership.is_leaving = True
        if self._machine.brokers.keys() <= {self._broker_id}:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds_max
        work = loop.create_task(self._hand_over())
        # Without a majority nothing can be committed. Typically all brokers stop at the same time.
        while (  # noqa: ASYNC110 - what is waited for has no event
            not work.done() and loop.time() < deadline and self._has_majority()
        ):
            await asyncio.sleep(POLL_SECONDS)
        if not work.done():
            work.cancel()
            logger.warning(
                "stopping while leading partitions: reason=transfer_timeout. The other brokers "
                "elect leaders when the session of this broker ends"
            )
        await asyncio.gather(work, return_exceptions=True)
        if not work.cancelled() and (mistake := work.exception()) is not None:
            logger.error(
                "leadership transfer failed: reason=internal_error. Report this error",
                exc_info=mistake,
            )

    async def _hand_over(self) -> None:
        movable = self._movable()
        for start in range(0, len(movable), TRANSFERS_AT_A_TIME):
            await asyncio.gather(
                *(self._transfer(*each) for each in movable[start : start + TRANSFERS_AT_A_TIME])
            )
        await self._leave()
        # The partition controllers elect leaders for the failed transfers, as this broker is fenced
        # now.
        while (  # noqa: ASYNC110 - what is waited for has no event
            self._movable() or any(map(self._holds_back, self._hosted()))
        ):
            await asyncio.sleep(POLL_SECONDS)

    def _holds_back(self, hosted: HostedPartition) -> bool:
        """Whether the leader of a partition waits for this broker, and is about to remove it."""
        record, leader = self._machine.brokers.get(self._broker_id), hosted.state.leader
        return (
            record is not None
            and record.fenced
            and leader not in (None, self._broker_id)
            and self._liveness.is_live(leader)
            and self._broker_id in hosted.state.isr
        )

    def _movable(self) -> list[tuple[HostedPartition, Elect]]:
        """Return the partitions that this broker leads and another could, with the election
        command.
        """
        found = []
        for hosted in self._leading():
            state = hosted.state
            elects = (transfer(state, broker, self._liveness) for broker in state.replicas)
            elect = next((each for each in elects if isinstance(each, Elect)), None)
            if elect is not None:
                found.append((hosted, elect))
        return found

    async def _transfer(self, hosted: HostedPartition, elect: Elect) -> None:
        try:
            await self._plane.propose(hosted.raft_id, elect.encode())
        except RaftlogError as error:
            logger.info("leadership transfer failed: partition=%s error=%s", hosted, error)

    async def _leave(self) -> None:
        """Have this broker fenced, so that no other broker waits for it."""
        record = self._machine.brokers.get(self._broker_id)
        if record is None or not self._membership.is_in:
            return
        command = FenceBroker(id=record.id, broker_epoch=record.broker_epoch)
        try:
            await self._plane.propose(CLUSTER_GROUP, command.encode())
        except RaftlogError as error:
            logger.info("broker not fenced before its stop: error=%s", error)

    def _has_majority(self) -> bool:
        voters = self._voters()
        there = sum(map(self._liveness.is_linked, voters))
        return 2 * there > len(voters)


# -- role manager ----------------------------------------------------------------------------------
#
# Role of each copy on this broker: leader, follower, waiting, or being replaced.
#
# It is set by the committed state of the partition's own group only (S24). A state that may be
# older than one that this broker acted on before its start is not used yet.


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
        services: ReplicaServices,
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
        # guard: a role never returns to an older epoch
        if host.leader_epoch > state.leader_epoch:
            return  # the group's log is being replayed
        suspect = host.log.damage or host.log.doubt
        if host.closed is not None:
            # The replacement of the copy is in progress, or has failed.
            if self._must_accept(hosted):
                self._effects.schedule_copy_change(hosted)
            elif suspect and self._is_current(hosted):
                # guard: the replacement of a copy is retried
                self._release_copy(hosted)
            return
        is_elected = self._is_elected(state)
        if is_elected:
            hosted.on(Event.ELECTED)
        # guard: a corrupt copy does not lead
        if is_elected and self._may_lead(hosted, host):
            self._lead(hosted, host)
        elif self._must_accept(hosted):
            self._effects.schedule_copy_change(hosted)
        # guard: a former voter that is a replica again keeps its copy
        # guard: a former voter deletes its copy without a vote
        # guard: after a start a state has to be current
        elif (not is_replica and not self._has_vote(hosted)) or self._is_current(hosted):
            self._follow(hosted, host, is_replica=is_replica)

    def _follow(self, hosted: HostedPartition, host: Partition, *, is_replica: bool) -> None:
        """Copy from the leader, wait for a leader, or replace the copy."""
        state, suspect = hosted.state, host.log.damage or host.log.doubt
        # guard: a corrupt copy does not follow
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
            # guard: a follower with a full disk leaves the ISR
            self._step_down(hosted, host)

    def _is_elected(self, state: PartitionState) -> bool:
        """Whether this broker was elected in this incarnation and on its current disk."""
        # guard: a leader is in the incarnation that was elected
        # guard: a leader is on the disk that was elected
        return (
            state.leader == self._broker_id
            and state.isr.get(self._broker_id) == self._me.directory_id
            and state.leader_boot == self._me.boot
        )

    def _may_lead(self, hosted: HostedPartition, host: Partition) -> bool:
        """Whether the copy is complete, or corrupt and the only one: it is served up to there."""
        log = host.log
        is_only = hosted.state.replicas == (self._broker_id,)
        if log.damage and is_only and not (log.is_torn or log.is_offline):
            return not log.doubt
        return not (log.damage or log.doubt)

    def _must_accept(self, hosted: HostedPartition) -> bool:
        """Whether this broker was elected with a copy that may lack acknowledged records, because
        it is the best one left. It then continues with that copy.
        """
        host, state = hosted.host, hosted.state
        if host is None or not self._is_elected(state):
            return False
        may_lead = host.log.is_torn or (host.log.doubt and not host.log.damage)
        # guard: a copy in doubt leads only if it is the best remaining one
        return bool(may_lead) and state.unclean_epoch == state.leader_epoch

    def _lead(self, hosted: HostedPartition, host: Partition) -> None:
        state = hosted.state
        if host.leadership is not None and host.leader_epoch == state.leader_epoch:
            host.on_state(state)
            # guard: a leader with a full disk transfers leadership
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
            # guard: a state is current once something was applied
            if isinstance(outcome, Applied):
                hosted.on(Event.NO_OP_APPLIED)
                self._effects.schedule(hosted)
            else:
                hosted.on(Event.NO_OP_FAILED)

        self._plane.propose_bytes(hosted.raft_id, NO_OP, done)
        return False

    def _has_vote(self, hosted: HostedPartition) -> bool:
        """Whether this data directory votes in the group's generation. Without a vote it can commit
        no no-op, and need not: it would have stored a later generation with its vote first.
        """
        voters = self._plane.voters(hosted.raft_id)
        return voters.get(self._broker_id) == self._me.directory_id

    def _is_replica(self, hosted: HostedPartition) -> bool:
        """Whether this broker is a replica, by the newest state that it knows. Without a vote it
        receives no commands, and the cluster's state may be newer.
        """
        state = hosted.state
        held = self._machine.assignment(hosted.topic_id, hosted.partition)
        # guard: without a vote, the cluster's newer state decides which brokers are replicas
        if held is not None and held.version > state.version and not self._has_vote(hosted):
            return self._broker_id in held.replicas and self._broker_id in state.replicas
        return self._broker_id in state.replicas

    def _may_delete(self, hosted: HostedPartition) -> bool:
        """Whether the cluster group, too, has committed that this broker is no longer a replica. A
        broker that is no longer a voter either waits for the generation without its vote.
        """
        assignment = self._machine.assignment(hosted.topic_id, hosted.partition)
        # guard: a copy is deleted only when the cluster agrees, too
        if assignment is None or self._broker_id in assignment.replicas:
            return False
        # guard: a former voter deletes its copy after the seal
        return self._broker_id in assignment.witnesses or not self._has_vote(hosted)

    def copy_change(self, hosted: HostedPartition) -> CopyChange | None:
        """Return the change that this broker's copy needs now; None if it needs none."""
        host, is_replica = hosted.host, self._is_replica(hosted)
        if hosted.closing is not None:
            return CopyChange.DELETE  # a replica again gets an empty copy after that
        if host is None and is_replica:
            return CopyChange.CREATE
        if self._must_accept(hosted):
            return CopyChange.ACCEPT
        is_suspect = host is not None and bool(host.log.damage or host.log.doubt)
        # guard: a copy is quarantined only with permission
        if is_suspect and self._next_step(hosted) is CopyChange.REPLACE:
            return CopyChange.REPLACE
        # guard: only a broker that is no replica deletes its copy
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

        self._plane.propose_bytes(hosted.raft_id, command.encode(), done)

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
        return next_step(
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
        command: Command | None = next_step_down(hosted.state, self._broker_id, self._liveness)
        is_late = host.disk_problem.seconds >= self._replacement_delay_seconds
        if command is None and is_late and not self._is_moving(hosted):
            command = successor(
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
                host.disk_problem,
            )
            host.disk_problem.yielded(leads=leads)

        self._yield(hosted, command, accepted)

    def _is_moving(self, hosted: HostedPartition) -> bool:
        """Whether an operator has requested other replicas for the partition."""
        held = self._machine.assignment(hosted.topic_id, hosted.partition)
        return held is not None and held.target is not None

    # -- the in-sync replicas

    def review(self, hosted: HostedPartition) -> None:
        """Propose the ISR change that is needed, if there is one and none is in flight."""
        host = hosted.host
        leadership = None if host is None else host.leadership
        if host is None or leadership is None:
            return
        if host.log.damage:
            # Corruption was just found: this broker must stop leading, if it is not the only one.
            if not self._may_lead(hosted, host):
                self._effects.schedule(hosted)
            return
        host.commit_problem = self._commit_problem_of(hosted)
        # guard: a leader without incoming messages decides nothing
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
            # guard: an unknown outcome stays in doubt
            leadership.proposal_done(change, None if isinstance(outcome, Unknown) else accepted)

        self._plane.propose_bytes(hosted.raft_id, change.encode(), done)

    def _hears_who_decides(self, hosted: HostedPartition) -> bool:
        """Whether the leader of the partition's group is heard; or, if this broker is that leader,
        the majority that must commit. Without it, a proposal waits.
        """
        group = self._plane.status(hosted.raft_id)
        if group.leader is None or not self._liveness.is_linked(group.leader):
            return True
        if group.leader != self._broker_id:
            return self._liveness.is_heard(group.leader)
        return self._hears_majority(group)

    def _hears_majority(self, group: GroupStatus) -> bool:
        heard = [voter for voter in group.voters if self._liveness.is_heard(voter)]
        return 2 * len(heard) > len(group.voters)

    def _commit_problem_of(self, hosted: HostedPartition) -> str:
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
        group = self._plane.status(hosted.raft_id)
        # guard: a leader that no majority can help rejects appends
        if group.leader is None and not self._hears_majority(group):
            return (
                f"cannot reach in-sync replicas {names}, and no majority of the voters of the "
                "partition is connected to remove them. Nothing was appended. Start the missing "
                "brokers, or see `raftlog cluster recover`"
            )
        return ""


# -- replicas --------------------------------------------------------------------------------------


HOSTS_PER_TURN: Final = 50  # hosts opened before the event loop serves other work
RETRY_SECONDS: Final = 1.0  # seconds until a failed change is retried; usually the disk is full


class Partitions:
    """``reconcile`` applies the cluster's state to this broker, topic by topic."""

    def __init__(
        self,
        broker_id: int,
        me: Incarnation,
        *,
        config: BrokerConfig,
        store: Store,
        machine: ClusterMachine,
        plane: ConsensusPlane,
        liveness: Liveness,
        topics: TopicTable,
        services: ReplicaServices,
        worker: Workers,
        state_broadcast: StateBroadcast,
        surveys: Surveys,
        on_role: Callable[[HostedPartition], None],
        on_ready: Callable[[], None],
    ) -> None:
        """``on_role``: called when a host begins to lead, begins to follow, or is removed.
        ``on_ready``: called when ``is_ready`` may have become true.
        """
        self._broker_id = broker_id
        self._me = me
        self._store = store
        self._machine = machine
        self._plane = plane
        self._topics = topics
        self._services = services
        self._worker = worker
        self._state_broadcast = state_broadcast
        self._on_role = on_role
        self._on_ready = on_ready
        self.roles = RoleManager(
            broker_id,
            me,
            lag_max_seconds=config.replica_lag_time_max_ms / 1_000,
            replacement_delay_seconds=config.replica_replacement_delay_ms / 1_000,
            machine=machine,
            plane=plane,
            liveness=liveness,
            services=services,
            surveys=surveys,
            effects=self,
        )
        self.hosted: dict[str, HostedPartition] = {}  # by Raft group
        self._by_topic: dict[str, list[HostedPartition]] = {}  # by topic id
        self._stale: dict[str, None] = {}  # topic names to check
        self._changed = Backlog(services.loop, self._apply)  # with a new state
        self._strays_due = self._knows_all = False
        # Partitions whose copy must be created, replaced or removed:
        self._copy_changes: dict[HostedPartition, None] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._failed_topics: dict[str, None] = {}  # to be retried
        self._failed_copies: dict[HostedPartition, None] = {}
        # Of deleted topics, by ID, whose files a thread may still use.
        self._closed: dict[str, list[Partition]] = {}
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._stopped = False

    # -- queries

    @property
    def is_ready(self) -> bool:
        """Whether every replica that the cluster's state assigns to this broker is open."""
        return self._task is None and not self._stale

    def leading(self) -> list[HostedPartition]:
        """Return the partitions that this broker leads."""
        return [m for m in self.hosted.values() if m.host is not None and m.host.leadership]

    def state_of(self, topic_id: str, partition: int) -> PartitionState | None:
        """Return the known state of a partition, whether or not this broker is a voter of it.
        None if the partition does not exist.
        """
        hosted = self.hosted.get(raft_id(topic_id, partition))
        received = self._state_broadcast.received.get((topic_id, partition))
        if hosted is None:
            return received or self._assigned_state(topic_id, partition)
        if received is not None and self._is_outdated(hosted, received):
            return received
        # guard: a state of an older incarnation names no leader
        if self._is_known(hosted):
            return hosted.state
        return replace(hosted.state, leader=None)  # an outdated state from before this start

    def described_state(self, topic_id: str, partition: int) -> PartitionState | None:
        """``state_of``, for metadata: a new partition whose group is about to be opened here has
        the leader of its first state. Kafka's clients expect no new partitions without a leader.
        """
        key = topic_id, partition
        if raft_id(*key) not in self.hosted and key not in self._state_broadcast.received:
            record = self._machine.topic_by_id(topic_id)
            if record is not None and partition < len(record.partitions):
                birth = record.birth(partition)
                if self._knows_first_state(birth):
                    return first_state(birth)
        return self.state_of(topic_id, partition)

    def _assigned_state(self, topic_id: str, partition: int) -> PartitionState | None:
        """Return the replicas that the cluster's state assigns, without a leader: no broker has
        sent the partition's state yet.
        """
        record = self._machine.topic_by_id(topic_id)
        if record is None or partition >= len(record.partitions):
            return None
        assigned, first = record.partitions[partition], first_state(record.birth(partition))
        in_sync = {id_: disk for id_, disk in first.isr.items() if id_ in assigned.replicas}
        return replace(
            first,
            replicas=assigned.replicas,
            witnesses=assigned.witnesses,
            leader=None,
            leader_boot=0,
            isr=in_sync,
        )

    def _is_outdated(self, hosted: HostedPartition, received: PartitionState) -> bool:
        """Whether this broker has no vote, so receives no commands, and ``received`` is newer."""
        status = self._status(hosted)
        is_voter = status is not None and status.role != "observer"
        return not is_voter and received.version > hosted.state.version

    def _is_known(self, hosted: HostedPartition) -> bool:
        """Whether the group's state was received in this incarnation: a journal can end
        anywhere.
        """
        if not hosted.is_known:
            status = self._status(hosted)
            if status is None:
                return False
            heard = status.leader is not None and status.commit_index > 1
            hosted.is_known = heard and status.applied_index >= status.commit_index
        return hosted.is_known

    def _status(self, hosted: HostedPartition) -> GroupStatus | None:
        """None when the group is not open, because consensus has stopped."""
        try:
            return self._plane.status(hosted.raft_id)
        except KeyError:
            return None

    def is_hosted(self, hosted: HostedPartition) -> bool:
        """Whether the partition has not been deleted since."""
        return self.hosted.get(hosted.raft_id) is hosted

    def find(self, topic_id: str, partition: int) -> HostedPartition | None:
        return self.hosted.get(raft_id(topic_id, partition))

    # -- the cluster's state

    def schedule_topics(self, names: Iterable[str]) -> None:
        """Note topics that changed in the cluster's state."""
        for name in names:
            self._stale[name] = None
        if self._task is None and self._is_needed and not self._stopped:
            self._task = self._services.loop.create_task(self._reconcile())

    @property
    def _is_needed(self) -> bool:
        return bool(self._stale or self._copy_changes or self._strays_due)

    def schedule_copy_change(self, hosted: HostedPartition) -> None:
        """Schedule a change of the partition's copy; ``_change_copy`` determines which."""
        self._copy_changes[hosted] = None
        self.schedule_topics(())

    def delete_strays(self) -> None:
        """Remove copies, and generations in the journal, of topics that were deleted, or recreated,
        while this broker was down, and of partitions that a recovery has lost.

        Call this once this broker has applied all changes up to its registration. Before that, an
        unknown topic may be one that this broker has not received yet (S19).
        """
        self._strays_due = self._knows_all = True
        self.schedule_topics(())

    async def until_seen(self, name: str) -> None:
        """Return once this broker has applied all committed changes of the topic."""
        if name in self._stale or self._task is not None:
            future = self._services.loop.create_future()
            self._waiting.append((name, future))
            await future

    async def _reconcile(self) -> None:
        try:
            while self._is_needed and not self._stopped:
                if self._stale:
                    name = next(iter(self._stale))
                    del self._stale[name]
                    if not await self._try(f"topic {name}", self._reconcile_topic(name)):
                        self._failed_topics[name] = None
                        self._strays_due |= self._knows_all  # of a deletion that was interrupted
                    self._notify_waiters(name)
                elif self._copy_changes:
                    hosted = next(iter(self._copy_changes))
                    del self._copy_changes[hosted]
                    if not await self._try(str(hosted), self._change_copy(hosted)):
                        self._failed_copies[hosted] = None
                else:
                    self._strays_due = not await self._try("old copies", self._delete_strays())
                    if self._strays_due and not (self._stale or self._copy_changes):
                        break
        finally:
            self._task = None
            for name in {name for name, _ in self._waiting}:
                self._notify_waiters(name)
            if self._failed_topics or self._failed_copies or self._strays_due:
                self._retry_later()
            self._on_ready()

    async def _try(self, what: str, work: Coroutine[Any, Any, None]) -> bool:
        """Return whether it succeeded. A failure of one topic does not affect the others; it is
        retried.
        """
        try:
            await work
        except StorageFailedError as error:
            self._stopped = True
            self._services.on_failed(error)
        except DiskHungError as error:
            logger.debug("topic or replica update waits: object=%s error=%s", what, error)
            return False
        except Exception:  # also an internal error: no caller would report it
            logger.exception("topic or replica update failed, retrying: object=%s", what)
            return False
        return True

    def _retry_later(self) -> None:
        if self._retry is None and not self._stopped:
            self._retry = self._services.loop.call_later(RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        names, self._failed_topics = self._failed_topics, {}
        partitions, self._failed_copies = self._failed_copies, {}
        self._copy_changes.update(partitions)
        self.schedule_topics(names)

    def _notify_waiters(self, name: str) -> None:
        """Notify the waiters that the topic was checked."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each[0] != name:
                self._waiting.append(each)
            elif not each[1].done():
                each[1].set_result(None)

    async def _reconcile_topic(self, name: str) -> None:
        record = self._machine.topics.get(name)
        held = self._topics.get(name)
        if held is not None and (record is None or held.id != record.id):
            await self._delete(held)
            held = None
        if record is None:
            return
        if held is None:
            held = HostedTopic(
                record.name,
                record.id,
                record.config,
                record.overrides,
                [None] * len(record.partitions),  # listed at once, without leaders yet
            )
            self._topics.add(held)
        # guard: partitions that a recovery has lost are deleted
        if len(record.partitions) < len(held.hosts):
            await self._delete(held, first=len(record.partitions))
        held.config, held.overrides = record.config, record.overrides
        for host in held.hosts:
            if host is not None:
                host.log.config = record.config
                host.reconsider()
        for hosted in self._by_topic.get(record.id, ()):
            hosted.replication_factor = record.replication_factor
            self.schedule(hosted)
        self._topics.extend(held, [None] * (len(record.partitions) - len(held.hosts)))
        new = [p for p in range(len(record.partitions)) if self._is_missing(record, p)]
        if new:
            await self._open(record, new)
        else:
            await self._worker.run(
                lambda: self._store.update_topic(
                    record.id,
                    overrides=record.overrides,
                    total_partitions=len(record.partitions),
                )
            )

    def _is_missing(self, record: TopicRecord, partition: int) -> bool:
        """Whether this broker must vote on or store the partition, and has not opened it yet."""
        if raft_id(record.id, partition) in self.hosted:
            return False
        voters = record.birth(partition).directories
        if self._broker_id in (*voters, *record.partitions[partition].voters):
            return True
        # A former voter keeps its generation: it has to offer it to the others, and must never vote
        # in an older one.
        # guard: a former voter keeps its generation
        return self._plane.has_journaled(raft_id(record.id, partition))

    async def _open(self, record: TopicRecord, new: list[int]) -> None:
        """Open partitions: vote where this broker is a voter, store where it is a replica."""
        await self._store_copies(
            record, [p for p in new if self._broker_id in record.partitions[p].replicas]
        )
        for number, partition in enumerate(new):
            hosted = self._open_group(record, partition)
            if hosted.is_current and hosted.host is not None and hosted.host.log.doubt:
                await self._resolve(hosted, hosted.host)
            if number % HOSTS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _open_group(self, record: TopicRecord, partition: int) -> HostedPartition:
        birth = record.birth(partition)
        first, log = first_state(birth), self._copy_of(record, partition)
        # guard: a group that is younger than its log continues the epochs of the log
        if (
            log is not None
            and log.leader_epoch > first.leader_epoch
            and len(birth.directories) == 1
        ):
            # The log is older than the group (``migration``). Its epochs never decrease.
            first = replace(first, leader_epoch=log.leader_epoch)
        base = first.encode()
        machine = PartitionMachine(base)
        hosted = HostedPartition(
            record.name, record.id, partition, record.replication_factor, machine
        )
        self.hosted[hosted.raft_id] = hosted
        self._by_topic.setdefault(record.id, []).append(hosted)
        if log is not None:
            self._attach(hosted, log)
        hosted.noted = machine.state
        hosted.is_known = self._knows_first_state(birth)
        machine.on_change = lambda: self._state_applied(hosted)
        self._plane.open_group(
            hosted.raft_id,
            machine,
            voters=birth.directories,
            base=base,
            needs_leader=not hosted.state.leader_boot,
        )
        status = self._status(hosted)
        # An earlier incarnation can have led, or followed, by a base that names a leader.
        # guard: an earlier incarnation can have led without a term
        is_first = hosted.is_known or not hosted.state.leader_boot
        if status is not None and status.term == 0 and is_first:
            hosted.on(Event.FOUNDED)
        self.schedule(hosted)
        return hosted

    def _knows_first_state(self, birth: InitialState) -> bool:
        """Return whether this incarnation was a voter at the creation, so it opens the group for
        the first time: the base is the newest state that it can know. Others open it later.
        """
        # guard: the first leader is known to the incarnations of the creation only
        return self._me.boot == birth.boots.get(self._broker_id) and (
            self._me.directory_id == birth.directories[self._broker_id]
        )

    def _copy_of(self, record: TopicRecord, partition: int) -> Log | None:
        """Return this broker's copy of the partition, possibly left from when it was a replica."""
        try:
            return self._store.hosted_log(record.id, partition)
        except UnknownPartitionError:
            return None

    async def _store_copies(self, record: TopicRecord, partitions: list[int]) -> None:
        """Open this broker's copies of partitions; create missing ones empty."""
        await self._worker.run(
            lambda: self._store.host_partitions(
                record.name,
                record.id,
                partitions,
                total_partitions=len(record.partitions),
                overrides=record.overrides,
            )
        )

    def _attach(self, hosted: HostedPartition, log: Log) -> None:
        for note in log.notes:
            logger.warning("log recovery: partition=%s note=%s", hosted, note)
        if log.damage and not log.is_torn:
            logger.error("log corrupt: partition=%s reason=%s", hosted, log.damage)
        elif log.damage or log.doubt:
            logger.warning(
                "copy may lack acknowledged records: partition=%s end_offset=%d reason=%s",
                hosted,
                log.readable_end_offset,
                log.damage or log.doubt,
            )
        hosted.host = Partition(
            TopicPartition(hosted.topic, hosted.partition),
            log,
            self._services.of(log),
            topic_id=hosted.topic_id,
        )
        held = self._topics.get(hosted.topic)
        if held is not None and held.id == hosted.topic_id:
            held.hosts[hosted.partition] = hosted.host

    async def _delete(self, held: HostedTopic, *, first: int = 0) -> None:
        """Stop serving a deleted topic, or its partitions from ``first`` on, then remove their
        files. A recovery of the cluster can lose partitions that were added last.
        """
        members = self._by_topic.pop(held.id, [])
        if first:
            self._topics.cut(held, first)
            self._by_topic[held.id] = [each for each in members if each.partition < first]
        else:
            self._topics.remove(held.name)
        self._state_broadcast.forget(held.id, first=first)
        partitions = [each for each in members if each.partition >= first]
        reason = UnknownTopicError(f"topic {held.name!r} was deleted, or partitions of it")
        hosts = [h for each in partitions for h in (each.host, each.closing) if h is not None]
        for hosted in partitions:
            self.hosted.pop(hosted.raft_id)
            self._plane.close_group(hosted.raft_id, forget=True)
        for host in hosts:
            host.close(reason)
        for hosted in partitions:
            self._on_role(hosted)
        self._closed.setdefault(held.id, []).extend(hosts)
        await self._until_quiet(held.id)
        stored = [host.topic_partition.partition for host in hosts]
        await self._worker.run(partial(self._store.drop_partitions, held.id, stored))
        logger.info("topic deleted: topic=%s from_partition=%d", held.name, first)

    async def _until_quiet(self, topic_id: str) -> None:
        """Return once no thread uses the files of a deleted topic. Raises ``DiskHungError``: other
        topics must not wait for a disk that hangs.
        """
        await quiet(self._closed.get(topic_id, []), gives_up=True)
        self._closed.pop(topic_id, None)

    async def _delete_strays(self) -> None:
        for group in self._plane.journaled_groups():
            topic_id, _, number = group.rpartition("/")
            # guard: a generation of a partition that was deleted is forgotten
            if topic_id and self._machine.assignment(topic_id, int(number)) is None:
                self._plane.close_group(group, forget=True)
        hung: DiskHungError | None = None
        for topic, partition, _log in list(self._store.hosted()):
            # guard: unknown topics are not strays immediately
            if self._machine.assignment(topic.id, partition) is None:
                try:
                    await self._until_quiet(topic.id)
                except DiskHungError as error:
                    hung = error
                    continue
                logger.warning(
                    "replica removed: partition=%s:%d reason=topic_deleted", topic.name, partition
                )
                await self._worker.run(partial(self._store.drop_partitions, topic.id, [partition]))
        if hung is not None:
            raise hung

    # -- a partition's state

    def _state_applied(self, hosted: HostedPartition) -> None:
        """Record the events of a new state, unless it is replayed from the journal."""
        before, hosted.noted = hosted.noted, hosted.state
        if hosted.is_known and before is not None:
            at_ms = self._services.clock.wall_ms()
            place = hosted.topic, hosted.topic_id, hosted.partition
            for event in partition_events(*place, before, hosted.state):
                self._services.events.add(event, at_ms)
        self.schedule(hosted)

    def role_changed(self, hosted: HostedPartition) -> None:
        self._on_role(hosted)

    def schedule(self, hosted: HostedPartition) -> None:
        """Apply the new state soon: of several changes, only the last one counts."""
        hosted.settled = None
        self._changed.add([hosted])

    def _apply(self, changed: list[HostedPartition]) -> None:
        partitions = list(filter(self.is_hosted, changed))
        for hosted in partitions:
            self.roles.poll(hosted)
        self._state_broadcast.send(partitions)

    async def _change_copy(self, hosted: HostedPartition) -> None:
        """Do the work that waits for the disk: create, replace or remove a copy.

        Determines the work again from the current state, which may have changed. A failed attempt
        may have closed the host: the next attempt replaces it.
        """
        record = self._machine.topic_by_id(hosted.topic_id)
        if hosted.raft_id not in self.hosted or record is None:
            return
        host, change = hosted.host, self.roles.copy_change(hosted)
        if change is CopyChange.CREATE:
            await self._store_copies(record, [hosted.partition])
            self._attach(hosted, self._store.hosted_log(hosted.topic_id, hosted.partition))
        elif change is CopyChange.DELETE:
            await self._delete_copy(hosted)
        elif change is not None:
            assert host is not None
            host.check_disk()
            if change is CopyChange.ACCEPT:
                logger.error(
                    "unclean leader: partition=%s epoch=%d log_end_offset=%d reason=%s",
                    hosted,
                    hosted.state.leader_epoch,
                    host.log.readable_end_offset,
                    host.log.damage or host.log.doubt,
                )
            if change is CopyChange.REPLACE and host.log.damage and not host.log.is_torn:
                await self._quarantine(hosted, host)
            else:
                await self._resolve(hosted, host)
        self.schedule(hosted)

    async def _quarantine(self, hosted: HostedPartition, host: Partition) -> None:
        host.close(
            NotLeaderError(f"{hosted}: the copy of this broker is corrupt and is being replaced")
        )
        self._on_role(hosted)
        await quiet([host], gives_up=True)
        path = await self._worker.run(
            lambda: self._store.quarantine(hosted.topic_id, hosted.partition)
        )
        log = self._store.hosted_log(hosted.topic_id, hosted.partition)
        logger.error(
            "corrupt replica quarantined, copying again: partition=%s path=%s", hosted, path
        )
        self._attach(hosted, log)
        hosted.fenced_in = None

    async def _resolve(self, hosted: HostedPartition, host: Partition) -> None:
        """Continue with the records of the copy. The leader has the missing ones, or no replica
        has.
        """
        if host.log.is_torn:
            host.close(
                NotLeaderError(f"{hosted}: the end of the copy of this broker is being truncated")
            )
            self._on_role(hosted)
            await quiet([host], gives_up=True)
        log = await self._worker.run(lambda: self._store.resolve(hosted.topic_id, hosted.partition))
        if log is not host.log:
            self._attach(hosted, log)
        hosted.fenced_in = None

    async def _delete_copy(self, hosted: HostedPartition) -> None:
        host, held = hosted.host, self._topics.get(hosted.topic)
        if host is not None:  # otherwise an earlier attempt failed
            host.close(NotLeaderError(f"{hosted}: this broker is no longer a replica"))
            self._on_role(hosted)
            if held is not None and held.id == hosted.topic_id:
                held.hosts[hosted.partition] = None
            hosted.host, hosted.closing = None, host
        if hosted.closing is not None:
            await quiet([hosted.closing], gives_up=True)
            hosted.closing = None
        await self._remove_files(hosted)
        logger.info("replica removed: partition=%s", hosted)

    async def _remove_files(self, hosted: HostedPartition) -> None:
        await self._worker.run(
            partial(self._store.drop_partitions, hosted.topic_id, [hosted.partition])
        )

    def damaged(self, host: Partition, reason: str) -> None:
        """Replace a copy that is corrupt, or does not fit the leader's, and copy it again (P6)."""
        hosted = self.find(host.topic_id, host.topic_partition.partition)
        if hosted is None or hosted.host is not host or host.log.damage:
            return
        logger.error("log corrupt: partition=%s reason=%s", hosted, reason)
        # guard: a copy that differs rejects reads
        host.log.note_damage(reason, offset=host.high_watermark)
        self.roles.poll(hosted)

    def schedule_host(self, host: Partition) -> None:
        """Check the role of a host again: corruption was found in its log."""
        hosted = self.find(host.topic_id, host.topic_partition.partition)
        if hosted is not None and hosted.host is host:
            self.schedule(hosted)

    def review(self, partitions: Iterable[HostedPartition]) -> None:
        """Check the roles of partitions, and their ISRs where this broker leads."""
        for hosted in partitions:
            self._is_known(hosted)
            self.roles.poll(hosted)

    # -- the end

    async def stop(self) -> None:
        self._stopped = True
        if self._retry is not None:
            self._retry.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])


# -- damage ----------------------------------------------------------------------------------------
#
# Replacement of a copy that is corrupt or may lack acknowledged records, step by step.
#
# There is no step while the partition has no leader, or a leader whose own copy is not complete:
# this copy may be the best one left, and the election decides that (``surveys``). If this broker is
# the leader, it transfers leadership to a better copy. Then it reports its copy as lost: it leaves
# the ISR and the ELR, and the leader epoch increases, so that no earlier acknowledgement of this
# broker can return it to the ISR. Only then may the copy be quarantined and copied again, or its
# torn write be truncated (P6). This module decides only; it changes nothing.
#
# The files of an offline copy may return with all their records. It is not replaced until its log
# directory is repaired. It leaves the ISR only if enough other members remain: otherwise the leader
# removes it when it lags, and it stays in the ELR.


def next_step(
    state: PartitionState,
    broker_id: int,
    *,
    fenced_in: LeaderEpoch | None,
    has_leader: bool,
    is_offline: bool,
    is_sound: Callable[[BrokerId], bool],
    choose_other: Callable[[], Elect | ElectUnclean | None],
) -> Command | CopyChange | None:
    """Return the command to propose now, or the replacement of the copy; None while no other broker
    can lead.

    ``fenced_in``: the epoch that began when this broker's own proposal reported the copy as lost.
    Since before that epoch, this broker has not reported the log of that copy. ``is_offline``:
    whether the log directory of the copy has failed. ``is_sound``:
    whether a broker has reported its copy as complete, as of ``state``. ``choose_other``: the
    election of another broker whose copy is complete or, if there is none, longer than this one.
    """
    if broker_id not in state.replicas or not has_leader:
        return None  # not a replica: the copy is removed anyway
    if state.leader == broker_id:
        return choose_other()
    # guard: a copy stays until a complete one leads
    if state.leader is None or not is_sound(state.leader):
        return None
    # guard: an offline replica stays in an ISR that needs it
    # guard: an offline replica is not replaced
    if is_offline and (broker_id not in state.isr or len(state.isr) <= state.min_isr):
        return None
    is_member = broker_id in state.isr or broker_id in state.elr
    # guard: a corrupt copy that is a member again stays
    # guard: a corrupt copy leaves the ISR before its deletion
    if fenced_in is not None and state.leader_epoch >= fenced_in and not is_member:
        return CopyChange.REPLACE
    isr = {broker: directory for broker, directory in state.isr.items() if broker != broker_id}
    # guard: a corrupt copy is reported as lost
    return ChangeIsr(state.version, state.leader_epoch, isr, state.min_isr, (broker_id,))


# -- step down -------------------------------------------------------------------------------------
#
# Proposals of a broker whose disk is full or hangs, so that other brokers replace it.
#
# A leader transfers its leadership to a member of the ISR, and a follower leaves the ISR. A replica
# without which nothing can be committed is replaced by a witness. None of these loses committed
# records. This module decides only; ``disks.DiskProblem`` measures the duration.


def next_step_down(
    state: PartitionState,
    broker_id: int,
    view: BrokerView,
) -> Elect | ChangeIsr | None:
    """Return the command to propose; None while no other broker could do more.

    The leader tries the replicas after it, in a ring: with several full disks, each gets a turn. A
    follower stays in the ISR if ``min.insync.replicas`` could not be met without it.
    """
    if broker_id not in state.isr or broker_id not in state.replicas:
        return None
    if state.leader == broker_id:
        place = state.replicas.index(broker_id)
        for other in state.replicas[place + 1 :] + state.replicas[:place]:
            elect = transfer(state, other, view)
            if isinstance(elect, Elect):
                return elect
        return None
    if state.leader is None or len(state.isr) <= state.min_isr:
        return None
    isr = {broker: directory for broker, directory in state.isr.items() if broker != broker_id}
    return ChangeIsr(state.version, state.leader_epoch, isr, state.min_isr)


def successor(
    state: PartitionState,
    broker_id: int,
    *,
    replication_factor: int,
    is_live: Callable[[int], bool],
) -> ChangeReplicas | None:
    """Return the replacement of a replica as if it had failed: by a witness, or by an additional
    copy.

    Only while too few replicas are in sync for any commit. For a disk on which no log could grow
    for ``replica.replacement.delay.ms``.
    """
    if broker_id in state.isr or len(state.isr) >= state.min_isr:
        return None
    return choose_replacement(
        state,
        replication_factor=replication_factor,
        dead_seconds=lambda broker: float(broker == broker_id),
        delay_seconds=0.0,
        is_live=lambda broker: broker != broker_id and is_live(broker),
    )
