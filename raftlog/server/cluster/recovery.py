"""Recovery after the loss of a majority: survey the copies, plan, and continue with one broker.

``Recovery`` is both sides. The broker that receives the operator's request surveys all connected
brokers, makes a plan for each partition (``raftlog.replication.recovery``), and executes it: each
partition continues on the broker that is to lead it. That broker starts a new generation of the
partition's Raft group as its only voter. The leader of that group readmits the connected voters
without a vote.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import msgspec

from raftlog import limits
from raftlog.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    LeaderNotAvailableError,
    RaftlogError,
    from_code,
)
from raftlog.protocol import api as apis
from raftlog.protocol.cluster import (
    RecoverClusterRequest,
    RecoverClusterResponse,
    RecoveredPartition,
)
from raftlog.protocol.recovery import (
    GroupReport,
    ReviveRequest,
    Seat,
    SurveyRequest,
    SurveyResponse,
)
from raftlog.protocol.schema import Failure, Message
from raftlog.replication.cluster_commands import AlterTopic, FenceBroker
from raftlog.replication.cluster_records import first_state, with_unseen_changes
from raftlog.replication.cluster_state import ClusterMachine, Refused, TopicRecord
from raftlog.replication.election import has_leader
from raftlog.replication.partition_state import (
    Accepted,
    PartitionMachine,
    PartitionState,
    decode_state,
)
from raftlog.replication.recovery import (
    Blocked,
    Copy,
    GoOn,
    GroupLoss,
    Nothing,
    Report,
    Standing,
    group_loss,
    plan,
)
from raftlog.server.cluster.hosted_partition import group_id
from raftlog.server.cluster.liveness import Incarnation, Liveness
from raftlog.server.cluster.membership import CLUSTER_GROUP
from raftlog.server.cluster.partitions import Partitions
from raftlog.server.cluster.state_broadcast import StateBroadcast
from raftlog.server.consensus_plane import ConsensusPlane
from raftlog.server.partition import Partition
from raftlog.server.peers.links import PeerLinks

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
        is_current: Callable[[], bool],
        voters: Sequence[int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """``is_current``: this broker has received the committed cluster state in this incarnation.

        ``voters``: voters of the configuration.
        """
        self._broker_id = broker_id
        self._me = me
        self._machine = machine
        self._plane = plane
        self._partitions = partitions
        self._state_broadcast = state_broadcast
        self._liveness = liveness
        self._links = links
        self._is_current = is_current
        self._voters = voters
        self._loop = loop

    # -- state of this broker ----------------------------------------------------------------------

    async def survey(self, groups: Sequence[str]) -> list[GroupReport]:
        """Return a report on each group; an empty one for a group that this broker does not
        know. An operator may be quicker than the check of who has ended.
        """
        await self._until(lambda: not self._liveness.is_checking_ends(), must=False)
        return [self._report(group) for group in groups]

    def _report(self, group: str) -> GroupReport:
        if group == CLUSTER_GROUP:
            return self._standing(group, is_known=self._is_current())
        hosted = self._partitions.hosted.get(group)
        if hosted is None:
            topic_id, _, partition = group.rpartition("/")
            key = topic_id, int(partition) if partition.isdecimal() else -1
            received = self._state_broadcast.received.get(key)
            return GroupReport(group=group, state=None if received is None else received.encode())
        report = self._standing(group, is_known=hosted.is_known or hosted.is_current)
        state = PartitionMachine(hosted.state.encode())
        for command in self._plane.journaled(group).unapplied:
            state.apply(command)
        return _with_copy(report, state.state, hosted.host)

    def _standing(self, group: str, *, is_known: bool) -> GroupReport:
        journaled = self._plane.journaled(group)
        return GroupReport(
            group=group,
            generation=journaled.generation,
            term=journaled.term,
            index=journaled.index,
            voters=[Seat(broker=b, directory_id=d) for b, d in journaled.voters.items() if d],
            saw_end=[
                broker
                for broker, directory in journaled.voters.items()
                if self._liveness.was_seen_to_end(broker, directory)
            ],
            is_known=is_known,
        )

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
        return {*self._machine.brokers, *self._voters} - {self._broker_id}

    def _peers(self) -> list[int]:
        return [broker for broker in sorted(self._others()) if self._liveness.is_linked(broker)]

    def _is_any_just_gone(self) -> bool:
        return any(
            0.0 < self._liveness.silent_seconds(each) < AWAY_SECONDS for each in self._others()
        )

    async def _survey_all(
        self, groups: Sequence[str], request: RecoverClusterRequest
    ) -> dict[str, dict[int, GroupReport]]:
        """Return the reports of all connected brokers, by group and broker. Before a loss, wait for
        brokers that have just disconnected.

        Raises ``BrokerUnavailableError`` if one of them does not respond.
        """
        if request.accept_loss and not request.dry_run:
            await self._until(lambda: not self._is_any_just_gone())
        found: dict[str, dict[int, GroupReport]] = {
            report.group: {self._broker_id: report} for report in await self.survey(groups)
        }
        for start in range(0, len(groups), GROUPS_PER_SURVEY):
            survey = SurveyRequest(groups=list(groups[start : start + GROUPS_PER_SURVEY]))
            for peer in self._peers():
                answer = await self._ask(peer, apis.SURVEY, survey, SURVEY_SECONDS)
                assert isinstance(answer, SurveyResponse)
                for report in answer.reports:
                    found.setdefault(report.group, {})[peer] = report
        return found

    async def _ask(self, peer: int, api: apis.Api, request: Message, seconds: float) -> Message:
        try:
            async with asyncio.timeout(seconds):
                return (await self._links.request(peer, api, request)).message
        except TimeoutError:
            raise BrokerUnavailableError(
                f"broker {peer} is running and did not respond to {api.name} within {seconds:g} "
                "s. Try again, or stop the broker if it must be removed"
            ) from None

    def _incarnation(self, broker: int) -> Incarnation:
        return self._me if broker == self._broker_id else self._liveness.incarnation_of(broker) or (
            Incarnation("", 0)
        )  # fmt: skip

    # -- recovering --------------------------------------------------------------------------------

    async def recover(self, request: RecoverClusterRequest) -> RecoverClusterResponse:
        """Continue with the remaining brokers, where a majority of the voters is lost.

        Safe only if the lost brokers never return. With a ``loss_id``, nothing is done if another
        loss than the accepted one would occur (ADR 61). Raises ``InvalidRequestError`` if no broker
        has data of the cluster, ``BrokerUnavailableError`` if a broker does not respond.
        """
        reports = (await self._survey_all([CLUSTER_GROUP], request))[CLUSTER_GROUP]
        standings = [self._as_standing(b, r) for b, r in sorted(reports.items())]
        loss = group_loss(standings)
        note, lost = "", tuple[int, ...]()
        if not loss.has_majority:
            survivor = loss.newest
            if not survivor.has_vote or not survivor.generation:
                raise InvalidRequestError(
                    "no running broker has kept the state of the cluster, which only voters of the "
                    "cluster group store. Start one that has its data directory"
                )
            mine = next(each for each in standings if each.broker == self._broker_id)
            if survivor.rank > mine.rank or not mine.has_vote:
                return await self._forward(survivor.broker, request)
            note, lost = self._loss_note(loss), () if loss.is_certain else loss.lost
        accepted: Collection[_Loss] | None = None if request.accept_loss else ()
        is_report = request.dry_run or (bool(lost) and not request.accept_loss)
        if is_report or (request.accept_loss and request.loss_id):
            shown = await self._rehearsed(request, note, lost)
            if is_report:
                return shown
            if shown.loss_id not in ("", request.loss_id):
                return msgspec.structs.replace(shown, refused=True)
            accepted = {_loss_of(part) for part in shown.partitions}
        if not loss.has_majority:
            self._plane.force_generation(
                CLUSTER_GROUP,
                {self._broker_id: self._me.directory_id},
                base=self._cluster_base(),
                above=loss.newest.generation,
            )
            logger.warning("cluster recovery: note=%s", note)
            await self._until(lambda: self._is_agreeing(loss.newest.generation))
            await self._fence({broker: loss.newest.voters[broker] for broker in loss.lost})
            # After a start, the list of partitions is known only now.
            await self._until(lambda: self._partitions.is_ready)
        recovered = await self._recover_partitions(request, accepted)
        left = [part for part in recovered if not _is_accepted(part, accepted)]
        return RecoverClusterResponse(
            partitions=recovered, cluster_note=note, loss_id=_loss_id((), left)
        )

    def _cluster_base(self) -> bytes:
        """Return the state to continue from: all that this broker's journal has, and a version that
        is higher than any that the lost brokers may have committed.
        """
        state = ClusterMachine()
        state.restore(self._machine.snapshot())
        for command in self._plane.journaled(CLUSTER_GROUP).unapplied:
            state.apply(command)
        return with_unseen_changes(state.snapshot(), UNSEEN_CHANGES)

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
        answer = await self._ask(survivor, apis.RECOVER_CLUSTER, request, FORWARDED_SECONDS)
        assert isinstance(answer, RecoverClusterResponse)
        return answer

    def _loss_note(self, loss: GroupLoss) -> str:
        note = (
            f"brokers {loss.lost_names} are lost: broker {self._broker_id} becomes the only voter"
        )
        if loss.is_certain:
            return note
        return (
            f"{note}. Changes that the lost brokers committed after the last contact (topics, "
            "settings) are not known here, and would be lost"
        )

    async def _rehearsed(
        self, request: RecoverClusterRequest, note: str, lost: Sequence[int]
    ) -> RecoverClusterResponse:
        """Return what would be done, by this broker's knowledge of the cluster's state. ``lost``:
        voters that may have changed the cluster state.
        """
        rehearsal = msgspec.structs.replace(request, dry_run=True)
        partitions = await self._recover_partitions(rehearsal, ())
        return RecoverClusterResponse(
            partitions=partitions,
            cluster_note=note,
            needs_loss=bool(lost),
            loss_id=_loss_id(lost, partitions),
        )

    async def _recover_partitions(
        self, request: RecoverClusterRequest, accepted: Collection[_Loss] | None
    ) -> list[RecoveredPartition]:
        """``accepted``: losses of partitions that the operator accepts; None: all."""
        records = [
            (record, partition)
            for name, record in sorted(self._machine.topics.items())
            if request.topics is None or name in request.topics
            for partition in range(len(record.partitions))
        ]
        surveyed = await self._survey_all([group_id(r.id, p) for r, p in records], request)
        recovered = []
        for record, partition in records:
            reports = [
                self._as_report(broker, report)
                for broker, report in sorted(surveyed[group_id(record.id, partition)].items())
            ]
            try:
                found = await self._recover_partition(record, partition, reports, request, accepted)
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
        reports: Sequence[Report],
        request: RecoverClusterRequest,
        accepted: Collection[_Loss] | None,
    ) -> RecoveredPartition | None:
        step = plan(reports, _at_least(record, partition))
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
            may_lose=step.may_lose,
            lost=step.lost,
            log_end_offset=0 if copy is None else copy.end,
            note=step.note,
        )
        if request.dry_run:
            return done
        if not _is_accepted(done, accepted):
            return msgspec.structs.replace(
                done, note=f"{step.note}. To accept this loss, repeat with --accept-loss"
            )
        group = group_id(record.id, partition)
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
            await self._ask(step.leader, apis.REVIVE, request, SURVEY_SECONDS)

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
        outcome = await self._plane.propose(CLUSTER_GROUP, command.encode())
        if isinstance(outcome, Refused):
            raise from_code(outcome.code, outcome.message)
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

    def _as_standing(self, broker: int, report: GroupReport) -> Standing:
        return Standing(
            broker=broker,
            directory_id=self._incarnation(broker).directory_id,
            generation=report.generation or 0,
            term=report.term,
            index=report.index,
            voters={seat.broker: seat.directory_id for seat in report.voters},
            saw_end=frozenset(report.saw_end),
            is_known=report.is_known,
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
