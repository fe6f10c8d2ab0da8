"""Where a follower's log parts from the leader's: KIP-101, KIP-279 and KIP-595 by example."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.replication.following import (
    Diverged,
    OutOfRange,
    divergence,
    last_epoch,
    may_lack_tombstones,
    truncation_point,
)
from raftlog.storage.epoch_cache import EpochCache, EpochStart


def cache(*starts: tuple[int, int]) -> EpochCache:
    return EpochCache(EpochStart(epoch, start) for epoch, start in starts)


LEADER = cache((1, 0), (3, 10), (6, 20))  # and its log ends at 30, in epoch 6


def asked(
    epoch: int, offset: int, epochs: EpochCache = LEADER, *, log_start: int = 0
) -> Diverged | OutOfRange | None:
    return divergence(
        epochs, log_end=30, log_start=log_start, last_epoch=epoch, fetch_offset=offset
    )


@pytest.mark.parametrize(
    ("epoch", "offset"), [(-1, 0), (1, 5), (1, 10), (3, 11), (3, 20), (6, 21), (6, 30)]
)
def test_a_prefix_does_not_diverge(epoch: int, offset: int) -> None:
    assert asked(epoch, offset) is None


@pytest.mark.parametrize(
    ("epoch", "offset", "answer"),
    [
        (1, 11, Diverged(1, 10)),  # wrote on in an epoch that had ended
        (3, 25, Diverged(3, 20)),
        (6, 31, Diverged(6, 30)),  # more than the leader has
        (2, 12, Diverged(1, 10)),  # an epoch that the leader never saw (KIP-279)
        (5, 15, Diverged(3, 20)),  # the same, and the follower is the shorter one
        (9, 30, Diverged(6, 30)),
    ],
)
def test_another_log_diverges_at_the_end_of_the_largest_common_epoch(
    epoch: int, offset: int, answer: Diverged
) -> None:
    assert asked(epoch, offset) == answer


@pytest.mark.parametrize(("epoch", "offset"), [(1, 9), (-1, 9), (-1, 0), (9, 9)])
def test_a_log_that_ends_below_the_leaders_start_begins_anew(epoch: int, offset: int) -> None:
    epochs = cache((3, 10), (6, 20))
    assert asked(epoch, offset, epochs, log_start=10) == OutOfRange(10)


def test_an_empty_log_may_begin_anywhere_in_the_leaders() -> None:
    assert asked(-1, 10, cache((3, 10), (6, 20)), log_start=10) is None
    assert asked(-1, 25) is None
    assert asked(-1, 30) is None
    assert asked(-1, 31) == OutOfRange(0)


def test_a_log_with_nothing_in_common_begins_anew() -> None:
    assert asked(2, 15, cache((3, 10), (6, 20)), log_start=10) == OutOfRange(10)


def test_what_is_common_may_lie_below_the_leaders_start() -> None:
    """Its epochs may be trimmed late: where they end below its start, there is nothing to keep."""
    assert asked(1, 15, LEADER, log_start=12) == OutOfRange(12)


def test_an_epoch_without_records_is_common_too() -> None:
    epochs = cache((1, 0), (4, 30))  # elected, and nothing written yet
    assert asked(1, 30, epochs) is None
    assert asked(4, 30, epochs) is None
    assert asked(3, 20, epochs) == Diverged(1, 30)


# -- the follower's side ---------------------------------------------------------------------------

FOLLOWER = cache((1, 0), (2, 8), (5, 18))  # and its log ends at 25


def point(diverged: Diverged, epochs: EpochCache = FOLLOWER, *, log_start: int = 0) -> int:
    return truncation_point(epochs, log_end=25, log_start=log_start, diverged=diverged)


@pytest.mark.parametrize(
    ("diverged", "offset"),
    [
        (Diverged(5, 22), 22),  # both know the epoch, the leader's ends first
        (Diverged(1, 10), 8),  # the follower's ends first
        (Diverged(1, 5), 5),
        (Diverged(4, 20), 18),  # the follower's largest one below is 2
        (Diverged(3, 12), 12),
    ],
)
def test_the_follower_cuts_to_the_common_part_of_both(diverged: Diverged, offset: int) -> None:
    assert point(diverged) == offset


def test_a_follower_that_knows_only_larger_epochs_keeps_nothing() -> None:
    epochs = cache((5, 10), (6, 20))
    assert point(Diverged(3, 15), epochs, log_start=10) == 10
    assert point(Diverged(3, 4), epochs, log_start=10) == 4


def test_what_a_follower_asks_with_is_the_epoch_of_its_last_batch() -> None:
    epochs = cache((1, 0), (3, 10), (6, 20), (7, 20))
    assert last_epoch(cache(), log_end=0) == -1
    assert last_epoch(cache((1, 0)), log_end=0) == -1  # an epoch, and nothing written
    assert last_epoch(epochs, log_end=10) == 1
    assert last_epoch(epochs, log_end=20) == 3  # not 6 or 7, which start right there
    assert last_epoch(epochs, log_end=21) == 7


# -- both, until they agree ------------------------------------------------------------------------

Log = list[int]  # the epoch of each record: one epoch has one leader, and so one record there


def epochs_of(log: Log) -> EpochCache:
    found = EpochCache()
    for offset, epoch in enumerate(log):
        found.assign(epoch, offset)
    return found


@st.composite
def diverged_logs(draw: st.DrawFn) -> tuple[Log, Log]:
    """Two logs with a common beginning, then epochs of their own, or the end of one."""
    common = sorted(draw(st.lists(st.integers(1, 4), max_size=6)))
    first = (common[-1] if common else 0) + 1
    owner = draw(st.lists(st.booleans(), min_size=8, max_size=8))

    def tail(mine: bool) -> Log:
        own = [first + number for number, is_mine in enumerate(owner) if is_mine is mine]
        return sorted(draw(st.lists(st.sampled_from(own), max_size=6))) if own else []

    return common + tail(True), common + tail(False)


@given(logs=diverged_logs())
def test_rounds_of_truncation_end_at_the_common_prefix(logs: tuple[Log, Log]) -> None:
    leader, follower = logs[0], list(logs[1])
    common = 0
    while common < min(map(len, logs)) and leader[common] == follower[common]:
        common += 1
    epochs = epochs_of(leader)
    epochs.assign(20, len(leader))
    rounds = 0
    while True:
        own = epochs_of(follower)
        found = divergence(
            epochs,
            log_end=len(leader),
            log_start=0,
            last_epoch=last_epoch(own, log_end=len(follower)),
            fetch_offset=len(follower),
        )
        if found is None:
            break
        if isinstance(found, OutOfRange):
            follower.clear()
            continue
        cut = truncation_point(own, log_end=len(follower), log_start=0, diverged=found)
        assert common <= cut < len(follower)
        del follower[cut:]
        rounds += 1
    assert follower == leader[: len(follower)]
    assert len(follower) == common or len(follower) == len(logs[1])
    assert rounds <= len(set(logs[1])) + 1


# -- compacted logs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fresh_ms", "is_late"),
    [(5_001, False), (5_000, True), (-math.inf, True), (math.inf, False), (20_000, False)],
)
def test_who_was_behind_for_as_long_as_tombstones_are_kept_may_lack_some(
    fresh_ms: float, is_late: bool
) -> None:
    assert may_lack_tombstones(fresh_ms=fresh_ms, now_ms=15_000, retention_ms=10_000) is is_late
