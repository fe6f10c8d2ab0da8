"""One partition as this broker takes part in it: its group's state, and its log if it has one."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.replication.partition_state import PartitionMachine, PartitionState
from raftlog.server.partition import Partition
from raftlog.types import LeaderEpoch


def group_id(topic_id: str, partition: int) -> str:
    """The name of a partition's Raft group."""
    return f"{topic_id}/{partition}"


@dataclass(slots=True, eq=False)
class HostedPartition:
    """``host`` is None on a witness, and until the log is there."""

    topic: str
    topic_id: str
    partition: int
    replication_factor: int
    machine: PartitionMachine
    host: Partition | None = None
    is_known: bool = False  # the state is that of this run, not what an older one left
    is_current: bool = False  # the state is no older than any that an older run acted on
    asking: bool = False  # a proposal that shows whether it is
    deciding: bool = False  # a proposal of the arbiter's is under way
    misled_since: float | None = None  # the preferred leader could lead, and another does
    stalled_since: float | None = None  # too few in sync, and another one could lead
    turns: int = 0  # given to others for that, in vain as far as is known
    turn_began: float = 0.0
    giving_up: bool = False  # a proposal to lead no more, or to leave the ISR, is under way
    fenced_in: LeaderEpoch | None = None  # nothing was said of the damaged log from this epoch on

    @property
    def group_id(self) -> str:
        return group_id(self.topic_id, self.partition)

    @property
    def state(self) -> PartitionState:
        return self.machine.state

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"
