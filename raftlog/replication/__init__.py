"""Who leads, who is in sync, what is committed: decisions about one partition and the cluster.

Pure: no clock, no files, no sockets. A Raft group agrees on a ``PartitionState`` by ``commands``;
``leadership`` is what a leader knows in one epoch, ``following`` how a follower finds where its log
parts from the leader's, ``election`` who is to lead. ``cluster_state`` and ``placement`` are about
brokers and topics. What is decided here is performed elsewhere.
"""

from raftlog.replication.commands import (
    BrokerId,
    ChangeIsr,
    ChangeReplicas,
    Command,
    DirectoryId,
    Elect,
    ElectUnclean,
    decode_command,
)
from raftlog.replication.following import (
    Diverged,
    EpochLookup,
    OutOfRange,
    divergence,
    truncation_point,
)
from raftlog.replication.leadership import FollowerProgress, Leadership
from raftlog.replication.partition_state import (
    Accepted,
    PartitionMachine,
    PartitionState,
    Rejected,
    apply,
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
