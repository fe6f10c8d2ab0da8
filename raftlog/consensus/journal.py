"""Consensus journal of a broker: the durable state of all its Raft groups, in one file.

With one file, one fdatasync covers the votes and entries of every group. Changes are added to a
pending block. ``begin_sync`` returns a task that makes it durable and runs in any thread;
``complete_sync`` completes it. Until then the broker must not send anything that depends on these
changes.

``raft_journal`` defines the format of records, ``journal_file`` that of blocks. No clock, no
threads, no consensus: the callers decide which changes are allowed.
"""

from __future__ import annotations

import os.path
from typing import Any, Final, NamedTuple

import msgpack

from raftlog import limits
from raftlog.consensus import journal_file
from raftlog.consensus.journal_file import Found
from raftlog.consensus.raft_journal import BrokerId, DirectoryId, Kind, RaftJournal
from raftlog.disk import NO_ROOM, TEMPORARY_SUFFIX, Disk, File, lacking
from raftlog.errors import (
    DamagedJournalError,
    DiskFullError,
    FileLimitError,
    StorageFailedError,
)

REWRITE_BYTES: Final = 16 * limits.MIB  # a smaller file is not rewritten
REWRITE_FACTOR: Final = 4  # nor is a file below this multiple of its live contents


class PeerSeen(NamedTuple):
    """Newest known boot number of a peer, and the data directory that it belongs to.

    ``run`` identifies the incarnation. A copy of the directory with the same boot number has a
    different ``run``. ``sequence``: a journal block that the peer has reported as durable, at most
    about a second older than the last one.
    """

    directory_id: DirectoryId
    boot: int
    run: str = ""
    sequence: int = 0


class JournalSyncTask:
    """One group commit: after ``run`` its block of changes is durable.

    ``run`` uses files but not the journal, so any thread can call it. It raises ``OSError``; pass
    the error to ``failed_sync``.
    """

    def __init__(
        self, disk: Disk, file: File, *, records: list[bytes], sequence: int, whole: bytes | None
    ) -> None:
        self.records = records
        self.sequence = sequence
        self.file = file  # the journal's file after ``run``
        self.was_refused = False  # the disk was full, and the file is unchanged
        self._disk = disk
        self._whole = whole  # payload of a new file that replaces this one

    def run(self) -> None:
        if self._whole is None or not self._rewrite(self._whole):
            self._append()

    def _append(self) -> None:
        position = self.file.size()
        block = journal_file.encode(_array(self.records), sequence=self.sequence, position=position)
        try:
            self.file.append([block])
        except OSError as error:
            # Partial bytes would look like a torn block, or mix with those of the next attempt.
            self.file.truncate(position)
            self.file.sync()
            self.was_refused = error.errno in NO_ROOM
            raise
        self.file.sync()

    def _rewrite(self, payload: bytes) -> bool:
        """Replace the file by one with the live contents. Returns False if the disk is full.

        The old file remains complete until the new one is durable and is renamed to replace it.
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
    """See the module. Not thread-safe, except for ``run`` of a task."""

    def __init__(self, disk: Disk, file: File, *, rewrite_bytes: int) -> None:
        self.path = file.path
        self.boot = 0  # incremented at every open
        self.opened_sequence = (
            0  # of the last block that this open found; the boot is in a later one
        )
        self.peers: dict[BrokerId, PeerSeen] = {}
        self.notes: list[str] = []  # log lines about what ``open`` found
        self._disk = disk
        self._file = file
        self._groups: dict[str, RaftJournal] = {}
        self._pending: list[bytes] = []
        self._sequence = 0
        self.reported_sequence = 0  # of the last block that has more than reports of peers
        self._has_news = False  # the pending changes have more than that
        self._task_has_news = False
        self._rewrite_bytes = rewrite_bytes
        self._rewrite_at = rewrite_bytes  # file size in bytes at which a rewrite is considered
        self._task: JournalSyncTask | None = None
        self._failure: StorageFailedError | None = None
        self._is_closed = False

    @classmethod
    def open(
        cls, disk: Disk, path: str, *, create: bool = True, rewrite_bytes: int = REWRITE_BYTES
    ) -> Journal:
        """Open the journal at ``path`` and increment its boot number durably.

        ``create``: create it if it does not exist; False for a broker that has had a journal. A
        file smaller than ``rewrite_bytes`` is never rewritten. Raises ``DamagedJournalError``,
        ``DiskFullError`` and ``StorageFailedError``.
        """
        try:
            return cls._open(disk, path, create=create, rewrite_bytes=rewrite_bytes)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise _no_room(f"open {path}", error) from error
            raise StorageFailedError(f"opening {path} failed: {error}") from error

    @classmethod
    def _open(cls, disk: Disk, path: str, *, create: bool, rewrite_bytes: int) -> Journal:
        if disk.exists(path + TEMPORARY_SUFFIX):
            disk.remove(path + TEMPORARY_SUFFIX)
        if not disk.exists(path):
            if not create:
                raise journal_file.damaged(path, 0, "the file does not exist")
            _create(disk, path)
        disk.sync_dir(_directory(path))  # a crash may have prevented this after the rename
        journal = cls(disk, disk.open(path), rewrite_bytes=rewrite_bytes)
        try:
            journal._load()
            journal._note([int(Kind.BOOT), journal.boot + 1])
            journal.sync()
        except BaseException:
            journal.close()
            raise
        return journal

    # -- contents ----------------------------------------------------------------------------------

    def group_ids(self) -> list[str]:
        """Return the groups that have records in the journal, sorted."""
        return sorted(name for name, group in self._groups.items() if not group.is_new)

    def has(self, group_id: str) -> bool:
        """Return whether the journal has records of the group."""
        found = self._groups.get(group_id)
        return found is not None and not found.is_new

    def group(self, group_id: str) -> RaftJournal:
        """Return the journal of one group, created on the first call. Always the same object."""
        found = self._groups.get(group_id)
        if found is None:
            found = self._groups[group_id] = RaftJournal(group_id, self._note)
        return found

    @property
    def is_dirty(self) -> bool:
        """Whether changes are not durable yet, also while a task is in progress."""
        return bool(self._pending) or self._task is not None

    @property
    def sequence(self) -> int:
        """Sequence number of the last durable block. Each block increments it, also when the file
        is rewritten.
        """
        return self._sequence

    @property
    def size_bytes(self) -> int:
        """Size of the file in bytes."""
        return self._file.size()

    # -- changes -----------------------------------------------------------------------------------

    def note_peer(
        self, broker_id: BrokerId, directory_id: DirectoryId, boot: int, run: str = ""
    ) -> None:
        """Store the newest boot of a peer. The caller has compared it with the stored one."""
        seen = self.peers.get(broker_id)
        sequence = 0 if seen is None or seen.directory_id != directory_id else seen.sequence
        if seen != (directory_id, boot, run, sequence):
            self._note([int(Kind.PEER), broker_id, directory_id, boot, run, sequence])

    def note_heard(self, broker_id: BrokerId, sequence: int) -> None:
        """Store the journal block that a known peer has reported: an older copy of its directory
        is recognized, also after a restart of this broker.

        The block that stores it is not reported to others. They would store that, and so on.
        """
        seen, had_news = self.peers[broker_id], self._has_news
        if sequence > seen.sequence:
            self._note([int(Kind.PEER), broker_id, *seen._replace(sequence=sequence)])
            self._has_news = had_news

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
        self._has_news = True
        self._apply(record)

    def _apply(self, record: list[Any]) -> None:
        kind, *fields = record
        if kind == Kind.BOOT:
            (self.boot,) = fields
        elif kind == Kind.PEER:
            broker_id, *seen = fields
            self.peers[broker_id] = PeerSeen(*seen)
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
                f"truncated {lost} torn bytes at byte {found.end} of {self.path}: {found.torn}. "
                "The cause is an interrupted write, which was never acknowledged, or corruption. "
                "In the case of corruption, the other brokers know a newer state of this journal, "
                "and reject this broker"
            )
        for payload in found.payloads:
            self._replay(payload)
        self._sequence = self.opened_sequence = self.reported_sequence = found.sequence
        self._make_durable(found)

    def _make_durable(self, found: Found) -> None:
        """Write the last block again, unchanged.

        It may never have been synced, or its sync may have failed. After a failed sync, the kernel
        returns cached bytes that it no longer writes, and a second sync does not report them
        (Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020). This
        uses no additional disk space.
        """
        self._file.pwrite(self._file.pread(found.end - found.start, found.start), found.start)
        self._file.sync()

    def _replay(self, payload: bytes) -> None:
        try:
            for record in msgpack.unpackb(payload, strict_map_key=False):
                self._apply(record)
        except (ValueError, TypeError, KeyError, AssertionError) as error:
            raise DamagedJournalError(
                f"{self.path} contains a record that this version does not know: {error!r}. "
                "Start the version that wrote it"
            ) from error

    # -- syncing -----------------------------------------------------------------------------------

    def begin_sync(self) -> JournalSyncTask | None:
        """Return a task that makes all pending changes durable.

        None if there are no changes, or if a task is in progress. Raises ``StorageFailedError``
        once a sync has failed.
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
        self._task_has_news, self._has_news = self._has_news, False
        return self._task

    def complete_sync(self, task: JournalSyncTask) -> None:
        """Complete a task that has run: its changes are durable."""
        assert task is self._task
        self._task = None
        self._sequence = task.sequence
        if self._task_has_news:
            self.reported_sequence = task.sequence
        if task.file is not self._file:
            self._file.close()
            self._file = task.file
            self._rewrite_at = self._rewrite_bytes

    def failed_sync(
        self, task: JournalSyncTask, error: OSError
    ) -> DiskFullError | StorageFailedError:
        """Complete a task whose ``run`` raised, and return the error.

        ``DiskFullError``: nothing was written. The changes stay pending, and the next task
        retries. ``StorageFailedError``: the content of the disk is unknown. The journal rejects
        further changes, and the broker must end.
        """
        assert task is self._task
        self._task = None
        if task.was_refused:
            self._pending = task.records + self._pending
            return _no_room(
                f"write {self.path}",
                error,
                ". This broker does not vote or acknowledge entries until it can; it retries "
                "automatically",
            )
        self._failure = StorageFailedError(f"syncing {self.path} failed: {error}")
        return self._failure

    def sync(self) -> None:
        """Make all changes durable before this returns.

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
        self._rewrite_at = self._file.size() + self._rewrite_bytes  # if the rewrite fails
        return payload


def write_file(disk: Disk, path: str, payload: bytes, *, sequence: int) -> File:
    """Write and sync a file of one block. Its directory entry is not durable yet."""
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
    """Return the msgpack array of records that are already packed."""
    return bytes(msgpack.Packer().pack_array_header(len(records))) + b"".join(records)


def _directory(path: str) -> str:
    return os.path.dirname(path) or "."


def _no_room(what: str, error: OSError, effect: str = "") -> DiskFullError:
    limit = lacking(error)
    if limit:
        return FileLimitError(f"cannot {what}: {limit}{effect}")
    reason = f"disk full: cannot {what} ({error.strerror})"
    return DiskFullError(f"{reason}. Free disk space{effect}")
