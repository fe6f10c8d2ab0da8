"""The demo's events: a seed gives the same ones, and they are what a log has to carry."""

from __future__ import annotations

import json

from raftlog.cli.events import page_views


def test_a_seed_gives_the_same_events() -> None:
    assert list(page_views(50, seed=7)) == list(page_views(50, seed=7))
    assert list(page_views(50, seed=7)) != list(page_views(50, seed=8))


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    assert list(page_views(50, seed=7))[:20] == list(page_views(20, seed=7))


def test_events_are_json_lines_in_order_of_time() -> None:
    events = [json.loads(line) for line in page_views(1_000, seed=1)]
    assert [event["event"] for event in events] == list(range(1_000))
    times = [event["time_ms"] for event in events]
    assert times == sorted(times)
    assert not any(b"\n" in line for line in page_views(1_000, seed=1))
