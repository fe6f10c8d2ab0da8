"""One partition on this broker: the state of its Raft group, and its log if it stores one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from raftlog.replication.partition_state import PartitionMachine, PartitionState
from raftlog.server.partition import Partition
from raftlog.types import LeaderEpoch

REST_SECONDS: Final = 5.0  # seconds between two checks of a partition at rest


class Stage(Enum):
    """Permission of this broker to act on the partition's state.

    After a start, the committed state is replayed step by step. A broker that followed an old
    leader during this time would acknowledge, or truncate, records that it must keep for a newer
    leader. So a no-op is proposed first: once it is applied, everything that an earlier incarnation
    acted on is applied too.
    """

    REPLAYED = auto()  # the state may be older than one that an earlier incarnation acted on
    VERIFYING = auto()  # as REPLAYED; the no-op is in flight
    CURRENT = auto()  # the role follows the state
    YIELDING = auto()  # as CURRENT; a proposal to stop leading or to leave the ISR is in flight


class Event(Enum):
    """Cause of a change of the stage."""

    NO_OP_PROPOSED = auto()
    NO_OP_APPLIED = auto()
    NO_OP_FAILED = auto()
    FOUNDED = auto()  # the group has no earlier term: no earlier incarnation can have known more
    ELECTED = auto()  # this incarnation was elected: its election is in the state
    YIELD_PROPOSED = auto()
    YIELD_ENDED = auto()  # applied or not


# An event that is not listed for a stage does not change it: an election can overtake the no-op.
TRANSITIONS: Final[Mapping[Stage, Mapping[Event, Stage]]] = {
    Stage.REPLAYED: {
        Event.NO_OP_PROPOSED: Stage.VERIFYING,
        Event.FOUNDED: Stage.CURRENT,
        Event.ELECTED: Stage.CURRENT,
    },
    Stage.VERIFYING: {
        Event.NO_OP_APPLIED: Stage.CURRENT,
        Event.NO_OP_FAILED: Stage.REPLAYED,
        Event.ELECTED: Stage.CURRENT,
    },
    Stage.CURRENT: {Event.YIELD_PROPOSED: Stage.YIELDING},
    Stage.YIELDING: {Event.YIELD_ENDED: Stage.CURRENT},
}


class CopyChange(Enum):
    """A change of this broker's copy, which waits for the disk."""

    CREATE = auto()  # a witness became a replica
    ACCEPT = auto()  # elected uncleanly: lead with the records that the copy has
    REPLACE = auto()  # reported as lost: quarantine it, or truncate its torn write
    DELETE = auto()  # no longer a replica


@dataclass(slots=True)
class ControllerNotes:
    """Notes of this broker on a partition as its controller. Times are monotonic seconds."""

    is_proposing: bool = False  # a proposal of the controller is in flight
    # Since then the preferred leader could lead, and another leads.
    nonpreferred_since: float | None = None
    # Since then the ISR is too small, and another broker could lead.
    under_min_isr_since: float | None = None
    transfers: int = 0  # leadership transfers for that reason, without a known success
    transferred_at: float = 0.0


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
    stage: Stage = Stage.REPLAYED
    fenced_in: LeaderEpoch | None = None  # the damaged log is not reported from this epoch on
    control: ControllerNotes = field(default_factory=ControllerNotes)
    # The state at the last check, if that found nothing to do or to wait for.
    settled: PartitionState | None = None
    checked_at: float = 0.0  # monotonic seconds
    group_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.group_id = group_id(self.topic_id, self.partition)

    @property
    def state(self) -> PartitionState:
        return self.machine.state

    @property
    def is_current(self) -> bool:
        """Whether the state is no older than any that an earlier incarnation acted on."""
        return self.stage in {Stage.CURRENT, Stage.YIELDING}

    def checked(self, now: float) -> None:
        """Note that this broker has checked its role, the ISR, and what the group's leader does."""
        state, notes = self.state, self.control
        is_settled = (
            self.is_known
            and self.stage is Stage.CURRENT
            and len(state.isr) == len(state.replicas)
            and state.leader == state.replicas[0]
            and not (notes.is_proposing or notes.transfers)
        )
        self.settled, self.checked_at = state if is_settled else None, now

    def is_at_rest(self, now: float) -> bool:
        """Whether a check would find nothing: the last one did not, and nothing has happened. What
        lasts for some time without an event is found ``REST_SECONDS`` later.
        """
        return (
            self.settled is self.machine.state
            and now - self.checked_at < REST_SECONDS
            and (self.host is None or self.host.is_at_rest)
        )

    def on(self, event: Event) -> None:
        """Go to the next stage (``TRANSITIONS``)."""
        self.stage = TRANSITIONS[self.stage].get(event, self.stage)

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"
