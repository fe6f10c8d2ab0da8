"""Power cuts hit whom they should, are seen to have taken something, and end with all running."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from raftlog_jepsen.nemesis.base import FaultPlan
from raftlog_jepsen.nemesis.process import NO_DISKS, POWER_KINDS, PowerNemesis, expectation
from tests.jepsen_like.nemesis.harmed import FakeCluster, FakeDisk, FakeLedger, loaded, shape_of


def cut(*targets: int, lossy: bool = False, journal: str = "lost") -> FaultPlan:
    return FaultPlan(kind="power", targets=targets, args={"journal": journal}, lossy=lossy)


def nemesis_of(*disks: FakeDisk | None) -> tuple[PowerNemesis, FakeCluster, FakeLedger]:
    cluster, ledger = FakeCluster(*disks), FakeLedger()
    return PowerNemesis(cluster, ledger), cluster, ledger


# -- drawing


def test_all_are_drawn_and_one_and_those_between() -> None:
    nemesis, _, _ = nemesis_of()
    random = Random(1)
    plans = [nemesis.draw("power", random, shape_of(5, 3, min_isr=1)) for _ in range(200)]
    assert {len(plan.targets) for plan in plans} == {1, 2, 3, 5}
    assert {plan.args["journal"] for plan in plans} == {"lost", "kept"}
    assert {t for plan in plans for t in plan.targets} == {1, 2, 3, 4, 5}
    assert all(0 <= plan.hold_s <= 5 for plan in plans)
    assert not any(plan.lossy for plan in plans)
    for plan in plans:
        assert plan.expects == ("available" if len(plan.targets) <= 2 else "outage")
    again = Random(1)
    assert plans == [nemesis.draw("power", again, shape_of(5, 3, min_isr=1)) for _ in range(200)]


def test_a_single_broker_loses_its_power_too() -> None:
    nemesis, _, _ = nemesis_of()
    plans = [nemesis.draw("power", Random(seed), shape_of(1, 1)) for seed in range(20)]
    assert {(plan.targets, plan.expects) for plan in plans} == {((1,), "outage")}


@pytest.mark.parametrize(
    ("brokers", "copies", "most"), [(3, 3, 1), (5, 3, 2), (5, 2, 1), (3, 1, 1)]
)
def test_without_syncs_no_more_is_taken_than_may_be_lost(
    brokers: int, copies: int, most: int
) -> None:
    nemesis, _, _ = nemesis_of()
    shape = shape_of(brokers, copies, flush_policy="os")
    plans = [nemesis.draw("power", Random(seed), shape) for seed in range(50)]
    assert all(plan.lossy for plan in plans)
    assert max(len(plan.targets) for plan in plans) == most


@pytest.mark.parametrize(
    ("brokers", "copies", "min_isr", "down", "expected"),
    [
        (3, 3, 2, 1, "available"),
        (3, 3, 2, 2, "outage"),
        (3, 3, 3, 1, "outage"),
        (5, 3, 1, 2, "available"),
        (5, 3, 2, 2, "outage"),
        (5, 5, 1, 3, "outage"),
        (3, 1, 1, 1, "outage"),
    ],
)
def test_writes_go_on_with_a_majority_and_enough_replicas(
    brokers: int, copies: int, min_isr: int, down: int, expected: str
) -> None:
    assert expectation(shape_of(brokers, copies, min_isr=min_isr), down) == expected


# -- what is done, and said of it


def test_those_that_ran_are_down_until_the_end() -> None:
    one, two, three = FakeDisk(), FakeDisk(), FakeDisk()
    nemesis, cluster, ledger = nemesis_of(one, two, three)
    cluster.kill([2])
    begun = nemesis.begin(cut(1, 2, journal="kept"))
    assert begun.injected
    assert begun.seen["unsynced_lost"] == [1, 2]
    assert begun.seen["dirty_bytes"] == {"1": 4096, "2": 4096}
    assert one.done == two.done == ["cut, journal kept"]
    assert three.done == []
    assert cluster.running() == {3}
    ended = nemesis.end(cut(1, 2))
    assert (ended.injected, ended.seen) == (True, {"answers_after_s": {"1": 0.25}})
    assert one.done[-1] == "mount", "never on an empty directory"
    assert cluster.running() == {1, 3}, "another took broker 2 down, and starts it"
    assert ledger.noted == []


def test_a_cut_that_took_nothing_is_no_power_cut() -> None:
    nemesis, cluster, _ = nemesis_of(FakeDisk(), FakeDisk(forgets=False))
    begun = nemesis.begin(cut(1, 2))
    assert not begun.injected
    assert begun.seen["unsynced_kept"] == [2]
    assert "synced the disks" in begun.seen["why"]
    nemesis.end(cut(1, 2))
    assert cluster.running() == {1, 2}


def test_a_full_disk_has_no_room_to_see_by() -> None:
    nemesis, _, _ = nemesis_of(FakeDisk(has_room=False), FakeDisk())
    assert not nemesis.begin(cut(1)).injected
    begun = nemesis.begin(cut(1, 2))
    assert begun.injected
    assert begun.seen["unsynced_lost"] == [2]


def test_the_ledger_is_told_what_is_lost() -> None:
    nemesis, _, ledger = nemesis_of(FakeDisk(), FakeDisk())
    nemesis.begin(cut(1, lossy=True))
    assert ledger.failed == {1}
    nemesis.end(cut(1, lossy=True))
    assert ledger.failed == set()
    nemesis.begin(cut(2, lossy=True))
    nemesis.heal()
    nemesis.heal()
    assert ledger.noted == ["lost [1]", "returned [1]", "lost [2]", "returned [2]"]


def test_one_that_does_not_start_keeps_nobody_else_down() -> None:
    nemesis, cluster, _ = nemesis_of(FakeDisk(), FakeDisk(), FakeDisk())
    nemesis.begin(cut(1, 2, 3))
    assert cluster.running() == set()
    cluster.stubborn = {2}
    ended = nemesis.end(cut(1, 2, 3))
    assert not ended.injected
    assert "broker 2 will not" in ended.seen["why"]
    assert ended.seen["answers_after_s"] == {"1": 0.25, "3": 0.25}
    assert cluster.running() == {1, 3}


def test_healing_starts_what_is_down() -> None:
    nemesis, cluster, _ = nemesis_of(FakeDisk(), FakeDisk())
    nemesis.begin(cut(1, 2))
    nemesis.heal()
    assert cluster.running() == {1, 2}


def test_disks_are_needed() -> None:
    assert nemesis_of(FakeDisk(), None)[0].why_not("power") == NO_DISKS
    assert nemesis_of()[0].why_not("power") == NO_DISKS
    nemesis = nemesis_of(FakeDisk())[0]
    assert nemesis.why_not("power") == ""
    assert nemesis.why_not("kill") != ""
    assert nemesis.kinds == POWER_KINDS


# -- real


@pytest.mark.integration
@pytest.mark.parametrize(
    "trials", [1, pytest.param(20, marks=[pytest.mark.nightly, pytest.mark.timeout(600)])]
)
def test_no_power_cut_of_any_brokers_loses_what_was_acknowledged(
    tmp_path: Path, trials: int
) -> None:
    with loaded(tmp_path, shape_of(3, 3, min_isr=2)) as (running, load):
        nemesis = PowerNemesis(running, FakeLedger())
        for _ in range(trials):
            for fault in (cut(1, 2, 3), cut(2), cut(1, 2, 3, journal="kept")):
                load.goes_on(count=50)
                begun = nemesis.begin(fault)
                assert begun.injected, begun.seen
                assert begun.seen["unsynced_lost"] == list(fault.targets)
                assert len(begun.seen["dirty_bytes"]) == len(fault.targets)
                assert running.up() == {1, 2, 3} - set(fault.targets)
                ended = nemesis.end(fault)
                assert ended.injected, ended.seen
                assert running.up() == {1, 2, 3}
        load.goes_on()
