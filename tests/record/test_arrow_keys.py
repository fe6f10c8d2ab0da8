"""Partitions of Arrow's keys: those of the same keys one by one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import InvalidRequestError
from raftlog.record import arrow, partitions_of_arrow
from raftlog.record.key_hash import partition_of_key

TYPES = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view()]


def expected(keys: list[bytes | None], count: int) -> list[int]:
    return [-1 if key is None else partition_of_key(key, count) for key in keys]


def partitions(keys: list[bytes | None], count: int) -> list[int]:
    found = partitions_of_arrow(pa.array(keys, pa.binary()), count)
    assert found.dtype == np.int64
    return [int(partition) for partition in found]


def test_keys_of_one_length() -> None:
    for size in [*range(65), 255, 256, 257, 1_000]:
        chance = random.Random(size)
        keys: list[bytes | None] = [chance.randbytes(size) for _ in range(20)]
        for count in (1, 2, 7, 10_000):
            assert partitions(keys, count) == expected(keys, count)


@given(
    st.lists(st.none() | st.binary(max_size=64) | st.binary(min_size=250, max_size=300)),
    st.integers(1, 10_000),
    st.integers(0, 5),
)
def test_keys_of_all_lengths(keys: list[bytes | None], count: int, skipped: int) -> None:
    assert partitions(keys, count) == expected(keys, count)
    part = pa.array(keys, pa.binary())[skipped:]
    assert partitions_of_arrow(part, count).tolist() == expected(keys[skipped:], count)


def test_more_keys_than_are_hashed_at_a_time() -> None:
    chance = random.Random(5)
    rows = 2 * arrow._ROWS + 3
    keys: list[bytes | None] = [chance.randbytes(chance.randrange(20)) for _ in range(rows)]
    keys[0] = keys[arrow._ROWS] = None
    assert partitions(keys, 50) == expected(keys, 50)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_keys_of_every_type(kind: pa.DataType) -> None:
    keys: list[bytes | None] = [b"a", None, b"\xc3\xa9", b"", b"four", b"fives", b"a" * 300]
    assert partitions_of_arrow(pa.array(keys, kind), 9).tolist() == expected(keys, 9)
    chunked = pa.chunked_array([pa.array(keys[:2], kind), pa.array(keys[2:], kind)])
    assert partitions_of_arrow(chunked, 9).tolist() == expected(keys, 9)


def test_no_keys() -> None:
    for none in (pa.nulls(3), pa.nulls(3, pa.binary())):
        assert partitions_of_arrow(none, 9).tolist() == [-1, -1, -1]
    for empty in (pa.nulls(0), pa.array([], pa.binary()), pa.chunked_array([], pa.binary())):
        assert partitions_of_arrow(empty, 9).tolist() == []


@pytest.mark.parametrize("count", [0, -1, 10_001])
def test_a_count_that_no_topic_has(count: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"{count} partitions: a topic has 1 to 10000"):
        partitions_of_arrow(pa.array([b"a"]), count)


@pytest.mark.parametrize("keys", [pa.array([1, 2]), pa.array([[b"a"]]), [b"a"]])
def test_keys_that_are_not_bytes(keys: Any) -> None:
    with pytest.raises(TypeError, match="keys of "):
        partitions_of_arrow(keys, 2)
