"""Failpoint faults are drawn, armed and undone, and what is told of them is what happened."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest

from raftlog.errors import BrokerUnavailableError
from raftlog.failpoints import SITES, hits_path
from raftlog.failpoints.rules import parse
from raftlog.testing.cluster import FailpointSwitch
from raftlog_jepsen.cluster import Needs
from raftlog_jepsen.nemesis.base import FaultBudget, FaultPlan
from raftlog_jepsen.nemesis.failpoints import (
    KINDS,
    FailpointsNemesis,
    environment,
    failpoint_file,
)
from raftlog_jepsen.status import ClusterStatus
from tests.integration.load import TOPIC
from tests.jepsen_like.nemesis.harmed import FakeLedger, FakeProcess, loaded, shape_of

SHAPE = shape_of(3, 3, min_isr=2)


@dataclass
class FakeHost:
    process: FakeProcess = field(default_factory=FakeProcess)
    disk: None = None


@dataclass
class FakeCluster:
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
    tmp_path: Path, when_waiting: Callable[[FakeCluster], None] | None = None
) -> tuple[FakeCluster, FailpointsNemesis]:
    cluster = FakeCluster(tmp_path)
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
    nemesis = FailpointsNemesis(FakeCluster(tmp_path), ledger, sleep=lambda _seconds: None)
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
