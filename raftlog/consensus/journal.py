"""A broker's consensus journal: what all its raft groups remember, in one file.

One file, so that one fdatasync covers the votes and entries of every group. Changes collect in a
pending block; ``begin_sync`` hands out the work that makes it durable, to be run in any thread, and
``complete_sync`` takes it back. Until then nothing that depends on a change may leave the broker.

Formats of records stand in ``raft_journal``, those of blocks in ``journal_file``. No clock, no
threads, no consensus: who may change what is decided above.
"""

from __future__ import annotations

import os.path
from typing import Any, Final, NamedTuple

import msgpack

from raftlog import limits
from raftlog.consensus import journal_file
from raftlog.consensus.journal_file import Found
from raftlog.consensus.raft_journal import BrokerId, DirectoryId, Kind, RaftJournal
from raftlog.disk import NO_ROOM, TEMPORARY_SUFFIX, Disk, File
from raftlog.errors import DamagedJournalError, DiskFullError, StorageFailedError

REWRITE_BYTES: Final = 16 * limits.MIB  # a smaller file is left as it is
REWRITE_FACTOR: Final = 4  # and one below this multiple of its live contents


class PeerSeen(NamedTuple):
    """The newest boot of a peer that this broker has met, and of which data directory.

    ``run`` identifies the incarnation. A copy of the directory with the same boot has another one.
    """

    directory_id: DirectoryId
    boot: int
    run: str = ""


class JournalSyncTask:
    """One group commit: after ``run`` the pending block that it was made from is durable.

    ``run`` touches files and never the journal, so it may be in any thread. It raises ``OSError``;
    hand that to ``failed_sync``.
    """

    def __init__(
        self, disk: Disk, file: File, *, records: list[bytes], sequence: int, whole: bytes | None
    ) -> None:
        self.records = records
        self.sequence = sequence
        self.file = file  # that the journal goes on with
        self.was_refused = False  # there was no room, and the file is as it was before
        self._disk = disk
        self._whole = whole  # the payload of a file to take the place of this one

    def run(self) -> None:
        if self._whole is None or not self._rewrite(self._whole):
            self._append()

    def _append(self) -> None:
        position = self.file.size()
        block = journal_file.encode(_array(self.records), sequence=self.sequence, position=position)
        try:
            self.file.append([block])
        except OSError as error:
            # Bytes that stay would be taken for a torn block, or mix with the next try's.
            self.file.truncate(position)
            self.file.sync()
            self.was_refused = error.errno in NO_ROOM
            raise
        self.file.sync()

    def _rewrite(self, payload: bytes) -> bool:
        """Replace the file by one that holds only what is still true; False without room for it.

        The old file stays whole until the new one, durable, has taken its name.
        """
        path = self.file.path
        temporary = path + TEMPORARY_SUFFIX
        try:
            file = write_file(self._disk, temporary, payload, sequence=self.sequence)
            self._disk.rename(temporary, path)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            if self._disk.exists(temporary):
                self._disk.remove(temporary)
            return False
        self._disk.sync_dir(_directory(path))
        file.close()
        self.file = self._disk.open(path)
        return True


class Journal:
    """See the module. Not thread-safe: one owner, except for a task's ``run``."""

    def __init__(self, disk: Disk, file: File, *, rewrite_bytes: int) -> None:
        self.path = file.path
        self.boot = 0  # grows by one at every open
        self.opened_sequence = (
            0  # of the last block that this open found; the boot is in a later one
        )
        self.peers: dict[BrokerId, PeerSeen] = {}
        self.notes: list[str] = []  # what opening found, for the operator's log
        self._disk = disk
        self._file = file
        self._groups: dict[str, RaftJournal] = {}
        self._pending: list[bytes] = []
        self._sequence = 0
        self._rewrite_bytes = rewrite_bytes
        self._rewrite_at = rewrite_bytes  # bytes of the file at which that is looked at again
        self._task: JournalSyncTask | None = None
        self._failure: StorageFailedError | None = None
        self._is_closed = False

    @classmethod
    def open(
        cls, disk: Disk, path: str, *, create: bool = True, rewrite_bytes: int = REWRITE_BYTES
    ) -> Journal:
        """Open the journal at ``path``, with its boot number already one higher, durably.

        ``create``: whether it may be new; False for a broker that has had a journal. A file
        smaller than ``rewrite_bytes`` is never rewritten. Raises ``DamagedJournalError``,
        ``DiskFullError`` and ``StorageFailedError``.
        """
        try:
            return cls._open(disk, path, create=create, rewrite_bytes=rewrite_bytes)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise DiskFullError(f"disk full while opening {path}: {error}") from error
            raise StorageFailedError(f"opening {path} failed: {error}") from error

    @classmethod
    def _open(cls, disk: Disk, path: str, *, create: bool, rewrite_bytes: int) -> Journal:
        if disk.exists(path + TEMPORARY_SUFFIX):
            disk.remove(path + TEMPORARY_SUFFIX)
        if not disk.exists(path):
            if not create:
                raise journal_file.damaged(path, 0, "the file is gone")
            _create(disk, path)
        disk.sync_dir(_directory(path))  # a crash may have come between its naming and this
        journal = cls(disk, disk.open(path), rewrite_bytes=rewrite_bytes)
        try:
            journal._load()
            journal._note([int(Kind.BOOT), journal.boot + 1])
            journal.sync()
        except BaseException:
            journal.close()
            raise
        return journal

    # -- what is there -----------------------------------------------------------------------------

    def group_ids(self) -> list[str]:
        """The groups for which something was journaled, sorted."""
        return sorted(name for name, group in self._groups.items() if not group.is_new)

    def has(self, group_id: str) -> bool:
        """Whether something was journaled for the group."""
        found = self._groups.get(group_id)
        return found is not None and not found.is_new

    def group(self, group_id: str) -> RaftJournal:
        """The journal of one group, made when there is none. Always the same object."""
        found = self._groups.get(group_id)
        if found is None:
            found = self._groups[group_id] = RaftJournal(group_id, self._note)
        return found

    @property
    def is_dirty(self) -> bool:
        """Whether memory is ahead of the disk, also while a task is out."""
        return bool(self._pending) or self._task is not None

    @property
    def sequence(self) -> int:
        """Of the last block that is durable. It grows by one with each, also when the file is
        rewritten, for as long as the journal lives.
        """
        return self._sequence

    @property
    def size_bytes(self) -> int:
        """Of the file."""
        return self._file.size()

    # -- changes -----------------------------------------------------------------------------------

    def note_peer(
        self, broker_id: BrokerId, directory_id: DirectoryId, boot: int, run: str = ""
    ) -> None:
        """Store the newest boot of a peer. The caller has compared it with the stored one."""
        if self.peers.get(broker_id) != (directory_id, boot, run):
            self._note([int(Kind.PEER), broker_id, directory_id, boot, run])

    def drop(self, group_id: str) -> None:
        """Remove a group. Its remaining handles reject changes."""
        group = self._groups.get(group_id)
        if group is None:
            return
        if group.is_new:
            del self._groups[group_id]
        else:
            self._note([int(Kind.DROP), group_id])
        group.mark_dropped()

    def _note(self, record: list[Any]) -> None:
        assert not self._is_closed, f"{self.path} is closed"
        self._pending.append(msgpack.packb(record))
        self._apply(record)

    def _apply(self, record: list[Any]) -> None:
        kind, *fields = record
        if kind == Kind.BOOT:
            (self.boot,) = fields
        elif kind == Kind.PEER:
            broker_id, directory_id, boot, run = fields
            self.peers[broker_id] = PeerSeen(directory_id, boot, run)
        elif kind == Kind.DROP:
            (group_id,) = fields
            del self._groups[group_id]
        else:
            group_id, *rest = fields
            self.group(group_id).apply(kind, rest)

    def _load(self) -> None:
        found = journal_file.read(self._file)
        if found.torn:
            lost = self._file.size() - found.end
            self._file.truncate(found.end)
            self.notes.append(
                f"cut {lost} torn bytes at byte {found.end} of {self.path}: {found.torn}. A write "
                "that did not end looks so, and nothing was acknowledged for it; if it was damage, "
                "the other brokers know of more than is left, and refuse this one"
            )
        for payload in found.payloads:
            self._replay(payload)
        self._sequence = self.opened_sequence = found.sequence
        self._make_durable(found)

    def _make_durable(self, found: Found) -> None:
        """Write the last block once more, as it is.

        Its sync may have failed, or never been tried. After a failed one the kernel shows bytes
        that it has given up writing, and a second sync does not report them (Rebello et al., "Can
        Applications Recover from fsync Failures?", USENIX ATC 2020). This takes no room.
        """
        self._file.pwrite(self._file.pread(found.end - found.start, found.start), found.start)
        self._file.sync()

    def _replay(self, payload: bytes) -> None:
        try:
            for record in msgpack.unpackb(payload, strict_map_key=False):
                self._apply(record)
        except (ValueError, TypeError, KeyError, AssertionError) as error:
            raise DamagedJournalError(
                f"{self.path} holds a record that this version does not know: {error!r}. "
                "Start the version that wrote it"
            ) from error

    # -- syncing -----------------------------------------------------------------------------------

    def begin_sync(self) -> JournalSyncTask | None:
        """Work that makes all changes so far durable; None when there are none or a task is out.

        Raises ``StorageFailedError`` once a sync has failed.
        """
        if self._failure is not None:
            raise self._failure
        if self._task is not None or not self._pending:
            return None
        self._task = JournalSyncTask(
            self._disk,
            self._file,
            records=self._pending,
            sequence=self._sequence + 1,
            whole=self._whole_if_due(),
        )
        self._pending = []
        return self._task

    def complete_sync(self, task: JournalSyncTask) -> None:
        """Take back a task that has run: its changes are durable."""
        assert task is self._task
        self._task = None
        self._sequence = task.sequence
        if task.file is not self._file:
            self._file.close()
            self._file = task.file
            self._rewrite_at = self._rewrite_bytes

    def failed_sync(
        self, task: JournalSyncTask, error: OSError
    ) -> DiskFullError | StorageFailedError:
        """Accept a task whose ``run`` raised.

        ``DiskFullError``: nothing was written. The changes stay pending, and the next task
        retries. ``StorageFailedError``: the content of the disk is unknown. The journal rejects
        further changes, and the broker must end.
        """
        assert task is self._task
        self._task = None
        if task.was_refused:
            self._pending = task.records + self._pending
            return DiskFullError(
                f"no room on the disk for {self.path} ({error.strerror}): this broker neither "
                "votes nor agrees to anything until space is freed; it tries again by itself"
            )
        self._failure = StorageFailedError(f"syncing {self.path} failed: {error}")
        return self._failure

    def sync(self) -> None:
        """Make all changes durable here and now.

        Raises ``DiskFullError`` and ``StorageFailedError``.
        """
        while (task := self.begin_sync()) is not None:
            try:
                task.run()
            except OSError as error:
                raise self.failed_sync(task, error) from error
            self.complete_sync(task)

    def close(self) -> None:
        """Close the file. Unsynced changes are lost; no message depended on them."""
        self._is_closed = True
        self._file.close()

    def _whole_if_due(self) -> bytes | None:
        """Return the payload of a new file if much of the old one is obsolete, else None."""
        if self._file.size() < self._rewrite_at:
            return None
        records: list[list[Any]] = [[Kind.BOOT, self.boot]]
        records += [[Kind.PEER, peer, *seen] for peer, seen in sorted(self.peers.items())]
        for name in self.group_ids():
            records += self._groups[name].live_records()
        payload = _array([msgpack.packb(record) for record in records])
        if self._file.size() < REWRITE_FACTOR * len(payload):
            self._rewrite_at = REWRITE_FACTOR * len(payload)
            return None
        self._rewrite_at = self._file.size() + self._rewrite_bytes  # unless it works this time
        return payload


def write_file(disk: Disk, path: str, payload: bytes, *, sequence: int) -> File:
    """A synced file of one block; its name is not durable yet."""
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        file.append([journal_file.encode(payload, sequence=sequence, position=0)])
        file.sync()
    except OSError:
        file.close()
        raise
    return file


def _create(disk: Disk, path: str) -> None:
    temporary = path + TEMPORARY_SUFFIX
    write_file(disk, temporary, _array([]), sequence=1).close()
    disk.rename(temporary, path)


def _array(records: list[bytes]) -> bytes:
    """The msgpack array of records that are packed already."""
    return bytes(msgpack.Packer().pack_array_header(len(records))) + b"".join(records)


def _directory(path: str) -> str:
    return os.path.dirname(path) or "."
