"""When the notice of a stall is due, and what it says."""

from __future__ import annotations

from raftlog.cli import stalls
from raftlog.cli.stalls import AGAIN_SECONDS, STALL_SECONDS, Stall
from raftlog.testing import Cluster
from tests.cli.conftest import Raftlog


def test_a_notice_is_due_after_some_seconds_without_progress_and_then_rarely() -> None:
    stall = Stall(now=100.0)
    assert not stall.is_due(100.0, delivered=0, waiting=5)
    assert not stall.is_due(100.0 + STALL_SECONDS - 0.1, delivered=0, waiting=5)
    assert stall.is_due(100.0 + STALL_SECONDS, delivered=0, waiting=5)
    assert not stall.is_due(100.0 + STALL_SECONDS + 1, delivered=0, waiting=5)
    assert stall.is_due(100.0 + STALL_SECONDS + AGAIN_SECONDS, delivered=0, waiting=5)


def test_progress_and_rest_begin_the_time_again() -> None:
    stall = Stall(now=0.0)
    assert not stall.is_due(0.0, delivered=0, waiting=5)
    assert not stall.is_due(10.0, delivered=1, waiting=4), "something was acknowledged"
    assert not stall.is_due(12.0, delivered=1, waiting=0), "nothing waits"
    assert not stall.is_due(14.0, delivered=1, waiting=2)
    assert stall.is_due(12.0 + STALL_SECONDS, delivered=1, waiting=2)


def test_the_reason_names_what_is_wrong(raftlog: Raftlog, topic: str, broker: Cluster) -> None:
    assert "slowly" in stalls.reason(broker.bootstrap, topic)
    assert "no topic" in stalls.reason(broker.bootstrap, f"{topic}-missing")
