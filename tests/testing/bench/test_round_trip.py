"""Tests of raftlog.testing.bench.round_trip."""

from __future__ import annotations

import pytest

from raftlog.testing.bench.round_trip import round_trip
from raftlog.testing.bench.target import Target


@pytest.mark.integration
def test_a_figure_beside_the_floor(broker: Target) -> None:
    figure = round_trip(broker.bootstrap, broker.directory, count=20, value_bytes=50, rounds=2)
    assert figure.count == 40
    assert figure.ratio == pytest.approx(figure.p50_us / figure.floor_p50_us)
