"""Clocks of single processes: shifted wall clocks (libfaketime) and offsets of time namespaces.

A process that was started with ``FakeClock.environment`` reads its wall clock with an offset from a
file. The offset can change while the process runs. Its monotonic clock is not shifted, because a
broker's timeouts must not be affected. The clock of the machine is never changed.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

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
