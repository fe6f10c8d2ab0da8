"""Quarantine of corrupt logs: the files are renamed and kept for diagnosis.

<topic>/<topic id>/0                 the new log, empty at first
<topic>/<topic id>/0.quarantine-1    the files of the corrupt log, unchanged
"""

from __future__ import annotations

from typing import Final

from raftlog.disk import Disk

QUARANTINES_KEPT: Final = 3  # for each partition; older ones are removed
MARK: Final = ".quarantine-"


def dangling_text(link: str) -> str:
    """Return what a dangling symbolic link means, and what to do. See ``Disk.dangling_link``."""
    return (
        f"{link} is a symbolic link to a path that does not exist. Mount the file system that it "
        "leads to, or remove the link"
    )


def is_quarantine(name: str) -> bool:
    """Return True if ``name`` is the name of a quarantine directory."""
    return MARK in name


def quarantines(disk: Disk, directory: str) -> list[str]:
    """Return the quarantine directories of the log ``directory``, the oldest first."""
    parent, _, name = directory.rpartition("/")
    numbers = sorted(
        int(number)
        for other, mark, number in (found.rpartition(MARK) for found in disk.list_dir(parent))
        if mark and other == name and number.isascii() and number.isdecimal()
    )
    return [f"{directory}{MARK}{number}" for number in numbers]


def move_aside(disk: Disk, directory: str) -> tuple[str, list[str]]:
    """Rename ``directory`` durably to its next quarantine path.

    Returns the new path, and the paths to remove: the newest ``QUARANTINES_KEPT`` (3) are kept. The
    rename is atomic. A missing directory is treated as an empty one. Raises ``OSError``.
    """
    move_dangling_link(disk, directory)
    disk.make_dirs(directory)
    path, earlier = _rename(disk, directory)
    return path, [*earlier, path][:-QUARANTINES_KEPT]


def move_dangling_link(disk: Disk, directory: str) -> None:
    """Rename the link, durably, because of which ``directory`` does not exist, if there is one.
    Raises ``OSError``.
    """
    if link := disk.dangling_link(directory):
        _rename(disk, link)


def _rename(disk: Disk, path: str) -> tuple[str, list[str]]:
    """Return the next quarantine path, after a durable rename to it, and the earlier ones."""
    earlier = quarantines(disk, path)
    number = int(earlier[-1].rpartition(MARK)[2]) + 1 if earlier else 1
    moved = f"{path}{MARK}{number}"
    disk.rename(path, moved)
    # guard: quarantine is durable before the new log
    disk.sync_dir(path.rpartition("/")[0])
    return moved, earlier


def size_bytes(disk: Disk, parent: str) -> int:
    """Return the size of the quarantine directories in ``parent``. Raises ``OSError``."""
    found = 0
    for name in filter(is_quarantine, disk.list_dir(parent)):
        for file in disk.list_dir(f"{parent}/{name}"):
            opened = disk.open(f"{parent}/{name}/{file}", write=False)
            try:
                found += opened.size()
            finally:
                opened.close()
    return found
