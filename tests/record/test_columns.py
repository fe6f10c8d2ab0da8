"""Arithmetic on packed integers: the loop and numpy give the same answers."""

from __future__ import annotations

import pytest

from raftlog.record import payload
from tests.record.batches import BAR, u32, u64

U32_MAX = (1 << 32) - 1
U64_MAX = (1 << 64) - 1


pytestmark = pytest.mark.usefixtures("both_ways")


@pytest.mark.parametrize("integers", [(), (7,), (0, U32_MAX), (U32_MAX,) * 300])
def test_total_does_not_wrap(integers: tuple[int, ...]) -> None:
    assert payload.total(u32(*integers)) == sum(integers)


@pytest.mark.parametrize(
    ("integers", "expected"),
    [((5,), True), ((0, 1, U32_MAX), True), ((1, 1), False), ((2, 1), False), ((1, 2, 2), False)],
)
def test_is_increasing_is_strict(integers: tuple[int, ...], expected: bool) -> None:
    assert payload.is_increasing(u32(*integers)) is expected


@pytest.mark.parametrize(("bound", "index"), [(0, 0), (2, 0), (3, 1), (5, 1), (6, 2), (9, 3)])
def test_first_at_least_in_increasing_integers(bound: int, index: int) -> None:
    assert payload.first_at_least(u32(2, 5, 7), bound) == index


@pytest.mark.parametrize(("indexes", "expected"), [((0, 2), True), ((1,), False), ((0, 1), False)])
def test_are_zero_at(indexes: tuple[int, ...], expected: bool) -> None:
    assert payload.are_zero_at(u32(0, 3, 0), u32(*indexes)) is expected


def test_highest_is_unsigned() -> None:
    assert payload.highest_of(u64(3, U64_MAX, 5)) == U64_MAX


@pytest.mark.parametrize(("bound", "index"), [(0, 0), (4, 1), (9, 1), (10, 3), (11, 4)])
def test_find_at_least_takes_the_first_in_place(bound: int, index: int) -> None:
    assert payload.find_at_least(u64(3, 9, 4, 10), bound) == index
    zeros = [0] * 1_000
    assert payload.find_at_least(u64(*zeros, 9), bound) == (bound > 0) * 1_000 + (bound > 9)


@pytest.mark.parametrize(
    ("blob", "lengths", "expected"),
    [
        (f"a{BAR}b".encode(), (1, 3, 1), False),
        (f"a{BAR}b".encode(), (2, 2, 1), True),
        (f"a{BAR}".encode(), (0, 4, 0, 0), False),  # empty entries after the end
        (BAR.encode(), (1, 1, 1), True),
    ],
)
def test_splits_a_character(blob: bytes, lengths: tuple[int, ...], expected: bool) -> None:
    assert payload.splits_a_character(blob, u32(*lengths)) is expected


def test_last_and_packing_are_little_endian() -> None:
    assert payload.last(b"\x01\0\0\0\x02\x01\0\0") == 0x102
    assert payload.pack_u32([1, 2]) == b"\x01\0\0\0\x02\0\0\0"
    assert tuple(payload.u32(payload.pack_u32([1, 2]))) == (1, 2)
    assert tuple(payload.u64(payload.pack_u64([1, 2]))) == (1, 2)
