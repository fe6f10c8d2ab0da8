"""Tests of raftlog.storage.log."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.storage.log import SegmentInfo, expired

NOW_MS = 10_000
HOUR_OLD, NEW = NOW_MS - 3_600, NOW_MS
UNLIMITED = -1


def segments_of(*ages_ms: int, size_bytes: int = 100) -> list[SegmentInfo]:
    """Segments of ten records each; ``ages_ms`` are the times that their newest count from."""
    return [
        SegmentInfo(10 * number, 10 * number + 10, size_bytes, age_ms)
        for number, age_ms in enumerate(ages_ms)
    ]


def dropped(
    segments: list[SegmentInfo],
    *,
    retention_ms: int = UNLIMITED,
    retention_bytes: int = UNLIMITED,
    log_start_offset: int = 0,
    high_watermark: int | None = None,
) -> int:
    return expired(
        segments,
        now_ms=NOW_MS,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        log_start_offset=log_start_offset,
        high_watermark=segments[-1].next_offset if high_watermark is None else high_watermark,
    )


def test_without_limits_nothing_goes() -> None:
    assert dropped(segments_of(0, 0, 0)) == 0


def test_a_log_without_segments_has_none_to_drop() -> None:
    assert dropped([], retention_ms=0, retention_bytes=0, high_watermark=0) == 0


@pytest.mark.parametrize(
    ("retention_ms", "count"),
    [(3_600, 0), (3_599, 1), (1_000, 1), (999, 2), (1, 2), (0, 2), (-1, 0)],
)
def test_a_segment_goes_when_its_newest_record_is_older_than_allowed(
    retention_ms: int, count: int
) -> None:
    assert dropped(segments_of(HOUR_OLD, NOW_MS - 1_000, NEW), retention_ms=retention_ms) == count


@pytest.mark.parametrize(
    ("retention_bytes", "count"),
    [(300, 0), (201, 0), (200, 1), (101, 1), (100, 2), (1, 2), (0, 3), (-1, 0)],
)
def test_a_segment_goes_while_the_rest_still_holds_what_is_to_be_kept(
    retention_bytes: int, count: int
) -> None:
    assert dropped(segments_of(NEW, NEW, NEW), retention_bytes=retention_bytes) == count


@pytest.mark.parametrize(
    ("retention_ms", "retention_bytes", "count"),
    [
        (1_000, 300, 1),  # time alone
        (5_000, 100, 2),  # size alone
        (1_000, 100, 2),  # time for the first, size for the second
        (1_000, 200, 1),  # what time took counts for size
        (5_000, 300, 0),
    ],
)
def test_either_limit_is_enough(retention_ms: int, retention_bytes: int, count: int) -> None:
    segments = segments_of(HOUR_OLD, NEW, NEW)
    found = dropped(segments, retention_ms=retention_ms, retention_bytes=retention_bytes)
    assert found == count


@pytest.mark.parametrize(
    ("log_start_offset", "count"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (30, 3)]
)
def test_segments_below_the_log_start_go_whatever_the_limits(
    log_start_offset: int, count: int
) -> None:
    assert dropped(segments_of(NEW, NEW, NEW), log_start_offset=log_start_offset) == count


@pytest.mark.parametrize(
    ("high_watermark", "count"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (30, 3)]
)
@pytest.mark.parametrize("limits", [{"retention_ms": 0}, {"retention_bytes": 0}])
def test_nothing_goes_that_is_not_committed(
    limits: dict[str, int], high_watermark: int, count: int
) -> None:
    segments = segments_of(HOUR_OLD, HOUR_OLD, HOUR_OLD)
    assert dropped(segments, high_watermark=high_watermark, **limits) == count


def test_an_old_segment_behind_a_new_one_stays() -> None:
    assert dropped(segments_of(HOUR_OLD, NEW, HOUR_OLD), retention_ms=1_000) == 1


@st.composite
def logs(draw: st.DrawFn) -> list[SegmentInfo]:
    gaps = draw(st.lists(st.integers(1, 10), max_size=6))
    bases = [sum(gaps[:number]) for number in range(len(gaps) + 1)]
    return [
        SegmentInfo(base, end, draw(st.integers(1, 100)), draw(st.integers(0, NOW_MS)))
        for base, end in pairwise(bases)
    ]


@given(
    segments=logs(),
    retention_ms=st.integers(-1, NOW_MS),
    retention_bytes=st.integers(-1, 400),
    log_start_offset=st.integers(0, 60),
    high_watermark=st.integers(0, 60),
)
def test_the_longest_run_of_oldest_segments_goes_of_which_each_may(
    segments: list[SegmentInfo],
    retention_ms: int,
    retention_bytes: int,
    log_start_offset: int,
    high_watermark: int,
) -> None:
    def may_go(number: int) -> bool:
        segment = segments[number]
        left_bytes = sum(other.size_bytes for other in segments[number + 1 :])
        return segment.next_offset <= high_watermark and (
            segment.next_offset <= log_start_offset
            or 0 <= retention_ms < NOW_MS - segment.newest_age_ms
            or 0 <= retention_bytes <= left_bytes
        )

    count = dropped(
        segments,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        log_start_offset=log_start_offset,
        high_watermark=high_watermark,
    )
    assert all(may_go(number) for number in range(count))
    assert count == len(segments) or not may_go(count)
