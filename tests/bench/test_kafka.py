"""Tests of raftlog.bench.kafka."""

from __future__ import annotations

import pytest

from raftlog.bench.figures import Target
from raftlog.bench.kafka import KafkaTarget, measure


@pytest.mark.integration
def test_targets_are_compared_with_the_first_one(broker: Target) -> None:
    targets = [
        KafkaTarget("one", broker.bootstrap, broker.pids),
        KafkaTarget("other", broker.bootstrap),
    ]
    one, other = measure(targets, records=10_000, value_bytes=50, trips=20, rounds=1)
    assert one.values["ratio"] == 1.0
    assert other.values["ratio"] > 0
    assert one.values["produce_cpu_ns"] >= 0
    assert other.values["produce_cpu_ns"] is None
    assert one.cells.keys() == other.cells.keys()
    assert 0 < one.values["p50_us"] <= one.values["p99_us"]
