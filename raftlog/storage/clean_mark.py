"""The file ``clean``: marks a data directory that was closed cleanly and is not open.

With flush.policy=os, the broker acknowledges records that are not synced. If the mark is missing
at the start, some of these records may be lost.
"""

from __future__ import annotations

from contextlib import suppress

from raftlog.disk import NO_ROOM, Disk
from raftlog.errors import DamagedLogError
from raftlog.storage import state_file


def _path(directory: str) -> str:
    return f"{directory}/clean"


def take(disk: Disk, directory: str, *, directory_id: str) -> bool:
    """Return True if ``directory`` has a clean mark, and remove the mark durably.

    A mark with another directory id (of a partial copy) does not count. Raises ``OSError``.
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
    """Mark ``directory`` as clean, durably. The caller has synced all its contents.

    On a full disk, no mark is written. The next start then treats this stop as a crash. Raises
    ``OSError``.
    """
    try:
        state_file.write(disk, _path(directory), {"directory_id": directory_id})
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
