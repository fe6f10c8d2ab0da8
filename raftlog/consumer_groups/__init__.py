"""Consumer groups of a coordinator: a pure state machine, after KIP-848.

``shard`` holds the groups of one partition of ``__consumer_offsets``. ``group`` implements one
group and the rule by which partitions move. ``assignors`` compute target assignments. The package
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
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_MEMBER_EPOCH,
    Commit,
    Committed,
    GroupListing,
    GroupRecord,
    GroupView,
    Heartbeat,
    HeartbeatResult,
    MemberView,
    Share,
    StateChange,
    TopicInfo,
    Topics,
)

__all__ = [
    "AWAY_EPOCH",
    "BUILT_IN",
    "DEFAULT_ASSIGNOR",
    "JOIN_EPOCH",
    "LEAVE_EPOCH",
    "NO_MEMBER_EPOCH",
    "Assignor",
    "Commit",
    "Committed",
    "GroupListing",
    "GroupRecord",
    "GroupSettings",
    "GroupShard",
    "GroupView",
    "Heartbeat",
    "HeartbeatResult",
    "MemberSpec",
    "MemberView",
    "RangeAssignor",
    "Share",
    "Spec",
    "StateChange",
    "TopicInfo",
    "Topics",
    "UniformAssignor",
    "named",
    "partition_of_group",
]
