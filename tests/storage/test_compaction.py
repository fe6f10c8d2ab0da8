"""The plan of a compaction: what is clean, what is due, what goes into one segment."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from raftlog.storage.compaction import (
    PASSES_REMEMBERED,
    CleanPart,
    CompactionState,
    LastPass,
    SegmentInfo,
    dirty_ratio,
    first_groups,
    groups,
)

LAST = LastPass(began_ms=5, bytes_before=100, bytes_after=60, records_removed=4)


def state_of(*parts: tuple[int, int, int]) -> CompactionState:
    return CompactionState(tuple(CleanPart(*part) for part in parts))


def segments_of(*sizes: int, dirty_from: int = 0) -> list[SegmentInfo]:
    """One for each of ``sizes``, of ten records each; dirty from a number on."""
    return [
        SegmentInfo(10 * number, 10 * number + 10, size, size if number >= dirty_from else 0)
        for number, size in enumerate(sizes)
    ]


# -- the state -------------------------------------------------------------------------------------


def test_nothing_is_clean_at_first() -> None:
    state = CompactionState()
    assert state.clean_end_offset == 0
    assert state.tombstones_due_below(now_ms=10, retention_ms=0) == 0
    assert not state.has_only_due_tombstones(now_ms=10, retention_ms=0)
    assert state.kept_parts(0) == ()


def test_each_pass_adds_a_part() -> None:
    state = CompactionState().after(50, due_below=0, tombstones=[3], last=LAST)
    assert (state.parts, state.last) == ((CleanPart(50, 5, 3),), LAST)
    state = state.after(80, due_below=0, tombstones=[2, 1], last=LAST._replace(began_ms=9))
    assert state.parts == (CleanPart(50, 5, 2), CleanPart(80, 9, 1))
    assert state.clean_end_offset == 80


def test_a_pass_without_anything_new_lets_no_tombstone_begin_anew() -> None:
    state = state_of((50, 5, 3), (80, 9, 2))
    again = state.after(80, due_below=50, tombstones=[2, 0], last=LAST._replace(began_ms=30))
    assert again.parts == (CleanPart(80, 9, 2),)
    # All have served their time: none is left, and the end is remembered.
    again = state.after(80, due_below=80, tombstones=[0], last=LAST._replace(began_ms=30))
    assert again.parts == (CleanPart(80, 30, 0),)


def test_tombstones_are_due_once_their_part_is_clean_for_long_enough() -> None:
    state = state_of((50, 100, 1), (80, 200, 1))
    for now_ms, due_below in ((109, 0), (110, 50), (209, 50), (210, 80)):
        assert state.tombstones_due_below(now_ms=now_ms, retention_ms=10) == due_below
    assert not state.has_only_due_tombstones(now_ms=209, retention_ms=10)
    assert state.has_only_due_tombstones(now_ms=210, retention_ms=10)
    assert not state_of((80, 1, 0)).has_only_due_tombstones(now_ms=210, retention_ms=10)


def test_a_clock_that_goes_back_makes_nothing_due_too_early() -> None:
    state = state_of((50, 100, 1), (80, 20, 1))
    assert state.tombstones_due_below(now_ms=60, retention_ms=10) == 0


def test_parts_are_not_remembered_without_end() -> None:
    state = CompactionState()
    for number in range(1, PASSES_REMEMBERED + 10):
        counts = [part.tombstones for part in state.parts] + [1]
        last = LAST._replace(began_ms=number)
        state = state.after(10 * number, due_below=0, tombstones=counts, last=last)
        assert sum(part.tombstones for part in state.parts) == number
    assert len(state.parts) == PASSES_REMEMBERED
    assert state.parts[0] == CleanPart(100, 10, 10), "the oldest go with the one after them"


def test_a_cut_makes_what_comes_after_it_dirty() -> None:
    state = CompactionState(state_of((50, 1, 3), (80, 2, 1)).parts, LAST)
    assert state.cut(80) == state.cut(1_000) == state
    assert state.cut(79).parts == (CleanPart(50, 1, 3), CleanPart(79, 2, 1))
    assert state.cut(50).parts == (CleanPart(50, 1, 3),)
    assert state.cut(49).parts == (CleanPart(49, 1, 3),)
    assert state.cut(0).parts == ()
    assert state.cut(0).last == LAST


@given(ends=st.lists(st.integers(1, 100), unique=True).map(sorted), end=st.integers(0, 100))
def test_a_cut_keeps_the_order_of_parts(ends: list[int], end: int) -> None:
    state = state_of(*((offset, offset, 1) for offset in ends)).cut(end)
    found = [part.end_offset for part in state.parts]
    assert found == sorted(set(found))
    assert state.clean_end_offset == min(end, max(ends, default=0))


def test_a_state_is_written_and_read() -> None:
    for state in (CompactionState(), CompactionState(state_of((50, 1, 3)).parts, LAST)):
        assert CompactionState.from_json(json.loads(json.dumps(state.to_json()))) == state


# -- segments --------------------------------------------------------------------------------------


def test_the_ratio_is_the_share_of_dirty_bytes() -> None:
    assert dirty_ratio([]) == 0
    assert dirty_ratio(segments_of(100, 100, dirty_from=2)) == 0
    assert dirty_ratio(segments_of(300, 100, dirty_from=1)) == 0.25
    assert dirty_ratio(segments_of(300, 100)) == 1


def sizes(grouped: list[list[SegmentInfo]]) -> list[list[int]]:
    return [[segment.size_bytes for segment in group] for group in grouped]


def test_neighbours_become_one_as_long_as_they_fit() -> None:
    assert groups([], segment_bytes=10) == []
    found = groups(segments_of(40, 40, 40, 100, 500, 1, 1), segment_bytes=100)
    assert sizes(found) == [[40, 40], [40], [100], [500], [1, 1]]


def test_a_ticket_has_one_group_at_least_and_no_more_than_there_is_room_for() -> None:
    grouped = groups(segments_of(60, 60, 60), segment_bytes=100)
    for bytes_max, count in ((0, 1), (60, 1), (119, 1), (120, 2), (1_000, 3)):
        assert first_groups(grouped, bytes_max=bytes_max) == grouped[:count]
    assert first_groups([], bytes_max=5) == []


def test_below_which_tombstones_are_missing_grows_with_parts_that_have_some() -> None:
    state = state_of((50, 100, 1), (80, 200, 0), (90, 300, 2))
    assert state.removing_tombstones(0).tombstones_removed_below == 0
    assert state.removing_tombstones(80).tombstones_removed_below == 50
    state = state.removing_tombstones(90)
    assert state.tombstones_removed_below == 90
    assert state.lacking_tombstones(40) == state, "it never goes back"
    after = state.after(120, due_below=90, tombstones=[0], last=LAST)
    assert after.tombstones_removed_below == 90
    assert after.cut(70).tombstones_removed_below == 70
    assert CompactionState.from_json(json.loads(json.dumps(after.to_json()))) == after


def test_a_state_of_an_older_release_may_lack_tombstones_below_its_first_part() -> None:
    old = {"parts": [[50, 100, 1], [80, 200, 0]], "last": None}
    assert CompactionState.from_json(old).tombstones_removed_below == 50
    assert CompactionState.from_json({"parts": [], "last": None}).tombstones_removed_below == 0
