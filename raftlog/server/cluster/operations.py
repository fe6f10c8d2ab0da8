"""Operator requests in a cluster: cluster state, leadership transfer, replica moves, recovery."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, cast

import msgspec

from raftlog.errors import (
    BrokerIdInUseError,
    BrokerUnavailableError,
    ClusterNotReadyError,
    InvalidPartitionsError,
    InvalidRequestError,
    LeaderNotAvailableError,
    RaftlogError,
    RefusedError,
    ThrottledError,
    UnknownPartitionError,
    UnknownTopicError,
    counted,
)
from raftlog.protocol import api as apis
from raftlog.protocol.cluster import (
    BrokerStatus,
    CancelDecommissionRequest,
    CancelDecommissionResponse,
    DecommissionRequest,
    DecommissionResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    PartitionMove,
    ReassignRequest,
    ReassignResponse,
    RecoverClusterRequest,
    RecoverClusterResponse,
    ReserveBrokerIdResponse,
    SurveyRequest,
    SurveyResponse,
    ThrottleMovesRequest,
    ThrottleMovesResponse,
    TransferLeaderRequest,
    TransferLeaderResponse,
    UpgradeFeaturesResponse,
)
from raftlog.protocol.records import BrokerInfo
from raftlog.protocol.security import PEER_PROTOCOL_VERSION
from raftlog.replication.cluster_commands import (
    CancelDecommission,
    DecommissionBroker,
    Move,
    RaisePeerProtocol,
    Reassign,
    ReserveBrokerId,
    SetMoveThrottle,
)
from raftlog.replication.cluster_state import TopicRecord, next_voters
from raftlog.replication.election import has_leader, transfer
from raftlog.replication.partition_state import Accepted, Elect, PartitionState
from raftlog.replication.placement import Target
from raftlog.server.clock import BrokerClock
from raftlog.server.cluster.elections import HostedPartition
from raftlog.server.cluster.membership import CLUSTER_GROUP
from raftlog.server.cluster.node import ClusterNode
from raftlog.server.disks import DiskSpace
from raftlog.server.operations import (
    Describing,
    Quorum,
    Summary,
    describe_disk,
    describe_partitions,
    disk_status,
    summarize,
)
from raftlog.server.topic_table import LogDirMonitor, TopicTable
from raftlog.types import TopicPartition

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.02
RESERVATIONS_MAX: Final = 10  # attempts to reserve a broker ID
FORWARDED_SECONDS: Final = 10.0  # for another broker to transfer a leadership
QUORUM_SECONDS: Final = 2.0  # for a voter to report the end of its journal


class ClusterOperations:
    """See the requests of the same names."""

    def __init__(
        self,
        node: ClusterNode,
        topics: TopicTable,
        clock: BrokerClock,
        space: DiskSpace,
        log_dirs: LogDirMonitor,
    ) -> None:
        self._log_dirs = log_dirs
        self._node = node
        self._topics = topics
        self._clock = clock
        self._space = space
        self._transfers = TransferRate()

    @property
    def cluster_id(self) -> str:
        """Return the cluster id; empty until the cluster has one."""
        return self._node.machine.cluster_id

    @property
    def peer_protocol(self) -> int:
        """Return the version of the protocol between brokers that the cluster requires."""
        return self._node.machine.peer_protocol

    @property
    def log_dirs(self) -> LogDirMonitor:
        """Return the state of this broker's log directories."""
        return self._log_dirs

    def controller(self) -> int | None:
        """Return the leader of the cluster group; None if it is not known or not reached, or if
        this broker has not yet applied all changes before its start: its metadata can then contain
        brokers and topics that were removed."""
        node, leader = self._node, self._node.subscription.leader
        # guard: a broker that restarts reports no controller until its metadata is up to date
        if leader is None or not node.is_current or not node.liveness.is_linked(leader):
            return None
        return leader

    def other_brokers(self, *, for_kafka: bool = False) -> list[BrokerInfo]:
        return self._node.other_brokers(for_kafka=for_kafka)

    def describe(self, request: DescribeClusterRequest) -> Describing:
        node, now, summary = self._node, asyncio.get_running_loop().time(), Summary()
        if request.summary:
            is_live = node.liveness.is_live
            summary = yield from summarize(
                self._topics, request, node.broker_id, now, is_live, self.target
            )
        else:
            summary.partitions = yield from describe_partitions(
                self._topics, request, node.broker_id, now, self.target
            )
        disk_use = yield from describe_disk(
            self._topics,
            request,
            self._clock,
            quarantine_bytes=self._space.quarantine_bytes + self._log_dirs.quarantine_bytes,
            journal_bytes=node.journal_bytes,
        )
        voters = node.subscription.voters
        return DescribeClusterResponse(
            cluster_id=self.cluster_id,
            controller=self.controller(),
            brokers=[
                BrokerStatus(
                    id=record.id,
                    host=record.host,
                    port=record.port,
                    rack=record.rack or None,
                    directory_id=record.directory_id,
                    broker_epoch=record.broker_epoch,
                    fenced=record.fenced,
                    live=node.liveness.is_linked(record.id),
                    clock_error_ms=self._clock.error_ms() if record.id == node.broker_id else 0,
                    draining=record.draining,
                    has_vote=record.id in voters,
                    leads=summary.leads[record.id] if request.summary else -1,
                    replicas=summary.replicas[record.id] if request.summary else -1,
                    disk=(
                        disk_status(self._space, self.log_dirs)
                        if record.id == node.broker_id
                        else None
                    ),
                )
                for _, record in sorted(node.machine.brokers.items())
            ],
            partitions=summary.partitions,
            disk_use=disk_use,
            move_throttle=node.machine.move_throttle,
            topics=summary.topics if request.summary else None,
            page=summary.page,
            version=node.machine.version,
        )

    def target(self, topic_id: str, partition: int) -> list[int]:
        """Return the replicas to which a partition moves; empty without a move in progress."""
        held = self._target(topic_id, partition)
        return [] if held is None else list(held.replicas)

    def origin(self, topic_id: str, partition: int) -> list[int]:
        """Return the replicas before the move in progress; empty without one."""
        held = self._target(topic_id, partition)
        return [] if held is None else list(held.origin)

    def _target(self, topic_id: str, partition: int) -> Target | None:
        held = self._node.machine.assignment(topic_id, partition)
        return None if held is None else held.target

    async def quorum(self) -> Quorum:
        """Ask each voter for the end of its journal."""
        node = self._node
        status = node.plane.status(CLUSTER_GROUP)
        survey = SurveyRequest(groups=[CLUSTER_GROUP])
        subscribed = node.subscription
        seats = dict(status.voters) or dict(subscribed.voters)

        async def index_of(broker: int) -> int:
            try:
                if broker == node.broker_id:
                    (report,) = await node.recovery.survey([CLUSTER_GROUP])
                else:
                    answer = await node.links.ask(broker, apis.SURVEY, survey, QUORUM_SECONDS)
                    (report,) = cast(SurveyResponse, answer).reports
            except RaftlogError:
                return -1
            return report.index

        found = await asyncio.gather(*map(index_of, seats))
        return Quorum(
            leader=self.controller(),
            term=status.term,
            commit_index=status.commit_index,
            voters=[
                (broker, bytes.fromhex(directory), index)
                for (broker, directory), index in zip(seats.items(), found, strict=True)
            ],
            observers=sorted(set(node.machine.brokers) - set(seats)),
        )

    # -- moving leadership

    async def transfer_leader(self, request: TransferLeaderRequest) -> TransferLeaderResponse:
        """Transfer leadership to another in-sync replica. No record is lost; clients follow
        automatically.
        """
        node = self._node
        hosted = self._member(request.topic, request.partition)
        if isinstance(hosted, PartitionState):
            return await self._forward(hosted, request)
        elect = self._election(hosted, request.to)
        now = asyncio.get_running_loop().time()
        # guard: the rate of leadership transfers is limited
        self._transfers.admit(TopicPartition(request.topic, request.partition), now)
        result = await node.plane.propose(hosted.raft_id, elect.encode())
        if not isinstance(result, Accepted):
            raise LeaderNotAvailableError(
                f"{hosted}: the partition changed during the request. Try again"
            )
        return TransferLeaderResponse(leader=elect.leader, leader_epoch=result.state.leader_epoch)

    def _election(self, hosted: HostedPartition, to: int | None) -> Elect:
        state = hosted.state
        others = [broker for broker in state.replicas if broker != state.leader]
        reason = "it has no other replica"
        for broker in others if to is None else [to]:
            elect = transfer(state, broker, self._node.liveness)
            if isinstance(elect, Elect):
                return elect
            reason = elect
        raise InvalidRequestError(f"leadership of {hosted} was not transferred: {reason}")

    def _member(self, topic: str, partition: int) -> HostedPartition | PartitionState:
        """Return the partition, or only its state if this broker is not one of its voters."""
        held = self._topics.topic(topic)
        if partition >= len(held.hosts):
            raise UnknownPartitionError(f"topic {topic} has no partition {partition}")
        hosted = self._node.partitions.find(held.id, partition)
        if hosted is not None:
            return hosted
        state = self._topics.state(held, partition)
        if state is None:
            raise LeaderNotAvailableError(
                f"this broker does not know the replicas of {topic}:{partition} yet. Try again"
            )
        return state

    async def _forward(
        self, state: PartitionState, request: TransferLeaderRequest
    ) -> TransferLeaderResponse:
        """Have the leader, or another live replica, transfer the leadership."""
        order = dict.fromkeys((state.leader, *state.replicas))
        live = [each for each in order if each is not None and self._node.liveness.is_linked(each)]
        if not live:
            raise BrokerUnavailableError(
                f"this broker is not a voter of {request.topic}:{request.partition}, and none of "
                f"brokers {list(state.replicas)} is connected to it"
            )
        answer = await self._node.links.ask(
            live[0], apis.TRANSFER_LEADER, request, FORWARDED_SECONDS
        )
        return cast(TransferLeaderResponse, answer)

    # -- moving replicas

    async def reassign(self, request: ReassignRequest) -> ReassignResponse:
        """Store the requested replicas. The partition controllers execute the moves."""
        record = self._node.machine.topic(request.topic)
        if record is None and not self._node.membership.is_in:
            raise ClusterNotReadyError("this broker has not received all topics yet. Try again")
        if record is None:
            raise UnknownTopicError(f"there is no topic {request.topic!r}")
        command = _cancellation(record) if request.cancel else _reassignment(record, request)
        if command.moves or request.replication_factor:
            record = await self._node.topics.reassign(command)
        return ReassignResponse(
            moving=[
                PartitionMove(partition=number, replicas=list(held.target.replicas))
                for number, held in enumerate(record.partitions)
                if held.target is not None
            ]
        )

    async def throttle_moves(self, request: ThrottleMovesRequest) -> ThrottleMovesResponse:
        """Store the limit. Raises ``RefusedError`` if it is too low for moves to progress."""
        await self._node.topics.persist(SetMoveThrottle(bytes_per_s=request.bytes_per_s))
        return ThrottleMovesResponse()

    # -- upgrades

    async def upgrade_features(self) -> UpgradeFeaturesResponse:
        """Require this broker's version of the protocol between brokers.

        Raises ``RefusedError`` unless all brokers are connected and support it: those that are
        registered, vote, or have connected to join.
        """
        machine = self._node.machine
        epochs = machine.broker_epochs()
        if machine.peer_protocol < PEER_PROTOCOL_VERSION:
            self._check_peers()
            await self._node.topics.persist(
                RaisePeerProtocol(version=PEER_PROTOCOL_VERSION, broker_epochs=epochs)
            )
        return UpgradeFeaturesResponse(
            peer_protocol=max(machine.peer_protocol, PEER_PROTOCOL_VERSION)
        )

    def _check_peers(self) -> None:
        """Raise ``RefusedError`` unless each broker supports this one's protocol."""
        node = self._node
        peers = {peer.broker_id: peer for peer in node.links.identities()}
        brokers = {*node.machine.brokers, *node.subscription.voters} - {node.broker_id}
        # guard: all brokers are connected when the protocol is raised
        if missing := sorted(brokers - peers.keys()):
            raise RefusedError(
                f"brokers {missing} are not connected, so the versions that they support are not "
                "known. Start them, or remove them with `raftlog cluster decommission`"
            )
        for peer in peers.values():
            record = node.machine.brokers.get(peer.broker_id)
            connected = peer.directory_id, peer.boot
            # guard: a connected broker has registered
            if record is not None and (record.directory_id, record.boot) != connected:
                raise RefusedError(f"broker {peer.broker_id} has not registered yet. Try again")
            # guard: all brokers support the protocol that is required
            if peer.protocol_version < PEER_PROTOCOL_VERSION:
                raise RefusedError(
                    f"broker {peer.broker_id} supports version {peer.protocol_version} of the "
                    f"protocol between brokers, not {PEER_PROTOCOL_VERSION}. Upgrade it first"
                )

    # -- brokers that join and leave

    async def reserve_broker_id(self) -> ReserveBrokerIdResponse:
        """Reserve an ID for a broker that joins. No broker had it before."""
        node = self._node
        for _attempt in range(RESERVATIONS_MAX):
            broker = node.machine.next_broker_id
            try:
                await node.topics.persist(ReserveBrokerId(id=broker))
            except BrokerIdInUseError:
                continue  # assigned to another broker during the request
            return ReserveBrokerIdResponse(id=broker, cluster_id=self.cluster_id)
        raise ClusterNotReadyError("several brokers join at the same time. Try again")

    async def decommission(self, request: DecommissionRequest) -> DecommissionResponse:
        """Begin to remove a broker, or return the progress. Can be repeated.

        Raises ``RefusedError`` if the broker is unknown, if the others cannot store the topics, or
        if the remaining voters of the cluster group would have no majority.
        """
        node, broker = self._node, request.broker
        machine = node.machine
        held = machine.brokers.get(broker)
        if held is None and broker in machine.removed.values():
            return DecommissionResponse(removed=True)
        if held is None or not held.draining:
            if broker in node.subscription.voters:
                self._check_voters_without(broker)
            await node.topics.persist(DecommissionBroker(id=broker))
        return DecommissionResponse(
            removed=broker not in machine.brokers,
            partitions=machine.uses_of(broker),
            has_vote=broker in node.subscription.voters,
            waits_for=self._waits_for(broker),
        )

    async def cancel_decommission(
        self, request: CancelDecommissionRequest
    ) -> CancelDecommissionResponse:
        """Keep a broker, and cancel the moves away from it. Raises ``RefusedError`` if the cluster
        does not have the broker any longer.
        """
        machine, broker = self._node.machine, request.broker
        await self._node.topics.persist(CancelDecommission(id=broker))
        return CancelDecommissionResponse(
            moving=sum(
                held.target is not None and broker in held.target.replicas
                for topic in machine.topics.values()
                for held in topic.partitions
            )
        )

    def _check_voters_without(self, broker: int) -> None:
        node = self._node
        brokers, voters = dict(node.machine.brokers), node.subscription.voters
        if broker in brokers:
            brokers[broker] = msgspec.structs.replace(brokers[broker], draining=True)
        linked = node.liveness.linked_directory
        after = next_voters(voters, brokers=brokers, removed=(), configured=(), linked=linked)
        if after is None:
            down = [other for other in voters if other != broker and linked(other) is None]
            raise RefusedError(
                f"broker {broker} is a voter of the cluster group, and without it, a majority of "
                f"the voters would be down: {down} are not connected. Start them, or decommission "
                "them first"
            )

    def _waits_for(self, broker: int) -> str:
        """Return why the broker's replicas cannot move now; empty if they can."""
        node = self._node
        machine = node.machine
        live = list(filter(node.liveness.is_live, machine.staying()))
        for name, topic in sorted(machine.topics.items()):
            for partition, held in enumerate(topic.partitions):
                if broker not in held.replicas:
                    continue
                if topic.replication_factor > len(live):
                    return (
                        f"topic {name} has {counted(topic.replication_factor, 'replica')}, and "
                        "only brokers "
                        f"{live} are available. Start or add a broker"
                    )
                state = node.state_of(topic.id, partition)
                is_led = state is not None and has_leader(state, node.liveness)
                if not (is_led and any(map(node.liveness.is_live, held.replicas))):
                    return (
                        f"{name}:{partition} has no leader. Start a broker of "
                        f"{list(held.replicas)}, or see `raftlog cluster recover`"
                    )
        return ""

    async def recover(self, request: RecoverClusterRequest) -> RecoverClusterResponse:
        """See ``recovery``."""
        return await self._node.recovery.recover(request)


def _reassignment(record: TopicRecord, request: ReassignRequest) -> Reassign:
    """Return the command, made for the current state. A move in progress is replaced by a new
    replication factor, or if it was cancelled.
    """
    moves = []
    for move in request.moves:
        name = f"{record.name}:{move.partition}"
        if move.partition >= len(record.partitions):
            raise UnknownPartitionError(f"topic {record.name} has no partition {move.partition}")
        held, replicas = record.partitions[move.partition], tuple(move.replicas)
        if move.before and tuple(move.before) != held.replicas:
            raise RefusedError(
                f"{name} has replicas {list(held.replicas)}: the plan was made for {move.before}. "
                "Create it again"
            )
        expected = () if held.target is None else held.target.replicas
        # A cancelled move, or one that this cancels.
        is_cancelled = held.target is not None and held.target.origin in {expected, replicas}
        may_replace = is_cancelled or request.replication_factor
        if expected not in {(), replicas} and not may_replace:
            raise RefusedError(
                f"{name} moves to {list(expected)}. Wait for its end, or cancel it with `raftlog "
                "cluster reassign --cancel`"
            )
        moves.append(Move(move.partition, replicas, held.version, expected))
    return Reassign(
        topic_id=record.id, moves=tuple(moves), replication_factor=request.replication_factor
    )


def _cancellation(record: TopicRecord) -> Reassign:
    """Return the command that restores the replicas before the moves in progress."""
    moves = []
    for partition, held in enumerate(record.partitions):
        if held.target is None:
            continue
        if len(held.target.origin) != record.replication_factor:
            raise InvalidPartitionsError(
                f"topic {record.name!r} changes its replication factor, to "
                f"{record.replication_factor}. Set the former one instead: `raftlog topic alter "
                f"{record.name} --replication-factor {len(held.target.origin)}`"
            )
        origin = held.target.origin
        moves.append(Move(partition, origin, held.version, held.target.replicas))
    return Reassign(topic_id=record.id, moves=tuple(moves))


# -- transfers -------------------------------------------------------------------------------------
#
# Rate limit of requested leadership transfers: each one is an election that interrupts clients.
#
# It decides by the time that it is given; ``operations`` makes the transfer.


INTERVAL_SECONDS: Final = 1.0  # seconds between two transfers of one partition
PER_SECOND: Final = 10.0  # transfers of all partitions, on average
BURST: Final = 20.0  # transfers at once, after an idle time


class TransferRate:
    """Rate limit of the transfers that one broker is requested to make."""

    def __init__(self) -> None:
        self._last_seconds: dict[TopicPartition, float] = {}  # transfers within the interval
        self._left = BURST
        self._counted_seconds = 0.0  # monotonic seconds; time of the last update of _left

    def admit(self, partition: TopicPartition, now: float) -> None:
        """Count a transfer at ``now`` (seconds, monotonic), or raise ``ThrottledError``."""
        ended = now - INTERVAL_SECONDS
        self._last_seconds = {
            moved: when for moved, when in self._last_seconds.items() if when > ended
        }
        if partition in self._last_seconds:
            raise ThrottledError(
                f"{partition}: its leadership was transferred less than {INTERVAL_SECONDS:g} s "
                "ago. Try again later"
            )
        left = min(BURST, self._left + (now - self._counted_seconds) * PER_SECOND)
        if left < 1:
            raise ThrottledError(
                f"one broker transfers leadership at most {PER_SECOND:g} times per second. Try "
                "again later"
            )
        self._left, self._counted_seconds = left - 1, now
        self._last_seconds[partition] = now
