"""Files are harmed as was drawn, brokers are watched, and what they do not notice is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from raftlog import Admin
from raftlog.disk import OsDisk
from raftlog.storage.checkpoint import CheckpointFile
from raftlog_jepsen.control import disks
from raftlog_jepsen.control.disks import REGIONS
from raftlog_jepsen.nemesis.base import FaultBudget, FaultPlan
from raftlog_jepsen.nemesis.damage import DAMAGE_KINDS, OFTEN, REBUILT, DamageNemesis
from raftlog_jepsen.nemesis.losses import (
    LOSSES_KINDS,
    RECORD,
    SEGMENT,
    WAYS,
    LossesNemesis,
    VanishNemesis,
)
from tests.integration.load import TOPIC
from tests.jepsen_like.nemesis.stores import FakeCluster, FakeLedger, fake_cluster, loaded, shape_of


def fault_of(kind: str, region: str, *targets: int, **args: Any) -> FaultPlan:
    defaults = {"mode": "flip", "bits": 1, "live": False, "torn": False, "helix": False, "seed": 7}
    return FaultPlan(
        kind=kind,
        targets=targets,
        args={**defaults, "region": region, **args},
        lossy=region not in REBUILT and not args.get("torn"),
    )


def nemesis_of(
    tmp_path: Path, *answers: str, partitions: int = 1
) -> tuple[DamageNemesis, FakeCluster, FakeLedger]:
    cluster, ledger = fake_cluster(tmp_path, partitions=partitions), FakeLedger(list(answers))
    return DamageNemesis(cluster, ledger, notice_s=0.0, more_s=0.0), cluster, ledger


def contents(cluster: FakeCluster) -> dict[Path, bytes]:
    """Of all files of partitions."""
    found = (path for path in cluster.directory.rglob("topics/**/*") if path.is_file())
    return {path: path.read_bytes() for path in found}


# -- drawing


@pytest.mark.parametrize("kind", DAMAGE_KINDS)
def test_the_same_chance_draws_the_same_fault(tmp_path: Path, kind: str) -> None:
    nemesis = DamageNemesis(FakeCluster(tmp_path, shape_of(5, 3)), FakeLedger())
    plans = [nemesis.draw(kind, Random(seed), shape_of(5, 3)) for seed in range(300)]
    assert plans == [nemesis.draw(kind, Random(seed), shape_of(5, 3)) for seed in range(300)]
    assert all(plan.lossy or plan.args["region"] in REBUILT or plan.args["torn"] for plan in plans)
    assert {len(plan.targets) for plan in plans} == {
        "corrupt": {0, 1, 2},
        "truncate": {1, 2},
        "rollback": {1},
    }[kind]


def test_every_region_is_drawn_and_a_helix_of_segments_only(tmp_path: Path) -> None:
    nemesis = DamageNemesis(FakeCluster(tmp_path, shape_of(3, 3)), FakeLedger())
    plans = [nemesis.draw("corrupt", Random(seed), shape_of(3, 3)) for seed in range(300)]
    assert {plan.args["region"] for plan in plans} == set(REGIONS)
    helices = [plan for plan in plans if plan.args["helix"]]
    assert helices
    assert {plan.args["region"] for plan in helices} == set(OFTEN)
    assert all(plan.args["live"] and not plan.targets for plan in helices)
    assert nemesis.why_not("corrupt") == ""
    assert nemesis.why_not("kill")


# -- doing it, and what comes of it


def test_a_journal_is_refused_and_the_disk_replaced(tmp_path: Path) -> None:
    nemesis, cluster, ledger = nemesis_of(tmp_path)
    fault = fault_of("corrupt", "journal", 2)
    old = disks.directory_id(cluster.hosts[2].data_dir)
    effect = nemesis.begin(fault)
    assert effect.injected
    assert effect.seen["changed"]["2"]["region"] == "journal"
    assert cluster.up() == {1, 3}
    assert ledger.failed == {2}
    seen = nemesis.end(fault).seen["2"]
    assert "corrupt" in seen["wrong"]
    assert "This broker may have lost votes" in seen["refused"]
    assert seen["in_a_sentence"]
    assert seen["disk"].startswith("replaced")
    assert cluster.up() == {1, 2, 3}
    assert disks.directory_id(cluster.hosts[2].data_dir) not in {"", old}
    assert ledger.failed == set()


def test_a_disk_that_may_not_be_replaced_is_when_it_may(tmp_path: Path) -> None:
    # Asked before, after the kill, and before the disk is emptied.
    nemesis, cluster, ledger = nemesis_of(tmp_path, "", "", "it holds the only copy")
    fault = fault_of("corrupt", "identity", 2)
    assert nemesis.begin(fault).injected
    assert nemesis.end(fault).seen["2"]["disk"] == "kept"
    assert cluster.up() == {1, 3}
    assert len(ledger.asked) == 3
    nemesis.heal()
    assert cluster.up() == {1, 2, 3}
    nemesis.heal()
    assert len(ledger.asked) == 4


@pytest.mark.parametrize("answers", [("no",), ("", "no")], ids=["before", "after-the-kill"])
def test_what_the_ledger_forbids_is_not_done(tmp_path: Path, answers: tuple[str, ...]) -> None:
    nemesis, cluster, ledger = nemesis_of(tmp_path, *answers)
    before = contents(cluster)
    effect = nemesis.begin(fault_of("truncate", "closed", 2))
    assert not effect.injected
    assert effect.seen["why"].endswith("no")
    assert cluster.up() == {1, 2, 3}
    assert contents(cluster) == before
    assert not ledger.failed
    assert not nemesis.end(fault_of("truncate", "closed", 2)).injected


def test_a_broker_that_is_down_is_left_alone(tmp_path: Path) -> None:
    nemesis, cluster, _ = nemesis_of(tmp_path)
    cluster.kill([2])
    assert not nemesis.begin(fault_of("corrupt", "closed", 2)).injected
    assert cluster.up() == {1, 3}


def test_where_there_is_nothing_to_harm_brokers_run_on(tmp_path: Path) -> None:
    nemesis, cluster, _ = nemesis_of(tmp_path)
    for path in cluster.hosts[2].data_dir.rglob("*.producers"):
        path.unlink()
    assert not nemesis.begin(fault_of("corrupt", "producers", 2)).injected
    assert cluster.up() == {1, 2, 3}


def test_what_a_broker_does_not_notice_is_told(tmp_path: Path) -> None:
    """These brokers do not mend anything; and what an index covers, no start reads."""
    nemesis, cluster, ledger = nemesis_of(tmp_path)
    fault = fault_of("corrupt", "closed", 2, live=True)
    effect = nemesis.begin(fault)
    assert effect.injected
    assert cluster.up() == {1, 2, 3}, "the broker is at work still"
    seen = nemesis.end(fault).seen["2"]
    assert seen["noticed_at_work"] == []
    assert seen["wrong"] == seen["unnoticed"] != ""
    assert [each["broker"] for each in nemesis.unnoticed] == [2]
    assert ledger.failed == {2}, "its copy does not count"


def test_what_is_built_again_is_no_loss(tmp_path: Path) -> None:
    nemesis, cluster, ledger = nemesis_of(tmp_path)
    for region, wrong_after in (("epochs", False), ("producers", True)):
        fault = fault_of("corrupt", region, 2)
        assert nemesis.begin(fault).injected
        seen = nemesis.end(fault).seen["2"]
        assert seen["wrong"]
        assert bool(seen["wrong_still"]) == wrong_after
        assert seen["is_back"]
    assert cluster.up() == {1, 2, 3}
    assert not nemesis.unnoticed
    assert not ledger.asked
    assert not ledger.failed


def test_a_helix_harms_another_partition_on_each_broker(tmp_path: Path) -> None:
    nemesis, _, ledger = nemesis_of(tmp_path, partitions=3)
    fault = fault_of("corrupt", "closed", helix=True, live=True)
    effect = nemesis.begin(fault)
    assert effect.targets == (1, 2, 3)
    harmed = [Path(noted["file"]).parent.name for noted in effect.seen["changed"].values()]
    assert sorted(harmed) == ["0", "1", "2"]
    assert ledger.asked == [(1,), (2,), (3,)]


def test_a_helix_of_fewer_partitions_spares_brokers(tmp_path: Path) -> None:
    nemesis, cluster, _ = nemesis_of(tmp_path, partitions=2)
    fault = fault_of("corrupt", "closed", helix=True, live=True)
    assert len(nemesis.begin(fault).targets) == 2
    nemesis.heal()
    assert cluster.up() == {1, 2, 3}
    assert len(nemesis.unnoticed) == 2


def test_an_old_journal_comes_back(tmp_path: Path) -> None:
    nemesis, cluster, _ = nemesis_of(tmp_path)
    journal = cluster.hosts[2].data_dir / "consensus.journal"
    old = journal.read_bytes()
    fault = fault_of("rollback", "journal", 2)
    effect = nemesis.begin(fault)
    assert effect.injected
    assert journal.read_bytes() == old
    assert effect.seen["changed"]["2"]["mode"] == "put back"
    cluster.wary = {2}
    seen = nemesis.end(fault).seen["2"]
    assert "cannot work together" in seen["said"][0]
    assert seen["disk"].startswith("replaced")


def test_what_nobody_has_written_since_cannot_be_rolled_back(tmp_path: Path) -> None:
    nemesis, cluster, ledger = nemesis_of(tmp_path)
    effect = nemesis.begin(fault_of("rollback", "checkpoint", 2))
    assert not effect.injected
    assert cluster.up() == {1, 2, 3}
    assert not ledger.failed


# -- real brokers


@pytest.mark.integration
def test_brokers_do_about_damage_what_they_promise(tmp_path: Path) -> None:
    """Set aside and copied again; refused in a sentence."""
    with loaded(tmp_path, shape_of(3, 3, partitions=2, min_isr=2)) as (running, _):
        nemesis = DamageNemesis(running, FakeLedger())
        cut = _seen(nemesis, fault_of("truncate", "active", 2))
        assert cut["set_aside"]
        assert running.wait_quiet(30.0) == []
        journal = _seen(nemesis, fault_of("corrupt", "journal", 3, live=True))
        assert journal["in_a_sentence"]
        assert not nemesis.unnoticed


@pytest.mark.integration
@pytest.mark.nightly
def test_brokers_do_about_torn_and_old_files_what_they_promise(tmp_path: Path) -> None:
    """Cut; refused by the others."""
    with loaded(tmp_path, shape_of(3, 3, partitions=2, min_isr=2)) as (running, _):
        nemesis = DamageNemesis(running, FakeLedger())
        torn = _seen(nemesis, fault_of("truncate", "active", 1, torn=True))
        # A batch that a checkpoint has as synced is missing: that is damage, and not a torn write.
        texts = ("torn write", "is corrupt")
        assert any(text in line for line in torn["said"] for text in texts), torn
        assert running.wait_quiet(30.0) == []
        old = _seen(nemesis, fault_of("rollback", "journal", 1))
        assert any("cannot work together" in line for line in old["said"]), old
        assert old["disk"].startswith("replaced")
        assert not nemesis.unnoticed


def _seen(nemesis: DamageNemesis, fault: FaultPlan) -> dict[str, Any]:
    effect = nemesis.begin(fault)
    assert effect.injected, effect
    (seen,) = nemesis.end(fault).seen.values()
    assert isinstance(seen, dict)
    return seen


# -- losses ----------------------------------------------------------------------------------------
#
# Disks are emptied, swapped and put back with the ledger's consent; brokers do what they say.


def wipe(count: int, **args: Any) -> FaultPlan:
    defaults = {"count": count, "of": "machines", "turn": 1, "restart_survivor": False}
    return FaultPlan(kind="wipe", args={**defaults, **args}, lossy=True)


def old_backup(broker: int, *, oldest: bool = False, clean: bool = False) -> FaultPlan:
    args = {"oldest": oldest, "clean": clean}
    return FaultPlan(kind="old-backup", targets=(broker,), args=args, lossy=True)


def swap(*pair: int) -> FaultPlan:
    return FaultPlan(kind="swap-disks", targets=pair)


def losses_nemesis_of(
    tmp_path: Path, *answers: str, brokers: int = 3
) -> tuple[LossesNemesis, FakeCluster, FakeLedger]:
    cluster, ledger = fake_cluster(tmp_path, brokers=brokers), FakeLedger(list(answers))
    return LossesNemesis(cluster, ledger, patience_s=0.0), cluster, ledger


def ids(cluster: FakeCluster) -> dict[int, str]:
    return {number: disks.directory_id(host.data_dir) for number, host in cluster.hosts.items()}


# -- drawing


@pytest.mark.parametrize("kind", LOSSES_KINDS)
def test_the_same_chance_draws_the_same_fault_in_losses(tmp_path: Path, kind: str) -> None:
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
    nemesis, _, _ = losses_nemesis_of(tmp_path, brokers=1)
    assert nemesis.why_not("swap-disks")
    assert nemesis.why_not("wipe") == ""
    assert nemesis.why_not("kill")


# -- wipe


def test_a_disk_is_emptied_and_its_broker_comes_back_with_another(tmp_path: Path) -> None:
    nemesis, cluster, ledger = losses_nemesis_of(tmp_path)
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


def test_a_machine_loses_the_disks_of_all_its_workers(tmp_path: Path) -> None:
    nemesis, cluster, ledger = losses_nemesis_of(tmp_path, brokers=6)
    cluster.shape = replace(cluster.shape, workers=2)
    targets = nemesis.begin(wipe(1)).targets
    assert targets in cluster.shape.machines
    assert ledger.failed == {*targets}


@pytest.mark.parametrize("answers", [("no",), ("", "no")], ids=["before", "after-the-kill"])
def test_what_the_ledger_forbids_is_not_done_in_losses(
    tmp_path: Path, answers: tuple[str, ...]
) -> None:
    nemesis, cluster, ledger = losses_nemesis_of(tmp_path, *answers)
    before = ids(cluster)
    assert not nemesis.begin(wipe(1)).injected
    assert ids(cluster) == before
    assert cluster.up() == {1, 2, 3}
    assert not ledger.failed


def test_nothing_is_emptied_while_a_broker_is_down(tmp_path: Path) -> None:
    nemesis, cluster, ledger = losses_nemesis_of(tmp_path)
    cluster.kill([3])
    assert not nemesis.begin(wipe(1)).injected
    assert not ledger.asked


def test_a_majority_goes_only_where_the_one_that_is_left_has_everything(tmp_path: Path) -> None:
    nemesis, cluster, _ = losses_nemesis_of(tmp_path)
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
    nemesis, cluster, ledger = losses_nemesis_of(tmp_path)
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
    nemesis, cluster, _ = losses_nemesis_of(tmp_path)
    cluster.hosts[3].data_dir.rename(tmp_path / "away")
    cluster.hosts[3].data_dir.mkdir()  # which any broker takes for its own
    effect = nemesis.begin(swap(1, 3))
    assert "accepted the disk of another" in effect.seen["accepted"]
    assert cluster.up() == {2}


@pytest.mark.integration
def test_healing_swaps_back(tmp_path: Path) -> None:
    nemesis, cluster, _ = losses_nemesis_of(tmp_path)
    before = ids(cluster)
    nemesis.begin(swap(1, 2))
    nemesis.heal()
    nemesis.heal()
    assert ids(cluster) == before
    assert cluster.up() == {1, 2, 3}


# -- old-backup


@pytest.mark.integration
def test_an_old_copy_is_put_back_and_replaced(tmp_path: Path) -> None:
    nemesis, cluster, ledger = losses_nemesis_of(tmp_path)
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
    nemesis, cluster, _ = losses_nemesis_of(tmp_path)
    first = ids(cluster)[2]
    nemesis.begin(old_backup(2))
    nemesis.end(old_backup(2))
    second = ids(cluster)[2]
    effect = nemesis.begin(old_backup(2, oldest=True, clean=True))
    assert effect.seen["is_same_directory"] is False
    assert ids(cluster)[2] == first != second


def test_no_copy_is_put_back_against_the_ledger(tmp_path: Path) -> None:
    nemesis, cluster, ledger = losses_nemesis_of(tmp_path, "no")
    before = ids(cluster)
    assert not nemesis.begin(old_backup(2)).injected
    assert ids(cluster) == before
    assert cluster.up() == {1, 2, 3}
    assert not ledger.failed
    assert not nemesis.end(old_backup(2)).injected


@pytest.mark.integration
def test_a_copy_that_may_not_be_replaced_is_when_it_may(tmp_path: Path) -> None:
    nemesis, cluster, _ = losses_nemesis_of(tmp_path, "", "not yet")
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


# -- vanishing -------------------------------------------------------------------------------------
#
# Files vanish with the ledger's consent; brokers notice it and copy again.


SEED = 0  # of three brokers, it draws broker 2


def vanish(what: str, *, count: int = 1, live: bool = False) -> FaultPlan:
    args: dict[str, Any] = {"count": count, "what": what, "live": live, "seed": SEED}
    return FaultPlan(kind="vanish", args=args, lossy=True)


def vanishing_nemesis_of(
    tmp_path: Path, *answers: str
) -> tuple[VanishNemesis, FakeCluster, FakeLedger]:
    cluster, ledger = fake_cluster(tmp_path, brokers=3), FakeLedger(list(answers))
    return VanishNemesis(cluster, ledger, notice_s=0.0), cluster, ledger


def test_the_same_chance_draws_the_same_fault_in_vanishing(tmp_path: Path) -> None:
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
    nemesis, cluster, ledger = vanishing_nemesis_of(tmp_path)
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
def test_what_the_ledger_forbids_is_not_done_in_vanishing(
    tmp_path: Path, answers: tuple[str, ...]
) -> None:
    nemesis, cluster, ledger = vanishing_nemesis_of(tmp_path, *answers)
    assert not nemesis.begin(vanish("topics", count=2)).injected
    assert all(disks.partitions(host.data_dir) for host in cluster.hosts.values())
    assert cluster.up() == {1, 2, 3}
    assert not ledger.failed


def test_nothing_vanishes_where_nothing_is_or_a_broker_is_down(tmp_path: Path) -> None:
    nemesis, cluster, ledger = vanishing_nemesis_of(tmp_path)
    disks.remove(cluster.hosts[2].data_dir / "topics")
    assert not nemesis.begin(vanish("topics")).injected
    assert cluster.up() == {1, 2, 3}
    cluster.kill([2])
    assert not nemesis.begin(vanish("topics")).injected
    assert not ledger.failed


def test_a_broker_that_does_not_notice_is_started_again(tmp_path: Path) -> None:
    nemesis, cluster, _ = vanishing_nemesis_of(tmp_path)
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
