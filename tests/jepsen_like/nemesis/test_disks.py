"""Faults of disks: those that refuse, failpoints, and power cuts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest

from raftlog.errors import BrokerUnavailableError
from raftlog.failpoints import SITES, hits_path, parse
from raftlog.testing import wait_until
from raftlog.testing.cluster import FailpointSwitch
from raftlog_jepsen.cluster import Needs
from raftlog_jepsen.nemesis.base import FaultBudget, FaultPlan
from raftlog_jepsen.nemesis.disks import DISKS_KINDS, DisksNemesis
from raftlog_jepsen.nemesis.failpoints import (
    KINDS,
    FailpointsNemesis,
    environment,
    failpoint_file,
)
from raftlog_jepsen.nemesis.process import NO_DISKS, POWER_KINDS, PowerNemesis, expectation
from raftlog_jepsen.status import ClusterStatus
from tests.integration.load import PATIENCE_S, TOPIC
from tests.jepsen_like.nemesis.harmed import (
    FakeCluster,
    FakeDisk,
    FakeLedger,
    FakeProcess,
    loaded,
    shape_of,
)

# -- disks -----------------------------------------------------------------------------------------

# Disks refuse as they should, brokers do what they say then, and all is well again at the end.


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


# -- failpoints ------------------------------------------------------------------------------------

# Failpoint faults are drawn, armed and undone, and what is told of them is what happened.


SHAPE = shape_of(3, 3, min_isr=2)


@dataclass
class FakeHost:
    process: FakeProcess = field(default_factory=FakeProcess)
    disk: None = None


@dataclass
class FailpointCluster:
    """Its brokers come by a failpoint whenever somebody waits for that (``come_by``)."""

    directory: Path
    needs: Needs = field(default_factory=lambda: Needs(failpoints=True))
    hosts: dict[int, FakeHost] = field(
        default_factory=lambda: {number: FakeHost() for number in (1, 2, 3)}
    )
    noted: list[str] = field(default_factory=list)
    stubborn: bool = False

    def up(self) -> set[int]:
        return {number for number, host in self.hosts.items() if host.process.running}

    def kill(self, broker_ids: Collection[int]) -> None:
        for number in broker_ids:
            self.hosts[number].process.running = False
            self.noted.append(f"kill {number}")

    def spawn(self, broker_id: int) -> None:
        self.hosts[broker_id].process.running = True
        self.noted.append(f"spawn {broker_id}, armed: {self.rules(broker_id)}")

    def start_broker(self, broker_id: int) -> float:
        if self.stubborn:
            raise BrokerUnavailableError("it will not")
        self.hosts[broker_id].process.running = True
        self.noted.append(f"start {broker_id}, armed: {self.rules(broker_id)}")
        return 0.5

    def expect_exit(self, broker_ids: Collection[int]) -> None:
        self.noted.append(f"may end: {sorted(broker_ids)}")

    def status(self) -> ClusterStatus:
        return {}

    def rules(self, broker_id: int) -> list[str]:
        path = failpoint_file(self.directory, broker_id)
        return path.read_text().splitlines() if path.exists() else []

    def come_by(self, broker_id: int, site: str, *, dies: bool = False) -> None:
        """As the broker would, with its first rule."""
        rule = self.rules(broker_id)[0]
        (parsed,) = parse(rule, sites=SITES)
        with hits_path(failpoint_file(self.directory, broker_id)).open("a") as hits:
            hits.write(f"1 {site} {parsed.action} {parsed.text}\n")
        self.hosts[broker_id].process.running = not dies


def made(
    tmp_path: Path, when_waiting: Callable[[FailpointCluster], None] | None = None
) -> tuple[FailpointCluster, FailpointsNemesis]:
    cluster = FailpointCluster(tmp_path)
    calls = [] if when_waiting is None else [when_waiting]

    def sleep(_seconds: float) -> None:
        while calls:
            calls.pop()(cluster)

    return cluster, FailpointsNemesis(cluster, FakeLedger(), sleep=sleep)


def crash(rule: str = "segment.sync.before=crash@3", when: str = "busy") -> FaultPlan:
    return FaultPlan(kind="crash-at", targets=(2,), args={"when": when, "rule": rule})


# -- drawing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_rules_that_a_broker_takes(kind: str, tmp_path: Path) -> None:
    _, nemesis = made(tmp_path)
    drawn = [nemesis.draw(kind, Random(seed), SHAPE) for seed in range(200)]
    assert drawn == [nemesis.draw(kind, Random(seed), SHAPE) for seed in range(200)]
    rules = [parse(plan.args["rule"], sites=SITES)[0] for plan in drawn]
    assert len({rule.site for rule in rules}) > {
        "pause-inside": 0,
        "slow-disk": 2,
        "hung-disk": 2,
    }.get(kind, 6)
    for plan in drawn:
        assert plan.kind == kind
        assert 0 < plan.hold_s < 60
        assert len(plan.targets) == (0 if kind == "pause-inside" else 1)


def test_only_errors_of_reads_are_losses(tmp_path: Path) -> None:
    _, nemesis = made(tmp_path)
    for kind in KINDS:
        for seed in range(100):
            plan = nemesis.draw(kind, Random(seed), SHAPE)
            assert plan.lossy == (kind == "disk-error-at" and ".read." in plan.args["rule"])


def test_a_lone_broker_that_dies_is_an_outage(tmp_path: Path) -> None:
    _, nemesis = made(tmp_path)
    assert nemesis.draw("crash-at", Random(1), shape_of(1, 1)).expects == "outage"
    assert nemesis.draw("crash-at", Random(1), SHAPE).expects == "available"


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    cluster, nemesis = made(tmp_path)
    assert [nemesis.why_not(kind) for kind in KINDS] == [""] * len(KINDS)
    assert nemesis.why_not("kill")
    cluster.needs = Needs()
    assert "without" in nemesis.why_not("crash-at") or "not started" in nemesis.why_not("crash-at")
    assert FailpointsNemesis(object(), FakeLedger()).why_not("crash-at")


# -- doing and undoing -----------------------------------------------------------------------------


def test_a_crash_is_told_once_the_broker_is_gone(tmp_path: Path) -> None:
    cluster, nemesis = made(
        tmp_path, lambda cluster: cluster.come_by(2, "segment.sync.before", dies=True)
    )
    fault = crash()
    effect = nemesis.begin(fault)
    assert effect.injected
    assert effect.targets == (2,)
    assert effect.seen["sites"] == ["segment.sync.before"]
    ended = nemesis.end(fault)
    assert ended.injected
    assert cluster.noted == ["may end: [2]", "start 2, armed: []"]
    assert cluster.up() == {1, 2, 3}


def test_a_broker_that_does_not_die_is_no_crash(tmp_path: Path) -> None:
    _, nemesis = made(tmp_path, lambda cluster: cluster.come_by(2, "segment.sync.before"))
    effect = nemesis.begin(crash())
    assert not effect.injected
    assert "runs" in effect.seen["why"]


def test_what_is_come_by_later_is_told_at_the_end(tmp_path: Path) -> None:
    cluster, nemesis = made(tmp_path)
    fault = crash()
    assert not nemesis.begin(fault).injected
    assert cluster.rules(2) == ["segment.sync.before=crash@3 # fault 1"]
    cluster.come_by(2, "segment.sync.before", dies=True)
    assert nemesis.end(fault).injected
    assert cluster.rules(2) == []
    assert cluster.up() == {1, 2, 3}


def test_what_is_never_come_by_was_not_injected(tmp_path: Path) -> None:
    cluster, nemesis = made(tmp_path)
    fault = crash()
    assert not nemesis.begin(fault).injected
    ended = nemesis.end(fault)
    assert not ended.injected
    assert ended.seen["hits"] == 0
    assert cluster.up() == {1, 2, 3}
    assert cluster.noted == ["may end: [2]"]
    assert "nothing" in nemesis.end(fault).seen


def test_a_crash_while_recovering_kills_and_starts_first(tmp_path: Path) -> None:
    cluster, nemesis = made(
        tmp_path, lambda cluster: cluster.come_by(2, "journal.read.before", dies=True)
    )
    fault = crash("journal.read.before=crash", "recovering")
    assert nemesis.begin(fault).injected
    nemesis.end(fault)
    assert cluster.noted == [
        "may end: [2]",
        "kill 2",
        "spawn 2, armed: ['journal.read.before=crash # fault 1']",
        "start 2, armed: []",
    ]


def test_a_broker_whose_disk_hangs_may_end_and_is_reset(tmp_path: Path) -> None:
    cluster, nemesis = made(tmp_path, lambda cluster: cluster.come_by(2, "segment.sync.before"))
    rule = "segment.sync.before=stall(300)"
    for undo in ("end", "heal"):
        cluster.noted.clear()
        fault = FaultPlan(kind="hung-disk", targets=(2,), args={"rule": rule, "ends": True})
        nemesis.begin(fault)
        assert cluster.noted == ["may end: [2]"]
        if undo == "end":
            nemesis.end(fault)
        else:
            nemesis.heal()
        assert cluster.noted == ["may end: [2]", "kill 2", "start 2, armed: []"]


def test_two_faults_of_one_broker_are_switched_apart(tmp_path: Path) -> None:
    cluster, nemesis = made(tmp_path)
    slow = FaultPlan(kind="slow-disk", targets=(2,), args={"rule": "*.sync.before=stall(1)"})
    first, second = crash(), crash()
    for fault in (first, slow, second):
        nemesis.begin(fault)
    assert len(cluster.rules(2)) == len(set(cluster.rules(2))) == 3
    nemesis.end(first)
    assert [rule.rpartition("# ")[2] for rule in cluster.rules(2)] == ["fault 2", "fault 3"]
    nemesis.heal()
    assert cluster.rules(2) == []
    nemesis.heal()


def test_a_broker_that_is_down_is_not_hit(tmp_path: Path) -> None:
    cluster, nemesis = made(tmp_path)
    cluster.kill([2])
    effect = nemesis.begin(crash())
    assert not effect.injected
    assert cluster.rules(2) == []


def test_healing_starts_who_died_and_a_start_that_fails_is_told(tmp_path: Path) -> None:
    cluster, nemesis = made(
        tmp_path, lambda cluster: cluster.come_by(2, "segment.sync.before", dies=True)
    )
    fault = crash()
    nemesis.begin(fault)
    cluster.stubborn = True
    ended = nemesis.end(fault)
    assert not ended.injected
    assert "will not" in str(ended.seen)
    cluster.stubborn = False
    nemesis.heal()
    assert cluster.up() == {1, 2, 3}


def test_what_may_cost_a_copy_is_told_to_the_ledger(tmp_path: Path) -> None:
    ledger = FakeLedger()
    nemesis = FailpointsNemesis(FailpointCluster(tmp_path), ledger, sleep=lambda _seconds: None)
    args = {"rule": "segment.read.before=fail(EIO)x1"}
    lossy = FaultPlan(kind="disk-error-at", targets=(2,), args=args, lossy=True)
    nemesis.begin(lossy)
    assert ledger.failed == {2}
    nemesis.end(lossy)
    assert ledger.failed == set()
    nemesis.begin(lossy)
    nemesis.heal()
    assert ledger.failed == set()


def test_a_pause_inside_needs_a_leader(tmp_path: Path) -> None:
    _, nemesis = made(tmp_path)
    effect = nemesis.begin(nemesis.draw("pause-inside", Random(1), SHAPE))
    assert not effect.injected
    assert "leader" in effect.seen["why"]


# -- on real brokers -------------------------------------------------------------------------------


def test_a_failpoint_file_is_what_the_broker_is_told_of(tmp_path: Path) -> None:
    path = failpoint_file(tmp_path, 3)
    assert path.parent == tmp_path
    assert environment(path) == {"RAFTLOG_FAILPOINTS": f"@{path}"}
    assert failpoint_file(tmp_path, 1) != path


@pytest.mark.integration
def test_each_kind_is_injected_into_real_brokers_and_nothing_is_lost(tmp_path: Path) -> None:
    pause = {"topic": TOPIC, "partition": 0, "rule": "segment.write.before=stall(4)x1"}
    faults = [
        crash("segment.sync.after=crash@2"),
        crash("journal.sync.before=crash", "recovering"),
        FaultPlan(
            kind="disk-error-at", targets=(2,), args={"rule": "segment.write.after=fail(EIO)x1"}
        ),
        FaultPlan(kind="slow-disk", targets=(2,), args={"rule": "*.sync.before=stall(0.05..0.5)"}),
        FaultPlan(kind="pause-inside", args=pause),
    ]
    with loaded(tmp_path, SHAPE, Needs(failpoints=True)) as (running, load):
        nemesis = FailpointsNemesis(running, FaultBudget(running))
        for fault in faults:
            load.goes_on(count=20)
            effect = nemesis.begin(fault)
            assert effect.injected, (fault, effect)
            ended = nemesis.end(fault)
            assert ended.injected, (fault, ended)
            load.goes_on(count=20)
            assert running.up() == {1, 2, 3}
        nemesis.heal()
        assert FailpointSwitch(failpoint_file(running.directory, 2)).path.read_text() == ""
        assert running.unexpected_exits() == []


def test_where_logs_are_compacted_brokers_die_while_they_do() -> None:
    keyed = replace(SHAPE, topics=(replace(SHAPE.topics[0], keys=9),))
    nemesis = FailpointsNemesis(None, None)  # type: ignore[arg-type]
    for shape in (keyed, replace(SHAPE, coordinators=2)):
        drawn = [nemesis.draw("crash-at", Random(seed), shape).args for seed in range(200)]
        rules = [args["rule"] for args in drawn if args["when"] == "compacting"]
        assert 60 < len(rules) < 140
        names = {rule.partition(".")[0] for rule in rules}
        assert names == {"cleaned", "compaction", "segment", "index"}
        assert not any("truncate" in rule for rule in rules)
    assert "compacting" not in {
        nemesis.draw("crash-at", Random(seed), SHAPE).args["when"] for seed in range(100)
    }


# -- power cuts ------------------------------------------------------------------------------------

# Power cuts hit whom they should, are seen to have taken something, and end with all running.


def cut(*targets: int, lossy: bool = False, journal: str = "lost") -> FaultPlan:
    return FaultPlan(kind="power", targets=targets, args={"journal": journal}, lossy=lossy)


def power_nemesis_of(*disks: FakeDisk | None) -> tuple[PowerNemesis, FakeCluster, FakeLedger]:
    cluster, ledger = FakeCluster(*disks), FakeLedger()
    return PowerNemesis(cluster, ledger), cluster, ledger


# -- drawing


def test_all_are_drawn_and_one_and_those_between() -> None:
    nemesis, _, _ = power_nemesis_of()
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
    nemesis, _, _ = power_nemesis_of()
    plans = [nemesis.draw("power", Random(seed), shape_of(1, 1)) for seed in range(20)]
    assert {(plan.targets, plan.expects) for plan in plans} == {((1,), "outage")}


@pytest.mark.parametrize(
    ("brokers", "copies", "most"), [(3, 3, 1), (5, 3, 2), (5, 2, 1), (3, 1, 1)]
)
def test_without_syncs_no_more_is_taken_than_may_be_lost(
    brokers: int, copies: int, most: int
) -> None:
    nemesis, _, _ = power_nemesis_of()
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
    nemesis, cluster, ledger = power_nemesis_of(one, two, three)
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
    nemesis, cluster, _ = power_nemesis_of(FakeDisk(), FakeDisk(forgets=False))
    begun = nemesis.begin(cut(1, 2))
    assert not begun.injected
    assert begun.seen["unsynced_kept"] == [2]
    assert "synced the disks" in begun.seen["why"]
    nemesis.end(cut(1, 2))
    assert cluster.running() == {1, 2}


def test_a_full_disk_has_no_room_to_see_by() -> None:
    nemesis, _, _ = power_nemesis_of(FakeDisk(has_room=False), FakeDisk())
    assert not nemesis.begin(cut(1)).injected
    begun = nemesis.begin(cut(1, 2))
    assert begun.injected
    assert begun.seen["unsynced_lost"] == [2]


def test_the_ledger_is_told_what_a_power_cut_takes() -> None:
    nemesis, _, ledger = power_nemesis_of(FakeDisk(), FakeDisk())
    nemesis.begin(cut(1, lossy=True))
    assert ledger.failed == {1}
    nemesis.end(cut(1, lossy=True))
    assert ledger.failed == set()
    nemesis.begin(cut(2, lossy=True))
    nemesis.heal()
    nemesis.heal()
    assert ledger.noted == ["lost [1]", "returned [1]", "lost [2]", "returned [2]"]


def test_one_that_does_not_start_keeps_nobody_else_down() -> None:
    nemesis, cluster, _ = power_nemesis_of(FakeDisk(), FakeDisk(), FakeDisk())
    nemesis.begin(cut(1, 2, 3))
    assert cluster.running() == set()
    cluster.stubborn = {2}
    ended = nemesis.end(cut(1, 2, 3))
    assert not ended.injected
    assert "broker 2 will not" in ended.seen["why"]
    assert ended.seen["answers_after_s"] == {"1": 0.25, "3": 0.25}
    assert cluster.running() == {1, 3}


def test_healing_starts_what_is_down() -> None:
    nemesis, cluster, _ = power_nemesis_of(FakeDisk(), FakeDisk())
    nemesis.begin(cut(1, 2))
    nemesis.heal()
    assert cluster.running() == {1, 2}


def test_disks_are_needed_for_power_cuts() -> None:
    assert power_nemesis_of(FakeDisk(), None)[0].why_not("power") == NO_DISKS
    assert power_nemesis_of()[0].why_not("power") == NO_DISKS
    nemesis = power_nemesis_of(FakeDisk())[0]
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
