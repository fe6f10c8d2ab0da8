"""Tasks: blocking disk work of a log that any thread can run while the log is in use.

A task contains everything that it needs. Its ``run`` accesses files, but not the log. The log's
owner runs it in another thread and then returns it to the log. ``run`` raises ``OSError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

from raftlog.disk import NO_ROOM, TEMPORARY_SUFFIX, Disk, File, missing
from raftlog.storage.checkpoint import Anchor, CheckpointFile
from raftlog.storage.segment import EpochCache, LogFiles
from raftlog.types import Offset


@dataclass(frozen=True, slots=True)
class SyncTask:
    """Group commit. After ``run``, all records below ``end_offset`` are durable."""

    disk: Disk
    directory: str
    data: Sequence[File]
    new_names: bool  # segment files were created: sync the directory too
    end_offset: Offset
    end_position: int
    high_watermark: Offset
    checkpoint: CheckpointFile
    files: LogFiles
    epochs: EpochCache | None = None  # if epochs began since the last task
    indexes: Sequence[tuple[str, bytes]] = ()
    snapshots: Sequence[tuple[Offset, dict[str, Any]]] = ()

    def run(self) -> None:
        is_unnamed = self.checkpoint.is_unnamed  # the owner may create it during this task
        # guard: the checkpoint is updated after the sync
        for file in self.data:
            # guard: segment data is synced
            file.sync()
            # guard: synced files are at the path that a start reads
            if not file.is_in_place():  # a start would not find the synced data
                raise missing(file.path)
        if self.epochs is not None:
            # guard: epochs are durable before their batches count as durable
            self.files.write_epochs(self.epochs)  # syncs the directory too
        # guard: a new checkpoint without a new segment has a durable name, too
        elif self.new_names or is_unnamed:
            # guard: new segment's name is synced
            self.disk.sync_dir(self.directory)
        # guard: a sync covers only the names from before it
        if is_unnamed:
            # guard: names are durable before the acknowledgement, also on a full disk
            self.checkpoint.sync_parent()
        try:
            self._note()
        except OSError as error:
            # These files only make the next start faster. A full disk is not an error here.
            if error.errno not in NO_ROOM:
                raise

    def _note(self) -> None:
        """Write indexes, snapshots and checkpoint. Invariant for ``recovery``: each is written only
        after the data that it describes was synced, and its epochs."""
        self.checkpoint.update(
            durable_end_offset=self.end_offset, high_watermark=self.high_watermark
        )
        for path, data in self.indexes:
            write_unsynced(self.disk, path, data)
        for offset, state in self.snapshots:
            self.files.write_snapshot(offset, state)


@dataclass(slots=True)
class DeleteTask:
    """Deletion of old records. After ``run``, the new log start is durable and the files below it
    are removed.

    Several tasks can exist, and can run in any order. Before a log is truncated, it runs all its
    pending tasks. A later ``run`` of such a task does nothing.
    """

    disk: Disk
    directory: str
    checkpoint: CheckpointFile
    files: LogFiles
    log_start_offset: Offset
    paths: Sequence[str] = ()
    # Producer state that only the deleted files contain; None if a snapshot contains it.
    snapshot: tuple[Offset, dict[str, Any]] | None = None
    anchor: Anchor | None = None  # predecessor of the first remaining batch
    is_done: bool = False
    _turn: AbstractContextManager[object] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._turn = self.disk.mutex()

    def run(self) -> None:
        """Do the work once. A concurrent call waits for the first. A call after a failure
        retries."""
        with self._turn:
            if not self.is_done:
                self._drop()
                self.is_done = True

    def _drop(self) -> None:
        """Make the log start durable, then remove the files.

        Missing segments above the log start would count as corruption. The state of producers that
        only these files contain is also durable first, and the name of the segment that holds the
        log end, which may be new. If the disk is too full for the snapshot, it is written after the
        removal. Only in this case a crash in between can lose producer state.
        """
        # guard: producers are saved before their batches are deleted
        saved = self.snapshot is None or self.files.try_write_snapshot(*self.snapshot)
        # guard: the new log start is durable before its files are removed
        self.checkpoint.raise_log_start(self.log_start_offset, self.anchor)
        # guard: the log's end has a durable name before old files are removed
        self.disk.sync_dir(self.directory)
        for path in self.paths:
            if self.disk.exists(path):
                with suppress(FileNotFoundError):  # compaction also removes indexes
                    self.disk.remove(path)
        if not saved and self.snapshot is not None:
            self.files.try_write_snapshot(*self.snapshot)


def write_unsynced(disk: Disk, path: str, data: bytes) -> None:
    """Replace a file that has its own checksum and can be rebuilt. It needs no sync."""
    temporary = path + TEMPORARY_SUFFIX
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.append([data])
    except OSError:
        file.truncate(0)  # a partial file must not occupy disk space
        raise
    finally:
        file.close()
    disk.rename(temporary, path)
