"""Modes of the simulator: mirrors, recoveries and transactions; planted defects are found."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.client.fetcher import _Dropped
from raftlog.mirror import compacted
from raftlog.server.cluster.node import ClusterNode
from raftlog.storage.producer_state import LogTransactions, ProducerTable
from raftlog.testing.simulator import world
from raftlog.testing.simulator.mirroring import MirrorPlan
from raftlog.testing.simulator.mirroring import run as run_mirroring
from raftlog.testing.simulator.recovering import SIZES, RecoveryPlan
from raftlog.testing.simulator.recovering import run as run_recovering
from raftlog.testing.simulator.transacting import TransactionPlan
from raftlog.testing.simulator.transacting import run as run_transacting

# -- mirroring -------------------------------------------------------------------------------------

# Mirrors and backups of simulated clusters: repeatable, and they notice a missing guard.


PLAN = MirrorPlan(
    seed=10, source_brokers=1, partitions=2, keys=2, steps=6, tombstones_ms="0"
)  # the mirror runs before and after a tombstone is removed


def test_a_plan_is_run_the_same_way_again() -> None:
    first, second = run_mirroring(PLAN), run_mirroring(PLAN)
    assert not first.violations
    assert (first.digest, first.counts) == (second.digest, second.counts)
    assert {"mirror", "backup", "restore"} <= first.counts.keys()


def test_a_copy_without_the_tombstones_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacted, "is_whole", lambda *_: True)
    (violation,) = run_mirroring(PLAN).violations
    assert (violation.kind, "mirror, compacted" in violation.message) == ("DIFFERS", True)


# -- recovering ------------------------------------------------------------------------------------

# Recoveries by an operator who knows little: repeatable, and they notice a missing guard.


def test_a_plan_of_recoveries_is_run_the_same_way_again() -> None:
    plan = RecoveryPlan.draw(7)
    first, second = run_recovering(plan), run_recovering(plan)
    assert not first.violations
    assert (first.digest, first.counts) == (second.digest, second.counts)
    assert first.counts["acknowledged"] > first.counts["to be there"] > 0


def test_the_worlds_of_the_manual_are_drawn() -> None:
    assert {RecoveryPlan.draw(seed).sizes for seed in range(200)} == set(SIZES)


def test_brokers_that_accept_every_peer_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterNode, "_admit", lambda _self, _peer: None)
    monkeypatch.setattr(ClusterNode, "_check_claims", lambda _self: None)
    violations = run_recovering(RecoveryPlan.draw(102)).violations
    assert "TWO-HISTORIES" in {violation.kind for violation in violations}


# -- transacting -----------------------------------------------------------------------------------

# Defects of transactions that are planted in the product are found by a seed.


SEED = 2


def no_stable_offset(_self: LogTransactions, high_watermark: int) -> int:
    return high_watermark


def no_aborted(_self: _Dropped, header: Any) -> bool:
    return bool(header.is_control)


def no_verification(_self: ProducerTable, _producer: int, _epoch: int) -> bool:
    return True


def none_listed(self: LogTransactions, producer: int, _offset: int, *, is_commit: bool) -> None:
    self._open.pop(producer, None)


@pytest.mark.parametrize(
    ("owner", "name", "planted", "kinds"),
    [
        (
            LogTransactions,
            "last_stable_offset",
            no_stable_offset,
            {"PRECOMMITTED-READ", "STABLE-OFFSET"},
        ),
        (_Dropped, "has", no_aborted, {"ABORTED-READ", "INVISIBLE"}),
        (LogTransactions, "end", none_listed, {"ABORTED-READ", "ABORTED-LIST"}),
        # No coordinator knows them: their leaders abort them, also those that are acknowledged.
        (
            ProducerTable,
            "has_open",
            no_verification,
            {"LOST-WRITE", "NOT-A-PART", "UNDECIDED-MARKER"},
        ),
    ],
)
def test_a_planted_defect_is_found_from_outside_and_from_inside(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, planted: object, kinds: set[str]
) -> None:
    monkeypatch.setattr(owner, name, planted)
    monkeypatch.setattr(world, "VIOLATIONS_MAX", 1_000)
    result = run_transacting(TransactionPlan.draw(SEED))
    assert kinds <= {violation.kind for violation in result.violations}


def test_the_seed_is_good_without_them_and_not_empty() -> None:
    result = run_transacting(TransactionPlan.draw(SEED))
    assert not result.violations
    assert min(result.counts[what] for what in ("committed", "aborted", "fenced", "records")) > 0
