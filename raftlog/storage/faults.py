"""Mapping of ``OSError`` to storage errors: no room is temporary, other failures are not."""

from __future__ import annotations

from raftlog.disk import NO_ROOM, lacking
from raftlog.errors import DiskFullError, FileLimitError, StorageFailedError


def storage_error(doing: str, error: OSError) -> DiskFullError | StorageFailedError:
    """Return the error for a write that failed while ``doing`` (a phrase such as "writing x").

    ``DiskFullError`` if disk space ran out, its subclass ``FileLimitError`` if file descriptors or
    inodes did, else ``StorageFailedError``.
    """
    limit = lacking(error)
    if limit:
        return FileLimitError(f"{doing}: {limit}. Nothing was changed, and reads continue")
    if error.errno in NO_ROOM:
        return DiskFullError(
            f"{doing}: no space ({error.strerror}). Nothing was changed, and reads continue. Free "
            "disk space or shorten retention; writes then resume"
        )
    return StorageFailedError(f"{doing} failed: {error}")
