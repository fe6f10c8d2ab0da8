"""Tests of raftlog.bench.suite: all of it, as short as can be, runs to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.bench.suite import everything, replicated


@pytest.mark.integration
def test_every_benchmark_gives_a_figure(tmp_path: Path) -> None:
    figures = list(everything(tmp_path, rounds=1, scale=0.001))
    names = [next(iter(figure.cells.values())) for figure in figures[1:]]
    assert names[:9] == [
        "send_many",
        "send_many",
        "send",
        "consume (records)",
        "consume (Arrow)",
        "send, one in flight",
        "send_many, 3 replicas",
        "send_many, 3 replicas",
        "send, one in flight, 3 replicas",
    ]
    assert len(names) == 11


@pytest.mark.integration
def test_three_figures_beside_a_floor_of_three_processes(tmp_path: Path) -> None:
    small, large, one_by_one = replicated(
        tmp_path, records=20_000, large_records=10_000, round_trips=20, rounds=1
    )
    assert small.values["name"] == "send_many, 3 replicas"
    assert (small.values["value_bytes"], large.values["value_bytes"]) == (100, 1_024)
    assert one_by_one.values["count"] == 20
    assert all(figure.values["ratio"] > 0 for figure in (small, large, one_by_one))
    assert list(tmp_path.iterdir()) == []
