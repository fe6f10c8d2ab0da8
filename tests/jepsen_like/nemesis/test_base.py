"""What a broker says when its disk was harmed is found, and an empty disk is given with consent."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import BrokerUnavailableError
from raftlog.testing.history import Fault, Note, Recorder, read
from raftlog.types import TopicPartition
from raftlog_jepsen.cluster import Needs
from raftlog_jepsen.control import disks
from raftlog_jepsen.nemesis.base import (
    Effect,
    Expectation,
    FaultBudget,
    FaultPlan,
    Start,
    Words,
    availability,
    not_injected,
    poll,
    replace_disk,
    try_start,
    why_not_lose,
)
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
from raftlog_jepsen.plan import Shape, TopicShape
from raftlog_jepsen.status import ClusterStatus, PartitionStatus
from tests.jepsen_like.nemesis.stores import FakeLedger, fake_cluster


def test_only_what_was_said_since_counts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert Words(path).text() == ""
    path.write_text("the damage of yesterday\n")
    words = Words(path)
    assert words.lines() == []
    with path.open("a") as log:
        log.write("all is well\nthere is damage\nthere is damage\nsomething torn\n")
    assert words.lines() == ["there is damage", "something torn"]
    assert words.lines(("well",)) == ["all is well"]


def test_a_broker_that_starts(tmp_path: Path) -> None:
    cluster = fake_cluster(tmp_path)
    cluster.kill([2])
    start = try_start(cluster, 2)
    assert start.started
    assert start.to_history() == {"started_after_s": 0.25}
    assert cluster.expected == {2}


def test_a_broker_that_refuses_says_so_in_a_sentence(tmp_path: Path) -> None:
    cluster = fake_cluster(tmp_path)
    cluster.kill([2])
    (cluster.hosts[2].data_dir / "identity").write_text("nonsense")
    start = try_start(cluster, 2)
    assert not start.started
    assert start.is_refusal
    assert "identity is corrupt" in start.to_history()["refused"]
    assert cluster.up() == {1, 3}


def test_a_traceback_is_no_sentence() -> None:
    start = Start(False, 0.1, "broker 2 ended with status 1: KeyError: 'topics'")
    assert start.to_history()["in_a_sentence"] is False


def test_an_empty_disk_is_given_with_the_ledgers_consent(tmp_path: Path) -> None:
    cluster, ledger = fake_cluster(tmp_path), FakeLedger(["not now"])
    data_dir = cluster.hosts[2].data_dir
    old = disks.directory_id(data_dir)
    assert replace_disk(cluster, ledger, 2) == {"disk": "kept", "why": "not now"}
    assert disks.directory_id(data_dir) == old
    assert cluster.up() == {1, 3}
    assert replace_disk(cluster, ledger, 2)["disk"].startswith("replaced")
    assert disks.directory_id(data_dir) not in {"", old}
    assert cluster.up() == {1, 2, 3}
    assert ledger.asked == [(2,), (2,)]


def test_polling_ends_with_the_time_or_the_condition() -> None:
    answers = [False, False, True]
    assert poll(lambda: answers.pop(0), 60.0, interval_s=0.0)
    assert not poll(lambda: False, 0.0)


# -- fault budget ----------------------------------------------------------------------------------
#
# The ledger refuses what could cost an acknowledged record, and little else.


def part(name: str = "t", **facts: Any) -> PartitionStatus:
    """One of three replicas on 1, 2, 3, all well, unless ``facts`` say otherwise."""
    replicas = facts.get("replicas", (1, 2, 3))
    return PartitionStatus(
        **{
            "topic": name,
            "partition": 0,
            "leader": replicas[0],
            "leader_epoch": 1,
            "replicas": replicas,
            "isr": frozenset(replicas),
            "min_isr": 2,
            "log_end_offset": 10,
            "agreed": frozenset(replicas),
            "caught_up": frozenset(replicas),
            **facts,
        }
    )


def status_of(*parts: PartitionStatus) -> ClusterStatus:
    return {each.name: each for each in parts}


def decide(
    *targets: int,
    brokers: int = 5,
    up: Collection[int] | None = None,
    failed: Collection[int] = (),
    parts: Collection[PartitionStatus] = (part(),),
    recoverable: bool = False,
) -> str:
    everybody = range(1, brokers + 1)
    refusal = why_not_lose(
        frozenset(targets),
        everybody,
        frozenset(everybody if up is None else up),
        frozenset(failed),
        status_of(*parts),
        recoverable=recoverable,
    )
    return "" if refusal is None else refusal.why


ALLOWED: dict[str, dict[str, Any]] = {
    "one of three": {"targets": (1,)},
    "the leader's disk as well as any": {"targets": (2,)},
    "nobody": {"targets": ()},
    "who has no replica": {"targets": (4, 5)},
    "one that is down itself": {"targets": (1,), "up": (2, 3, 4, 5)},
    "a replica out of the ISR, which counts as failed anyway": {
        "targets": (3,), "parts": (part(isr=frozenset((1, 2))),)},
    "one, while another outside the ISR lags": {
        "targets": (1,),
        "parts": (part(leader=2, isr=frozenset((1, 2)), caught_up=frozenset((1, 2))),)},
    "two of three with two witnesses: n-1 of n data, n of 2n-1 votes are left": {
        "targets": (1, 2), "parts": (part(witnesses=(4, 5)),)},
    "two of three with an operator at hand": {
        "targets": (1, 2), "brokers": 3, "recoverable": True},
    "a witness": {"targets": (4,), "parts": (part(witnesses=(4, 5)),)},
}  # fmt: skip


@pytest.mark.parametrize("case", ALLOWED)
def test_it_allows(case: str) -> None:
    facts = dict(ALLOWED[case])
    assert decide(*facts.pop("targets"), **facts) == ""


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "all of three": (
        {"targets": (1, 2, 3), "recoverable": True},
        "t:0: no in-sync replica would be left of 1, 2, 3"),
    "two of three brokers": (
        {"targets": (1, 2), "brokers": 3},
        "the cluster's voters would be 3 of 3: no majority"),
    "two of a partition's three voters": (
        {"targets": (1, 2)},
        "t:0: its voters would be 3 of 3: no majority"),
    "one data copy and both witnesses, for their votes": (
        {"targets": (1, 4, 5), "brokers": 9, "parts": (part(witnesses=(4, 5)),)},
        "t:0: its voters would be 2, 3 of 5: no majority"),
    "the whole ISR, though a replica is left": (
        {"targets": (1, 2), "parts": (part(isr=frozenset((1, 2)), witnesses=(4, 5)),)},
        "t:0: no in-sync replica would be left of 1, 2"),
    "a partition with one copy": (
        {"targets": (2,), "parts": (part(), part("lonely", replicas=(2,))), "recoverable": True},
        "lonely:0: no in-sync replica would be left of 2"),
    "while the rest of the ISR has lost its disks": (
        {"targets": (1,), "failed": (2, 3), "recoverable": True},
        "t:0: no in-sync replica would be left of 1, 2, 3"),
    "while a lost voter is not back": (
        {"targets": (1,), "failed": (2,)},
        "t:0: its voters would be 3 of 3: no majority"),
    "while too many brokers are not back": (
        {"targets": (4,), "failed": (1, 2)},
        "the cluster's voters would be 3, 5 of 5: no majority"),
    "while a member of the ISR that has to be enough is down": (
        {"targets": (1,), "up": (1, 2, 4, 5)},
        "t:0: required in-sync replica 3 is down"),
    "while a member of the ISR does not know that it is one": (
        {"targets": (1,), "parts": (part(agreed=frozenset((1, 2))),)},
        "t:0: required in-sync replica 3 reports a different ISR"),
    "while a member of the ISR lags": (
        {"targets": (1,), "parts": (part(caught_up=frozenset((1, 3))),)},
        "t:0: required in-sync replica 2 is lagging"),
    "while nobody leads": (
        {"targets": (2,), "parts": (part(leader=None),)},
        "t:0: it has no leader"),
    "while the leader of a partition with votes to lose is silent": (
        {"targets": (4,), "parts": (part(log_end_offset=-1, witnesses=(4, 5)),)},
        "t:0: its leader, 1, does not respond"),
    "while the leader is silent": (
        {"targets": (2,), "parts": (part(log_end_offset=-1, caught_up=frozenset()),)},
        "t:0: its leader, 1, does not respond"),
    "while nobody knows anything": ({"targets": (2,), "parts": ()},
        "no broker reports any partition"),
    "who is not there": ({"targets": (2, 6)}, "unknown broker 6"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses(case: str) -> None:
    facts, why = dict(REFUSED[case][0]), REFUSED[case][1]
    assert decide(*facts.pop("targets"), **facts) == why


@dataclass
class FakeCluster:
    """One whose status changes at each look, and stays as it was last."""

    shape: Shape
    looks: list[ClusterStatus]
    down: set[int] = field(default_factory=set)

    def up(self) -> set[int]:
        return set(self.shape.broker_ids) - self.down

    def status(self) -> ClusterStatus:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


def shape_of(brokers: int, min_isr: int = 2) -> Shape:
    topic = TopicShape(name="t", partitions=1, replication_factor=3, min_isr=min_isr)
    return Shape(brokers=brokers, topics=(topic,))


def ledger_of(*looks: ClusterStatus, brokers: int = 3) -> tuple[FaultBudget, FakeCluster]:
    cluster = FakeCluster(shape_of(brokers), list(looks))
    return FaultBudget(
        cluster, patience_s=3.0, sleep=lambda _: None, clock=count().__next__
    ), cluster


WHOLE = status_of(part())


@pytest.mark.parametrize(
    "moment",
    [
        status_of(part(caught_up=frozenset((1, 2)))),
        status_of(part(agreed=frozenset((1, 2)))),
        status_of(part(log_end_offset=-1)),
        status_of(part(leader=None)),
        {},
    ],
)
def test_it_waits_for_what_takes_a_moment(moment: ClusterStatus) -> None:
    assert ledger_of(moment, moment, WHOLE)[0].may_lose([1]) == ""
    ledger, cluster = ledger_of(moment, moment, moment, WHOLE)
    assert ledger.may_lose([1]) != ""
    assert cluster.looks == [WHOLE]


def test_it_does_not_wait_for_what_takes_longer() -> None:
    ledger, cluster = ledger_of(status_of(part(isr=frozenset((1,)))), WHOLE)
    assert "no in-sync replica" in ledger.may_lose([1])
    assert cluster.looks == [WHOLE]


def test_a_lost_disk_counts_until_the_replica_is_whole_by_its_own_word() -> None:
    ledger, cluster = ledger_of(WHOLE)
    ledger.lost([2])
    assert ledger.failed == {2}
    assert ledger.may_lose([1], recoverable=True) == ""  # 3 is left
    assert "no in-sync" in ledger.may_lose([1, 3], recoverable=True)
    assert "no majority" in ledger.may_lose([1])
    ledger.returned([2])
    for stale in (
        part(caught_up=frozenset((1, 3))),  # the ISR is from before the loss
        part(agreed=frozenset((1, 3))),
        part(isr=frozenset((1, 3))),
    ):
        cluster.looks = [status_of(stale)]
        assert ledger.may_lose([1]) != ""
        assert ledger.failed == {2}
    cluster.looks = [status_of(part(), part("u", isr=frozenset((1, 3))))]
    assert ledger.may_lose([1]) != ""  # whole in one partition is not enough
    cluster.looks = [WHOLE]
    assert ledger.may_lose([1]) == ""
    assert ledger.failed == frozenset()


def test_what_has_not_returned_is_not_whole() -> None:
    ledger, _ = ledger_of(WHOLE)
    ledger.returned([2])  # it was never lost
    ledger.lost([2])
    assert ledger.may_lose([1]) != ""
    assert ledger.failed == {2}
    ledger.returned([2])
    ledger.lost([2])  # again, before it was whole
    assert ledger.may_lose([1]) != ""


def test_a_lost_witness_is_back_when_it_knows_the_state() -> None:
    votes = {"witnesses": (4, 5), "agreed": frozenset((1, 2, 3, 5))}
    ledger, cluster = ledger_of(status_of(part(**votes)), brokers=5)
    ledger.lost([4])
    ledger.returned([4])
    assert ledger.may_lose([5]) == ""
    assert ledger.failed == {4}
    cluster.looks = [status_of(part(witnesses=(4, 5), agreed=frozenset((1, 2, 3, 4, 5))))]
    assert ledger.may_lose([5]) == ""
    assert ledger.failed == frozenset()


@pytest.mark.parametrize(
    ("up", "facts", "expected"),
    [
        ((1, 2, 3, 4, 5), {}, "available"),
        ((1, 2, 3), {}, "available"),
        ((2, 3, 4, 5), {}, "available"),
        ((4, 5), {}, "outage"),  # no majority of brokers
        ((3, 4, 5), {}, "outage"),  # none of the partition's voters
        ((3, 4, 5), {"min_isr": 1, "witnesses": (4, 5)}, "available"),
        ((3, 4, 5), {"min_isr": 2, "witnesses": (4, 5)}, "outage"),
        ((1, 2, 4, 5), {"isr": frozenset((1, 3))}, "outage"),  # 1 alone is too few
    ],
)
def test_writes_go_on(up: tuple[int, ...], facts: dict[str, Any], expected: str) -> None:
    assert availability(frozenset(up), shape_of(5), status_of(part(**facts))) == expected


def test_of_what_nobody_tells_the_shape_decides() -> None:
    assert availability(frozenset((1, 2, 3, 4)), shape_of(5), {}) == "available"
    assert availability(frozenset((1, 2, 3)), shape_of(5), {}) == "outage"
    assert availability(frozenset((1, 2, 3)), shape_of(5, min_isr=1), {}) == "available"


def test_what_is_down_already_counts() -> None:
    ledger, cluster = ledger_of(WHOLE)
    assert ledger.may_stop([1]) == "available"
    assert ledger.may_stop([]) == "available"
    cluster.down = {2}
    assert ledger.may_stop([2]) == "available"
    assert ledger.may_stop([1]) == "outage"


def test_names_of_partitions_are_those_of_topics() -> None:
    assert part().name == TopicPartition("t", 0)


# -- driver ----------------------------------------------------------------------------------------
#
# The driver records what came of each fault, ends what it begins, and hides no bug.


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
class DriverFakeLedger:
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

    def __init__(self, path: Path, nemesis: Fake, ledger: DriverFakeLedger) -> None:
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
    faults = Stage(tmp_path, nemesis, DriverFakeLedger()).play(*steps(KILL))
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
    faults = Stage(tmp_path, nemesis, DriverFakeLedger()).play(*steps(KILL))
    assert nemesis.calls == []
    assert [(fault.injected, fault.effect) for fault in faults if fault.type == "info"] == [
        (False, {"why": "it needs root"})
    ]


def test_the_ledger_forbids_a_loss_and_nothing_else(tmp_path: Path) -> None:
    nemesis = Fake()
    stage = Stage(tmp_path, nemesis, DriverFakeLedger(refusal="2 is the last in the ISR"))
    faults = stage.play(*steps(WIPE, 1), *steps(KILL, 2))
    assert nemesis.calls == [("begin", "kill"), ("end", "kill")]
    assert faults[1].effect == {"why": "2 is the last in the ISR"}
    assert not faults[1].injected


@pytest.mark.parametrize("error", [OSError("no such process"), BrokerUnavailableError("it ended")])
def test_a_fault_that_fails_half_way_is_ended_too(tmp_path: Path, error: Exception) -> None:
    nemesis = Fake(answer=error)
    stage = Stage(tmp_path, nemesis, DriverFakeLedger())
    faults = stage.play(*steps(KILL))
    assert nemesis.calls == [("begin", "kill"), ("end", "kill")]
    assert not faults[1].injected
    assert str(error) in faults[1].effect["why"]
    assert stage.notes() == []


def test_a_bug_of_a_nemesis_is_a_trouble_of_the_run(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Fake(answer=KeyError("x")), DriverFakeLedger())
    faults = stage.play(*steps(KILL))
    assert not faults[1].injected
    assert [note.is_trouble for note in stage.notes()] == [True]


def test_what_was_begun_is_ended_when_the_run_stops(tmp_path: Path) -> None:
    nemesis = Fake()
    stage = Stage(tmp_path, nemesis, DriverFakeLedger())
    stage.play(steps(KILL)[0])  # its end is not in the schedule
    assert nemesis.calls == [("begin", "kill"), ("end", "kill")]


def test_nothing_begins_once_the_run_stops(tmp_path: Path) -> None:
    nemesis = Fake()
    assert Stage(tmp_path, nemesis, DriverFakeLedger()).play(*steps(KILL), stopping=True) == []
    assert nemesis.calls == []


def test_two_faults_at_once_may_stop_writes(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Fake(), DriverFakeLedger())
    first, second = steps(KILL, 1), steps(KILL, 2)
    faults = stage.play(first[0], second[0], first[1], second[1])
    assert [f.expects for f in faults if (f.type, f.phase) == ("info", "begin")] == [
        "available",
        "outage",
    ]


def test_refused_faults_do_not_count_as_injected(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Fake(answer=not_injected("down already")), DriverFakeLedger())
    stage.play(*steps(KILL))
    assert stage.driver.injected == {}


def test_heal_goes_on_after_one_that_cannot(tmp_path: Path) -> None:
    class Stuck(Fake):
        def heal(self) -> None:
            raise RuntimeError("stuck")

    well, stuck = Fake(), Stuck()
    stage = Stage(tmp_path, well, DriverFakeLedger())
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
