"""Netsplits and slow cables: drawn, begun, looked at, and undone, one over another."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.config.address import Address
from raftlog.protocol.connection import FRAME, LENGTH_MIN, MAGIC
from raftlog.testing.cluster import wait_until
from raftlog.testing.relays import BACKWARD, Hold, RelayLinks
from raftlog.types import LeaderEpoch, TopicPartition
from raftlog_jepsen.control.namespaces import CONTROL, Namespaces
from raftlog_jepsen.nemesis import network
from raftlog_jepsen.nemesis.base import FaultPlan
from raftlog_jepsen.nemesis.network import (
    CLIENTS,
    DRAWS,
    LED,
    LED_ONE_WAY,
    LINKS_KINDS,
    NETWORK_KINDS,
    ONE_WAY,
    SHAPES,
    SWIZZLE,
    LinksNemesis,
    NetworkNemesis,
    Pair,
    Pairs,
)
from raftlog_jepsen.net import Backend, NamespaceNet, Net, NoNet, RelayNet
from raftlog_jepsen.plan import Shape, TopicShape
from raftlog_jepsen.status import ClusterStatus, PartitionStatus
from tests.jepsen_like.places import in_its_own_network

THREE = Shape(
    brokers=3, topics=(TopicShape(name="t", partitions=2, replication_factor=3, min_isr=2),)
)
NETWORK_DRAWS = 200


class FakeNet:
    """Does what it is told, but for what leaks."""

    def __init__(self, backend: Backend = "namespaces", leaks: Collection[Pair] = ()) -> None:
        self.backend: Backend = backend
        self.links: RelayLinks | None = None
        self.leaks = leaks
        self.gone: set[Pair] = set()
        self.rates: dict[int, int] = {}
        self.steps: list[tuple[str, frozenset[Pair]]] = []
        self.slows = True

    def cut(self, pairs: Collection[Pair]) -> None:
        self.steps.append(("cut", frozenset(pairs)))
        self.gone |= set(pairs)

    def mend(self, pairs: Collection[Pair]) -> None:
        self.steps.append(("mend", frozenset(pairs)))
        self.gone -= set(pairs)

    def heal(self) -> None:
        self.gone.clear()
        self.rates.clear()

    def reaches(self, a: int, b: int) -> bool:
        return self.passes(a, b) and self.passes(b, a)

    def passes(self, a: int, b: int) -> bool:
        return (a, b) not in self.gone or (a, b) in self.leaks

    def slow(self, broker: int, bits_per_s: int) -> None:
        self.rates[broker] = bits_per_s

    def slowed(self, broker: int) -> dict[str, int]:
        return {"overlimits": 1} if broker in self.rates and self.slows else {}

    def unslow(self, broker: int) -> None:
        del self.rates[broker]


@dataclass
class FakeCluster:
    net: Net
    shape: Shape = THREE
    leader: int | None = 2
    isr: frozenset[int] = field(default=frozenset((1, 2)))

    def status(self) -> ClusterStatus:
        part = PartitionStatus(
            topic="t",
            partition=1,
            leader=self.leader,
            leader_epoch=LeaderEpoch(4),
            replicas=(1, 2, 3),
            isr=self.isr,
        )
        return {TopicPartition("t", 1): part}


def draws(kind: str, shape: Shape = THREE, net: Net | None = None) -> list[FaultPlan]:
    nemesis = NetworkNemesis(FakeCluster(net or FakeNet(), shape))
    random = Random(7)
    return [nemesis.draw(kind, random, shape) for _ in range(NETWORK_DRAWS)]


def fault(*cut: Pair, **args: object) -> FaultPlan:
    return FaultPlan(kind="partition", args={"cut": [list(pair) for pair in cut], **args})


@pytest.mark.parametrize("kind", NETWORK_KINDS)
@pytest.mark.parametrize("brokers", [2, 3, 5, 9])
def test_what_is_drawn_can_be_done(kind: str, brokers: int) -> None:
    shape = Shape(brokers=brokers, topics=THREE.topics)
    net = FakeNet()
    nemesis = NetworkNemesis(FakeCluster(net, shape, isr=frozenset(range(1, brokers + 1))))
    random = Random(brokers)
    for _ in range(30):
        plan = nemesis.draw(kind, random, shape)
        if plan.args.get("partition") == 0:
            continue  # the fake cluster has the other one only
        effect = nemesis.begin(plan)
        assert effect.injected, (plan, effect)
        assert effect.targets or plan.targets
        assert net.gone or net.rates
        assert nemesis.end(plan).injected
        assert not net.gone
        assert not net.rates


@pytest.mark.parametrize("kind", NETWORK_KINDS)
def test_the_same_chance_draws_the_same(kind: str) -> None:
    assert draws(kind) == draws(kind)


def test_every_shape_is_drawn() -> None:
    named = {plan.args["shape"] for plan in draws("partition")}
    assert named == {*network.SHAPES, *network.LED, SWIZZLE}
    named = {plan.args["shape"] for plan in draws("one-way")}
    assert named == {*network.ONE_WAY, *network.LED_ONE_WAY}


def test_what_is_expected_goes_with_what_is_cut() -> None:
    for plan in draws("partition"):
        if "cut" in plan.args:
            cut = frozenset((a, b) for a, b in plan.args["cut"])
            inside = network.core(THREE.broker_ids, cut)
            assert inside or plan.expects == "outage"
            assert not inside & set(plan.targets)
    seen = {plan.args["shape"]: plan.expects for plan in draws("partition")}
    assert seen["leader"] == "available"
    assert seen["clients"] == "outage"


def test_a_relay_of_one_direction_promises_nothing() -> None:
    assert {plan.expects for plan in draws("one-way")} == {"available", "outage"}
    assert {plan.expects for plan in draws("one-way", net=FakeNet("relays"))} == {"outage"}


def test_the_leader_is_who_leads_when_it_begins() -> None:
    net = FakeNet()
    nemesis = NetworkNemesis(FakeCluster(net))
    plan = FaultPlan(kind="partition", args={"shape": "leader", "topic": "t", "partition": 1})
    effect = nemesis.begin(plan)
    assert effect.injected
    assert effect.targets == (2,)
    assert net.gone == network.apart([2], [1, 3])
    nemesis.end(plan)
    isr = FaultPlan(kind="partition", args={"shape": "isr-only", "topic": "t", "partition": 1})
    nemesis.begin(isr)
    assert net.gone == {(1, 2), (2, 1)}


@pytest.mark.parametrize("leader", [None, 2])
def test_without_a_leader_nothing_is_cut(leader: int | None) -> None:
    net = FakeNet()
    nemesis = NetworkNemesis(FakeCluster(net, leader=leader, isr=frozenset((2,))))
    plan = FaultPlan(kind="partition", args={"shape": "isr-only", "topic": "t", "partition": 1})
    assert not nemesis.begin(plan).injected
    assert not nemesis.end(plan).injected
    assert not net.gone


def test_a_cut_that_leaks_is_no_fault() -> None:
    nemesis = NetworkNemesis(FakeCluster(FakeNet(leaks=[(1, 2)])))
    plan = fault((1, 2), (2, 1))
    effect = nemesis.begin(plan)
    assert not effect.injected
    assert effect.seen["passed"] == [[1, 2]]
    assert not nemesis.end(plan).injected


def test_what_is_silent_besides_is_told() -> None:
    net = FakeNet()
    net.gone = {(a, b) for a in range(4) for b in range(4)}
    effect = NetworkNemesis(FakeCluster(net)).begin(fault((1, 2)))
    assert effect.injected
    assert effect.seen["silent besides"]


def test_faults_overlap() -> None:
    net = FakeNet()
    nemesis = NetworkNemesis(FakeCluster(net))
    one, other = fault((1, 2), (2, 1)), fault((2, 1), (1, 3))
    nemesis.begin(one)
    nemesis.begin(other)
    nemesis.end(one)
    assert net.gone == {(2, 1), (1, 3)}
    nemesis.end(other)
    assert not net.gone
    assert not nemesis.end(other).injected, "it has ended already"


def test_swizzle_clog_goes_step_by_step() -> None:
    net = FakeNet()
    nemesis = NetworkNemesis(FakeCluster(net))
    plan = FaultPlan(kind="partition", args={"clogs": [3, 1], "back": [1, 3]}, targets=(1, 3))
    assert nemesis.begin(plan).injected
    three, one = network.apart([3], [CLIENTS, 1, 2]), network.apart([1], [CLIENTS, 2, 3])
    assert net.steps == [("cut", three), ("cut", one)]
    net.steps.clear()
    assert nemesis.end(plan).injected
    assert net.steps[:2] == [("mend", one - three), ("mend", three)]
    assert not net.gone


def test_healing_is_of_everything() -> None:
    net = FakeNet()
    nemesis = NetworkNemesis(FakeCluster(net))
    slow = FaultPlan(kind="slow-link", targets=(1,), args={"bits_per_s": 64_000})
    nemesis.begin(fault((1, 2)))
    nemesis.begin(slow)
    nemesis.heal()
    nemesis.heal()
    assert not net.gone
    assert not net.rates
    assert not nemesis.end(fault((1, 2))).injected


def test_slow_cables_overlap() -> None:
    net = FakeNet()
    nemesis = NetworkNemesis(FakeCluster(net))
    one = FaultPlan(kind="slow-link", targets=(1, 2), args={"bits_per_s": 64_000})
    other = FaultPlan(kind="slow-link", targets=(2, 3), args={"bits_per_s": 256_000})
    assert nemesis.begin(one).injected
    assert nemesis.begin(other).injected
    assert net.rates == {1: 64_000, 2: 256_000, 3: 256_000}
    assert nemesis.end(other).injected
    assert net.rates == {1: 64_000, 2: 64_000}
    assert nemesis.end(one).injected
    assert not net.rates


def test_a_cable_that_stays_fast_is_no_fault() -> None:
    net = FakeNet()
    net.slows = False
    nemesis = NetworkNemesis(FakeCluster(net))
    plan = FaultPlan(kind="slow-link", targets=(1,), args={"bits_per_s": 64_000})
    assert not nemesis.begin(plan).injected
    assert not nemesis.end(plan).injected


def test_why_not() -> None:
    alone = Shape(brokers=1, topics=THREE.topics)
    assert NetworkNemesis(FakeCluster(FakeNet())).why_not("partition") == ""
    assert "root" in NetworkNemesis(FakeCluster(NoNet({}))).why_not("slow-link")
    assert "no peers" in NetworkNemesis(FakeCluster(FakeNet(), alone)).why_not("one-way")
    assert NetworkNemesis(FakeCluster(FakeNet(), alone)).why_not("slow-link") == ""
    assert "not a kind of this nemesis" in NetworkNemesis(FakeCluster(FakeNet())).why_not("kill")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("shape", "clients", "command", "sign"),
    [
        ("one", True, ("ip", "link", "show", "v3"), "state DOWN"),
        ("quorum-loss", False, ("bridge", "-details", "link", "show", "dev", "v3"), "isolated on"),
    ],
)
@in_its_own_network
def test_cables_and_bridges_cut_the_same(
    shape: str, clients: bool, command: tuple[str, ...], sign: str
) -> None:
    with Namespaces(3) as spaces:
        net = NamespaceNet(spaces, {})
        nemesis = NetworkNemesis(FakeCluster(net))
        order = [3, 1, 2]
        cut = network.SHAPES[shape](order) | (
            network.apart([CLIENTS], [3]) if clients else frozenset()
        )
        plan = fault(*sorted(cut), shape=shape, order=order, clients=clients, device=True)
        effect = nemesis.begin(plan)
        assert effect.injected
        assert effect.seen["silent besides"] == []
        assert sign in spaces.run(CONTROL, *command)
        effect = nemesis.end(plan)
        assert effect.injected
        assert effect.seen["still silent"] == []
        assert sign not in spaces.run(CONTROL, *command)


# -- grudges ---------------------------------------------------------------------------------------
#
# Shapes of netsplits are what their names say, and promise what the rest can keep.


orders = st.integers(2, 9).flatmap(lambda count: st.permutations(range(1, count + 1)))
FIVE = (3, 1, 5, 2, 4)


def shape(brokers: int, copies: int = 3, min_isr: int = 2) -> Shape:
    copies = min(copies, brokers)
    topic = TopicShape(
        name="t", partitions=1, replication_factor=copies, min_isr=min(min_isr, copies)
    )
    return Shape(brokers=brokers, topics=(topic,))


def reached(order: Sequence[int], cut: Pairs, broker: int) -> set[int]:
    """Whom a broker reaches both ways, itself among them."""
    gone = {frozenset(pair) for pair in cut}
    return {other for other in order if frozenset((broker, other)) not in gone}


def heard(order: Sequence[int], cut: Pairs, broker: int) -> frozenset[int]:
    return frozenset(other for other in order if (other, broker) not in cut)


def symmetric(cut: Pairs) -> bool:
    return cut == {(b, a) for a, b in cut}


@pytest.mark.parametrize("name", [*SHAPES, *ONE_WAY])
@given(order=orders)
def test_nobody_is_cut_from_itself_nor_from_strangers(name: str, order: list[int]) -> None:
    cut = {**SHAPES, **ONE_WAY}[name](order)
    assert all(a != b and {a, b} <= set(order) for a, b in cut)


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "majorities-ring"])
@given(order=orders)
def test_netsplits_are_of_both_directions(name: str, order: list[int]) -> None:
    assert symmetric(SHAPES[name](order))


@pytest.mark.parametrize("name", [name for name in ONE_WAY if name != "circle"])
@given(order=orders)
def test_shapes_of_one_direction_leave_the_other(name: str, order: list[int]) -> None:
    cut = ONE_WAY[name](order)
    assert not cut & {(b, a) for a, b in cut}


@given(order=orders)
def test_some_leave_a_majority(order: list[int]) -> None:
    majority = len(order) // 2 + 1
    for cut in (network.halves(order), network.minority_third(order) if len(order) > 2 else None):
        if cut is not None:
            inside = network.core(order, cut)
            assert len(inside) >= majority
            outside = set(order) - inside
            assert cut == network.apart(outside, inside)


@given(order=orders)
def test_who_is_alone(order: list[int]) -> None:
    cut = network.one(order)
    assert reached(order, cut, order[0]) == {order[0]}
    assert all(reached(order, cut, other) == set(order[1:]) for other in order[1:])
    assert all(reached(order, network.splinters(order), other) == {other} for other in order)


@given(order=orders)
def test_in_a_ring_each_hears_its_own_majority(order: list[int]) -> None:
    cut = network.majorities_ring(order)
    views = [heard(order, cut, broker) for broker in order]
    assert all(len(view) == len(order) // 2 + 1 for view in views)
    assert all(broker in view for broker, view in zip(order, views, strict=True))
    assert len(set(views)) == len(order) or len(order) == 2
    if len(order) in (5, 9):  # the majority is an odd number: as many on either side
        assert symmetric(cut)


@given(order=orders)
def test_a_bridge_is_all_that_joins_two_halves(order: list[int]) -> None:
    cut = network.bridge(order)
    assert reached(order, cut, order[-1]) == set(order)
    half = (len(order) - 1) // 2
    for broker in order[:half]:
        assert reached(order, cut, broker) == {*order[:half], order[-1]}
    for broker in order[half:-1]:
        assert reached(order, cut, broker) == set(order[half:])


@given(order=orders)
def test_with_quorum_loss_one_reaches_a_majority(order: list[int]) -> None:
    cut = network.quorum_loss(order)
    assert reached(order, cut, order[-1]) == set(order)
    assert all(reached(order, cut, other) == {other, order[-1]} for other in order[:-1])


def test_constrained_is_as_in_the_paper() -> None:
    cut = network.constrained(FIVE)
    assert reached(FIVE, cut, 3) == {3}
    assert reached(FIVE, cut, 4) == {1, 5, 2, 4}
    assert [reached(FIVE, cut, other) for other in (1, 5, 2)] == [{1, 4}, {5, 4}, {2, 4}]


def test_a_chain_is_as_in_the_paper() -> None:
    cut = network.chained(FIVE)
    views = [reached(FIVE, cut, broker) for broker in FIVE]
    assert views == [{3, 1}, {3, 1, 5}, {1, 5, 2}, {5, 2, 4}, {2, 4}]


def test_one_way_shapes() -> None:
    three = (2, 1, 3)
    assert network.mute(three) == {(2, 1), (2, 3)}
    assert network.deafened(three) == {(1, 2), (3, 2)}
    assert network.mute_to_one(three) == {(2, 1)}
    assert network.minority_mute(FIVE) == {(a, b) for a in (3, 1) for b in (5, 2, 4)}
    assert network.circle(three) == {(2, 1), (1, 3), (3, 2)}
    assert network.circle([1]) == frozenset()


def test_shapes_around_a_leader() -> None:
    brokers, leader, isr = (1, 2, 3, 4, 5), 2, {2, 3, 5}
    made = {name: led(brokers, leader, isr) for name, led in {**LED, **LED_ONE_WAY}.items()}
    others = (1, 3, 4, 5)
    assert made == {
        "leader": {(2, other) for other in others} | {(other, 2) for other in others},
        "isr-only": {(2, 3), (3, 2), (2, 5), (5, 2)},
        "clients": {(2, CLIENTS), (CLIENTS, 2)},
        "leader-mute": {(2, other) for other in others},
        "leader-deaf": {(other, 2) for other in others},
        "answers-lost": {(2, CLIENTS)},
    }


@given(order=orders, seed=st.randoms(use_true_random=False))
def test_the_core_is_a_majority_that_is_whole(order: list[int], seed: object) -> None:
    everybody = [CLIENTS, *order]
    pairs = [(a, b) for a in everybody for b in everybody if a != b]
    cut = frozenset(seed.sample(pairs, len(pairs) // 4))  # type: ignore[attr-defined]
    inside = network.core(order, cut)
    if inside:
        assert 2 * len(inside) > len(order)
        assert not cut & network.apart([*inside, CLIENTS], [*inside, CLIENTS])
    without_clients = network.core(order, cut | network.apart([CLIENTS], order))
    assert not without_clients


@pytest.mark.parametrize(
    ("brokers", "name", "expected"),
    [
        (3, "one", "available"),
        (2, "one", "outage"),
        (5, "halves", "available"),
        (3, "splinters", "outage"),
        (3, "bridge", "available"),  # whoever leads reaches one follower
        (5, "bridge", "outage"),  # replicas 1, 2 and 4: the leader 1 is alive, and reaches 2 only
        (3, "quorum-loss", "available"),
        (5, "quorum-loss", "outage"),
        (3, "constrained", "available"),
        (5, "constrained", "outage"),
        (3, "chained", "available"),
        (5, "chained", "outage"),
        (5, "majorities-ring", "outage"),
        (3, "majorities-ring", "outage"),
    ],
)
def test_what_may_be_expected(brokers: int, name: str, expected: str) -> None:
    plan = shape(brokers)
    assert network.expects(plan, SHAPES[name](plan.broker_ids)) == expected


def test_clients_away_from_who_may_lead_is_an_outage() -> None:
    plan = shape(3)
    assert network.expects(plan, network.clients_away((1, 2, 3), 1, ())) == "outage"
    both = network.one((1, 2, 3)) | network.apart([CLIENTS], [1])
    assert network.expects(plan, both) == "available", "another leads soon, whom clients reach"
    assert network.expects(plan, network.apart([CLIENTS], [1, 2, 3])) == "outage"


def test_a_full_isr_that_is_asked_for_cannot_do_without_one() -> None:
    split = network.bridge((1, 2, 3))
    assert network.expects(shape(3, min_isr=2), split) == "available"
    assert network.expects(shape(3, min_isr=3), split) == "outage"


# -- links -----------------------------------------------------------------------------------------
#
# What is done to bytes shows in the effect, and is over when it ends.


SOON_S = 20.0
SHAPE = Shape(
    brokers=3, topics=(TopicShape(name="t", partitions=1, replication_factor=3, min_isr=2),)
)
LINK = (1, 2)
ANSWER = FRAME.pack(LENGTH_MIN + 100, MAGIC, 0, 0, 0, 0, 0) + bytes(100)


@dataclass
class LinksFakeCluster:
    net: Net


class Echo:
    """Sends what comes back, in the shape of answers, on every connection."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self.server.getsockname())
        self._open = [self.server]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                there, _ = self.server.accept()
                self._open.append(there)
                self._threads.append(threading.Thread(target=self._echo, args=(there,)))
                self._threads[-1].start()

    def _echo(self, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while there.recv(len(ANSWER)):
                there.sendall(ANSWER)

    def close(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._open:
            each.close()


class Traffic:
    """Asks, waits for the answer, and asks again; dials again when it loses the connection."""

    def __init__(self, links: RelayLinks) -> None:
        self._address = links.address(*LINK)
        self._end = threading.Event()
        self._near: socket.socket | None = None
        self._thread = threading.Thread(target=self._go)
        self._thread.start()
        wait_until(lambda: links.counts(LINK, BACKWARD).passed > 0)

    def _go(self) -> None:
        while not self._end.is_set():
            with contextlib.suppress(OSError), socket.create_connection(self._address) as near:
                self._near = near
                while not self._end.is_set() and near.send(ANSWER) and near.recv(len(ANSWER)):
                    pass

    def close(self) -> None:
        self._end.set()
        while self._thread.is_alive():
            near = self._near
            if near is not None:
                with contextlib.suppress(OSError):
                    near.shutdown(socket.SHUT_RDWR)
            self._thread.join(0.01)


@pytest.fixture
def links() -> Iterator[RelayLinks]:
    with contextlib.ExitStack() as stack:
        echoes = {n: stack.enter_context(contextlib.closing(Echo())) for n in SHAPE.broker_ids}
        made = RelayLinks({n: echo.address for n, echo in echoes.items()}, clients=True)
        stack.callback(made.close)
        yield made


@pytest.fixture
def nemesis(links: RelayLinks) -> LinksNemesis:
    return LinksNemesis(LinksFakeCluster(RelayNet(links)))


def links_fault(
    kind: str, *toxics: dict[str, object], pairs: list[list[int]] | None = None
) -> FaultPlan:
    listed = [{"direction": None} | toxic for toxic in toxics]
    return FaultPlan(kind=kind, args={"pairs": pairs or [list(LINK)], "toxics": listed})


EACH = [
    links_fault("link-delay", {"toxic": "Latency", "delay_s": 0.01, "jitter_s": 0.005}),
    links_fault("link-delay", {"toxic": "Bandwidth", "bytes_per_s": 10_000}),
    links_fault("link-delay", {"toxic": "Slicer", "bytes_max": 10, "pause_s": 0.0001}),
    links_fault("link-stall", {"toxic": "Stall"}),
    links_fault("link-stall", {"toxic": "Stall", "direction": "backward"}),
    links_fault("link-reset", {"toxic": "Reset", "after_bytes": 0}),
    links_fault("link-reset", {"toxic": "Reset", "after_bytes": 1_000, "direction": "backward"}),
    links_fault("link-garble", {"toxic": "Garble", "every_bytes": 500, "sealed_only": True}),
    links_fault("link-garble", {"toxic": "Duplicate", "every_bytes": 500}),
    links_fault("link-late", {"toxic": "Late", "gather_s": 1.0, "delay_s": 0.05}),
]


@pytest.mark.parametrize("plan", EACH, ids=lambda plan: plan.args["toxics"][0]["toxic"])
def test_what_a_toxic_does_is_seen(
    nemesis: LinksNemesis, links: RelayLinks, plan: FaultPlan
) -> None:
    with contextlib.closing(Traffic(links)):
        effect = nemesis.begin(plan)
        assert effect.injected, effect
        assert nemesis.end(plan).injected
        assert not nemesis.end(plan).injected, "it has ended already"
    with contextlib.closing(Traffic(links)):
        idle = links_fault("link-stall", {"toxic": "Stall"}, pairs=[[2, 1]])
        assert not nemesis.end(idle).injected


def test_where_nothing_passes_nothing_is_harmed(
    nemesis: LinksNemesis, links: RelayLinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog_jepsen.nemesis.network.EFFECT_TIMEOUT_S", 0.0)
    with contextlib.closing(Traffic(links)):
        for plan in EACH:
            elsewhere = FaultPlan(kind=plan.kind, args={**plan.args, "pairs": [[1, 3], [0, 1]]})
            assert not nemesis.begin(elsewhere).injected, plan
            assert not nemesis.end(elsewhere).injected


def test_connections_work_again_after_the_end(nemesis: LinksNemesis, links: RelayLinks) -> None:
    plan = links_fault("link-reset", {"toxic": "Reset", "after_bytes": 1})
    with contextlib.closing(Traffic(links)):
        assert nemesis.begin(plan).injected
        nemesis.end(plan)
    asks(links)


def asks(links: RelayLinks) -> None:
    with socket.create_connection(links.address(*LINK), timeout=SOON_S) as near:
        for _ in range(10):
            near.sendall(ANSWER)
            got = b""
            while len(got) < len(ANSWER):
                got += near.recv(len(ANSWER))
            assert got == ANSWER


def test_a_reset_of_what_is_open_is_over_at_once(nemesis: LinksNemesis, links: RelayLinks) -> None:
    plan = links_fault("link-reset", {"toxic": "Reset", "after_bytes": 0})
    with contextlib.closing(Traffic(links)):
        effect = nemesis.begin(plan)
        resets = effect.seen["resets"]
        assert resets > 0, "of what was open then, and of what came until the toxic was taken away"
        asks(links)
        assert nemesis.end(plan).seen["resets"] == resets


def test_healing_takes_all_toxics_away_but_no_netsplit(
    nemesis: LinksNemesis, links: RelayLinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog_jepsen.nemesis.network.EFFECT_TIMEOUT_S", 0.0)
    links.set((2, 3), Hold())
    for plan in EACH:
        nemesis.begin(plan)
    nemesis.heal()
    nemesis.heal()
    asks(links)
    assert not links.carries((2, 3), timeout_s=0.05)


@pytest.mark.parametrize("kind", LINKS_KINDS)
def test_what_is_drawn_can_be_done_in_links(
    nemesis: LinksNemesis, links: RelayLinks, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog_jepsen.nemesis.network.EFFECT_TIMEOUT_S", 0.0)
    random, again = Random(3), Random(3)
    sizes = set()
    for _ in range(100):
        plan = nemesis.draw(kind, random, SHAPE)
        assert plan == nemesis.draw(kind, again, SHAPE)
        assert {tuple(pair) for pair in plan.args["pairs"]} <= set(links.pairs)
        assert set(plan.targets) == {b for pair in plan.args["pairs"] for b in pair} - {0}
        sizes.add(len(plan.args["pairs"]))
        nemesis.begin(plan)
        assert "why" not in nemesis.end(plan).seen
    assert sizes == {1, 3, 4, 6}
    asks(links)


def test_only_what_is_sealed_is_garbled() -> None:
    random = Random(0)
    toxics = [toxic for _ in range(100) for toxic in DRAWS["link-garble"](random)[0]]
    assert all(getattr(toxic, "sealed_only", True) for toxic in toxics)


def test_why_not_in_links(nemesis: LinksNemesis) -> None:
    assert all(nemesis.why_not(kind) == "" for kind in LINKS_KINDS)
    assert "not a kind of this nemesis" in nemesis.why_not("kill")
    without = LinksNemesis(LinksFakeCluster(NoNet({})))
    assert "no relays" in without.why_not("link-delay")
    without.heal()
    with pytest.raises(OSError, match="no relays"):
        without.begin(EACH[0])


def test_relays_that_are_not_there_are_not_harmed(nemesis: LinksNemesis) -> None:
    plan = links_fault("link-stall", {"toxic": "Stall"}, pairs=[[7, 8]])
    assert not nemesis.begin(plan).injected
    assert not nemesis.end(plan).injected
