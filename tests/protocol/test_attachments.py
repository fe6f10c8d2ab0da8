"""Attachments are cut exactly, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import InvalidRequestError
from raftlog.protocol.schema import slices


@given(st.lists(st.binary(max_size=40)))
def test_parts_come_back_as_they_were_joined(parts: list[bytes]) -> None:
    joined = b"".join(parts)
    found = slices(memoryview(joined), [len(part) for part in parts])
    assert found == parts
    assert all(part.obj is joined for part in found), "views, not copies"


@pytest.mark.parametrize(
    ("size", "lengths"),
    [(0, [1]), (1, []), (4, [3]), (4, [3, 2]), (4, [4, 1]), (4, [0]), (4, [5, -1]), (2, [-1, 3])],
)
def test_lengths_that_do_not_add_up_are_refused(size: int, lengths: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match="bytes"):
        slices(bytes(size), lengths)


@given(st.binary(max_size=20), st.lists(st.integers(-5, 30), max_size=6))
def test_any_lengths_cut_exactly_or_are_refused(data: bytes, lengths: list[int]) -> None:
    try:
        parts = slices(data, lengths)
    except InvalidRequestError:
        assert sum(lengths) != len(data) or min(lengths) < 0
    else:
        assert [len(part) for part in parts] == lengths
        assert b"".join(parts) == data
