"""Checkpoint of a log: a few offsets, overwritten in place in two alternating slots.

- log start offset: the first record that is not deleted;
- high watermark: the end of the records that were known to be committed;
- durable end offset: the end of the synced records. It separates corruption from a torn write;
- anchor: hash-chain value and leader epoch of the last deleted batch, which the first stored batch
  follows.

The file is overwritten in place for two reasons. Deleting old records must work on a full disk,
where a new file cannot be created. And the checkpoint is written after every group commit. That
write is *not* synced, so it takes only microseconds. After a process crash the checkpoint is exact.
After a power failure it can be old, but it is never ahead of the log. The durable end offset of the
data directory's record (``copies``) then counts, if it is higher. If one slot is torn or corrupt,
the other slot holds the previous write.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from raftlog.disk import NO_ROOM, Disk, File, missing
from raftlog.record.batch import CHAIN_START, chain_link, crc32c
from raftlog.storage import state_files
from raftlog.storage.state_files import NameSyncs
from raftlog.types import LeaderEpoch, Offset

# -- copies ----------------------------------------------------------------------------------------
#
# The file ``copies``: the data directory's record of the partition copies that it holds.
#
# While the broker is down, the directory of a partition can disappear, or an older version can
# replace it (missing mount, partial restore, fsck). The contents of that directory cannot show
# this. Therefore the data directory records for each copy that has held a record: its random id,
# the sequence number of a synced checkpoint, and the durable end offset. The checkpoint contains
# the same id. A copy without a checkpoint, with another id or with a smaller sequence number is
# corrupt.
#
# A record is never ahead of the disk, because it is created after its checkpoint was synced. It is
# durable before the first synced write of a process to a copy is acknowledged. After that, it is
# saved at an interval (``Copies.save``). Its durable end offset can be newer than that of the
# stored checkpoint, which is written after each group commit but not synced. After a power failure,
# the newer of the two counts.


NAME: Final = "copies"
_ROW_BYTES: Final = 150  # of one record in the file, at most
UNIDENTIFIED: Final = 0  # id of a copy that was never recorded


class CopyRecord(NamedTuple):
    """Recorded state of one copy."""

    copy_id: int
    sequence: int  # of a synced checkpoint
    durable_end_offset: Offset
    end_sequence: int  # of the checkpoint that contains this durable end offset


class Copy:
    """Access to the record of one partition's copy in ``Copies``."""

    def __init__(self, copies: Copies, key: str) -> None:
        self._copies = copies
        self._key = key

    @property
    def known(self) -> CopyRecord | None:
        """Last record of this copy; None if the copy never held a record."""
        return self._copies.rows.get(self._key)

    @property
    def advice(self) -> str:
        """Advice for the operator if the copy does not match its record."""
        return (
            "If other replicas have the records, this copy is replaced automatically. If not, "
            "check that the file system is mounted, restore the directory and restart the broker. "
            "Or, to continue without the records (data loss), "
            f"delete {self._copies.path} while the broker is stopped"
        )

    @property
    def is_unknown(self) -> bool:
        """True if this copy may have held records, and its record is lost."""
        return self._copies.is_unknown(self._key)

    @property
    def is_recorded(self) -> bool:
        """True if this process has recorded the copy, durably."""
        return self._key in self._copies.recorded

    def new_id(self) -> int:
        """Return a random id for a new copy."""
        return self._copies.new_copy_id()

    def note_end(self, durable_end_offset: Offset, end_sequence: int) -> None:
        """Store the durable end offset of a written checkpoint for the next ``Copies.save``. Any
        thread may call.
        """
        self._copies.note_end(self._key, durable_end_offset, end_sequence)

    def record(self, record: CopyRecord) -> None:
        """Record a synced checkpoint. The first call in a process is durable on return, if there is
        disk space. Any thread may call. Raises ``OSError``.
        """
        self._copies.record(self._key, record)


class Copies:
    """Records of all copies in one data directory. Any thread may call."""

    def __init__(
        self, disk: Disk, directory: str, *, new_id: Callable[[], str], is_new: bool
    ) -> None:
        """Read or create the file. Raises ``DamagedLogError`` and ``OSError``.

        ``is_new``: True if the data directory is new. If it is not new and the file is missing,
        copies that held records may be missing too. Copies without a record are then in doubt.
        """
        self._disk = disk
        self.path = f"{directory}/{NAME}"
        self._new_id = new_id
        self._spare = state_files.Spare(disk, self.path)
        state = state_files.read(disk, self.path)
        stored = {} if state is None else state["copies"]
        self.is_complete = is_new if state is None else state.get("complete", True)
        self.rows = {key: CopyRecord._make(row) for key, row in stored.items()}
        self.recorded: set[str] = set()  # keys recorded durably by this process
        self._accepted: set[str] = set()  # keys accepted by this process without a record
        self._version = self._saved = 0  # versions of ``rows``
        self._lock = threading.Lock()  # guards ``rows`` and ``_version``
        self._saving = disk.mutex()  # acquired before ``_lock``
        if state is None:
            self._begin()

    def _begin(self) -> None:
        try:
            self._write({})
        except OSError as error:
            if error.errno not in NO_ROOM:  # disk full: the next start creates it
                raise

    def of(self, topic_id: str, partition: int) -> Copy:
        """Return the access object for one partition's copy."""
        return Copy(self, _key(topic_id, partition))

    def is_unknown(self, key: str) -> bool:
        """See ``Copy.is_unknown``."""
        # guard: copies are in doubt once the record of them is lost
        return not (self.is_complete or key in self.rows or key in self._accepted)

    def accept(self, topic_id: str, partition: int) -> None:
        """Accept a copy without a record, so that it can be recorded from now on."""
        self._accepted.add(_key(topic_id, partition))

    def new_copy_id(self) -> int:
        """See ``Copy.new_id``."""
        return chain_link(CHAIN_START, self._new_id().encode()) or 1

    def note_end(self, key: str, durable_end_offset: Offset, end_sequence: int) -> None:
        """See ``Copy.note_end``."""
        end = {"durable_end_offset": durable_end_offset, "end_sequence": end_sequence}
        with self._lock:
            self.rows[key] = self.rows[key]._replace(**end)
            self._version += 1

    def record(self, key: str, record: CopyRecord) -> None:
        """See ``Copy.record``."""
        # guard: a copy in doubt is not recorded
        if self.is_unknown(key):
            return  # a record would end its doubt at the next start
        with self._lock:
            self.rows[key] = record
            self._version += 1
        if key in self.recorded:
            return
        try:
            self.save()
        except OSError as error:
            # Truncation and deletion must work on a full disk. The next call tries again.
            if error.errno not in NO_ROOM:
                raise
        else:
            self.recorded.add(key)

    def save(self) -> None:
        """Write all records, durably, if any has changed. Concurrent calls share one write.
        Raises ``OSError``.
        """
        with self._lock:
            wanted = self._version
        with self._saving:
            if self._saved >= wanted:
                return
            with self._lock:
                version, rows = self._version, {key: list(row) for key, row in self.rows.items()}
            self._write(rows)
            self._saved = version

    def _write(self, rows: dict[str, list[Any]]) -> None:
        try:
            self._spare.write({"copies": rows, "complete": self.is_complete})
        except OSError as error:
            if error.filename is None:  # it must not be mistaken for an error of a log's disk
                error.filename = self.path
            raise

    def keep_spare(self) -> None:
        """Take space for another version of the file: without it, a full disk could not be freed by
        the deletion of topics. Raises ``OSError``.
        """
        self._spare.keep(len(self.rows) * _ROW_BYTES)

    def forget(self, copies: Iterable[tuple[str, int]]) -> None:
        """Remove the records of copies, by topic ID and partition: durably, before the copies are
        removed. Raises ``OSError``.
        """
        self._remove(*(_key(topic_id, partition) for topic_id, partition in copies))

    def forget_topic(self, topic_id: str) -> None:
        """Like ``forget``, for all copies of a topic."""
        with self._lock:  # syncs of other topics add records
            keys = [key for key in self.rows if key.startswith(_key(topic_id, ""))]
        self._remove(*keys)

    def _remove(self, *keys: str) -> None:
        with self._lock:
            for key in keys:
                self._version += self.rows.pop(key, None) is not None
                self.recorded.discard(key)
        self.save()


def _key(topic_id: str, partition: int | str) -> str:
    return f"{topic_id}/{partition}"


# -- checkpoint ------------------------------------------------------------------------------------


# slot | magic 4 "RLC2" | crc32c 4 of what follows | copy_id 8 | sequence 8 |
#      | log_start_offset 8 | high_watermark 8 | durable_end_offset 8 |
#      | anchor: offset 8, chain 8, leader_epoch 8 |                                  little-endian
_HEAD: Final = struct.Struct("<4sI")
_BODY: Final = struct.Struct("<QQqqqqQq")
_MAGIC: Final = b"RLC2"
SLOT_BYTES: Final = 4_096  # a page and a sector each: one write touches one of them
SLOTS: Final = 2
assert _HEAD.size + _BODY.size == 72, "the drawing above and the code disagree"


class Anchor(NamedTuple):
    """Hash-chain value and leader epoch of the last batch below ``offset``.

    The batch at ``offset`` continues this hash chain. Without the anchor, a log whose records were
    all deleted would start a new chain after a restart, and replicas that hold the older batches
    could not follow it. A chain of 0 above offset 0 means unknown.
    """

    offset: Offset = 0
    chain: int = CHAIN_START
    leader_epoch: LeaderEpoch = -1

    def is_known_at(self, offset: Offset) -> bool:
        """Return True if this is the known predecessor of a batch at ``offset``."""
        return self.offset == offset and (offset == 0 or self.chain != CHAIN_START)


ORIGIN: Final = Anchor()  # for a log that never had a batch


@dataclass(frozen=True, slots=True)
class Checkpoint:
    log_start_offset: Offset = 0
    high_watermark: Offset = 0
    durable_end_offset: Offset = 0
    anchor: Anchor = ORIGIN
    copy_id: int = UNIDENTIFIED  # see ``copies``


def encode_slot(sequence: int, checkpoint: Checkpoint) -> bytes:
    body = _BODY.pack(
        checkpoint.copy_id,
        sequence,
        checkpoint.log_start_offset,
        checkpoint.high_watermark,
        checkpoint.durable_end_offset,
        *checkpoint.anchor,
    )
    return _HEAD.pack(_MAGIC, crc32c(body)) + body


def decode_slots(data: bytes) -> tuple[int, Checkpoint] | None:
    """Return the sequence number and content of the newest valid slot; None if no slot is valid.

    A slot of zeros was never written. It reads as the checkpoint of a new log.
    """
    newest: tuple[int, Checkpoint] | None = None
    for slot in range(SLOTS):
        start = slot * SLOT_BYTES
        if len(data) < start + _HEAD.size + _BODY.size:
            break
        found = _decode_slot(data[start : start + _HEAD.size + _BODY.size])
        if found is not None and (newest is None or found[0] > newest[0]):
            newest = found
    return newest


def _decode_slot(data: bytes) -> tuple[int, Checkpoint] | None:
    if not any(data):
        return 0, Checkpoint()
    magic, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    # guard: checkpoint's CRC
    if magic != _MAGIC or crc != crc32c(body):
        return None
    copy_id, sequence, *offsets = _BODY.unpack(body)
    log_start_offset, high_watermark, durable_end_offset, *anchor = offsets
    return sequence, Checkpoint(
        log_start_offset, high_watermark, durable_end_offset, Anchor._make(anchor), copy_id
    )


class CheckpointFile:
    """The checkpoint file, opened at the first write. Thread-safe: each method acquires a lock."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        copy: Copy | None = None,
        *,
        names: NameSyncs | None = None,
    ) -> None:
        """``copy``: the data directory's record of this copy; None if the log has no record.
        ``names``: syncs of the parents of logs' directories; None: of this one only.
        """
        self.path = path
        self._directory = path.rpartition("/")[0]
        self._copy = copy
        self._disk = disk
        self._names = names or NameSyncs(disk)
        self._name = 0  # number of the log's directory in ``_names``
        self._file: File | None = None
        self._sequence = 0
        self._lock = disk.mutex()  # the owner thread and tasks both write
        self._is_unsynced = False  # ``latest`` may be in the page cache only
        # A power failure may remove the file, or the log's directory. No slot is written then.
        self._is_unnamed = False
        self.latest = Checkpoint()

    def load(self) -> str:
        """Read the file into ``latest``. Returns the error text; "" if the file is valid or
        missing."""
        if not self._disk.exists(self.path):
            return ""
        try:
            data = self._disk.read_file(self.path, bytes_max=SLOTS * SLOT_BYTES)
        except OSError as error:
            return f"{self.path} cannot be read: {error}"
        found = decode_slots(data)
        if found is None:
            return "" if not data.strip(b"\0") else f"{self.path} is corrupt: no valid slot"
        self._sequence, self.latest = found
        return ""

    def mismatch(self) -> str:
        """Return why this is not the copy that the data directory has on record; "" if it is.

        Call it once, after ``load``. A checkpoint that does not match loses its copy id, so that
        it does not match at the next start either. A checkpoint that matches adopts the recorded
        durable end offset if that is newer.
        """
        known = None if self._copy is None else self._copy.known
        if known is None:
            return ""
        # guard: a copy without its checkpoint is corrupt
        if not self.is_written:
            what = "the directory or its checkpoint is missing"
        # guard: a copy with another id is corrupt
        elif self.latest.copy_id != known.copy_id:
            what = "now contains another copy"
        # guard: a copy older than its record is corrupt
        elif self._sequence < known.sequence:
            what = "now contains an older state"
        else:
            # guard: the durable end on record counts if it is newer than the checkpoint
            if known.end_sequence > self._sequence:
                # A lower durable end offset is synced before it counts. If the log had been
                # truncated since the record, the checkpoint would be newer than the record.
                # guard: a checkpoint continues from the sequence on record
                self._sequence = known.end_sequence
                self.latest = replace(self.latest, durable_end_offset=known.durable_end_offset)
            return ""
        self._copy = None
        # guard: a corrupt copy keeps no id
        self.latest = replace(self.latest, copy_id=UNIDENTIFIED)
        return f"held records up to offset {known.durable_end_offset}, and {what}"

    def rebuild(self) -> None:
        """Restore ``latest`` from the data directory's record, if any. For a file without a valid
        slot."""
        known = None if self._copy is None else self._copy.known
        if known is not None:
            self._sequence = known.end_sequence
            end = known.durable_end_offset
            self.latest = replace(self.latest, copy_id=known.copy_id, durable_end_offset=end)

    @property
    def advice(self) -> str:
        """See ``Copy.advice``; "" if the log has no record."""
        return "" if self._copy is None else self._copy.advice

    @property
    def is_written(self) -> bool:
        """True if ``latest`` comes from a file or was written to one."""
        return self._sequence > 0

    def prepare(self) -> None:
        """Create the file at its full size, so that later writes need no disk space. Syncs nothing:
        the first ``update`` does, before it writes.

        Does not block if the file is already open, because appends continue during a sync. Raises
        ``OSError``, for example ENOSPC.
        """
        if self._file is not None:
            return
        with self._lock:
            if self._file is None:
                self._open()

    def _open(self) -> File:
        # The previous process may have ended before the names were durable if it wrote no slot.
        # guard: without a slot, the names of a killed process count as not durable
        is_unnamed = self._sequence == 0
        if is_unnamed and self._copy is not None:
            # The first file of a log that never had a record. The parent exists since the log was
            # opened; if not, files are missing.
            self._disk.make_dir(self._directory)
            # guard: a found directory counts as created now
            self._name = self._names.created()
        file = self._disk.open(self.path, create=True, pooled=True)
        if file.size() < SLOTS * SLOT_BYTES:
            is_unnamed = True
            try:
                file.append([bytes(SLOTS * SLOT_BYTES - file.size())])
            except OSError:
                file.close()
                raise
        self._is_unnamed |= is_unnamed
        self._file = file
        return file

    @property
    def is_unnamed(self) -> bool:
        """True if a power failure may remove the file, or the directory of the log."""
        return self._is_unnamed

    def sync_parent(self) -> None:
        """Make the name of the log's directory durable. The directory was synced after the creation
        of the file. Any thread may call. Raises ``OSError``."""
        with self._lock:
            self._finish_names()

    def _finish_names(self) -> None:
        if self._copy is not None:  # else the directory was durable when the log was opened
            # guard: a log's directory is durable before its checkpoint
            self._names.sync(self._directory.rpartition("/")[0], self._name)
        self._is_unnamed = False

    def settle(self) -> None:
        """Create the file of a log with segments but without a checkpoint, because a crash
        interrupted its first sync. Make the names durable, because the segments count as durable
        from now on. A full disk prevents only the creation. Raises ``OSError``.
        """
        try:
            self.prepare()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
        self._disk.sync_dir(self._directory)
        self.sync_parent()

    def update(
        self,
        *,
        log_start_offset: Offset | None = None,
        high_watermark: Offset | None = None,
        durable_end_offset: Offset | None = None,
        anchor: Anchor | None = None,
        sync: bool = False,
    ) -> None:
        """Change the given fields. With ``sync``, this and all earlier changes are durable on
        return.

        A durable change is written to both slots, so that losing one slot cannot revert it. Raises
        ``OSError``.
        """
        given = {
            "log_start_offset": log_start_offset,
            "high_watermark": high_watermark,
            "durable_end_offset": durable_end_offset,
            "anchor": anchor,
        }
        changed: dict[str, Any] = {name: v for name, v in given.items() if v is not None}
        with self._lock:
            self._write(replace(self.latest, **changed), sync=sync)

    def raise_log_start(self, log_start_offset: Offset, anchor: Anchor | None = None) -> None:
        """Raise the log start offset and the anchor, durably. Neither is ever lowered, because
        delete tasks can run in any order. Raises ``OSError``."""
        with self._lock:
            latest = self.latest
            # guard: log start never decreases
            start = max(log_start_offset, latest.log_start_offset)
            if anchor is None or anchor.offset < latest.anchor.offset:
                anchor = latest.anchor
            self._write(replace(latest, log_start_offset=start, anchor=anchor), sync=True)

    def sync(self) -> None:
        """Make ``latest`` and the data directory's record of it durable, if they are not yet."""
        with self._lock:
            if self._is_unsynced:
                self._write(self.latest, sync=True)

    @property
    def is_in_place(self) -> bool:
        """See ``File.is_in_place``. True if the file is not open."""
        return self._file is None or self._file.is_in_place()

    def _write(self, checkpoint: Checkpoint, *, sync: bool) -> None:
        file = self._file or self._open()
        # guard: the checkpoint is at the path that a start reads
        if not self.is_in_place:
            raise missing(self.path)
        if checkpoint.copy_id == UNIDENTIFIED and self._copy is not None:
            checkpoint = replace(checkpoint, copy_id=self._copy.new_id())
        is_first = self._sequence == 0  # no slot holds anything that a torn write could destroy
        if self._is_unnamed:
            # guard: checkpoint's file is created durably
            self._disk.sync_dir(self._directory)
            self._finish_names()
        # guard: a copy is recorded before its first acknowledgement
        sync = sync or is_first or self._is_unrecorded  # the first also makes its size durable
        self.latest = checkpoint
        self._is_unsynced = True
        # guard: durable change is in both slots
        for number in range(SLOTS if sync else 1):
            self._sequence += 1
            # guard: checkpoint's slots alternate
            slot = self._sequence % SLOTS
            file.pwrite(encode_slot(self._sequence, checkpoint), slot * SLOT_BYTES)
            if sync and (number or not is_first):
                # guard: checkpoint is synced on request
                file.sync()
        if sync:
            self._is_unsynced = False
            self._record()
        elif self._copy is not None:
            # guard: the durable end on record is of the last group commit
            self._copy.note_end(checkpoint.durable_end_offset, self._sequence)

    @property
    def _is_unrecorded(self) -> bool:
        """True if this process has not recorded this copy yet. The first write records it, so that
        files from before this process are always older than the record."""
        return self._copy is not None and not self._copy.is_recorded

    def _record(self) -> None:
        """Record the synced state. One slot can become corrupt later, so the record contains the
        sequence number of the older slot."""
        if self._copy is not None:
            latest, last = self.latest, self._sequence
            end = latest.durable_end_offset
            self._copy.record(CopyRecord(latest.copy_id, last - SLOTS + 1, end, last))

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
