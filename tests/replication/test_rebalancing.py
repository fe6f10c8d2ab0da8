"""Plans: what they improve, what they keep, and that they move no more than they must."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from raftlog.replication.placement import (
    PlacedPartition,
    PlannedMove,
    change_replication_factor,
    rebalance,
)


@dataclass(frozen=True)
class Place:
    id: int
    rack: str = ""


def placed(*sets: tuple[int, ...]) -> list[PlacedPartition]:
    return [PlacedPartition("t", number, replicas) for number, replicas in enumerate(sets)]


def after(
    partitions: Sequence[PlacedPartition], moves: Sequence[PlannedMove]
) -> list[PlacedPartition]:
    found = {(move.topic, move.partition): move for move in moves}
    return [
        each._replace(replicas=found[each[:2]].after) if each[:2] in found else each
        for each in partitions
    ]


def loads(partitions: Sequence[PlacedPartition]) -> Counter[int]:
    return Counter(broker for each in partitions for broker in each.replicas)


def spread(partitions: Sequence[PlacedPartition], brokers: Sequence[Place]) -> list[int]:
    rack = {broker.id: broker.rack for broker in brokers}
    return [len({rack[b] for b in each.replicas if b in rack}) for each in partitions]


def test_an_empty_broker_gets_its_part_and_nothing_else_moves() -> None:
    before = placed((1, 2), (2, 3), (3, 1), (1, 2), (2, 3), (3, 1))
    moves = rebalance(before, [Place(1), Place(2), Place(3), Place(4)])
    assert loads(after(before, moves)) == {1: 3, 2: 3, 3: 3, 4: 3}
    moved = [set(move.after) - set(move.before) for move in moves]
    assert [new for new in moved if new] == [{4}] * 3
    leaders = Counter(each.replicas[0] for each in after(before, moves))
    assert max(leaders.values()) - min(leaders.values()) <= 1


def test_what_is_balanced_stays() -> None:
    assert rebalance(placed((1, 2), (2, 3), (3, 1)), [Place(1), Place(2), Place(3)]) == []
    assert rebalance([], [Place(1)]) == []


def test_replicas_leave_a_broker_that_is_not_listed() -> None:
    before = placed((4, 1), (2, 4), (3, 4))
    moves = rebalance(before, [Place(1), Place(2), Place(3)])
    assert loads(after(before, moves)) == {1: 2, 2: 2, 3: 2}
    assert len(moves) == 3


def test_replicas_of_a_partition_are_in_different_racks() -> None:
    before = placed((1, 2), (3, 4))
    brokers = [Place(1, "a"), Place(2, "a"), Place(3, "b"), Place(4, "b")]
    later = after(before, rebalance(before, brokers))
    assert spread(later, brokers) == [2, 2]
    assert set(loads(later).values()) == {1}


def test_a_larger_factor_adds_brokers_with_few_replicas_in_other_racks() -> None:
    before = placed((1,), (2,))
    brokers = [Place(1, "a"), Place(2, "a"), Place(3, "b"), Place(4, "b")]
    busy = [PlacedPartition("u", 0, (3,))]
    moves = change_replication_factor(before, 2, brokers, all_partitions=[*before, *busy])
    assert [move.after for move in moves] == [(1, 4), (2, 3)]


def test_a_smaller_factor_keeps_the_preferred_leader_and_the_racks() -> None:
    brokers = [Place(1, "a"), Place(2, "a"), Place(3, "b")]
    moves = change_replication_factor(placed((1, 2, 3), (3, 2, 1)), 2, brokers)
    assert moves[0].after == (1, 3)
    assert moves[1].after[0] == 3


def test_every_partition_is_in_the_plan_of_a_factor() -> None:
    moves = change_replication_factor(placed((1, 2)), 2, [Place(1), Place(2)])
    assert moves == [PlannedMove("t", 0, (1, 2), (1, 2))]


@given(st.data())
def test_a_plan_balances_and_harms_nothing(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    has_racks = data.draw(st.booleans())
    racks = st.sampled_from(["a", "b", "c"] if has_racks else [""])
    brokers = [Place(number, data.draw(racks)) for number in range(1, count + 1)]
    ids = st.sampled_from(range(1, count + 3))  # also brokers that are to be left
    sets = st.lists(ids, unique=True, min_size=1, max_size=min(3, count)).map(tuple)
    before = placed(*data.draw(st.lists(sets, max_size=20)))
    moves = rebalance(before, brokers)
    later = after(before, moves)
    assert all(move.before != move.after for move in moves)
    listed = {broker.id for broker in brokers}
    for old, new in zip(before, later, strict=True):
        assert len(set(new.replicas)) == len(old.replicas)
        assert set(new.replicas) <= listed
    total = len({broker.rack for broker in brokers})
    assert spread(later, brokers) == [min(total, len(each.replicas)) for each in later]
    assert rebalance(later, brokers) == [], "and a second plan is empty"
    if not has_racks and later:
        found = loads(later)
        assert max(found[id_] for id_ in listed) - min(found[id_] for id_ in listed) <= 1


@given(st.data())
def test_a_factor_is_what_every_partition_gets(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    brokers = [Place(n, data.draw(st.sampled_from("ab"))) for n in range(1, count + 1)]
    ids = st.sampled_from(range(1, count + 1))
    sets = st.lists(ids, unique=True, min_size=1, max_size=count).map(tuple)
    before = placed(*data.draw(st.lists(sets, max_size=10)))
    factor = data.draw(st.integers(1, count))
    total = len({broker.rack for broker in brokers})
    moves = change_replication_factor(before, factor, brokers)
    racks = spread(after(before, moves), brokers)
    for move, number, old in zip(moves, racks, spread(before, brokers), strict=True):
        assert len(set(move.after)) == factor
        assert move.after[0] == move.before[0], "the preferred leader stays"
        if factor >= len(move.before):
            assert set(move.before) <= set(move.after)
            assert number == min(total, old + factor - len(move.before))
        else:
            assert set(move.after) <= set(move.before)
            assert number == min(old, factor)
