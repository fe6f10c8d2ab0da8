"""Logs for tests: on which disk, filled with what, and what they hold. No assertions here."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.disk import Disk
from raftlog.record import decode_lists, parse_header, split, validate
from raftlog.storage import Appended, Log, TimestampSearch
from raftlog.testing.disk import SimDisk, SimFile
from raftlog.types import OffsetAndTimestamp
from tests.record.batches import NOW_MS, batch_of

DIRECTORY: Final = "log"
NO_PRODUCER: Final = (-1, -1, -1)
# Segments of a few batches, an index entry for nearly each.
SMALL: Final = TopicConfig(segment_bytes=2_000, index_interval_bytes=300, retention_ms=-1)
ONE_SEGMENT: Final = TopicConfig(index_interval_bytes=300, retention_ms=-1)


def sim_disk(seed: int = 1, *, capacity_bytes: int | None = None) -> SimDisk:
    return SimDisk(Random(seed), capacity_bytes=capacity_bytes)


def open_log(disk: Disk, config: TopicConfig = SMALL, directory: str = DIRECTORY) -> Log:
    return Log.open(disk, directory, config)


def append(
    log: Log,
    *values: bytes | None,
    now_ms: int = NOW_MS,
    leader_epoch: int | None = None,
    **options: Any,
) -> Appended:
    """Append one batch of ``values``, in the log's own epoch unless another is given."""
    batch = batch_of(values, **options)
    epoch = max(log.leader_epoch, 0) if leader_epoch is None else leader_epoch
    return log.append(batch, validate(batch), leader_epoch=epoch, now_ms=now_ms)


def fill(log: Log, count: int, *, size: int = 200, sync: bool = True, **options: Any) -> None:
    """Append ``count`` batches of one record, each of ``size`` bytes and telling its offset."""
    for _ in range(count):
        append(log, value_at(log.log_end_offset, size), **options)
    if sync:
        log.sync()


def value_at(offset: int, size: int = 200) -> bytes:
    return (b"%d " % offset).ljust(size, b".")


def stored(log: Log, start_offset: int | None = None) -> list[bytes]:
    """The batches from ``start_offset`` (or the log start) to the log end, as they are stored."""
    start = log.log_start_offset if start_offset is None else start_offset
    parts = log.read(start_offset=start, end_offset=log.log_end_offset, bytes_max=limits.GIB)
    return [bytes(batch) for part in parts for batch in split(part)]


def values(log: Log, start_offset: int | None = None) -> list[bytes | None]:
    return [value for batch in stored(log, start_offset) for value in decode_lists(batch).values]


def base_offsets_of(batches: Sequence[bytes]) -> list[int]:
    return [parse_header(batch).base_offset for batch in batches]


def files(disk: Disk, suffix: str, directory: str = DIRECTORY) -> list[str]:
    """Paths of the files that end in ``suffix``, in the order of their names."""
    return [f"{directory}/{n}" for n in disk.list_dir(directory) if n.endswith(suffix)]


def killed(disk: SimDisk, config: TopicConfig = SMALL) -> Log:
    """The log as the next process finds it after this one was killed."""
    disk.crash()
    return open_log(disk, config)


def after_power_cut(disk: SimDisk, config: TopicConfig = SMALL) -> Log:
    disk.power_cut()
    return open_log(disk, config)


def count_reads(disk: SimDisk) -> list[int]:
    """Grows by the bytes of every read of a segment from now on."""
    reads: list[int] = []
    open_file = disk.open

    def open_counting(
        path: str, *, create: bool = False, write: bool = True, pooled: bool = False
    ) -> SimFile:
        file = open_file(path, create=create, write=write)
        pread = file.pread

        def pread_counting(size: int, position: int) -> bytes:
            data = pread(size, position)
            reads.append(len(data))
            return data

        file.pread = pread_counting  # type: ignore[method-assign]
        return file

    disk.open = open_counting  # type: ignore[method-assign]
    return reads


def searched(search: TimestampSearch) -> OffsetAndTimestamp | None:
    """The result of a search by time; its work is done at once."""
    found = None
    while True:
        try:
            work = search.send(found)
            found = work() if work is not None else None
        except StopIteration as end:
            result: OffsetAndTimestamp | None = end.value
            return result
