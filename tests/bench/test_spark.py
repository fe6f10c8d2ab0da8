"""Tests of raftlog.bench.spark, without Spark; tests/spark_source/test_bench.py has all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.bench import spark
from raftlog.bench.spark import Contest, Scene, compare


def test_all_are_compared_with_the_first_in_rounds_that_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    costs = {"subject": iter([1.0, 2.0, 4.0]), "other": iter([8.0, 1.0, 4.0])}

    def costing(run: object) -> float:
        assert callable(run)
        run()
        return next(costs[order[-1]])

    monkeypatch.setattr(spark, "seconds", costing)
    scene = Scene(None, "", tmp_path, value_bytes=10, partitions=1, rounds=3)  # type: ignore[arg-type]
    contests = [
        Contest("subject", 100, lambda: order.append("subject")),
        Contest("other", 40, lambda: order.append("other")),
    ]
    subject, other = compare(scene, "subject", contests)
    assert order == ["subject", "other", "other", "subject", "subject", "other"]
    assert (subject.values["records_per_s"], subject.values["ratio"]) == (50.0, 1.0)
    assert (other.values["records_per_s"], other.values["ratio"]) == (10.0, 5.0)
    assert other.cells["subject over it"] == "5.00"
