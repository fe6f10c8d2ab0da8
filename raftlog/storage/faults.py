"""Mapping of ``OSError`` to storage errors: a full disk is temporary, other failures are not."""

from __future__ import annotations

from raftlog.disk import NO_ROOM
from raftlog.errors import DiskFullError, StorageFailedError


def storage_error(doing: str, error: OSError) -> DiskFullError | StorageFailedError:
    """Return the error for a write that failed while ``doing`` (a phrase such as "writing x").

    ``DiskFullError`` if disk space or file descriptors ran out, else ``StorageFailedError``.
    """
    if error.errno in NO_ROOM:
        return DiskFullError(
            f"{doing}: no space ({error.strerror}). Nothing was changed, and reads continue. Free "
            "disk space, shorten retention or allow more open files; writes then resume"
        )
    return StorageFailedError(f"{doing} failed: {error}")
