"""The file ``clean``: there while nobody has the data directory open since a clean stop.

With flush.policy=os, records are acknowledged that are not on the disk yet. A start that does not
find the mark cannot know that they all are there.
"""

from __future__ import annotations

from contextlib import suppress

from raftlog.disk import NO_ROOM, Disk
from raftlog.errors import DamagedLogError
from raftlog.storage import state_file


def _path(directory: str) -> str:
    return f"{directory}/clean"


def take(disk: Disk, directory: str, *, directory_id: str) -> bool:
    """Whether ``directory`` was left clean. From here on, durably, it is not. Raises ``OSError``.

    A mark of another directory (one that was copied here in part) is none.
    """
    path = _path(directory)
    if not disk.exists(path):
        return False
    mark = None
    with suppress(DamagedLogError):
        mark = state_file.read(disk, path)
    disk.remove(path)
    disk.sync_dir(directory)
    return mark == {"directory_id": directory_id}


def leave(disk: Disk, directory: str, *, directory_id: str) -> None:
    """Mark ``directory`` as clean, durably: all of it is on the disk. Raises ``OSError``.

    Not where there is no room; then the next start takes this stop for a crash.
    """
    try:
        state_file.write(disk, _path(directory), {"directory_id": directory_id})
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
