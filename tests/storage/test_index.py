"""Tests of raftlog.storage.segment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.storage.segment import ENTRY_BYTES, SparseIndex, Summary, decode, encode
from tests.storage.logs import NOW_MS

BASE_OFFSET = 1_000
INT64_MAX = (1 << 63) - 1
Entry = tuple[int, int, int]  # offset, newest timestamp before it, position

offsets = st.integers(0, INT64_MAX)
timestamps = st.integers(-1, INT64_MAX)
positions = st.integers(1, (1 << 32) - 1)
summaries = st.builds(
    Summary,
    next_offset=offsets,
    log_bytes=offsets,
    chain=st.integers(0, (1 << 64) - 1),
    leader_epoch=st.integers(-1, (1 << 31) - 1),
    newest_timestamp_ms=timestamps,
    newest_age_ms=timestamps,
    first_append_ms=timestamps,
)
EXAMPLE = Summary(1_050, 2_900, 77, 3, NOW_MS + 5, NOW_MS + 4, NOW_MS)


def index_of(*entries: Entry) -> SparseIndex:
    index = SparseIndex()
    for offset, newest_before_ms, position in entries:
        index.add(offset=offset, newest_before_ms=newest_before_ms, position=position)
    return index


@st.composite
def entries_of_indexes(draw: st.DrawFn) -> list[Entry]:
    """Offsets and positions strictly ascend; timestamps never descend."""
    count = draw(st.integers(0, 8))
    few = st.integers(1, 30)
    entry_offsets = draw(st.sets(few, min_size=count, max_size=count))
    entry_positions = draw(st.sets(few, min_size=count, max_size=count))
    newest_before = draw(st.lists(few, min_size=count, max_size=count))
    columns = (sorted(entry_offsets), sorted(newest_before), sorted(entry_positions))
    return list(zip(*columns, strict=True))


# -- the file --------------------------------------------------------------------------------------


@given(entries=st.lists(st.tuples(offsets, timestamps, positions), max_size=20), summary=summaries)
def test_what_was_written_is_read(entries: list[Entry], summary: Summary) -> None:
    data = encode(BASE_OFFSET, index_of(*entries), summary)
    assert decode(data, base_offset=BASE_OFFSET) == (index_of(*entries), summary)


def test_an_index_takes_room_for_its_entries_alone() -> None:
    empty = len(encode(BASE_OFFSET, index_of(), EXAMPLE))
    entries = [(BASE_OFFSET + n, NOW_MS, 100 * n) for n in range(1, 8)]
    assert len(encode(BASE_OFFSET, index_of(*entries), EXAMPLE)) == empty + 7 * ENTRY_BYTES


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_no_damaged_byte_goes_unnoticed(mask: int) -> None:
    data = encode(BASE_OFFSET, index_of((1_010, NOW_MS, 700), (1_020, NOW_MS, 1_500)), EXAMPLE)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= mask
        assert decode(bytes(damaged), base_offset=BASE_OFFSET) is None, f"byte {position}"


def test_an_index_of_another_length_is_not_read() -> None:
    data = encode(BASE_OFFSET, index_of((1_010, NOW_MS, 700)), EXAMPLE)
    for size in range(len(data)):
        assert decode(data[:size], base_offset=BASE_OFFSET) is None, f"{size} bytes"
    assert decode(data + b"\0", base_offset=BASE_OFFSET) is None
    assert decode(data + data, base_offset=BASE_OFFSET) is None


@pytest.mark.parametrize("data", [b"", bytes(4_096), b"RLIX" + bytes(200)])
def test_what_is_no_index_is_not_read(data: bytes) -> None:
    assert decode(data, base_offset=0) is None


def test_the_index_of_another_segment_is_not_read() -> None:
    data = encode(BASE_OFFSET, index_of(), EXAMPLE)
    assert decode(data, base_offset=BASE_OFFSET + 1) is None


def test_a_read_index_can_grow() -> None:
    found = decode(encode(BASE_OFFSET, index_of((1_010, NOW_MS, 700)), EXAMPLE), base_offset=1_000)
    assert found is not None
    index, _summary = found
    index.add(offset=1_020, newest_before_ms=NOW_MS, position=1_500)
    assert index == index_of((1_010, NOW_MS, 700), (1_020, NOW_MS, 1_500))


# -- looking things up -----------------------------------------------------------------------------


def test_an_empty_index_starts_every_search_at_the_segments_first_batch() -> None:
    index = index_of()
    assert index.last_position == 0
    assert index.position_for_offset(5) == 0
    assert index.position_for_timestamp(NOW_MS) == 0
    assert index.batch_start_before(5) == 0


@pytest.mark.parametrize(
    ("offset", "position"), [(0, 0), (9, 0), (10, 300), (11, 300), (19, 300), (20, 700), (99, 700)]
)
def test_a_search_for_an_offset_starts_at_or_before_it(offset: int, position: int) -> None:
    assert index_of((10, 1, 300), (20, 2, 700)).position_for_offset(offset) == position


@pytest.mark.parametrize(
    ("timestamp_ms", "position"),
    [
        (49, 0),
        (50, 0),  # a record before the first entry has it
        (51, 300),
        (60, 300),  # a record between the two has it
        (61, 1_100),
    ],
)
def test_a_search_for_a_time_starts_after_all_that_is_older(
    timestamp_ms: int, position: int
) -> None:
    index = index_of((10, 50, 300), (20, 60, 700), (30, 60, 1_100))
    assert index.position_for_timestamp(timestamp_ms) == position


@given(entries=entries_of_indexes(), wanted=st.integers(0, 35))
def test_searches_find_what_reading_all_entries_finds(entries: list[Entry], wanted: int) -> None:
    index = index_of(*entries)
    by_offset = [position for offset, _, position in entries if offset <= wanted]
    by_time = [position for _, newest_before, position in entries if newest_before < wanted]
    by_position = [position for _, _, position in entries if position <= wanted]
    assert index.position_for_offset(wanted) == max(by_offset, default=0)
    assert index.position_for_timestamp(wanted) == max(by_time, default=0)
    assert index.batch_start_before(wanted) == max(by_position, default=0)
    assert index.last_position == max((position for _, _, position in entries), default=0)
