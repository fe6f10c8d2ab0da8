"""Tests of spark_source.bench.figures."""

from __future__ import annotations

from raftlog.spark_source.bench.figures import PlanTime, Rate, WorkerMemory


def test_a_rate_says_what_it_is_compared_with() -> None:
    rate = Rate("read Parquet", 10_000_000, 100, 3, 6_000_000.0, "Arrow read", 0.5)
    assert rate.table() == {
        "benchmark": "read Parquet",
        "records": "10,000,000",
        "value bytes": "100",
        "records/s": "6,000,000",
        "Arrow read over it": "0.50",
    }
    assert rate.to_dict()["ratio"] == 0.5


def test_the_time_to_plan_tells_the_start_of_python_apart() -> None:
    plan = PlanTime(partitions=1_000, first_s=2.5, later_s=0.25, cluster_s=0.125)
    assert plan.table()["first in a session s"] == "2.50"
    assert plan.table()["s"] == "0.25"
    assert plan.to_dict()["cluster_s"] == 0.125


def test_memory_is_told_with_what_was_read() -> None:
    memory = WorkerMemory(1_000_000, 100, workers=2, rest_mib=110.4, peak_mib=125.6)
    assert memory.table()["Python workers' memory"] == "reading 1,000,000 of 100 bytes"
    assert memory.table()["peak MiB"] == "126"
    assert memory.to_dict()["workers"] == 2
