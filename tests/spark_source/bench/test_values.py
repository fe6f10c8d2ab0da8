"""Tests of spark_source.bench.values."""

from __future__ import annotations

import zlib

import pytest

from raftlog.spark_source.bench.values import values_of


@pytest.mark.parametrize("size", [1, 2, 3, 60, 100, 1_000])
def test_values_are_of_the_size_asked_for(size: int) -> None:
    assert {len(value) for value in values_of(50, size)} == {size}


def test_values_differ_and_are_the_same_every_time() -> None:
    values = values_of(1_000, 100)
    assert len(set(values)) == 1_000
    assert values == values_of(1_000, 100)


def test_values_compress_as_lines_of_a_log_do() -> None:
    joined = b"".join(values_of(5_000, 100))
    assert 2 < len(joined) / len(zlib.compress(joined)) < 6
