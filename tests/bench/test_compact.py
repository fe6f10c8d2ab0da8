"""Tests of raftlog.bench.broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.bench.broker import compact, while_compacting


def test_half_of_a_log_is_compacted_away(tmp_path: Path) -> None:
    figure = compact(tmp_path, records=10_000, value_bytes=200, rounds=2)
    assert figure.values["records"] == 10_000
    assert figure.values["kept_share"] == pytest.approx(0.5, abs=0.05)
    assert figure.values["ratio"] == pytest.approx(
        figure.values["megabytes_per_s"] / figure.values["copy_megabytes_per_s"]
    )
    assert figure.values["megabytes_per_cpu_s"] > 0
    assert list(tmp_path.iterdir()) == []
    assert set(figure.cells) >= {"MB/s", "share of copy"}


@pytest.mark.integration
@pytest.mark.parametrize("value_bytes", [100, 1_000])  # less than a segment, and more
def test_producers_are_measured_beside_a_compaction(tmp_path: Path, value_bytes: int) -> None:
    figure = while_compacting(tmp_path, records=100_000, value_bytes=value_bytes, count=50)
    assert figure.values["count"] == 50
    assert figure.values["beside_count"] >= 20
    assert figure.values["beside_worst_us"] >= figure.values["beside_p99_us"] / 2
    assert set(figure.values) >= {"p50_us", "beside_p99_us"}
