"""Operator requests in a cluster: cluster state, leadership transfer and recovery after a loss."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from raftlog.errors import (
    InvalidRequestError,
    LeaderNotAvailableError,
    UnknownPartitionError,
)
from raftlog.protocol.cluster import (
    BrokerStatus,
    DescribeClusterRequest,
    DescribeClusterResponse,
    RecoverClusterRequest,
    RecoverClusterResponse,
    TransferLeaderRequest,
    TransferLeaderResponse,
)
from raftlog.protocol.metadata import BrokerInfo
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
            partitions=partitions,
        )

    # -- moving leadership

    async def transfer_leader(self, request: TransferLeaderRequest) -> TransferLeaderResponse:
        """Transfer leadership to another in-sync replica. No record is lost; clients follow
        automatically.
        """
        node = self._node
        member = self._member(request.topic, request.partition)
        elect = self._election(member, request.to)
        now = asyncio.get_running_loop().time()
        self._transfers.admit(TopicPartition(request.topic, request.partition), now)
        result = await node.plane.propose(member.group_id, elect.encode())
        if not isinstance(result, Accepted):
            raise LeaderNotAvailableError(
                f"{member}: the partition changed during the request. Try again"
            )
        return TransferLeaderResponse(leader=elect.leader, leader_epoch=result.state.leader_epoch)

    def _election(self, member: HostedPartition, to: int | None) -> Elect:
        state, liveness = member.state, self._node.liveness
        others = [broker for broker in state.replicas if broker != state.leader]
        reason = "it has no other replica"
        for broker in others if to is None else [to]:
            elect = transfer(
                state,
                broker,
                is_live=liveness.is_live,
                directory_of=liveness.directory_of,
                boot_of=liveness.boot_of,
            )
            if isinstance(elect, Elect):
                return elect
            reason = elect
        raise InvalidRequestError(f"leadership of {member} was not transferred: {reason}")

    def _member(self, topic: str, partition: int) -> HostedPartition:
        hosted = self._topics.topic(topic)
        if partition >= len(hosted.hosts):
            raise UnknownPartitionError(f"topic {topic} has no partition {partition}")
        member = self._node.partitions.member(hosted.id, partition)
        if member is None:
            state = self._topics.state(hosted, partition)
            who = "its replicas" if state is None else f"one of brokers {list(state.replicas)}"
            raise InvalidRequestError(
                f"this broker is not a voter of {topic}:{partition}. Send the request to {who} "
                "(--bootstrap)"
            )
        return member

    async def recover(self, request: RecoverClusterRequest) -> RecoverClusterResponse:
        """See ``recovery``."""
        return await self._node.recovery.recover(request)
