"""The file ``copies``: which copies of partitions a data directory holds, outside of their own
directories.

A partition's directory may vanish, or be replaced by an older one (a missing mount, a partial
restore, fsck), while its broker is down. Nothing inside of it can show that. So the data directory
records for each copy that has held a record: its random id, the sequence number of a checkpoint
that was synced, and the durable end. The checkpoint itself carries the same id. A copy without a
checkpoint, with another id or with a smaller sequence number is damaged.

A record is never ahead of the disk: it is made after its checkpoint was synced. It is durable
before the first synced write of a process to a copy is acknowledged, and after that at an
interval (``Copies.save``). The durable end in it may be newer than that of the checkpoint on the
disk, which is written and not synced after each group commit: after a power cut the newer counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from raftlog.disk import NO_ROOM, Disk
from raftlog.record.checksum import CHAIN_START, chain
from raftlog.storage import state_file
from raftlog.types import Offset

NAME: Final = "copies"
UNIDENTIFIED: Final = 0  # the id of a copy that was never recorded


class CopyRecord(NamedTuple):
    """What is known of one copy."""

    copy_id: int
    sequence: int  # of a checkpoint that is synced
    durable_end_offset: Offset
    end_sequence: int  # of the checkpoint that was written with that durable end


class Copy:
    """One partition's place in ``Copies``."""

    def __init__(self, copies: Copies, key: str) -> None:
        self._copies = copies
        self._key = key

    @property
    def known(self) -> CopyRecord | None:
        """The last record of this copy; None for a copy that never held a record."""
        return self._copies.rows.get(self._key)

    @property
    def advice(self) -> str:
        """What an operator can do about a copy that does not fit its record."""
        return (
            "If other replicas have the records, this copy is replaced automatically. If not, "
            "restore that directory (is its file system mounted?) and restart the broker; or, to "
            f"continue without the records, delete {self._copies.path} while the broker is stopped"
        )

    @property
    def is_unknown(self) -> bool:
        """Whether this copy may have held records, and what is known of it is gone."""
        return self._copies.is_unknown(self._key)

    @property
    def is_recorded(self) -> bool:
        """Whether this process has recorded the copy, durably."""
        return self._key in self._copies.recorded

    def new_id(self) -> int:
        """A random id for a new copy."""
        return self._copies.new_copy_id()

    def note_end(self, durable_end_offset: Offset, end_sequence: int) -> None:
        """Note the durable end in a checkpoint that was written, for the next ``Copies.save``. Any
        thread may call.
        """
        self._copies.note_end(self._key, durable_end_offset, end_sequence)

    def record(self, record: CopyRecord) -> None:
        """Record a checkpoint that is synced. Durable on return the first time in a process, if
        there is disk space. Any thread may call. Raises ``OSError``.
        """
        self._copies.record(self._key, record)


class Copies:
    """The records of one data directory. Any thread may call."""

    def __init__(
        self, disk: Disk, directory: str, *, new_id: Callable[[], str], is_new: bool
    ) -> None:
        """Read the file, or make it. Raises ``DamagedLogError`` and ``OSError``.

        ``is_new``: whether the data directory is. Where not, and the file is missing, copies that
        held records may be missing too: from then on those that are not on record are in doubt.
        """
        self._disk = disk
        self.path = f"{directory}/{NAME}"
        self._new_id = new_id
        state = state_file.read(disk, self.path)
        stored = {} if state is None else state["copies"]
        self.is_complete = is_new if state is None else state.get("complete", True)
        self.rows = {key: CopyRecord._make(row) for key, row in stored.items()}
        self.recorded: set[str] = set()  # durably, by this process
        self._accepted: set[str] = set()  # by this process, though the file does not name them
        self._version = self._saved = 0  # of ``rows``
        self._lock = threading.Lock()  # of ``rows`` and ``_version``
        self._saving = disk.mutex()  # acquired before ``_lock``
        if state is None:
            self._begin()

    def _begin(self) -> None:
        try:
            self._write({})
        except OSError as error:
            if error.errno not in NO_ROOM:  # without room, the next start finds none again
                raise

    def of(self, topic_id: str, partition: int) -> Copy:
        """The place of one partition's copy."""
        return Copy(self, _key(topic_id, partition))

    def is_unknown(self, key: str) -> bool:
        """See ``Copy.is_unknown``."""
        return not (self.is_complete or key in self.rows or key in self._accepted)

    def accept(self, topic_id: str, partition: int) -> None:
        """A copy need not have held records: it may be recorded from now on."""
        self._accepted.add(_key(topic_id, partition))

    def new_copy_id(self) -> int:
        """See ``Copy.new_id``."""
        return chain(CHAIN_START, self._new_id().encode()) or 1

    def note_end(self, key: str, durable_end_offset: Offset, end_sequence: int) -> None:
        """See ``Copy.note_end``."""
        end = {"durable_end_offset": durable_end_offset, "end_sequence": end_sequence}
        with self._lock:
            self.rows[key] = self.rows[key]._replace(**end)
            self._version += 1

    def record(self, key: str, record: CopyRecord) -> None:
        """See ``Copy.record``."""
        if self.is_unknown(key):
            return  # once recorded, it would not be in doubt at the next start
        with self._lock:
            self.rows[key] = record
            self._version += 1
        if key in self.recorded:
            return
        try:
            self.save()
        except OSError as error:
            # Truncation and deletion must work on a full disk. The next record tries again.
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
        state_file.write(self._disk, self.path, {"copies": rows, "complete": self.is_complete})

    def forget(self, topic_id: str, partition: int) -> None:
        """Remove one record, durably: its copy is removed on purpose. Raises ``OSError``."""
        self._remove(_key(topic_id, partition))

    def forget_topic(self, topic_id: str) -> None:
        """As ``forget``, of all copies of a topic."""
        self._remove(*(key for key in self.rows if key.startswith(_key(topic_id, ""))))

    def _remove(self, *keys: str) -> None:
        with self._lock:
            for key in keys:
                self._version += self.rows.pop(key, None) is not None
                self.recorded.discard(key)
        self.save()


def _key(topic_id: str, partition: int | str) -> str:
    return f"{topic_id}/{partition}"
