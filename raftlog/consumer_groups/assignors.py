"""Assignors: target assignments of partitions to members, their validation, and the vote for one.

An assignor is a pure function of the subscriptions and the current assignment. The coordinator
validates the result of a plug-in. If it is invalid, the group uses ``uniform``.
"""

from __future__ import annotations

import operator
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from raftlog import limits
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
            # guard: an assignor assigns a partition to one member
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


# -- uniform ---------------------------------------------------------------------------------------
#
# Algorithms of the uniform assignor: balanced partition counts with few moves. Pure functions.


def spread_evenly(
    members: Sequence[str],
    owned: Mapping[str, Collection[TopicPartition]],
    partitions: Sequence[TopicPartition],
) -> dict[str, list[TopicPartition]]:
    """Assign to members with equal subscriptions: every member gets n or n + 1 partitions.

    The members that own the most partitions get n + 1, which minimizes the moves. Free partitions
    are assigned in the order of ``partitions`` to the members in their order.
    """
    if not members:
        return {}
    place = {partition: index for index, partition in enumerate(partitions)}
    kept: dict[str, list[TopicPartition]] = {}
    free = set(partitions)
    for name in members:
        mine = sorted(free.intersection(owned[name]), key=place.__getitem__)
        free.difference_update(mine)
        kept[name] = mine
    each, more = divmod(len(partitions), len(members))
    by_most = sorted(members, key=lambda name: -len(kept[name]))  # stable: ties in member order
    quota = {name: each + (index < more) for index, name in enumerate(by_most)}
    for name, mine in kept.items():
        free.update(mine[quota[name] :])
        del mine[quota[name] :]
    rest = (partition for partition in partitions if partition in free)
    for name, mine in kept.items():
        mine.extend(next(rest) for _ in range(quota[name] - len(mine)))
    return kept


def spread_within_subscriptions(
    members: Sequence[str],
    owned: Mapping[str, Collection[TopicPartition]],
    subscriptions: Mapping[str, Collection[str]],
    partitions: Mapping[str, int],
) -> dict[str, list[TopicPartition]]:
    """Assign to members with different subscriptions, as balanced as the subscriptions allow.

    Each unowned partition goes to the subscriber with the fewest partitions. Then partitions move
    along paths of members, from a member to one with at least two fewer, and each member on the
    path passes one on. This repeats until no such path exists. The result has the smallest maximum
    and the smallest sum of squares (Harvey, Ladner, Lovász, Tamir: Semi-matchings for bipartite
    graphs and load balancing, 2006).
    """
    spread = _Spread(members, subscriptions)
    for name in members:
        for topic, number in sorted(owned[name]):
            if number < partitions.get(topic, 0) and topic in subscriptions[name]:
                spread.keep(name, topic, number)
    # Topics with few subscribers first, because they have the fewest candidates.
    for topic in sorted(partitions, key=lambda name: (len(spread.subscribers.get(name, ())), name)):
        for number in range(partitions[topic]):
            spread.place(topic, number)
    spread.level()
    return {
        name: [
            TopicPartition(topic, number) for topic, numbers in has.items() for number in numbers
        ]
        for name, has in spread.has.items()
    }


class _Spread:
    """Assignment under construction: partitions and partition counts of each member."""

    def __init__(
        self, members: Sequence[str], subscriptions: Mapping[str, Collection[str]]
    ) -> None:
        self.has: dict[str, dict[str, list[int]]] = {name: {} for name in members}
        self.size = dict.fromkeys(members, 0)
        self.subscribers: dict[str, list[str]] = {}
        self._placed: set[tuple[str, int]] = set()
        for name in members:
            for topic in subscriptions[name]:
                self.subscribers.setdefault(topic, []).append(name)

    def keep(self, name: str, topic: str, number: int) -> None:
        if (topic, number) not in self._placed:
            self._add(name, topic, number)

    def place(self, topic: str, number: int) -> None:
        candidates = self.subscribers.get(topic)
        if candidates and (topic, number) not in self._placed:
            self._add(min(candidates, key=self.size.__getitem__), topic, number)

    def level(self) -> None:
        """Move partitions until no path leads from a member to one with at least two fewer.

        A member without such a path never gets one later. All members that it can reach have at
        least its count minus one, so no later path includes any of them.
        """
        waiting = set(self.size)
        while waiting:
            fullest = min(waiting, key=lambda name: (-self.size[name], name))
            path = self._path_down(fullest)
            if path is None:
                waiting.discard(fullest)
                continue
            for giver, topic, taker in path:
                # The last list item was added last, so partitions owned before do not move first.
                number = self.has[giver][topic].pop()
                self._placed.discard((topic, number))
                self.size[giver] -= 1
                self._add(taker, topic, number)

    def _add(self, name: str, topic: str, number: int) -> None:
        self._placed.add((topic, number))
        self.has[name].setdefault(topic, []).append(number)
        self.size[name] += 1

    def _path_down(self, start: str) -> list[tuple[str, str, str]] | None:
        """Return the shortest path as (giver, topic, taker) per move, last move first, or None."""
        came: dict[str, tuple[str, str]] = {}
        seen_topics: set[str] = set()
        queue = deque([start])
        while queue:
            giver = queue.popleft()
            for topic, numbers in sorted(self.has[giver].items()):
                if not numbers or topic in seen_topics:
                    continue
                seen_topics.add(topic)
                for taker in self.subscribers[topic]:
                    if taker == start or taker in came:
                        continue
                    came[taker] = (giver, topic)
                    if self.size[taker] <= self.size[start] - 2:
                        return self._steps(start, taker, came)
                    queue.append(taker)
        return None

    @staticmethod
    def _steps(
        start: str, end: str, came: Mapping[str, tuple[str, str]]
    ) -> list[tuple[str, str, str]]:
        steps = []
        while end != start:
            giver, topic = came[end]
            steps.append((giver, topic, end))
            end = giver
        return steps
