"""Consumer groups: find the coordinator, heartbeat, commit and fetch offsets, look and tidy up.

A group's coordinator is the leader of its partition of ``__consumer_offsets``. A member joins,
stays and leaves by heartbeats (KIP-848 in spirit), each of which says all that the member has, so
that a lost answer does no harm: the next heartbeat's is as good. ``sequence`` grows with every
heartbeat of a member, and the coordinator takes none that is older than one it has seen.

A heartbeat may wait: the coordinator answers when the member's assignment differs from ``owned``,
when a newer heartbeat of the member comes, or after ``wait_ms``.
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

# Longer than allowed, so that the coordinator's own sentence says what is.
GroupName = Annotated[str, Meta(max_length=16 * limits.GROUP_ID_CHARS_MAX)]
InstanceName = Annotated[str, Meta(max_length=16 * limits.INSTANCE_ID_CHARS_MAX)]
MemberId = Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)]  # "" for nobody's
MemberEpoch = Annotated[int, Meta(ge=-2, le=(1 << 31) - 1)]
AssignorName = Annotated[str, Meta(max_length=limits.ASSIGNOR_CHARS_MAX)]
OffsetMetadata = Annotated[str, Meta(max_length=limits.OFFSET_METADATA_CHARS_MAX)]
TimeoutMs = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]

JOIN_EPOCH = 0  # a member that joins, or joins again
LEAVE_EPOCH = -1  # a member that leaves for good
AWAY_EPOCH = -2  # a static member that leaves, and means to be back within its session timeout
NO_MEMBER_EPOCH = -1  # in a commit: not by a member of the group

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
    """Partitions of one topic. ``topic_id`` tells it from another one of the same name."""

    topic: TopicName
    topic_id: Annotated[str, Meta(max_length=limits.ID_CHARS_MAX)]
    partitions: Annotated[list[PartitionIndex], _Partitions]


_Shares = Meta(max_length=limits.TOPICS_PER_MEMBER_MAX)


class GroupHeartbeatRequest(Message):
    """``owned``: what the member reads at the moment (or is still committing for).

    ``rebalance_timeout_ms``: how long it may take to give a partition up. ``assignor``: None leaves
    it to the other members, or to the default.
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
    """``assignment``: all that the member is to have; what it owns beyond that, it gives up first.

    ``metadata_version`` grows when topics come, go or grow: a member that subscribes to a pattern
    then looks at the topics' names again.
    """

    member_epoch: MemberEpoch
    assignment: list[TopicShare] = []
    metadata_version: Counter = 0


class OffsetToCommit(Message):
    """``offset``: of the next record to be read."""

    topic: TopicName
    partition: PartitionIndex
    offset: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    leader_epoch: WireEpoch = -1
    metadata: str = ""


class OffsetCommitRequest(Message):
    """``member_id`` of "" with ``NO_MEMBER_EPOCH``: by nobody of the group, which has no members.

    A commit of a topic that was deleted and made anew meanwhile (``topic_ids`` names the one that
    is meant) is refused.
    """

    group: GroupName
    offsets: Annotated[list[OffsetToCommit], Meta(min_length=1), _Partitions]
    member_id: MemberId = ""
    member_epoch: MemberEpoch = NO_MEMBER_EPOCH
    topic_ids: Annotated[dict[str, str], Meta(max_length=limits.PARTITIONS_PER_REQUEST_MAX)] = {}


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
    """``partitions`` of None: all for which the group has committed an offset."""

    group: GroupName
    partitions: Annotated[list[PartitionName], _Partitions] | None = None


class FetchedOffset(Message):
    """``offset`` is -1 where none is committed."""

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
    """Of the groups that the broker asked coordinates."""


class GroupListing(Message):
    """``state``: "empty", "assigning", "reconciling" or "stable"."""

    group: str
    state: str
    members: int = 0


class ListGroupsResponse(Message):
    """``loading``: how many partitions of ``__consumer_offsets`` the broker is still reading.

    ``partitions``: those that it speaks for. One that has just been elected may not know yet.
    """

    groups: list[GroupListing]
    loading: int = 0
    partitions: Annotated[list[PartitionIndex], _Partitions] | None = None


class DescribeGroupsRequest(Message):
    groups: Annotated[list[GroupName], _Groups]


class MemberDescription(Message):
    """``assigned``: what it has; ``target``: what it is to have in the end.

    ``is_away``: a static member that has left, and means to be back within its session timeout.
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
    group: str
    failure: Failure | None = None
    state: str = ""
    group_epoch: MemberEpoch = 0
    assignor: str = ""
    coordinator: NodeId = 0
    members: list[MemberDescription] = []


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
    """Forget what the group has committed for these partitions; none of its members reads them."""

    group: GroupName
    partitions: Annotated[list[PartitionName], Meta(min_length=1), _Partitions]


class DeleteOffsetsResponse(Message):
    partitions: list[CommittedPartition]
