"""Which of a log's oldest segments have served their time. A pure plan; the log carries it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raftlog.types import Offset, TimestampMs


class SegmentInfo(NamedTuple):
    """What retention looks at. ``newest_age_ms``: the time its newest record counts from."""

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
    """How many of the oldest ``segments`` (ascending) to drop; -1 for a limit means none, and so
    does None for ``now_ms``.

    A segment goes when it lies below the log start, when its newest record is older than
    ``retention_ms``, or while the log without it still holds ``retention_bytes``. Only a prefix
    goes, and nothing at or above the high watermark.
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
