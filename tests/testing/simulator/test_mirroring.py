"""Mirrors and backups of simulated clusters: repeatable, and they notice a missing guard."""

from __future__ import annotations

import pytest

from raftlog.mirror import compacted
from raftlog.testing.simulator.mirroring import MirrorPlan, run

PLAN = MirrorPlan(
    seed=10, source_brokers=1, partitions=2, keys=2, steps=6, tombstones_ms="0"
)  # the mirror runs before and after a tombstone is removed


def test_a_plan_is_run_the_same_way_again() -> None:
    first, second = run(PLAN), run(PLAN)
    assert not first.violations
    assert (first.digest, first.counts) == (second.digest, second.counts)
    assert {"mirror", "backup", "restore"} <= first.counts.keys()


def test_a_copy_without_the_tombstones_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacted, "is_whole", lambda _known, _source: True)
    (violation,) = run(PLAN).violations
    assert (violation.kind, "mirror, compacted" in violation.message) == ("DIFFERS", True)
