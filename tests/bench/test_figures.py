"""Figures of the benchmarks, and their ratios to the floor."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from raftlog import Admin
from raftlog.bench import figures
from raftlog.bench.figures import (
    FloorClient,
    floor_server,
    median_interval,
    percentile_us,
    target,
    throughput,
)
from raftlog.bench.imports import imports
from raftlog.bench.scale import scale
from raftlog.bench.suite import everything, replicated
from tests.bench_check import verdicts

# -- figures ---------------------------------------------------------------------------------------


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


# -- floor -----------------------------------------------------------------------------------------
#
# Tests of raftlog.bench.figures: a floor that lost bytes would be no floor.


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


# -- target ----------------------------------------------------------------------------------------
#
# Tests of raftlog.bench.figures.


@pytest.mark.integration
def test_the_broker_and_its_directory_are_gone_afterwards(tmp_path: Path) -> None:
    with target(tmp_path) as running:
        assert psutil.pid_exists(running.pid)
        assert running.directory.is_dir()
    assert not psutil.pid_exists(running.pid)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_clients_of_a_secured_target_use_tls_until_it_ends(tmp_path: Path) -> None:
    with target(tmp_path, secure=True) as running:
        with Admin(running.bootstrap) as admin:
            assert list(admin.list_topics()) == []
        assert os.environ["RAFTLOG_SECURITY_PROTOCOL"] == "SSL"
    assert "RAFTLOG_SECURITY_PROTOCOL" not in os.environ


# -- imports ---------------------------------------------------------------------------------------
#
# Tests of raftlog.bench.imports.


@pytest.mark.integration
def test_modules_and_cpu_time_of_an_import() -> None:
    cases = {"nothing": "pass", "raftlog": "import raftlog.limits"}
    empty, raftlog = imports(rounds=2, cases=cases)
    assert empty.values["own_modules"] == 0
    assert raftlog.values["own_modules"] == 3
    assert raftlog.values["modules"] > empty.values["modules"] > 10
    assert raftlog.values["import_ms"] > 0
    assert raftlog.values["cpu_ms"] > 0
    assert raftlog.cells["of raftlog"] == "3"


# -- scale -----------------------------------------------------------------------------------------
#
# Tests of raftlog.bench.scale: it runs to its end; what is measured is not judged.


@pytest.mark.integration
def test_a_topic_survives_a_crash_and_a_rebalance(tmp_path: Path) -> None:
    figures = scale(tmp_path, brokers=3, partitions=3)
    assert [figure.values["step"] for figure in figures][-2:] == [
        "rebalance, until no replica moves",
        "deletion",
    ]
    assert all(figure.values["seconds"] > 0 for figure in figures)


# -- suite -----------------------------------------------------------------------------------------
#
# Tests of raftlog.bench.suite: all of it, as short as can be, runs to its end.


@pytest.mark.integration
def test_every_benchmark_gives_a_figure(tmp_path: Path) -> None:
    figures = list(everything(tmp_path, rounds=1, scale=0.001))
    names = [next(iter(figure.cells.values())) for figure in figures[1:]]
    assert names[:9] == [
        "send_many",
        "send_many",
        "send",
        "consume (records)",
        "consume (Arrow)",
        "send, one in flight",
        "send_many, 3 replicas",
        "send_many, 3 replicas",
        "send, one in flight, 3 replicas",
    ]
    assert len(names) == 11


@pytest.mark.integration
def test_three_figures_beside_a_floor_of_three_processes(tmp_path: Path) -> None:
    small, large, one_by_one = replicated(
        tmp_path, records=20_000, large_records=10_000, round_trips=20, rounds=1
    )
    assert small.values["name"] == "send_many, 3 replicas"
    assert (small.values["value_bytes"], large.values["value_bytes"]) == (100, 1_024)
    assert one_by_one.values["count"] == 20
    assert all(figure.values["ratio"] > 0 for figure in (small, large, one_by_one))
    assert list(tmp_path.iterdir()) == []


# -- bench check -----------------------------------------------------------------------------------

# Ratios to the floor, compared with the recorded ones.


def test_a_benchmark_fails_if_all_rounds_are_worse_than_recorded() -> None:
    rounds = [
        {"rate": (0.4, False), "p50": (3.0, True)},
        {"rate": (0.5, False), "p50": (3.4, True)},
    ]
    before = [
        {"rate": (0.5, False), "p50": (3.0, True)},
        {"rate": (0.7, False), "p50": (2.5, True)},
    ]
    assert verdicts(rounds, before) == {"rate": True, "p50": True}
    better = [{"rate": (0.51, False), "p50": (2.9, True)}]
    assert verdicts(rounds, better) == {"rate": False, "p50": False}
    assert verdicts(rounds, [{}]) == {"rate": True, "p50": True}
