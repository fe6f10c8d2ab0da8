"""The file ``clock`` of a data directory: the last time that the broker used to delete data.

The next start compares its wall clock with this time (``replication.trusted_time``). If the file
is missing, the broker trusts the wall clock.
"""

from __future__ import annotations

from raftlog.disk import NO_ROOM, Disk
from raftlog.errors import DamagedLogError
from raftlog.storage import state_file
from raftlog.types import TimestampMs


def _clock_path(directory: str) -> str:
    return f"{directory}/clock"


def read_clock(disk: Disk, directory: str) -> TimestampMs | None:
    """Return the saved time in ms; None if the file is missing or corrupt. Raises ``OSError``."""
    try:
        state = state_file.read(disk, _clock_path(directory))
    except DamagedLogError:
        return None
    return None if state is None else int(state["deletion_ms"])


def write_clock(disk: Disk, directory: str, deletion_ms: TimestampMs) -> None:
    """Save the time durably. On a full disk, the older time stays. Raises ``OSError``."""
    try:
        state_file.write(disk, _clock_path(directory), {"deletion_ms": deletion_ms})
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
