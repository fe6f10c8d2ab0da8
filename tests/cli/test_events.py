"""``raftlog cluster events``: the text of an event, and the time that it starts from."""

from __future__ import annotations

import pytest

from raftlog.client.descriptions import EventDescription
from raftlog.clock import SystemClock
from raftlog_cli.cluster import event_line, parse_since


def test_an_event_is_a_line() -> None:
    elected = EventDescription(1_700_000_000_123, "leader-elected", "broker 2 leads", "t", 3, 2, 8)
    assert event_line(elected) == (
        "2023-11-14T22:13:20.123Z  leader-elected          t:3: broker 2 leads"
    )
    fenced = EventDescription(0, "broker-fenced", "broker 1 was fenced", broker=1)
    assert event_line(fenced).endswith("broker-fenced           broker 1 was fenced")


@pytest.mark.parametrize("text", ["@1700000000123", "1700000000123", "@2023-11-14T22:13:20.123Z"])
def test_a_time_is_written_with_or_without_its_mark(text: str) -> None:
    assert parse_since(text) == 1_700_000_000_123


def test_a_relative_time_is_before_now() -> None:
    now_ms = SystemClock().wall_ms()
    assert 7_199_000 <= now_ms - parse_since("@-2h") <= 7_201_000
    with pytest.raises(ValueError, match="ISO 8601"):
        parse_since("@yesterday")
