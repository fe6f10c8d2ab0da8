"""Files vanish with the ledger's consent; brokers notice it and copy again."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from raftlog_jepsen.control import disks
from raftlog_jepsen.nemesis.base import FaultBudget, FaultPlan
from raftlog_jepsen.nemesis.vanishing import RECORD, SEGMENT, WAYS, VanishNemesis
from tests.jepsen_like.nemesis.stores import (
    FakeCluster,
    FakeLedger,
    fake_cluster,
    loaded,
    shape_of,
)

SEED = 0  # of three brokers, it draws broker 2


def vanish(what: str, *, count: int = 1, live: bool = False) -> FaultPlan:
    args: dict[str, Any] = {"count": count, "what": what, "live": live, "seed": SEED}
    return FaultPlan(kind="vanish", args=args, lossy=True)


def nemesis_of(tmp_path: Path, *answers: str) -> tuple[VanishNemesis, FakeCluster, FakeLedger]:
    cluster, ledger = fake_cluster(tmp_path, brokers=3), FakeLedger(list(answers))
    return VanishNemesis(cluster, ledger, notice_s=0.0), cluster, ledger


def test_the_same_chance_draws_the_same_fault(tmp_path: Path) -> None:
    nemesis = VanishNemesis(FakeCluster(tmp_path, shape_of(3, 3)), FakeLedger())
    plans = [nemesis.draw("vanish", Random(seed), shape_of(3, 3)) for seed in range(100)]
    assert plans == [nemesis.draw("vanish", Random(seed), shape_of(3, 3)) for seed in range(100)]
    assert {plan.args["what"] for plan in plans} == set(WAYS)
    assert {(plan.args["live"], plan.args["count"], plan.expects) for plan in plans} == {
        (False, 1, "available"),
        (False, 2, "outage"),
        (True, 1, "available"),
        (True, 2, "available"),
    }
    assert not any(plan.args["live"] and plan.args["what"] == RECORD for plan in plans)
    assert nemesis.why_not("kill")


@pytest.mark.parametrize("what", WAYS)
def test_files_of_a_broker_that_is_down_vanish(tmp_path: Path, what: str) -> None:
    nemesis, cluster, ledger = nemesis_of(tmp_path)
    data_dir = cluster.hosts[2].data_dir
    (before,) = disks.partitions(data_dir)
    plan = vanish(what)
    effect = nemesis.begin(plan)
    assert (effect.injected, effect.targets) == (True, (2,))
    assert all(not (data_dir / name).exists() for name in effect.seen["removed"]["2"])
    assert before.exists() == (what == SEGMENT)
    assert ledger.asked == [(2,), (2,)], "before, and after it was killed"
    assert ledger.failed == {2}
    assert cluster.up() == {1, 3}
    nemesis.end(plan)
    assert cluster.up() == {1, 2, 3}
    assert not ledger.failed
    assert not nemesis.end(plan).injected, "there is nothing more to see to"


@pytest.mark.parametrize("answers", [("no",), ("", "no")], ids=["before", "after-the-kill"])
def test_what_the_ledger_forbids_is_not_done(tmp_path: Path, answers: tuple[str, ...]) -> None:
    nemesis, cluster, ledger = nemesis_of(tmp_path, *answers)
    assert not nemesis.begin(vanish("topics", count=2)).injected
    assert all(disks.partitions(host.data_dir) for host in cluster.hosts.values())
    assert cluster.up() == {1, 2, 3}
    assert not ledger.failed


def test_nothing_vanishes_where_nothing_is_or_a_broker_is_down(tmp_path: Path) -> None:
    nemesis, cluster, ledger = nemesis_of(tmp_path)
    disks.remove(cluster.hosts[2].data_dir / "topics")
    assert not nemesis.begin(vanish("topics")).injected
    assert cluster.up() == {1, 2, 3}
    cluster.kill([2])
    assert not nemesis.begin(vanish("topics")).injected
    assert not ledger.failed


def test_a_broker_that_does_not_notice_is_started_again(tmp_path: Path) -> None:
    nemesis, cluster, _ = nemesis_of(tmp_path)
    plan = vanish("partition", live=True)
    assert nemesis.begin(plan).injected
    assert cluster.up() == {1, 2, 3}
    nemesis.heal()
    assert cluster.up() == {1, 2, 3}
    assert not nemesis.end(plan).injected


@pytest.mark.integration
@pytest.mark.parametrize("live", [False, True], ids=["down", "at work"])
@pytest.mark.parametrize("what", ["partition", SEGMENT])
def test_copies_of_real_brokers_are_made_again(tmp_path: Path, what: str, live: bool) -> None:
    with loaded(tmp_path, shape_of(3, 3)) as (running, load):
        load.goes_on(count=200)
        nemesis = VanishNemesis(running, FaultBudget(running), notice_s=30.0)
        plan = vanish(what, count=2, live=live)
        effect = nemesis.begin(plan)
        assert effect.injected, effect.seen
        seen = nemesis.end(plan).seen
        assert len(effect.targets) == 2
        for broker in map(str, effect.targets):
            assert seen[broker]["set_aside"], seen
            assert seen[broker]["is_back"], seen
        load.goes_on(count=100)
