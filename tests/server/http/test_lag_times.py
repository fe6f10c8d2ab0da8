"""Lag in seconds, from samples of a high watermark."""

from __future__ import annotations

import pytest

from raftlog import limits
from raftlog.server.http.collect import LagTimes


def test_the_time_of_a_record_is_interpolated() -> None:
    lags = LagTimes()
    assert lags.age_s("id", 0, 0, 100, 10.0) == 0.0, "no earlier sample: at least this"
    assert lags.age_s("id", 0, 0, 100, 25.0) == 15.0
    assert lags.age_s("id", 0, 100, 100, 40.0) == 0.0, "nothing is left"
    # The records from 100 on came after 40 s, though nothing was added for 30 s before.
    assert lags.age_s("id", 0, 100, 200, 50.0) == 10.0
    assert lags.age_s("id", 0, 150, 200, 60.0) == 15.0
    assert lags.age_s("id", 0, 99, 200, 60.0) == pytest.approx(50.0)
    assert lags.age_s("other", 0, 0, 5, 60.0) == 0.0
    assert lags.age_s("id", 0, 99, 120, 70.0) == 0.0, "records were lost: samples restart"
    assert lags.age_s("id", 0, 99, 120, 75.0) == 5.0


def test_old_samples_become_sparse_and_the_oldest_is_kept() -> None:
    lags = LagTimes()
    for second in range(1_000):
        age = lags.age_s("id", 0, 0, second + 1, float(second))
        assert age == second
        assert len(lags._samples["id", 0]) <= limits.METRICS_LAG_SAMPLES_MAX
    for committed in (100, 500, 990, 999):
        age = lags.age_s("id", 0, committed, 1_000, 999.0)
        assert age == pytest.approx(1_000 - committed - 1, abs=2)


def test_the_partitions_asked_least_recently_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METRICS_LAG_PARTITIONS_MAX", 2)
    lags = LagTimes()
    for partition in (0, 1, 0, 2):
        lags.age_s("id", partition, 0, 1, 1.0)
    assert list(lags._samples) == [("id", 0), ("id", 2)]
