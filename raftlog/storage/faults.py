"""What an ``OSError`` from the disk means: no room, which passes, or a disk not to be trusted."""

from __future__ import annotations

from raftlog.disk import NO_ROOM
from raftlog.errors import DiskFullError, StorageFailedError


def storage_error(doing: str, error: OSError) -> DiskFullError | StorageFailedError:
    """The error for a write that failed while ``doing`` (a phrase such as "writing x")."""
    if error.errno in NO_ROOM:
        return DiskFullError(
            f"{doing}: no room ({error.strerror}); nothing was changed. Reads go on: make room "
            "(free space, shorten retention, allow more open files), then writes resume"
        )
    return StorageFailedError(f"{doing} failed: {error}")
