"""``raftlog bench spark``, as small as it can be, on the tests' session and cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raftlog.bench import spark as bench
from raftlog.bench.spark import Scene, measure
from raftlog.testing import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_all_figures_come_out(
    spark: SparkSession, brokers: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "PLAN_PARTITIONS", 3)
    scene = Scene(spark, brokers.bootstrap, tmp_path, value_bytes=100, partitions=2, rounds=1)
    plans, memories, reads, tables, writes = measure(scene, records=20_000)
    assert [figure.values["partitions"] for figure in plans] == [3]
    assert [figure.values["records"] for figure in memories] == [2_000, 20_000]
    rates = [figure.values["records_per_s"] for figure in (*reads, *tables, *writes)]
    assert len(rates) == 10
    assert all(rate > 0 for rate in rates)
