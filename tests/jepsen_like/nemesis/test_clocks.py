"""Brokers' wall clocks go where they are put and come back; a load does not mind."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from raftlog.testing import wait_until
from raftlog_jepsen.cluster import Needs
from raftlog_jepsen.control import limits
from raftlog_jepsen.control.limits import FakeClock
from raftlog_jepsen.nemesis.base import FaultPlan
from raftlog_jepsen.nemesis.process import CLOCKS_KINDS, ClocksNemesis, logged_offset_s
from tests.jepsen_like.nemesis.stores import FakeProcess, loaded, shape_of


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
