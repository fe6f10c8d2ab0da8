"""The driver records what came of each fault, ends what it begins, and hides no bug."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import BrokerUnavailableError
from raftlog.testing.history.entries import Fault, Note, Recorder, read
from raftlog_jepsen.cluster import Needs
from raftlog_jepsen.nemesis.base import Effect, Expectation, FaultPlan, not_injected
from raftlog_jepsen.nemesis.driver import (
    FIRST_S,
    GROUPS,
    HOMES,
    KINDS,
    LAST_S,
    Driver,
    Home,
    Step,
    draw,
    expand,
    make,
    needs_of,
)
from raftlog_jepsen.plan import Shape


@dataclass
class Fake:
    """Does what its answers say; notes what it was asked for."""

    answer: Effect | Exception = field(default_factory=lambda: Effect(True, {"pid": 7}))
    why: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)

    @property
    def kinds(self) -> Mapping[str, str]:
        return {"kill": "x"}

    def why_not(self, kind: str) -> str:
        del kind
        return self.why

    def draw(self, kind: str, random: Random, shape: Shape) -> FaultPlan:
        raise NotImplementedError

    def begin(self, fault: FaultPlan) -> Effect:
        self.calls.append(("begin", fault.kind))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def end(self, fault: FaultPlan) -> Effect:
        self.calls.append(("end", fault.kind))
        return Effect(True, {"started": 0.5})

    def heal(self) -> None:
        self.calls.append(("heal", ""))


@dataclass
class FakeLedger:
    refusal: str = ""
    expects: Expectation = "available"

    def may_lose(self, targets: Sequence[int]) -> str:
        del targets
        return self.refusal

    def may_stop(self, targets: Sequence[int]) -> Expectation:
        del targets
        return self.expects


class Stage:
    """A driver, its fakes, and the faults that it recorded."""

    def __init__(self, path: Path, nemesis: Fake, ledger: FakeLedger) -> None:
        self.path = path / "history.jsonl"
        self.recorder = Recorder(self.path, itertools.count(1).__next__)
        self.driver = Driver(
            {"kill": nemesis, "wipe": nemesis}, ledger, self.recorder, clock_s=lambda: 1e9
        )

    def play(self, *steps: Step, stopping: bool = False) -> list[Fault]:
        event = threading.Event()
        if stopping:
            event.set()
        self.driver.play(steps, event)
        self.recorder.close()
        return [entry for entry in read(self.path) if isinstance(entry, Fault)]

    def notes(self) -> list[Note]:
        return [entry for entry in read(self.path) if isinstance(entry, Note)]


def steps(plan: FaultPlan, number: int = 1) -> tuple[Step, Step]:
    return Step(0, "begin", number, plan), Step(1, "end", number, plan)


KILL = FaultPlan(kind="kill", targets=(2,), args={"role": "leader"})
WIPE = FaultPlan(kind="wipe", targets=(1, 2), lossy=True)


def test_a_fault_is_begun_ended_and_recorded_with_what_was_seen(tmp_path: Path) -> None:
    nemesis = Fake()
    faults = Stage(tmp_path, nemesis, FakeLedger()).play(*steps(KILL))
    assert nemesis.calls == [("begin", "kill"), ("end", "kill")]
    assert [(fault.type, fault.phase) for fault in faults] == [
        ("invoke", "begin"),
        ("info", "begin"),
        ("invoke", "end"),
        ("info", "end"),
    ]
    assert faults[1].effect == {"pid": 7}
    assert faults[1].targets == [2]
    assert faults[1].args == {"role": "leader"}
    assert all(fault.injected for fault in faults)


def test_what_this_machine_cannot_do_is_recorded_and_not_tried(tmp_path: Path) -> None:
    nemesis = Fake(why="it needs root")
    faults = Stage(tmp_path, nemesis, FakeLedger()).play(*steps(KILL))
    assert nemesis.calls == []
    assert [(fault.injected, fault.effect) for fault in faults if fault.type == "info"] == [
        (False, {"why": "it needs root"})
    ]


def test_the_ledger_forbids_a_loss_and_nothing_else(tmp_path: Path) -> None:
    nemesis = Fake()
    stage = Stage(tmp_path, nemesis, FakeLedger(refusal="2 is the last in the ISR"))
    faults = stage.play(*steps(WIPE, 1), *steps(KILL, 2))
    assert nemesis.calls == [("begin", "kill"), ("end", "kill")]
    assert faults[1].effect == {"why": "2 is the last in the ISR"}
    assert not faults[1].injected


@pytest.mark.parametrize("error", [OSError("no such process"), BrokerUnavailableError("it ended")])
def test_a_fault_that_fails_half_way_is_ended_too(tmp_path: Path, error: Exception) -> None:
    nemesis = Fake(answer=error)
    stage = Stage(tmp_path, nemesis, FakeLedger())
    faults = stage.play(*steps(KILL))
    assert nemesis.calls == [("begin", "kill"), ("end", "kill")]
    assert not faults[1].injected
    assert str(error) in faults[1].effect["why"]
    assert stage.notes() == []


def test_a_bug_of_a_nemesis_is_a_trouble_of_the_run(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Fake(answer=KeyError("x")), FakeLedger())
    faults = stage.play(*steps(KILL))
    assert not faults[1].injected
    assert [note.is_trouble for note in stage.notes()] == [True]


def test_what_was_begun_is_ended_when_the_run_stops(tmp_path: Path) -> None:
    nemesis = Fake()
    stage = Stage(tmp_path, nemesis, FakeLedger())
    stage.play(steps(KILL)[0])  # its end is not in the schedule
    assert nemesis.calls == [("begin", "kill"), ("end", "kill")]


def test_nothing_begins_once_the_run_stops(tmp_path: Path) -> None:
    nemesis = Fake()
    assert Stage(tmp_path, nemesis, FakeLedger()).play(*steps(KILL), stopping=True) == []
    assert nemesis.calls == []


def test_two_faults_at_once_may_stop_writes(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Fake(), FakeLedger())
    first, second = steps(KILL, 1), steps(KILL, 2)
    faults = stage.play(first[0], second[0], first[1], second[1])
    assert [f.expects for f in faults if (f.type, f.phase) == ("info", "begin")] == [
        "available",
        "outage",
    ]


def test_refused_faults_do_not_count_as_injected(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Fake(answer=not_injected("down already")), FakeLedger())
    stage.play(*steps(KILL))
    assert stage.driver.injected == {}


def test_heal_goes_on_after_one_that_cannot(tmp_path: Path) -> None:
    class Stuck(Fake):
        def heal(self) -> None:
            raise RuntimeError("stuck")

    well, stuck = Fake(), Stuck()
    stage = Stage(tmp_path, well, FakeLedger())
    stage.driver.nemeses = {"kill": stuck, "wipe": well}
    stage.driver.nemeses = dict(stage.driver.nemeses)
    try:
        stage.driver.heal()
    finally:
        stage.recorder.close()
    assert ("heal", "") in well.calls
    assert [note.is_trouble for note in stage.notes()] == [True]


# -- registry --------------------------------------------------------------------------------------
#
# The table of nemeses says what is there.


class Nothing:
    """As much of a cluster as it takes to make a nemesis."""

    hosts: ClassVar[dict[int, object]] = {}
    directory = Path("nowhere")


@pytest.mark.parametrize("home", HOMES, ids=lambda home: home.kinds[0])
def test_each_nemesis_has_the_kinds_that_the_table_gives_it(home: Home) -> None:
    made = home.maker(Nothing(), object())
    assert set(home.kinds) <= set(made.kinds)
    assert all(made.kinds[kind].endswith(".") for kind in home.kinds)


def test_needs_are_fields_of_what_a_cluster_can_be_made_with() -> None:
    fields = {field.name for field in dataclasses.fields(Needs)}
    assert needs_of(KINDS) <= fields


def test_names_and_groups_are_expanded_once_each() -> None:
    assert expand(["kill", "process"]) == ("kill", "storm", "pause")
    assert expand(["all"]) == tuple(KINDS)
    assert set(GROUPS["all"]) == {kind for home in HOMES for kind in home.kinds}


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match=r"'explode'.*kill.*network"):
        expand(["kill", "explode"])


def test_kinds_of_one_nemesis_share_it() -> None:
    made = make(["transfer", "topics"], Nothing(), object())
    assert made["transfer"] is made["topics"]


# -- schedule --------------------------------------------------------------------------------------
#
# A schedule is drawn from the seed alone, fits into the run, and ends what it begins.


SCHEDULE_KINDS = ("kill", "pause", "partition")


def fault_of(kind: str, random: Random) -> FaultPlan:
    return FaultPlan(kind=kind, hold_s=random.uniform(0, 5))


def steps_of(seed: int, time_s: float = 120, *, pairs: bool = False) -> list[Step]:
    return draw(SCHEDULE_KINDS, fault_of, Random(seed), time_s=time_s, pairs=pairs)


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
        assert set(kinds[turn : turn + 3]) == set(SCHEDULE_KINDS)


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


@pytest.mark.parametrize(("kinds", "time_s"), [((), 100.0), (SCHEDULE_KINDS, 4.0)])
def test_nothing_to_do(kinds: tuple[str, ...], time_s: float) -> None:
    assert draw(kinds, fault_of, Random(1), time_s=time_s) == []


def test_the_shortest_run_has_a_fault() -> None:
    assert all(draw(SCHEDULE_KINDS, fault_of, Random(seed), time_s=6) for seed in range(50))


def test_one_kind_makes_no_pair() -> None:
    assert {step.plan.kind for step in draw(("kill",), fault_of, Random(1), time_s=60, pairs=True)}
