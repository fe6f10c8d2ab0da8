"""Limits on a process show on that process, and are gone again with what was made for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.testing import wait_until
from raftlog_jepsen.control import limits
from raftlog_jepsen.control.limits import Burners, Controller, Group, Hierarchy

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
