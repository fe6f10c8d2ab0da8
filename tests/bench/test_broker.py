"""Tests of raftlog.bench.broker."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from raftlog import Admin
from raftlog.bench import broker, groups
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
from raftlog.bench.metrics import SCRAPES, measured_broker, metrics
from raftlog.bench.metrics_broker import WITH, WITHOUT, versions
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


# -- groups ----------------------------------------------------------------------------------------
#
# Tests of raftlog.bench.groups: it runs to its end; what is measured is not judged.


def test_the_longest_gap_is_of_partitions_that_stayed_and_counts_from_the_edges() -> None:
    arrivals = {0: [1.0, 1.5, 9.0], 1: [1.0, 4.0]}
    assert groups._gap_ms(arrivals, {0}, 1.0, 2.0) == 500.0
    assert groups._gap_ms(arrivals, {0, 1}, 1.0, 5.0) == 3_500.0
    assert groups._gap_ms(arrivals, {2}, 1.0, 2.0) == 1_000.0, "nothing came at all"
    assert groups._gap_ms(arrivals, set(), 1.0, 2.0) == 0.0


@pytest.mark.integration
def test_a_join_and_a_death_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "QUIET_S", 0.2)
    monkeypatch.setattr(groups, "SESSION_TIMEOUT_MS", 1_500)
    figure = groups.rebalances(tmp_path, partitions=4, members=2)
    assert 0 < figure.values["moved_by_join"] <= 4
    assert 0 < figure.values["moved_by_death"] <= 4
    assert figure.values["join_s"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_group_consumption_stands_beside_assigned(tmp_path: Path) -> None:
    figure = groups.share(tmp_path, records=20_000, rounds=1)
    assert figure.values["records"] == 20_000
    assert figure.values["ratio"] > 0


@pytest.mark.integration
def test_members_at_rest_cost_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "REST_S", 0.1)
    figure = groups.idle(tmp_path, groups=2, members=2, seconds=0.5)
    assert figure.values["groups"] == 2
    assert figure.values["cores"] >= 0


# -- metrics ---------------------------------------------------------------------------------------
#
# The cost of metrics: measured on a broker, and its interval.


@pytest.mark.integration
def test_a_figure_of_few_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.bench.metrics.WARM_UP_ROUNDS", 1)
    monkeypatch.setattr("raftlog.bench.metrics.SCRAPES", 1)
    assert SCRAPES > 1
    figure = metrics(tmp_path, pairs=2, count=10)
    values = figure.values
    assert values["cost_low"] <= values["cost"] <= values["cost_high"]
    assert values["with_us"] > 0 < values["without_us"]
    assert 0 < values["scraping_cost"] < 1
    assert not list(tmp_path.iterdir())


@pytest.mark.integration
def test_the_hot_path_of_a_produce_request_counts(tmp_path: Path) -> None:
    with measured_broker(tmp_path) as broker:
        assert broker.select(WITHOUT) <= broker.select(WITH)
        assert broker.functions >= 10


# -- metrics broker --------------------------------------------------------------------------------
#
# The version of the server without counting: what is left out, and what is not.


SOURCE = """
def counting(self):
    began = self.counters.now()
    self._counters.requests += 1
    if began:
        self.services.counters.seconds.observe(began)
    self.done += 1
    return began

class Other:
    def counting_too(self, counters):
        counters.ended("api")
        return self.counters

    def plain(self):
        return self.clock.now()
"""


class Counted:
    """Counts every use of its counters."""

    def __init__(self) -> None:
        self.uses = 0
        self.done = 0
        self.requests = 0
        self.counters = self._counters = self.services = self.seconds = self

    def now(self) -> float:
        self.uses += 1
        return 5.0

    def observe(self, _seconds: float) -> None:
        self.uses += 1


def test_only_statements_that_count_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "counting_module.py"
    path.write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = import_module(path.stem)
    found = list(versions(module))
    functions: dict[str, Any] = {each[0].__qualname__: each for each in found}
    assert functions.keys() == {"counting", "Other.counting_too"}
    counting, own, without = functions["counting"]
    state = Counted()
    counting.__code__ = own
    assert counting(state) == 5.0
    assert (state.uses, state.requests, state.done) == (2, 1, 1)
    counting.__code__ = without
    assert counting(state) == 0.0
    assert (state.uses, state.requests, state.done) == (2, 1, 2)
