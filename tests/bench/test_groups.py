"""Tests of raftlog.bench.groups: it runs to its end; what is measured is not judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.bench import groups


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
