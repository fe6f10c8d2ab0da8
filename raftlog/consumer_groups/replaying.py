"""Replay of group records by a new coordinator. The result depends on each key's last record."""

from __future__ import annotations

from raftlog.consumer_groups.classic import ClassicGroup, member_of
from raftlog.consumer_groups.group import Group
from raftlog.consumer_groups.member import FormerMember, Member
from raftlog.consumer_groups.records import (
    ClassicKey,
    ClassicMemberKey,
    ClassicMemberValue,
    ClassicValue,
    FormerKey,
    FormerValue,
    GroupKey,
    GroupValue,
    Key,
    MemberKey,
    MemberValue,
    OffsetKey,
    OffsetValue,
    PartRows,
    Value,
)
from raftlog.consumer_groups.targets import World
from raftlog.consumer_groups.values import Part
from raftlog.types import TopicPartition

INHERITED = "its group.instance.id has a newer member"


def put(groups: dict[str, Group], world: World, key: Key, value: Value) -> None:
    """Apply a record with a value."""
    group = groups.get(key.group)
    if group is None:
        group = groups[key.group] = Group(key.group, world)
    match value:
        case GroupValue():
            group.epoch, group.assignor = value.epoch, value.assignor
            group.empty_since_ms = value.empty_since_ms
        case MemberValue():
            assert isinstance(key, MemberKey)
            group.members[key.member] = _member(key.member, value)
        case OffsetValue():
            assert isinstance(key, OffsetKey)
            group.offsets.put(TopicPartition(key.topic, key.partition), value)
        case FormerValue():
            assert isinstance(key, FormerKey)
            former = FormerMember(INHERITED, value.sequence, value.timeout_ms, value.instance_id)
            group.former[key.member] = former
        case ClassicValue():
            _classic(group).restore(value)
        case ClassicMemberValue():
            assert isinstance(key, ClassicMemberKey)
            _classic(group).members[key.member] = member_of(key, value)


def remove(groups: dict[str, Group], key: Key) -> None:
    """Apply a tombstone. The tombstone of a group removes its members and offsets too."""
    group = groups.get(key.group)
    match key:
        case GroupKey():
            groups.pop(key.group, None)
        case MemberKey() if group is not None:
            group.members.pop(key.member, None)
        case OffsetKey() if group is not None:
            group.offsets.remove(TopicPartition(key.topic, key.partition))
        case FormerKey() if group is not None:
            group.former.pop(key.member, None)
        case ClassicKey() if group is not None:
            group.classic = None
        case ClassicMemberKey() if group is not None and group.classic is not None:
            group.classic.members.pop(key.member, None)
        case _:
            pass


def complete(group: Group, *, now: float, now_ms: int) -> None:
    """Derive the remaining state of a replayed group, and restart its sessions and deadlines.

    ``now``: monotonic seconds. ``now_ms``: wall-clock milliseconds.
    """
    taken: dict[Part, str] = {}
    for name, member in sorted(group.members.items()):
        if member.instance_id is not None:
            group.instances[member.instance_id] = name
        until = now + member.rebalance_timeout_ms / 1_000
        # Two members own a partition only if the log is corrupt. Then the first one keeps it.
        member.assigned = frozenset(p for p in member.assigned if taken.setdefault(p, name) == name)
        member.revoking = {
            part: until for part in member.revoking if taken.setdefault(part, name) == name
        }
        # The epochs of the assignments are not stored: no partition was assigned later.
        parts = *member.assigned, *member.revoking
        group.owned_since.update(dict.fromkeys(parts, member.epoch))
        member.renew(now)
        group.heir.update(dict.fromkeys(member.target, name))
        group.epoch = max(group.epoch, member.epoch)
    group.owner = taken
    for name, former in group.former.items():
        group.former[name] = former.begun_anew(now)
    if group.classic is not None:
        group.classic.complete_replay(now=now)
    group.note_emptiness(now_ms)


def _classic(group: Group) -> ClassicGroup:
    if group.classic is None:
        group.classic = ClassicGroup(group.id, group.world.settings, group.world.notes)
    return group.classic


def _member(member_id: str, value: MemberValue) -> Member:
    return Member(
        id=member_id,
        instance_id=value.instance_id,
        client_id=value.client_id,
        host=value.host,
        rack=value.rack,
        topics=value.topics,
        assignor=value.assignor,
        session_timeout_ms=value.session_timeout_ms,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        sequence=value.sequence,
        epoch=value.epoch,
        known_epoch=value.known_epoch,
        is_away=value.is_away,
        assigned=frozenset(_parts(value.assigned)),
        revoking=dict.fromkeys(_parts(value.revoking), float("inf")),
        target=frozenset(_parts(value.target)),
        interest=value.interest,
    )


def _parts(rows: PartRows) -> list[Part]:
    return [(topic_id, number) for topic_id, numbers in rows.items() for number in numbers]
