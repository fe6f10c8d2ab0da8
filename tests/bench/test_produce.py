"""Tests of raftlog.bench.broker."""

from __future__ import annotations

import pytest

from raftlog import Admin
from raftlog.bench.broker import produce, round_trip
from raftlog.bench.figures import Target


@pytest.mark.integration
@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_figure_beside_the_floor_and_nothing_left_behind(
    broker: Target, one_by_one: bool
) -> None:
    figure = produce(
        broker.bootstrap,
        broker.directory,
        records=20_000,
        value_bytes=50,
        one_by_one=one_by_one,
        rounds=1,
    )
    assert figure.values["ratio"] is not None
    assert figure.values["records_per_s"] > 0
    with Admin(broker.bootstrap) as admin:
        assert admin.list_topics() == []


@pytest.mark.integration
def test_a_figure_beside_the_floor(broker: Target) -> None:
    figure = round_trip(broker.bootstrap, broker.directory, count=20, value_bytes=50, rounds=2)
    assert figure.values["count"] == 40
    assert figure.values["ratio"] == pytest.approx(
        figure.values["p50_us"] / figure.values["floor_p50_us"]
    )
