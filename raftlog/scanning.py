"""Files as sources of a scan: the data directory of a log, or a backup, without a broker."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from raftlog.client.scan import ClusterSource, Portions, ScanRange, ScanSource
from raftlog.errors import InvalidRequestError
from raftlog.types import Offset, TimestampMs

if TYPE_CHECKING:
    import pyarrow as pa

    from raftlog.embedded import EmbeddedLog


def source_in(directory: str) -> ScanSource:
    """Return the records of a backup, or of the data directory of a log.

    Raises ``InvalidRequestError`` if it is neither.
    """
    if os.path.isfile(f"{directory}/identity"):
        return DirectorySource(directory)
    from raftlog.backup.writer import BackupRecords, open_store

    try:
        return BackupRecords(open_store(directory))
    except InvalidRequestError as error:
        raise InvalidRequestError(
            f"{directory!r} is neither a backup nor the data directory of a log ({error})"
        ) from error


class DirectorySource:
    """Records of the data directory of a log. It is open only while something is read."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = Lock()
        self._users = 0
        self._log: EmbeddedLog | None = None

    @contextmanager
    def _records(self) -> Iterator[ClusterSource]:
        from raftlog.embedded import open as open_log

        with self._lock:
            log = self._log = self._log or open_log(self._path)
            self._users += 1
        try:
            yield log.records()
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._log = None
                    log.close()

    def topics(self) -> list[str]:
        with self._records() as records:
            return records.topics()

    def extents(self, topic: str) -> list[ScanRange]:
        with self._records() as records:
            return records.extents(topic)

    def at_time(self, ranges: Sequence[ScanRange], time_ms: TimestampMs) -> list[Offset | None]:
        with self._records() as records:
            return records.at_time(ranges, time_ms)

    def read(
        self, ranges: Sequence[ScanRange], portions: Portions
    ) -> Iterator[tuple[ScanRange, pa.RecordBatch]]:
        with self._records() as records:
            yield from records.read(ranges, portions)
