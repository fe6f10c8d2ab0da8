"""Tests of raftlog.bench.figures: a floor that lost bytes would be no floor."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.bench import figures
from raftlog.bench.figures import FloorClient, floor_server


@pytest.mark.integration
@pytest.mark.parametrize("sync", ["thread", "inline"])
@pytest.mark.parametrize("size", [1, 200, 1 << 18, (1 << 20) + 7])
def test_every_frame_is_written_and_answered(tmp_path: Path, sync: str, size: int) -> None:
    frame = bytes(range(256)) * (size // 256) + bytes(size % 256)
    with floor_server(tmp_path, sync=sync) as address:
        client = FloorClient(address)
        assert client.stream(frame, frames=7, in_flight_max=3) > 0
        assert len(client.round_trips(frame, count=2)) == 2
        client.close()
    assert (tmp_path / "floor").read_bytes() == frame * 9


@pytest.mark.integration
def test_measure_reports_positive_figures(tmp_path: Path) -> None:
    figure = figures.measure(tmp_path, rounds=1, frames=3)
    assert min(figure.values.values()) > 0
