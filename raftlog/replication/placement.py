"""Placement of partitions: replicas, witnesses and preferred leaders.

Every broker computes the placement when it applies a command. The result therefore depends on the
arguments only, not on random numbers or on the order of a mapping or a set.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from raftlog import limits
from raftlog.replication.partition_state import BrokerId
from raftlog.security.quota import Bucket

# Constants of the hash that orders equally loaded brokers. See ``_turn``.
_MIX_ID: Final = 0x9E37_79B1
_MIX_ROUND: Final = 0x85EB_CA6B
_MIX_ALL: Final = 0xC2B2_AE35
_MASK: Final = 0xFFFF_FFFF

# (parts in this topic, parts in all topics, turn, ID), in this order; for a rack, per broker.
_Rank: TypeAlias = tuple[float, float, int, int]


class Located(Protocol):
    """A broker, as the placement uses it. Brokers without a rack ("") form one rack."""

    @property
    def id(self) -> BrokerId: ...
    @property
    def rack(self) -> str: ...


class Target(msgspec.Struct, frozen=True, array_like=True):
    """Replicas that an operator requested for a partition. ``origin``: its replicas before, which a
    cancellation restores.
    """

    replicas: tuple[BrokerId, ...]
    origin: tuple[BrokerId, ...]


class Assignment(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Voters of one partition: ``replicas`` store its records, ``witnesses`` only vote.

    The first replica is the preferred leader. ``version``: version of the partition state from
    which the voters were copied (0 after creation). ``first``: initial replicas and witnesses, if
    they were different. ``target``: of a move in progress.
    """

    replicas: tuple[BrokerId, ...]
    witnesses: tuple[BrokerId, ...] = ()
    version: int = 0
    first: tuple[tuple[BrokerId, ...], tuple[BrokerId, ...]] | None = None
    target: Target | None = None

    @property
    def voters(self) -> tuple[BrokerId, ...]:
        return (*self.replicas, *self.witnesses)


@dataclass(slots=True)
class BrokerLoad:
    """Partition counts of a broker. ``leaders``: as the preferred leader."""

    replicas: int = 0
    voters: int = 0
    leaders: int = 0


class Loads(dict[BrokerId, BrokerLoad]):
    """Load of every broker, updated with each assignment."""

    def __missing__(self, broker: BrokerId) -> BrokerLoad:
        load = self[broker] = BrokerLoad()
        return load

    def add(self, assignments: Iterable[Assignment], *, times: int = 1) -> None:
        """Add ``assignments`` to the loads. ``times=-1`` removes them."""
        for assignment in assignments:
            self[assignment.replicas[0]].leaders += times
            for broker in assignment.replicas:
                self[broker].replicas += times
            for broker in assignment.voters:
                self[broker].voters += times


class Member(Protocol):
    """A registered broker. ``draining``: it is being decommissioned."""

    @property
    def draining(self) -> bool: ...


def usual_copies(members: Iterable[Member], *, founders: int) -> int:
    """Return the replication factor of a topic without one: 3, or the number of brokers of the
    cluster if there are fewer. Brokers that are down count: a topic would otherwise keep the number
    that were live when it was created. ``founders``: of these, some may not have joined yet.
    """
    staying = sum(not member.draining for member in members)
    return min(limits.REPLICATION_FACTOR_DEFAULT, max(founders, staying))


def voters_count(replication_factor: int, brokers: int, reserves: int = 0) -> int:
    """Return the number of voters of a partition.

    ``brokers``: number of available brokers, at least the replication factor. ``reserves``: number
    of registered brokers that are unavailable.

    The result is 2n-1 for replication factor n, so that a majority remains after n-1 failures. With
    fewer brokers, it is the largest odd number of them: an even number tolerates as many failures
    as one voter fewer, and requires one more response per decision. It is even only if all brokers
    are replicas and their number is even, because every replica votes.

    An unavailable broker is included if the partition tolerates as many further failures with it as
    without it. After that broker rejoins, the partition tolerates more.
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
    """Return assignments for ``partitions`` additional partitions of a topic.

    ``existing``: current assignments of the topic. ``brokers``: available brokers, at least
    ``replication_factor``. ``reserves``: unavailable brokers, which can become witnesses if there
    are too few brokers (``voters_count``). ``load``: current load by all topics, including this
    one.

    The replicas of a partition are spread over as many racks as possible. With racks of equal size,
    the numbers of replicas and of preferred leaders of a new topic differ by at most 1 between two
    brokers; the brokers with the smallest load get the additional ones. Each topic is balanced
    separately first, so that a new, empty broker does not get all partitions of the next topic.
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
    witness_sets = [voters.deal(witnesses, existing=chosen) for chosen in replica_sets]
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
    """Return a sort key for equally loaded brokers that changes with each round.

    Otherwise the same brokers would share many partitions, and after a failure the same broker
    would become the leader of all partitions of the failed one.
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
    """Selects the brokers of partitions in turn: first the rack, then the broker in the rack.

    The counts of racks of equal size differ by at most 1, and so do the counts of the brokers of a
    rack. Therefore the counts of all brokers differ by at most 1.
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
        # A larger rack gets more. Integer division to float rounds equally on every machine.
        rack = self._rack_of[broker]
        size, first = len(rack.brokers), rack.brokers[0]
        turn = _turn(first, rack.given + rack.held)
        rack.rank = (rack.given / size, rack.held / size, turn, first)

    def note(self, brokers: Iterable[BrokerId]) -> None:
        """Count brokers that were assigned by another dealer."""
        for broker in brokers:
            self._given[broker] += 1
            self._rack_of[broker].given += 1
            self._rank_again(broker)

    def deal(self, count: int, *, existing: Sequence[BrokerId] = ()) -> list[BrokerId]:
        """Return ``count`` brokers for one partition, without its current brokers in the argument.

        Racks take turns only if the partition has no brokers yet. Otherwise the least loaded broker
        is selected: a small rack often has one free broker, which would be selected each time.
        """
        taken, dealt = set(existing), []
        used = dict.fromkeys(self._racks, 0)
        for broker in existing:
            used[self._rack_of[broker]] += 1
        for _ in range(count):
            racks = self._racks
            if len(racks) > 1:
                open_racks = [rack for rack in racks if used[rack] < len(rack.brokers)]
                fewest = min(map(used.__getitem__, open_racks))
                racks = [rack for rack in open_racks if used[rack] == fewest]
                if not existing:
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
    """Return a balanced choice of one leader per replica set. Updates ``given``."""

    def rank(broker: BrokerId) -> _Rank:
        now, before = given[broker], held[broker]
        return now, before, _turn(broker, now + before), broker

    leaders = []
    for replicas in replica_sets:
        leader = min(replicas, key=rank)
        given[leader] += 1
        leaders.append(leader)
    _balance(replica_sets, leaders, given)
    return leaders


def balanced_leaders(
    replica_sets: Sequence[Sequence[BrokerId]], leaders: Sequence[BrokerId]
) -> list[BrokerId]:
    """Return ``leaders`` with the changes that balance them over the brokers of the sets."""
    balanced = list(leaders)
    given = {broker: 0 for replicas in replica_sets for broker in replicas}
    for leader in leaders:
        given[leader] += 1
    _balance(replica_sets, balanced, given)
    return balanced


def _balance(
    replica_sets: Sequence[Sequence[BrokerId]],
    leaders: list[BrokerId],
    given: dict[BrokerId, int],
) -> None:
    while given and max(given.values()) - min(given.values()) > 1:
        handovers = _cheaper(replica_sets, leaders, given)
        if not handovers:
            break
        for partition, leader in handovers:
            given[leaders[partition]] -= 1
            given[leader] += 1
            leaders[partition] = leader


def _cheaper(
    replica_sets: Sequence[Sequence[BrokerId]],
    leaders: Sequence[BrokerId],
    given: Mapping[BrokerId, int],
) -> list[tuple[int, BrokerId]]:
    """Return leadership transfers (partition, new leader) that balance two brokers, or ``[]``.

    A cost-reducing path of Harvey, Ladner, Lovász and Tamir, "Semi-matchings for Bipartite Graphs
    and Load Balancing", Journal of Algorithms 59 (2006): from a broker, over partitions that the
    next broker could lead, to a broker that leads two fewer. Without such a path, the leaders are
    as balanced as these replica sets allow.
    """
    led: dict[BrokerId, list[int]] = {}
    for partition, leader in enumerate(leaders):
        led.setdefault(leader, []).append(partition)
    # A broker reached without success from a broker with more need not be visited from one with
    # fewer.
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
    """Return the replicas with the leader first. The second ones are balanced for each leader."""
    seconds = {leader: Counter[BrokerId]() for leader in leaders}
    ordered = []
    for replicas, leader in zip(replica_sets, leaders, strict=True):
        second = seconds[leader]
        rest = sorted((second[id_], id_) for id_ in replicas if id_ != leader)
        second.update(id_ for _, id_ in rest[:1])
        ordered.append((leader, *(id_ for _, id_ in rest)))
    return ordered


# -- rebalancing -----------------------------------------------------------------------------------
#
# Plans of replica moves: even numbers of replicas and leaders per broker, spread over racks.
#
# Every function is deterministic and moves as few replicas as it can: each move removes an
# imbalance.


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


# -- copy throttle ---------------------------------------------------------------------------------
#
# Throttle of copies: rate limit for the replicas that moves add. Sans-I/O.
#
# Kafka's replication throttle (KIP-73), with one more rule that makes it safe for commits: the
# caller delays a copy only while it ends below the high watermark of the leader's response. The
# high watermark never passes the end of an in-sync replica, so a replica that is in sync, or could
# be added to the ISR, is never delayed.
#
# Copies that wait take turns. A chunk is charged before its fetch, and the charge is corrected to
# the size of the response afterwards: a response has at least one batch, which can be larger.


CHECK_SECONDS: Final = 1.0  # maximum time until a changed rate applies to copies that wait
CHECK_SECONDS_MIN: Final = 0.001

CopyT = TypeVar("CopyT", bound=Hashable)


class CopyThrottle(Generic[CopyT]):
    """The copies of one broker. ``now`` is in seconds, monotonic.

    In ``t`` seconds they fetch at most ``rate * (t + 1)`` bytes, one chunk more, and the first
    chunk of each copy, which is not delayed. A chunk has at most ``rate`` bytes, or one batch.
    """

    def __init__(self, rate: Callable[[], int], *, chunk_bytes_max: int) -> None:
        """``rate``: bytes per second at this time; 0 for no limit. ``chunk_bytes_max``: maximum
        size of one fetch of a copy.
        """
        self._rate = rate
        self._chunk_bytes_max = chunk_bytes_max
        self._bucket: Bucket | None = None
        self._waiting: dict[CopyT, None] = {}  # in the order of their turns
        self._reserved: dict[CopyT, int] = {}  # bytes of the chunk that is being fetched

    @property
    def is_on(self) -> bool:
        return self._rate() > 0

    def bytes_max(self, copy: CopyT, *, is_first: bool = False) -> int:
        """Return the maximum size of the next fetch of a copy, in bytes. ``is_first``: no response
        has shown yet whether it is in sync.
        """
        return self._reserved.get(copy, self._chunk() if is_first else self._chunk_bytes_max)

    def wait(self, copy: CopyT, received: int, now: float) -> None:
        """Count the bytes of a response, and let the copy wait for its next turn."""
        self._use(received - self._reserved.pop(copy, 0), now)
        self._waiting[copy] = None

    def forget(self, copy: CopyT, now: float) -> None:
        """Stop throttling a copy: it has caught up, or is not copied any longer."""
        self._waiting.pop(copy, None)
        self._use(-self._reserved.pop(copy, 0), now)

    def due(self, now: float) -> tuple[list[CopyT], float | None]:
        """Return the copies that can fetch now, and the seconds until the next call; None if no
        other copy waits.
        """
        due: list[CopyT] = []
        wait_seconds = self._use(0, now)
        while self._waiting and not wait_seconds:
            copy = next(iter(self._waiting))
            del self._waiting[copy]
            due.append(copy)
            if self.is_on:
                self._reserved[copy] = self._chunk()
                wait_seconds = self._use(self._reserved[copy], now)
        seconds = min(max(wait_seconds, CHECK_SECONDS_MIN), CHECK_SECONDS)
        return due, seconds if self._waiting else None

    def _chunk(self) -> int:
        return min(self._chunk_bytes_max, self._rate() or self._chunk_bytes_max)

    def _use(self, size: int, now: float) -> float:
        """Count bytes. Returns the seconds until the next turn; 0 for now."""
        rate = self._rate()
        if not rate:
            self._bucket = None
            return 0.0
        if self._bucket is None:
            self._bucket = Bucket(rate, now)
        return self._bucket.take(size, rate, now)
