"""Keys and tombstones follow from values, and a record that is not as it was sent is strange."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.testing.history import keys, values
from raftlog.testing.history.entries import STRANGE

VALUES = st.integers(1, 10**15)
COUNTS = st.integers(1, 5_000)


@given(VALUES, COUNTS, st.integers(0, 300))
def test_a_record_comes_back(value: int, count: int, padding: int) -> None:
    key, record, headers = keys.encode(value, padding, count)
    assert (record is None) == keys.is_tombstone(value)
    assert keys.decode(key, record, tuple(headers)) == value


@given(VALUES, COUNTS, VALUES)
def test_a_record_with_anothers_key_or_value_is_strange(value: int, count: int, other: int) -> None:
    key, record, headers = keys.encode(value, 9, count)
    other_key, other_record, other_headers = keys.encode(other, 9, count)
    if other_key != key:
        assert keys.decode(other_key, record, tuple(headers)) == STRANGE
        assert keys.decode(key, other_record, tuple(other_headers)) == STRANGE


@pytest.mark.parametrize("key", [b"", b"1", b"/", b"x/7", b"1/0", b"1/9999999999", b"-1/7"])
def test_any_key_has_an_answer(key: bytes) -> None:
    assert keys.decode(key, values.encode_value(3, 0), ()) == STRANGE


def test_a_value_that_was_deleted_and_a_tombstone_with_a_value_are_strange() -> None:
    live = next(value for value in range(1, 100) if not keys.is_tombstone(value))
    dead = next(value for value in range(1, 100) if keys.is_tombstone(value))
    key, _, _ = keys.encode(live, 0, 10)
    assert keys.decode(key, None, ((keys.HEADER, b"%d" % live),)) == STRANGE
    key, _, headers = keys.encode(dead, 0, 10)
    assert keys.decode(key, values.encode_value(dead, 0), tuple(headers)) == STRANGE
    assert keys.decode(key, None, ()) == STRANGE


def test_a_record_without_a_key_is_one_of_values() -> None:
    assert keys.decode(None, values.encode_value(12, 5), ()) == 12
    assert keys.decode(None, b"nonsense", ()) == STRANGE


@given(st.lists(VALUES, max_size=50), COUNTS)
def test_columns_are_what_single_values_are(some: list[int], count: int) -> None:
    column = np.array(some, np.int64)
    assert keys.keys_of(column, count).tolist() == [keys.key_of(value, count) for value in some]
    assert keys.are_tombstones(column).tolist() == [keys.is_tombstone(value) for value in some]


def test_most_records_have_few_keys_and_one_of_eight_deletes() -> None:
    column = np.arange(1, 20_001)
    found = keys.keys_of(column, 1_000)
    assert 0.7 < (found < keys.HOT).mean() < 0.8
    assert len(np.unique(found)) > 900
    assert 0.11 < keys.are_tombstones(column).mean() < 0.14
