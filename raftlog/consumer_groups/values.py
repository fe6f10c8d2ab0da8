"""Inputs and outputs of a group shard: plain values without group logic.

They correspond to the messages of ``raftlog.protocol.groups``; the server converts between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from raftlog.types import LeaderEpoch, Offset, TimestampMs

T = TypeVar("T")

JOIN_EPOCH: Final = 0  # a member that joins, or joins again
LEAVE_EPOCH: Final = -1  # a member that leaves permanently
AWAY_EPOCH: Final = -2  # a static member that intends to rejoin within its session
NO_MEMBER_EPOCH: Final = -1  # in a commit by a client that is not a member
NO_GENERATION: Final = -1  # in the result of a join that only assigns a member ID

CONSUMER_TYPE: Final = "consumer"
CLASSIC_TYPE: Final = "classic"

Part: TypeAlias = tuple[str, int]  # topic ID, partition; a recreated topic has other Parts
Parts: TypeAlias = frozenset[Part]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """An existing topic. ``id`` distinguishes it from other topics of the same name."""

    id: str
    partition_count: int


class Share(msgspec.Struct, frozen=True):
    """Partitions of one topic, in ascending order."""

    topic: str
    topic_id: str
    partitions: tuple[int, ...]


class Interest(msgspec.Struct, frozen=True, array_like=True):
    """Subscription with a regular expression (KIP-848): topics that match it, and ``names``."""

    names: tuple[str, ...]
    pattern: str


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """Heartbeat of a member. Times are in ms.

    ``host``: address from which the server received it. ``member_epoch``: the last epoch from the
    coordinator, or ``JOIN_EPOCH``, ``LEAVE_EPOCH``, ``AWAY_EPOCH``. ``owned``: partitions that the
    member reads or has not yet committed. ``connection``: as in ``HeartbeatDelta``.
    ``topics``: with those that match ``interest``, if the member has one.
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
    connection: int = 0
    interest: Interest | None = None


class HeartbeatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Heartbeat of a Kafka member (KIP-848): None and -1 mean that a field has not changed.

    ``topics``: with those of ``matched`` that match ``interest``. Both are set if ``topics`` is;
    None for names only. ``owned``: topic IDs and partitions. ``connection``: a number that is
    higher for connections that began later. ``session_timeout_ms``: ms, of the broker's
    configuration.
    """

    group: str
    member_id: str
    member_epoch: int
    connection: int
    session_timeout_ms: int
    topics: tuple[str, ...] | None = None
    owned: tuple[tuple[str, tuple[int, ...]], ...] | None = None
    rebalance_timeout_ms: int = -1
    instance_id: str | None = None
    client_id: str = ""
    host: str = ""
    rack: str | None = None
    assignor: str | None = None
    interest: Interest | None = None
    matched: Topics | None = None


class HeartbeatResult(msgspec.Struct, frozen=True):
    """Response to a heartbeat: the member's epoch and its complete assignment."""

    member_epoch: int
    assignment: tuple[Share, ...] = ()

    def is_news_to(self, heartbeat: Heartbeat) -> bool:
        """Return whether the response changes the member's state and must be sent immediately."""
        if self.member_epoch != heartbeat.member_epoch:
            return True
        if self.assignment == heartbeat.owned:
            return False
        return parts_of(self.assignment) != parts_of(heartbeat.owned)


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """Join of a member of a classic group (Kafka's JoinGroup). Times are in ms.

    ``member_id``: empty for a new member, which then gets ``new_member_id``. ``protocols``: names
    and the member's bytes for each, in order of preference. ``needs_member_id``: the member must
    join again with the ID that it gets (KIP-394). ``may_skip_assignment``: the member understands
    ``JoinResult.skip_assignment`` (KIP-814). ``reason``: for the log of the broker (KIP-800).
    """

    group: str
    member_id: str
    new_member_id: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None = None
    client_id: str = ""
    host: str = ""
    reason: str = ""
    needs_member_id: bool = False
    may_skip_assignment: bool = False


class JoinedMember(msgspec.Struct, frozen=True):
    """Member of a generation, for the leader that assigns. ``metadata``: bytes of its client."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(msgspec.Struct, frozen=True):
    """Response to a join.

    ``generation``: ``NO_GENERATION`` if the member must join again with ``member_id``. ``members``:
    all members, for the leader only. ``skip_assignment``: the leader must not assign, because the
    previous assignments stay valid.
    """

    generation: int
    member_id: str
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class Sync(msgspec.Struct, frozen=True, kw_only=True):
    """Request of a member for its assignment (Kafka's SyncGroup).

    ``assignments``: member IDs and bytes, from the leader. ``protocol_type``, ``protocol``: as the
    member knows them; None if its client does not send them.
    """

    group: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class SyncResult(msgspec.Struct, frozen=True):
    """Assignment of a member of a classic group: bytes of the leader's client."""

    protocol_type: str
    protocol: str
    assignment: bytes


class Departure(msgspec.Struct, frozen=True):
    """Member that leaves a classic group. ``member_id``: may be empty for a static member."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""


class Commit(msgspec.Struct, frozen=True):
    """Offset to commit. ``offset``: offset of the next record to read; below 0, what Kafka clients
    commit for another place, which raftlog's clients take for none. ``leader_epoch``: -1 or less
    for none.

    ``expected``: the committed offset that this one replaces, -1 if there is none; None for any.
    """

    topic: str
    partition: int
    offset: Offset
    leader_epoch: LeaderEpoch = -1
    metadata: str = ""
    expected: Offset | None = None


class Committed(msgspec.Struct, frozen=True):
    """Committed offset of a partition. ``offset`` is -1 if none is committed; a Kafka client can
    commit others below 0. ``leader_epoch``: -1 for none.
    """

    topic: str
    partition: int
    offset: Offset = -1
    leader_epoch: LeaderEpoch = -1
    metadata: str = ""
    committed_at_ms: TimestampMs = -1


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One record of ``__consumer_offsets``. A ``value`` of None is a tombstone."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class StateChange(Generic[T]):
    """Effects of an operation. The ``result`` must not be sent before ``records`` are committed.

    ``wake``: (group, member) pairs whose epoch or assignment changed, or that were removed. The
    caller responds to their waiting heartbeats with ``GroupShard.beat``. ``notes``: lines for the
    broker log.
    """

    result: T
    records: tuple[GroupRecord, ...] = ()
    wake: frozenset[tuple[str, str]] = frozenset()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupListing:
    """Group in a listing.

    ``type``: "consumer" (KIP-848 and raftlog's own members) or "classic". ``state``: "empty",
    "stable", and "reconciling" of a consumer group, or "preparing_rebalance" and
    "completing_rebalance" of a classic group. ``protocol_type``: "consumer", or another type of a
    classic group.
    """

    group: str
    state: str
    members: int
    type: str = CONSUMER_TYPE
    protocol_type: str = CONSUMER_TYPE


@dataclass(frozen=True, slots=True)
class Topics:
    """Existing topics at ``version`` of the cluster state."""

    by_name: Mapping[str, TopicInfo] = field(default_factory=dict)
    version: int = 0
    names: Mapping[str, str] = field(init=False, repr=False)  # by topic id

    def __post_init__(self) -> None:
        names = {info.id: name for name, info in self.by_name.items()}
        object.__setattr__(self, "names", names)

    def has(self, part: Part) -> bool:
        """Return whether the partition exists."""
        name = self.names.get(part[0])
        return name is not None and part[1] < self.by_name[name].partition_count

    def shares(self, parts: Iterable[Part]) -> tuple[Share, ...]:
        """Group ``parts`` by topic, sorted by name and partition. Omits unknown topics."""
        found = [
            Share(self.names[topic_id], topic_id, tuple(numbers))
            for topic_id, numbers in by_topic_id(parts)
            if topic_id in self.names
        ]
        return tuple(sorted(found, key=lambda share: share.topic))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """Member in a description of a group.

    It refers to immutable state only. What takes long to compute is a property, so that the reader
    of a group with 1,000 members can work in steps. ``metadata``, ``assignment``: the bytes of a
    classic member.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    member_epoch: int
    session_timeout_ms: int
    is_away: bool = False
    rack: str = ""
    metadata: bytes = b""
    assignment: bytes = b""
    subscription: tuple[str, ...] = ()
    interest: Interest | None = None
    parts_assigned: Parts = frozenset()
    parts_revoking: Parts = frozenset()
    parts_target: Parts = frozenset()
    known: Topics

    @property
    def topics(self) -> tuple[str, ...]:
        """Subscribed topics."""
        return self.subscription

    @property
    def assigned(self) -> tuple[Share, ...]:
        """Partitions that it owns and keeps."""
        return self.known.shares(self.parts_assigned)

    @property
    def revoking(self) -> tuple[Share, ...]:
        """Partitions that it owns and must release."""
        return self.known.shares(self.parts_revoking)

    @property
    def target(self) -> tuple[Share, ...]:
        """Its target assignment."""
        return self.known.shares(self.parts_target)


@dataclass(frozen=True, slots=True)
class GroupView:
    """Description of one group. Members are sorted by ID.

    ``group_epoch``, ``assignor``: of a classic group, its generation and protocol.
    """

    group: str
    state: str
    group_epoch: int
    assignor: str
    members: tuple[MemberView, ...]
    type: str = CONSUMER_TYPE
    protocol_type: str = CONSUMER_TYPE


def by_topic_id(parts: Iterable[Part]) -> list[tuple[str, list[int]]]:
    """Return the partition numbers of each topic ID, both sorted."""
    found: dict[str, list[int]] = {}
    for topic_id, partition in parts:
        found.setdefault(topic_id, []).append(partition)
    for numbers in found.values():
        numbers.sort()
    return sorted(found.items())


def parts_of(shares: Iterable[Share]) -> Parts:
    """Return the partitions in ``shares``."""
    return frozenset(
        (share.topic_id, partition) for share in shares for partition in share.partitions
    )
