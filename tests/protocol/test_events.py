"""``describe_events``: the bounds in its fields."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.protocol.cluster import DescribeEventsRequest, DescribeEventsResponse, EventStatus
from tests.protocol.fields import accepted, refused

EVENT: dict[str, Any] = {"at_ms": 0, "kind": "leader-elected", "text": "", "version": 0}


def test_a_time_has_bounds() -> None:
    accepted(DescribeEventsRequest, {"since_ms": (1 << 63) - 1})
    refused(DescribeEventsRequest, {"since_ms": -1}, path="since_ms")


@pytest.mark.parametrize(
    "bad",
    [
        {"at_ms": -1},
        {"kind": "x" * 65},
        {"text": "x" * (limits.ERROR_MESSAGE_CHARS_MAX + 1)},
        {"version": -1},
        {"topic": "x" * (limits.TOPIC_NAME_CHARS_MAX + 1)},
        {"topic_id": "x" * (limits.ID_CHARS_MAX + 1)},
        {"partition": -1},
        {"broker": -1},
        {"leader_epoch": -2},
    ],
)
def test_an_event_has_bounds(bad: dict[str, Any]) -> None:
    accepted(EventStatus, EVENT)
    refused(EventStatus, EVENT | bad, path=next(iter(bad)))


def test_a_response_has_as_many_events_as_a_broker_keeps() -> None:
    accepted(DescribeEventsResponse, {"events": [EVENT] * limits.EVENTS_KEPT_MAX})
    too_many = [EVENT] * (limits.EVENTS_KEPT_MAX + 1)
    refused(DescribeEventsResponse, {"events": too_many}, path="events")
