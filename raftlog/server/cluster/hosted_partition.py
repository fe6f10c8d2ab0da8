"""One partition on this broker: the state of its Raft group, and its log if it stores one."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.replication.partition_state import PartitionMachine, PartitionState
from raftlog.server.partition import Partition
from raftlog.types import LeaderEpoch


def group_id(topic_id: str, partition: int) -> str:
    """Return the name of a partition's Raft group."""
    return f"{topic_id}/{partition}"


@dataclass(slots=True, eq=False)
class HostedPartition:
    """``host`` is None on a witness, and until the log is open."""

    topic: str
    topic_id: str
    partition: int
    replication_factor: int
    machine: PartitionMachine
    host: Partition | None = None
    # The state was received in this incarnation, not recovered from an older one.
    is_known: bool = False
    noted: PartitionState | None = None  # the last state whose events were derived
    # The state is no older than any state that an older incarnation acted on.
    is_current: bool = False
    asking: bool = False  # a proposal that verifies ``is_current`` is in flight
    deciding: bool = False  # a proposal of the partition controller is in flight
    # Monotonic seconds: since then the preferred leader could lead, and another leads.
    misled_since: float | None = None
    # Monotonic seconds: since then the ISR is too small, and another broker could lead.
    stalled_since: float | None = None
    turns: int = 0  # leadership transfers for that reason, without a known success
    turn_began: float = 0.0
    giving_up: bool = False  # a proposal to stop leading, or to leave the ISR, is in flight
    fenced_in: LeaderEpoch | None = None  # the damaged log is not reported from this epoch on

    @property
    def group_id(self) -> str:
        return group_id(self.topic_id, self.partition)

    @property
    def state(self) -> PartitionState:
        return self.machine.state

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"
