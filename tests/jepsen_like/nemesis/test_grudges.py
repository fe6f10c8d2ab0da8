"""Shapes of netsplits are what their names say, and promise what the rest can keep."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog_jepsen.nemesis import network
from raftlog_jepsen.nemesis.network import CLIENTS, LED, LED_ONE_WAY, ONE_WAY, SHAPES, Pairs
from raftlog_jepsen.plan import Shape, TopicShape

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
