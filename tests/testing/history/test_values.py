"""What records hold comes back, or is told to be strange; runs are what they were made of."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.testing.history import entries
from raftlog.testing.history.entries import STRANGE
from tests.jepsen_like.arena import unrun

VALUES = st.integers(1, 10**15)
# Few different numbers, so that some go on from others.
ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.one_of(st.just(STRANGE), st.integers(1, 6)), st.integers(0, 1)),
    max_size=30,
)


@given(VALUES, st.integers(0, 5_000))
def test_a_value_comes_back(value: int, padding: int) -> None:
    record = entries.encode_value(value, padding)
    assert len(record) == len(f"{value} ") + padding
    assert entries.decode_value(record) == value


@given(VALUES, st.integers(1, 200), st.data())
def test_a_record_that_was_changed_is_strange_or_another_value(
    value: int, padding: int, data: st.DataObject
) -> None:
    record = bytearray(entries.encode_value(value, padding))
    bit = data.draw(st.integers(0, 8 * len(record) - 1))
    record[bit // 8] ^= 1 << bit % 8
    assert entries.decode_value(bytes(record)) != value


@given(st.binary(max_size=50))
def test_any_bytes_at_all_have_an_answer(data: bytes) -> None:
    assert entries.decode_value(data) >= STRANGE


@pytest.mark.parametrize(
    "data",
    [None, b"", b"7", b" 7", b"07 ", b"+7 ", b"1_0 ", b"-1 ", b"x ", b"9" * 10_000 + b" ", b"7 x"],
)
def test_what_no_send_makes_is_strange(data: bytes | None) -> None:
    assert entries.decode_value(data) == STRANGE


def test_the_largest_padding_can_be_had_for_any_value() -> None:
    for value in (1, 4_092, 4_093, 10**12):
        assert len(entries.encode_value(value, entries.PADDING_MAX)) > entries.PADDING_MAX
        assert entries.decode_value(entries.encode_value(value, entries.PADDING_MAX)) == value


@given(ROWS)
def test_runs_are_what_they_were_made_of(rows: list[tuple[int, int, int]]) -> None:
    found = list(entries.runs(rows))
    assert list(unrun(found)) == rows
    assert all(count == 1 for _, count, value, _ in found if value == STRANGE)


@given(ROWS, st.lists(st.integers(0, 30), max_size=4))
def test_runs_are_as_few_as_can_be_however_they_came(
    rows: list[tuple[int, int, int]], cuts: list[int]
) -> None:
    whole = list(entries.runs(rows))
    for one, other in pairwise(whole):
        assert one[2] == STRANGE or (
            other[0] != one[0] + one[1] or other[2] != one[2] + one[1] or other[3] != one[3]
        )
    places = sorted({0, *cuts, len(rows)})
    parts = [run for start, end in pairwise(places) for run in entries.runs(rows[start:end])]
    assert list(entries.joined(parts)) == whole


def test_a_run_of_many_records_is_one() -> None:
    assert list(entries.runs((o, o + 5, 2) for o in range(100, 200))) == [(100, 100, 105, 2)]


def test_parts_of_an_append_are_joined_where_they_go_on() -> None:
    parts = [(1, 2, 10), (3, 1, 12), (4, 1, 20), (6, 1, 21), (7, 3, 22)]
    assert entries.places(parts) == [(1, 3, 10), (4, 1, 20), (6, 4, 21)]
    assert entries.places([]) == []
