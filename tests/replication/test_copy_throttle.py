"""The throttle of copies: its rate, its turns, and what it never holds back."""

from __future__ import annotations

from random import Random

import pytest

from raftlog.replication.placement import CHECK_SECONDS, CopyThrottle

CHUNK = 8_192


class Rate:
    def __init__(self, value: int) -> None:
        self.value = value

    def __call__(self) -> int:
        return self.value


@pytest.mark.parametrize("rate", [1_024, 5_000, 100_000])
@pytest.mark.parametrize("seed", range(3))
def test_the_bytes_of_all_copies_keep_to_the_rate(rate: int, seed: int) -> None:
    """Responses are smaller than the chunk, or larger: one batch is always sent."""
    random = Random(seed)
    throttle: CopyThrottle[str] = CopyThrottle(Rate(rate), chunk_bytes_max=CHUNK)
    copied: dict[str, int] = dict.fromkeys("abc", 0)
    total, largest, now = 0, 0, 0.0
    for copy in copied:
        throttle.wait(copy, 0, now)
    while now < 120:
        due, seconds = throttle.due(now)
        for copy in due:
            most = throttle.bytes_max(copy)
            assert most == min(CHUNK, rate)
            size = random.randint(1, 2 * most)
            copied[copy] += size
            total, largest = total + size, max(largest, size)
            throttle.wait(copy, size, now)
        assert total <= rate * (now + 1) + 3 * largest
        now += seconds or 0.001  # None: all copies have fetched
    assert total >= 0.9 * rate * 120, "the rate is used"
    assert max(copied.values()) < 1.5 * min(copied.values()), "in turns"


def test_without_a_limit_no_copy_waits() -> None:
    throttle: CopyThrottle[str] = CopyThrottle(Rate(0), chunk_bytes_max=CHUNK)
    assert not throttle.is_on
    throttle.wait("a", 1_000_000, 0.0)
    assert throttle.due(0.0) == (["a"], None)
    assert throttle.bytes_max("a") == CHUNK


def test_a_change_of_the_rate_applies_to_copies_that_wait() -> None:
    rate = Rate(1_024)
    throttle: CopyThrottle[str] = CopyThrottle(rate, chunk_bytes_max=CHUNK)
    throttle.wait("a", 1_024_000, 0.0)
    assert throttle.due(0.0) == ([], CHECK_SECONDS)
    rate.value = 1_024_000
    assert throttle.due(CHECK_SECONDS)[0] == ["a"]
    throttle.wait("a", 10_240_000, 1.0)
    assert throttle.due(1.0)[0] == []
    rate.value = 0
    assert throttle.due(1.1)[0] == ["a"]


def test_a_copy_that_has_caught_up_gives_its_turn_to_the_next() -> None:
    throttle: CopyThrottle[str] = CopyThrottle(Rate(1_024), chunk_bytes_max=1_024)
    throttle.wait("a", 1_024, 0.0)
    throttle.wait("b", 0, 0.0)
    throttle.wait("c", 0, 0.0)
    assert throttle.due(0.0)[0] == ["a"]
    assert throttle.due(0.0)[0] == []
    throttle.forget("b", 0.0)
    throttle.forget("a", 0.0)  # its chunk was not fetched
    assert throttle.due(0.0)[0] == ["c"]
