"""Resource limits of one process: file descriptors, memory, CPU time.

With prlimit, and control groups of either version. With version 1, a group is created below the one
of this process, so that its limits apply too. With version 2 it is created as a sibling, because a
group with processes cannot have child groups. Every group is removed with ``close``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

Controller: TypeAlias = Literal["memory", "cpu"]

MOUNTS: Final = Path("/proc/self/mounts")
OWN_GROUPS: Final = Path("/proc/self/cgroup")
PERIOD_US: Final = 100_000  # of a CPU quota
REMOVE_TIMEOUT_S: Final = 5.0  # for a group's last process to be gone
POLL_S: Final = 0.02
NO_LIMIT_V1: Final = "-1"
NO_LIMIT_V2: Final = "max"
# Until it is killed, or orphaned.
BURN: Final = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


# -- file descriptors


def open_files(pid: int) -> int:
    """Return the number of file descriptors of a process. Raises ``OSError``."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def limit_files(pid: int, count: int) -> int:
    """Let a process have no descriptor numbered ``count`` or above; the limit until now.

    What is open stays open. Raises ``OSError``.
    """
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (count, hard))
    return soft


# -- control groups


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Directory for the groups of one controller."""

    controller: Controller
    version: Literal[1, 2]
    parent: Path  # of groups that are made
    home: Path  # the group that this process is in


def hierarchy(
    controller: Controller, *, mounts: Path = MOUNTS, own_groups: Path = OWN_GROUPS
) -> Hierarchy | None:
    """Return the directory of this controller's groups, or None."""
    try:
        rows = [line.split() for line in mounts.read_text(encoding="utf-8").splitlines()]
        owned = dict(line.split(":", 2)[1:] for line in own_groups.read_text().splitlines())
    except OSError:
        return None
    for _device, point, kind, options, *_ in rows:
        if kind == "cgroup" and controller in options.split(","):
            path = next((p for names, p in owned.items() if controller in names.split(",")), "/")
            home = Path(point) / path.strip("/")
            return Hierarchy(controller, 1, home, home)
    for _device, point, kind, _options, *_ in rows:
        if kind == "cgroup2":
            home = Path(point) / owned.get("", "/").strip("/")
            parent = home if home == Path(point) else home.parent
            if controller in _words(parent / "cgroup.subtree_control"):
                return Hierarchy(controller, 2, parent, home)
    return None


def why_not(controller: Controller) -> str:
    """Return why processes cannot be limited on this machine; "" if they can. Tries it."""
    if sys.platform != "linux":
        return "requires Linux"
    found = hierarchy(controller)
    if found is None:
        return f"there is no control group with the controller {controller}"
    try:
        group = Group(found, f"raftlog-try-{os.getpid()}")
    except OSError as error:
        return f"cannot create a control group: {error}"
    try:
        group.limit_memory(1 << 30) if controller == "memory" else group.limit_cpu(0.5)
    except OSError as error:
        return f"cannot set the limit of a control group: {error}"
    finally:
        group.close()
    return ""


class Group:
    """A separate control group for some processes. ``name``: identifies the owner."""

    def __init__(self, place: Hierarchy, name: str) -> None:
        """Makes it. Raises ``OSError``."""
        self._place = place
        self.path = place.parent / name
        self.path.mkdir(exist_ok=True)

    @property
    def _is_v1(self) -> bool:
        return self._place.version == 1

    def add(self, pid: int) -> None:
        """Put a process here, with all its threads. Raises ``OSError``."""
        _write(self.path / "cgroup.procs", str(pid))

    def processes(self) -> list[int]:
        return [int(pid) for pid in _words(self.path / "cgroup.procs")]

    def limit_memory(self, byte_count: int | None) -> None:
        """Limit the memory of its processes from now on; None: no limit."""
        none = NO_LIMIT_V1 if self._is_v1 else NO_LIMIT_V2
        file = "memory.limit_in_bytes" if self._is_v1 else "memory.max"
        _write(self.path / file, none if byte_count is None else str(byte_count))

    def limit_cpu(self, share: float | None) -> None:
        """The part of one CPU's time that its processes get together; None: no limit."""
        quota = None if share is None else max(1_000, round(share * PERIOD_US))
        if self._is_v1:
            _write(self.path / "cpu.cfs_period_us", str(PERIOD_US))
            _write(self.path / "cpu.cfs_quota_us", NO_LIMIT_V1 if quota is None else str(quota))
        else:
            _write(self.path / "cpu.max", f"{NO_LIMIT_V2 if quota is None else quota} {PERIOD_US}")

    def pressure(self) -> dict[str, int]:
        """Return the effects of the limit so far: how often memory ran out, processes killed for
        it, times and microseconds that processes had to wait for CPU time.
        """
        if self._place.controller == "cpu":
            stat = _table(self.path / "cpu.stat")
            waited_us = stat.get("throttled_usec", stat.get("throttled_time", 0) // 1_000)
            return {"throttled": stat.get("nr_throttled", 0), "throttled_us": waited_us}
        if self._is_v1:
            failed = int(next(iter(_words(self.path / "memory.failcnt")), "0"))
            killed = _table(self.path / "memory.oom_control").get("oom_kill", 0)
            return {"ran_out": failed, "killed": killed}
        events = _table(self.path / "memory.events")
        return {"ran_out": events.get("max", 0), "killed": events.get("oom_kill", 0)}

    def close(self) -> None:
        """Send what is left of its processes back to where we are, and remove it. Idempotent."""
        deadline = time.monotonic() + REMOVE_TIMEOUT_S
        while self.path.exists():
            for pid in self.processes():
                with contextlib.suppress(OSError):  # it has ended since
                    _write(self._place.home / "cgroup.procs", str(pid))
            try:
                self.path.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="ascii") as file:
        file.write(text)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []


def _table(path: Path) -> Mapping[str, int]:
    words = _words(path)
    return {name: int(number) for name, number in zip(words[::2], words[1::2], strict=False)}


# -- neighbours


class Burners:
    """Processes that do nothing but burn one CPU's time, and a process that has to share it."""

    def __init__(self, pid: int, count: int) -> None:
        """From now on the process ``pid`` has one CPU, together with ``count`` that never rest.

        Raises ``OSError``.
        """
        self._pid = pid
        self._allowed = os.sched_getaffinity(pid)
        cpu = min(self._allowed)
        self._burning: list[subprocess.Popen[bytes]] = []
        _pin(pid, {cpu})
        for _ in range(count):
            burner = subprocess.Popen([sys.executable, "-I", "-S", "-c", BURN])
            self._burning.append(burner)
            os.sched_setaffinity(burner.pid, {cpu})

    @property
    def pids(self) -> Sequence[int]:
        return [burner.pid for burner in self._burning]

    def close(self) -> None:
        """Idempotent. The process gets its CPUs back, if it is there still."""
        while self._burning:
            with self._burning.pop() as burner:
                burner.kill()
        with contextlib.suppress(OSError):
            _pin(self._pid, self._allowed)


def _pin(pid: int, cpus: set[int]) -> None:
    """All threads of a process; those to come take after theirs."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            os.sched_setaffinity(int(thread), cpus)


def waited_ns(pid: int) -> int:
    """Return for how long threads of the process were ready to run without a CPU, in ns.

    Raises ``OSError`` if it has ended, or if the kernel does not count (/proc/PID/schedstat).
    """
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1])
    return total
