"""Replication decisions: leader election, ISR and commits of a partition, and the cluster state.

The package is pure: no clock, files or sockets. The Raft group of a partition applies ``commands``
to a ``PartitionState``. ``leadership`` tracks followers during one leader epoch, and finds the
point where a follower's log diverges. ``election`` selects leaders. ``cluster_state`` and
``placement`` manage brokers and topics. The server executes the decisions.
"""

from raftlog.replication.leadership import (
    Diverged,
    EpochLookup,
    FollowerProgress,
    Leadership,
    OutOfRange,
    divergence,
    truncation_point,
)
from raftlog.replication.partition_state import (
    Accepted,
    BrokerId,
    ChangeIsr,
    ChangeReplicas,
    Command,
    DirectoryId,
    Elect,
    ElectUnclean,
    PartitionMachine,
    PartitionState,
    Rejected,
    apply,
    decode_command,
    initial_state,
)

__all__ = [
    "Accepted",
    "BrokerId",
    "ChangeIsr",
    "ChangeReplicas",
    "Command",
    "DirectoryId",
    "Diverged",
    "Elect",
    "ElectUnclean",
    "EpochLookup",
    "FollowerProgress",
    "Leadership",
    "OutOfRange",
    "PartitionMachine",
    "PartitionState",
    "Rejected",
    "apply",
    "decode_command",
    "divergence",
    "initial_state",
    "truncation_point",
]
