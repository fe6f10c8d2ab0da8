"""Disks refuse as they should, brokers do what they say then, and all is well again at the end."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from raftlog.testing import wait_until
from raftlog_jepsen.nemesis.base import FaultPlan
from raftlog_jepsen.nemesis.disks import DISKS_KINDS, DisksNemesis
from raftlog_jepsen.nemesis.process import NO_DISKS
from tests.integration.load import PATIENCE_S, TOPIC
from tests.jepsen_like.nemesis.harmed import FakeCluster, FakeDisk, FakeLedger, loaded, shape_of

FATAL = ("read-only", "disk-error")


def fault_of(kind: str, *targets: int, lossy: bool = False, leave: int = 0) -> FaultPlan:
    return FaultPlan(kind=kind, targets=targets, args={"leave_bytes": leave}, lossy=lossy)


def nemesis_of(*disks: FakeDisk | None) -> tuple[DisksNemesis, FakeCluster, FakeLedger]:
    cluster, ledger = FakeCluster(*disks), FakeLedger()
    return DisksNemesis(cluster, ledger), cluster, ledger


# -- drawing


@pytest.mark.parametrize("kind", DISKS_KINDS)
def test_one_or_a_minority_is_drawn(kind: str) -> None:
    nemesis, _, _ = nemesis_of()
    shape = shape_of(5, 3)
    plans = [nemesis.draw(kind, Random(seed), shape) for seed in range(100)]
    assert {len(plan.targets) for plan in plans} == {1, 2}
    assert all(1 <= plan.hold_s <= 10 and not plan.lossy for plan in plans)
    assert plans == [nemesis.draw(kind, Random(seed), shape) for seed in range(100)]
    assert {plan.expects for plan in plans} == {"available"}, "others lead in its place"


@pytest.mark.parametrize("kind", DISKS_KINDS)
def test_what_was_not_synced_is_lost_with_a_broken_disk(kind: str) -> None:
    nemesis, _, _ = nemesis_of()
    plan = nemesis.draw(kind, Random(1), shape_of(3, 3, flush_policy="os"))
    assert plan.lossy == (kind in FATAL)


def test_room_is_left_or_not() -> None:
    nemesis, _, _ = nemesis_of()
    plans = [nemesis.draw("disk-full", Random(seed), shape_of(3, 3)) for seed in range(50)]
    left = {plan.args["leave_bytes"] for plan in plans}
    assert 0 in left
    assert 0 < max(left) <= 65536


# -- what is done, and said of it


def test_a_full_disk_is_freed_and_nobody_is_killed() -> None:
    disk = FakeDisk()
    nemesis, cluster, _ = nemesis_of(disk, FakeDisk())
    begun = nemesis.begin(fault_of("disk-full", 1))
    assert (begun.injected, begun.seen) == (True, {"writes_get": {"1": "ENOSPC"}})
    assert (disk.is_full, cluster.expected) == (True, set())
    ended = nemesis.end(fault_of("disk-full", 1))
    assert (ended.injected, ended.seen) == (True, {"ended": [], "answers_after_s": {}})
    assert not disk.is_full
    assert disk.done == []
    assert cluster.running() == {1, 2}


def test_a_broker_that_a_full_disk_ended_is_told_of_and_started() -> None:
    nemesis, cluster, _ = nemesis_of(FakeDisk())
    nemesis.begin(fault_of("disk-full", 1))
    cluster.kill([1])
    assert nemesis.end(fault_of("disk-full", 1)).seen["ended"] == [1]
    assert cluster.running() == {1}


@pytest.mark.parametrize(("kind", "error"), [("read-only", "EROFS"), ("disk-error", "EIO")])
@pytest.mark.parametrize("ends", [True, False])
def test_a_broken_disk_is_repaired_with_its_broker_down(kind: str, error: str, ends: bool) -> None:
    disk = FakeDisk()
    nemesis, cluster, _ = nemesis_of(disk, FakeDisk())
    begun = nemesis.begin(fault_of(kind, 1))
    assert (begun.injected, begun.seen) == (True, {"writes_get": {"1": error}})
    assert cluster.expected == {1}
    if ends:
        cluster.kill([1])
    ended = nemesis.end(fault_of(kind, 1))
    assert ended.injected
    assert ended.seen == {"ended": [1] * ends, "answers_after_s": {"1": 0.25}}
    assert "remount" in disk.done
    assert cluster.running() == {1, 2}


def test_a_broker_that_was_down_before_stays_so() -> None:
    nemesis, cluster, _ = nemesis_of(FakeDisk())
    cluster.kill([1])
    nemesis.begin(fault_of("disk-error", 1))
    nemesis.end(fault_of("disk-error", 1))
    assert (cluster.running(), cluster.expected) == (set(), set())


def test_two_kinds_on_one_disk_end_one_after_the_other() -> None:
    disk = FakeDisk()
    nemesis, cluster, _ = nemesis_of(disk)
    nemesis.begin(fault_of("disk-full", 1))
    nemesis.begin(fault_of("read-only", 1))
    nemesis.end(fault_of("disk-full", 1))
    assert disk.probe() == "EROFS"
    nemesis.end(fault_of("read-only", 1))
    assert disk.probe() == ""
    nemesis.begin(fault_of("disk-full", 1))
    nemesis.begin(fault_of("disk-error", 1))
    nemesis.end(fault_of("disk-error", 1))
    assert disk.probe() == "ENOSPC"
    assert cluster.running() == set(), "not on a disk that is not well yet"
    nemesis.end(fault_of("disk-full", 1))
    assert (disk.probe(), cluster.running()) == ("", {1})


def test_what_has_no_effect_is_said() -> None:
    disk = FakeDisk()
    nemesis, _, _ = nemesis_of(disk)
    disk.fill = lambda leave_bytes: None  # type: ignore[method-assign]
    begun = nemesis.begin(fault_of("disk-full", 1))
    assert not begun.injected
    assert begun.seen == {"why": "a write does not get ENOSPC", "writes_get": {"1": ""}}


def test_one_that_cannot_be_repaired_does_not_keep_the_other_down() -> None:
    one, two = FakeDisk(), FakeDisk()
    nemesis, cluster, _ = nemesis_of(one, two)
    nemesis.begin(fault_of("disk-error", 1, 2))
    one.refuses = "it is in use"
    ended = nemesis.end(fault_of("disk-error", 1, 2))
    assert not ended.injected
    assert "it is in use" in ended.seen["why"]
    assert cluster.running() == {2}
    one.refuses = ""
    nemesis.heal()
    assert cluster.running() == {1, 2}


def test_the_ledger_is_told_what_is_lost() -> None:
    nemesis, _, ledger = nemesis_of(FakeDisk(), FakeDisk())
    nemesis.begin(fault_of("disk-error", 1, lossy=True))
    assert ledger.failed == {1}
    nemesis.heal()
    nemesis.heal()
    assert ledger.noted == ["lost [1]", "returned [1]"]


def test_disks_are_needed() -> None:
    assert nemesis_of(FakeDisk(), None)[0].why_not("disk-full") == NO_DISKS
    nemesis = nemesis_of(FakeDisk())[0]
    assert [nemesis.why_not(kind) for kind in nemesis.kinds] == ["", "", ""]
    assert nemesis.why_not("power") != ""


# -- real


@pytest.mark.integration
def test_brokers_refuse_or_end_and_others_lead_and_nothing_acknowledged_is_lost(
    tmp_path: Path,
) -> None:
    with loaded(tmp_path, shape_of(3, 3, min_isr=2)) as (running, load):
        nemesis = DisksNemesis(running, FakeLedger())
        for kind in DISKS_KINDS:
            load.goes_on(count=50)
            leader = next(part.leader for part in running.status().values() if part.leader)
            fault = fault_of(kind, leader)
            begun = nemesis.begin(fault)
            assert begun.injected, begun.seen
            if kind in FATAL:
                wait_until(
                    lambda: leader not in running.up(),  # noqa: B023 - called in this round only
                    timeout_s=PATIENCE_S,
                    what=f"broker {leader} ends when it gets {kind}",
                )
            load.goes_on()
            ended = nemesis.end(fault)
            assert ended.injected, ended.seen
            assert ended.seen["ended"] == ([leader] if kind in FATAL else [])
            load.goes_on(count=50)
        assert running.up() == {1, 2, 3}
        assert running.unexpected_exits() == []
        assert {name.topic for name in running.status()} == {TOPIC}
