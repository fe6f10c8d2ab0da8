"""Tests of raftlog.bench.broker."""

from __future__ import annotations

import pytest

from raftlog.bench.broker import idle, streaming
from raftlog.bench.figures import Target
from raftlog.limits import MIB


@pytest.mark.integration
def test_a_broker_stays_small_while_data_streams_through_it(broker: Target) -> None:
    figure = streaming(broker.bootstrap, broker.pid, stream_bytes=64 * MIB)
    assert 0 < figure.values["after_mib"] <= figure.values["peak_mib"] < 150


@pytest.mark.integration
def test_a_broker_stays_small_with_much_that_lies_idle(broker: Target) -> None:
    figure = idle(broker.bootstrap, broker.pid, partitions=200, connections=100)
    assert 0 < figure.values["after_mib"] <= figure.values["peak_mib"] < 150
