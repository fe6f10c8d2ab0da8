"""The cost of metrics: measured on a broker, and its interval."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.bench.metrics import SCRAPES, measured_broker, metrics
from raftlog.bench.metrics_broker import WITH, WITHOUT


@pytest.mark.integration
def test_a_figure_of_few_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.bench.metrics.WARM_UP_ROUNDS", 1)
    monkeypatch.setattr("raftlog.bench.metrics.SCRAPES", 1)
    assert SCRAPES > 1
    figure = metrics(tmp_path, pairs=2, count=10)
    values = figure.values
    assert values["cost_low"] <= values["cost"] <= values["cost_high"]
    assert values["with_us"] > 0 < values["without_us"]
    assert 0 < values["scraping_cost"] < 1
    assert not list(tmp_path.iterdir())


@pytest.mark.integration
def test_the_hot_path_of_a_produce_request_counts(tmp_path: Path) -> None:
    with measured_broker(tmp_path) as broker:
        assert broker.select(WITHOUT) <= broker.select(WITH)
        assert broker.functions >= 10
