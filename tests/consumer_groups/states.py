"""What of a shard is in its log, to be compared; and a log as compaction leaves it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

from raftlog.consumer_groups import BUILT_IN, GroupRecord, GroupSettings, GroupShard
from raftlog.consumer_groups.classic import ClassicGroup
from raftlog.consumer_groups.group import Group


def groups_of(shard: GroupShard) -> dict[str, Group]:
    return shard._groups


def written(shard: GroupShard) -> dict[str, Any]:
    """All that a new coordinator has to come to by the log alone."""
    return {
        name: {
            "group": (group.epoch, group.assignor, group.empty_since_ms),
            "members": {
                member.id: (
                    *(member.epoch, member.instance_id, member.client_id, member.rack),
                    *(member.topics, member.assignor, member.is_away),
                    *(member.session_timeout_ms, member.rebalance_timeout_ms),
                    *(member.assigned, frozenset(member.revoking), member.target),
                )
                for member in group.members.values()
            },
            "classic": written_classic(group),
            "offsets": dict(group.offsets),
            "pending": {key: group.pending.value(*key) for key in group.pending},
            "former": {
                name: (former.instance_id, former.timeout_ms, former.sequence)
                for name, former in group.former.items()
                if former.instance_id is not None
            },
        }
        for name, group in groups_of(shard).items()
    }


def written_classic(group: Group) -> Any:
    """The generation and its members. A member that joins is written with the generation."""
    classic = group.classic
    if classic is None:
        return None
    members = {
        member.id: (member.instance_id, member.assignment)
        for member in classic.members.values()
        if member.is_written
    }
    protocols = {
        member.id: member.protocols
        for member in classic.members.values()
        if classic.phase != "preparing_rebalance"
    }
    return classic.generation, classic.phase, classic.protocol, members, protocols


def check_classic(group: ClassicGroup) -> None:
    """What has to hold in every state of a classic group."""
    members = group.members.values()
    assert bool(members) == (group.phase != "empty")
    assert group.instances == {m.instance_id: m.id for m in members if m.instance_id}
    assert not any(m.is_joining for m in members) or group.phase == "preparing_rebalance"
    assert not any(m.is_syncing for m in members) or group.phase == "completing_rebalance"
    assert not any(m.is_joining and m.is_syncing for m in members)
    assert not group.pending.keys() & group.members.keys()
    if group.phase in ("completing_rebalance", "stable"):
        assert group.leader in group.members
        assert all(m.is_written and not m.is_changed for m in members)
        assert all(group.protocol in dict(m.protocols) for m in members)
    if group.phase in ("preparing_rebalance", "completing_rebalance"):
        assert group.phase_ends < math.inf, "a rebalance always ends"
    assert group.due >= group.timer, "the shard checks in time"


def replayed(
    records: Sequence[GroupRecord], settings: GroupSettings, assignors: Any = BUILT_IN
) -> GroupShard:
    """A shard that has read the records, and has not started."""
    shard = GroupShard(settings, assignors)
    for record in records:
        shard.replay(record.key, record.value)
    return shard


def compacted(records: Sequence[GroupRecord], random: Random) -> list[GroupRecord]:
    """The log, of which some beginning was compacted: only the last record of each key is left.

    And of its tombstones, those up to a point are gone too: an earlier pass has cleaned them.
    """
    end = random.randint(0, len(records))
    forgotten = random.randint(0, end)
    last = {record.key: index for index, record in enumerate(records[:end])}
    head = [
        record
        for index, record in enumerate(records[:end])
        if last[record.key] == index and not (record.value is None and index < forgotten)
    ]
    return [*head, *records[end:]]


def check_invariants(shard: GroupShard) -> None:
    """What has to hold in every state."""
    topics = shard._world.topics
    for group in groups_of(shard).values():
        owner = {}
        for member in group.members.values():
            assert member.assigned <= member.target
            assert not member.assigned.intersection(member.revoking)
            assert 1 <= member.known_epoch <= member.epoch <= group.epoch
            assert not (member.is_away and member.revoking)
            for part in (*member.assigned, *member.revoking):
                assert owner.setdefault(part, member.id) == member.id
                assert topics.has(part)
        assert group.owner == owner
        assert group.owned_since.keys() == owner.keys()
        for part, name in owner.items():
            assert group.owned_since[part] <= group.members[name].epoch
        assert group.heir == {p: m.id for m in group.members.values() for p in m.target}
        instances = {m.instance_id: m.id for m in group.members.values() if m.instance_id}
        assert group.instances == instances
        assert (group.empty_since_ms is None) == bool(group.member_count)
        assert group.classic is None or not group.members
        if group.classic is not None:
            check_classic(group.classic)
        assert not group.members.keys() & group.former.keys()
        # What is free and wanted is with its heir, unless that has something to give up first.
        for part, name in group.heir.items():
            assert part in owner or group.members[name].revoking
