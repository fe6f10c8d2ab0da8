"""A process's wall clock is where it was put, and no other clock is; bases of namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raftlog.clock import SystemClock
from raftlog_jepsen.control import limits
from raftlog_jepsen.control.limits import FakeClock

# One line of both clocks for each line that comes in; then how long things take that wait.
CHILD = """
import asyncio, sys, threading, time
import uvloop

for line in sys.stdin:
    if line.strip() == "wait":
        begun = time.monotonic()
        threading.Event().wait(0.05)
        event = time.monotonic() - begun
        begun = time.monotonic()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.sleep(0.05))
        print(event, time.monotonic() - begun, flush=True)
    else:
        raw = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
        print(time.time(), time.monotonic(), raw, flush=True)
"""


@pytest.fixture
def clock(tmp_path: Path) -> FakeClock:
    if limits.why_no_clocks():
        pytest.skip(f"not injected: clocks cannot be changed here: {limits.why_no_clocks()}")
    return FakeClock(tmp_path, 1)


@contextmanager
def child(clock: FakeClock) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD],
        env={**os.environ, **clock.environment()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(process: subprocess.Popen[str], question: str = "clocks") -> list[float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(question + "\n")
    process.stdin.flush()
    return [float(number) for number in process.stdout.readline().split()]


def look_between(process: subprocess.Popen[str]) -> tuple[float, float]:
    """The least and the most by which the child's wall clock may be ahead of ours.

    Asserts that its other clocks are ours.
    """
    wall, monotonic = SystemClock().wall_ms() / 1_000, time.monotonic()
    raw = time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    its_wall, its_monotonic, its_raw = ask(process)
    assert monotonic <= its_monotonic <= time.monotonic()
    assert raw <= its_raw <= time.clock_gettime(time.CLOCK_MONOTONIC_RAW)
    return its_wall - SystemClock().wall_ms() / 1_000 - 0.001, its_wall - wall + 0.001


def test_the_wall_clock_of_a_running_process_jumps_and_no_other_does(clock: FakeClock) -> None:
    with child(clock) as process:
        for offset_s in (0.0, 3_600.0, -3_600.0, 0.25, -864_000.0, 0.0):
            clock.set(offset_s)
            least, most = look_between(process)
            assert least <= offset_s <= most


def test_what_waits_does_not_feel_it(clock: FakeClock) -> None:
    with child(clock) as process:
        for offset_s in (-3_600.0, 3_600.0):
            clock.set(offset_s)
            event_s, loop_s = ask(process, "wait")
            # A wait that felt the jump would end at once, or in an hour: this test would not.
            assert event_s >= 0.05
            assert loop_s >= 0.049


def test_a_process_is_known_to_use_the_clock(clock: FakeClock, tmp_path: Path) -> None:
    with child(clock) as process:
        ask(process)
        assert clock.is_used_by(process.pid)
        assert not FakeClock(tmp_path, 2).is_used_by(process.pid)
    assert not clock.is_used_by(os.getpid())
    assert not clock.is_used_by(process.pid), "it has ended"


def test_an_environment_keeps_what_was_set(clock: FakeClock, tmp_path: Path) -> None:
    assert clock.offset_s == 0.0
    clock.set(-1.5)
    assert FakeClock(tmp_path, 1).environment()["FAKETIME_TIMESTAMP_FILE"] == str(clock.path)
    assert FakeClock(tmp_path, 1).offset_s == -1.5


def test_a_look_is_that_of_a_new_process(clock: FakeClock) -> None:
    clock.set(5_000.0)
    before = SystemClock().wall_ms() / 1_000
    assert clock.read().wall_s >= before + 4_999.9
    assert limits.read({}).wall_s < before + 4_999.9


def test_where_the_library_is_missing_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(limits, "LIBRARY_PLACES", (str(tmp_path),))
    limits.why_no_clocks.cache_clear()
    try:
        assert limits.why_no_clocks()
        with pytest.raises(OSError, match=r"Linux|faketime"):
            FakeClock(tmp_path, 1).environment()
    finally:
        limits.why_no_clocks.cache_clear()


def test_the_base_of_a_process_is_read() -> None:
    assert limits.base_s(0) is None
    if Path("/proc/self/timens_offsets").exists():
        assert limits.base_s(os.getpid()) == pytest.approx(0.0)


@pytest.mark.integration
def test_the_base_of_a_time_namespace_is_read() -> None:
    command = ["unshare", "--time", "--monotonic", "1000", "--fork", "cat"]
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        pytest.skip(f"not injected: no time namespaces here: {error}")
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"there\n")
        process.stdin.flush()
        if not process.stdout.readline():
            pytest.skip("not injected: no time namespaces here")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert [limits.base_s(int(pid)) for pid in children] == [1_000.0]
        process.stdin.close()
