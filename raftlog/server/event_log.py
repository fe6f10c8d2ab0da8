"""Event history of a broker: the last committed changes that it applied, in memory.

All voters of a partition and all brokers of a cluster record the same events, so the history of a
broker that restarts is on the others.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from raftlog import limits
from raftlog.replication.events import Event
from raftlog.types import TimestampMs


class TimedEvent(NamedTuple):
    """``at_ms``: wall-clock time at which this broker applied the change."""

    at_ms: TimestampMs
    event: Event


class EventLog:
    """The last ``limits.EVENTS_KEPT_MAX`` events, oldest first. ``counts``: all, by kind."""

    def __init__(self) -> None:
        self.events: deque[TimedEvent] = deque(maxlen=limits.EVENTS_KEPT_MAX)
        self.counts: Counter[str] = Counter()

    def add(self, event: Event, at_ms: TimestampMs) -> None:
        self.counts[event.kind] += 1
        self.events.append(TimedEvent(at_ms, event))
