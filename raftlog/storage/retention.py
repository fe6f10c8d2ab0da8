"""Retention planning: the number of old segments to delete. Pure functions; ``Log`` deletes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from raftlog.config import TopicConfig
from raftlog.storage.segment import Segment
from raftlog.types import Offset, TimestampMs


class SegmentInfo(NamedTuple):
    """Retention's view of a segment. ``newest_age_ms``: time that the age of the newest record is
    computed from."""

    base_offset: Offset
    next_offset: Offset
    size_bytes: int
    newest_age_ms: TimestampMs


def expired(
    segments: Sequence[SegmentInfo],
    *,
    now_ms: TimestampMs | None,
    retention_ms: int,
    retention_bytes: int,
    log_start_offset: Offset,
    high_watermark: Offset,
) -> int:
    """Return the number of the oldest ``segments`` (ascending) to delete.

    A limit of -1 means no limit. With ``now_ms`` None, no segment expires by age. A segment is
    deleted if it is below the log start, if its newest record is older than ``retention_ms``, or if
    the log without it still holds ``retention_bytes``. Only a prefix of the segments is deleted,
    and no record at or above the high watermark.
    """
    excess_bytes = sum(segment.size_bytes for segment in segments) - retention_bytes
    oldest_ms = None if now_ms is None or retention_ms < 0 else now_ms - retention_ms
    count = 0
    for segment in segments:
        below_start = segment.next_offset <= log_start_offset
        too_old = oldest_ms is not None and segment.newest_age_ms < oldest_ms
        too_big = retention_bytes >= 0 and excess_bytes >= segment.size_bytes
        if segment.next_offset > high_watermark or not (below_start or too_old or too_big):
            break
        excess_bytes -= segment.size_bytes
        count += 1
    return count


def count_expired(
    segments: Iterable[Segment],
    config: TopicConfig,
    *,
    now_ms: TimestampMs | None,
    log_start_offset: Offset,
    high_watermark: Offset,
) -> int:
    """Return the number of the oldest segments that the settings of a topic delete: ``expired``."""
    return expired(
        [
            SegmentInfo(s.base_offset, s.next_offset, s.size_bytes, s.summary.newest_age_ms)
            for s in segments
            if s.size_bytes
        ],
        now_ms=now_ms,
        retention_ms=config.retention_ms if config.is_deleted_by_age else -1,
        retention_bytes=config.retention_bytes if config.is_deleted_by_age else -1,
        log_start_offset=log_start_offset,
        high_watermark=high_watermark,
    )
