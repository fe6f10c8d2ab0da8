"""The file ``clock`` of a data directory: the last time by which its broker deleted data.

The next start compares its wall clock with it (``replication.trusted_time``). Without the file the
clock is taken as it is.
"""

from __future__ import annotations

from raftlog.disk import NO_ROOM, Disk
from raftlog.errors import DamagedLogError
from raftlog.storage import state_file
from raftlog.types import TimestampMs


def _path(directory: str) -> str:
    return f"{directory}/clock"


def read(disk: Disk, directory: str) -> TimestampMs | None:
    """The saved time; None where there is none, or it is damaged. Raises ``OSError``."""
    try:
        state = state_file.read(disk, _path(directory))
    except DamagedLogError:
        return None
    return None if state is None else int(state["deletion_ms"])


def write(disk: Disk, directory: str, deletion_ms: TimestampMs) -> None:
    """Save the time, durably; where there is no room, the older one stays. Raises ``OSError``."""
    try:
        state_file.write(disk, _path(directory), {"deletion_ms": deletion_ms})
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
