"""Reading across segments, and what is kept open and remembered to make that cheap."""

from __future__ import annotations

import pytest

from raftlog import limits
from raftlog.storage import segment as segment_list
from raftlog.storage.segment import Segment
from tests.storage.logs import DIRECTORY, fill, open_log, sim_disk, stored, values


def test_a_read_goes_on_in_the_next_segment() -> None:
    log = open_log(sim_disk())
    fill(log, 20)
    assert log.segment_count > 3
    parts = log.read(start_offset=0, end_offset=20, bytes_max=limits.GIB)
    assert len(parts) == log.segment_count
    assert len(b"".join(parts)) == log.size_bytes


@pytest.mark.parametrize("bytes_max", [0, 1, 290, 1_000, 2_500])
def test_a_reader_that_comes_back_for_more_sees_every_batch_once(bytes_max: int) -> None:
    log = open_log(sim_disk())
    fill(log, 20)
    whole, found, offset = stored(log), b"", 0
    while offset < 20:
        parts = log.read(start_offset=offset, end_offset=20, bytes_max=bytes_max)
        found += b"".join(parts)
        offset = sum(
            len(b) and 1 for b in whole if len(found) >= sum(map(len, whole[: 1 + whole.index(b)]))
        )
    assert found == b"".join(whole)


def test_where_readers_are_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_list, "_POSITIONS_REMEMBERED", 3)
    log = open_log(sim_disk())
    fill(log, 30)
    for offset in range(30):
        log.read(start_offset=offset, end_offset=30, bytes_max=1)
    assert len(log._segments._positions) == 3


def test_a_reader_who_comes_back_is_found_without_a_search() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 6)
    log.read(start_offset=0, end_offset=6, bytes_max=300)
    segment = log._segments[0]
    segment.index = type(segment.index)()
    segment.find = lambda offset: pytest.fail("a search")  # type: ignore[method-assign]
    parts = log.read(start_offset=1, end_offset=6, bytes_max=300)
    assert len(parts) == 1


def test_few_sealed_segments_stay_open_and_none_that_is_yet_to_be_synced_is_closed() -> None:
    log = open_log(sim_disk())
    for _ in range(10):
        fill(log, 6, sync=False)
    unsynced = list(log._segments)
    assert all(segment.is_open for segment in unsynced)
    log.sync()
    is_open = [segment.is_open for segment in log._segments[:-1]]  # type: ignore[index]
    assert sum(is_open) == limits.OPEN_SEALED_SEGMENTS_MAX
    assert values(log, 0)[0] is not None
    fill(log, 6)
    assert sum(s.is_open for s in list(log._segments)[:-1]) == limits.OPEN_SEALED_SEGMENTS_MAX


def test_dropping_never_takes_the_last_segment() -> None:
    log = open_log(sim_disk())
    fill(log, 20)
    segments = list(log._segments)
    assert log._segments.drop_below(segments[2].base_offset) == segments[:2]
    assert log._segments.drop_below(1_000) == segments[2:-1]
    assert list(log._segments) == segments[-1:]


def test_neighbours_are_swapped_for_one_and_where_readers_are_is_forgotten() -> None:
    log = open_log(sim_disk())
    fill(log, 30)
    segments = log._segments
    log.read(start_offset=4, end_offset=30, bytes_max=1)
    before = list(segments)
    one = Segment(log._disk, DIRECTORY, before[1].base_offset)
    one.summary.next_offset = before[2].next_offset
    segments.swap([before[1].base_offset, before[2].base_offset], one)
    assert list(segments) == [before[0], one, *before[3:]]
    assert not any(segment.is_open for segment in before[1:3])
    assert segments._positions == {}
    with pytest.raises(AssertionError):
        segments.swap([before[0].base_offset, before[3].base_offset], one)
