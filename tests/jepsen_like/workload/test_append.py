"""Producers and consumers on real brokers, one of which is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.testing.history.entries import Append, Ends, Poll
from raftlog_jepsen.plan import WorkloadShape
from raftlog_jepsen.workload.append import AppendWorkload
from tests.jepsen_like.arena import CONSUMERS, PRODUCERS, TOPICS, Play, plan

SHAPE = WorkloadShape(name="append", producers=PRODUCERS, consumers=CONSUMERS)


@pytest.mark.integration
def test_what_was_acknowledged_while_a_leader_was_killed_is_read_at_the_end(tmp_path: Path) -> None:
    history = Play(tmp_path, AppendWorkload(), plan(SHAPE, *TOPICS)).run()
    history.check()
    appended = history.of(Append)
    assert {entry.idempotent for entry in appended} == {True, False}
    assert {entry.partition for entry in appended} == {"three:0", "three:1", "one:0"}
    assert {entry.source for entry in history.of(Poll)} == {"leader", "replica"}
    assert any(entry.records for entry in history.of(Poll))
    assert any(entry.ends for entry in history.of(Ends))
