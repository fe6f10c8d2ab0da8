"""Consensus journal of a broker: the durable state of all its Raft groups, in one file.

With one file, one fdatasync covers the votes and entries of every group. Changes are added to a
pending block. ``begin_sync`` returns a task that makes it durable and runs in any thread;
``complete_sync`` completes it. Until then the broker must not send anything that depends on these
changes.

The sections below define the format of records and that of blocks. No clock, no
threads, no consensus: the callers decide which changes are allowed.
"""

from __future__ import annotations

import os.path
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias, overload

import msgpack
from pysyncobj.journal import Journal as LibraryJournal

from raftlog import limits
from raftlog.consensus.settings import APPEND_BYTES, APPEND_ENTRIES_MAX
from raftlog.consensus.transport import is_seal
from raftlog.disk import NO_ROOM, TEMPORARY_SUFFIX, Disk, File, lacking
from raftlog.errors import DamagedJournalError, DiskFullError, FileLimitError, StorageFailedError
from raftlog.record.batch import crc32c

# -- raft journal ----------------------------------------------------------------------------------
#
# Durable state of one Raft group: generation, term, vote, entries.
#
# Implements PySyncObj's journal interface on a broker's journal. Every change becomes a record of
# the journal's pending block and is applied to memory immediately, by the same code that replays
# the file: once the block is durable, a restart restores the state in memory. No code here uses
# files. Before the block is durable, the broker must not send messages that depend on it or count
# entries.
#
# The commit index is not stored (Raft, figure 2: it is volatile), so the entries of a journal are
# not applied before a leader of the current term reports that they are committed.


BrokerId: TypeAlias = int
DirectoryId: TypeAlias = str  # identity of a data directory; a new directory has a new one
Entry: TypeAlias = tuple[bytes, int, int]  # command, index, term
NodeId: TypeAlias = int | str


class Kind(IntEnum):
    """First field of a record. Records of a group have the group id as the second field."""

    BOOT = 0  # boot
    PEER = 1  # broker id, directory id, boot, run, journal block that it has reported
    GENERATION = 2  # group, generation, [[broker id, directory id], ...], base
    TERM = 3  # group, term, vote
    ADD = 4  # group, index, term, command
    CUT = 5  # group, entries kept
    DROP = 6  # group


class RaftJournal(LibraryJournal):  # type: ignore[misc]  # the library has no types
    """Part of a broker's journal for one group. Only ``Journal.group`` creates it."""

    def __init__(self, raft_id: str, record: Callable[[list[Any]], None]) -> None:
        self.raft_id = raft_id
        self.generation = 0
        self.voters: dict[BrokerId, DirectoryId] = {}  # of this generation
        self.base = b""  # initial state of this generation
        self.is_new = True  # the journal has no record of the group
        self._record = record
        self._is_dropped = False
        self._term = 0
        self._vote: NodeId | None = None
        self._entries: list[Entry] = []

    # -- changes -----------------------------------------------------------------------------------

    def begin_generation(
        self, generation: int, voters: Mapping[BrokerId, DirectoryId], base: bytes
    ) -> None:
        """Remove the entries, term and vote of the previous generation, and start this one.

        Atomic with all other changes of the same sync. Generations only increase.
        """
        # guard: generations only increase
        assert generation > self.generation or (self.is_new and generation >= 0)
        self._change(Kind.GENERATION, generation, sorted(voters.items()), bytes(base))

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Append the next entry."""
        if self._entries:
            _command, last_index, last_term = self._entries[-1]
            # guard: entries are journaled in order
            assert idx == last_index + 1 and term >= last_term, "an entry out of order"
        self._change(Kind.ADD, idx, term, bytes(command))

    def clear(self) -> None:
        """Remove all entries."""
        self.deleteEntriesFrom(0)

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803 - the library's names
        """Remove the entries from position ``entryFrom`` (0: the first one) to the end."""
        assert entryFrom >= 0
        if entryFrom < len(self._entries):
            self._change(Kind.CUT, entryFrom)

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803
        """Not supported: the first entries are only removed with their whole generation."""
        raise NotImplementedError("the first entries of a generation are never removed")

    def setCurrentTerm(self, term: int, votedForNodeId: NodeId | None) -> None:  # noqa: N802, N803
        """Record a newer term, or the only vote of a term."""
        if (term, votedForNodeId) == (self._term, self._vote):
            return
        # guard: a vote is never changed
        assert term > self._term or (term == self._term and self._vote is None), "a changed vote"
        self._change(Kind.TERM, term, votedForNodeId)

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """Do nothing: the commit index is not stored."""

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Do nothing: no work is deferred."""

    def _destroy(self) -> None:
        """Do nothing: the file is shared by all groups of the broker."""

    def _change(self, kind: Kind, *fields: Any) -> None:
        assert not self._is_dropped, f"{self.raft_id} was dropped from the journal"
        self._record([int(kind), self.raft_id, *fields])

    # -- contents ----------------------------------------------------------------------------------

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...
    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        """Return 1: the commit index is not stored."""
        return 1

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._term

    def getVotedForNodeId(self) -> NodeId | None:  # noqa: N802
        return self._vote

    # -- called by the journal ---------------------------------------------------------------------

    def apply(self, kind: int, fields: list[Any]) -> None:
        """Apply a record to memory. It is in the pending block, or was read from the file."""
        self.is_new = False
        if kind == Kind.ADD:
            index, term, command = fields
            self._entries.append((command, index, term))
        elif kind == Kind.CUT:
            (kept,) = fields
            del self._entries[kept:]
        elif kind == Kind.TERM:
            self._term, self._vote = fields
        else:
            assert kind == Kind.GENERATION
            self.generation, voters, self.base = fields
            self.voters = dict(voters)
            # guard: a generation removes the votes of the previous one
            self._term, self._vote, self._entries = 0, None, []

    def mark_dropped(self) -> None:
        """Reject further changes: they would restore a part of the group."""
        self._is_dropped = True

    def live_records(self) -> list[list[Any]]:
        """Return the records that restore this state in a new journal."""
        if self.is_new:
            return []
        group = self.raft_id
        voters = sorted(self.voters.items())
        records: list[list[Any]] = [[Kind.GENERATION, group, self.generation, voters, self.base]]
        if self._term or self._vote is not None:
            records.append([Kind.TERM, group, self._term, self._vote])
        records += [
            [Kind.ADD, group, index, term, command] for command, index, term in self._entries
        ]
        return records


# -- journal ---------------------------------------------------------------------------------------


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
        block = encode(_array(self.records), sequence=self.sequence, position=position)
        try:
            self.file.append([block])
        except OSError as error:
            # Partial bytes would look like a torn block, or mix with those of the next attempt.
            # guard: a rejected journal write is truncated
            self.file.truncate(position)
            # guard: the truncation of a rejected journal write is synced
            self.file.sync()
            self.was_refused = error.errno in NO_ROOM
            raise
        # guard: the journal is synced
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
        # guard: rewritten journal's name is synced
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
            # guard: a missing journal is detected
            if not create:
                raise damaged(path, 0, "the file does not exist")
            _create(disk, path)
        # guard: new journal's name is synced
        disk.sync_dir(_directory(path))  # a crash may have prevented this after the rename
        journal = cls(disk, disk.open(path), rewrite_bytes=rewrite_bytes)
        try:
            journal._load()
            # guard: boot number grows at every start
            journal._note([int(Kind.BOOT), journal.boot + 1])
            # guard: boot is durable before the journal opens
            journal.sync()
        except BaseException:
            journal.close()
            raise
        return journal

    # -- contents ----------------------------------------------------------------------------------

    def raft_ids(self) -> list[str]:
        """Return the groups that have records in the journal, sorted."""
        return sorted(name for name, group in self._groups.items() if not group.is_new)

    def has(self, raft_id: str) -> bool:
        """Return whether the journal has records of the group."""
        found = self._groups.get(raft_id)
        return found is not None and not found.is_new

    def group(self, raft_id: str) -> RaftJournal:
        """Return the journal of one group, created on the first call. Always the same object."""
        found = self._groups.get(raft_id)
        if found is None:
            found = self._groups[raft_id] = RaftJournal(raft_id, self._note)
        return found

    @property
    def is_dirty(self) -> bool:
        """Whether changes are not durable yet, also while a task is in progress."""
        # guard: memory is ahead during a sync
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

    def drop(self, raft_id: str) -> None:
        """Remove a group. Its remaining handles reject changes."""
        group = self._groups.get(raft_id)
        if group is None:
            return
        if group.is_new:
            del self._groups[raft_id]
        else:
            self._note([int(Kind.DROP), raft_id])
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
            (raft_id,) = fields
            del self._groups[raft_id]
        else:
            raft_id, *rest = fields
            self.group(raft_id).apply(kind, rest)

    def _load(self) -> None:
        found = read(self._file)
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
        # guard: the last block is written again at a start
        self._file.pwrite(self._file.pread(found.end - found.start, found.start), found.start)
        # guard: recovered journal blocks are synced
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
            # guard: rejected changes stay pending
            self._pending = task.records + self._pending
            # guard: rejected changes are reported later
            self._has_news |= self._task_has_news
            return _no_room(
                f"write {self.path}",
                error,
                ". This broker does not vote or acknowledge entries until it can; it retries "
                "automatically",
            )
        # guard: failed journal sync is fatal
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
        for name in self.raft_ids():
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
        file.append([encode(payload, sequence=sequence, position=0)])
        # guard: rewritten journal is synced
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


# -- journal file ----------------------------------------------------------------------------------
#
# File format of a consensus journal: blocks, and detection of a torn last block.
#
# ``journal`` interprets the records in a block.
#
#   "rj" 2 | length 4 | sequence 8 | blank sectors 4 | payload crc32c 4 | header crc32c 4 | "v1" 2 |
#   payload: one msgpack array of records, then 0xff                                   little-endian
#
# One block is one sync, and no block is written before the previous one is durable. So at most the
# *last* block can be torn. No message depended on it, and it is truncated. All other invalid bytes
# are corruption. A voter that has lost part of its state must not vote: the file is rejected.
#
# Torn blocks and corruption are distinguished by sectors. A disk writes each sector of 512 bytes
# completely or not at all. A sector of a grown file that was not written reads as zeros, or is past
# the file's end. So a torn block lacks its end, or has a blank sector that was not written blank
# (the header counts those that were). Header and payload start and end with bytes that are not 0.
# The header has a separate checksum, so that a corrupt length does not look like a torn block.


SECTOR_BYTES: Final = 512
_HEADER: Final = struct.Struct("<2sIQIII2s")
HEADER_BYTES: Final = _HEADER.size
assert HEADER_BYTES == 28, "the module docstring shows another size"
_SUM_FROM: Final = HEADER_BYTES - 6  # the header checksum covers the bytes before it
_HEAD: Final = b"rj"
_TAIL: Final = b"v1"  # the version of the format
_END: Final = b"\xff"
PAYLOAD_BYTES_MAX: Final = (1 << 32) - 1

ADVICE: Final = (
    "This broker may have lost votes and entries that other brokers count. It does not start. "
    "If the bytes can be recovered from the disk, restore them. Otherwise delete the data "
    "directory of this broker and start it again: the other brokers restore its state. Do not "
    "restore an older copy"
)


class Header(NamedTuple):
    """Header of a block. ``blank_sectors``: the number of payload sectors written as zeros."""

    length: int
    sequence: int
    blank_sectors: int
    payload_crc: int


@dataclass(slots=True)
class Found:
    """Contents of a file: the payloads of its blocks up to ``end``. Torn bytes follow."""

    payloads: list[bytes] = field(default_factory=list)
    sequence: int = 0  # of the last block
    start: int = 0  # position of its first byte
    end: int = 0  # position after its last byte
    torn: str = ""  # reason why the bytes after ``end`` are torn; "" if there are none


def encode(payload: bytes, *, sequence: int, position: int) -> bytes:
    """Return the block with ``payload`` for byte ``position`` of the file."""
    body = payload + _END
    assert len(body) <= PAYLOAD_BYTES_MAX
    header = Header(
        length=len(body),
        sequence=sequence,
        blank_sectors=_blank_sectors(body, position + HEADER_BYTES),
        payload_crc=crc32c(body),
    )
    return _encode_header(header) + body


def _encode_header(header: Header) -> bytes:
    start = _HEADER.pack(_HEAD, *header, 0, b"")[:_SUM_FROM]
    return start + struct.pack("<I", crc32c(start)) + _TAIL


def decode_header(data: bytes, position: int) -> Header | None:
    """Return the header at ``position`` of ``data``; None if there is no valid one."""
    piece = data[position : position + HEADER_BYTES]
    if len(piece) < HEADER_BYTES:
        return None
    header = Header(*_HEADER.unpack(piece)[1:5])
    # guard: CRC of a journal block's header
    return header if piece == _encode_header(header) else None


def read(file: File) -> Found:
    """Read all blocks of ``file``. Raises ``DamagedJournalError``.

    The first block is never torn: the file is renamed to its name after that block was synced.
    """
    found, size = Found(), file.size()
    while found.end < size:
        _read_block(file, size, found)
        if found.torn:
            break
    if not found.payloads:
        raise damaged(file.path, 0, found.torn or "the file is empty")
    return found


def damaged(path: str, position: int, trouble: str) -> DamagedJournalError:
    """Return the error for corruption at a byte of a file, with advice."""
    return DamagedJournalError(f"{path} is corrupt at byte {position}: {trouble}. {ADVICE}")


def _read_block(file: File, size: int, found: Found) -> None:
    """Read the block at ``found.end``, or record why it is torn."""
    start = found.end
    piece = _pread(file, HEADER_BYTES, start)
    header = decode_header(piece, 0)
    if header is None:
        found.torn = _torn_header(file, size, found, piece)
        return
    # guard: sequence of journal blocks
    if found.payloads and header.sequence != found.sequence + 1:
        trouble = f"found block {header.sequence}, expected block {found.sequence + 1}"
        raise damaged(file.path, start, trouble)
    body_start = start + HEADER_BYTES
    if header.length > size - body_start:
        found.torn = f"the file ends inside block {header.sequence}"
        return
    body = _pread(file, header.length, body_start)
    # guard: CRC of a journal block
    if crc32c(body) != header.payload_crc:
        # guard: only the last journal block is torn
        is_last = body_start + header.length == size
        # guard: a complete last block with a wrong CRC is corruption
        if is_last and _blank_sectors(body, body_start) > header.blank_sectors:
            found.torn = f"parts of block {header.sequence} were not written"
            return
        trouble = f"the checksum of block {header.sequence} does not match its bytes"
        raise damaged(file.path, start, trouble)
    found.payloads.append(body[: -len(_END)])
    found.sequence, found.start = header.sequence, start
    found.end = body_start + header.length


def _torn_header(file: File, size: int, found: Found, piece: bytes) -> str:
    """Return why the bytes at the position of a header are torn. Raises if they are corrupt."""
    start = found.end
    if len(piece) == HEADER_BYTES:
        later = _find_later(file, size, found)
        # guard: a corrupt header before other blocks is corruption
        if later is not None:
            trouble = f"no block starts here, but block {later.sequence} follows later"
            raise damaged(file.path, start, trouble)
        if not any(_is_blank(part) for part in _sectors(piece, start)):
            raise damaged(file.path, start, "the checksum of the block's header does not match")
    return f"the header of block {found.sequence + 1} is incomplete"


def _find_later(file: File, size: int, found: Found) -> Header | None:
    """Return a block header after the invalid one, which is then not the last block."""
    rest = _pread(file, size - found.end, found.end)
    position = rest.find(_HEAD, 1)
    while position >= 0:
        header = decode_header(rest, position)
        if header is not None and header.sequence > found.sequence:
            return header
        position = rest.find(_HEAD, position + 1)
    return None


def _pread(file: File, size: int, position: int) -> bytes:
    try:
        return file.pread(size, position)
    except OSError as error:
        raise damaged(file.path, position, f"it cannot be read: {error}") from error


def _sectors(data: bytes, position: int) -> list[bytes]:
    """Split ``data``, from ``position`` of the file, at the sector boundaries of the file."""
    first = -position % SECTOR_BYTES or SECTOR_BYTES
    cuts = [0, *range(first, len(data), SECTOR_BYTES), len(data)]
    return [data[cuts[i] : cuts[i + 1]] for i in range(len(cuts) - 1)]


def _blank_sectors(body: bytes, position: int) -> int:
    """Return the number of payload sectors that are all zeros. The sector that the payload shares
    with its header is not counted: it was written if the header was.
    """
    parts = _sectors(body, position)
    return sum(map(_is_blank, parts[1:] if position % SECTOR_BYTES else parts))


def _is_blank(part: bytes) -> bool:
    return part.count(0) == len(part)


# -- raft log --------------------------------------------------------------------------------------
#
# Raft log of a group: comparison with a leader's log, truncation, and the seal.
#
# A view of the group's journal, from which PySyncObj reads the entries. No roles, no messages.


FIRST_INDEX: Final = 1  # index of the first entry of every log, in term 0; it is never sent


class CommittedEntryError(Exception):
    """A message requires the truncation of a committed entry, which is rejected."""


class RaftLog:
    """Invariant: the journal's entries have consecutive indexes from ``FIRST_INDEX`` on."""

    __slots__ = ("_journal", "seal_index")

    def __init__(self, journal: RaftJournal) -> None:
        assert journal[0][1] == FIRST_INDEX and journal[0][2] == 0
        self._journal = journal
        # Index of the first seal, committed or not: entries after it have no effect.
        self.seal_index = next((index for entry, index, _ in journal[:] if is_seal(entry)), None)

    def __len__(self) -> int:
        return len(self._journal)

    @property
    def last_index(self) -> int:
        return len(self._journal)

    @property
    def end(self) -> tuple[int, int]:
        """Term and index of the last entry. The log with the larger value is more up to date
        (Raft, 5.4.1).
        """
        _entry, index, term = self._journal[-1]
        return term, index

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at ``index``; None if there is no entry."""
        if FIRST_INDEX <= index <= len(self._journal):
            return self._journal[index - FIRST_INDEX][2]
        return None

    def entries_from(self, index: int) -> list[list[Any]]:
        """Return ``[term, entry]`` from ``index`` on: at least one, about one append at most."""
        start = index - FIRST_INDEX
        entries: list[list[Any]] = []
        room = APPEND_BYTES
        for entry, _index, term in self._journal[start : start + APPEND_ENTRIES_MAX]:
            room -= len(entry)
            if entries and room < 0:
                break
            entries.append([term, entry])
        return entries

    def add(self, entry: bytes, index: int, term: int) -> None:
        self._journal.add(entry, index, term)
        if self.seal_index is None and is_seal(entry):
            self.seal_index = index

    def conflict(self, index: int, term: int) -> int | None:
        """Return None if the entry at ``index`` has ``term``, else the index to probe next.

        This is the end of this log, or the first entry of the conflicting term: one round trip per
        term instead of per entry (Raft, 5.3).
        """
        mine = self.term_at(index)
        # guard: an append continues the previous entry
        if mine == term:
            return None
        if mine is None:
            return self.last_index + 1
        while index > FIRST_INDEX + 1 and self.term_at(index - 1) == mine:
            index -= 1
        return index

    def merge(self, previous: int, entries: list[list[Any]], *, commit_index: int) -> None:
        """Append a leader's entries after ``previous``. Truncate only where a term differs.

        Existing entries are kept, also those after the leader's: they may be from a later message
        (hazard 2). Raises ``CommittedEntryError`` before a truncation at or below ``commit_index``.
        """
        index = previous
        for term, entry in entries:
            index += 1
            mine = self.term_at(index)
            # guard: entries are truncated where terms differ
            # guard: entries are truncated only where terms differ
            if mine == term:
                continue
            if mine is not None:
                # guard: committed entries are never truncated
                if index <= commit_index:
                    raise CommittedEntryError(f"index {index} of term {mine} is not of {term}")
                self._cut(index)
            self.add(entry, index, term)

    def _cut(self, index: int) -> None:
        self._journal.deleteEntriesFrom(index - FIRST_INDEX)
        # guard: a truncated seal has no effect
        if self.seal_index is not None and self.seal_index >= index:
            self.seal_index = None


def is_consistent(
    previous: int, previous_term: int, entries: list[list[Any]], leader_term: int
) -> bool:
    """Return whether an append is valid: terms never decrease or exceed the leader's term."""
    if previous < FIRST_INDEX or (previous == FIRST_INDEX and previous_term != 0):
        return False
    if not entries:
        return previous_term <= leader_term
    first_term, last_term = int(entries[0][0]), int(entries[-1][0])
    return max(1, previous_term) <= first_term and last_term <= leader_term
