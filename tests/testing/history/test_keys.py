"""Keys and tombstones follow from values, and a record that is not as it was sent is strange."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.testing.history import entries
from raftlog.testing.history.entries import STRANGE

VALUES = st.integers(1, 10**15)
COUNTS = st.integers(1, 5_000)


@given(VALUES, COUNTS, st.integers(0, 300))
def test_a_record_comes_back(value: int, count: int, padding: int) -> None:
    key, record, headers = entries.encode(value, padding, count)
    assert (record is None) == entries.is_tombstone(value)
    assert entries.decode(key, record, tuple(headers)) == value


@given(VALUES, COUNTS, VALUES)
def test_a_record_with_anothers_key_or_value_is_strange(value: int, count: int, other: int) -> None:
    key, record, headers = entries.encode(value, 9, count)
    other_key, other_record, other_headers = entries.encode(other, 9, count)
    if other_key != key:
        assert entries.decode(other_key, record, tuple(headers)) == STRANGE
        assert entries.decode(key, other_record, tuple(other_headers)) == STRANGE


@pytest.mark.parametrize("key", [b"", b"1", b"/", b"x/7", b"1/0", b"1/9999999999", b"-1/7"])
def test_any_key_has_an_answer(key: bytes) -> None:
    assert entries.decode(key, entries.encode_value(3, 0), ()) == STRANGE


def test_a_value_that_was_deleted_and_a_tombstone_with_a_value_are_strange() -> None:
    live = next(value for value in range(1, 100) if not entries.is_tombstone(value))
    dead = next(value for value in range(1, 100) if entries.is_tombstone(value))
    key, _, _ = entries.encode(live, 0, 10)
    assert entries.decode(key, None, ((entries.HEADER, b"%d" % live),)) == STRANGE
    key, _, headers = entries.encode(dead, 0, 10)
    assert entries.decode(key, entries.encode_value(dead, 0), tuple(headers)) == STRANGE
    assert entries.decode(key, None, ()) == STRANGE


def test_a_record_without_a_key_is_one_of_values() -> None:
    assert entries.decode(None, entries.encode_value(12, 5), ()) == 12
    assert entries.decode(None, b"nonsense", ()) == STRANGE


@given(st.lists(VALUES, max_size=50), COUNTS)
def test_columns_are_what_single_values_are(some: list[int], count: int) -> None:
    column = np.array(some, np.int64)
    assert entries.keys_of(column, count).tolist() == [
        entries.key_of(value, count) for value in some
    ]
    assert entries.are_tombstones(column).tolist() == [
        entries.is_tombstone(value) for value in some
    ]


def test_most_records_have_few_keys_and_one_of_eight_deletes() -> None:
    column = np.arange(1, 20_001)
    found = entries.keys_of(column, 1_000)
    assert 0.7 < (found < entries.HOT).mean() < 0.8
    assert len(np.unique(found)) > 900
    assert 0.11 < entries.are_tombstones(column).mean() < 0.14
