"""A broker's clock: the machine's, corrected for records, and trusted for deletions."""

from __future__ import annotations

import logging

import pytest

from raftlog.limits import CLOCK_STEP_MS
from raftlog.server.partition import BrokerClock

T0 = 1_700_000_000_000
DAY_MS = 86_400_000


class Machine:
    def __init__(self) -> None:
        self.now, self.step_ms = 50.0, 0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return T0 + round((self.now - 50) * 1_000) + self.step_ms


def test_records_and_deletions_have_the_machines_time_until_it_steps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine()
    clock = BrokerClock(machine)
    machine.now += 1
    assert (clock.wall_ms(), clock.deletion_ms(), clock.monotonic()) == (T0 + 1_000, T0 + 1_000, 51)
    machine.step_ms = -10 * DAY_MS
    with caplog.at_level(logging.INFO):
        clock.update()
        clock.update()
        assert (clock.wall_ms(), clock.deletion_ms()) == (T0 + 1_000, T0 + 1_000)
        assert clock.error_ms() == -10 * DAY_MS
        machine.step_ms = 0
        clock.update()
    stepped, back = caplog.messages
    assert "wall clock differs: ahead_s=-864000.0" in stepped
    assert "restart the broker" in stepped
    assert "wall clock corrected" in back


def test_peers_decide_in_a_cluster_and_until_then_nothing_expires(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine()
    machine.step_ms = 8 * DAY_MS
    with caplog.at_level(logging.INFO):
        clock = BrokerClock(machine, broker_id=1, voters=[1, 2, 3], saved_ms=T0)
        clock.update()
        assert clock.deletion_ms() is None
        clock.on_peer(2, T0, 0.0)
        clock.on_peer(3, T0 + CLOCK_STEP_MS, 0.0)
        clock.update()
    assert clock.deletion_ms() == T0 + CLOCK_STEP_MS
    assert clock.wall_ms() == T0 + CLOCK_STEP_MS
    waits, differs, resumes = caplog.messages
    assert "expiry paused: reason=clock_not_confirmed" in waits
    assert "correct the clocks of the other brokers" in differs
    assert "expiry resumed" in resumes
