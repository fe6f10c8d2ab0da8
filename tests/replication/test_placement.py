"""Placement: balance, racks, leaders, and how many vote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.config import TopicConfig
from raftlog.limits import (
    CLOCK_ROUND_TRIP_S_MAX,
    CLOCK_SAMPLE_S_MAX,
    CLOCK_SETTLE_S,
    CLOCK_SLEW,
    CLOCK_STEP_MS,
)
from raftlog.replication.cluster_commands import BrokerRecord, Move, TopicRecord
from raftlog.replication.draining import MOVES_PER_COMMAND_MAX, next_moves
from raftlog.replication.placement import (
    CHECK_SECONDS,
    Assignment,
    CopyThrottle,
    Loads,
    PlacedPartition,
    PlannedMove,
    Target,
    change_replication_factor,
    place,
    rebalance,
    voters_count,
)
from raftlog.replication.trusted_time import TrustedTime, trusted_clocks


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


# -- draining --------------------------------------------------------------------------------------
#
# Replicas leave brokers that are decommissioned: those alone, and where there is room.


def broker(number: int, rack: str = "") -> BrokerRecord:
    return BrokerRecord(number, "h", 1, rack, f"disk-{number}", 1, 1, False)


def topic(name: str, *partitions: Assignment, factor: int = 2) -> TopicRecord:
    return TopicRecord(name, f"id-{name}", factor, partitions, {}, TopicConfig(), ())


def moves(
    topics: Iterable[TopicRecord], leaving: set[int], staying: Iterable[BrokerRecord]
) -> dict[str, list[Move]]:
    command = next_moves({t.name: t for t in topics}, leaving=leaving, brokers=[*staying])
    return {} if command is None else {command.topic_id: list(command.moves)}


def test_only_replicas_of_brokers_that_leave_move() -> None:
    held = topic("t", Assignment((1, 2), version=3), Assignment((2, 3)), Assignment((3, 1)))
    found = moves([held], {1}, map(broker, (2, 3)))
    assert found == {"id-t": [Move(0, (3, 2), 3), Move(2, (3, 2), 0)]}


def test_topics_take_their_turn_and_then_there_is_nothing_to_do() -> None:
    a, b = topic("a", Assignment((2, 3))), topic("b", Assignment((2, 1)))
    assert list(moves([a, b], {1}, map(broker, (2, 3)))) == ["id-b"]
    assert moves([a], {1}, map(broker, (2, 3))) == {}


def test_a_partition_waits_for_a_broker_that_has_no_replica_of_it() -> None:
    held = topic("t", Assignment((1, 2)), Assignment((1, 3)))
    assert moves([held], {1}, [broker(2)]) == {"id-t": [Move(1, (2, 3), 0)]}
    assert moves([held], {1}, []) == {}


def test_partitions_that_wait_do_not_hold_up_the_others() -> None:
    waiting = [Assignment((1, 2))] * MOVES_PER_COMMAND_MAX
    held = topic("t", *waiting, Assignment((1, 3)))
    number = MOVES_PER_COMMAND_MAX
    assert moves([held], {1}, [broker(2)]) == {"id-t": [Move(number, (2, 3), 0)]}


def test_a_move_to_a_broker_that_leaves_goes_elsewhere_and_one_away_from_it_goes_on() -> None:
    to_it = Assignment((2, 3), version=1, target=Target((2, 1), (2, 3)))
    away = Assignment((1, 3), target=Target((2, 3), (1, 3)))
    found = moves([topic("t", to_it, away)], {1}, map(broker, (2, 3)))
    assert found == {"id-t": [Move(0, (2, 3), 1, (2, 1))]}


def test_replicas_go_to_other_racks_and_to_brokers_with_few() -> None:
    held = topic("t", Assignment((1, 2)), factor=2)
    racks = [broker(2, "a"), broker(3, "a"), broker(4, "b")]
    assert moves([held], {1}, racks) == {"id-t": [Move(0, (4, 2), 0)]}
    many = topic("t", *[Assignment((1, 2))] * 40)
    found = moves([many], {1}, map(broker, (2, 3, 4)))
    loads = Counter(move.replicas[0] for move in found["id-t"])
    assert loads == {3: 20, 4: 20}


def test_a_command_has_a_limited_number_of_moves() -> None:
    held = topic("t", *[Assignment((1, 2))] * (MOVES_PER_COMMAND_MAX + 1))
    assert len(moves([held], {1}, map(broker, (2, 3)))["id-t"]) == MOVES_PER_COMMAND_MAX


def test_several_brokers_leave_at_a_time() -> None:
    held = topic("t", Assignment((1, 2)))
    assert moves([held], {1, 2}, map(broker, (3, 4))) == {"id-t": [Move(0, (3, 4), 0)]}


# -- trusted time ----------------------------------------------------------------------------------
#
# Which time a broker deletes by: what clocks may do to it, and what they may not.


T0: Final = 1_700_000_000_000
DAY_MS: Final = 86_400_000
ME: Final = 1
VOTERS: Final = (1, 2, 3)
TICK_S: Final = 1.0


class Broker:
    """One broker's clocks, and what it hears of the others'; each is off by its step."""

    def __init__(
        self,
        *,
        voters: tuple[int, ...] = (),
        own_step_ms: int = 0,
        saved_ms: int | None = None,
        broker_id: int = ME,
    ) -> None:
        self.now = 1_000.0
        self.truth_ms = T0
        self.steps = dict.fromkeys((*voters, broker_id), 0)
        self.steps[broker_id] = own_step_ms
        self.heard = set(voters) - {broker_id}
        self.me = broker_id
        self.time = TrustedTime(
            broker_id=broker_id,
            voters=voters,
            saved_ms=saved_ms,
            now=self.now,
            wall_ms=self.wall_ms,
        )

    @property
    def wall_ms(self) -> int:
        return self.truth_ms + self.steps[self.me]

    def run(self, seconds: float = 3.0) -> None:
        left = seconds
        while left > 0:
            passed = min(TICK_S, left)
            left -= passed
            self.now += passed
            self.truth_ms += round(passed * 1_000)
            for peer in self.heard:
                wall_ms = self.truth_ms + self.steps[peer]
                self.time.on_peer(peer, wall_ms, round_trip_s=0.0, now=self.now)
            self.time.update(now=self.now, wall_ms=self.wall_ms)

    @property
    def deletion_error_ms(self) -> int | None:
        """By how much the time for deletions is ahead of the truth."""
        deletion_ms = self.time.deletion_ms(self.now)
        return None if deletion_ms is None else deletion_ms - self.truth_ms

    @property
    def record_error_ms(self) -> int:
        return self.time.record_ms(self.now, self.wall_ms) - self.truth_ms


# -- a broker alone --------------------------------------------------------------------------------


def test_alone_with_a_steady_clock_it_is_the_clock() -> None:
    broker = Broker()
    assert (broker.deletion_error_ms, broker.record_error_ms) == (0, 0)
    broker.run(100_000)
    assert (broker.deletion_error_ms, broker.record_error_ms) == (0, 0)


@pytest.mark.parametrize("step_ms", [8 * DAY_MS, CLOCK_STEP_MS + 1_000, -10 * DAY_MS])
def test_alone_no_step_is_followed_however_long_it_lasts(step_ms: int) -> None:
    broker = Broker()
    broker.run()
    broker.steps[ME] = step_ms
    broker.run(10 * CLOCK_SETTLE_S)
    assert broker.deletion_error_ms == 0
    assert broker.record_error_ms == max(step_ms, 0), "kept for longer, and never for less"
    assert broker.time.error_ms(broker.now, broker.wall_ms) == step_ms
    broker.steps[ME] = 0
    broker.run()
    assert (broker.deletion_error_ms, broker.record_error_ms) == (0, 0)
    assert broker.time.error_ms(broker.now, broker.wall_ms) == 0


def test_small_differences_are_followed_slowly() -> None:
    broker = Broker()
    broker.steps[ME] = 10_000
    broker.run(20)
    assert broker.deletion_error_ms == pytest.approx(20_000 * CLOCK_SLEW)
    broker.run(1_000)
    assert broker.deletion_error_ms == 10_000


@pytest.mark.parametrize("saved_ms", [T0, T0 - CLOCK_STEP_MS, T0 + DAY_MS])
def test_a_start_soon_after_the_last_run_is_no_step(saved_ms: int) -> None:
    assert Broker(saved_ms=saved_ms).deletion_error_ms == 0


def test_alone_a_start_with_a_clock_that_is_far_ahead_waits_before_anything_expires() -> None:
    broker = Broker(saved_ms=T0 - 8 * DAY_MS)
    broker.run(CLOCK_SETTLE_S - 2)
    assert broker.deletion_error_ms is None
    broker.run(5)
    assert broker.deletion_error_ms == 0


def test_alone_a_clock_that_is_corrected_soon_after_the_start_does_no_harm() -> None:
    broker = Broker(saved_ms=T0, own_step_ms=8 * DAY_MS)
    broker.run(100)
    assert broker.deletion_error_ms is None
    broker.steps[ME] = 0
    broker.run(1)
    assert broker.deletion_error_ms == 0


def test_alone_a_start_with_a_clock_that_is_behind_stamps_no_record_as_old() -> None:
    """It would expire as soon as the clock is right."""
    broker = Broker(saved_ms=T0, own_step_ms=-10 * DAY_MS)
    broker.run()
    assert broker.record_error_ms == 0
    assert broker.deletion_error_ms == -10 * DAY_MS


# -- a cluster -------------------------------------------------------------------------------------


def test_in_a_cluster_nothing_expires_until_a_majority_of_the_clocks_agrees() -> None:
    broker = Broker(voters=VOTERS, own_step_ms=8 * DAY_MS, saved_ms=T0)
    broker.heard = {2}
    broker.run()
    assert broker.deletion_error_ms is None
    assert broker.record_error_ms == 8 * DAY_MS
    broker.heard = {2, 3}
    broker.run()
    assert (broker.deletion_error_ms, broker.record_error_ms) == (0, 0)


def test_a_start_waits_when_all_clocks_of_a_cluster_are_far_ahead() -> None:
    broker = Broker(voters=VOTERS, saved_ms=T0 - 8 * DAY_MS)
    broker.run(CLOCK_SETTLE_S - 2)
    assert broker.deletion_error_ms is None
    broker.run(5)
    assert broker.deletion_error_ms == 0


@pytest.mark.parametrize("step_ms", [8 * DAY_MS, -10 * DAY_MS])
@pytest.mark.parametrize("who", VOTERS)
@pytest.mark.parametrize("heard", [{2, 3}, {2}, set()])
def test_one_clock_of_three_decides_nothing(who: int, step_ms: int, heard: set[int]) -> None:
    broker = Broker(voters=VOTERS)
    broker.run()
    broker.heard, broker.steps[who] = heard, step_ms
    broker.run(3 * CLOCK_SETTLE_S)
    assert broker.deletion_error_ms == 0
    assert broker.record_error_ms >= 0
    if len(heard) == 2:
        assert broker.record_error_ms == 0


def test_a_majority_that_steps_for_a_moment_decides_nothing() -> None:
    broker = Broker(voters=VOTERS)
    broker.run()
    broker.steps[1] = broker.steps[2] = 8 * DAY_MS
    broker.run(CLOCK_SETTLE_S / 2)
    broker.steps[1] = broker.steps[2] = 0
    broker.run()
    broker.steps[1] = broker.steps[2] = 8 * DAY_MS
    broker.run(CLOCK_SETTLE_S - 5)
    assert broker.deletion_error_ms == 0


@pytest.mark.parametrize("step_ms", [8 * DAY_MS, -10 * DAY_MS])
def test_a_majority_that_agrees_for_long_is_followed(step_ms: int) -> None:
    broker = Broker(voters=VOTERS)
    broker.run()
    broker.steps[1] = broker.steps[2] = step_ms
    broker.run(CLOCK_SETTLE_S + 5)
    assert broker.deletion_error_ms == step_ms


def test_two_that_differ_are_no_majority_and_of_two_voters_both_have_to_agree() -> None:
    broker = Broker(voters=(1, 2))
    broker.run()
    broker.steps[1] = 8 * DAY_MS
    broker.run(3 * CLOCK_SETTLE_S)
    assert broker.deletion_error_ms == 0
    broker.steps[2] = 8 * DAY_MS
    broker.run(CLOCK_SETTLE_S + 5)
    assert broker.deletion_error_ms == 8 * DAY_MS


def test_before_the_clocks_agree_no_record_is_stamped_as_older_than_a_clock_that_is_known() -> None:
    broker = Broker(voters=(1, 2, 3, 4, 5), own_step_ms=-10 * DAY_MS)
    broker.heard = {2}
    broker.run()
    assert broker.deletion_error_ms is None
    assert broker.record_error_ms >= 0


@pytest.mark.parametrize("step_ms", [8 * DAY_MS, -10 * DAY_MS])
def test_a_start_with_two_clocks_that_differ_goes_by_the_one_that_is_behind(step_ms: int) -> None:
    broker = Broker(voters=(1, 2), own_step_ms=step_ms)
    broker.run()
    assert broker.deletion_error_ms == min(0, step_ms)
    broker.steps[1] = 0
    broker.run(CLOCK_SETTLE_S + 5)
    assert broker.deletion_error_ms == 0


def test_one_voter_alone_does_not_decide_for_another_broker() -> None:
    assert set(trusted_clocks({1}, {1, 2})) == {1, 2}
    assert set(trusted_clocks({1, 2, 3}, {1, 2, 3, 4, 5})) == {1, 2, 3}
    assert set(trusted_clocks({1}, {1})) == {1}


def test_a_broker_without_a_vote_goes_by_those_of_the_voters() -> None:
    broker = Broker(voters=VOTERS, broker_id=9, own_step_ms=8 * DAY_MS)
    broker.heard = {1, 2}
    broker.run()
    assert (broker.deletion_error_ms, broker.record_error_ms) == (0, 0)
    broker = Broker(voters=VOTERS, broker_id=9)
    broker.heard = {1}
    broker.run()
    assert broker.deletion_error_ms is None


def test_old_and_slow_answers_do_not_count() -> None:
    broker = Broker(voters=VOTERS, own_step_ms=8 * DAY_MS)
    broker.heard = set()
    for peer in (2, 3):
        broker.time.on_peer(
            peer, T0 - DAY_MS, round_trip_s=CLOCK_ROUND_TRIP_S_MAX + 1, now=broker.now
        )
    broker.run(1)
    assert broker.deletion_error_ms is None
    for peer in (2, 3):
        broker.time.on_peer(peer, T0, round_trip_s=0, now=broker.now)
    broker.now += CLOCK_SAMPLE_S_MAX + 1
    broker.run(1)
    assert broker.deletion_error_ms is None


def test_half_a_round_trip_has_passed_since_the_peer_looked() -> None:
    broker = Broker(voters=VOTERS)
    broker.heard = set()
    for peer in (2, 3):
        broker.time.on_peer(peer, T0 + 100_000, round_trip_s=4.0, now=broker.now)
    broker.time.update(now=broker.now, wall_ms=broker.wall_ms)
    assert broker.deletion_error_ms == 102_000


# -- any clocks ------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.sampled_from(VOTERS),
            st.sampled_from((0, 900, -20_000, 8 * DAY_MS, -10 * DAY_MS, 3_600_000)),
            st.floats(0.5, 400),
            st.sets(st.sampled_from((2, 3))),
        ),
        max_size=20,
    ),
    st.booleans(),
)
def test_while_a_majority_is_right_nothing_is_deleted_too_early(
    events: list[tuple[int, int, float, set[int]]], is_alone: bool
) -> None:
    """One clock at a time does anything; the others are right, heard or not."""
    broker = Broker(voters=() if is_alone else VOTERS)
    broker.run()
    for who, step_ms, seconds, heard in events:
        for voter in broker.steps:
            broker.steps[voter] = 0
        broker.heard = set() if is_alone else heard
        broker.steps[ME if is_alone else who] = step_ms
        broker.run(seconds)
        error_ms = broker.deletion_error_ms
        assert error_ms is not None
        assert error_ms <= CLOCK_STEP_MS
        assert broker.record_error_ms >= -CLOCK_STEP_MS, "a record would expire too early"
