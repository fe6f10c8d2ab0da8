"""Assignors: target assignments of partitions to members, their validation, and the vote for one.

An assignor is a pure function of the subscriptions and the current assignment. The coordinator
validates the result of a plug-in. If it is invalid, the group uses ``uniform``.
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
    """A member as an assignor sees it. ``owned``: its last target assignment."""

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    instance_id: str | None = None
    client_id: str = ""
    rack: str = ""


@dataclass(frozen=True, slots=True)
class Spec:
    """Input of an assignor.

    ``members``: by member ID. ``partitions``: partition count of each topic that at least one
    member subscribes to.
    """

    members: Mapping[str, MemberSpec]
    partitions: Mapping[str, int]

    def order_of(self, member_id: str) -> tuple[bool, str, str]:
        """Return the sort key of a member. A static member keeps its position after a restart.

        Static members come first, as in Kafka.
        """
        instance_id = self.members[member_id].instance_id
        return (instance_id is None, instance_id or "", member_id)

    def subscribers(self, topic: str) -> list[str]:
        """Return the members that subscribe to the topic, sorted by ``order_of``."""
        found = (name for name, member in self.members.items() if topic in member.topics)
        return sorted(found, key=self.order_of)


class Assignor(Protocol):
    """Interface of an assignor plug-in.

    ``name``: value of the consumer setting, 1 to ``limits.ASSIGNOR_CHARS_MAX`` characters.
    """

    @property
    def name(self) -> str: ...

    def assign(self, spec: Spec) -> Mapping[str, Collection[TopicPartition]]:
        """Return the partitions of each member. Members and partitions can be omitted.

        The result must not assign a partition to two members, or to a member that does not
        subscribe to its topic. The coordinator calls this method in its event loop, so it must be
        fast and must not block.
        """
        ...


class UniformAssignor:
    """Sticky assignor: equal numbers of partitions, with the minimum number of moves.

    With equal subscriptions, the partition counts of members differ by at most 1, and no equally
    balanced assignment moves fewer partitions. With different subscriptions, no chain of moves can
    improve the balance of two members.
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
    """Contiguous ranges of partitions per topic, as Kafka's RangeAssignor.

    Topics with the same partition count and the same subscribers are divided in the same way. The
    partitions with the same number go to one member, which can then join these topics.
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
    """Return the built-in assignors and ``assignors``, by name.

    Raises ``ValueError`` if a name is used twice, is empty, or is longer than
    ``limits.ASSIGNOR_CHARS_MAX`` characters.
    """
    found: dict[str, Assignor] = dict(BUILT_IN)
    for assignor in assignors:
        name = assignor.name
        if not 0 < len(name) <= limits.ASSIGNOR_CHARS_MAX:
            raise ValueError(
                f"invalid assignor name {name!r}. Use 1 to {limits.ASSIGNOR_CHARS_MAX} characters"
            )
        if name in found:
            raise ValueError(f"two assignors have the name {name!r}. Rename one of them")
        found[name] = assignor
    return found


def elected(votes: Iterable[str | None], default: str) -> str:
    """Return the assignor with the most votes. Without votes, or with a tie: ``default``."""
    counted = Counter(vote for vote in votes if vote is not None).most_common(2)
    if not counted or (len(counted) == 2 and counted[0][1] == counted[1][1]):
        return default
    return counted[0][0]


def checked(
    assigned: Mapping[str, Collection[TopicPartition]], spec: Spec
) -> dict[str, frozenset[TopicPartition]]:
    """Validate the result of an assignor, and add an empty entry for each omitted member.

    Raises ``ValueError`` if the result names an unknown member, or assigns a partition to two
    members, or to a member that does not subscribe to it. Raises ``TypeError`` if a partition
    number is not an integer.
    """
    found: dict[str, frozenset[TopicPartition]] = dict.fromkeys(spec.members, frozenset())
    owner: dict[TopicPartition, str] = {}
    for name, partitions in assigned.items():
        member = spec.members.get(name)
        if member is None:
            raise ValueError(f"the assignment contains {name!r}, which is not a member")
        own: set[TopicPartition] = set()
        for topic, index in partitions:
            number = int(operator.index(index))  # a plain int, as the log record requires
            partition = TopicPartition(topic, number)
            if not (topic in member.topics and 0 <= number < spec.partitions.get(topic, 0)):
                raise ValueError(
                    f"{topic}:{number} is assigned to {name!r}: the member does not subscribe to "
                    "the topic, or the partition does not exist"
                )
            if owner.setdefault(partition, name) != name:
                raise ValueError(
                    f"{topic}:{number} is assigned to both {owner[partition]!r} and {name!r}"
                )
            own.add(partition)
        found[name] = frozenset(own)
    return found


def _all_of(partitions: Mapping[str, int], topics: Collection[str] = ()) -> list[TopicPartition]:
    """Return all partitions, sorted by number, so that each member gets some of each topic."""
    counts = sorted((topic, partitions[topic]) for topic in topics)
    return [
        TopicPartition(topic, number)
        for number in range(max((count for _, count in counts), default=0))
        for topic, count in counts
        if number < count
    ]
