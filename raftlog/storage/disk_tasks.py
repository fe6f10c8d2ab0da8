"""Blocking work that a log hands out, to be run in any thread while the log goes on.

A ticket holds everything it needs; its ``run`` touches files and never the log. The log's owner
runs it elsewhere and then hands it back. ``run`` raises ``OSError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

from raftlog.disk import NO_ROOM, TEMPORARY_SUFFIX, Disk, File, missing
from raftlog.storage.checkpoint import Anchor, CheckpointFile
from raftlog.storage.log_files import LogFiles
from raftlog.types import Offset


@dataclass(frozen=True, slots=True)
class SyncTask:
    """One group commit: after ``run``, everything below ``end_offset`` is durable."""

    disk: Disk
    directory: str
    data: Sequence[File]
    new_names: bool  # segment files were created: the directory has to be synced as well
    end_offset: Offset
    end_position: int
    high_watermark: Offset
    checkpoint: CheckpointFile
    files: LogFiles
    indexes: Sequence[tuple[str, bytes]] = ()
    snapshots: Sequence[tuple[Offset, dict[str, Any]]] = ()

    def run(self) -> None:
        for file in self.data:
            file.sync()
            if not file.is_in_place():  # no start would find what was synced
                raise missing(file.path)
        if self.new_names:
            self.disk.sync_dir(self.directory)
        try:
            self._note()
        except OSError as error:
            # What is noted only makes the next start quicker; a full disk is no reason to stop.
            if error.errno not in NO_ROOM:
                raise

    def _note(self) -> None:
        """Invariant, for ``recovery``: nothing is noted before what it speaks of was synced."""
        self.checkpoint.update(
            durable_end_offset=self.end_offset, high_watermark=self.high_watermark
        )
        for path, data in self.indexes:
            write_unsynced(self.disk, path, data)
        for offset, state in self.snapshots:
            self.files.write_snapshot(offset, state)


@dataclass(slots=True)
class DeleteTask:
    """A new log start: after ``run`` it is durable and the files below it are gone.

    Several may be out, and run in any order. A log that is to be cut runs those that have not run
    itself, first; after that their ``run`` does nothing.
    """

    disk: Disk
    directory: str
    checkpoint: CheckpointFile
    files: LogFiles
    log_start_offset: Offset
    paths: Sequence[str] = ()
    # What only the files to be removed still say of producers; None when a snapshot says it.
    snapshot: tuple[Offset, dict[str, Any]] | None = None
    anchor: Anchor | None = None  # what the first batch that is left follows from
    is_done: bool = False
    _turn: AbstractContextManager[object] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._turn = self.disk.mutex()

    def run(self) -> None:
        """Do the work, once: a second call waits for the first. One that failed is done again."""
        with self._turn:
            if not self.is_done:
                self._drop()
                self.is_done = True

    def _drop(self) -> None:
        """The start is durable before files go: segments missing above it would be damage.

        So are the producers that only those files know of, and the name of the segment that carries
        the log's end, which may be new. Where there is no room for the snapshot, removing files
        makes some: only then the producers are not safe in between.
        """
        saved = self.snapshot is None or self.files.try_write_snapshot(*self.snapshot)
        self.checkpoint.raise_log_start(self.log_start_offset, self.anchor)
        self.disk.sync_dir(self.directory)
        for path in self.paths:
            if self.disk.exists(path):
                with suppress(FileNotFoundError):  # a compaction removes indexes, too
                    self.disk.remove(path)
        if not saved and self.snapshot is not None:
            self.files.try_write_snapshot(*self.snapshot)


def write_unsynced(disk: Disk, path: str, data: bytes) -> None:
    """Replace a file that carries its own checksum and can be rebuilt: no sync is needed."""
    temporary = path + TEMPORARY_SUFFIX
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.append([data])
    except OSError:
        file.truncate(0)  # a half-written one must not hold what room there is
        raise
    finally:
        file.close()
    disk.rename(temporary, path)
