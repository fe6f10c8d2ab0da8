"""Tests of spark_source.bench.suite: all of it, as small as it can be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raftlog.spark_source.bench import suite
from raftlog.spark_source.bench.figures import PlanTime, Rate, WorkerMemory
from raftlog.spark_source.bench.suite import Contest, Scene, compare, measure
from raftlog.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_all_figures_come_out(
    spark: SparkSession, brokers: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "PLAN_PARTITIONS", 3)
    scene = Scene(spark, brokers.bootstrap, tmp_path, value_bytes=100, partitions=2, rounds=1)
    plans, memories, reads, writes = measure(scene, records=20_000)
    assert [figure.partitions for figure in plans if isinstance(figure, PlanTime)] == [3]
    assert [figure.records for figure in memories if isinstance(figure, WorkerMemory)] == [
        2_000,
        20_000,
    ]
    rates = [figure for figure in (*reads, *writes) if isinstance(figure, Rate)]
    assert len(rates) == len(reads) + len(writes) == 7
    assert all(rate.records_per_s > 0 for rate in rates)


def test_all_are_compared_with_the_first_in_rounds_that_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    costs = {"subject": iter([1.0, 2.0, 4.0]), "other": iter([8.0, 1.0, 4.0])}

    def costing(run: object) -> float:
        assert callable(run)
        run()
        return next(costs[order[-1]])

    monkeypatch.setattr(suite, "seconds", costing)
    scene = Scene(None, "", tmp_path, value_bytes=10, partitions=1, rounds=3)  # type: ignore[arg-type]
    contests = [
        Contest("subject", 100, lambda: order.append("subject")),
        Contest("other", 40, lambda: order.append("other")),
    ]
    subject, other = compare(scene, "subject", contests)
    assert order == ["subject", "other", "other", "subject", "subject", "other"]
    assert (subject.records_per_s, subject.ratio) == (50.0, 1.0)
    assert (other.records_per_s, other.ratio) == (10.0, 5.0)
