"""Tests of raftlog.testing.bench.compact."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.testing.bench.compact import beside, compact


def test_half_of_a_log_is_compacted_away(tmp_path: Path) -> None:
    figure = compact(tmp_path, records=10_000, value_bytes=200, rounds=2)
    assert figure.records == 10_000
    assert figure.kept_share == pytest.approx(0.5, abs=0.05)
    assert figure.ratio == pytest.approx(figure.megabytes_per_s / figure.copy_megabytes_per_s)
    assert figure.megabytes_per_cpu_s > 0
    assert list(tmp_path.iterdir()) == []
    assert set(figure.table()) >= {"MB/s", "share of copy"}


@pytest.mark.integration
def test_producers_are_measured_beside_a_compaction(tmp_path: Path) -> None:
    figure = beside(tmp_path, records=100_000, value_bytes=1_000, count=50)
    assert figure.count == 50
    assert figure.beside_count >= 20
    assert figure.beside_worst_us >= figure.beside_p99_us / 2
    assert set(figure.to_dict()) >= {"p50_us", "beside_p99_us"}
