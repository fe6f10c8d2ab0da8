"""Tests of raftlog.testing.bench.figures."""

from __future__ import annotations

import json

import pytest

from raftlog.testing.bench.figures import (
    Figure,
    Floor,
    Latency,
    Memory,
    Throughput,
    percentile_us,
)


@pytest.mark.parametrize(
    ("figure", "cell", "text"),
    [
        (Throughput("send_many", 10, 100, 3, 1_500_000.0, 170.4, 2_000_000.0, 0.75), "MB/s", "170"),
        (
            Throughput("send_many", 10, 100, 3, 1_500_000.0, 170.4, 2_000_000.0, 0.75),
            "share of floor",
            "75%",
        ),
        (Latency("send", 10, 450.4, 900.0, 180.0, 300.0, 2.5), "times the floor", "2.50"),
        (Memory("idle", 60.4, 40.0), "peak MiB", "60"),
        (Floor(700.2, 180.0, 300.0), "streamed MB/s", "700"),
    ],
)
def test_a_figure_is_a_row_for_people_and_json_for_programs(
    figure: Figure, cell: str, text: str
) -> None:
    assert figure.table()[cell] == text
    assert json.loads(json.dumps(figure.to_dict())) == figure.to_dict()


def test_a_throughput_without_a_floor_shows_none() -> None:
    assert "share of floor" not in Throughput("consume", 10, 100, 3, 1.0, 1.0).table()


def test_percentiles_are_in_microseconds() -> None:
    seconds = [number / 1_000_000 for number in range(1, 101)]
    assert percentile_us(seconds, 50) == pytest.approx(50.5)
    assert percentile_us(seconds, 99) == pytest.approx(99.99)
