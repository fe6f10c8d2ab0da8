"""Tests of raftlog.testing.bench.replicated: it runs to its end; what comes out is not judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.testing.bench.replicated import measure


@pytest.mark.integration
def test_three_figures_beside_a_floor_of_three_processes(tmp_path: Path) -> None:
    small, large, one_by_one = measure(
        tmp_path, records=20_000, large_records=10_000, round_trips=20, rounds=1
    )
    assert small.to_dict()["name"] == "send_many, 3 replicas"
    assert (small.to_dict()["value_bytes"], large.to_dict()["value_bytes"]) == (100, 1_024)
    assert one_by_one.to_dict()["count"] == 20
    assert all(figure.to_dict()["ratio"] > 0 for figure in (small, large, one_by_one))
    assert list(tmp_path.iterdir()) == []
