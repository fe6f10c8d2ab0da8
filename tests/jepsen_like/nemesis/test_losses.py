"""Disks are emptied, swapped and put back with the ledger's consent; brokers do what they say."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from raftlog import Admin
from raftlog.disk import OsDisk
from raftlog.storage.checkpoint import CheckpointFile
from raftlog_jepsen.control import disks
from raftlog_jepsen.nemesis.base import FaultBudget, FaultPlan
from raftlog_jepsen.nemesis.losses import LOSSES_KINDS, LossesNemesis
from tests.integration.load import TOPIC
from tests.jepsen_like.nemesis.stores import (
    FakeCluster,
    FakeLedger,
    fake_cluster,
    loaded,
    shape_of,
)


def wipe(count: int, **args: Any) -> FaultPlan:
    defaults = {"count": count, "of": "brokers", "turn": 1, "restart_survivor": False}
    return FaultPlan(kind="wipe", args={**defaults, **args}, lossy=True)


def old_backup(broker: int, *, oldest: bool = False, clean: bool = False) -> FaultPlan:
    args = {"oldest": oldest, "clean": clean}
    return FaultPlan(kind="old-backup", targets=(broker,), args=args, lossy=True)


def swap(*pair: int) -> FaultPlan:
    return FaultPlan(kind="swap-disks", targets=pair)


def nemesis_of(
    tmp_path: Path, *answers: str, brokers: int = 3
) -> tuple[LossesNemesis, FakeCluster, FakeLedger]:
    cluster, ledger = fake_cluster(tmp_path, brokers=brokers), FakeLedger(list(answers))
    return LossesNemesis(cluster, ledger, patience_s=0.0), cluster, ledger


def ids(cluster: FakeCluster) -> dict[int, str]:
    return {number: disks.directory_id(host.data_dir) for number, host in cluster.hosts.items()}


# -- drawing


@pytest.mark.parametrize("kind", LOSSES_KINDS)
def test_the_same_chance_draws_the_same_fault(tmp_path: Path, kind: str) -> None:
    nemesis = LossesNemesis(FakeCluster(tmp_path, shape_of(5, 3)), FakeLedger())
    plans = [nemesis.draw(kind, Random(seed), shape_of(5, 3)) for seed in range(100)]
    assert plans == [nemesis.draw(kind, Random(seed), shape_of(5, 3)) for seed in range(100)]
    assert {plan.lossy for plan in plans} == {kind != "swap-disks"}
    assert {len(plan.targets) for plan in plans} == {
        "wipe": {0},
        "swap-disks": {2},
        "old-backup": {1},
    }[kind]


def test_up_to_n_minus_1_disks_are_drawn(tmp_path: Path) -> None:
    nemesis = LossesNemesis(FakeCluster(tmp_path, shape_of(3, 3)), FakeLedger())
    three = [nemesis.draw("wipe", Random(seed), shape_of(3, 3)) for seed in range(100)]
    assert {(plan.args["count"], plan.expects) for plan in three} == {
        (1, "available"),
        (2, "outage"),  # of three voters, one is no majority
    }
    five = [nemesis.draw("wipe", Random(seed), shape_of(5, 3)) for seed in range(100)]
    assert {(plan.args["count"], plan.expects) for plan in five} == {
        (1, "available"),
        (2, "available"),
    }


def test_one_broker_has_nobody_to_swap_with(tmp_path: Path) -> None:
    nemesis, _, _ = nemesis_of(tmp_path, brokers=1)
    assert nemesis.why_not("swap-disks")
    assert nemesis.why_not("wipe") == ""
    assert nemesis.why_not("kill")


# -- wipe


def test_a_disk_is_emptied_and_its_broker_comes_back_with_another(tmp_path: Path) -> None:
    nemesis, cluster, ledger = nemesis_of(tmp_path)
    before = ids(cluster)
    effect = nemesis.begin(wipe(1))
    assert effect.injected
    (broker,) = effect.targets
    assert ids(cluster)[broker] == ""
    assert cluster.up() == {1, 2, 3} - {broker}
    assert ledger.asked == [(broker,), (broker,)], "before, and after it was killed"
    assert ledger.failed == {broker}
    seen = nemesis.end(wipe(1)).seen[str(broker)]
    assert seen["is_new_directory"]
    assert cluster.up() == {1, 2, 3}
    assert ids(cluster)[broker] not in {"", before[broker]}
    assert not ledger.failed
    assert not nemesis.end(wipe(1)).injected, "there is nothing more to undo"


@pytest.mark.parametrize("answers", [("no",), ("", "no")], ids=["before", "after-the-kill"])
def test_what_the_ledger_forbids_is_not_done(tmp_path: Path, answers: tuple[str, ...]) -> None:
    nemesis, cluster, ledger = nemesis_of(tmp_path, *answers)
    before = ids(cluster)
    assert not nemesis.begin(wipe(1)).injected
    assert ids(cluster) == before
    assert cluster.up() == {1, 2, 3}
    assert not ledger.failed


def test_nothing_is_emptied_while_a_broker_is_down(tmp_path: Path) -> None:
    nemesis, cluster, ledger = nemesis_of(tmp_path)
    cluster.kill([3])
    assert not nemesis.begin(wipe(1)).injected
    assert not ledger.asked


def test_a_majority_goes_only_where_the_one_that_is_left_has_everything(tmp_path: Path) -> None:
    nemesis, cluster, _ = nemesis_of(tmp_path)
    for host in cluster.hosts.values():  # all but nobody: each lacks what the others committed
        for path in host.data_dir.rglob("checkpoint"):
            _commit_more(path)
    before = ids(cluster)
    effect = nemesis.begin(wipe(2))
    assert "lacks records" in effect.seen["why"]
    assert ids(cluster) == before
    assert cluster.up() == {1, 2, 3}


def _commit_more(path: Path) -> None:
    checkpoint = CheckpointFile(OsDisk(), str(path))
    checkpoint.load()
    checkpoint.update(high_watermark=1_000, sync=True)
    checkpoint.close()


# -- swap-disks


@pytest.mark.integration
def test_swapped_disks_are_refused_and_swapped_back(tmp_path: Path) -> None:
    nemesis, cluster, ledger = nemesis_of(tmp_path)
    before = ids(cluster)
    effect = nemesis.begin(swap(1, 3))
    assert effect.injected
    assert "accepted" not in effect.seen
    for broker, other in ((1, 3), (3, 1)):
        assert f"belongs to broker id {other}, not {broker}" in effect.seen[str(broker)]["refused"]
    assert ids(cluster) == {1: before[3], 2: before[2], 3: before[1]}
    assert cluster.up() == {2}
    assert nemesis.end(swap(1, 3)).injected
    assert ids(cluster) == before
    assert cluster.up() == {1, 2, 3}
    assert not ledger.failed


@pytest.mark.integration
def test_a_broker_that_takes_anothers_disk_is_told_of_and_stopped(tmp_path: Path) -> None:
    nemesis, cluster, _ = nemesis_of(tmp_path)
    cluster.hosts[3].data_dir.rename(tmp_path / "away")
    cluster.hosts[3].data_dir.mkdir()  # which any broker takes for its own
    effect = nemesis.begin(swap(1, 3))
    assert "accepted the disk of another" in effect.seen["accepted"]
    assert cluster.up() == {2}


@pytest.mark.integration
def test_healing_swaps_back(tmp_path: Path) -> None:
    nemesis, cluster, _ = nemesis_of(tmp_path)
    before = ids(cluster)
    nemesis.begin(swap(1, 2))
    nemesis.heal()
    nemesis.heal()
    assert ids(cluster) == before
    assert cluster.up() == {1, 2, 3}


# -- old-backup


@pytest.mark.integration
def test_an_old_copy_is_put_back_and_replaced(tmp_path: Path) -> None:
    nemesis, cluster, ledger = nemesis_of(tmp_path)
    before = ids(cluster)
    journal = cluster.hosts[2].data_dir / "consensus.journal"
    old = journal.read_bytes()
    effect = nemesis.begin(old_backup(2))
    assert effect.injected
    assert effect.seen["is_same_directory"]
    assert ids(cluster) == before
    assert journal.read_bytes().startswith(old)
    assert ledger.failed == {2}
    seen = nemesis.end(old_backup(2)).seen["2"]
    assert seen["refused_by_peers"] is False, "these peers do not look"
    assert seen["disk"].startswith("replaced")
    assert ids(cluster)[2] != before[2]
    assert not ledger.failed


@pytest.mark.integration
def test_the_oldest_copy_may_be_of_another_directory(tmp_path: Path) -> None:
    nemesis, cluster, _ = nemesis_of(tmp_path)
    first = ids(cluster)[2]
    nemesis.begin(old_backup(2))
    nemesis.end(old_backup(2))
    second = ids(cluster)[2]
    effect = nemesis.begin(old_backup(2, oldest=True, clean=True))
    assert effect.seen["is_same_directory"] is False
    assert ids(cluster)[2] == first != second


def test_no_copy_is_put_back_against_the_ledger(tmp_path: Path) -> None:
    nemesis, cluster, ledger = nemesis_of(tmp_path, "no")
    before = ids(cluster)
    assert not nemesis.begin(old_backup(2)).injected
    assert ids(cluster) == before
    assert cluster.up() == {1, 2, 3}
    assert not ledger.failed
    assert not nemesis.end(old_backup(2)).injected


@pytest.mark.integration
def test_a_copy_that_may_not_be_replaced_is_when_it_may(tmp_path: Path) -> None:
    nemesis, cluster, _ = nemesis_of(tmp_path, "", "not yet")
    nemesis.begin(old_backup(2))
    assert nemesis.end(old_backup(2)).seen["2"]["disk"] == "kept"
    assert cluster.up() == {1, 3}
    nemesis.heal()
    assert cluster.up() == {1, 2, 3}


# -- real brokers


@pytest.mark.integration
def test_n_minus_1_disks_are_lost_and_nothing_else(tmp_path: Path) -> None:
    """A majority with them: its survivor goes on alone, and the setting is put back at last."""
    with loaded(tmp_path, shape_of(3, 3, min_isr=2)) as (running, _):
        nemesis = LossesNemesis(running, FaultBudget(running))
        effect = nemesis.begin(wipe(2))
        assert effect.injected, effect
        assert effect.seen["majority_lost"]
        seen = nemesis.end(wipe(2)).seen
        assert seen["recovered"]["problems"] == []
        assert all(seen[str(broker)]["is_new_directory"] for broker in effect.targets)
        assert seen["min_isr_put_back"] == [TOPIC]
        with Admin(running.bootstrap) as admin:
            (topic,) = admin.describe_topics([TOPIC])
        assert topic.config["min.insync.replicas"] == "2"


@pytest.mark.integration
@pytest.mark.nightly
def test_brokers_do_about_wrong_disks_what_they_promise(tmp_path: Path) -> None:
    with loaded(tmp_path, shape_of(3, 3, min_isr=2)) as (running, _):
        nemesis = LossesNemesis(running, FaultBudget(running))
        effect = nemesis.begin(swap(1, 3))
        assert all(seen["in_a_sentence"] for seen in effect.seen.values())
        nemesis.end(swap(1, 3))
        assert running.wait_quiet(30.0) == []
        effect = nemesis.begin(old_backup(2, clean=True))
        assert effect.injected, effect
        seen = nemesis.end(old_backup(2)).seen["2"]
        assert seen["refused_by_peers"]
        assert seen["in_isr_of"] == 0
