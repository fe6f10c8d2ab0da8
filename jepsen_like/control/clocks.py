"""Clocks of single processes: shifted wall clocks, by libfaketime, and offsets of time namespaces.

A process that was started with ``FakeClock.environment`` reads its wall clock with an offset from a
file, which may change while it runs. Monotonic clocks do not change: a broker's timeouts must not
be affected. The machine's clock is never changed.
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

LIBRARY: Final = "libfaketimeMT.so.1"  # the one that may be called from several threads
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
_TOLERANCE_S: Final = 60.0  # a machine with other work to do may take its time over a probe


class Reading(NamedTuple):
    """Both clocks of a process, in seconds."""

    wall_s: float
    monotonic_s: float


def library() -> Path | None:
    """Return the path of libfaketime; None if it is not installed."""
    places = (Path(place) / LIBRARY for place in LIBRARY_PLACES)
    return next((place for place in places if place.exists()), None)


@functools.cache
def why_not() -> str:
    """Return why processes cannot have separate wall clocks here; empty if they can. Tests it."""
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
    """Return the clocks of a new process with ``environment`` in addition to the current one.

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
    """The wall clock of one broker. Two of the same directory and broker are one and the same."""

    directory: Path
    broker_id: int

    @property
    def path(self) -> Path:
        """The file that holds the offset."""
        return self.directory / f"clock-{self.broker_id}"

    def environment(self) -> dict[str, str]:
        """Return the environment of a process on this clock, which is right until ``set``.

        Beware: under libfaketime 0.9.10 ``clock_nanosleep`` with an absolute time, and so Python's
        ``time.sleep``, fails with EINVAL. Waiting on locks, sockets and event loops is not touched.
        """
        found = library()
        if found is None:
            raise OSError(why_not())
        if not self.path.exists():
            self.set(0.0)
        return {
            "LD_PRELOAD": str(found),
            "FAKETIME_TIMESTAMP_FILE": str(self.path),
            "FAKETIME_NO_CACHE": "1",  # a new offset counts from the next look at the clock on
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",  # its name in older releases
            "NO_FAKE_STAT": "1",  # times of files stay what they are
        }

    def set(self, offset_s: float) -> None:
        """Set the offset of the clock from the machine's clock, in seconds."""
        # By a new name: a process that finds half an offset in the file ends itself.
        draft = self.path.with_name(self.path.name + ".new")
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(f"{offset_s:+.6f}\n", encoding="ascii")
        draft.replace(self.path)

    @property
    def offset_s(self) -> float:
        """The last offset that was set; 0 by default."""
        return float(self.path.read_text(encoding="ascii")) if self.path.exists() else 0.0

    def read(self) -> Reading:
        """The clocks of a new process that is started as the broker is. Raises as ``read`` does."""
        return read(self.environment())

    def is_used_by(self, pid: int) -> bool:
        """Whether the process has the library in its memory, and reads this clock's file."""
        try:
            maps = Path(f"/proc/{pid}/maps").read_bytes()
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        named = b"FAKETIME_TIMESTAMP_FILE=" + os.fsencode(self.path)
        return LIBRARY.encode() in maps and named in environment.split(b"\0")


def base_s(pid: int) -> float | None:
    """By how many seconds the process's time namespace moves the clocks that only grow.

    None where there are no time namespaces, or no such process.
    """
    try:
        lines = Path(f"/proc/{pid}/timens_offsets").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    offsets = {name: (seconds, nanos) for name, seconds, nanos in map(str.split, lines)}
    seconds, nanos = offsets.get("monotonic", ("0", "0"))
    return int(seconds) + int(nanos) / 1e9
