"""``describe_cluster``, ``transfer_leader`` and ``recover_cluster``: what an operator asks for."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.schema import (
    BrokerEpoch,
    ClusterId,
    Counter,
    Failure,
    Host,
    Message,
    NodeId,
    NodeIds,
    Note,
    PartitionIndex,
    Port,
    Rack,
    TopicId,
    TopicName,
    WireEpoch,
    WireOffset,
)

_Topics = Annotated[list[TopicName], Meta(max_length=limits.TOPICS_PER_REQUEST_MAX)]


class DescribeClusterRequest(Message):
    """``topics`` of None describes the partitions of all topics, an empty list those of none."""

    topics: _Topics | None = None
    include_partitions: bool = True


class BrokerStatus(Message):
    """``live``: as the broker asked sees it. ``fenced``: as the cluster group has it.

    ``clock_error_ms``: of the broker asked; by how much its wall clock is ahead of the trusted time
    (negative: behind) if that is a step, else 0.
    """

    id: NodeId
    host: Host
    port: Port
    directory_id: Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)]  # empty: not known yet
    broker_epoch: BrokerEpoch
    fenced: bool
    live: bool
    rack: Rack | None = None
    clock_error_ms: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] = 0


class ReplicaStatus(Message):
    """What the partition's leader knows of one replica.

    Offsets and ``lag_ms`` (since it was last caught up) are -1 where they are not known. ``chain``
    is the chain value at ``log_end_offset``: replicas with the same value there hold the same log.
    ``damage`` says what is wrong with the stored bytes; empty when nothing is.
    """

    broker: NodeId
    log_end_offset: WireOffset = -1
    durable_end_offset: WireOffset = -1
    lag_ms: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)] = -1
    in_isr: bool = False
    chain: Annotated[int, Meta(ge=0)] | None = None  # 64 bits: msgpack has no room for more
    damage: Note = ""


class PartitionStatus(Message):
    """One partition, as the broker asked knows it.

    ``replica_status``, ``high_watermark`` and ``log_start_offset`` are known to its leader: other
    brokers leave them empty, or -1. ``failure`` says why the broker cannot tell more.

    ``unclean_epoch``: the leader epoch that an operator's last election began which may have lost
    acknowledged records, and ``unclean_offset`` the leader's first offset in it; -1: none, unknown.
    """

    topic: TopicName
    topic_id: TopicId
    partition: PartitionIndex
    leader: NodeId | None
    leader_epoch: WireEpoch
    replicas: NodeIds
    isr: NodeIds
    witnesses: NodeIds
    elr: NodeIds
    min_isr: Annotated[int, Meta(ge=0, le=limits.BROKERS_PER_CLUSTER_MAX)]
    high_watermark: WireOffset = -1
    log_start_offset: WireOffset = -1
    replica_status: Annotated[
        list[ReplicaStatus], Meta(max_length=limits.BROKERS_PER_CLUSTER_MAX)
    ] = []
    failure: Failure | None = None
    unclean_epoch: WireEpoch = -1
    unclean_offset: WireOffset = -1


class DescribeClusterResponse(Message):
    """``controller``: the Raft leader of the cluster group; None while there is none."""

    cluster_id: ClusterId
    controller: NodeId | None
    brokers: Annotated[list[BrokerStatus], Meta(max_length=limits.BROKERS_PER_CLUSTER_MAX)]
    partitions: Annotated[
        list[PartitionStatus], Meta(max_length=limits.PARTITIONS_PER_CLUSTER_MAX)
    ] = []


class TransferLeaderRequest(Message):
    """``to`` of None: to another in-sync replica, the first of the preferred order that is live."""

    topic: TopicName
    partition: PartitionIndex
    to: NodeId | None = None


class TransferLeaderResponse(Message):
    """Who leads now, and in which epoch. That it could not be done is a failure of the request."""

    leader: NodeId
    leader_epoch: WireEpoch


class RecoverClusterRequest(Message):
    """The operator's way out when a majority of voters is lost for good.

    ``accept_loss``: also go on where acknowledged records may be lost by it. ``topics`` of None
    recovers all. ``dry_run``: only say what would be done.
    """

    accept_loss: bool = False
    topics: _Topics | None = None
    dry_run: bool = False


class RecoveredPartition(Message):
    """``note``: what was done, and what may be lost; for people.

    ``may_lose``: acknowledged records are lost by it, or may be; ``lost``: so many at least.
    """

    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    leader: NodeId | None = None
    log_end_offset: WireOffset = -1
    note: Note = ""
    may_lose: bool = False
    lost: Counter = 0


class RecoverClusterResponse(Message):
    """Partitions that needed nothing are left out. ``cluster_note`` is of the cluster group.

    ``needs_loss``: the cluster's own state may have been changed by brokers that are gone; nothing
    is done without ``accept_loss``.
    """

    partitions: Annotated[
        list[RecoveredPartition], Meta(max_length=limits.PARTITIONS_PER_CLUSTER_MAX)
    ]
    cluster_note: Note = ""
    needs_loss: bool = False
