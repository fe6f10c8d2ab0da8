"""The file ``copies``: which copies of partitions a data directory holds, outside of their own
directories.

A partition's directory may vanish, or be replaced by an older one (a missing mount, a partial
restore, fsck), while its broker is down. Nothing inside of it can show that. So the data directory
records for each copy that has held a record: its random id, the sequence number of a checkpoint
that was synced, and the durable end in that checkpoint. The checkpoint itself carries the same id.
A copy without a checkpoint, with another id or with a smaller sequence number is damaged.

A record is never ahead of the disk: it is made after its checkpoint was synced. It is durable
before the first synced write of a process to a copy is acknowledged, and after that at an
interval (``Copies.save``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from raftlog.disk import NO_ROOM, Disk
from raftlog.record.checksum import CHAIN_START, chain
from raftlog.storage import state_file
from raftlog.types import Offset

NAME: Final = "copies"
UNIDENTIFIED: Final = 0  # the id of a copy that was never recorded


class CopyRecord(NamedTuple):
    """What is known of one copy. ``sequence``: of a checkpoint that is synced."""

    copy_id: int
    sequence: int
    durable_end_offset: Offset


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
    def is_recorded(self) -> bool:
        """Whether this process has recorded the copy, durably."""
        return self._key in self._copies.recorded

    def new_id(self) -> int:
        """A random id for a new copy."""
        return self._copies.new_copy_id()

    def record(self, record: CopyRecord) -> None:
        """Record a checkpoint that is synced. Durable on return the first time in a process, if
        there is disk space. Any thread may call. Raises ``OSError``.
        """
        self._copies.record(self._key, record)


class Copies:
    """The records of one data directory. Any thread may call."""

    def __init__(self, disk: Disk, directory: str, *, new_id: Callable[[], str]) -> None:
        """Read the file. Raises ``DamagedLogError`` and ``OSError``."""
        self._disk = disk
        self.path = f"{directory}/{NAME}"
        self._new_id = new_id
        state = state_file.read(disk, self.path)
        stored = {} if state is None else state["copies"]
        self.rows = {key: CopyRecord._make(row) for key, row in stored.items()}
        self.recorded: set[str] = set()  # durably, by this process
        self._version = self._saved = 0  # of ``rows``
        self._lock = threading.Lock()  # of ``rows`` and ``_version``
        self._saving = disk.mutex()  # acquired before ``_lock``

    def of(self, topic_id: str, partition: int) -> Copy:
        """The place of one partition's copy."""
        return Copy(self, _key(topic_id, partition))

    def new_copy_id(self) -> int:
        """See ``Copy.new_id``."""
        return chain(CHAIN_START, self._new_id().encode()) or 1

    def record(self, key: str, record: CopyRecord) -> None:
        """See ``Copy.record``."""
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
            state_file.write(self._disk, self.path, {"copies": rows})
            self._saved = version

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
