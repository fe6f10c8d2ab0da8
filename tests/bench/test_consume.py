"""Tests of raftlog.bench.broker."""

from __future__ import annotations

import pytest

from raftlog.bench.broker import consume
from raftlog.bench.figures import Target


@pytest.mark.integration
@pytest.mark.parametrize("arrow", [False, True])
def test_a_figure_comes_out(broker: Target, arrow: bool) -> None:
    figure = consume(broker.bootstrap, records=20_000, value_bytes=50, arrow=arrow, rounds=1)
    assert figure.values["records"] == 20_000
    assert figure.values["records_per_s"] > 0
