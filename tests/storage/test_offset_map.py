"""Keys to their newest offset: against a dict, in the memory promised."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.storage.compaction import KEY_BYTES, Hashes, OffsetMap, hash_keys, prime_from

KEYS_MAX = 40
keys = st.integers(0, KEYS_MAX - 1).map(lambda number: b"key-%d" % number)


def hashes_of(*pairs: tuple[int, int]) -> Hashes:
    return np.array(pairs, np.uint64).reshape(-1, 2)


def offsets_of(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, np.int64)


@given(
    batches=st.lists(st.lists(keys, max_size=12), max_size=12),
    asked=st.lists(keys, max_size=20),
    seed=st.integers(0, (1 << 64) - 1),
)
def test_it_is_a_dict_of_the_newest_offset(
    batches: list[list[bytes]], asked: list[bytes], seed: int
) -> None:
    newest = OffsetMap(KEYS_MAX + 12)
    expected: dict[bytes, int] = {}
    offset = 0
    for batch in batches:
        offsets = np.arange(offset, offset + len(batch))
        newest.put(hash_keys(batch, seed=seed), offsets)
        expected |= dict(zip(batch, offsets.tolist(), strict=True))
        offset += len(batch) + 1
    assert len(newest) == len(expected)
    assert newest.room == KEYS_MAX + 12 - len(expected)
    found = newest.newest(hash_keys(asked, seed=seed)).tolist()
    assert found == [expected.get(key, -1) for key in asked]


@given(
    pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=16),
    keys_max=st.integers(16, 20),
)
def test_keys_that_want_the_same_slot_all_find_one(
    pairs: list[tuple[int, int]], keys_max: int
) -> None:
    """Hashes so small that they begin at few slots, and take few different steps."""
    newest = OffsetMap(keys_max)
    newest.put(hashes_of(*pairs), np.arange(len(pairs)))
    last = {pair: number for number, pair in enumerate(pairs)}
    assert len(newest) == len(last)
    every = [(first, second) for first in range(4) for second in range(4)]
    assert newest.newest(hashes_of(*every)).tolist() == [last.get(pair, -1) for pair in every]


def test_half_a_hash_is_not_enough() -> None:
    newest = OffsetMap(4)
    newest.put(hashes_of((1, 2)), offsets_of(7))
    assert newest.newest(hashes_of((1, 3), (2, 2), (1, 2))).tolist() == [-1, -1, 7]


def test_a_hash_of_zeros_and_an_offset_of_zero_are_a_key_like_any() -> None:
    newest = OffsetMap(2)
    assert newest.newest(hashes_of((0, 0))).tolist() == [-1]
    newest.put(hashes_of((0, 0)), offsets_of(0))
    assert newest.newest(hashes_of((0, 0))).tolist() == [0]


def test_offsets_are_of_64_bits() -> None:
    newest = OffsetMap(1)
    highest = (1 << 63) - 2
    newest.put(hashes_of((5, 5)), offsets_of(highest))
    assert newest.newest(hashes_of((5, 5))).tolist() == [highest]


@pytest.mark.parametrize("keys_max", [1, 2, 3, 1_000, 100_000])
def test_it_takes_the_memory_that_it_says_and_holds_as_many_keys(keys_max: int) -> None:
    newest = OffsetMap(keys_max)
    assert newest.size_bytes <= KEY_BYTES * keys_max * 1.01 + 400
    for first in range(0, keys_max, 4_096):
        numbers = range(first, min(first + 4_096, keys_max))
        newest.put(hash_keys((b"%d" % n for n in numbers), seed=1), np.array(numbers))
    assert (len(newest), newest.room) == (keys_max, 0)
    wanted = list(range(0, keys_max, 97))
    assert newest.newest(hash_keys((b"%d" % n for n in wanted), seed=1)).tolist() == wanted
    with pytest.raises(AssertionError):
        newest.put(hashes_of((1, 1)), offsets_of(1))


def test_another_seed_gives_other_hashes() -> None:
    one, other = (hash_keys([b"a", b"b"], seed=seed) for seed in (1, 2))
    assert one.shape == (2, 2)
    assert not np.isin(one, other).any()
    assert hash_keys([], seed=1).shape == (0, 2)


def test_primes() -> None:
    assert [prime_from(number) for number in (2, 3, 4, 14, 24, 90)] == [2, 3, 5, 17, 29, 97]
