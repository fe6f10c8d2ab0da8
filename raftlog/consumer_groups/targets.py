"""Target assignments: select an assignor, run it, validate its result, or fall back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from raftlog.consumer_groups.assignors import UNIFORM, Assignor, MemberSpec, Spec, checked, elected
from raftlog.consumer_groups.member import Member
from raftlog.consumer_groups.settings import GroupSettings
from raftlog.consumer_groups.values import Part, Parts, Topics
from raftlog.types import TopicPartition


@dataclass(slots=True)
class World:
    """State shared by all groups of a shard. ``notes``: pending lines for the broker log."""

    settings: GroupSettings
    assignors: Mapping[str, Assignor]
    topics: Topics = field(default_factory=Topics)
    assignor_failures: int = 0
    notes: list[str] = field(default_factory=list)


def choose_targets(
    group_id: str, members: Mapping[str, Member], owner: Mapping[Part, str], world: World
) -> tuple[dict[str, Parts], str]:
    """Return the target assignment of each member, and the name of the assignor that computed it.

    If an assignor raises or returns an invalid result, ``uniform`` computes the targets. The
    failure is counted and logged.
    """
    if not members:
        return {}, ""
    spec = _spec(members, owner, world.topics)
    votes = (m.assignor if m.assignor in world.assignors else None for m in members.values())
    name = elected(votes, world.settings.default_assignor)
    assignor = world.assignors[name]
    assigned: Mapping[str, Collection[TopicPartition]]
    if assignor is UNIFORM:
        assigned = UNIFORM.assign(spec)
    else:
        try:
            assigned = checked(assignor.assign(spec), spec)
        except Exception as error:  # noqa: BLE001 - a plug-in can raise any exception
            world.assignor_failures += 1
            world.notes.append(
                f"assignor failed: group={group_id!r} assignor={name!r} "
                f"fallback={UNIFORM.name!r} error={error!r}. Correct the plug-in"
            )
            assigned, name = UNIFORM.assign(spec), UNIFORM.name
    ids = {topic: world.topics.by_name[topic].id for topic in spec.partitions}
    targets = {
        member: frozenset((ids[topic], number) for topic, number in partitions)
        for member, partitions in assigned.items()
    }
    return targets, name


def _spec(members: Mapping[str, Member], owner: Mapping[Part, str], topics: Topics) -> Spec:
    """Return the input of the assignor. A partition without a target counts for its owner."""
    owned: dict[str, set[TopicPartition]] = {name: set() for name in members}
    targeted: set[Part] = set()
    for name, member in members.items():
        targeted |= member.target
        owned[name].update(TopicPartition(topics.names[t], p) for t, p in member.target)
    for part, name in owner.items():
        if part not in targeted:
            owned[name].add(TopicPartition(topics.names[part[0]], part[1]))
    specs = {
        name: MemberSpec(
            topics=frozenset(member.topics),
            owned=frozenset(owned[name]),
            instance_id=member.instance_id,
            client_id=member.client_id,
            rack=member.rack,
        )
        for name, member in members.items()
    }
    wanted = frozenset[str]().union(*(spec.topics for spec in specs.values()))
    partitions = {
        topic: topics.by_name[topic].partition_count
        for topic in sorted(wanted)
        if topic in topics.by_name
    }
    # Read-only: a plug-in must not change the data that its result is validated against.
    return Spec(MappingProxyType(specs), MappingProxyType(partitions))
