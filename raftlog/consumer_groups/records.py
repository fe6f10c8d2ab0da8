"""Records of ``__consumer_offsets``: the format in which coordinators persist groups.

    key    msgpack [kind, group, ...]     value    msgpack [version, ...]

    1  [1, group]                    epoch, topics version, empty since (ms), assignor
    2  [2, group, member]            state of a member, without its session
    3  [3, group, topic, partition]  topic id, offset, leader epoch, metadata, time (ms), topics
                                     version, member and its commit's sequence
    4  [4, group, member]            fenced member: lost instance ID and session timeout (ms)
    5  [5, group]                    classic group: generation, phase, protocol type, protocol,
                                     leader
    6  [6, group, member]            member of a classic group, without its session

Each record contains the complete state of its key. The state of a group follows from the last
record of each key, in any order, so it does not depend on what compaction has removed. The deletion
of a group writes one tombstone per key. A single tombstone for the group would not be enough: after
compaction removes it, the records of the members would be loaded again.

New fields are added at the end, with a default; older releases ignore them. A change that an older
release must not misread gets a new version or a new kind, which older releases skip. Version 2 is
that of an offset below 0, which Kafka clients commit for "latest" (-1) and "earliest" (-2).
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from raftlog.consumer_groups.values import GroupRecord, Interest
from raftlog.errors import InvalidRequestError

GROUP_KIND: Final = 1
MEMBER_KIND: Final = 2
OFFSET_KIND: Final = 3
FORMER_KIND: Final = 4
CLASSIC_KIND: Final = 5
CLASSIC_MEMBER_KIND: Final = 6
VERSION_MIN: Final = 1
VERSION: Final = 2  # the newest
OFFSET_BELOW_0: Final = 2

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
    GroupValue | MemberValue | OffsetValue | FormerValue | ClassicValue | ClassicMemberValue
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
}
_GROUP_KEY: Final = msgspec.msgpack.Decoder(tuple[int, str])
_MEMBER_KEY: Final = msgspec.msgpack.Decoder(tuple[int, str, str])
_OFFSET_KEY: Final = msgspec.msgpack.Decoder(tuple[int, str, str, int])
_KEYS: Final[dict[int, msgspec.msgpack.Decoder[Any]]] = {
    GROUP_KIND: _GROUP_KEY,
    MEMBER_KIND: _MEMBER_KEY,
    OFFSET_KIND: _OFFSET_KEY,
    FORMER_KIND: _MEMBER_KEY,
    CLASSIC_KIND: _GROUP_KEY,
    CLASSIC_MEMBER_KIND: _MEMBER_KEY,
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


Key: TypeAlias = GroupKey | MemberKey | OffsetKey | FormerKey | ClassicKey | ClassicMemberKey

_KIND_OF: Final[dict[type[Key], int]] = {
    GroupKey: GROUP_KIND,
    MemberKey: MEMBER_KIND,
    OffsetKey: OFFSET_KIND,
    FormerKey: FORMER_KIND,
    ClassicKey: CLASSIC_KIND,
    ClassicMemberKey: CLASSIC_MEMBER_KIND,
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
    if isinstance(value, OffsetValue) and value.offset < 0 and value.version < OFFSET_BELOW_0:
        raise InvalidRequestError(f"invalid value of {key}: its offset is {value.offset}")
    return value


def _head(data: bytes) -> int:
    """Return the first number of an array: the kind of a key, or the version of a value."""
    fields = _decode_any(data)
    if not (isinstance(fields, list) and fields and type(fields[0]) is int and fields[0] > 0):
        raise InvalidRequestError("group record does not begin with its kind or version")
    return fields[0]
