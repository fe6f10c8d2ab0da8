"""Counters and durations: what is added is what is read."""

from __future__ import annotations

from bisect import bisect_left

import pytest

from raftlog.errors import NotLeaderError
from raftlog.server.metrics import BOUNDS_SECONDS, Counters, Durations
from tests.server.harness import Client, RunningBroker, batch_of


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, 0), (0.000_25, 0), (0.000_26, 1), (10.0, 13), (11.0, 14)],
)
def test_a_duration_is_in_the_first_bucket_that_holds_it(seconds: float, bucket: int) -> None:
    durations = Durations()
    durations.observe(seconds)
    assert durations.counts.index(1) == bucket
    assert len(durations.counts) == len(BOUNDS_SECONDS) + 1
    assert (sum(durations.counts), durations.sum_seconds) == (1, seconds)


def test_requests_and_errors_are_counted_by_name() -> None:
    now = [5.0]
    counters = Counters(lambda: now[0])
    counters.request_ended("fetch", 4.5)
    counters.request_ended("fetch", 5.0)
    counters.request_failed(NotLeaderError("no"))
    counters.request_failed(NotLeaderError("no"))
    fetch = counters.request_seconds["fetch"]
    assert (sum(fetch.counts), fetch.sum_seconds) == (2, 0.5)
    assert counters.request_errors == {"NotLeaderError": 2}


def test_durations_of_every_bucket_are_counted_once() -> None:
    durations = Durations()
    for observed in ([0.003, 11.0, 0.000_1], [], [0.003, 0.4]):
        for seconds in observed:
            durations.observe(seconds)
        durations.count_pending()
    expected = [0] * (len(BOUNDS_SECONDS) + 1)
    for seconds in (0.003, 11.0, 0.000_1, 0.003, 0.4):
        expected[bisect_left(BOUNDS_SECONDS, seconds)] += 1
    assert durations.counts == expected
    assert durations.sum_seconds == pytest.approx(11.4061)


def test_counters_keep_no_single_durations(broker: RunningBroker, client: Client) -> None:
    client.create("t")
    client.produce("t", batch_of(b"v"))
    counters = broker.broker.context.counters
    produced = counters.request_seconds["produce"]
    broker.wait_until(lambda: not produced._pending and not counters.commit_seconds._pending)
    assert sum(produced._counts) == sum(counters.commit_seconds._counts) == 1
