"""Syncs of directories that contain those of partitions: one for all that were created before it.

The first records of many partitions of a topic create many directories in that of the topic. Each
needs a sync of it that began after its creation, and several can share it.
"""

from __future__ import annotations

import threading
from typing import Final

from raftlog.disk import Disk

SYNCED_MAX: Final = 1_000  # paths that are known to be synced; without them, a sync is repeated


class NameSyncs:
    """Creations and syncs in one log directory. Any thread may call."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._created = 0
        self._lock = threading.Lock()  # guards ``_created``
        self._syncing = disk.mutex()  # acquired before ``_lock``
        self._synced: dict[str, int] = {}  # by path: ``_created`` when its last sync began

    def created(self) -> int:
        """Return the number of a name that was just created, or was found, for ``sync``."""
        with self._lock:
            self._created += 1
            return self._created

    def sync(self, path: str, number: int) -> None:
        """Make the name ``number`` in the directory ``path`` durable. Raises ``OSError``."""
        with self._syncing:
            if self._synced.get(path, 0) >= number:
                return
            with self._lock:
                created = self._created
            self._disk.sync_dir(path)
            if len(self._synced) >= SYNCED_MAX:
                self._synced.clear()
            self._synced[path] = created
