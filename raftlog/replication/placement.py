"""Which brokers hold a partition, which only vote on it, and who leads it first.

Every broker computes this for itself when it applies a command, so it depends on nothing but its
arguments: no chance, no order of a mapping or a set.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, Protocol, TypeAlias

import msgspec

from raftlog.replication.commands import BrokerId

# Order among equals: the smaller of these mixes goes first. See ``_turn``.
_MIX_ID: Final = 0x9E37_79B1
_MIX_ROUND: Final = 0x85EB_CA6B
_MIX_ALL: Final = 0xC2B2_AE35
_MASK: Final = 0xFFFF_FFFF

# (given in this topic, held in all, turn, id), compared in this order; a rack's are per broker.
_Rank: TypeAlias = tuple[float, float, int, int]


class Located(Protocol):
    """What placement knows of a broker. Brokers without a rack ("") stand in one rack together."""

    @property
    def id(self) -> BrokerId: ...
    @property
    def rack(self) -> str: ...


class Assignment(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The voters of one partition: ``replicas`` hold its records, ``witnesses`` only vote.

    The first replica is the preferred leader. ``version`` is that of the partition's own state
    which these were taken from (0 when the partition was made). ``first`` is what the partition
    was made with, if that was not the same: replicas, then witnesses.
    """

    replicas: tuple[BrokerId, ...]
    witnesses: tuple[BrokerId, ...] = ()
    version: int = 0
    first: tuple[tuple[BrokerId, ...], tuple[BrokerId, ...]] | None = None

    @property
    def voters(self) -> tuple[BrokerId, ...]:
        return (*self.replicas, *self.witnesses)


@dataclass(slots=True)
class BrokerLoad:
    """How many partitions a broker has a part in. ``leaders`` counts preferred leaders."""

    replicas: int = 0
    voters: int = 0
    leaders: int = 0


class Loads(dict[BrokerId, BrokerLoad]):
    """The load of every broker that has one, kept up to date assignment by assignment."""

    def __missing__(self, broker: BrokerId) -> BrokerLoad:
        load = self[broker] = BrokerLoad()
        return load

    def add(self, assignments: Iterable[Assignment], *, times: int = 1) -> None:
        """Count ``assignments`` in; with ``times=-1`` out again."""
        for assignment in assignments:
            self[assignment.replicas[0]].leaders += times
            for broker in assignment.replicas:
                self[broker].replicas += times
            for broker in assignment.voters:
                self[broker].voters += times


def voters_count(replication_factor: int, brokers: int, reserves: int = 0) -> int:
    """How many vote on a partition, of ``brokers`` (at least the replication factor) that are there
    and ``reserves`` that are registered and gone.

    2n-1 for replication factor n, so that n-1 losses leave a majority; where there are fewer
    brokers, the largest odd number of them. An even number of voters stands no more losses than one
    voter fewer would, and asks for one more answer each time. It is what is left only if each
    broker is a replica and their number is even: a replica always votes.

    One that is gone is taken if the partition stands as many losses with it, from this moment on,
    as without: it stands more once that one is back.
    """
    assert 1 <= replication_factor <= brokers
    most = min(2 * replication_factor - 1, brokers + reserves)
    least = min(most, brokers)
    choices = {max(count - 1 + count % 2, replication_factor) for count in range(least, most + 1)}
    return max(choices, key=lambda count: (min(count, brokers) - count // 2, count))


def place(
    partitions: int,
    replication_factor: int,
    brokers: Sequence[Located],
    *,
    load: Mapping[BrokerId, BrokerLoad],
    existing: Sequence[Assignment] = (),
    reserves: Sequence[BrokerId] = (),
) -> list[Assignment]:
    """Assignments for ``partitions`` more partitions of a topic that has ``existing`` ones.

    ``brokers`` are those that may be given a part, at least ``replication_factor`` of them;
    ``reserves`` are gone for now, and may be witnesses where there are too few (``voters_count``).
    ``load`` is what all topics, this one too, have given them so far.

    Replicas of a partition stand in as many racks as there are. With racks of one size the replicas
    of a new topic, and its preferred leaders, differ by one at most between any two brokers; where
    it is one, those with the smallest load have the more. A topic is balanced for itself first, so
    that a broker that joins empty does not get the whole of the next topic.
    """
    assert 1 <= replication_factor <= len(brokers)
    given = Loads()
    given.add(existing)
    brokers = sorted(brokers, key=lambda broker: broker.id)
    ids = [broker.id for broker in brokers]
    replicas = _Dealer(
        brokers,
        given={id_: given[id_].replicas for id_ in ids},
        held={id_: load[id_].replicas if id_ in load else 0 for id_ in ids},
    )
    voters = _Dealer(
        brokers,
        given={id_: given[id_].voters for id_ in ids},
        held={id_: load[id_].voters if id_ in load else 0 for id_ in ids},
    )
    wanted = voters_count(replication_factor, len(brokers), len(reserves)) - replication_factor
    witnesses = min(wanted, len(brokers) - replication_factor)
    replica_sets = [replicas.deal(replication_factor) for _ in range(partitions)]
    voters.note(broker for chosen in replica_sets for broker in chosen)
    witness_sets = [voters.deal(witnesses, beside=chosen) for chosen in replica_sets]
    leaders = _leaders(
        replica_sets,
        given={id_: given[id_].leaders for id_ in ids},
        held={id_: load[id_].leaders if id_ in load else 0 for id_ in ids},
    )
    ordered = _preferred_order(replica_sets, leaders)
    absent = sorted(reserves)
    for number, chosen in enumerate(witness_sets):
        chosen += [absent[(number + k) % len(absent)] for k in range(wanted - witnesses)]
    return [Assignment(r, tuple(w)) for r, w in zip(ordered, witness_sets, strict=True)]


def _turn(broker: BrokerId, round_: int) -> int:
    """A place in the order among equals that differs from round to round.

    Else the same brokers would meet in one partition after the other, and the loss of one would
    send all that it led to the same neighbour.
    """
    mixed = (broker * _MIX_ID ^ round_ * _MIX_ROUND) & _MASK
    return (mixed ^ mixed >> 15) * _MIX_ALL & _MASK


@dataclass(slots=True, eq=False)
class _Rack:
    brokers: list[BrokerId] = field(default_factory=list)
    given: int = 0
    held: int = 0
    rank: _Rank = (0, 0, 0, 0)


class _Dealer:
    """Deals brokers out like cards: in turn, to racks first, then inside a rack.

    Racks of one size are given the same number of parts, give or take one, and so are the brokers
    of one rack. Both together keep all brokers within one of each other.
    """

    def __init__(
        self,
        brokers: Sequence[Located],
        *,
        given: dict[BrokerId, int],
        held: Mapping[BrokerId, int],
    ) -> None:
        self._given = given
        self._held = held
        by_name: dict[str, _Rack] = {}
        for broker in brokers:
            by_name.setdefault(broker.rack, _Rack()).brokers.append(broker.id)
        self._racks = [by_name[name] for name in sorted(by_name)]
        self._rack_of = {id_: rack for rack in self._racks for id_ in rack.brokers}
        self._rank: dict[BrokerId, _Rank] = {}
        for rack in self._racks:
            rack.given = sum(given[id_] for id_ in rack.brokers)
            rack.held = sum(held[id_] for id_ in rack.brokers)
            for id_ in rack.brokers:
                self._rank_again(id_)

    def _rank_again(self, broker: BrokerId) -> None:
        given, held = self._given[broker], self._held[broker]
        self._rank[broker] = (given, held, _turn(broker, given + held), broker)
        if len(self._racks) == 1:
            return
        # A larger rack takes more. Division of two integers rounds alike on every machine.
        rack = self._rack_of[broker]
        size, first = len(rack.brokers), rack.brokers[0]
        turn = _turn(first, rack.given + rack.held)
        rack.rank = (rack.given / size, rack.held / size, turn, first)

    def note(self, brokers: Iterable[BrokerId]) -> None:
        """These were given a part by someone else."""
        for broker in brokers:
            self._given[broker] += 1
            self._rack_of[broker].given += 1
            self._rank_again(broker)

    def deal(self, count: int, *, beside: Sequence[BrokerId] = ()) -> list[BrokerId]:
        """``count`` brokers for one partition, none of them ``beside``: those have a part in it.

        Racks take turns only where nobody is beside. Else the least loaded broker goes first: of a
        small rack there is often one left, and it would be taken each time.
        """
        taken, dealt = set(beside), []
        used = dict.fromkeys(self._racks, 0)
        for broker in beside:
            used[self._rack_of[broker]] += 1
        for _ in range(count):
            racks = self._racks
            if len(racks) > 1:
                open_racks = [rack for rack in racks if used[rack] < len(rack.brokers)]
                fewest = min(map(used.__getitem__, open_racks))
                racks = [rack for rack in open_racks if used[rack] == fewest]
                if not beside:
                    racks = [min(racks, key=attrgetter("rank"))]
            free = [id_ for rack in racks for id_ in rack.brokers if id_ not in taken]
            broker = min(free, key=self._rank.__getitem__)
            used[self._rack_of[broker]] += 1
            taken.add(broker)
            dealt.append(broker)
            self.note((broker,))
        return dealt


def _leaders(
    replica_sets: Sequence[Sequence[BrokerId]],
    *,
    given: dict[BrokerId, int],
    held: Mapping[BrokerId, int],
) -> list[BrokerId]:
    """One of each set, so that no broker leads more than it must; ``given`` is counted on."""

    def rank(broker: BrokerId) -> _Rank:
        now, before = given[broker], held[broker]
        return now, before, _turn(broker, now + before), broker

    leaders = []
    for replicas in replica_sets:
        leader = min(replicas, key=rank)
        given[leader] += 1
        leaders.append(leader)
    while max(given.values()) - min(given.values()) > 1:
        handovers = _cheaper(replica_sets, leaders, given)
        if not handovers:
            break
        for partition, leader in handovers:
            given[leaders[partition]] -= 1
            given[leader] += 1
            leaders[partition] = leader
    return leaders


def _cheaper(
    replica_sets: Sequence[Sequence[BrokerId]],
    leaders: Sequence[BrokerId],
    given: Mapping[BrokerId, int],
) -> list[tuple[int, BrokerId]]:
    """Handovers, each a partition and its new leader, that even out two brokers; none if none do.

    A cost-reducing path of Harvey, Ladner, Lovász and Tamir, "Semi-matchings for Bipartite Graphs
    and Load Balancing", Journal of Algorithms 59 (2006): from a broker over partitions that each
    next one could lead, to a broker that leads two fewer. Without such paths leaders are as even as
    these replica sets let them be.
    """
    led: dict[BrokerId, list[int]] = {}
    for partition, leader in enumerate(leaders):
        led.setdefault(leader, []).append(partition)
    # What was reached in vain from a broker with more is in vain for one with fewer.
    came: dict[BrokerId, tuple[BrokerId, int] | None] = {}
    for start in sorted(led, key=lambda id_: (-given[id_], id_)):
        if start in came:
            continue
        came[start] = None
        queue = deque([start])
        while queue:
            at = queue.popleft()
            for partition in led.get(at, ()):
                for broker in replica_sets[partition]:
                    if broker in came:
                        continue
                    came[broker] = at, partition
                    if given[broker] <= given[start] - 2:
                        return _path_to(broker, came)
                    queue.append(broker)
    return []


def _path_to(
    broker: BrokerId, came: Mapping[BrokerId, tuple[BrokerId, int] | None]
) -> list[tuple[int, BrokerId]]:
    path = []
    while (step := came[broker]) is not None:
        before, partition = step
        path.append((partition, broker))
        broker = before
    return path


def _preferred_order(
    replica_sets: Sequence[Sequence[BrokerId]], leaders: Sequence[BrokerId]
) -> list[tuple[BrokerId, ...]]:
    """The leader first, then whoever is next to lead; those take turns for each leader."""
    seconds = {leader: Counter[BrokerId]() for leader in leaders}
    ordered = []
    for replicas, leader in zip(replica_sets, leaders, strict=True):
        second = seconds[leader]
        rest = sorted((second[id_], id_) for id_ in replicas if id_ != leader)
        second.update(id_ for _, id_ in rest[:1])
        ordered.append((leader, *(id_ for _, id_ in rest)))
    return ordered
