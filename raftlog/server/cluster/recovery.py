"""Recovery after the loss of a majority: survey the copies, plan, and continue with one broker.

``Recovery`` is both sides. The broker that receives the operator's request surveys all connected
brokers, makes a plan for each partition (``raftlog.replication.election``), and executes it: each
partition continues on the broker that is to lead it. That broker starts a new generation of the
partition's Raft group as its only voter. The leader of that group readmits the connected voters
without a vote.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

import msgspec

from raftlog import limits
from raftlog.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    LeaderNotAvailableError,
    RaftlogError,
    StorageFailedError,
    from_code,
)
from raftlog.protocol import api as apis
from raftlog.protocol.cluster import (
    GroupReport,
    RecoverClusterRequest,
    RecoverClusterResponse,
    RecoveredPartition,
    ReviveRequest,
    Seat,
    SurveyRequest,
    SurveyResponse,
)
from raftlog.protocol.schema import Failure
from raftlog.replication import cluster_commands, histories
from raftlog.replication.cluster_commands import (
    PEER_PROTOCOL_LOST,
    AlterTopic,
    ClusterCommand,
    DeclareLost,
    FenceBroker,
    first_state,
)
from raftlog.replication.cluster_state import ClusterMachine, Refused, TopicRecord
from raftlog.replication.election import (
    Blocked,
    Copy,
    GoOn,
    GroupLoss,
    Nothing,
    Plan,
    Report,
    Survivor,
    group_loss,
    has_leader,
    led_text,
    plan,
)
from raftlog.replication.partition_state import (
    Accepted,
    PartitionMachine,
    PartitionState,
    decode_state,
)
from raftlog.server.cluster.elections import StateBroadcast, raft_id
from raftlog.server.cluster.membership import CLUSTER_GROUP, Incarnation, Liveness
from raftlog.server.cluster.replicas import Partitions
from raftlog.server.consensus_plane import ConsensusPlane
from raftlog.server.partition import Partition
from raftlog.server.peers import PeerLinks
from raftlog.server.scheduling import Saver, Workers
from raftlog.storage import Store
from raftlog.storage.state_files import ClusterCopy

logger = logging.getLogger(__name__)

CHANGE_SECONDS_MAX: Final = 5.0
# Seconds that a broker must be away before records that it may have are given up: it may be
# restarting, and was there when the operator accepted a loss.
AWAY_SECONDS: Final = 3.0
POLL_SECONDS: Final = 0.02
SURVEY_SECONDS: Final = 10.0  # timeout for the report of a broker
FORWARDED_SECONDS: Final = 240.0  # timeout for another broker to recover the cluster
GROUPS_PER_SURVEY: Final = 1_000
UNSEEN_CHANGES: Final = 1_000  # of the cluster state, by lost brokers
# Stands for the data directory of a voter where none is known.
NO_DIRECTORY: Final = frozenset(("", "?"))

# What a recovery loses of a partition: topic, partition, end offset of the log that is left, and
# number of records that are known to be lost.
_Loss: TypeAlias = tuple[str, int, int, int]


class Recovery:
    """See the module. Runs on the broker's event loop."""

    def __init__(
        self,
        broker_id: int,
        me: Incarnation,
        *,
        machine: ClusterMachine,
        plane: ConsensusPlane,
        partitions: Partitions,
        state_broadcast: StateBroadcast,
        liveness: Liveness,
        links: PeerLinks,
        state_copy: StateCopy,
        cluster_leader: Callable[[], tuple[int | None, Mapping[int, str]]],
        voters: Sequence[int],
        entropy: Callable[[int], bytes],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """``cluster_leader``: the last known leader and voters of the cluster group. ``voters``:
        voters of the configuration.
        """
        self._broker_id = broker_id
        self._me = me
        self._machine = machine
        self._plane = plane
        self._partitions = partitions
        self._state_broadcast = state_broadcast
        self._liveness = liveness
        self._links = links
        self._state_copy = state_copy
        self._cluster_leader = cluster_leader
        self._voters = voters
        self._entropy = entropy
        self._loop = loop

    # -- state of this broker ----------------------------------------------------------------------

    async def survey(self, groups: Sequence[str]) -> list[GroupReport]:
        """Return a report on each group; an empty one for a group that this broker does not
        know.
        """
        return [self._report(group) for group in groups]

    def _report(self, group: str) -> GroupReport:
        if group == CLUSTER_GROUP:
            report = self._standing(group, self._observed_leader())
            if self._plane.has_vote(group):
                return report
            copy = self._state_copy.newest()
            voters = [Seat(broker=b, directory_id=d) for b, d in copy.voters.items()]
            return msgspec.structs.replace(report, index=copy.version, voters=voters)
        hosted = self._partitions.hosted.get(group)
        if hosted is None:
            topic_id, _, partition = group.rpartition("/")
            key = topic_id, int(partition) if partition.isdecimal() else -1
            received = self._state_broadcast.received.get(key)
            return GroupReport(group=group, state=None if received is None else received.encode())
        report = self._standing(group, None)
        state = PartitionMachine(hosted.state.encode())
        for command in self._plane.journaled(group).unapplied:
            state.apply(command)
        return _with_copy(report, state.state, hosted.host)

    def _standing(self, group: str, observed_leader: int | None) -> GroupReport:
        journaled = self._plane.journaled(group)
        return GroupReport(
            group=group,
            generation=journaled.generation,
            term=journaled.term,
            index=journaled.index,
            voters=[Seat(broker=b, directory_id=d) for b, d in journaled.voters.items() if d],
            leader=journaled.leader if journaled.leader is not None else observed_leader,
        )

    def _observed_leader(self) -> int | None:
        """Return the cluster group's leader if this broker has no vote, and is connected to it."""
        leader, voters = self._cluster_leader()
        if leader is None or voters.get(self._broker_id) == self._me.directory_id:
            return None
        directory_id = voters.get(leader)
        return leader if directory_id and directory_id == self._running_directory(leader) else None

    async def revive(self, request: ReviveRequest) -> None:
        """Continue with a partition that this broker stores, by the plan of another broker.

        Raises ``InvalidRequestError`` if this broker is not a member of the group,
        ``LeaderNotAvailableError`` if the partition has changed since.
        """
        hosted = self._partitions.hosted.get(request.group)
        if hosted is None:
            raise InvalidRequestError(f"this broker is not a member of group {request.group}")
        if request.base is not None:
            state = decode_state(request.base)
            logger.warning(
                "partition recovery: partition=%s voters=%d state=%s",
                hosted,
                self._broker_id,
                state,
            )
            self._plane.force_generation(
                request.group,
                {self._broker_id: self._me.directory_id},
                base=request.base,
                above=request.generation,
            )
            # Votes are durable, and so is the generation of an elected leader. Before that, a power
            # failure would revert a recovery that the operator saw succeed.
            # guard: a recovery succeeds once it is durable
            await self._until(lambda: self._has_leader(request.group, above=request.generation))
            return
        outcome = await self._plane.propose(request.group, request.command or b"")
        if not isinstance(outcome, Accepted):
            raise LeaderNotAvailableError(
                f"{hosted}: the partition changed during the request. Try again"
            )

    def _has_leader(self, group: str, *, above: int) -> bool:
        status = self._plane.status(group)
        return status.generation > above and status.leader is not None

    # -- state of all brokers ----------------------------------------------------------------------

    def _others(self) -> set[int]:
        """Return the brokers that may be there, as far as this one knows: one that joins with an
        empty disk knows only its links.
        """
        linked = {peer.broker_id for peer in self._links.identities()}
        return {*self._machine.brokers, *self._voters, *linked} - {self._broker_id}

    def _peers(self) -> list[int]:
        return [broker for broker in sorted(self._others()) if self._liveness.is_linked(broker)]

    def _is_any_just_gone(self) -> bool:
        return any(
            0.0 < self._liveness.silent_seconds(each) < AWAY_SECONDS for each in self._others()
        )

    async def _survey_all(self, groups: Sequence[str]) -> dict[str, dict[int, GroupReport]]:
        """Return the reports of all connected brokers, by group and broker. First wait for brokers
        that have just disconnected: they may be restarting, or still count as a leader.

        Raises ``BrokerUnavailableError`` if one of them does not respond.
        """
        # guard: a broker that has just gone may return before a loss
        await self._until(lambda: not self._is_any_just_gone())
        found: dict[str, dict[int, GroupReport]] = {
            report.group: {self._broker_id: report} for report in await self.survey(groups)
        }
        for start in range(0, len(groups), GROUPS_PER_SURVEY):
            survey = SurveyRequest(groups=list(groups[start : start + GROUPS_PER_SURVEY]))
            for peer in self._peers():
                answer = await self._links.ask(peer, apis.SURVEY, survey, SURVEY_SECONDS)
                assert isinstance(answer, SurveyResponse)
                for report in answer.reports:
                    found.setdefault(report.group, {})[peer] = report
        return found

    def _incarnation(self, broker: int) -> Incarnation:
        return self._me if broker == self._broker_id else self._liveness.incarnation_of(broker) or (
            Incarnation("", 0)
        )  # fmt: skip

    # -- recovering --------------------------------------------------------------------------------

    async def recover(self, request: RecoverClusterRequest) -> RecoverClusterResponse:
        """Continue with the remaining brokers, where a majority of the voters is lost.

        Safe only if the lost brokers never return, so nothing is done unless the request declares
        them lost, and accepts the loss. With a ``loss_id``, nothing is done if another loss than
        the accepted one would occur (ADR 61). Raises ``InvalidRequestError`` if no broker has data
        of the cluster, or if one is declared lost that runs, or has contact with a leader;
        ``BrokerUnavailableError`` if a broker does not respond.
        """
        reports = (await self._survey_all([CLUSTER_GROUP]))[CLUSTER_GROUP]
        standings = [self._as_standing(b, r) for b, r in sorted(reports.items())]
        loss = group_loss(standings)
        note = ""
        if not loss.has_majority:
            # guard: a cluster with a leader is not recovered
            if loss.led is not None:
                raise InvalidRequestError(led_text("the cluster", loss.led))
            survivor = loss.newest
            if not (survivor.generation if survivor.has_vote else survivor.index):
                raise InvalidRequestError(
                    "no running broker has the state of the cluster. Start one that has its data "
                    "directory"
                )
            mine = next(each for each in standings if each.broker == self._broker_id)
            # guard: the newest copy of the cluster's state counts
            if survivor.newness > mine.newness:
                return await self._forward(survivor.broker, request)
            note = self._loss_note(loss)
            if not mine.has_vote:
                self._machine.follow(self._state_copy.newest().state, ())
        shown, gone = await self._rehearsed(request, note, {} if loss.has_majority else loss.lost)
        self._check_declared(request.lost, gone)
        # guard: the cluster group needs the operator's confirmation
        if request.dry_run or not request.accept_loss or not shown.loss_id:
            return shown
        # guard: a loss that was not shown is refused
        # guard: every directory that is given up has to be declared lost
        if not gone.keys() <= set(request.lost) or shown.loss_id != (
            request.loss_id or shown.loss_id
        ):
            return msgspec.structs.replace(shown, refused=True)
        self._check_versions()
        accepted = {_loss_of(part) for part in shown.partitions} if request.loss_id else None
        lost = self._declared(request.lost, gone)
        ended = max(standing.generation for standing in standings)
        if not loss.has_majority:
            self._plane.force_generation(
                CLUSTER_GROUP,
                {self._broker_id: self._me.directory_id},
                base=self._cluster_base(lost),
                above=ended,
            )
            logger.warning("cluster recovery: note=%s", note)
            await self._until(lambda: self._is_agreeing(ended))
            # guard: a recovery fences the lost brokers
            await self._fence(loss.lost)
            # After a start, the list of partitions is known only now.
            await self._until(lambda: self._partitions.is_ready)
        elif lost:
            # guard: a majority of the cluster notes which directories are lost
            await self._commit(DeclareLost(directories=tuple(lost)))
        recovered = await self._recover_partitions(request, accepted)
        left = [part for part in recovered if not _is_accepted(part, accepted)]
        return RecoverClusterResponse(
            partitions=recovered, cluster_note=note, loss_id=_loss_id((), left)
        )

    def _cluster_base(self, lost: Sequence[tuple[str, int]]) -> bytes:
        """Return the state to continue from: all that this broker's journal has, and a version that
        is higher than any that the lost brokers may have committed.
        """
        state = ClusterMachine()
        state.restore(self._machine.snapshot())
        for command in self._plane.journaled(CLUSTER_GROUP).unapplied:
            state.apply(command)
        # guard: a recovery skips versions of the cluster state
        return cluster_commands.recovered(
            state.snapshot(),
            recovery=self._entropy(histories.ID_CHARS // 2).hex(),
            lost=lost,
            unseen=UNSEEN_CHANGES,
        )

    # -- what is declared lost ---------------------------------------------------------------------

    def _check_declared(self, declared: Sequence[int], gone: Mapping[int, Set[str]]) -> None:
        """Raise ``InvalidRequestError`` for a broker that does not exist, or that runs with the
        directory that would be declared lost.
        """
        for broker in declared:
            if broker not in {self._broker_id, *self._others(), *gone}:
                raise InvalidRequestError(
                    f"there is no broker {broker} that could be declared lost, but "
                    f"{sorted({self._broker_id, *self._others()})}"
                )
            # guard: a broker that runs is not declared lost
            if broker not in gone and (
                broker == self._broker_id or self._liveness.is_linked(broker)
            ):
                raise InvalidRequestError(
                    f"broker {broker} runs, and cannot be declared lost. Stop it first"
                )

    def _declared(
        self, declared: Sequence[int], gone: Mapping[int, Set[str]]
    ) -> list[tuple[str, int]]:
        """Return the data directories that are declared lost, and their brokers: those that the
        recovery gives up, and those that the brokers had registered last.
        """
        found = []
        for broker in sorted(set(declared)):
            record = self._machine.brokers.get(broker)
            directories = set(gone.get(broker, ()))
            if record is not None and record.directory_id != self._running_directory(broker):
                directories.add(record.directory_id)
            found += [(directory, broker) for directory in sorted(directories - NO_DIRECTORY)]
        return found

    def _running_directory(self, broker: int) -> str | None:
        if broker == self._broker_id:
            return self._me.directory_id
        return self._liveness.linked_directory(broker)

    def _check_versions(self) -> None:
        """Raise ``InvalidRequestError`` if a connected broker does not know what a recovery is."""
        for peer in self._peers():
            identity = self._links.identity(peer)
            if identity is not None and identity.protocol_version < PEER_PROTOCOL_LOST:
                raise InvalidRequestError(
                    f"broker {peer} runs an older release, which would accept lost directories. "
                    "Upgrade it, or stop it, and repeat the command"
                )

    async def _commit(self, command: ClusterCommand) -> None:
        outcome = await self._plane.propose(CLUSTER_GROUP, command.encode())
        if isinstance(outcome, Refused):
            raise from_code(outcome.code, outcome.message)

    def _is_agreeing(self, ended: int) -> bool:
        """Whether the cluster group has a leader in a generation after ``ended``, possibly a voter
        that had no vote before.
        """
        status = self._plane.status(CLUSTER_GROUP)
        leader = status.leader
        is_there = leader is not None and self._liveness.is_linked(leader)
        return is_there and status.generation > ended

    async def _fence(self, lost: Mapping[int, str]) -> None:
        """Fence the lost brokers now, not after their sessions: a topic that is created next would
        give votes to data directories that no longer exist. ``lost``: directory IDs by broker.
        """
        for broker, directory_id in lost.items():
            record = self._machine.brokers.get(broker)
            if record is not None and record.directory_id == directory_id and not record.fenced:
                command = FenceBroker(id=broker, broker_epoch=record.broker_epoch)
                await self._plane.propose(CLUSTER_GROUP, command.encode())

    async def _forward(
        self, survivor: int, request: RecoverClusterRequest
    ) -> RecoverClusterResponse:
        """Forward the request: another broker has newer cluster state, and must run the
        recovery.
        """
        logger.warning("recovery forwarded: broker=%d reason=newer_cluster_state", survivor)
        answer = await self._links.ask(survivor, apis.RECOVER_CLUSTER, request, FORWARDED_SECONDS)
        assert isinstance(answer, RecoverClusterResponse)
        return answer

    def _loss_note(self, loss: GroupLoss) -> str:
        return (
            f"brokers {loss.lost_names} are lost: broker {self._broker_id} becomes the only voter. "
            "Changes that the lost brokers committed without it (topics, settings) are lost, too"
        )

    async def _rehearsed(
        self, request: RecoverClusterRequest, note: str, lost: Mapping[int, str]
    ) -> tuple[RecoverClusterResponse, dict[int, set[str]]]:
        """Return what would be done, by this broker's knowledge of the cluster's state, and the
        data directories that would be given up, by broker. ``lost``: voters of the cluster group,
        if they were a majority.
        """
        gone = {broker: {directory} for broker, directory in lost.items()}
        rehearsal = msgspec.structs.replace(request, dry_run=True)
        partitions = await self._recover_partitions(rehearsal, (), gone)
        shown = RecoverClusterResponse(
            partitions=partitions,
            cluster_note=note,
            needs_loss=bool(lost),
            loss_id=_loss_id(sorted(lost), partitions),
            lost=sorted(gone),
        )
        return shown, gone

    async def _recover_partitions(
        self,
        request: RecoverClusterRequest,
        accepted: Collection[_Loss] | None,
        gone: dict[int, set[str]] | None = None,
    ) -> list[RecoveredPartition]:
        """``accepted``: losses of partitions that the operator accepts; None: all. ``gone``: gets
        the data directories that are given up.
        """
        records = [
            (record, partition)
            for name, record in sorted(self._machine.topics.items())
            if request.topics is None or name in request.topics
            for partition in range(len(record.partitions))
        ]
        surveyed = await self._survey_all([raft_id(r.id, p) for r, p in records])
        recovered = []
        for record, partition in records:
            reports = [
                self._as_report(broker, report)
                for broker, report in sorted(surveyed[raft_id(record.id, partition)].items())
            ]
            try:
                step = plan(reports, _at_least(record, partition))
                if gone is not None and isinstance(step, GoOn):
                    for broker, directory in step.gone.items():
                        gone.setdefault(broker, set()).add(directory)
                found = await self._recover_partition(
                    record, partition, step, reports, request, accepted
                )
            except RaftlogError as error:
                found = RecoveredPartition(
                    topic=record.name, partition=partition, failure=Failure.of(error)
                )
            if found is not None:
                recovered.append(found)
        return recovered

    async def _recover_partition(
        self,
        record: TopicRecord,
        partition: int,
        step: Plan,
        reports: Sequence[Report],
        request: RecoverClusterRequest,
        accepted: Collection[_Loss] | None,
    ) -> RecoveredPartition | None:
        if isinstance(step, Nothing):
            return None
        done = RecoveredPartition(topic=record.name, partition=partition)
        if isinstance(step, Blocked):
            return msgspec.structs.replace(
                done, failure=Failure.of(LeaderNotAvailableError(step.reason))
            )
        copies = {report.broker: report.copy for report in reports}
        copy = copies.get(step.leader)
        done = msgspec.structs.replace(
            done,
            may_lose=True,
            lost=step.lost,
            log_end_offset=0 if copy is None else copy.end,
            note=step.note,
        )
        if request.dry_run:
            return done
        # guard: a directory of another broker is not given up after the word was given
        if not (_is_accepted(done, accepted) and step.gone.keys() <= set(request.lost)):
            return msgspec.structs.replace(
                done, note=f"{step.note}. This loss is new: repeat the command to accept it"
            )
        group = raft_id(record.id, partition)
        revive = ReviveRequest(
            group=group,
            generation=step.generation,
            base=None if step.base is None else step.base.encode(),
            command=None if step.command is None else step.command.encode(),
        )
        logger.warning(
            "partition recovery: partition=%s:%d note=%s", record.name, partition, step.note
        )
        await self._revive(step, revive)
        await self._until(lambda: self._is_led(record.id, partition), must=False)
        there = {report.broker for report in reports}
        note = step.note + await self._lower_min_isr(record, step, there)
        return msgspec.structs.replace(done, leader=self._leader(record.id, partition), note=note)

    async def _revive(self, step: GoOn, request: ReviveRequest) -> None:
        if step.leader == self._broker_id:
            await self.revive(request)
        else:
            await self._links.ask(step.leader, apis.REVIVE, request, SURVEY_SECONDS)

    def _leader(self, topic_id: str, partition: int) -> int | None:
        state = self._partitions.state_of(topic_id, partition)
        return None if state is None else state.leader

    def _is_led(self, topic_id: str, partition: int) -> bool:
        state = self._partitions.state_of(topic_id, partition)
        return (
            state is not None
            and state.leader is not None
            and self._is_there(state.leader)
            and has_leader(state, self._liveness)
        )

    def _is_there(self, broker: int) -> bool:
        """Whether the broker is connected now. Everywhere else, a link that broke a moment ago
        counts as up.
        """
        return self._liveness.is_linked(broker) and self._liveness.is_live(broker)

    async def _lower_min_isr(self, record: TopicRecord, step: GoOn, there: set[int]) -> str:
        """Lower ``min.insync.replicas`` to the number of live replicas, so that writes can
        continue.
        """
        current = self._machine.topics.get(record.name)
        if current is None or step.base is None:
            return ""
        replicas = step.base.replicas
        live = max(1, sum(broker in there for broker in replicas))
        if live >= current.config.effective_min_isr(len(replicas)):
            return ""
        command = AlterTopic(name=record.name, changes={"min.insync.replicas": str(live)})
        await self._commit(command)
        return (
            f"; min.insync.replicas of {record.name} is now {live} to allow writes. Reset it when "
            "the brokers have restarted"
        )

    async def _until(self, condition: Callable[[], bool], *, must: bool = True) -> None:
        deadline = self._loop.time() + CHANGE_SECONDS_MAX
        while not condition():
            if self._loop.time() > deadline:
                if must:
                    raise BrokerUnavailableError("the recovery is still in progress. Try again")
                return
            await asyncio.sleep(POLL_SECONDS)

    # -- from the wire -----------------------------------------------------------------------------

    def _as_standing(self, broker: int, report: GroupReport) -> Survivor:
        return Survivor(
            broker=broker,
            directory_id=self._incarnation(broker).directory_id,
            generation=report.generation or 0,
            term=report.term,
            index=report.index,
            voters={seat.broker: seat.directory_id for seat in report.voters},
            leader=report.leader,
        )

    def _as_report(self, broker: int, report: GroupReport) -> Report:
        at = self._incarnation(broker)
        return Report(
            broker=broker,
            directory_id=at.directory_id,
            boot=at.boot,
            standing=None if report.generation is None else self._as_standing(broker, report),
            state=None if report.state is None else decode_state(report.state),
            copy=None
            if report.end < 0
            else Copy(
                end=report.end,
                last_epoch=report.last_epoch,
                high_watermark=report.high_watermark,
                damage=report.damage,
                is_unsure=report.is_unsure,
                is_offline=report.is_offline,
            ),
        )


def _loss_of(part: RecoveredPartition) -> _Loss:
    return part.topic, part.partition, part.log_end_offset, part.lost


def _is_accepted(part: RecoveredPartition, accepted: Collection[_Loss] | None) -> bool:
    # guard: a partition whose loss was not shown is not recovered
    return not part.may_lose or accepted is None or _loss_of(part) in accepted


def _loss_id(lost: Sequence[int], partitions: Sequence[RecoveredPartition]) -> str:
    """Return the digest of a loss: of the voters that may have changed the cluster state, and of
    the partitions that lose, or may lose, records. Empty if there are none.
    """
    losses = [_loss_of(part) for part in partitions if part.may_lose]
    if not (lost or losses):
        return ""
    described = msgspec.json.encode((list(lost), losses))
    return hashlib.sha256(described).hexdigest()[: limits.LOSS_ID_CHARS_MAX]


def _with_copy(report: GroupReport, state: PartitionState, host: Partition | None) -> GroupReport:
    if host is None:
        return msgspec.structs.replace(report, state=state.encode())
    log = host.log
    # guard: a torn copy can lead in a recovery
    return msgspec.structs.replace(
        report,
        state=state.encode(),
        end=log.readable_end_offset if log.damage else log.log_end_offset,
        last_epoch=log.last_epoch,
        high_watermark=host.high_watermark,
        damage="" if log.is_torn else log.damage,
        is_unsure=log.is_torn or bool(log.doubt),
        is_offline=log.is_offline,
    )


def _at_least(record: TopicRecord, partition: int) -> PartitionState:
    """Return the cluster's record of a partition: its replicas, and a version that it has
    reached.
    """
    assignment = record.partitions[partition]
    state = first_state(record.birth(partition))
    return replace(
        state,
        replicas=assignment.replicas,
        witnesses=assignment.witnesses,
        version=max(state.version, assignment.version),
    )


# -- copy of the cluster state ---------------------------------------------------------------------
#
# On a broker without a vote, durable, for a recovery without a voter.

SAVE_SECONDS: Final = 0.5  # seconds between two copies, at least: each contains the whole state


class StateCopy:
    """Call ``poll`` often. ``voters``: of the cluster group, as far as this broker knows."""

    def __init__(
        self,
        store: Store,
        machine: ClusterMachine,
        broker_id: int,
        *,
        has_vote: Callable[[], bool],
        voters: Callable[[], Mapping[int, str]],
        worker: Workers,
        loop: asyncio.AbstractEventLoop,
        on_failed: Callable[[StorageFailedError], None],
    ) -> None:
        """``on_failed``: called when the disk has failed: the broker must stop."""
        self._store = store
        self._machine = machine
        self._broker_id = broker_id
        self._has_vote = has_vote
        self._voters = voters
        self._saver = Saver(worker, loop, on_failed)
        self._loop = loop
        self._saved = store.saved_cluster
        self._due = 0.0
        self.stop = self._saver.stop

    def newest(self) -> ClusterCopy:
        """Return the newest state that this broker has: the known one, or that of its last run."""
        # guard: a broker that has never joined keeps no state of the cluster
        if self._machine.version < self._saved.version or not self._is_member():
            return self._saved
        voters = self._voters() or self._saved.voters
        return ClusterCopy(self._machine.version, self._machine.known(), voters)

    def poll(self) -> None:
        """Save the state if it has changed. A broker with a vote has it in its journal."""
        if self._saver.is_busy or self._has_vote() or self._loop.time() < self._due:
            return
        if not self._is_member():
            return
        voters = self._voters()
        is_new = self._machine.version > self._saved.version
        if voters and (is_new or dict(voters) != dict(self._saved.voters)):
            copy = self.newest()
            self._due = self._loop.time() + SAVE_SECONDS
            self._saver.save(partial(self._store.save_cluster, copy), partial(self._take, copy))

    def _is_member(self) -> bool:
        """Whether the state lists this broker. From another one, no recovery could continue: the
        cluster does not know the broker, so it would never notice the second history.
        """
        return self._broker_id in self._machine.brokers

    def _take(self, copy: ClusterCopy) -> None:
        self._saved = copy
