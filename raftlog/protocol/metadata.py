"""``metadata``: brokers, topics, partitions and who leads them."""

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
    TopicName,
    WireEpoch,
)


class MetadataRequest(Message):
    """``topics`` of None asks for all; an empty list for the brokers alone."""

    topics: Annotated[list[TopicName], Meta(max_length=limits.TOPICS_PER_REQUEST_MAX)] | None = None


class BrokerInfo(Message):
    id: NodeId
    host: str
    port: Annotated[int, Meta(ge=0, le=65_535)]
    rack: str | None = None


class PartitionInfo(Message):
    partition: PartitionIndex
    leader: NodeId | None  # None: no live leader at the moment
    leader_epoch: WireEpoch
    replicas: list[NodeId]
    isr: list[NodeId]
    witnesses: list[NodeId] = []


class TopicInfo(Message):
    """``failure`` is set, and the rest empty, for a topic asked for by name that does not exist."""

    name: str
    failure: Failure | None = None
    id: str = ""
    max_message_bytes: ByteCount = 0  # lets a client cut its batches to fit
    timestamp_type: str = "CreateTime"
    partitions: list[PartitionInfo] = []
    is_internal: bool = False  # made, written and dropped by brokers only
    keys_required: bool = False  # compacted: a client fails a record without a key, not its batch


class MetadataResponse(Message):
    """``controller``: the Raft leader of the cluster group; None while there is none."""

    cluster_id: str
    brokers: list[BrokerInfo]
    topics: list[TopicInfo]
    controller: NodeId | None = None
