"""Consumer groups: coordinator lookup, heartbeats, offset commits and fetches, administration.

A group's coordinator is the leader of its partition of ``__consumer_offsets``. A member joins,
stays and leaves with heartbeats, similar to KIP-848. Each heartbeat contains the member's complete
state, so a lost response is repaired by the next one. ``sequence`` increases with every heartbeat
of a member. The coordinator ignores heartbeats with an older sequence.

A heartbeat can wait: the coordinator responds when the member's assignment differs from ``owned``,
when it receives a newer heartbeat of the member, or after ``wait_ms``.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.schema import (
    Counter,
    Failure,
    Host,
    Message,
    NodeId,
    PartitionIndex,
    Port,
    Rack,
    TopicName,
    WireEpoch,
    WireOffset,
    WireTimestamp,
)

# Longer than allowed, so that the coordinator rejects long names with its own error message.
GroupName = Annotated[str, Meta(max_length=16 * limits.GROUP_ID_CHARS_MAX)]
InstanceName = Annotated[str, Meta(max_length=16 * limits.INSTANCE_ID_CHARS_MAX)]
MemberId = Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)]  # "": not a member
MemberEpoch = Annotated[int, Meta(ge=-2, le=(1 << 31) - 1)]
AssignorName = Annotated[str, Meta(max_length=limits.ASSIGNOR_CHARS_MAX)]
OffsetMetadata = Annotated[str, Meta(max_length=limits.OFFSET_METADATA_CHARS_MAX)]
TimeoutMs = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]

JOIN_EPOCH = 0  # a member that joins, or joins again
LEAVE_EPOCH = -1  # a member that leaves permanently
AWAY_EPOCH = -2  # a static member that intends to rejoin within its session timeout
NO_MEMBER_EPOCH = -1  # in a commit by a client that is not a member

_Groups = Meta(min_length=1, max_length=limits.GROUPS_PER_REQUEST_MAX)
_Partitions = Meta(max_length=limits.PARTITIONS_PER_REQUEST_MAX)


class FindCoordinatorsRequest(Message):
    groups: Annotated[list[GroupName], _Groups]


class CoordinatorInfo(Message):
    group: str
    failure: Failure | None = None
    broker_id: NodeId = 0
    host: Host = ""
    port: Port = 0


class FindCoordinatorsResponse(Message):
    coordinators: list[CoordinatorInfo]


class TopicShare(Message):
    """Partitions of one topic. ``topic_id`` distinguishes it from other topics of the same name."""

    topic: TopicName
    topic_id: Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)]
    partitions: Annotated[list[PartitionIndex], _Partitions]


_Shares = Meta(max_length=limits.TOPICS_PER_MEMBER_MAX)


class GroupHeartbeatRequest(Message):
    """Heartbeat of a member.

    ``owned``: partitions that the member reads or is still committing. ``session_timeout_ms``:
    default 45,000 ms. ``rebalance_timeout_ms``: maximum time to release a partition; default
    300,000 ms. ``assignor``: the member's vote; None for no vote. ``wait_ms``: maximum time until
    the response; default 0 ms.
    """

    group: GroupName
    member_id: Annotated[str, Meta(min_length=1, max_length=limits.ID_CHARS_MAX)]
    member_epoch: MemberEpoch
    sequence: Counter
    topics: Annotated[list[TopicName], Meta(max_length=limits.TOPICS_PER_MEMBER_MAX)]
    owned: Annotated[list[TopicShare], _Shares] = []
    session_timeout_ms: TimeoutMs = 45_000
    rebalance_timeout_ms: TimeoutMs = 300_000
    instance_id: InstanceName | None = None
    client_id: Annotated[str, Meta(max_length=limits.CLIENT_ID_CHARS_MAX)] = ""
    rack: Rack = ""
    assignor: AssignorName | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=limits.HEARTBEAT_WAIT_MS_MAX)] = 0


class GroupHeartbeatResponse(Message):
    """Response to a heartbeat.

    ``assignment``: complete assignment of the member. The member first releases all other
    partitions that it owns. ``metadata_version``: increases when topics are created, deleted or
    extended; members that subscribe to a pattern then reload the topic names.
    """

    member_epoch: MemberEpoch
    assignment: list[TopicShare] = []
    metadata_version: Counter = 0


class OffsetToCommit(Message):
    """Offset to commit. ``offset``: offset of the next record to read.

    ``expected``: the committed offset that this one replaces, -1 if there is none; None for any.
    """

    topic: TopicName
    partition: PartitionIndex
    offset: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    leader_epoch: WireEpoch = -1
    metadata: str = ""
    expected: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)] | None = None


class OffsetCommitRequest(Message):
    """Commit offsets of a group.

    ``member_id`` "" with ``NO_MEMBER_EPOCH``: commit by a client that is not a member; the group
    must not have members. ``topic_ids``: expected topic IDs by topic name. The coordinator rejects
    offsets of a topic with another ID, which was deleted and created again. ``sequence``: increases
    with every commit of a member, 0 for none. Offsets of a partition that a later commit of the
    member has replaced are not committed again: the request has arrived late.
    """

    group: GroupName
    offsets: Annotated[list[OffsetToCommit], Meta(min_length=1), _Partitions]
    member_id: MemberId = ""
    member_epoch: MemberEpoch = NO_MEMBER_EPOCH
    topic_ids: Annotated[dict[str, str], Meta(max_length=limits.PARTITIONS_PER_REQUEST_MAX)] = {}
    sequence: Counter = 0


class CommittedPartition(Message):
    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None


class OffsetCommitResponse(Message):
    partitions: list[CommittedPartition]


class PartitionName(Message):
    topic: TopicName
    partition: PartitionIndex


class OffsetFetchRequest(Message):
    """Fetch committed offsets. ``partitions``: None for all with a committed offset."""

    group: GroupName
    partitions: Annotated[list[PartitionName], _Partitions] | None = None


class FetchedOffset(Message):
    """Committed offset of a partition. ``offset`` is -1 if none is committed."""

    topic: TopicName
    partition: PartitionIndex
    failure: Failure | None = None
    offset: WireOffset = -1
    leader_epoch: WireEpoch = -1
    metadata: str = ""
    committed_at_ms: WireTimestamp = -1


class OffsetFetchResponse(Message):
    offsets: list[FetchedOffset]


class ListGroupsRequest(Message):
    """List the groups that the receiving broker coordinates."""


class GroupListing(Message):
    """Group in a listing.

    ``type``: "consumer" (raftlog's own members, and Kafka's with group.protocol=consumer), or
    "classic" (other members of Kafka clients). ``state``: "empty", "stable", "reconciling" of a
    consumer group, "preparing_rebalance" and "completing_rebalance" of a classic group.
    """

    group: str
    state: str
    members: int = 0
    type: str = "consumer"


class ListGroupsResponse(Message):
    """Groups that the responding broker coordinates.

    ``loading``: number of partitions of ``__consumer_offsets`` that the broker is still loading.
    ``partitions``: the partitions that the listing covers. None on a newly elected broker that
    does not know them yet.
    """

    groups: list[GroupListing]
    loading: int = 0
    partitions: Annotated[list[PartitionIndex], _Partitions] | None = None


class DescribeGroupsRequest(Message):
    groups: Annotated[list[GroupName], _Groups]


class MemberDescription(Message):
    """Member in a description of a group.

    ``assigned``: current assignment. ``target``: target assignment. ``is_away``: a static member
    that left temporarily and intends to rejoin within its session timeout.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    member_epoch: MemberEpoch
    topics: list[str]
    assigned: list[TopicShare] = []
    target: list[TopicShare] = []
    session_timeout_ms: TimeoutMs = 0
    is_away: bool = False


class GroupDescription(Message):
    """Description of a group.

    ``type``: as in ``GroupListing``. ``group_epoch``, ``assignor``: of a classic group, its
    generation and protocol.
    """

    group: str
    failure: Failure | None = None
    state: str = ""
    group_epoch: MemberEpoch = 0
    assignor: str = ""
    coordinator: NodeId = 0
    members: list[MemberDescription] = []
    type: str = "consumer"


class DescribeGroupsResponse(Message):
    groups: list[GroupDescription]


class DeleteGroupsRequest(Message):
    groups: Annotated[list[GroupName], _Groups]


class DeletedGroup(Message):
    group: str
    failure: Failure | None = None


class DeleteGroupsResponse(Message):
    groups: list[DeletedGroup]


class DeleteOffsetsRequest(Message):
    """Delete committed offsets of topics to which no member of the group subscribes."""

    group: GroupName
    partitions: Annotated[list[PartitionName], Meta(min_length=1), _Partitions]


class DeleteOffsetsResponse(Message):
    partitions: list[CommittedPartition]
