"""Files are harmed as was drawn, brokers are watched, and what they do not notice is told."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from raftlog_jepsen.control import disks
from raftlog_jepsen.control.disks import REGIONS
from raftlog_jepsen.nemesis.base import FaultPlan
from raftlog_jepsen.nemesis.damage import DAMAGE_KINDS, OFTEN, REBUILT, DamageNemesis
from tests.jepsen_like.nemesis.stores import (
    FakeCluster,
    FakeLedger,
    fake_cluster,
    loaded,
    shape_of,
)


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
    harmed = [Path(told["file"]).parent.name for told in effect.seen["changed"].values()]
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
        assert any("torn write" in line for line in torn["said"])
        assert running.wait_quiet(30.0) == []
        old = _seen(nemesis, fault_of("rollback", "journal", 1))
        assert any("cannot work together" in line for line in old["said"])
        assert old["disk"].startswith("replaced")
        assert not nemesis.unnoticed


def _seen(nemesis: DamageNemesis, fault: FaultPlan) -> dict[str, Any]:
    effect = nemesis.begin(fault)
    assert effect.injected, effect
    (seen,) = nemesis.end(fault).seen.values()
    assert isinstance(seen, dict)
    return seen
