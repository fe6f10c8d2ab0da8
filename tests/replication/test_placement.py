"""Placement: balance, racks, leaders, and how many vote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.replication.placement import (
    CHECK_SECONDS,
    Assignment,
    CopyThrottle,
    Loads,
    PlacedPartition,
    PlannedMove,
    change_replication_factor,
    place,
    rebalance,
    voters_count,
)


@dataclass(frozen=True)
class Located:
    id: int
    rack: str = ""


def brokers_of(racks: int, each: int) -> list[Located]:
    """``racks`` racks with ``each`` brokers, their ids mixed; 0 racks: ``each`` without one."""
    if not racks:
        return [Located(id_) for id_ in range(1, each + 1)]
    return [Located(id_ + 1, f"rack-{id_ % racks}") for id_ in range(racks * each)]


def spread(counts: Counter[int], brokers: Sequence[Located]) -> int:
    numbers = [counts[broker.id] for broker in brokers]
    return max(numbers) - min(numbers)


def leaders(assignments: Iterable[Assignment]) -> Counter[int]:
    return Counter(assignment.replicas[0] for assignment in assignments)


def replicas(assignments: Iterable[Assignment]) -> Counter[int]:
    return Counter(broker for assignment in assignments for broker in assignment.replicas)


def voters(assignments: Iterable[Assignment]) -> Counter[int]:
    return Counter(broker for assignment in assignments for broker in assignment.voters)


@st.composite
def layouts(draw: st.DrawFn, *, equal_racks: bool) -> tuple[list[Located], int, int]:
    """Brokers, a replication factor that they can meet, and a number of partitions."""
    if equal_racks:
        brokers = brokers_of(draw(st.integers(0, 5)), draw(st.integers(1, 4)))
    else:
        racks = draw(st.lists(st.sampled_from(["", "a", "b", "c", "d"]), min_size=1, max_size=12))
        brokers = [Located(id_, rack) for id_, rack in enumerate(racks)]
    factor = draw(st.integers(1, min(len(brokers), 6)))
    return brokers, factor, draw(st.integers(1, 40))


# -- how many vote --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "brokers", "voters"),
    [
        (1, 1, 1),
        (1, 9, 1),
        (2, 2, 2),  # both hold the records, so both vote, for want of a third
        (2, 3, 3),
        (2, 4, 3),
        (3, 3, 3),
        (3, 4, 3),
        (3, 5, 5),
        (3, 6, 5),
        (4, 4, 4),
        (4, 5, 5),
        (4, 6, 5),
        (4, 7, 7),
        (5, 63, 9),
    ],
)
def test_number_of_voters(factor: int, brokers: int, voters: int) -> None:
    assert voters_count(factor, brokers) == voters


@given(st.integers(1, 15), st.integers(1, 63))
def test_voters_are_odd_and_as_many_as_can_be(factor: int, brokers: int) -> None:
    if factor > brokers:
        return
    count = voters_count(factor, brokers)
    assert factor <= count <= min(2 * factor - 1, brokers)
    assert count % 2 == 1 or count == factor == brokers
    more = range(count + 1, min(2 * factor - 1, brokers) + 1)
    assert not [other for other in more if other % 2 == 1]


# -- one topic ------------------------------------------------------------------------------------


@given(layouts(equal_racks=False))
def test_every_partition_has_its_members(layout: tuple[list[Located], int, int]) -> None:
    brokers, factor, partitions = layout
    placed = place(partitions, factor, brokers, load={})
    assert len(placed) == partitions
    known = {broker.id for broker in brokers}
    for assignment in placed:
        assert len(assignment.replicas) == factor
        assert len(assignment.voters) == voters_count(factor, len(brokers))
        assert len(set(assignment.voters)) == len(assignment.voters)
        assert set(assignment.voters) <= known
        assert assignment.version == 0
        assert assignment.first is None


@given(layouts(equal_racks=False))
def test_replicas_stand_in_as_many_racks_as_can_be(
    layout: tuple[list[Located], int, int],
) -> None:
    brokers, factor, partitions = layout
    rack_of = {broker.id: broker.rack for broker in brokers}
    sizes = Counter(rack_of.values())
    for assignment in place(partitions, factor, brokers, load={}):
        for members in (assignment.replicas, assignment.voters):
            used = Counter(rack_of[broker] for broker in members)
            assert len(used) == min(len(members), len(sizes))
            # No rack has two more than one that has a broker to spare.
            for rack, size in sizes.items():
                assert used[rack] == size or max(used.values()) - used[rack] <= 1


@given(layouts(equal_racks=True))
def test_a_new_topic_is_balanced(layout: tuple[list[Located], int, int]) -> None:
    brokers, factor, partitions = layout
    placed = place(partitions, factor, brokers, load={})
    assert spread(replicas(placed), brokers) <= 1
    assert spread(leaders(placed), brokers) <= 1
    assert spread(voters(placed), brokers) <= 3  # witnesses go where there is room


@given(layouts(equal_racks=False), st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_does_not_matter(
    layout: tuple[list[Located], int, int], chance: Random
) -> None:
    brokers, factor, partitions = layout
    before = Loads()
    before.add(place(3, factor, brokers, load={}))
    placed = place(partitions, factor, brokers, load=before)
    shuffled = list(brokers)
    chance.shuffle(shuffled)
    reversed_load = dict(reversed(before.items()))
    assert place(partitions, factor, shuffled, load=reversed_load) == placed


def test_witnesses_go_to_those_with_the_fewest_parts() -> None:
    placed = place(2, 2, brokers_of(0, 6), load={})
    assert voters(placed) == Counter(range(1, 7))


def test_witnesses_do_not_all_go_to_what_is_left_of_a_rack() -> None:
    brokers = brokers_of(2, 2)
    assert spread(voters(place(30, 2, brokers, load={})), brokers) <= 1


def test_the_same_brokers_do_not_always_meet() -> None:
    """When one of four brokers is lost, each of the others takes some of what it led."""
    placed = place(24, 2, brokers_of(0, 4), load={})
    followers = {leader: set[int]() for leader in range(1, 5)}
    for assignment in placed:
        followers[assignment.replicas[0]].add(assignment.replicas[1])
    assert all(len(others) == 3 for others in followers.values())


def test_those_who_lead_next_take_turns() -> None:
    placed = place(6, 3, brokers_of(0, 3), load={})
    assert {assignment.replicas[:2] for assignment in placed} == {
        (one, other) for one in (1, 2, 3) for other in (1, 2, 3) if one != other
    }


def test_a_larger_rack_takes_more() -> None:
    brokers = [Located(1, "a"), Located(2, "b"), Located(3, "b"), Located(4, "b")]
    assert spread(replicas(place(20, 1, brokers, load={})), brokers) == 0
    # Two replicas in two racks leave no choice: the small one has one of each partition.
    both = place(20, 2, brokers, load={})
    assert replicas(both)[1] == 20
    # Nor can the brokers of the large one lead more than what they have.
    assert max(leaders(both).values()) <= 6


# -- one topic after the other --------------------------------------------------------------------


@given(
    st.integers(0, 4),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=12),
)
def test_topics_together_are_balanced_too(
    racks: int, each: int, topics: list[tuple[int, int]]
) -> None:
    brokers = brokers_of(racks, each)
    load, everything = Loads(), list[Assignment]()
    for factor, partitions in topics:
        placed = place(partitions, min(factor, len(brokers)), brokers, load=load)
        load.add(placed)
        everything += placed
    assert spread(replicas(everything), brokers) <= 1
    assert Counter({id_: load[id_].replicas for id_ in load}) == replicas(everything)
    assert Counter({id_: load[id_].voters for id_ in load}) == voters(everything)
    assert Counter({id_: load[id_].leaders for id_ in load}) == leaders(everything)


def test_many_small_topics_have_their_leaders_spread() -> None:
    brokers, load = brokers_of(0, 5), Loads()
    for _ in range(100):
        load.add(place(1, 3, brokers, load=load))
    assert max(load[id_].leaders for id_ in load) <= 21
    assert min(load[id_].leaders for id_ in load) >= 19


def test_a_broker_that_joins_empty_does_not_get_all_of_the_next_topic() -> None:
    load = Loads()
    load.add(place(30, 3, brokers_of(0, 3), load={}))
    placed = place(8, 3, brokers_of(0, 4), load=load)
    assert replicas(placed) == Counter(dict.fromkeys(range(1, 5), 6))


def test_more_partitions_go_where_the_topic_has_fewest() -> None:
    load = Loads()
    first = place(3, 1, brokers_of(0, 3), load={})
    load.add(first)
    more = place(5, 1, brokers_of(0, 4), load=load, existing=first)
    assert replicas([*first, *more]) == Counter(dict.fromkeys(range(1, 5), 2))
    assert replicas(more)[4] == 2


def test_loads_are_counted_out_again() -> None:
    load = Loads()
    placed = place(7, 3, brokers_of(0, 5), load={})
    load.add(placed)
    load.add(placed, times=-1)
    assert {(b.replicas, b.voters, b.leaders) for b in load.values()} == {(0, 0, 0)}


@pytest.mark.parametrize("size", [3, 5, 7])
def test_leadership_is_handed_on_along_a_path(size: int) -> None:
    """A choice that looked right when it was made is made good: leaders differ by one at most."""
    for partitions in range(1, 30):
        for factor in range(2, size + 1):
            brokers = brokers_of(0, size)
            counts = leaders(place(partitions, factor, brokers, load={}))
            assert spread(counts, brokers) <= 1


@pytest.mark.parametrize(
    ("replication_factor", "brokers", "reserves", "voters"),
    [
        (2, 2, 0, 2),
        (2, 2, 1, 3),  # two of three instead of two of two: no worse now, better later
        (2, 3, 2, 3),
        (3, 3, 2, 3),  # of five, all three that are there would be needed
        (3, 4, 1, 5),
        (3, 4, 0, 3),
        (3, 5, 4, 5),
        (1, 1, 4, 1),
    ],
)
def test_one_that_is_gone_votes_if_that_costs_nothing_now(
    replication_factor: int, brokers: int, reserves: int, voters: int
) -> None:
    assert voters_count(replication_factor, brokers, reserves) == voters


def test_reserves_are_witnesses_only_and_take_turns() -> None:
    brokers = [Located(1), Located(2)]
    placed = place(4, 2, brokers, load={}, reserves=[4, 3])
    assert [assignment.witnesses for assignment in placed] == [(3,), (4,), (3,), (4,)]
    assert all(set(assignment.replicas) == {1, 2} for assignment in placed)


# -- copy throttle ---------------------------------------------------------------------------------
#
# The throttle of copies: its rate, its turns, and what it never holds back.


CHUNK = 8_192


class Rate:
    def __init__(self, value: int) -> None:
        self.value = value

    def __call__(self) -> int:
        return self.value


@pytest.mark.parametrize("rate", [1_024, 5_000, 100_000])
@pytest.mark.parametrize("seed", range(3))
def test_the_bytes_of_all_copies_keep_to_the_rate(rate: int, seed: int) -> None:
    """Responses are smaller than the chunk, or larger: one batch is always sent."""
    random = Random(seed)
    throttle: CopyThrottle[str] = CopyThrottle(Rate(rate), chunk_bytes_max=CHUNK)
    copied: dict[str, int] = dict.fromkeys("abc", 0)
    total, largest, now = 0, 0, 0.0
    for copy in copied:
        throttle.wait(copy, 0, now)
    while now < 120:
        due, seconds = throttle.due(now)
        for copy in due:
            most = throttle.bytes_max(copy)
            assert most == min(CHUNK, rate)
            size = random.randint(1, 2 * most)
            copied[copy] += size
            total, largest = total + size, max(largest, size)
            throttle.wait(copy, size, now)
        assert total <= rate * (now + 1) + 3 * largest
        now += seconds or 0.001  # None: all copies have fetched
    assert total >= 0.9 * rate * 120, "the rate is used"
    assert max(copied.values()) < 1.5 * min(copied.values()), "in turns"


def test_without_a_limit_no_copy_waits() -> None:
    throttle: CopyThrottle[str] = CopyThrottle(Rate(0), chunk_bytes_max=CHUNK)
    assert not throttle.is_on
    throttle.wait("a", 1_000_000, 0.0)
    assert throttle.due(0.0) == (["a"], None)
    assert throttle.bytes_max("a") == CHUNK


def test_a_change_of_the_rate_applies_to_copies_that_wait() -> None:
    rate = Rate(1_024)
    throttle: CopyThrottle[str] = CopyThrottle(rate, chunk_bytes_max=CHUNK)
    throttle.wait("a", 1_024_000, 0.0)
    assert throttle.due(0.0) == ([], CHECK_SECONDS)
    rate.value = 1_024_000
    assert throttle.due(CHECK_SECONDS)[0] == ["a"]
    throttle.wait("a", 10_240_000, 1.0)
    assert throttle.due(1.0)[0] == []
    rate.value = 0
    assert throttle.due(1.1)[0] == ["a"]


def test_a_copy_that_has_caught_up_gives_its_turn_to_the_next() -> None:
    throttle: CopyThrottle[str] = CopyThrottle(Rate(1_024), chunk_bytes_max=1_024)
    throttle.wait("a", 1_024, 0.0)
    throttle.wait("b", 0, 0.0)
    throttle.wait("c", 0, 0.0)
    assert throttle.due(0.0)[0] == ["a"]
    assert throttle.due(0.0)[0] == []
    throttle.forget("b", 0.0)
    throttle.forget("a", 0.0)  # its chunk was not fetched
    assert throttle.due(0.0)[0] == ["c"]


# -- rebalancing -----------------------------------------------------------------------------------
#
# Plans: what they improve, what they keep, and that they move no more than they must.


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


def rebalancing_spread(
    partitions: Sequence[PlacedPartition], brokers: Sequence[Place]
) -> list[int]:
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
    assert rebalancing_spread(later, brokers) == [2, 2]
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
    assert rebalancing_spread(later, brokers) == [min(total, len(each.replicas)) for each in later]
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
    racks = rebalancing_spread(after(before, moves), brokers)
    for move, number, old in zip(moves, racks, rebalancing_spread(before, brokers), strict=True):
        assert len(set(move.after)) == factor
        assert move.after[0] == move.before[0], "the preferred leader stays"
        if factor >= len(move.before):
            assert set(move.before) <= set(move.after)
            assert number == min(total, old + factor - len(move.before))
        else:
            assert set(move.after) <= set(move.before)
            assert number == min(old, factor)
