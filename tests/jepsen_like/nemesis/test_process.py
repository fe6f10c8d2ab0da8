"""Processes die and stop as the plan says, and what is reported is what was seen."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from raftlog import Admin, NewTopic
from raftlog.errors import BrokerUnavailableError
from raftlog.testing import wait_until
from raftlog.testing.cluster import answers
from raftlog.types import TopicPartition
from raftlog_jepsen.cluster import ClusterUnderTest, Needs
from raftlog_jepsen.control import limits
from raftlog_jepsen.control.limits import FakeClock
from raftlog_jepsen.nemesis.base import FaultPlan
from raftlog_jepsen.nemesis.process import (
    CLOCKS_KINDS,
    MIB,
    PROCESS_KINDS,
    RESOURCES_KINDS,
    STORMS,
    ClocksNemesis,
    ProcessNemesis,
    ResourcesNemesis,
    logged_offset_s,
)
from raftlog_jepsen.plan import Shape, TopicShape
from raftlog_jepsen.status import ClusterStatus, PartitionStatus
from tests.jepsen_like.nemesis.stores import FakeProcess, fake_cluster, loaded, shape_of

PATIENCE_S = 40.0
TOPIC = "events"
LEADER = {"topic": TOPIC, "partition": 0}


def process_shape_of(brokers: int, copies: int = 3, min_isr: int = 2) -> Shape:
    topics = (
        TopicShape(name=TOPIC, partitions=2, replication_factor=copies, min_isr=min_isr),
        TopicShape(name="others", partitions=1, replication_factor=copies, min_isr=min_isr),
    )
    return Shape(brokers=brokers, topics=topics)


@dataclass
class FakeControl:
    """Brokers without processes. ``leaders``: who leads, at each look; the last one stays."""

    states: dict[int, str] = field(default_factory=lambda: dict.fromkeys((1, 2, 3), "running"))
    leaders: list[int | None] = field(default_factory=lambda: [1])
    immortal: bool = False
    stubborn: set[int] = field(default_factory=set)
    done: list[str] = field(default_factory=list)

    def cannot(self, act: str) -> str:
        return "its script has no way to" if act == "pause" and self.immortal else ""

    def up(self) -> set[int]:
        return {broker for broker, state in self.states.items() if state == "running"}

    def kill(self, broker_ids: Collection[int]) -> dict[int, str]:
        self.done.append(f"kill {sorted(broker_ids)}")
        ran = [broker for broker in broker_ids if self.states[broker] != "gone"]
        if not self.immortal:
            self.states |= dict.fromkeys(ran, "gone")
        return dict.fromkeys(ran, "signal 9")

    def spawn(self, broker_id: int) -> None:
        if self.states[broker_id] == "gone":
            self.done.append(f"spawn {broker_id}")
            if broker_id in self.stubborn:
                raise BrokerUnavailableError(f"broker {broker_id} will not")
            self.states[broker_id] = "running"

    def start_broker(self, broker_id: int) -> float:
        self.spawn(broker_id)
        return 0.25

    def pause(self, broker_ids: Collection[int]) -> None:
        self.done.append(f"pause {sorted(broker_ids)}")
        if not self.immortal:
            self.states |= dict.fromkeys(broker_ids, "stopped")

    def resume(self, broker_ids: Collection[int]) -> None:
        self.done.append(f"resume {sorted(broker_ids)}")
        stopped = [broker for broker in broker_ids if self.states[broker] == "stopped"]
        self.states |= dict.fromkeys(stopped, "running")

    def state(self, broker_id: int) -> str:
        return self.states[broker_id]

    def status(self) -> ClusterStatus:
        leader = self.leaders.pop(0) if len(self.leaders) > 1 else self.leaders[0]
        part = PartitionStatus(
            topic=TOPIC,
            partition=0,
            leader=leader,
            leader_epoch=1,
            replicas=(1, 2, 3),
            isr=frozenset((1, 2, 3)),
        )
        return {part.name: part}


def nemesis_of(**facts: Any) -> tuple[ProcessNemesis, FakeControl]:
    control = FakeControl(**facts)
    return ProcessNemesis(control, sleep=lambda s: control.done.append(f"sleep {s}")), control


def plan(kind: str, *targets: int, who: str = "one", **args: Any) -> FaultPlan:
    return FaultPlan(kind=kind, targets=targets, args={"who": who, **args})


# -- drawing


def draws(kind: str, shape: Shape, count: int = 300) -> list[FaultPlan]:
    nemesis, random = nemesis_of()[0], Random(3)
    return [nemesis.draw(kind, random, shape) for _ in range(count)]


@pytest.mark.parametrize("kind", PROCESS_KINDS)
def test_the_same_chance_draws_the_same_faults(kind: str) -> None:
    assert draws(kind, process_shape_of(5)) == draws(kind, process_shape_of(5))
    assert {each.kind for each in draws(kind, process_shape_of(5))} == {kind}
    assert not any(each.lossy for each in draws(kind, process_shape_of(5)))


def test_a_minority_is_killed_at_most_and_comes_back_soon_or_late() -> None:
    kills = draws("kill", process_shape_of(5, min_isr=1))
    assert {len(each.targets) for each in kills} == {0, 1, 2}
    for each in kills:
        assert (each.args["who"] == "leader") == (not each.targets)
        assert 0 <= each.hold_s <= 30
        assert each.expects == "available"
    leaders = {(each.args["topic"], each.args["partition"]) for each in kills if not each.targets}
    assert leaders == {(TOPIC, 0), (TOPIC, 1), ("others", 0)}
    assert min(each.hold_s for each in kills) == 0
    assert max(each.hold_s for each in kills) > 20
    for each in draws("kill", process_shape_of(2, copies=2, min_isr=1)):
        assert each.expects == "outage"  # of two voters, both are needed


def test_machines_of_workers_fail_as_a_whole_or_one_worker_does() -> None:
    shape = replace(process_shape_of(6, min_isr=1), workers=2)
    kills = [each for each in draws("kill", shape) if each.targets]
    assert {each.targets for each in kills if len(each.targets) == 2} == {*shape.machines}
    assert {each.targets for each in kills if len(each.targets) < 2} == {(n,) for n in range(1, 7)}
    assert all(each.expects == "available" for each in kills), "one machine of three is down"
    pauses = draws("pause", shape)
    assert {len(each.targets) for each in pauses} == {0, 1, 2, 4, 6}
    for each in pauses:
        assert each.expects == ("available" if len(each.targets) <= 2 else "outage")


def test_pauses_are_short_and_longer_than_every_timeout() -> None:
    pauses = draws("pause", process_shape_of(5, min_isr=1))
    assert {len(each.targets) for each in pauses} == {0, 1, 2, 3, 5}
    for each in pauses:
        assert 0.1 <= each.hold_s <= 60
        assert each.expects == ("available" if len(each.targets) <= 2 else "outage")
    assert min(each.hold_s for each in pauses) < 1
    assert max(each.hold_s for each in pauses) > 30


def test_every_storm_is_drawn() -> None:
    storms = draws("storm", process_shape_of(3))
    assert {each.args["who"] for each in storms} == set(STORMS)
    for each in storms:
        if each.args["who"] == "rolling":
            assert sorted(each.targets) == [1, 2, 3]
        elif each.args["who"] == "recovery":
            assert all(0 <= s <= 0.3 for s in each.args["after_s"])
            assert 2 <= len(each.args["after_s"]) <= 5
            assert each.expects == ("available" if len(each.targets) == 1 else "outage")
            continue
        assert each.expects == "outage"
    rolling = {each.targets for each in storms if each.args["who"] == "rolling"}
    assert len(rolling) == 6  # in every order


# -- doing


def test_whom_the_plan_names_dies_and_is_started() -> None:
    nemesis, control = nemesis_of()
    fault = plan("kill", 2, 3)
    effect = nemesis.begin(fault)
    assert effect.injected
    assert effect.targets == (2, 3)
    assert effect.seen == {
        "ended": {"2": "signal 9", "3": "signal 9"},
        "state": {"2": "gone", "3": "gone"},
    }
    effect = nemesis.end(fault)
    assert effect.injected
    assert effect.seen["ready_after_s"].keys() == {"2", "3"}
    assert control.up() == {1, 2, 3}
    assert "no broker was affected" in nemesis.end(fault).seen.values()


def test_a_leader_is_whoever_leads_then() -> None:
    nemesis, control = nemesis_of(leaders=[2])
    fault = plan("kill", who="leader", **LEADER)
    assert nemesis.begin(fault).targets == (2,)
    assert control.up() == {1, 3}
    nemesis.end(fault)
    assert control.up() == {1, 2, 3}
    control.leaders = [None]
    effect = nemesis.begin(fault)
    assert not effect.injected
    assert effect.seen == {"why": "events:0 has no running leader"}
    control.leaders = [3]
    control.states[3] = "gone"
    assert not nemesis.begin(fault).injected
    assert not nemesis.begin(plan("pause", who="leader", topic="none", partition=0)).injected


def test_who_was_down_was_not_killed() -> None:
    nemesis, control = nemesis_of()
    control.states[2] = "gone"
    effect = nemesis.begin(plan("kill", 2))
    assert not effect.injected
    assert effect.seen["why"] == "no target was running"


def test_who_lives_on_was_not_killed() -> None:
    nemesis, _ = nemesis_of(immortal=True)
    effect = nemesis.begin(plan("kill", 2))
    assert not effect.injected
    assert effect.seen["why"] == "still running: [2]"


def test_whom_nobody_can_start_is_named_and_the_others_start() -> None:
    nemesis, control = nemesis_of(stubborn={1})
    fault = plan("kill", 1, 2)
    nemesis.begin(fault)
    effect = nemesis.end(fault)
    assert not effect.injected
    assert "broker 1 will not" in effect.seen["why"]
    assert effect.seen["ready_after_s"].keys() == {"2"}
    assert control.up() == {2, 3}


def test_who_is_paused_stops_and_goes_on() -> None:
    nemesis, _ = nemesis_of()
    fault = plan("pause", 1, 2)
    effect = nemesis.begin(fault)
    assert effect.injected
    assert effect.seen == {"state": {"1": "stopped", "2": "stopped"}}
    assert nemesis.end(fault).seen == {
        "before": {"1": "stopped", "2": "stopped"},
        "after": {"1": "running", "2": "running"},
    }


def test_who_does_not_stop_was_not_paused() -> None:
    nemesis, control = nemesis_of(immortal=True)
    effect = nemesis.begin(plan("pause", 1))
    assert not effect.injected
    assert effect.seen["why"] == "not stopped: [1]"
    control.states[1] = "gone"
    assert nemesis.begin(plan("pause", 1)).seen["why"] == "no target was running"
    assert nemesis.why_not("pause") == "its script has no way to"
    assert nemesis.why_not("kill") == ""
    assert nemesis.why_not("power") == "power is not a kind of this nemesis"


def test_whose_state_nobody_can_tell_is_taken_for_paused() -> None:
    nemesis, control = nemesis_of()
    control.state = lambda broker_id: "unknown"  # type: ignore[method-assign]
    assert nemesis.begin(plan("pause", 1)).injected


def test_a_leader_dies_and_the_next_one_too() -> None:
    nemesis, control = nemesis_of(leaders=[1, 1, None, 3])
    fault = plan("storm", who="leader-twice", **LEADER)
    effect = nemesis.begin(fault)
    assert effect.injected
    assert effect.targets == (1, 3)
    assert effect.seen["ended"] == {"1": "signal 9", "3": "signal 9"}
    nemesis.end(fault)
    assert control.up() == {1, 2, 3}


def test_all_die_in_turn() -> None:
    nemesis, control = nemesis_of()
    effect = nemesis.begin(plan("storm", 3, 1, 2, who="rolling", gap_s=0.5))
    assert effect.injected
    assert control.done == [
        "kill [3]", "spawn 3", "sleep 0.5",
        "kill [1]", "spawn 1", "sleep 0.5",
        "kill [2]", "spawn 2",
    ]  # fmt: skip


def test_who_recovers_dies_again() -> None:
    nemesis, control = nemesis_of()
    fault = plan("storm", 2, who="recovery", after_s=[0.1, 0.0])
    effect = nemesis.begin(fault)
    assert effect.injected
    assert effect.seen["ended"] == [{"2": "signal 9"}] * 3
    assert control.done == [
        "kill [2]", "spawn 2", "sleep 0.1", "kill [2]", "spawn 2", "sleep 0.0", "kill [2]",
    ]  # fmt: skip
    assert control.up() == {1, 3}
    nemesis.end(fault)
    assert control.up() == {1, 2, 3}


def test_healing_undoes_what_was_not_ended() -> None:
    nemesis, control = nemesis_of()
    nemesis.begin(plan("kill", 1))
    nemesis.begin(plan("pause", 2))
    nemesis.heal()
    assert control.up() == {1, 2, 3}
    control.done.clear()
    nemesis.heal()
    assert control.done == []


# -- real ones


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterUnderTest]:
    made = ClusterUnderTest(process_shape_of(3), Needs(), tmp_path_factory.mktemp("processes"))
    try:
        made.start()
        with Admin(made.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, 2, 3, {"min.insync.replicas": "2"})])
        yield made
    finally:
        made.close()


@pytest.mark.integration
@pytest.mark.parametrize(
    "fault",
    [
        plan("kill", who="leader", **LEADER),
        plan("storm", who="leader-twice", **LEADER),
        plan("storm", 2, who="recovery", after_s=[0.3, 0.0, 0.1]),
        plan("storm", 2, 3, 1, who="rolling", gap_s=0.2),
    ],
    ids=lambda fault: f"{fault.kind} {fault.args['who']}",
)
def test_real_brokers_die_and_come_back(cluster: ClusterUnderTest, fault: FaultPlan) -> None:
    assert cluster.wait_quiet(PATIENCE_S) == []
    nemesis = ProcessNemesis(cluster)
    pids = {broker: host.broker_pid for broker, host in cluster.hosts.items()}
    effect = nemesis.begin(fault)
    assert effect.injected, effect
    for broker in effect.targets:
        assert not Path(f"/proc/{pids[broker]}").exists()
    ended = effect.seen["ended"]
    for killed in ended if isinstance(ended, list) else [ended]:
        assert set(killed.values()) <= {"signal 9"}
    effect = nemesis.end(fault)
    assert effect.injected, effect
    assert cluster.up() == {1, 2, 3}
    assert cluster.unexpected_exits() == []


@pytest.mark.integration
def test_real_brokers_stop_and_go_on(cluster: ClusterUnderTest) -> None:
    assert cluster.wait_quiet(PATIENCE_S) == []
    nemesis = ProcessNemesis(cluster)
    old = cluster.status()[TopicPartition(TOPIC, 0)]
    fault = plan("pause", who="leader", **LEADER)
    effect = nemesis.begin(fault)
    assert effect.injected, effect
    assert effect.targets == (old.leader,)
    assert set(effect.seen["state"].values()) == {"stopped"}

    def is_replaced() -> bool:
        new = cluster.status()[TopicPartition(TOPIC, 0)]
        return new.leader != old.leader and new.leader_epoch > old.leader_epoch

    wait_until(is_replaced, timeout_s=PATIENCE_S, what="another leader")
    assert set(nemesis.end(fault).seen["after"].values()) == {"running"}
    assert cluster.wait_quiet(PATIENCE_S) == []


# -- clocks ----------------------------------------------------------------------------------------
#
# Brokers' wall clocks go where they are put and come back; a load does not mind.


@dataclass
class FakeHost:
    process: FakeProcess
    broker_pid: int | None = None
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class FakeCluster:
    """Of brokers that are down, with clocks or without."""

    directory: Path
    hosts: dict[int, FakeHost]


def cluster_of(directory: Path, *, with_clocks: bool = True) -> FakeCluster:
    if limits.why_no_clocks():
        pytest.skip(f"not injected: clocks cannot be changed here: {limits.why_no_clocks()}")
    hosts = {
        number: FakeHost(
            FakeProcess(directory / f"broker-{number}.log", running=False),
            environment=FakeClock(directory, number).environment() if with_clocks else {},
        )
        for number in (1, 2, 3)
    }
    return FakeCluster(directory, hosts)


def jump(*offsets_s: float, **args: Any) -> FaultPlan:
    targets = tuple(range(1, len(offsets_s) + 1))
    return FaultPlan(kind="clock-jump", targets=targets, args={"offsets_s": list(offsets_s)})


def strobe(*targets: int) -> FaultPlan:
    args = {"from_s": -60.0, "to_s": 60.0, "period_s": 0.01}
    return FaultPlan(kind="clock-strobe", targets=targets, args=args)


# -- drawing


@pytest.mark.parametrize("kind", CLOCKS_KINDS)
def test_the_same_chance_draws_the_same_fault(tmp_path: Path, kind: str) -> None:
    nemesis = ClocksNemesis(FakeCluster(tmp_path, {}))
    shape = shape_of(5, 3)
    plans = [nemesis.draw(kind, Random(seed), shape) for seed in range(200)]
    assert plans == [nemesis.draw(kind, Random(seed), shape) for seed in range(200)]
    assert {len(plan.targets) for plan in plans} == ({5} if kind == "clock-bases" else {1, 2, 5})
    assert not any(plan.lossy or plan.expects == "outage" for plan in plans)
    if kind == "clock-jump":
        assert all(len(plan.args["offsets_s"]) == len(plan.targets) for plan in plans)
        found = {offset for plan in plans for offset in plan.args["offsets_s"]}
        assert min(found) == -864_000 == -max(found)


# -- doing it


@pytest.mark.integration
def test_clocks_jump_each_its_own_way_and_come_back(tmp_path: Path) -> None:
    nemesis = ClocksNemesis(cluster_of(tmp_path))
    fault = jump(3_600.0, -0.5)
    effect = nemesis.begin(fault)
    assert effect.injected, effect
    assert effect.seen["offset_s"]["1"] == pytest.approx(3_600, abs=5)
    assert FakeClock(tmp_path, 3).offset_s == 0.0
    after = nemesis.end(fault)
    assert after.injected
    assert {FakeClock(tmp_path, number).offset_s for number in (1, 2, 3)} == {0.0}


@pytest.mark.integration
def test_a_clock_that_does_not_do_as_told_is_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nemesis = ClocksNemesis(cluster_of(tmp_path))
    monkeypatch.setattr(FakeClock, "read", lambda self: limits.read({}))
    effect = nemesis.begin(jump(60.0))
    assert not effect.injected
    assert "do not have their offsets" in effect.seen["why"]
    nemesis.heal()
    assert FakeClock(tmp_path, 1).offset_s == 0.0


@pytest.mark.integration
def test_a_clock_flips_until_the_end(tmp_path: Path) -> None:
    nemesis = ClocksNemesis(cluster_of(tmp_path))
    clock = FakeClock(tmp_path, 1)
    effect = nemesis.begin(strobe(1))
    assert effect.injected, effect
    for offset_s in (60.0, -60.0, 60.0):
        wait_until(lambda offset_s=offset_s: clock.offset_s == offset_s, what="a flip")
    seen = nemesis.end(strobe(1)).seen
    assert seen["flips"]["1"] >= 4
    assert clock.offset_s == 0.0
    assert not nemesis._strobes


@pytest.mark.integration
def test_healing_stops_what_flips(tmp_path: Path) -> None:
    nemesis = ClocksNemesis(cluster_of(tmp_path))
    nemesis.begin(strobe(1, 2))
    nemesis.begin(strobe(2, 3))  # of one broker, the newer one counts
    assert len(nemesis._strobes) == 3
    strobes = list(nemesis._strobes.values())
    nemesis.heal()
    nemesis.heal()
    assert not any(each.is_alive() for each in strobes)
    assert {FakeClock(tmp_path, number).offset_s for number in (1, 2, 3)} == {0.0}


@pytest.mark.integration
def test_brokers_without_clocks_of_their_own_are_told_of(tmp_path: Path) -> None:
    nemesis = ClocksNemesis(cluster_of(tmp_path, with_clocks=False))
    effect = nemesis.begin(jump(1.0, 1.0))
    assert not effect.injected
    assert "[1, 2]" in effect.seen["why"]


def test_bases_have_to_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {n: FakeHost(FakeProcess(tmp_path / "log"), broker_pid=n) for n in (1, 2, 3)}
    nemesis = ClocksNemesis(FakeCluster(tmp_path, hosts))
    fault = FaultPlan(kind="clock-bases", targets=(1, 2, 3))
    bases: dict[int, float | None] = {1: 0.0, 2: 1e5, 3: None}
    monkeypatch.setattr(limits, "base_s", lambda pid: bases[pid])
    assert nemesis.begin(fault).seen == {"base_s": {"1": 0.0, "2": 1e5, "3": None}}
    assert nemesis.end(fault).injected
    bases[2] = 0.0
    assert not nemesis.begin(fault).injected


def test_the_time_in_a_log_is_compared_with_that_of_its_writing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert logged_offset_s(path) is None
    path.write_text("raftlog broker 1 ready\n")
    assert logged_offset_s(path) is None
    path.write_text("2020-01-01 00:00:00,250 INFO raftlog: all is well\n")
    said = datetime(2020, 1, 1).timestamp() + 0.25  # noqa: DTZ001 - local, as in a log
    assert logged_offset_s(path) == pytest.approx(said - path.stat().st_mtime)


# -- real brokers


@pytest.mark.integration
def test_brokers_whose_clocks_jump_and_flip_go_on(tmp_path: Path) -> None:
    if limits.why_no_clocks():
        pytest.skip(f"not injected: clocks cannot be changed here: {limits.why_no_clocks()}")
    with loaded(tmp_path, shape_of(3, 3, min_isr=2), Needs(fake_time=True)) as (running, load):
        nemesis = ClocksNemesis(running)
        assert nemesis.why_not("clock-jump") == ""
        for fault in (jump(864_000.0, -864_000.0, 3_600.0), strobe(1, 2)):
            effect = nemesis.begin(fault)
            assert effect.injected, effect
            load.goes_on(count=100)
            assert nemesis.end(fault).injected
        load.goes_on(count=50)


# -- resources -------------------------------------------------------------------------------------
#
# A broker feels what it lacks, and has it back afterwards.


def fault_of(kind: str, **args: Any) -> FaultPlan:
    return FaultPlan(kind=kind, targets=(1,), args=args)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[ClusterUnderTest]:
    """One broker, alone."""
    cluster = ClusterUnderTest(shape_of(1, 1), Needs(), tmp_path)
    try:
        cluster.start_broker(1)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def nemesis(running: ClusterUnderTest) -> Iterator[ResourcesNemesis]:
    made = ResourcesNemesis(running)
    yield made
    made.heal()
    assert not groups()


@pytest.fixture
def busy(running: ClusterUnderTest) -> Iterator[None]:
    """The broker is asked something all the time."""
    address, stopping = running.hosts[1].address, threading.Event()

    def ask() -> None:
        while not stopping.is_set():
            answers(address)

    thread = threading.Thread(target=ask)
    thread.start()
    yield
    stopping.set()
    thread.join()


def pid_of(running: ClusterUnderTest) -> int:
    pid = running.hosts[1].broker_pid
    assert pid is not None
    return pid


def groups() -> list[Path]:
    places = [limits.hierarchy("memory"), limits.hierarchy("cpu")]
    mine = f"raftlog-{os.getpid()}-*"
    return [path for place in places if place for path in place.parent.glob(mine)]


# -- drawing


@pytest.mark.parametrize("kind", RESOURCES_KINDS)
def test_the_same_chance_draws_the_same_fault_in_resources(tmp_path: Path, kind: str) -> None:
    nemesis = ResourcesNemesis(fake_cluster(tmp_path, brokers=1))  # type: ignore[arg-type]
    plans = [nemesis.draw(kind, Random(seed), shape_of(3, 3)) for seed in range(100)]
    assert plans == [nemesis.draw(kind, Random(seed), shape_of(3, 3)) for seed in range(100)]
    assert {plan.targets for plan in plans} == {(1,), (2,), (3,)}
    assert len({tuple(plan.args.items()) for plan in plans}) > 2


# -- real brokers


@pytest.mark.integration
def test_a_broker_without_descriptors_takes_nobody_in_until_it_has_some(
    running: ClusterUnderTest, nemesis: ResourcesNemesis
) -> None:
    fault = fault_of("fds", spare=3)
    effect = nemesis.begin(fault)
    assert effect.injected, effect
    assert effect.seen["new_connection_is_answered"] is False
    assert effect.seen["limit"] == effect.seen["open"] + 3
    seen = nemesis.end(fault).seen
    assert seen["runs"] or "Too many open files" in str(seen["ended"])
    assert answers(running.hosts[1].address)
    assert running.unexpected_exits() == []


@pytest.mark.integration
def test_a_broker_that_takes_too_much_memory_is_killed_and_started_again(
    running: ClusterUnderTest, nemesis: ResourcesNemesis
) -> None:
    if nemesis.why_not("memory"):
        pytest.skip(f"not injected: {nemesis.why_not('memory')}")
    before = pid_of(running)
    fault = fault_of("memory", bytes=4 * MIB, requests=4)
    effect = nemesis.begin(fault)
    assert effect.injected, effect
    seen = nemesis.end(fault).seen
    assert (seen["killed"], seen["runs"]) == (1, False)
    assert pid_of(running) != before
    assert answers(running.hosts[1].address)
    assert running.unexpected_exits() == []
    assert not groups()


@pytest.mark.integration
@pytest.mark.parametrize("means", ["quota", "neighbours"])
def test_a_broker_that_gets_little_of_a_cpu_waits_for_it(
    running: ClusterUnderTest, nemesis: ResourcesNemesis, busy: None, means: str
) -> None:
    fault = fault_of("cpu", means=means, share=0.01, neighbours=3)
    effect = nemesis.begin(fault)
    assert effect.injected, effect
    nemesis.heal()
    nemesis.heal()
    assert not nemesis.end(fault).injected, "there is nothing more to undo"
    assert answers(running.hosts[1].address)
    assert not groups()


@pytest.mark.integration
def test_a_broker_that_is_down_is_left_alone(
    running: ClusterUnderTest, nemesis: ResourcesNemesis
) -> None:
    running.kill([1])
    for kind in RESOURCES_KINDS:
        assert not nemesis.begin(fault_of(kind)).injected
        assert not nemesis.end(fault_of(kind)).injected
    assert running.up() == set()
    assert nemesis.why_not("kill")
