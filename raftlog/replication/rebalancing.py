"""Plans of replica moves: even numbers of replicas and leaders per broker, spread over racks.

Every function is deterministic and moves as few replicas as it can: each move removes an imbalance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from raftlog.replication.commands import BrokerId
from raftlog.replication.placement import Located, balanced_leaders

# Rack index of a broker that must have no replicas. No other broker has it.
_NO_RACK: Final = ""


class PlacedPartition(NamedTuple):
    """One partition and its replicas, preferred leader first."""

    topic: str
    partition: int
    replicas: tuple[BrokerId, ...]


class PlannedMove(NamedTuple):
    """New replicas of one partition. ``before``: the replicas for which the plan was made."""

    topic: str
    partition: int
    before: tuple[BrokerId, ...]
    after: tuple[BrokerId, ...]


_Replicas: TypeAlias = list[BrokerId]


def rebalance(
    partitions: Sequence[PlacedPartition], brokers: Sequence[Located]
) -> list[PlannedMove]:
    """Return the moves that spread replicas and preferred leaders evenly over ``brokers``.

    Replicas leave brokers that are not in ``brokers``. Then the replicas of each partition are
    spread over as many racks as possible, then the number of replicas per broker is balanced
    without using fewer racks, then the number of preferred leaders. Each partition keeps its number
    of replicas, which must not be larger than the number of brokers.
    """
    plan = _Plan(partitions, brokers)
    plan.leave_others()
    plan.use_racks()
    plan.level()
    plan.lead()
    return plan.moves()


def change_replication_factor(
    partitions: Sequence[PlacedPartition],
    factor: int,
    brokers: Sequence[Located],
    *,
    all_partitions: Iterable[PlacedPartition] = (),
) -> list[PlannedMove]:
    """Return new replicas of each of ``partitions``, ``factor`` of them, also where they are equal.

    Added replicas use new racks and brokers with few replicas; removed ones share their rack or are
    on brokers with many. The preferred leader stays. ``all_partitions``: the load of the brokers.
    ``factor`` must be 1 or more, and not more than the number of brokers.
    """
    assert 1 <= factor <= len(brokers)
    plan = _Plan(partitions, brokers)
    known = {(each.topic, each.partition) for each in partitions}
    for other in all_partitions:
        if (other.topic, other.partition) not in known:
            plan.loads.update(other.replicas)
    for replicas in plan.replicas:
        while len(replicas) > factor:
            plan.remove(replicas)
        while len(replicas) < factor:
            plan.add(replicas)
    return [
        PlannedMove(*old, tuple(new)) for old, new in zip(partitions, plan.replicas, strict=True)
    ]


def evacuate(
    partitions: Sequence[PlacedPartition],
    leaving: Collection[BrokerId],
    brokers: Sequence[Located],
    *,
    loads: Mapping[BrokerId, int],
) -> list[PlannedMove]:
    """Return the moves that replace the brokers ``leaving``. All other replicas remain.

    ``loads``: number of replicas of each broker, in all topics. A partition that has replicas on
    all of ``brokers`` has no move.
    """
    plan = _Plan(partitions, brokers)
    plan.loads = Counter(loads)
    plan.evacuate(leaving)
    return plan.moves()


class _Plan:
    """Replicas while they are planned."""

    def __init__(self, partitions: Sequence[PlacedPartition], brokers: Sequence[Located]) -> None:
        self._partitions = partitions
        self._rack: Mapping[BrokerId, str] = {broker.id: f"/{broker.rack}" for broker in brokers}
        self._ids = sorted(self._rack)
        self.replicas: list[_Replicas] = [list(each.replicas) for each in partitions]
        self.loads = Counter(broker for replicas in self.replicas for broker in replicas)

    def moves(self) -> list[PlannedMove]:
        return [
            PlannedMove(*old, tuple(new))
            for old, new in zip(self._partitions, self.replicas, strict=True)
            if tuple(new) != old.replicas
        ]

    def _racks(self, replicas: Iterable[BrokerId]) -> Counter[str]:
        return Counter(self._rack.get(broker, _NO_RACK) for broker in replicas)

    def add(self, replicas: _Replicas) -> None:
        self._place(replicas, len(replicas), replicas)

    def remove(self, replicas: _Replicas) -> None:
        """Remove a replica, but not the first."""
        racks = self._racks(replicas)
        left = max(
            replicas[1:],
            key=lambda b: (b not in self._rack, racks[self._rack.get(b, "")], self.loads[b], b),
        )
        replicas.remove(left)
        self.loads[left] -= 1

    def _place(self, replicas: _Replicas, at: int, others: Iterable[BrokerId]) -> None:
        """Assign the best broker for a partition with ``others`` to this position."""
        racks, taken = self._racks(others), {*others}
        free = [broker for broker in self._ids if broker not in taken]
        best = min(free, key=lambda b: (racks[self._rack[b]], self.loads[b], b))
        replicas[at : at + 1] = [best]
        self.loads[best] += 1

    def leave_others(self) -> None:
        for replicas in self.replicas:
            for at, broker in enumerate(replicas):
                if broker not in self._rack:
                    self.loads[broker] -= 1
                    # The brokers that leave take no place.
                    self._place(replicas, at, [b for b in replicas if b in self._rack])

    def evacuate(self, leaving: Collection[BrokerId]) -> None:
        for replicas in self.replicas:
            for at, broker in enumerate(replicas):
                if broker in leaving and not set(self._ids) <= {*replicas}:
                    self.loads[broker] -= 1
                    # The brokers that leave take no place.
                    self._place(replicas, at, [b for b in replicas if b not in leaving])

    def use_racks(self) -> None:
        total = len(set(self._rack.values()))
        for replicas in self.replicas:
            while len(racks := self._racks(replicas)) < min(total, len(replicas)):
                shared = [b for b in replicas if racks[self._rack[b]] > 1]
                left = max(shared, key=lambda b: (self.loads[b], b))
                self.loads[left] -= 1
                self._place(replicas, replicas.index(left), replicas)

    def level(self) -> None:
        """Move replicas from a broker to one with at least two fewer, as long as one can."""
        held: dict[BrokerId, dict[int, None]] = {broker: {} for broker in self._ids}
        for number, replicas in enumerate(self.replicas):
            for broker in replicas:
                held[broker][number] = None
        while (step := self._levelling(held)) is not None:
            number, source, sink = step
            replicas = self.replicas[number]
            replicas[replicas.index(source)] = sink
            self.loads[source] -= 1
            self.loads[sink] += 1
            del held[source][number]
            held[sink][number] = None

    def _levelling(
        self, held: Mapping[BrokerId, Iterable[int]]
    ) -> tuple[int, BrokerId, BrokerId] | None:
        order = sorted(self._ids, key=lambda broker: (self.loads[broker], broker))
        for source in reversed(order):
            for sink in order:
                if self.loads[source] - self.loads[sink] < 2:
                    break
                for number in held[source]:
                    if self._fits(self.replicas[number], source, sink):
                        return number, source, sink
        return None

    def _fits(self, replicas: _Replicas, source: BrokerId, sink: BrokerId) -> bool:
        """Whether the sink can replace the source without using fewer racks."""
        if sink in replicas:
            return False
        moved = [sink if broker == source else broker for broker in replicas]
        return len(self._racks(moved)) >= len(self._racks(replicas))

    def lead(self) -> None:
        leaders = balanced_leaders(self.replicas, [replicas[0] for replicas in self.replicas])
        for replicas, leader in zip(self.replicas, leaders, strict=True):
            at = replicas.index(leader)
            replicas[0], replicas[at] = leader, replicas[0]
