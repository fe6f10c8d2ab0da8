"""Who is to have which partition: assignors, the checks of what they say, and who chooses one.

An assignor is a pure function of subscriptions and of what members have. Whoever writes one of his
own need not be careful: what it returns is checked, and a group falls back to ``uniform``.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from raftlog import limits
from raftlog.consumer_groups.uniform import spread_evenly, spread_within_subscriptions
from raftlog.types import TopicPartition


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """What an assignor may know of a member. ``owned``: what it was last meant to have."""

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    instance_id: str | None = None
    client_id: str = ""
    rack: str = ""


@dataclass(frozen=True, slots=True)
class Spec:
    """``members`` by id; ``partitions``: how many each topic has to which somebody subscribes."""

    members: Mapping[str, MemberSpec]
    partitions: Mapping[str, int]

    def order_of(self, member_id: str) -> tuple[bool, str, str]:
        """Sorts members so that one with an instance id keeps its place when it starts again.

        Those that have one come first, as in Kafka.
        """
        instance_id = self.members[member_id].instance_id
        return (instance_id is None, instance_id or "", member_id)

    def subscribers(self, topic: str) -> list[str]:
        """Members that subscribe to the topic, in order."""
        found = (name for name, member in self.members.items() if topic in member.topics)
        return sorted(found, key=self.order_of)


class Assignor(Protocol):
    """What a plug-in has to be.

    ``name`` is what consumers ask for, at most ``limits.ASSIGNOR_CHARS_MAX`` characters.
    """

    @property
    def name(self) -> str: ...

    def assign(self, spec: Spec) -> Mapping[str, Collection[TopicPartition]]:
        """The partitions of each member; a member may be left out, and so may a partition.

        No partition goes to two members, or to one that does not subscribe to its topic. Called in
        the coordinator's event loop: it has to be quick, and must not wait for anything.
        """
        ...


class UniformAssignor:
    """Even numbers of partitions, and as few moves as that takes.

    With equal subscriptions, members' numbers differ by one at most and no assignment as even
    moves fewer partitions. With different ones no chain of moves could even two members out.
    """

    name: Final = "uniform"

    def assign(self, spec: Spec) -> Mapping[str, Collection[TopicPartition]]:
        subscriptions = {
            name: member.topics.intersection(spec.partitions)
            for name, member in spec.members.items()
        }
        owned = {name: member.owned for name, member in spec.members.items()}
        order = sorted(spec.members, key=spec.order_of)
        distinct = set(subscriptions.values())
        if len(distinct) <= 1:
            return spread_evenly(order, owned, _all_of(spec.partitions, *distinct))
        return spread_within_subscriptions(order, owned, subscriptions, spec.partitions)


class RangeAssignor:
    """Each topic on its own, in runs of neighbouring partitions, as Kafka's RangeAssignor has it.

    Topics with as many partitions and the same subscribers are cut at the same places: their
    partitions of one number go to one member, so that it may join them.
    """

    name: Final = "range"

    def assign(self, spec: Spec) -> Mapping[str, Collection[TopicPartition]]:
        found: dict[str, list[TopicPartition]] = {name: [] for name in spec.members}
        for topic, count in sorted(spec.partitions.items()):
            members = spec.subscribers(topic)
            if not members:
                continue
            each, more = divmod(count, len(members))
            start = 0
            for place, name in enumerate(members):
                end = start + each + (place < more)
                found[name] += [TopicPartition(topic, number) for number in range(start, end)]
                start = end
        return found


UNIFORM: Final = UniformAssignor()
BUILT_IN: Final[Mapping[str, Assignor]] = {
    assignor.name: assignor for assignor in (UNIFORM, RangeAssignor())
}


def named(assignors: Iterable[Assignor]) -> dict[str, Assignor]:
    """The built-in assignors and these, by name.

    Raises ``ValueError`` for a name that is taken, or none.
    """
    found: dict[str, Assignor] = dict(BUILT_IN)
    for assignor in assignors:
        name = assignor.name
        if not 0 < len(name) <= limits.ASSIGNOR_CHARS_MAX:
            raise ValueError(
                f"{name!r} is no name of an assignor: use 1 to {limits.ASSIGNOR_CHARS_MAX} "
                "characters"
            )
        if name in found:
            raise ValueError(f"two assignors have the name {name!r}")
        found[name] = assignor
    return found


def elected(votes: Iterable[str | None], default: str) -> str:
    """The assignor that most members name; the default where none is named, or two tie."""
    counted = Counter(vote for vote in votes if vote is not None).most_common(2)
    if not counted or (len(counted) == 2 and counted[0][1] == counted[1][1]):
        return default
    return counted[0][0]


def checked(
    assigned: Mapping[str, Collection[TopicPartition]], spec: Spec
) -> dict[str, frozenset[TopicPartition]]:
    """What an assignor returned, of all members.

    Raises ``ValueError`` for nonsense, and ``TypeError`` for what is no number of a partition.
    """
    found: dict[str, frozenset[TopicPartition]] = dict.fromkeys(spec.members, frozenset())
    owner: dict[TopicPartition, str] = {}
    for name, partitions in assigned.items():
        member = spec.members.get(name)
        if member is None:
            raise ValueError(f"it names {name!r}, which is no member")
        own: set[TopicPartition] = set()
        for topic, index in partitions:
            number = int(operator.index(index))  # whatever stands for one: it is written down
            partition = TopicPartition(topic, number)
            if not (topic in member.topics and 0 <= number < spec.partitions.get(topic, 0)):
                raise ValueError(f"it gives {topic}:{number} to {name!r}, which cannot have it")
            if owner.setdefault(partition, name) != name:
                raise ValueError(f"it gives {topic}:{number} to {owner[partition]!r} and {name!r}")
            own.add(partition)
        found[name] = frozenset(own)
    return found


def _all_of(partitions: Mapping[str, int], topics: Collection[str] = ()) -> list[TopicPartition]:
    """In the order of their numbers, so that each member gets something of each topic."""
    return sorted(
        (TopicPartition(topic, number) for topic in topics for number in range(partitions[topic])),
        key=lambda partition: (partition.partition, partition.topic),
    )
