"""Tests of raftlog.storage.log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.errors import InvalidRequestError, RecordTooLargeError
from raftlog.record import HEADER_BYTES, BatchHeader, parse_header
from raftlog.record.batch import COMPACTED
from raftlog.storage import log
from tests.storage.logs import NOW_MS, batch_of

AFTER_MS, BEFORE_MS = 1_000, 5_000
BOUNDED = TopicConfig(
    message_timestamp_after_max_ms=AFTER_MS, message_timestamp_before_max_ms=BEFORE_MS
)


def header_at(*distances_ms: int) -> BatchHeader:
    """Of a batch whose records are that far from now."""
    timestamps_ms = [NOW_MS + distance_ms for distance_ms in distances_ms]
    return parse_header(batch_of([b"v"] * len(timestamps_ms), timestamps_ms=timestamps_ms))


@pytest.mark.parametrize(("spare_bytes", "is_taken"), [(1, True), (0, True), (-1, False)])
def test_a_batch_may_be_as_large_as_the_topic_allows(spare_bytes: int, is_taken: bool) -> None:
    header = header_at(0)
    config = TopicConfig(max_message_bytes=header.length + spare_bytes)
    if is_taken:
        log.check(header, config, now_ms=NOW_MS)
        return
    with pytest.raises(RecordTooLargeError) as caught:
        log.check(header, config, now_ms=NOW_MS)
    assert f"batch of {header.length} bytes" in str(caught.value)
    assert f"max.message.bytes={config.max_message_bytes}" in str(caught.value)


@pytest.mark.parametrize(
    "distances_ms",
    [(0,), (AFTER_MS,), (-BEFORE_MS,), (-BEFORE_MS, AFTER_MS), (0, AFTER_MS, -BEFORE_MS)],
)
def test_timestamps_up_to_both_bounds_are_taken(distances_ms: tuple[int, ...]) -> None:
    log.check(header_at(*distances_ms), BOUNDED, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("distances_ms", "complaint"),
    [
        ((AFTER_MS + 1,), "1001 ms after the broker's clock, over message.timestamp.after.max.ms"),
        ((0, AFTER_MS + 1, 0), "message.timestamp.after.max.ms=1000"),
        ((-BEFORE_MS - 1,), "5001 ms before the broker's clock"),
        ((-BEFORE_MS - 1, 0), "message.timestamp.before.max.ms=5000"),
    ],
)
def test_timestamps_too_far_from_now_are_refused(
    distances_ms: tuple[int, ...], complaint: str
) -> None:
    with pytest.raises(InvalidRequestError, match=complaint):
        log.check(header_at(*distances_ms), BOUNDED, now_ms=NOW_MS)


@pytest.mark.parametrize("distance_ms", [-NOW_MS, AFTER_MS + 1])
def test_producers_timestamps_do_not_matter_where_the_broker_sets_them(distance_ms: int) -> None:
    config = replace(BOUNDED, message_timestamp_type="LogAppendTime")
    log.check(header_at(distance_ms), config, now_ms=NOW_MS)


def test_where_the_broker_sets_timestamps_a_batch_can_still_be_too_large() -> None:
    config = replace(BOUNDED, message_timestamp_type="LogAppendTime", max_message_bytes=1)
    with pytest.raises(RecordTooLargeError):
        log.check(header_at(0), config, now_ms=NOW_MS)


def test_a_topic_takes_any_timestamp_unless_told_otherwise() -> None:
    log.check(header_at(-NOW_MS, NOW_MS), TopicConfig(), now_ms=NOW_MS)


def test_a_compacted_batch_is_not_a_producers() -> None:
    header = header_at(0)._replace(leader_flags=COMPACTED, append_timestamp=NOW_MS)
    with pytest.raises(InvalidRequestError, match="marked as compacted"):
        log.check(header, TopicConfig(), now_ms=NOW_MS)


@pytest.mark.parametrize(("spare_bytes", "is_taken"), [(0, True), (-1, False)])
def test_there_is_room_for_the_offsets_that_compaction_may_add(
    spare_bytes: int, is_taken: bool
) -> None:
    count = 1_000
    size = limits.BATCH_BYTES_MAX - HEADER_BYTES - 4 * count - spare_bytes
    header = header_at(0)._replace(record_count=count, uncompressed_length=size)
    if is_taken:
        log.check(header, TopicConfig(), now_ms=NOW_MS)
        return
    with pytest.raises(RecordTooLargeError, match="1000 records of"):
        log.check(header, TopicConfig(), now_ms=NOW_MS)
