"""Moving a damaged log's files aside: they stay for whoever wants to know what happened.

<topic>/<topic id>/0                 the log that goes on, empty at first
<topic>/<topic id>/0.quarantine-1    what it was, untouched
"""

from __future__ import annotations

from typing import Final

from raftlog.disk import Disk

QUARANTINES_KEPT: Final = 3  # for each partition; older ones are removed
MARK: Final = ".quarantine-"


def is_quarantine(name: str) -> bool:
    """Whether a directory of that name holds files that were moved aside."""
    return MARK in name


def quarantines(disk: Disk, directory: str) -> list[str]:
    """The paths to which ``directory`` was moved before, the oldest first."""
    parent, _, name = directory.rpartition("/")
    numbers = sorted(
        int(number)
        for other, mark, number in (found.rpartition(MARK) for found in disk.list_dir(parent))
        if mark and other == name and number.isascii() and number.isdecimal()
    )
    return [f"{directory}{MARK}{number}" for number in numbers]


def move_aside(disk: Disk, directory: str) -> tuple[str, list[str]]:
    """Rename ``directory``, durably, and remove all but the newest ``QUARANTINES_KEPT`` before it.

    Where it is now, and which were removed. A crash leaves it where it was, or moved whole. One
    that is missing is moved as an empty one. Raises ``OSError``.
    """
    disk.make_dirs(directory)
    earlier = quarantines(disk, directory)
    number = int(earlier[-1].rpartition(MARK)[2]) + 1 if earlier else 1
    path = f"{directory}{MARK}{number}"
    parent = directory.rpartition("/")[0]
    disk.rename(directory, path)
    disk.sync_dir(parent)
    removed = [*earlier, path][:-QUARANTINES_KEPT]
    for old in removed:
        disk.remove_tree(old)
    return path, removed
