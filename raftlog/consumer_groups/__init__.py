"""Consumer groups of a coordinator: pure state machines, after KIP-848 and Kafka's classic groups.

``shard`` holds the groups of one partition of ``__consumer_offsets``. ``group`` implements one
group and the rule by which partitions move. ``assignors`` compute target assignments. ``classic``
implements groups whose members assign the partitions (JoinGroup, SyncGroup). The package
uses no clock, files or sockets. The caller appends the returned records and sends no response
before they are committed.
"""

from raftlog.consumer_groups.assignors import (
    BUILT_IN,
    Assignor,
    MemberSpec,
    RangeAssignor,
    Spec,
    UniformAssignor,
    named,
)
from raftlog.consumer_groups.placement import partition_of_group
from raftlog.consumer_groups.settings import DEFAULT_ASSIGNOR, GroupSettings
from raftlog.consumer_groups.shard import GroupShard
from raftlog.consumer_groups.values import (
    AWAY_EPOCH,
    CLASSIC_TYPE,
    CONSUMER_TYPE,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_GENERATION,
    NO_MEMBER_EPOCH,
    Commit,
    Committed,
    Departure,
    GroupListing,
    GroupRecord,
    GroupView,
    Heartbeat,
    HeartbeatDelta,
    HeartbeatResult,
    Interest,
    Join,
    JoinedMember,
    JoinResult,
    MemberView,
    Share,
    StateChange,
    Sync,
    SyncResult,
    TopicInfo,
    Topics,
)

__all__ = [
    "AWAY_EPOCH",
    "BUILT_IN",
    "CLASSIC_TYPE",
    "CONSUMER_TYPE",
    "DEFAULT_ASSIGNOR",
    "JOIN_EPOCH",
    "LEAVE_EPOCH",
    "NO_GENERATION",
    "NO_MEMBER_EPOCH",
    "Assignor",
    "Commit",
    "Committed",
    "Departure",
    "GroupListing",
    "GroupRecord",
    "GroupSettings",
    "GroupShard",
    "GroupView",
    "Heartbeat",
    "HeartbeatDelta",
    "HeartbeatResult",
    "Interest",
    "Join",
    "JoinResult",
    "JoinedMember",
    "MemberSpec",
    "MemberView",
    "RangeAssignor",
    "Share",
    "Spec",
    "StateChange",
    "Sync",
    "SyncResult",
    "TopicInfo",
    "Topics",
    "UniformAssignor",
    "named",
    "partition_of_group",
]
