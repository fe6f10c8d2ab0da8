"""A schedule is drawn from the seed alone, fits into the run, and ends what it begins."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog_jepsen.nemesis.base import FaultPlan
from raftlog_jepsen.nemesis.driver import FIRST_S, LAST_S, Step, draw

KINDS = ("kill", "pause", "partition")


def fault_of(kind: str, random: Random) -> FaultPlan:
    return FaultPlan(kind=kind, hold_s=random.uniform(0, 5))


def steps_of(seed: int, time_s: float = 120, *, pairs: bool = False) -> list[Step]:
    return draw(KINDS, fault_of, Random(seed), time_s=time_s, pairs=pairs)


@given(st.integers(), st.floats(0, 500), st.booleans())
def test_every_fault_begins_in_time_and_ends_after_it_began(
    seed: int, time_s: float, pairs: bool
) -> None:
    steps = steps_of(seed, time_s, pairs=pairs)
    assert [step.at_s for step in steps] == sorted(step.at_s for step in steps)
    begun: set[int] = set()
    for step in steps:
        assert FIRST_S <= step.at_s <= max(time_s - LAST_S, 0)
        if step.phase == "begin":
            assert step.fault not in begun
            begun.add(step.fault)
        else:
            begun.remove(step.fault)  # it began before
    assert not begun


@given(st.integers())
def test_the_same_seed_gives_the_same_schedule(seed: int) -> None:
    assert steps_of(seed) == steps_of(seed)


def test_other_seeds_give_other_schedules() -> None:
    assert len({tuple(map(repr, steps_of(seed))) for seed in range(20)}) == 20


def test_all_kinds_take_turns() -> None:
    kinds = [step.plan.kind for step in steps_of(1) if step.phase == "begin"]
    assert len(kinds) > 9
    for turn in range(0, len(kinds) - 2, 3):
        assert set(kinds[turn : turn + 3]) == set(KINDS)


def test_alone_no_two_faults_overlap_and_in_pairs_they_do() -> None:
    def most_at_once(steps: list[Step]) -> int:
        now = most = 0
        for step in steps:
            now += 1 if step.phase == "begin" else -1
            most = max(most, now)
        return most

    assert most_at_once(steps_of(2)) == 1
    assert most_at_once(steps_of(2, pairs=True)) == 2


def test_a_part_of_the_time_is_quiet() -> None:
    ends = [(step.at_s, step.phase) for step in steps_of(3, 1_000)]
    gaps = [
        begin - end
        for (end, phase), (begin, then) in itertools.pairwise(ends)
        if (phase, then) == ("end", "begin")
    ]
    assert any(gap > 3.5 for gap in gaps)
    assert any(gap < 3.0 for gap in gaps)


@pytest.mark.parametrize(("kinds", "time_s"), [((), 100.0), (KINDS, 4.0)])
def test_nothing_to_do(kinds: tuple[str, ...], time_s: float) -> None:
    assert draw(kinds, fault_of, Random(1), time_s=time_s) == []


def test_the_shortest_run_has_a_fault() -> None:
    assert all(draw(KINDS, fault_of, Random(seed), time_s=6) for seed in range(50))


def test_one_kind_makes_no_pair() -> None:
    assert {step.plan.kind for step in draw(("kill",), fault_of, Random(1), time_s=60, pairs=True)}
