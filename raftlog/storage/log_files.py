"""State files of a log: the epoch cache and producer snapshots.

Both can be rebuilt from the log, so corruption of them is logged and repaired.

- ``epochs``: the epoch cache. It has the epochs of all batches below the durable end offset.
- ``<offset>.producers``: the producer table as of that offset. It makes the next start faster.
"""

from __future__ import annotations

from typing import Any, Final

from raftlog.disk import NO_ROOM, Disk
from raftlog.errors import DamagedLogError
from raftlog.storage import state_file
from raftlog.storage.epoch_cache import EpochCache, EpochStart
from raftlog.storage.producer_state import ProducerTable
from raftlog.storage.segment import base_offsets, file_name
from raftlog.types import Offset

SNAPSHOT_SUFFIX: Final = ".producers"
# After a crash, the newest snapshot may be above the log end. An older one avoids a full replay.
SNAPSHOTS_KEPT: Final = 3


class LogFiles:
    """State files of one partition."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.directory = directory
        self.notes: list[str] = []  # corrupt files, for the operator's log
        # Every producer that wrote below it is in a durable snapshot, or in the log above it.
        self.snapshot_offset: Offset = 0
        self._disk = disk
        self._lock = disk.mutex()  # sync and delete tasks both write snapshots

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            return state_file.read(self._disk, self._path(name))
        except (DamagedLogError, OSError) as error:
            self.notes.append(f"{error}; it is rebuilt from the log")
            return None

    def read_epochs(self) -> EpochCache | None:
        state = self._read("epochs")
        if state is None:
            return None
        return EpochCache(EpochStart(*entry) for entry in state["epochs"])

    def write_epochs(self, epochs: EpochCache) -> None:
        """Replace the file, and sync it and the directory. If the disk is full, remove it: a
        missing cache is rebuilt, and a wrong cache is not. Raises ``OSError``."""
        path = self._path("epochs")
        try:
            state_file.write(self._disk, path, {"epochs": [list(entry) for entry in epochs]})
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            if self._disk.exists(path):
                self._disk.remove(path)
            self._disk.sync_dir(self.directory)

    def read_snapshot(self, *, log_end_offset: Offset) -> ProducerTable:
        """Return the newest usable snapshot at or below ``log_end_offset``, or an empty table.

        Sets ``snapshot_offset`` to the offset of the snapshot.
        """
        for offset in reversed(self._snapshot_offsets()):
            if offset <= log_end_offset:
                state = self._read(file_name(offset, SNAPSHOT_SUFFIX))
                if state is not None:
                    self.snapshot_offset = offset
                    return ProducerTable.from_snapshot(state)
        self.snapshot_offset = 0
        return ProducerTable()

    def cut_snapshots(self, log_end_offset: Offset) -> None:
        """Delete the snapshots above ``log_end_offset`` (-1: all), durably.

        Their batches were truncated. The snapshots would look valid after the log has grown past
        their offset with other batches.
        """
        offsets = self._snapshot_offsets()
        beyond = [offset for offset in offsets if offset > log_end_offset]
        for offset in beyond:
            self._disk.remove(self._path(file_name(offset, SNAPSHOT_SUFFIX)))
        if beyond:
            self._disk.sync_dir(self.directory)
        kept = offsets[: len(offsets) - len(beyond)]
        self.snapshot_offset = min(self.snapshot_offset, kept[-1] if kept else 0)

    def write_snapshot(self, offset: Offset, state: dict[str, Any]) -> None:
        """Save the producer table as of ``offset``, durably. The log is durable up to ``offset``.
        Raises ``OSError``."""
        with self._lock:
            state_file.write(self._disk, self._path(file_name(offset, SNAPSHOT_SUFFIX)), state)
            self.snapshot_offset = max(self.snapshot_offset, offset)
            older = [other for other in self._snapshot_offsets() if other <= offset]
            for old in older[:-SNAPSHOTS_KEPT]:
                self._disk.remove(self._path(file_name(old, SNAPSHOT_SUFFIX)))

    def try_write_snapshot(self, offset: Offset, state: dict[str, Any]) -> bool:
        """Like ``write_snapshot``. Returns False if the disk is full."""
        try:
            self.write_snapshot(offset, state)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return False
        return True

    def _snapshot_offsets(self) -> list[Offset]:
        return base_offsets(self._disk.list_dir(self.directory), SNAPSHOT_SUFFIX)
