"""Disks whose power can be cut: an ext4 file system on a loop device for each broker.

Pages that a process wrote and nobody synced are in the memory of the file system on top, and not in
the file that holds it. A copy of that file is the disk after a power cut. Periodic writeback is off
meanwhile, for the whole machine: one test at a time. Linux, and root, only.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO

WRITEBACK = Path("/proc/sys/vm/dirty_writeback_centisecs")
COMMANDS = ("truncate", "mkfs.ext4", "mount", "umount", "sync")
SIZE = "256M"  # sparse
LOCK = Path(tempfile.gettempdir()) / "raftlog-power.lock"
MARK = b"nobody syncs this" * 1_000


@functools.cache
def why_not() -> str:
    """Why no power can be cut on this machine; empty if it can."""
    if sys.platform != "linux":
        return "it needs Linux"
    if os.geteuid() != 0:
        return "it needs root, to mount file systems"
    missing = [command for command in COMMANDS if shutil.which(command) is None]
    if missing:
        return f"no {', '.join(missing)}"
    if not os.access(WRITEBACK, os.W_OK):
        return f"{WRITEBACK} cannot be written"
    with tempfile.TemporaryDirectory(prefix="raftlog-power-") as folder:
        try:
            with Disks(Path(folder), count=1):
                return ""
        except (OSError, subprocess.CalledProcessError) as error:
            return f"no file system can be mounted from a file: {error}"


class Disks:
    """File systems at ``places``, from a ``with`` block's beginning to its end."""

    def __init__(self, directory: Path, *, count: int) -> None:
        self.places = [directory / f"disk-{number}" for number in range(1, count + 1)]
        self._cuts = 0
        self._writeback = ""
        self._mounted: list[Path] = []
        self._lock: IO[str] | None = None

    def __enter__(self) -> Disks:
        self._lock = LOCK.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._writeback = WRITEBACK.read_text()
        try:
            WRITEBACK.write_text("0")
            for place in self.places:
                image = self._image(place)
                _run("truncate", "--size", SIZE, image)
                _run("mkfs.ext4", "-q", "-F", image)
                place.mkdir()
                self._mount(place)
                _run("sync", "--file-system", place)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        WRITEBACK.write_text(self._writeback)
        for place in list(self._mounted):
            self._unmount(place)
        for place in self.places:
            self._image(place).unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()

    def mark(self) -> None:
        """Write on each disk what nobody syncs. New files: ext4 hurries with what it overwrites."""
        for place in self.places:
            self._mark(place, self._cuts + 1).write_bytes(MARK)

    def marks(self) -> list[bool]:
        """Whether what ``mark`` wrote before the last cut is there."""
        marks = [self._mark(place, self._cuts) for place in self.places]
        return [mark.exists() and mark.read_bytes() == MARK for mark in marks]

    def cut_power(self) -> None:
        """What was not synced is gone. Nothing may have files open on the disks."""
        after = {place: self._image(place, self._cuts + 1) for place in self.places}
        for place, image in after.items():
            _run("cp", "--sparse=always", self._image(place), image)
        for place in self.places:
            self._unmount(place)
            self._image(place).unlink()
        self._cuts += 1
        for place in self.places:
            self._mount(place)

    def _mark(self, place: Path, cuts: int) -> Path:
        return place / f"mark-{cuts}"

    def _image(self, place: Path, cuts: int | None = None) -> Path:
        return place.with_suffix(f".{self._cuts if cuts is None else cuts}.img")

    def _mount(self, place: Path) -> None:
        _run("mount", "-o", "loop,commit=3600", self._image(place), place)
        self._mounted.append(place)

    def _unmount(self, place: Path) -> None:
        _run("umount", place)
        self._mounted.remove(place)


def _run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
