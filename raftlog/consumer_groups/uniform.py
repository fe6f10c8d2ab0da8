"""Algorithms of the uniform assignor: balanced partition counts with few moves. Pure functions."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence

from raftlog.types import TopicPartition


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
