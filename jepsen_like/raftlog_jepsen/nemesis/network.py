"""The kinds partition, one-way and slow-link (N1, N2, N3, N5): network faults between brokers.

``grudges`` defines the shapes, and the cluster's network blocks the traffic. The nemesis verifies
the result: if messages still pass, the fault is reported as not injected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from itertools import combinations, pairwise
from random import Random
from typing import Any, Final, Protocol, TypeAlias

from raftlog.testing.relays import (
    DIRECTIONS,
    Bandwidth,
    Counts,
    Direction,
    Duplicate,
    Garble,
    Late,
    Latency,
    RelayLinks,
    Reset,
    Slicer,
    SlowClose,
    Stall,
    Toxic,
)
from raftlog_jepsen.nemesis.base import Effect, Expectation, FaultPlan, OwnKinds, not_injected
from raftlog_jepsen.nemesis.process import draw_partition
from raftlog_jepsen.net import NamespaceNet, Net
from raftlog_jepsen.plan import Shape
from raftlog_jepsen.status import ClusterStatus

NETWORK_KINDS: Final[Mapping[str, str]] = {
    "partition": "A network partition between brokers, or between clients and brokers.",
    "one-way": "A network partition in one direction: messages arrive in the other direction.",
    "slow-link": "The bandwidth of a broker is limited to 64 kbit/s to 10 Mbit/s.",
}
SWIZZLE: Final = "swizzle-clog"
HOLD_S: Final = (1.0, 15.0)
SLOW_BITS_PER_S: Final = (64_000, 256_000, 1_000_000, 10_000_000)
# with less bandwidth, writes may take longer than the clients' timeouts
ENOUGH_BITS_PER_S: Final = 10_000_000
PROBES_MAX: Final = 6  # maximum number of verified pairs of each kind, all in parallel


class Cluster(Protocol):
    """Interface of the cluster."""

    @property
    def shape(self) -> Shape: ...

    @property
    def net(self) -> Net: ...

    def status(self) -> ClusterStatus: ...


class NetworkNemesis(OwnKinds):
    """Injects network faults. They can overlap: a pair is reconnected when the last fault that
    blocks it ends."""

    kinds = NETWORK_KINDS

    def __init__(self, cluster: Cluster, _ledger: object = None) -> None:
        self._cluster = cluster
        self._cuts: list[tuple[FaultPlan, Pairs]] = []
        self._slow: list[tuple[FaultPlan, int]] = []
        # each with the function that undoes it
        self._devices: list[tuple[FaultPlan, Callable[[], None]]] = []

    def _why_not(self, kind: str) -> str:
        if self._cluster.net.backend == "none":
            return "the network of this cluster cannot be changed. Use root, or relays"
        if kind != "slow-link" and len(self._cluster.shape.broker_ids) < 2:
            return "a single broker has no peers"
        return ""

    # -- drawing

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        """Draw a fault. For shapes that depend on a leader, ``args`` contains the partition, and
        the pairs are determined at the start of the fault."""
        hold_s = random.uniform(*HOLD_S)
        if kind == "slow-link":
            return _draw_slow(random, shape, hold_s)
        fixed, led = (SHAPES, LED) if kind == "partition" else (ONE_WAY, LED_ONE_WAY)
        name = random.choice([*fixed, *led, *((SWIZZLE,) if kind == "partition" else ())])
        order = shuffled(shape.broker_ids, random)
        if name == SWIZZLE:
            return _draw_swizzle(random, shape, order, hold_s)
        if name in led:
            args = {"shape": name, **draw_partition(random, shape)}
            # The expectation is the same for any leader.
            factors = {topic.name: topic.replication_factor for topic in shape.topics}
            factor = factors.get(args["topic"], max(factors.values()))
            some = led[name](order, order[0], order[:factor])
            expects = self._expects(kind, shape, some)
            return FaultPlan(kind=kind, args=args, hold_s=hold_s, expects=expects)
        # In half of the cases, clients do not reach the minority. In the other half, they can
        # receive stale responses of a broker in the minority.
        cut = fixed[name](order) or fixed["one" if kind == "partition" else "mute"](order)
        clients = random.random() < 0.5 and kind == "partition"
        if clients:
            away = sorted(set(order) - core(order, cut))
            cut |= apart([CLIENTS], away)
        args = {"shape": name, "order": order, "cut": _listed(cut), "clients": clients}
        args["device"] = random.random() < 0.5
        return FaultPlan(
            kind=kind,
            targets=_targets(shape, cut),
            args=args,
            hold_s=hold_s,
            expects=self._expects(kind, shape, cut),
        )

    def _expects(self, kind: str, shape: Shape, cut: Pairs) -> Expectation:
        """Return the expectation. With packet filters, TCP soon stalls in the other direction, too.
        A relay blocks one direction only."""
        if kind == "one-way" and self._cluster.net.backend == "relays":
            return "outage"  # other brokers can still consider the leader alive
        return expects(shape, cut)

    # -- injecting

    def begin(self, fault: FaultPlan) -> Effect:
        if fault.kind == "slow-link":
            return self._slow_down(fault)
        steps = self._steps(fault)
        if not steps:
            return not_injected(f"no leader of {fault.args['topic']} is known")
        possible = [self._possible(step) for step in steps]
        cut = frozenset[Pair]().union(*possible)
        if not cut:
            return not_injected("no pair to block, or no relay between the pairs")
        self._cuts.append((fault, cut))
        if not self._cut_by_device(fault):
            for step in possible:
                self._cluster.net.cut(step)
        seen = self._poll(cut) | {"cut": _listed(cut)}
        if skipped := frozenset[Pair]().union(*steps) - cut:
            seen["not cut"] = _listed(skipped)
        injected = not seen["passed"]
        return Effect(injected, seen, fault.targets or _targets(self._cluster.shape, cut))

    def end(self, fault: FaultPlan) -> Effect:
        if fault.kind == "slow-link":
            return self._speed_up(fault)
        cut = next((cut for begun, cut in self._cuts if begun == fault), None)
        if cut is None:
            return not_injected("it was not started")
        passed = self._poll(cut)["passed"]
        self._cuts.remove((fault, cut))
        for number, (begun, undo) in enumerate(self._devices):
            if begun == fault:
                undo()
                del self._devices[number]
                break
        free = cut - self._all_cut()
        for step in _unclogged(free, fault.args.get("back", ())):
            self._cluster.net.mend(step)
        probes = self._pass(_sample(free))
        silent = _listed(pair for pair, passes in probes.items() if not passes)
        return Effect(not passed, {"passed": passed, "still silent": silent})

    def heal(self) -> None:
        self._cuts.clear()
        self._slow.clear()
        self._devices.clear()
        self._cluster.net.heal()

    # -- network partitions

    def _steps(self, fault: FaultPlan) -> list[Pairs]:
        """Return the pairs to block, in order; empty if the leader is unknown."""
        args = fault.args
        if "clogs" in args:
            brokers = self._cluster.shape.broker_ids
            return [_clog(brokers, broker) for broker in args["clogs"]]
        if "cut" in args:
            return [frozenset((a, b) for a, b in args["cut"])]
        led = {**LED, **LED_ONE_WAY}[args["shape"]]
        for name, part in self._cluster.status().items():
            if tuple(name) == (args["topic"], args["partition"]) and part.leader is not None:
                return [led(self._cluster.shape.broker_ids, part.leader, part.isr)]
        return []

    def _possible(self, cut: Pairs) -> Pairs:
        """Return the pairs that this network can block: with relays, those that have a relay."""
        links = self._cluster.net.links
        if self._cluster.net.backend != "relays" or links is None:
            return cut
        there = {frozenset(pair) for pair in links.pairs}
        return frozenset(pair for pair in cut if frozenset(pair) in there)

    def _cut_by_device(self, fault: FaultPlan) -> bool:
        """Block with the bridge if the fault requires it and the bridge supports the shape.

        Returns whether it did.
        """
        net, args = self._cluster.net, fault.args
        if not args.get("device") or not isinstance(net, NamespaceNet):
            return False
        order = args["order"]
        if args["shape"] == "one" and args["clients"]:
            self._devices.append((fault, partial(net.plug, order[0])))
            net.unplug(order[0])
            return True
        if args["shape"] == "quorum-loss" and not args["clients"] and not self._devices:
            self._devices.append((fault, net.join))
            net.separate(order[:-1])
            return True
        return False

    def _all_cut(self) -> Pairs:
        return frozenset[Pair]().union(*(cut for _, cut in self._cuts))

    def _poll(self, cut: Pairs) -> dict[str, Any]:
        """Return a sample of blocked pairs that pass, and of free pairs that do not."""
        everybody = (CLIENTS, *self._cluster.shape.broker_ids)
        free = self._possible(apart(everybody, everybody)) - self._all_cut()
        probes = self._pass([*_sample(cut), *_sample(free)])
        return {
            "passed": _listed(pair for pair, passes in probes.items() if passes and pair in cut),
            "silent besides": _listed(
                pair for pair, passes in probes.items() if not passes and pair not in cut
            ),
        }

    def _pass(self, pairs: Sequence[Pair]) -> dict[Pair, bool]:
        net = self._cluster.net
        if not pairs:
            return {}
        with ThreadPoolExecutor(len(pairs)) as pool:
            return dict(zip(pairs, pool.map(lambda pair: net.passes(*pair), pairs), strict=True))

    # -- bandwidth

    def _slow_down(self, fault: FaultPlan) -> Effect:
        for broker in fault.targets:
            self._slow.append((fault, broker))
            self._cluster.net.slow(broker, fault.args["bits_per_s"])
        seen = {str(broker): self._cluster.net.slowed(broker) for broker in fault.targets}
        return Effect(all(seen.values()), {"cables": seen})

    def _speed_up(self, fault: FaultPlan) -> Effect:
        net = self._cluster.net
        seen = {str(broker): net.slowed(broker) for broker in fault.targets}
        for broker in fault.targets:
            if (fault, broker) in self._slow:
                self._slow.remove((fault, broker))
        still = {broker: begun.args["bits_per_s"] for begun, broker in self._slow}
        for broker in fault.targets:
            if broker in still:
                net.slow(broker, still[broker])
            else:
                net.unslow(broker)
        return Effect(any(seen.values()), {"cables": seen})


def _draw_slow(random: Random, shape: Shape, hold_s: float) -> FaultPlan:
    count = random.choice((1, max(1, shape.minority), shape.brokers))
    bits_per_s = random.choice(SLOW_BITS_PER_S)
    return FaultPlan(
        kind="slow-link",
        targets=tuple(sorted(random.sample(shape.broker_ids, count))),
        args={"bits_per_s": bits_per_s},
        hold_s=hold_s,
        expects="available" if bits_per_s >= ENOUGH_BITS_PER_S else "outage",
    )


def _draw_swizzle(random: Random, shape: Shape, order: list[int], hold_s: float) -> FaultPlan:
    """Draw FoundationDB's swizzle: brokers are isolated one by one and reconnected in another
    order."""
    clogs = order[: random.randint(1, len(order))]
    cut = frozenset[Pair]().union(*(_clog(shape.broker_ids, broker) for broker in clogs))
    return FaultPlan(
        kind="partition",
        targets=tuple(sorted(clogs)),
        args={"shape": SWIZZLE, "clogs": clogs, "back": shuffled(clogs, random)},
        hold_s=hold_s,
        expects=expects(shape, cut),
    )


def _clog(brokers: Sequence[int], broker: int) -> Pairs:
    return apart([broker], [CLIENTS, *others(brokers, [broker])])


def _unclogged(cut: Pairs, back: Sequence[int]) -> Iterable[Pairs]:
    """Yield the pairs of each step of the reconnection, in the order ``back`` of the brokers.

    A pair is reconnected with the last of its brokers; all at once without an order.
    """
    for at in range(len(back)):
        away = set(back[at + 1 :])
        step = frozenset(pair for pair in cut if away.isdisjoint(pair))
        cut -= step
        yield step
    yield cut


def _targets(shape: Shape, cut: Pairs) -> tuple[int, ...]:
    """Return the brokers that are effectively down: those outside of the connected majority; all
    brokers of blocked pairs if there is no such majority."""
    inside = core(shape.broker_ids, cut)
    involved = {broker for pair in cut for broker in pair} - {CLIENTS}
    return tuple(sorted(set(shape.broker_ids) - inside if inside else involved))


def _sample(pairs: Pairs) -> list[Pair]:
    """Return a deterministic sample, evenly distributed over the sorted pairs."""
    ordered = sorted(pairs)
    step = max(1, -(-len(ordered) // PROBES_MAX))
    return ordered[::step]


def _listed(pairs: Iterable[Pair]) -> list[list[int]]:
    return [list(pair) for pair in sorted(pairs)]


# -- links -----------------------------------------------------------------------------------------
#
# The kinds link-delay, link-stall, link-reset, link-garble and link-late (N4): faults of
# connections.
#
# Relays between brokers, and between clients and brokers, inject them (``relays``, ``toxics``).
# Their counters show the effect: a toxic on a link without traffic has no effect and counts as not
# injected.
#
# The checksums of the protocol limit the bytes that can be corrupted. Checksums cover every byte of
# record batches (CRC-32C of the leader header and of the other bytes) in produce requests, fetch
# responses and replication. Frames, their headers and Raft envelopes have no checksum: the receiver
# cannot detect a flipped bit in an offset, an acknowledgement or a command. Only the 16-bit
# checksum of TCP protects those, as in Kafka. Therefore bits flip only inside batches. Any frame
# can be duplicated: Raft envelopes and appends of idempotent producers are numbered, and an
# unexpected response closes the connection.


Pair: TypeAlias = tuple[int, int]

LINKS_KINDS: Final[Mapping[str, str]] = {
    "link-delay": "Some connections are delayed, with jitter, small slices, or slow closing.",
    "link-stall": "Some connections stay open but transfer no bytes in one or both directions.",
    "link-reset": "Some connections are reset, once or after a number of bytes each.",
    "link-garble": "Bits of record batches flip in transit, or complete frames arrive twice.",
    "link-late": "Bytes of a connection arrive after the sender has lost it and reconnected.",
}
TOXICS: Final[Mapping[str, type[Toxic]]] = {
    kind.__name__: kind
    for kind in (Latency, Bandwidth, Slicer, SlowClose, Stall, Reset, Garble, Duplicate, Late)
}
LINK_HOLD_S: Final = (1.0, 12.0)
EFFECT_TIMEOUT_S: Final = 2.5  # time limit for a toxic to have an effect
POLL_S: Final = 0.02
CLIENTS: Final = 0
IS_ONCE: Final = Reset()  # resets open connections once
SHORT_S: Final = 0.1  # maximum delay that must not interrupt writes


class LinkCluster(Protocol):
    """Interface of the cluster."""

    @property
    def net(self) -> Net: ...


Drawn: TypeAlias = tuple[list[Toxic], Expectation]


class LinksNemesis(OwnKinds):
    """Injects faults into links. A later fault on the same link replaces an earlier one and ends
    both."""

    kinds = LINKS_KINDS

    def __init__(self, cluster: LinkCluster, _ledger: object = None) -> None:
        self._cluster = cluster
        self._begun: list[tuple[FaultPlan, dict[tuple[Pair, Direction], Counts]]] = []

    def _why_not(self, _kind: str) -> str:
        return "" if self._cluster.net.links else "this cluster has no relays"

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        """Draw a fault.

        ``args``: ``pairs`` of initiator and destination, 0 for clients, and ``toxics`` with their
        class name and fields. Writes must continue if the fault delays connections by at most
        0.1 s, or loses the bytes in flight once.
        """
        pairs = _draw_pairs(random, shape)
        toxics, expects = DRAWS[kind](random)
        listed = [{"toxic": type(toxic).__name__} | asdict(toxic) for toxic in toxics]
        return FaultPlan(
            kind=kind,
            targets=tuple(sorted({broker for pair in pairs for broker in pair} - {CLIENTS})),
            args={"pairs": [list(pair) for pair in pairs], "toxics": listed},
            hold_s=random.uniform(*LINK_HOLD_S),
            expects=expects,
        )

    def begin(self, fault: FaultPlan) -> Effect:
        """Inject the fault. Returns when the effect is visible, or after 2.5 s."""
        links, pairs, toxics = self._parts(fault)
        if not pairs:
            return not_injected("no relay between these")
        self._begun.append((fault, _counts(links, pairs)))
        for pair in pairs:
            links.set(pair, *toxics)
            if IS_ONCE in toxics:
                links.clear(pair, Reset)
        deadline = time.monotonic() + EFFECT_TIMEOUT_S
        while not (effect := self._effect(fault)).injected and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return effect

    def end(self, fault: FaultPlan) -> Effect:
        """Remove the toxics, and report the effect since the start of the fault."""
        effect = self._effect(fault)
        links, pairs, toxics = self._parts(fault)
        for pair in pairs:
            for toxic in toxics:
                links.clear(pair, type(toxic), toxic.direction)
        self._begun = [(begun, counts) for begun, counts in self._begun if begun != fault]
        return effect

    def heal(self) -> None:
        self._begun.clear()
        links = self._cluster.net.links
        if links is not None:
            for pair in links.pairs:
                links.clear(pair)

    def _parts(self, fault: FaultPlan) -> tuple[RelayLinks, list[Pair], list[Toxic]]:
        links = self._cluster.net.links
        if links is None:
            raise OSError("this cluster has no relays")
        pairs = [(a, b) for a, b in fault.args["pairs"] if (a, b) in links.pairs]
        return links, pairs, [_toxic(fields) for fields in fault.args["toxics"]]

    def _effect(self, fault: FaultPlan) -> Effect:
        links, pairs, toxics = self._parts(fault)
        before = next((counts for begun, counts in self._begun if begun == fault), None)
        if before is None:
            return not_injected("it was not started")
        changes = {at: now - before[at] for at, now in _counts(links, pairs).items()}
        total = sum(changes.values(), Counts())
        seen: dict[str, Any] = {name: n for name, n in asdict(total).items() if n}
        held = 0
        if any(isinstance(toxic, Stall) for toxic in toxics):
            ways = toxics[0].direction
            held = seen["held"] = sum(
                links.held(pair, way) for pair, way in changes if ways in (way, None)
            )
        seen["hit"] = [list(pair) for pair in pairs if any(
            _shows(toxics, changes[pair, way]) for way in DIRECTIONS
        )]  # fmt: skip
        return Effect(bool(held or seen["hit"]), seen)


def _shows(toxics: Sequence[Toxic], counts: Counts) -> bool:
    """Return whether these counters show an effect of these toxics."""
    marks = {
        Latency: counts.delayed,
        Bandwidth: counts.delayed,
        Slicer: counts.delayed,
        Reset: counts.resets,
        Garble: counts.changed,
        Duplicate: counts.changed,
        Late: counts.late,
    }
    return any(marks.get(type(toxic), 0) for toxic in toxics)


def _counts(links: RelayLinks, pairs: Sequence[Pair]) -> dict[tuple[Pair, Direction], Counts]:
    return {(pair, way): links.counts(pair, way) for pair in pairs for way in DIRECTIONS}


def _toxic(fields: Mapping[str, Any]) -> Toxic:
    kind = TOXICS[fields["toxic"]]
    return kind(**{name: value for name, value in fields.items() if name != "toxic"})


# -- drawing ---------------------------------------------------------------------------------------


def _draw_pairs(random: Random, shape: Shape) -> list[Pair]:
    """Draw links of clients, or between brokers: one link, all links of one broker, or all."""
    brokers = list(shape.broker_ids)
    of_clients = len(brokers) < 2 or random.random() < 0.5
    every = [
        (dialler, target)
        for dialler in ([CLIENTS] if of_clients else brokers)
        for target in brokers
        if dialler != target
    ]
    scope = random.choice(("one", "broker", "all"))
    if scope == "one":
        return [random.choice(every)]
    if scope == "broker":
        broker = random.choice(brokers)
        return [pair for pair in every if broker in pair]
    return every


def _direction(random: Random) -> Direction | None:
    return random.choice((None, *DIRECTIONS))


def _draw_delay(random: Random) -> Drawn:
    delay_s = random.choice((0.01, 0.05, SHORT_S, 0.5, 2.0))
    direction = _direction(random)
    toxics: list[Toxic] = [
        Latency(delay_s=delay_s, jitter_s=random.choice((0.0, delay_s / 2)), direction=direction)
    ]
    is_slow = delay_s > SHORT_S
    more = random.choice(("", "", "slices", "bandwidth", "close"))
    if more == "slices":
        bytes_max = random.choice((100, 1_000))
        toxics.append(Slicer(bytes_max=bytes_max, pause_s=0.002, direction=direction))
        is_slow = True
    elif more == "bandwidth":
        rate = random.choice((20_000, 200_000))
        toxics.append(Bandwidth(bytes_per_s=rate, direction=direction))
        is_slow = True
    elif more == "close":
        toxics.append(SlowClose(delay_s=random.uniform(0.5, 5.0), direction=direction))
    return toxics, "outage" if is_slow else "available"


def _draw_stall(random: Random) -> Drawn:
    return [Stall(direction=_direction(random))], "outage"


def _draw_reset(random: Random) -> Drawn:
    after_bytes = random.choice((0, 1, 1_000, 20_000, 200_000))
    if not after_bytes:
        return [IS_ONCE], "available"
    return [Reset(after_bytes=after_bytes, direction=_direction(random))], "outage"


def _draw_garble(random: Random) -> Drawn:
    every_bytes = random.choice((500, 5_000, 50_000))
    if random.random() < 0.5:
        return [Duplicate(every_bytes=every_bytes, direction=_direction(random))], "outage"
    return [Garble(every_bytes=every_bytes)], "outage"


def _draw_late(random: Random) -> Drawn:
    return [Late(gather_s=1.0, delay_s=random.choice((0.05, 0.3, 0.8)))], "available"


DRAWS: Final[Mapping[str, Callable[[Random], Drawn]]] = {
    "link-delay": _draw_delay,
    "link-stall": _draw_stall,
    "link-reset": _draw_reset,
    "link-garble": _draw_garble,
    "link-late": _draw_late,
}


# -- grudges ---------------------------------------------------------------------------------------
#
# Grudges: the shapes of network partitions, as sets of directed pairs. Pure.
#
# After the grudges of jepsen/nemesis.clj, and the cases of partial connectivity in "Raft does not
# Guarantee Liveness in the face of Network Faults" (decentralizedthoughts, 2020-12-12) and in
# OmniPaxos (EuroSys 2023). A pair (a, b): messages from a do not arrive at b. The clients have the
# id 0.


Pairs: TypeAlias = frozenset[Pair]


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
