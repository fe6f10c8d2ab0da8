"""Inputs and outputs of a group shard: plain values without group logic.

They correspond to the messages of ``raftlog.protocol.records``; the server converts between them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

from raftlog import limits
from raftlog.errors import InvalidRequestError
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
    commit others below 0. ``leader_epoch``: -1 for none. ``is_stable``: False if an open
    transaction holds another offset; None is returned then.
    """

    topic: str
    partition: int
    offset: Offset = -1
    leader_epoch: LeaderEpoch = -1
    metadata: str = ""
    committed_at_ms: TimestampMs = -1
    is_stable: bool = True


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


# -- records ---------------------------------------------------------------------------------------
#
# Records of ``__consumer_offsets``: the format in which coordinators persist groups.
#
#     key    msgpack [kind, group, ...]     value    msgpack [version, ...]
#
#     1  [1, group]                    epoch, topics version, empty since (ms), assignor
#     2  [2, group, member]            state of a member, without its session
#     3  [3, group, topic, partition]  topic id, offset, leader epoch, metadata, time (ms), topics
#                                      version, member and its commit's sequence
#     4  [4, group, member]            fenced member: lost instance ID and session timeout (ms)
#     5  [5, group]                    classic group: generation, phase, protocol type, protocol,
#                                      leader
#     6  [6, group, member]            member of a classic group, without its session
#     7  [7, producer id, group,       offset of an open transaction: epoch of the producer, order,
#         topic, partition]            value of kind 3
#
# Each record contains the complete state of its key. The state of a group follows from the last
# record of each key, in any order, so it does not depend on what compaction has removed. The
# deletion of a group writes one tombstone per key. A single tombstone for the group would not be
# enough: after compaction removes it, the records of the members would be loaded again.
#
# New fields are added at the end, with a default; older releases ignore them. A change that an
# older release must not misread gets a new version or a new kind, which older releases skip.
# Version 2 is that of an offset below 0, which Kafka clients commit for "latest" (-1) and
# "earliest" (-2). Version 3 is that of kind 7: a release that skips it does not know that offsets
# of its groups are pending, and neither commits nor aborts them.


GROUP_KIND: Final = 1
MEMBER_KIND: Final = 2
OFFSET_KIND: Final = 3
FORMER_KIND: Final = 4
CLASSIC_KIND: Final = 5
CLASSIC_MEMBER_KIND: Final = 6
PENDING_KIND: Final = 7
VERSION_MIN: Final = 1
VERSION: Final = 3  # the newest
OFFSET_BELOW_0: Final = 2
PENDING_OFFSET: Final = 3

Phase: TypeAlias = Literal["empty", "preparing_rebalance", "completing_rebalance", "stable"]
PartRows: TypeAlias = dict[str, list[int]]  # topic id -> partitions


class GroupValue(msgspec.Struct, frozen=True, array_like=True):
    """State of a group. ``topics_version``: cluster-state version that the coordinator had."""

    version: int
    epoch: int
    topics_version: int
    empty_since_ms: int | None
    assignor: str


class MemberValue(msgspec.Struct, frozen=True, array_like=True):
    """``member.Member``, without its session and its revocation deadlines.

    ``interest``: not written if there is none.
    """

    version: int
    epoch: int
    known_epoch: int
    sequence: int
    instance_id: str | None
    client_id: str
    host: str
    rack: str
    topics: tuple[str, ...]
    assignor: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    is_away: bool
    assigned: PartRows
    revoking: PartRows
    target: PartRows
    interest: Interest | None = None


class OffsetValue(msgspec.Struct, frozen=True, array_like=True):
    """A committed offset.

    Up to ``topics_version``, no field has a default, so that a truncated value is rejected and
    never read as an offset. ``committer``, ``sequence``: of the commit; not written without one.
    """

    version: int
    topic_id: str
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    topics_version: int
    committer: str = ""
    sequence: int = 0


class PendingValue(msgspec.Struct, frozen=True, array_like=True):
    """An offset of an open transaction, to be committed if the transaction is.

    ``order``: above that of every pending offset of the partition, in the group, that was written
    before it, by any producer. ``coordinator_epoch``: lower limit of that of the transaction's
    marker: an older one is of an earlier transaction.
    """

    version: int
    producer_epoch: int
    order: int
    offset: OffsetValue
    coordinator_epoch: int


class FormerValue(msgspec.Struct, frozen=True, array_like=True):
    version: int
    instance_id: str
    timeout_ms: int
    sequence: int


class ClassicValue(msgspec.Struct, frozen=True, array_like=True):
    """State of a classic group."""

    version: int
    generation: int
    phase: Phase
    protocol_type: str
    protocol: str
    leader: str


class ClassicMemberValue(msgspec.Struct, frozen=True, array_like=True):
    """``classic.ClassicMember``, without its session and what it waits for."""

    version: int
    instance_id: str | None
    client_id: str
    host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


Value: TypeAlias = (
    GroupValue
    | MemberValue
    | OffsetValue
    | FormerValue
    | ClassicValue
    | ClassicMemberValue
    | PendingValue
)

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_any: Final = msgspec.msgpack.Decoder().decode
_DECODERS: Final[dict[int, msgspec.msgpack.Decoder[Any]]] = {
    GROUP_KIND: msgspec.msgpack.Decoder(GroupValue),
    MEMBER_KIND: msgspec.msgpack.Decoder(MemberValue),
    OFFSET_KIND: msgspec.msgpack.Decoder(OffsetValue),
    FORMER_KIND: msgspec.msgpack.Decoder(FormerValue),
    CLASSIC_KIND: msgspec.msgpack.Decoder(ClassicValue),
    CLASSIC_MEMBER_KIND: msgspec.msgpack.Decoder(ClassicMemberValue),
    PENDING_KIND: msgspec.msgpack.Decoder(PendingValue),
}
_GROUP_KEY: Final = msgspec.msgpack.Decoder(tuple[int, str])
_MEMBER_KEY: Final = msgspec.msgpack.Decoder(tuple[int, str, str])
_OFFSET_KEY: Final = msgspec.msgpack.Decoder(tuple[int, str, str, int])
_PENDING_KEY: Final = msgspec.msgpack.Decoder(tuple[int, int, str, str, int])
_KEYS: Final[dict[int, msgspec.msgpack.Decoder[Any]]] = {
    GROUP_KIND: _GROUP_KEY,
    MEMBER_KIND: _MEMBER_KEY,
    OFFSET_KIND: _OFFSET_KEY,
    FORMER_KIND: _MEMBER_KEY,
    CLASSIC_KIND: _GROUP_KEY,
    CLASSIC_MEMBER_KIND: _MEMBER_KEY,
    PENDING_KIND: _PENDING_KEY,
}


class GroupKey(msgspec.Struct, frozen=True):
    group: str


class MemberKey(msgspec.Struct, frozen=True):
    group: str
    member: str


class FormerKey(msgspec.Struct, frozen=True):
    group: str
    member: str


class OffsetKey(msgspec.Struct, frozen=True):
    group: str
    topic: str
    partition: int


class ClassicKey(msgspec.Struct, frozen=True):
    group: str


class ClassicMemberKey(msgspec.Struct, frozen=True):
    group: str
    member: str


class PendingKey(msgspec.Struct, frozen=True):
    producer_id: int
    group: str
    topic: str
    partition: int


Key: TypeAlias = (
    GroupKey | MemberKey | OffsetKey | FormerKey | ClassicKey | ClassicMemberKey | PendingKey
)

_KIND_OF: Final[dict[type[Key], int]] = {
    GroupKey: GROUP_KIND,
    MemberKey: MEMBER_KIND,
    OffsetKey: OFFSET_KIND,
    FormerKey: FORMER_KIND,
    ClassicKey: CLASSIC_KIND,
    ClassicMemberKey: CLASSIC_MEMBER_KIND,
    PendingKey: PENDING_KIND,
}
_KEY_TYPES: Final = {kind: type_ for type_, kind in _KIND_OF.items()}


def record(key: Key, value: Value | None) -> GroupRecord:
    """Return the record of ``key``. A ``value`` of None produces a tombstone."""
    encoded = _encode((_KIND_OF[type(key)], *msgspec.structs.astuple(key)))
    if isinstance(value, MemberValue) and value.interest is None:  # as releases before the field
        return GroupRecord(encoded, _encode(msgspec.structs.astuple(value)[:-1]))
    if isinstance(value, OffsetValue) and not value.sequence:  # as releases before the fields
        return GroupRecord(encoded, _encode(msgspec.structs.astuple(value)[:-2]))
    return GroupRecord(encoded, None if value is None else _encode(value))


def decode_key(data: bytes) -> Key | None:
    """Return the key, or None for a kind of a newer release.

    Raises ``InvalidRequestError`` if the bytes are not a valid key.
    """
    try:
        kind = _head(data)
        if kind not in _KEYS:
            return None
        fields = _KEYS[kind].decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"invalid key of a group record: {error}") from error
    return _KEY_TYPES[kind](*fields[1:])


def decode_value(key: Key, data: bytes) -> Value | None:
    """Return the value, or None for a version of a newer release.

    Raises ``InvalidRequestError`` if the bytes are not a valid value of ``key``.
    """
    try:
        if _head(data) > VERSION:
            return None
        value: Value = _DECODERS[_KIND_OF[type(key)]].decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"invalid value of {key}: {error}") from error
    known = value.offset if isinstance(value, PendingValue) else value
    if isinstance(known, OffsetValue) and known.offset < 0 and known.version < OFFSET_BELOW_0:
        raise InvalidRequestError(f"invalid value of {key}: its offset is {known.offset}")
    return value


def _head(data: bytes) -> int:
    """Return the first number of an array: the kind of a key, or the version of a value."""
    fields = _decode_any(data)
    if not (isinstance(fields, list) and fields and type(fields[0]) is int and fields[0] > 0):
        raise InvalidRequestError("group record does not begin with its kind or version")
    return fields[0]


# -- settings --------------------------------------------------------------------------------------
#
# Settings of consumer groups. The broker fills them from its configuration.


DEFAULT_ASSIGNOR: Final = "uniform"
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Limits and times of consumer groups. Times are in ms; limits are inclusive.

    ``grace_ms``: ms, default 2,000. If the timers of a coordinator are late by more than this, it
    was stalled. It then extends expired sessions by ``grace_ms``, to process queued heartbeats.
    ``initial_rebalance_delay_ms``: ms, default 3,000, by which the first rebalance of an empty
    classic group waits for more members.
    """

    session_timeout_ms_min: int = limits.SESSION_TIMEOUT_MS_MIN
    session_timeout_ms_max: int = limits.SESSION_TIMEOUT_MS_MAX
    offsets_retention_ms: int = 7 * _DAY_MS
    members_per_group_max: int = limits.MEMBERS_PER_GROUP_MAX
    topics_per_member_max: int = limits.TOPICS_PER_MEMBER_MAX
    groups_max: int = limits.GROUPS_PER_COORDINATOR_MAX
    offsets_per_group_max: int = limits.OFFSETS_PER_GROUP_MAX
    default_assignor: str = DEFAULT_ASSIGNOR
    grace_ms: int = 2_000
    initial_rebalance_delay_ms: int = limits.INITIAL_REBALANCE_DELAY_MS

    def check_session_timeout(self, timeout_ms: int) -> None:
        """Raises ``InvalidRequestError`` if ``timeout_ms`` is out of range. Names the settings."""
        if not self.session_timeout_ms_min <= timeout_ms <= self.session_timeout_ms_max:
            raise InvalidRequestError(
                f"session timeout of {timeout_ms} ms is out of range. The brokers allow "
                f"{self.session_timeout_ms_min} (group.min.session.timeout.ms) to "
                f"{self.session_timeout_ms_max} ms (group.max.session.timeout.ms)"
            )


# -- consumer protocol -----------------------------------------------------------------------------
#
# Subscriptions and assignments of the classic protocol type ``consumer``: read, never written.
#
# The coordinator passes these bytes on as they are. It reads them only to describe a group, to
# protect the offsets of subscribed topics, and to compare a static member with its predecessor.
# Format: Kafka's ``ConsumerProtocolSubscription`` and ``ConsumerProtocolAssignment``, versions 0
# and later. Fields after the topics differ between versions and are not read.


CONSUMER: Final = "consumer"  # the protocol type of consumers; Connect and Streams have others
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_VERSION_BYTES: Final = _SHORT.size


def subscribed_topics(data: bytes) -> tuple[str, ...] | None:
    """Return the sorted topics of a subscription, or None if the bytes are not one."""
    try:
        topics, _ = _names(data)
    except (struct.error, UnicodeDecodeError, ValueError):
        return None
    return tuple(sorted(set(topics)))


def assigned_partitions(data: bytes) -> dict[str, tuple[int, ...]] | None:
    """Return the partitions of an assignment by topic, or None if the bytes are not one.

    Empty bytes are an empty assignment.
    """
    if not data:
        return {}
    found: dict[str, tuple[int, ...]] = {}
    try:
        count, at = _count(data, _VERSION_BYTES)
        for _ in range(count):
            topic, at = _name(data, at)
            partitions, at = _count(data, at, each_bytes=_INT.size)
            numbers = struct.unpack_from(f">{partitions}i", data, at)
            at += partitions * _INT.size
            found[topic] = tuple(sorted(numbers))
    except (struct.error, UnicodeDecodeError, ValueError):
        return None
    return found


def _names(data: bytes) -> tuple[list[str], int]:
    count, at = _count(data, _VERSION_BYTES)
    names: list[str] = []
    for _ in range(count):
        name, at = _name(data, at)
        names.append(name)
    return names, at


def _count(data: bytes, at: int, *, each_bytes: int = _SHORT.size) -> tuple[int, int]:
    """Return a count that fits the remaining bytes, and the position after it."""
    (count,) = _INT.unpack_from(data, at)
    at += _INT.size
    if not 0 <= count * each_bytes <= len(data) - at:
        raise ValueError("count exceeds the bytes")
    return count, at


def _name(data: bytes, at: int) -> tuple[str, int]:
    (length,) = _SHORT.unpack_from(data, at)
    at += _SHORT.size
    if not 0 <= length <= len(data) - at:
        raise ValueError("length exceeds the bytes")
    return data[at : at + length].decode(), at + length
