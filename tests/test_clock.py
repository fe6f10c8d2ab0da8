"""The machine's clocks: one that people read, one that only grows."""

from __future__ import annotations

import time

from raftlog.clock import SystemClock


def test_the_wall_clock_is_in_milliseconds_since_1970() -> None:
    before = time.time()
    now_ms = SystemClock().wall_ms()
    assert int(before * 1_000) <= now_ms <= time.time() * 1_000


def test_the_monotonic_clock_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.monotonic() for _ in range(1_000)]
    assert readings == sorted(readings)
