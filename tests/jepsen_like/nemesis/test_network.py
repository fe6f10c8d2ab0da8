"""Netsplits and slow cables: drawn, begun, looked at, and undone, one over another."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

import pytest

from raftlog.testing.relays import RelayLinks
from raftlog.types import LeaderEpoch, TopicPartition
from raftlog_jepsen.control.namespaces import CONTROL, Namespaces
from raftlog_jepsen.nemesis import network
from raftlog_jepsen.nemesis.base import FaultPlan
from raftlog_jepsen.nemesis.network import CLIENTS, NETWORK_KINDS, SWIZZLE, NetworkNemesis, Pair
from raftlog_jepsen.net import Backend, NamespaceNet, Net, NoNet
from raftlog_jepsen.plan import Shape, TopicShape
from raftlog_jepsen.status import ClusterStatus, PartitionStatus
from tests.jepsen_like.places import in_its_own_network

THREE = Shape(
    brokers=3, topics=(TopicShape(name="t", partitions=2, replication_factor=3, min_isr=2),)
)
DRAWS = 200


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
    return [nemesis.draw(kind, random, shape) for _ in range(DRAWS)]


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
