"""The kinds partition, one-way and slow-link (N1, N2, N3, N5): network faults between brokers.

``grudges`` defines the shapes, and the cluster's network blocks the traffic. The nemesis verifies
the result: if messages still pass, the fault is reported as not injected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any, Final, Protocol

from raftlog_jepsen.nemesis import grudges
from raftlog_jepsen.nemesis.base import Effect, Expectation, FaultPlan, OwnKinds, not_injected
from raftlog_jepsen.nemesis.grudges import LED, LED_ONE_WAY, ONE_WAY, SHAPES, Pair, Pairs
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
        order = grudges.shuffled(shape.broker_ids, random)
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
            away = sorted(set(order) - grudges.core(order, cut))
            cut |= grudges.apart([grudges.CLIENTS], away)
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
        return grudges.expects(shape, cut)

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
        everybody = (grudges.CLIENTS, *self._cluster.shape.broker_ids)
        free = self._possible(grudges.apart(everybody, everybody)) - self._all_cut()
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
        args={"shape": SWIZZLE, "clogs": clogs, "back": grudges.shuffled(clogs, random)},
        hold_s=hold_s,
        expects=grudges.expects(shape, cut),
    )


def _clog(brokers: Sequence[int], broker: int) -> Pairs:
    return grudges.apart([broker], [grudges.CLIENTS, *grudges.others(brokers, [broker])])


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
    inside = grudges.core(shape.broker_ids, cut)
    involved = {broker for pair in cut for broker in pair} - {grudges.CLIENTS}
    return tuple(sorted(set(shape.broker_ids) - inside if inside else involved))


def _sample(pairs: Pairs) -> list[Pair]:
    """Return a deterministic sample, evenly distributed over the sorted pairs."""
    ordered = sorted(pairs)
    step = max(1, -(-len(ordered) // PROBES_MAX))
    return ordered[::step]


def _listed(pairs: Iterable[Pair]) -> list[list[int]]:
    return [list(pair) for pair in sorted(pairs)]
