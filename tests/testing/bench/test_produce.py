"""Tests of raftlog.testing.bench.produce."""

from __future__ import annotations

import pytest

from raftlog import Admin
from raftlog.testing.bench.produce import produce
from raftlog.testing.bench.target import Target


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
    assert figure.ratio is not None
    assert figure.records_per_s > 0
    with Admin(broker.bootstrap) as admin:
        assert admin.list_topics() == []
