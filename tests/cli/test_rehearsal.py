"""Cutting the demo's input into chunks. The run itself is ``test_demo.py``'s."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.rehearsal import chunks


@pytest.mark.parametrize(
    ("parts", "size", "expected"),
    [
        ([], 2, []),
        ([[b"a"]], 2, [[b"a"]]),
        ([[b"a"], [b"b"], [b"c"]], 2, [[b"a", b"b"], [b"c"]]),
        ([[b"a", b"b", b"c", b"d", b"e"]], 2, [[b"a", b"b"], [b"c", b"d"], [b"e"]]),
        ([[], [b"a"], []], 1, [[b"a"]]),
    ],
)
def test_chunks_have_the_size_and_the_order(
    parts: list[list[bytes]], size: int, expected: list[list[bytes]]
) -> None:
    assert list(chunks(iter(parts), size)) == expected


@given(st.lists(st.lists(st.binary(max_size=2))), st.integers(1, 10))
def test_no_line_is_lost_in_chunks(parts: list[list[bytes]], size: int) -> None:
    cut = list(chunks(iter(parts), size))
    assert [line for chunk in cut for line in chunk] == [line for part in parts for line in part]
    assert all(len(chunk) == size for chunk in cut[:-1])
