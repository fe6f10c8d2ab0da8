"""``metadata``: brokers, topics, partitions and their leaders."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.schema import (
    ByteCount,
    Failure,
    Message,
    NodeId,
    PartitionIndex,
    PartitionRange,
    TopicName,
    WireEpoch,
)


class MetadataRequest(Message):
    """Request metadata. ``topics``: None for all topics, an empty list for brokers only.

    ``span``: only these partitions of each topic. Brokers of earlier releases return all.
    """

    topics: Annotated[list[TopicName], Meta(max_length=limits.TOPICS_PER_REQUEST_MAX)] | None = None
    span: PartitionRange | None = None


class BrokerInfo(Message):
    id: NodeId
    host: str
    port: Annotated[int, Meta(ge=0, le=65_535)]
    rack: str | None = None


class PartitionInfo(Message):
    partition: PartitionIndex
    leader: NodeId | None  # None: no live leader
    leader_epoch: WireEpoch
    replicas: list[NodeId]
    isr: list[NodeId]
    witnesses: list[NodeId] = []


class TopicInfo(Message):
    """Metadata of a topic. If a requested topic does not exist, only ``failure`` is set."""

    name: str
    failure: Failure | None = None
    id: str = ""
    max_message_bytes: ByteCount = 0  # bytes; clients limit their batches to it
    timestamp_type: str = "CreateTime"
    partitions: list[PartitionInfo] = []
    is_internal: bool = False  # created, written and deleted by brokers only
    keys_required: bool = False  # compacted topic: clients reject records without a key


class MetadataResponse(Message):
    """Cluster metadata.

    ``controller``: Raft leader of the cluster group; None if there is none, or if the broker has
    not yet applied all changes before its start.
    """

    cluster_id: str
    brokers: list[BrokerInfo]
    topics: list[TopicInfo]
    controller: NodeId | None = None
