"""Operator requests in a cluster: cluster state, leadership transfer, replica moves, recovery."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from raftlog.errors import (
    InvalidPartitionsError,
    InvalidRequestError,
    LeaderNotAvailableError,
    RefusedError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol.cluster import (
    BrokerStatus,
    DescribeClusterRequest,
    DescribeClusterResponse,
    PartitionMove,
    ReassignRequest,
    ReassignResponse,
    RecoverClusterRequest,
    RecoverClusterResponse,
    TransferLeaderRequest,
    TransferLeaderResponse,
)
from raftlog.protocol.metadata import BrokerInfo
from raftlog.replication.cluster_commands import Move, Reassign
from raftlog.replication.cluster_state import TopicRecord
from raftlog.replication.commands import Elect
from raftlog.replication.election import transfer
from raftlog.replication.partition_state import Accepted
from raftlog.server.broker_clock import BrokerClock
from raftlog.server.cluster.hosted_partition import HostedPartition
from raftlog.server.cluster.membership import CLUSTER_GROUP
from raftlog.server.cluster.node import ClusterNode
from raftlog.server.cluster.transfers import TransferRate
from raftlog.server.operations import Describing, describe_partitions
from raftlog.server.topic_table import TopicTable
from raftlog.types import TopicPartition

logger = logging.getLogger(__name__)

SETTLE_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.02


class ClusterOperations:
    """``raftlog.server.operations.Operations`` of a broker in a cluster."""

    def __init__(self, node: ClusterNode, topics: TopicTable, clock: BrokerClock) -> None:
        self._node = node
        self._topics = topics
        self._clock = clock
        self._transfers = TransferRate()

    @property
    def cluster_id(self) -> str:
        return self._node.machine.cluster_id

    def controller(self) -> int | None:
        leader = self._node.plane.status(CLUSTER_GROUP).leader
        is_there = leader is not None and self._node.liveness.is_linked(leader)
        return leader if is_there else None

    def other_brokers(self) -> list[BrokerInfo]:
        return self._node.other_brokers()

    def describe(self, request: DescribeClusterRequest) -> Describing:
        node = self._node
        partitions = yield from describe_partitions(
            self._topics, request, node.broker_id, asyncio.get_running_loop().time()
        )
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
                )
                for _, record in sorted(node.machine.brokers.items())
            ],
            partitions=[
                msgspec.structs.replace(each, target=self.target(each.topic_id, each.partition))
                for each in partitions
            ],
        )

    def target(self, topic_id: str, partition: int) -> list[int]:
        record = self._node.machine.topic_by_id(topic_id)
        if record is None or partition >= len(record.partitions):
            return []
        target = record.partitions[partition].target
        return [] if target is None else list(target.replicas)

    # -- moving leadership

    async def transfer_leader(self, request: TransferLeaderRequest) -> TransferLeaderResponse:
        """Transfer leadership to another in-sync replica. No record is lost; clients follow
        automatically.
        """
        node = self._node
        hosted = self._member(request.topic, request.partition)
        elect = self._election(hosted, request.to)
        now = asyncio.get_running_loop().time()
        self._transfers.admit(TopicPartition(request.topic, request.partition), now)
        result = await node.plane.propose(hosted.group_id, elect.encode())
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

    def _member(self, topic: str, partition: int) -> HostedPartition:
        held = self._topics.topic(topic)
        if partition >= len(held.hosts):
            raise UnknownPartitionError(f"topic {topic} has no partition {partition}")
        hosted = self._node.partitions.find(held.id, partition)
        if hosted is None:
            state = self._topics.state(held, partition)
            who = "its replicas" if state is None else f"one of brokers {list(state.replicas)}"
            raise InvalidRequestError(
                f"this broker is not a voter of {topic}:{partition}. Send the request to {who} "
                "(--bootstrap)"
            )
        return hosted

    # -- moving replicas

    async def reassign(self, request: ReassignRequest) -> ReassignResponse:
        """Store the requested replicas. The partition controllers execute the moves."""
        record = self._node.machine.topic(request.topic)
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
        is_cancelled = held.target is not None and held.target.origin == expected
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
