"""What an operator asks of the cluster: its state, moving leadership, and the way out of a loss."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from raftlog.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    LeaderNotAvailableError,
    RaftlogError,
    UnknownPartitionError,
    from_code,
)
from raftlog.protocol.cluster import (
    BrokerStatus,
    DescribeClusterRequest,
    DescribeClusterResponse,
    RecoverClusterRequest,
    RecoverClusterResponse,
    RecoveredPartition,
    TransferLeaderRequest,
    TransferLeaderResponse,
)
from raftlog.protocol.metadata import BrokerInfo
from raftlog.protocol.schema import Failure
from raftlog.replication.cluster_commands import AlterTopic
from raftlog.replication.cluster_state import Refused
from raftlog.replication.commands import Elect, ElectUnclean
from raftlog.replication.election import transfer
from raftlog.replication.partition_state import Accepted
from raftlog.server.cluster.member import Member
from raftlog.server.cluster.membership import CLUSTER_GROUP
from raftlog.server.cluster.node import ClusterNode
from raftlog.server.operations import describe_partitions
from raftlog.server.topic_table import TopicTable

logger = logging.getLogger(__name__)

SETTLE_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.02


class ClusterOperations:
    """``raftlog.server.operations.Operations`` of a broker among others."""

    def __init__(self, node: ClusterNode, topics: TopicTable) -> None:
        self._node = node
        self._topics = topics

    @property
    def cluster_id(self) -> str:
        return self._node.machine.cluster_id

    def controller(self) -> int | None:
        leader = self._node.plane.status(CLUSTER_GROUP).leader
        is_there = leader is not None and self._node.liveness.is_linked(leader)
        return leader if is_there else None

    def other_brokers(self) -> list[BrokerInfo]:
        return self._node.other_brokers()

    def describe(self, request: DescribeClusterRequest) -> DescribeClusterResponse:
        node = self._node
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
                )
                for _, record in sorted(node.machine.brokers.items())
            ],
            partitions=describe_partitions(
                self._topics, request, node.broker_id, asyncio.get_running_loop().time()
            ),
        )

    # -- moving leadership

    async def transfer_leader(self, request: TransferLeaderRequest) -> TransferLeaderResponse:
        """Have another in-sync replica lead. Nothing is lost; clients follow by themselves."""
        node = self._node
        member = self._member(request.topic, request.partition)
        elect = self._election(member, request.to)
        result = await node.plane.propose(member.group_id, elect.encode())
        if not isinstance(result, Accepted):
            raise LeaderNotAvailableError(f"{member}: the partition changed meanwhile; try again")
        return TransferLeaderResponse(leader=elect.leader, leader_epoch=result.state.leader_epoch)

    def _election(self, member: Member, to: int | None) -> Elect:
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
        raise InvalidRequestError(f"{member} stays where it is: {reason}")

    def _member(self, topic: str, partition: int) -> Member:
        hosted = self._topics.topic(topic)
        if partition >= len(hosted.hosts):
            raise UnknownPartitionError(f"topic {topic} has no partition {partition}")
        member = self._node.partitions.member(hosted.id, partition)
        if member is None:
            state = self._topics.state(hosted, partition)
            who = "its replicas" if state is None else f"one of brokers {list(state.replicas)}"
            raise InvalidRequestError(
                f"this broker has no vote on {topic}:{partition}: ask {who} (--bootstrap)"
            )
        return member

    # -- the way out of a loss

    async def recover(self, request: RecoverClusterRequest) -> RecoverClusterResponse:
        """Go on with what is left, where a majority of the voters is gone.

        Safe only when those that are gone are gone for good: this broker decides alone from here
        on, and one that comes back is told so.
        """
        node = self._node
        cluster_note = self._recover_group(CLUSTER_GROUP)
        if cluster_note:
            await self._until(lambda: node.plane.leads(CLUSTER_GROUP))
            # After a start, what partitions there are is known only now.
            await self._until(lambda: node.partitions.is_ready)
        recovered = []
        for member in list(node.partitions.members.values()):
            if request.topics is not None and member.topic not in request.topics:
                continue
            try:
                found = await self._recover_partition(member, accept_loss=request.accept_loss)
            except RaftlogError as error:
                found = RecoveredPartition(
                    topic=member.topic, partition=member.partition, failure=Failure.of(error)
                )
            if found is not None:
                recovered.append(found)
        return RecoverClusterResponse(partitions=recovered, cluster_note=cluster_note)

    def _recover_group(self, group_id: str) -> str:
        """Make this broker the only voter, if the majority is gone; what was done, "" if not."""
        node = self._node
        voters = node.plane.status(group_id).voters
        gone = [voter for voter in sorted(voters) if not node.liveness.is_linked(voter)]
        if 2 * len(gone) < len(voters):
            return ""
        has_vote = voters.get(node.broker_id) == node.me.directory_id
        if not has_vote or not node.peering.me().cluster_id:
            # What it would go on from is nothing, and the others would take that over from it.
            raise InvalidRequestError(
                f"this broker has no vote on {group_id}, as its disk is new: run this on a broker "
                "that has kept its data"
            )
        node.plane.force_generation(group_id, {node.broker_id: node.me.directory_id})
        logger.warning("%s: brokers %s are gone: this one votes alone", group_id, gone)
        return f"brokers {', '.join(map(str, gone))} are gone: broker {node.broker_id} votes alone"

    async def _recover_partition(
        self, member: Member, *, accept_loss: bool
    ) -> RecoveredPartition | None:
        node = self._node
        note = self._recover_group(member.group_id)
        if note:
            await self._until(lambda: node.plane.leads(member.group_id))
        if member.host is None:
            return None
        await self._until(lambda: self._is_led(member), must=False)
        state = member.state
        if not self._is_led(member) and accept_loss:
            command = ElectUnclean(
                version=state.version,
                leader=node.broker_id,
                directory_id=node.me.directory_id,
                boot=node.me.boot,
            )
            outcome = await node.plane.propose(member.group_id, command.encode())
            if not isinstance(outcome, Accepted):
                raise LeaderNotAvailableError(f"{member}: it changed meanwhile; try again")
            note += "; led by a replica that was not in sync: what it lacks is lost"
            await self._until(lambda: self._is_led(member), must=False)
        if not note and self._is_led(member):
            return None
        note += await self._lower_min_isr(member)
        return RecoveredPartition(
            topic=member.topic,
            partition=member.partition,
            leader=member.state.leader,
            log_end_offset=member.host.log.log_end_offset,
            note=note
            or "no replica in sync is left: repeat with --accept-loss to lead with this one",
        )

    def _is_led(self, member: Member) -> bool:
        leader = member.state.leader
        return (
            leader is not None
            and self._is_there(leader)
            and self._node.arbiter.has_leader(member.state)
        )

    def _is_there(self, broker: int) -> bool:
        """Not only thought to be: a link that broke a moment ago is forgiven everywhere else."""
        liveness = self._node.liveness
        return liveness.is_linked(broker) and liveness.is_live(broker)

    async def _lower_min_isr(self, member: Member) -> str:
        """Writes cannot go on while more replicas are asked for than there are."""
        node = self._node
        live = sum(map(self._is_there, member.state.replicas))
        host = member.host
        assert host is not None
        wanted = host.log.config.effective_min_isr(len(member.state.replicas))
        if live >= wanted:
            return ""
        command = AlterTopic(name=member.topic, changes={"min.insync.replicas": str(max(1, live))})
        outcome = await node.plane.propose(CLUSTER_GROUP, command.encode())
        if isinstance(outcome, Refused):
            raise from_code(outcome.code, outcome.message)
        return (
            f"; min.insync.replicas of {member.topic} is {max(1, live)} now, so that writes go on: "
            "reset it when the brokers are back"
        )

    async def _until(self, condition: Callable[[], bool], *, must: bool = True) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_SECONDS
        while not condition():
            if loop.time() > deadline:
                if must:
                    raise BrokerUnavailableError("it has not settled yet: try again")
                return
            await asyncio.sleep(POLL_SECONDS)
