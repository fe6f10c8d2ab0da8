"""Logs that are compacted, for tests. No assertions here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.record import parse_header
from raftlog.storage import Log
from raftlog.storage.compaction import CLEANED_SUFFIX, CompactionTask, Pause
from raftlog.testing.disk import SimDisk
from tests.storage.compacted import Row, rows_of
from tests.storage.logs import NOW_MS, append, files, open_log, stored
from tests.storage.model import StoredBatch

SEED: Final = 7
DAY_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000
# Segments of a few batches, compacted as soon as there is anything to gain.
COMPACT: Final = TopicConfig(
    cleanup_policy="compact",
    segment_bytes=2_000,
    index_interval_bytes=300,
    min_cleanable_dirty_ratio=0.0,
)


def config_with(**settings: Any) -> TopicConfig:
    return replace(COMPACT, **settings)


def put(log: Log, *pairs: tuple[bytes | None, bytes | None], **options: Any) -> None:
    """Append one batch of keys and values."""
    append(log, *(value for _, value in pairs), keys=[key for key, _ in pairs], **options)


def put_each(log: Log, keys: Sequence[bytes], *, size: int = 200, **options: Any) -> None:
    """A batch for each key, whose value tells its offset."""
    for key in keys:
        put(log, (key, (b"%d " % log.log_end_offset).ljust(size, b".")), **options)


def seal(log: Log, *, now_ms: int = NOW_MS) -> None:
    """Make all that was written durable, in sealed segments and a producers' snapshot."""
    log.roll_if_due(now_ms=now_ms + log.config.segment_ms)
    log.sync()


def begin(log: Log, *, now_ms: int = NOW_MS, **options: Any) -> CompactionTask | None:
    terms: dict[str, Any] = {
        "high_watermark": log.log_end_offset,
        "chance_seed": SEED,
        "memory_bytes": limits.MIB,
    }
    return log.begin_compaction(now_ms=now_ms, **(terms | options))


def compact(log: Log, *, pause: Pause | None = None, **options: Any) -> int:
    """All of a pass, with the sync that follows; how many tasks it took, 0 when none was due."""
    count = 0
    while (task := begin(log, **options)) is not None:
        task.run(pause)
        log.complete_compaction(task)
        log.sync()
        count += 1
        if task.work.is_done:
            break
    return count


def batches(log: Log) -> list[StoredBatch]:
    return [StoredBatch(data, parse_header(data)) for data in stored(log)]


def rows(log: Log) -> list[Row]:
    return rows_of(batches(log))


def keys_and_values(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(row.offset, row.key, row.value) for row in rows(log)]


def offsets(log: Log) -> list[int]:
    return [row.offset for row in rows(log)]


def log_of(disk: SimDisk, keys: bytes = b"abcabcabc", **settings: Any) -> Log:
    """A sealed log of one batch for each letter of ``keys``, with values of 200 bytes."""
    log = open_log(disk, config_with(**settings))
    put_each(log, [bytes([letter]) for letter in keys])
    seal(log)
    return log


def leftovers(disk: SimDisk) -> list[str]:
    """Paths of cleaned files."""
    return files(disk, CLEANED_SUFFIX)
