"""Tests of raftlog.bench.figures."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from raftlog.bench.figures import median_interval, percentile_us, throughput

READ: Final[dict[str, Any]] = {
    "records": 10,
    "value_bytes": 100,
    "rounds": 3,
    "records_per_s": 1_500_000.0,
    "megabytes_per_s": 170.4,
}


def test_a_throughput_is_a_row_for_people_and_json_for_programs() -> None:
    figure = throughput("send_many", **READ, floor_records_per_s=2_000_000.0)
    assert figure.cells["records/s"] == "1,500,000"
    assert figure.cells["MB/s"] == "170"
    assert figure.cells["share of floor"] == "75%"
    assert json.loads(json.dumps(figure.values)) == figure.values
    assert figure.values["ratio"] == 0.75


def test_a_throughput_without_a_floor_shows_none() -> None:
    figure = throughput("consume", **READ)
    assert "share of floor" not in figure.cells
    assert figure.values["ratio"] is None


def test_percentiles_are_in_microseconds() -> None:
    seconds = [number / 1_000_000 for number in range(1, 101)]
    assert percentile_us(seconds, 50) == pytest.approx(50.5)
    assert percentile_us(seconds, 99) == pytest.approx(99.99)


def test_the_interval_of_a_median_is_that_of_the_sign_test() -> None:
    """Ranks from tables of the sign test: 2 of 9, 6 of 20, 40 of 100 from each end."""
    for count, rank in ((5, 1), (9, 2), (20, 6), (100, 40), (4_000, 1_938)):
        values = list(range(count, 0, -1))
        assert median_interval(values) == (rank, count + 1 - rank), count
