"""Tests of raftlog.bench.broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog import Admin
from raftlog.bench import broker
from raftlog.bench.broker import (
    compact,
    consume,
    idle,
    produce,
    round_trip,
    streaming,
    while_compacting,
)
from raftlog.bench.figures import Target
from raftlog.limits import MIB


def test_half_of_a_log_is_compacted_away(tmp_path: Path) -> None:
    figure = compact(tmp_path, records=10_000, value_bytes=200, rounds=2)
    assert figure.values["records"] == 10_000
    assert figure.values["kept_share"] == pytest.approx(0.5, abs=0.05)
    assert figure.values["ratio"] == pytest.approx(
        figure.values["megabytes_per_s"] / figure.values["copy_megabytes_per_s"]
    )
    assert figure.values["megabytes_per_cpu_s"] > 0
    assert list(tmp_path.iterdir()) == []
    assert set(figure.cells) >= {"MB/s", "share of copy"}


@pytest.mark.integration
@pytest.mark.parametrize("value_bytes", [100, 1_000])  # less than a segment, and more
def test_producers_are_measured_beside_a_compaction(tmp_path: Path, value_bytes: int) -> None:
    figure = while_compacting(tmp_path, records=100_000, value_bytes=value_bytes, count=50)
    assert figure.values["count"] == 50
    assert figure.values["beside_count"] >= 20
    assert figure.values["beside_worst_us"] >= figure.values["beside_p99_us"] / 2
    assert set(figure.values) >= {"p50_us", "beside_p99_us"}


# -- consume ---------------------------------------------------------------------------------------
#
# Tests of raftlog.bench.broker.


@pytest.mark.integration
@pytest.mark.parametrize("arrow", [False, True])
def test_a_figure_comes_out(broker: Target, arrow: bool) -> None:
    figure = consume(broker.bootstrap, records=20_000, value_bytes=50, arrow=arrow, rounds=1)
    assert figure.values["records"] == 20_000
    assert figure.values["records_per_s"] > 0


# -- memory ----------------------------------------------------------------------------------------
#
# Tests of raftlog.bench.broker.


@pytest.mark.integration
def test_a_broker_stays_small_while_data_streams_through_it(broker: Target) -> None:
    figure = streaming(broker.bootstrap, broker.pid, stream_bytes=64 * MIB)
    assert 0 < figure.values["after_mib"] <= figure.values["peak_mib"] < 150


@pytest.mark.integration
def test_a_broker_stays_small_with_much_that_lies_idle(broker: Target) -> None:
    figure = idle(broker.bootstrap, broker.pid, partitions=200, connections=100)
    assert 0 < figure.values["after_mib"] <= figure.values["peak_mib"] < 150


# -- produce ---------------------------------------------------------------------------------------
#
# Tests of raftlog.bench.broker.


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


# -- topics ----------------------------------------------------------------------------------------
#
# Tests of raftlog.bench.broker: it runs to its end; what is measured is not judged.


@pytest.mark.integration
def test_creation_stands_beside_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "REST_S", 0.1)
    monkeypatch.setattr(broker, "QUIET_S", 0.1)
    figure = broker.topics(tmp_path, partitions=3, rounds=1)
    assert figure.values["creation_s"] > 0
    assert figure.values["deletion_s"] > 0
    assert figure.values["ratio"] > 0
    assert list(tmp_path.iterdir()) == []
