"""A broker feels what it lacks, and has it back afterwards."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from raftlog.testing.cluster import answers
from raftlog_jepsen.cluster import ClusterUnderTest, Needs
from raftlog_jepsen.control import limits
from raftlog_jepsen.nemesis.base import FaultPlan
from raftlog_jepsen.nemesis.process import MIB, RESOURCES_KINDS, ResourcesNemesis
from tests.jepsen_like.nemesis.stores import fake_cluster, shape_of


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
def test_the_same_chance_draws_the_same_fault(tmp_path: Path, kind: str) -> None:
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
