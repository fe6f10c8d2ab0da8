"""Events of a broker: the last ones are kept, all are counted."""

from __future__ import annotations

import pytest

from raftlog import limits
from raftlog.replication.cluster_commands import Event
from raftlog.server.partition import EventLog


def test_the_oldest_is_forgotten_and_stays_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENTS_KEPT_MAX", 2)
    log = EventLog()
    for at_ms, kind in enumerate(("a", "b", "a")):
        log.add(Event(kind, "text"), at_ms)
    assert [(at_ms, event.kind) for at_ms, event in log.events] == [(1, "b"), (2, "a")]
    assert log.counts == {"a": 2, "b": 1}
