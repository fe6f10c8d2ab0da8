"""Resource limits of one process: file descriptors, memory, CPU time.

Uses prlimit and control groups of version 1 or 2. With version 1, a new group is a child of the
group of this process, so that the limits of that group apply, too. With version 2, it is a sibling,
because a group with processes cannot have child groups. ``close`` removes a group.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

Controller: TypeAlias = Literal["memory", "cpu"]

MOUNTS: Final = Path("/proc/self/mounts")
OWN_GROUPS: Final = Path("/proc/self/cgroup")
PERIOD_US: Final = 100_000  # of a CPU quota
REMOVE_TIMEOUT_S: Final = 5.0  # time limit for the last process of a group to end
POLL_S: Final = 0.02
NO_LIMIT_V1: Final = "-1"
NO_LIMIT_V2: Final = "max"
# Runs until it is killed or its parent process ends.
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
    """Limit the file descriptors of a process to numbers below ``count``. Returns the old limit.

    Open descriptors stay open. Raises ``OSError``.
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
    parent: Path  # parent directory of new groups
    home: Path  # group of this process


def hierarchy(
    controller: Controller, *, mounts: Path = MOUNTS, own_groups: Path = OWN_GROUPS
) -> Hierarchy | None:
    """Return the directory of this controller's groups; None if the controller is not available."""
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
    """Return why processes cannot be limited on this machine; empty if they can. Tests it with a
    new group."""
    if sys.platform != "linux":
        return "requires Linux"
    found = hierarchy(controller)
    if found is None:
        return f"no control group with the controller {controller}"
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
    """A separate control group for some processes. ``name``: name of its directory."""

    def __init__(self, place: Hierarchy, name: str) -> None:
        """Create the group. Raises ``OSError``."""
        self._place = place
        self.path = place.parent / name
        self.path.mkdir(exist_ok=True)

    @property
    def _is_v1(self) -> bool:
        return self._place.version == 1

    def add(self, pid: int) -> None:
        """Move a process with all its threads into this group. Raises ``OSError``."""
        _write(self.path / "cgroup.procs", str(pid))

    def processes(self) -> list[int]:
        return [int(pid) for pid in _words(self.path / "cgroup.procs")]

    def limit_memory(self, byte_count: int | None) -> None:
        """Limit the memory of the processes of this group together, in bytes; None: no limit."""
        none = NO_LIMIT_V1 if self._is_v1 else NO_LIMIT_V2
        file = "memory.limit_in_bytes" if self._is_v1 else "memory.max"
        _write(self.path / file, none if byte_count is None else str(byte_count))

    def limit_cpu(self, share: float | None) -> None:
        """Limit the processes together to this share of one CPU; None: no limit."""
        quota = None if share is None else max(1_000, round(share * PERIOD_US))
        if self._is_v1:
            _write(self.path / "cpu.cfs_period_us", str(PERIOD_US))
            _write(self.path / "cpu.cfs_quota_us", NO_LIMIT_V1 if quota is None else str(quota))
        else:
            _write(self.path / "cpu.max", f"{NO_LIMIT_V2 if quota is None else quota} {PERIOD_US}")

    def pressure(self) -> dict[str, int]:
        """Return the effects of the limit so far.

        Memory: number of times that the limit was reached, and of processes killed for it. CPU:
        number of times, and microseconds, that processes were throttled.
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
        """Move the remaining processes to the group of this process and remove this group.
        Idempotent."""
        deadline = time.monotonic() + REMOVE_TIMEOUT_S
        while self.path.exists():
            for pid in self.processes():
                with contextlib.suppress(OSError):  # the process has ended
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


# -- CPU contention


class Burners:
    """Busy processes that share one CPU with the process ``pid``."""

    def __init__(self, pid: int, count: int) -> None:
        """Restrict the process ``pid`` to one CPU and start ``count`` busy processes there.

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
        """End the busy processes and restore the CPUs of the process if it still exists.
        Idempotent."""
        while self._burning:
            with self._burning.pop() as burner:
                burner.kill()
        with contextlib.suppress(OSError):
            _pin(self._pid, self._allowed)


def _pin(pid: int, cpus: set[int]) -> None:
    """Pin all threads of a process to ``cpus``. New threads inherit it."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):  # the thread has ended
            os.sched_setaffinity(int(thread), cpus)


def waited_ns(pid: int) -> int:
    """Return the nanoseconds in which threads of the process were ready to run without a CPU.

    Raises ``OSError`` if the process has ended or the kernel has no /proc/PID/schedstat.
    """
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1])
    return total


# -- clocks ----------------------------------------------------------------------------------------
#
# Clocks of single processes: shifted wall clocks (libfaketime) and offsets of time namespaces.
#
# A process that was started with ``FakeClock.environment`` reads its wall clock with an offset from
# a file. The offset can change while the process runs. Its monotonic clock is not shifted, because
# a broker's timeouts must not be affected. The clock of the machine is never changed.


LIBRARY: Final = "libfaketimeMT.so.1"  # the thread-safe variant
LIBRARY_PLACES: Final = (
    "/usr/lib/x86_64-linux-gnu/faketime",
    "/usr/lib/aarch64-linux-gnu/faketime",
    "/usr/lib64/faketime",
    "/usr/lib/faketime",
    "/usr/local/lib/faketime",
)
_PROGRAM: Final = "import time; print(time.time(), time.monotonic())"
_READ_TIMEOUT_S: Final = 10.0
_PROBE_OFFSET_S: Final = 7_200.0
_TOLERANCE_S: Final = 60.0  # a probe can take long on a busy machine


class Reading(NamedTuple):
    """Both clocks of a process, in seconds."""

    wall_s: float
    monotonic_s: float


def library() -> Path | None:
    """Return the path of libfaketime; None if it is not installed."""
    places = (Path(place) / LIBRARY for place in LIBRARY_PLACES)
    return next((place for place in places if place.exists()), None)


@functools.cache
def why_no_clocks() -> str:
    """Return why processes cannot have separate wall clocks on this machine; empty if they can.

    Starts two processes to test it.
    """
    if sys.platform != "linux":
        return "requires Linux"
    if library() is None:
        return f"no {LIBRARY} (Debian: apt install faketime)"
    with tempfile.TemporaryDirectory(prefix="raftlog-clock-") as folder:
        clock = FakeClock(Path(folder), 0)
        clock.set(_PROBE_OFFSET_S)
        try:
            real, fake = read({}), clock.read()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return f"a process does not run with {LIBRARY}: {error}"
    if abs(fake.wall_s - real.wall_s - _PROBE_OFFSET_S) > _TOLERANCE_S:
        return f"{LIBRARY} does not change time.time()"
    if abs(fake.monotonic_s - real.monotonic_s) > _TOLERANCE_S:
        return f"{LIBRARY} changes time.monotonic() too"
    return ""


def read(environment: Mapping[str, str]) -> Reading:
    """Return the clocks of a new process that is started with ``environment`` in addition.

    Raises ``OSError``, ``ValueError`` and ``subprocess.SubprocessError``.
    """
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _PROGRAM],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        text=True,
        timeout=_READ_TIMEOUT_S,
    )
    wall_s, monotonic_s = done.stdout.split()
    return Reading(float(wall_s), float(monotonic_s))


@dataclass(frozen=True, slots=True)
class FakeClock:
    """The wall clock of one broker. Objects with the same directory and broker share the clock."""

    directory: Path
    broker_id: int

    @property
    def path(self) -> Path:
        """The file that contains the offset."""
        return self.directory / f"clock-{self.broker_id}"

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that uses this clock. The initial offset is 0.

        With libfaketime 0.9.10, ``clock_nanosleep`` with an absolute time, and so Python's
        ``time.sleep``, fails with EINVAL. Waits for locks, sockets and event loops are not
        affected. Raises ``OSError`` without libfaketime.
        """
        found = library()
        if found is None:
            raise OSError(why_no_clocks())
        if not self.path.exists():
            self.set(0.0)
        return {
            "LD_PRELOAD": str(found),
            "FAKETIME_TIMESTAMP_FILE": str(self.path),
            "FAKETIME_NO_CACHE": "1",  # the next reading of the clock uses a new offset
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",  # the same setting in older releases
            "NO_FAKE_STAT": "1",  # file times are not shifted
        }

    def set(self, offset_s: float) -> None:
        """Set the offset of the clock from the machine's clock, in seconds."""
        # Atomic replacement: a process that reads an incomplete offset ends itself.
        draft = self.path.with_name(self.path.name + ".new")
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(f"{offset_s:+.6f}\n", encoding="ascii")
        draft.replace(self.path)

    @property
    def offset_s(self) -> float:
        """The last offset that was set; 0 by default."""
        return float(self.path.read_text(encoding="ascii")) if self.path.exists() else 0.0

    def read(self) -> Reading:
        """Return the clocks of a new process that uses this clock. Raises the errors of
        ``read``."""
        return read(self.environment())

    def is_used_by(self, pid: int) -> bool:
        """Return whether the process has loaded the library and uses the file of this clock."""
        try:
            maps = Path(f"/proc/{pid}/maps").read_bytes()
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        named = b"FAKETIME_TIMESTAMP_FILE=" + os.fsencode(self.path)
        return LIBRARY.encode() in maps and named in environment.split(b"\0")


def base_s(pid: int) -> float | None:
    """Return the offset of the monotonic clock in the process's time namespace, in seconds.

    None if the system has no time namespaces, or if the process does not exist.
    """
    try:
        lines = Path(f"/proc/{pid}/timens_offsets").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    offsets = {name: (seconds, nanos) for name, seconds, nanos in map(str.split, lines)}
    seconds, nanos = offsets.get("monotonic", ("0", "0"))
    return int(seconds) + int(nanos) / 1e9
