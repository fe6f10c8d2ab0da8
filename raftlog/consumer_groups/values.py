"""What goes into a shard of groups and what comes out of it: plain values, no behaviour of groups.

The messages of ``raftlog.protocol.groups`` mean the same; a server turns the ones into the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from raftlog.types import LeaderEpoch, Offset, TimestampMs

T = TypeVar("T")

JOIN_EPOCH: Final = 0  # a member that joins, or joins again
LEAVE_EPOCH: Final = -1  # a member that leaves for good
AWAY_EPOCH: Final = -2  # a static member that leaves, and means to be back within its session
NO_MEMBER_EPOCH: Final = -1  # in a commit: not by a member of the group

Part: TypeAlias = tuple[str, int]  # topic id, partition: another topic of that name is another Part
Parts: TypeAlias = frozenset[Part]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic that exists. ``id`` tells it from another one of the same name."""

    id: str
    partition_count: int


class Share(msgspec.Struct, frozen=True):
    """Partitions of one topic, in ascending order."""

    topic: str
    topic_id: str
    partitions: tuple[int, ...]


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """All that a member has to say. ``host`` is where the server hears it from; times are in ms.

    ``member_epoch`` is one that the group has given to it, or ``JOIN_EPOCH``, ``LEAVE_EPOCH``,
    ``AWAY_EPOCH``. ``owned``: what it reads, or has not yet committed for.
    """

    group: str
    member_id: str
    member_epoch: int
    sequence: int
    topics: tuple[str, ...]
    owned: tuple[Share, ...] = ()
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    instance_id: str | None = None
    client_id: str = ""
    host: str = ""
    rack: str = ""
    assignor: str | None = None


class HeartbeatResult(msgspec.Struct, frozen=True):
    """What a heartbeat is answered with: the member's epoch, and all that it is to have."""

    member_epoch: int
    assignment: tuple[Share, ...] = ()

    def is_news_to(self, heartbeat: Heartbeat) -> bool:
        """Whether the member has something to do: then it is to be answered at once."""
        if self.member_epoch != heartbeat.member_epoch:
            return True
        if self.assignment == heartbeat.owned:
            return False
        return parts_of(self.assignment) != parts_of(heartbeat.owned)


class Commit(msgspec.Struct, frozen=True):
    """``offset``: of the next record to be read."""

    topic: str
    partition: int
    offset: Offset
    leader_epoch: LeaderEpoch = -1
    metadata: str = ""


class Committed(msgspec.Struct, frozen=True):
    """``offset`` is -1 where none is committed."""

    topic: str
    partition: int
    offset: Offset = -1
    leader_epoch: LeaderEpoch = -1
    metadata: str = ""
    committed_at_ms: TimestampMs = -1


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One record of ``__consumer_offsets``. A ``value`` of None deletes what the key names."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class StateChange(Generic[T]):
    """What an operation has done. Its ``result`` may be told once the ``records`` are committed.

    ``wake``: (group, member) of those whose epoch or assignment changed, or who are members no
    more: what they wait for is to be answered, with ``GroupShard.beat``. ``notes`` are sentences
    for the operator's log.
    """

    result: T
    records: tuple[GroupRecord, ...] = ()
    wake: frozenset[tuple[str, str]] = frozenset()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupListing:
    """``state``: "empty", "reconciling" or "stable"."""

    group: str
    state: str
    members: int


@dataclass(frozen=True, slots=True)
class MemberView:
    """``assigned``: what it has and keeps; ``revoking``: has, and is to give up; ``target``: is to
    have in the end.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    member_epoch: int
    topics: tuple[str, ...]
    assigned: tuple[Share, ...]
    revoking: tuple[Share, ...]
    target: tuple[Share, ...]
    session_timeout_ms: int
    is_away: bool


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group, members by id."""

    group: str
    state: str
    group_epoch: int
    assignor: str
    members: tuple[MemberView, ...]


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics that there are, at ``version`` of the cluster's state."""

    by_name: Mapping[str, TopicInfo] = field(default_factory=dict)
    version: int = 0
    names: Mapping[str, str] = field(init=False, repr=False)  # by topic id

    def __post_init__(self) -> None:
        names = {info.id: name for name, info in self.by_name.items()}
        object.__setattr__(self, "names", names)

    def has(self, part: Part) -> bool:
        """Whether the partition exists."""
        name = self.names.get(part[0])
        return name is not None and part[1] < self.by_name[name].partition_count

    def shares(self, parts: Iterable[Part]) -> tuple[Share, ...]:
        """By topic name, each topic's partitions in order. Leaves out what does not exist."""
        by_topic = groupby(sorted(parts), key=itemgetter(0))
        found = [
            Share(self.names[topic_id], topic_id, tuple(partition for _, partition in pairs))
            for topic_id, pairs in by_topic
            if topic_id in self.names
        ]
        return tuple(sorted(found, key=lambda share: share.topic))


def parts_of(shares: Iterable[Share]) -> Parts:
    """The partitions that the shares name."""
    return frozenset(
        (share.topic_id, partition) for share in shares for partition in share.partitions
    )
