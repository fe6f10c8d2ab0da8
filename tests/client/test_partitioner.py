"""Keys land where Kafka's clients put them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.client.settings import (
    KAFKA_SEED,
    POSITIVE,
    checked,
    groups,
    partition_of_key,
    partitions_of_keys,
)
from raftlog.errors import InvalidRequestError


def murmur2(data: bytes) -> int:
    """Kafka's Utils.murmur2, line by line, as a signed 32-bit integer."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    digest = KAFKA_SEED ^ len(data)
    for start in range(0, len(data) // 4 * 4, 4):
        word = int.from_bytes(data[start : start + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        digest = (digest * multiplier & mask) ^ word
    rest = data[len(data) // 4 * 4 :]
    if rest:
        digest = (digest ^ int.from_bytes(rest, "little")) * multiplier & mask
    digest = (digest ^ digest >> 13) * multiplier & mask
    digest ^= digest >> 15
    return digest - (1 << 32) if digest >> 31 else digest


# From Kafka's own UtilsTest.
VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("key", "digest"), VECTORS)
def test_the_hash_is_kafkas(key: bytes, digest: int) -> None:
    assert murmur2(key) == digest
    for count in (1, 2, 6, 7, 10_000):
        assert partition_of_key(key, count) == (digest & POSITIVE) % count


@given(st.binary(max_size=40), st.integers(1, 10_000))
def test_any_key_lands_where_kafka_puts_it(key: bytes, count: int) -> None:
    assert partition_of_key(key, count) == (murmur2(key) & POSITIVE) % count


@given(st.lists(st.binary(max_size=20), max_size=50), st.integers(1, 10_000))
def test_many_keys_at_once_land_where_each_does(keys: list[bytes], count: int) -> None:
    assert partitions_of_keys(keys, count) == [partition_of_key(key, count) for key in keys]


@given(st.lists(st.integers(-1, 5), min_size=1, max_size=60))
def test_groups_keep_the_order_within_a_partition(partitions: list[int]) -> None:
    found = list(groups(partitions))
    assert [number for number, _ in found] == list(dict.fromkeys(partitions))
    for number, indexes in found:
        assert indexes == [at for at, chosen in enumerate(partitions) if chosen == number]


@pytest.mark.parametrize("chosen", [-1, 3, "1", None, 1.0])
def test_what_a_partitioner_returns_is_checked(chosen: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"'clicks', which has 3 partitions"):
        checked(chosen, 3, "clicks")


def test_a_good_choice_is_taken() -> None:
    assert [checked(number, 3, "t") for number in range(3)] == [0, 1, 2]
    assert checked(np.int64(2), 3, "t") == 2
