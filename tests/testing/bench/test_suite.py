"""Tests of raftlog.testing.bench.suite: all of it, as short as can be, runs to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.testing.bench.suite import everything


@pytest.mark.integration
def test_every_benchmark_gives_a_figure(tmp_path: Path) -> None:
    figures = list(everything(tmp_path, rounds=1, scale=0.001))
    names = [next(iter(figure.table().values())) for figure in figures[1:]]
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
