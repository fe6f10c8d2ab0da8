"""Tests of raftlog.bench.scale: it runs to its end; what is measured is not judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.bench.scale import scale


@pytest.mark.integration
def test_a_topic_survives_a_crash_and_a_rebalance(tmp_path: Path) -> None:
    figures = scale(tmp_path, brokers=3, partitions=3)
    assert [figure.values["step"] for figure in figures][-2:] == [
        "rebalance, until no replica moves",
        "deletion",
    ]
    assert all(figure.values["seconds"] > 0 for figure in figures)
