"""The file ``copies``: the data directory's record of the partition copies that it holds.

While the broker is down, the directory of a partition can disappear, or an older version can
replace it (missing mount, partial restore, fsck). The contents of that directory cannot show this.
Therefore the data directory records for each copy that has held a record: its random id, the
sequence number of a synced checkpoint, and the durable end offset. The checkpoint contains the same
id. A copy without a checkpoint, with another id or with a smaller sequence number is corrupt.

A record is never ahead of the disk, because it is created after its checkpoint was synced. It is
durable before the first synced write of a process to a copy is acknowledged. After that, it is
saved at an interval (``Copies.save``). Its durable end offset can be newer than that of the stored
checkpoint, which is written after each group commit but not synced. After a power failure, the
newer of the two counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from raftlog.disk import NO_ROOM, Disk
from raftlog.record.checksum import CHAIN_START, chain_link
from raftlog.storage import state_file
from raftlog.types import Offset

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
        self._spare = state_file.Spare(disk, self.path)
        state = state_file.read(disk, self.path)
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
        self._remove(*(key for key in self.rows if key.startswith(_key(topic_id, ""))))

    def _remove(self, *keys: str) -> None:
        with self._lock:
            for key in keys:
                self._version += self.rows.pop(key, None) is not None
                self.recorded.discard(key)
        self.save()


def _key(topic_id: str, partition: int | str) -> str:
    return f"{topic_id}/{partition}"
