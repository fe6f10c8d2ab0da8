"""Placement: balance, racks, leaders, and how many vote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.replication.placement import Assignment, Loads, place, voters_count


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
