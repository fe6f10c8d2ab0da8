"""Grudges: the shapes of network partitions, as sets of directed pairs. Pure.

After the grudges of jepsen/nemesis.clj, and the cases of partial connectivity in "Raft does not
Guarantee Liveness in the face of Network Faults" (decentralizedthoughts, 2020-12-12) and in
OmniPaxos (EuroSys 2023). A pair (a, b): messages from a do not arrive at b. The clients have the id
0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations, pairwise
from random import Random
from typing import Final, TypeAlias

from raftlog_jepsen.nemesis.base import Expectation
from raftlog_jepsen.plan import Shape

Pair: TypeAlias = tuple[int, int]
Pairs: TypeAlias = frozenset[Pair]

CLIENTS: Final = 0


def apart(one_side: Collection[int], other_side: Collection[int]) -> Pairs:
    """Block both directions between the two sides."""
    there = deaf(one_side, other_side)
    return there | frozenset((b, a) for a, b in there)


def deaf(senders: Collection[int], receivers: Collection[int]) -> Pairs:
    """Block messages from the senders to the receivers, but not in the other direction."""
    return frozenset((a, b) for a in senders for b in receivers if a != b)


def others(brokers: Sequence[int], side: Collection[int]) -> list[int]:
    return [broker for broker in brokers if broker not in side]


# -- shapes of network partitions; ``order``: the brokers, the first ones affected first -----------


def one(order: Sequence[int]) -> Pairs:
    """One broker is isolated from all other brokers; clients reach all."""
    return apart(order[:1], order[1:])


def halves(order: Sequence[int]) -> Pairs:
    """The largest minority is isolated from the majority."""
    minority = (len(order) - 1) // 2
    return apart(order[:minority], order[minority:])


def minority_third(order: Sequence[int]) -> Pairs:
    """Less than a third of the brokers, but at least one, are isolated from the rest."""
    count = max(1, (len(order) - 1) // 3)
    return apart(order[:count], order[count:])


def splinters(order: Sequence[int]) -> Pairs:
    """All brokers are isolated from each other."""
    return apart(order, order)


def majorities_ring(order: Sequence[int]) -> Pairs:
    """Each broker reaches a majority, its neighbours in a ring, and all majorities differ.

    With an even number of brokers, or with three, some pairs are connected in one direction only.
    """
    count = len(order)
    majority = count // 2 + 1
    cut: set[Pair] = set()
    for at, centre in enumerate(order):
        first = at - majority // 2
        heard = {order[(first + step) % count] for step in range(majority)}
        cut |= deaf(others(order, heard), [centre])
    return frozenset(cut)


def bridge(order: Sequence[int]) -> Pairs:
    """Two halves are isolated from each other; one broker is connected to both."""
    half = (len(order) - 1) // 2
    return apart(order[:half], order[half:-1])


def quorum_loss(order: Sequence[int]) -> Pairs:
    """Only the last broker reaches a majority: the others reach only this broker. The leader may
    lose its majority."""
    return apart(order[:-1], order[:-1])


def constrained(order: Sequence[int]) -> Pairs:
    """The first broker is isolated. Of the others, only the last reaches a majority."""
    return one(order) | quorum_loss(order[1:])


def chained(order: Sequence[int]) -> Pairs:
    """Each broker reaches only its neighbours in a chain. A leader at one end does not reach the
    other end."""
    near = {frozenset(pair) for pair in pairwise(order)}
    return frozenset(pair for pair in apart(order, order) if frozenset(pair) not in near)


SHAPES: Final[Mapping[str, Callable[[Sequence[int]], Pairs]]] = {
    "one": one,
    "halves": halves,
    "minority-third": minority_third,
    "splinters": splinters,
    "majorities-ring": majorities_ring,
    "bridge": bridge,
    "quorum-loss": quorum_loss,
    "constrained": constrained,
    "chained": chained,
}


# -- shapes that block one direction ---------------------------------------------------------------


def mute(order: Sequence[int]) -> Pairs:
    """Messages of the first broker to all others are lost; it receives theirs."""
    return deaf(order[:1], order[1:])


def deafened(order: Sequence[int]) -> Pairs:
    """Messages to the first broker are lost; its messages arrive."""
    return deaf(order[1:], order[:1])


def mute_to_one(order: Sequence[int]) -> Pairs:
    """One broker does not receive messages of one other broker."""
    return deaf(order[:1], order[1:2])


def minority_mute(order: Sequence[int]) -> Pairs:
    """Messages of the largest minority to the majority are lost; the other direction works."""
    minority = (len(order) - 1) // 2
    return deaf(order[:minority], order[minority:])


def circle(order: Sequence[int]) -> Pairs:
    """Each broker's messages to the next broker of a ring are lost."""
    return frozenset(pair for pair in zip(order, (*order[1:], order[0]), strict=True)
                     if len(set(pair)) == 2)  # fmt: skip


ONE_WAY: Final[Mapping[str, Callable[[Sequence[int]], Pairs]]] = {
    "mute": mute,
    "deaf": deafened,
    "mute-to-one": mute_to_one,
    "minority-mute": minority_mute,
    "circle": circle,
}


# -- shapes that depend on the leader and the ISR of a partition -----------------------------------


def leader_away(brokers: Sequence[int], leader: int, _isr: Collection[int]) -> Pairs:
    """The leader of a partition is isolated from all other brokers."""
    return apart([leader], others(brokers, [leader]))


def isr_only(_brokers: Sequence[int], leader: int, isr: Collection[int]) -> Pairs:
    """The leader of a partition is isolated from its in-sync followers; all reach the other
    brokers."""
    return apart([leader], others(sorted(isr), [leader]))


def clients_away(_brokers: Sequence[int], leader: int, _isr: Collection[int]) -> Pairs:
    """Clients are isolated from the leader of a partition; all brokers reach it."""
    return apart([leader], [CLIENTS])


def leader_mute(brokers: Sequence[int], leader: int, _isr: Collection[int]) -> Pairs:
    """Messages of a partition's leader to all brokers are lost; it receives theirs."""
    return deaf([leader], others(brokers, [leader]))


def leader_deaf(brokers: Sequence[int], leader: int, _isr: Collection[int]) -> Pairs:
    """Messages of all brokers to the leader of a partition are lost; they receive its messages."""
    return deaf(others(brokers, [leader]), [leader])


def answers_lost(_brokers: Sequence[int], leader: int, _isr: Collection[int]) -> Pairs:
    """Responses of a partition's leader to clients are lost: the outcome of their appends is
    unknown."""
    return deaf([leader], [CLIENTS])


ByLeader: TypeAlias = Callable[[Sequence[int], int, Collection[int]], Pairs]
LED: Final[Mapping[str, ByLeader]] = {
    "leader": leader_away,
    "isr-only": isr_only,
    "clients": clients_away,
}
LED_ONE_WAY: Final[Mapping[str, ByLeader]] = {
    "leader-mute": leader_mute,
    "leader-deaf": leader_deaf,
    "answers-lost": answers_lost,
}


# -- expected availability -------------------------------------------------------------------------


def core(brokers: Collection[int], cut: Collection[Pair]) -> frozenset[int]:
    """Return the largest majority of brokers that are connected to each other and to clients in
    both directions; empty if there is none."""
    gone = {frozenset(pair) for pair in cut}
    near = [broker for broker in sorted(brokers) if frozenset((broker, CLIENTS)) not in gone]
    for size in range(len(near), len(brokers) // 2, -1):
        for chosen in combinations(near, size):
            if all(frozenset(pair) not in gone for pair in combinations(chosen, 2)):
                return frozenset(chosen)
    return frozenset()


def expects(shape: Shape, cut: Collection[Pair]) -> Expectation:
    """Return whether writes must continue: "outage" if there is no connected majority (``core``).

    Also "outage" if a broker outside of the majority can remain the leader because some brokers
    still receive its messages, but it does not reach the clients, or may not reach enough
    followers.
    """
    inside = core(shape.broker_ids, cut)
    if not inside:
        return "outage"
    gone = {frozenset(pair) for pair in cut}
    for outsider in set(shape.broker_ids) - inside:
        away = {other for other in shape.broker_ids if frozenset((outsider, other)) in gone}
        if inside <= away:
            continue
        if frozenset((outsider, CLIENTS)) in gone:
            return "outage"
        for topic in shape.topics:
            followers = topic.replication_factor - 1
            if followers - min(followers, len(away)) < topic.min_isr - 1:
                return "outage"
    return "available"


def shuffled(brokers: Sequence[int], random: Random) -> list[int]:
    return random.sample(brokers, len(brokers))
