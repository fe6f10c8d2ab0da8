"""Copies of a partition are compared byte for byte, and what is wrong with one is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import raftlog
from raftlog.cli.replicas import Comparison, compare
from raftlog.disk import OsDisk

RECORDS = 50
Segment = Callable[[int], Path]


@pytest.fixture
def copies(tmp_path: Path) -> dict[int, str]:
    """Three data directories with the same log of several batches."""
    with raftlog.open(str(tmp_path / "1")) as log:
        log.create_topic("t")
        with log.producer() as producer:
            for number in range(RECORDS):
                producer.send("t", value=b"%d" % number).result(timeout=10)
    for number in (2, 3):
        shutil.copytree(tmp_path / "1", tmp_path / str(number))
    return {number: str(tmp_path / str(number)) for number in (1, 2, 3)}


def segment(copies: dict[int, str], number: int) -> Path:
    return next(Path(copies[number]).rglob("*.log"))


def compared(copies: dict[int, str], end: int = RECORDS) -> Comparison:
    return compare(OsDisk(), copies, end)


def test_equal_copies_are_identical(copies: dict[int, str]) -> None:
    found = compared(copies)
    assert found.identical
    assert [copy.broker for copy in found.copies] == [1, 2, 3]
    assert {copy.end for copy in found.copies} == {RECORDS}
    assert {copy.bytes for copy in found.copies} == {segment(copies, 1).stat().st_size}
    assert len(found.copies[0].chain) == 16


def test_a_flipped_bit_is_found(copies: dict[int, str]) -> None:
    path = segment(copies, 2)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    found = compared(copies)
    assert not found.identical
    assert [bool(copy.problem) for copy in found.copies] == [False, True, False]


def test_a_copy_that_is_short_is_found(copies: dict[int, str]) -> None:
    path = segment(copies, 3)
    path.write_bytes(path.read_bytes()[:-10])
    found = compared(copies)
    assert not found.identical
    assert found.copies[2].end == RECORDS - 1


def test_what_is_above_the_end_does_not_count(copies: dict[int, str]) -> None:
    path = segment(copies, 3)
    path.write_bytes(path.read_bytes() + b"the beginning of a batch")
    assert compared(copies).identical
    assert compared(copies, RECORDS - 10).identical
    assert not compared(copies, RECORDS + 1).identical


def test_other_records_are_found(copies: dict[int, str]) -> None:
    shutil.rmtree(copies[2])
    with raftlog.open(copies[2]) as log:
        log.create_topic("t")
        with log.producer() as producer:
            for number in range(RECORDS):
                producer.send("t", value=b"%d" % (number % 49)).result(timeout=10)
    found = compared(copies)
    assert not any(copy.problem for copy in found.copies)
    assert not found.identical


def test_a_copy_that_is_gone_is_found(copies: dict[int, str]) -> None:
    shutil.rmtree(copies[1])
    Path(copies[1]).mkdir()
    found = compared(copies)
    assert not found.identical
    assert "holds no partition" in found.copies[0].problem
