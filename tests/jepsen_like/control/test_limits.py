"""Limits on a process show on that process, and are gone again with what was made for them."""

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
from raftlog.testing import wait_until
from raftlog_jepsen.control import limits
from raftlog_jepsen.control.limits import Burners, Controller, FakeClock, Group, Hierarchy

# Does what each line says, and answers with a line.
CHILD = """
import sys

held = []
for line in sys.stdin:
    what, count = line.split()
    try:
        if what == "open":
            held += [open("/dev/null") for _ in range(int(count))]
        elif what == "take":
            held.append(b"x" * int(count))
        elif what == "work":
            sum(range(int(count)))
        answer = "done"
    except OSError as error:
        answer = error.strerror
    print(answer, flush=True)
"""


class Child:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def do(self, what: str, count: int) -> str:
        """Empty when it died of it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what} {count}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@pytest.fixture
def child() -> Iterator[Child]:
    command = [sys.executable, "-I", "-S", "-c", CHILD]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            started = Child(process)
            assert started.do("nothing", 0) == "done"
            yield started
        finally:
            process.kill()


def group_of(controller: Controller) -> Group:
    why = limits.why_not(controller)
    if why:
        pytest.skip(f"not injected: {why}")
    place = limits.hierarchy(controller)
    assert place is not None
    return Group(place, f"raftlog-test-{os.getpid()}-{controller}")


# -- file descriptors


@pytest.mark.integration
def test_no_file_is_opened_above_the_limit_and_all_are_after_it(child: Child) -> None:
    count = limits.open_files(child.pid)
    before = limits.limit_files(child.pid, count + 2)
    assert child.do("open", 3) == "Too many open files"
    assert limits.limit_files(child.pid, before) == count + 2
    assert child.do("open", 3) == "done"
    assert limits.open_files(child.pid) >= count + 3


# -- control groups


@pytest.mark.integration
def test_memory_runs_out_and_kills_in_its_own_group_only(child: Child) -> None:
    group = group_of("memory")
    try:
        group.limit_memory(4 << 20)
        group.add(child.pid)
        assert child.pid in group.processes()
        assert group.pressure() == {"ran_out": 0, "killed": 0}
        assert child.do("take", 64 << 20) == ""
        assert child.process.wait(10) == -9
        pressure = group.pressure()
        assert pressure["ran_out"] > 0
        assert pressure["killed"] == 1
    finally:
        group.close()
    assert not group.path.exists()


@pytest.mark.integration
def test_a_limit_that_was_lifted_is_none(child: Child) -> None:
    group = group_of("memory")
    try:
        group.limit_memory(4 << 20)
        group.limit_memory(None)
        group.add(child.pid)
        assert child.do("take", 16 << 20) == "done"
    finally:
        group.close()


@pytest.mark.integration
def test_cpu_time_is_rationed_and_the_group_goes_with_its_process_alive(child: Child) -> None:
    group = group_of("cpu")
    try:
        group.limit_cpu(0.05)
        group.add(child.pid)
        assert group.pressure()["throttled"] == 0
        assert child.do("work", 2_000_000) == "done"
        pressure = group.pressure()
        assert pressure["throttled"] > 0
        assert pressure["throttled_us"] > 0
        group.limit_cpu(None)
        before = group.pressure()
        assert child.do("work", 2_000_000) == "done"
        assert group.pressure()["throttled"] == before["throttled"]
    finally:
        group.close()
    assert not group.path.exists()
    assert child.do("work", 1) == "done", "it was sent back, and lives on"
    group.close()


MOUNTS_V1 = (
    "cgroup {root}/cpu cgroup rw,relatime,cpu,cpuacct 0 0\ncgroup2 {root}/unified cgroup2 rw 0 0\n"
)
MOUNTS_V2 = "tmpfs /run tmpfs rw 0 0\ncgroup2 {root} cgroup2 rw,nosuid 0 0\n"


def found(tmp_path: Path, controller: Controller, mounts: str, own: str) -> Hierarchy | None:
    """In a tree of ordinary files."""
    (tmp_path / "mounts").write_text(mounts.format(root=tmp_path))
    (tmp_path / "own").write_text(own)
    return limits.hierarchy(controller, mounts=tmp_path / "mounts", own_groups=tmp_path / "own")


def test_groups_of_version_1_are_made_below_our_own(tmp_path: Path) -> None:
    place = found(tmp_path, "cpu", MOUNTS_V1, "3:cpu,cpuacct:/box/one\n0::/\n")
    home = tmp_path / "cpu" / "box" / "one"
    assert place == Hierarchy("cpu", 1, home, home)
    assert found(tmp_path, "memory", MOUNTS_V1, "3:cpu,cpuacct:/box/one\n0::/\n") is None


def test_groups_of_version_2_are_made_beside_our_own(tmp_path: Path) -> None:
    (tmp_path / "slice").mkdir()
    (tmp_path / "slice" / "cgroup.subtree_control").write_text("cpu memory\n")
    place = found(tmp_path, "memory", MOUNTS_V2, "0::/slice/run.scope\n")
    assert place == Hierarchy("memory", 2, tmp_path / "slice", tmp_path / "slice" / "run.scope")
    (tmp_path / "slice" / "cgroup.subtree_control").write_text("pids\n")
    assert found(tmp_path, "memory", MOUNTS_V2, "0::/slice/run.scope\n") is None


def test_what_version_2_is_told_and_tells(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    memory = Group(Hierarchy("memory", 2, tmp_path, home), "memory")
    memory.limit_memory(4096)
    assert (memory.path / "memory.max").read_text() == "4096"
    memory.limit_memory(None)
    assert (memory.path / "memory.max").read_text() == "max"
    (memory.path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\n")
    assert memory.pressure() == {"ran_out": 7, "killed": 1}
    cpu = Group(Hierarchy("cpu", 2, tmp_path, home), "cpu")
    cpu.limit_cpu(0.2)
    assert (cpu.path / "cpu.max").read_text() == "20000 100000"
    (cpu.path / "cpu.stat").write_text("usage_usec 9\nnr_throttled 3\nthrottled_usec 44\n")
    assert cpu.pressure() == {"throttled": 3, "throttled_us": 44}


def test_where_there_are_no_groups_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limits.hierarchy("cpu", mounts=tmp_path / "none") is None
    monkeypatch.setattr(limits, "hierarchy", lambda controller: None)
    assert limits.why_not("cpu")


# -- neighbours


@pytest.mark.integration
def test_neighbours_take_turns_with_a_process_and_go(child: Child) -> None:
    allowed = os.sched_getaffinity(child.pid)
    before = limits.waited_ns(child.pid)
    burners = Burners(child.pid, 2)
    try:
        assert os.sched_getaffinity(child.pid) == {min(allowed)}
        assert child.do("work", 3_000_000) == "done"
        wait_until(lambda: limits.waited_ns(child.pid) > before, what="a turn of the others")
        pids = list(burners.pids)
        assert len(pids) == 2
    finally:
        burners.close()
    assert os.sched_getaffinity(child.pid) == allowed
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    burners.close()


# -- clocks ----------------------------------------------------------------------------------------
#
# A process's wall clock is where it was put, and no other clock is; bases of namespaces.


# One line of both clocks for each line that comes in; then how long things take that wait.
CLOCKS_CHILD = """
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
def clocks_child(clock: FakeClock) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", CLOCKS_CHILD],
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


@pytest.mark.integration
def test_the_wall_clock_of_a_running_process_jumps_and_no_other_does(clock: FakeClock) -> None:
    with clocks_child(clock) as process:
        for offset_s in (0.0, 3_600.0, -3_600.0, 0.25, -864_000.0, 0.0):
            clock.set(offset_s)
            least, most = look_between(process)
            assert least <= offset_s <= most


@pytest.mark.integration
def test_what_waits_does_not_feel_it(clock: FakeClock) -> None:
    with clocks_child(clock) as process:
        for offset_s in (-3_600.0, 3_600.0):
            clock.set(offset_s)
            event_s, loop_s = ask(process, "wait")
            # A wait that felt the jump would end at once, or in an hour: this test would not.
            assert event_s >= 0.05
            assert loop_s >= 0.049


@pytest.mark.integration
def test_a_process_is_known_to_use_the_clock(clock: FakeClock, tmp_path: Path) -> None:
    with clocks_child(clock) as process:
        ask(process)
        assert clock.is_used_by(process.pid)
        assert not FakeClock(tmp_path, 2).is_used_by(process.pid)
    assert not clock.is_used_by(os.getpid())
    assert not clock.is_used_by(process.pid), "it has ended"


@pytest.mark.integration
def test_an_environment_keeps_what_was_set(clock: FakeClock, tmp_path: Path) -> None:
    assert clock.offset_s == 0.0
    clock.set(-1.5)
    assert FakeClock(tmp_path, 1).environment()["FAKETIME_TIMESTAMP_FILE"] == str(clock.path)
    assert FakeClock(tmp_path, 1).offset_s == -1.5


@pytest.mark.integration
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
