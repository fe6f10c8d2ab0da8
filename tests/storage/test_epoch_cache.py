"""Tests of raftlog.storage.segment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.storage.segment import EpochCache, EpochStart

Entries = list[tuple[int, int]]
# Epoch 3 wrote nothing: epoch 5 starts where it does. Epochs 2 and 4 never led this partition.
ENTRIES = ((0, 0), (1, 10), (3, 20), (5, 20), (6, 30))
LOG_END_OFFSET = 40


def cache_of(*entries: tuple[int, int]) -> EpochCache:
    return EpochCache(EpochStart(*entry) for entry in entries)


@st.composite
def entries_of_caches(draw: st.DrawFn) -> Entries:
    """Epochs that strictly ascend from starts that never descend."""
    epochs = sorted(draw(st.sets(st.integers(0, 15), max_size=6)))
    starts = draw(st.lists(st.integers(0, 20), min_size=len(epochs), max_size=len(epochs)))
    return list(zip(epochs, sorted(starts), strict=True))


def test_an_empty_cache_knows_no_epoch() -> None:
    cache = EpochCache()
    assert cache.latest == -1
    assert len(cache) == 0
    assert cache.epoch_at(0) == -1
    assert cache.end_of(0, log_end_offset=LOG_END_OFFSET) == (-1, -1)
    assert not cache.cut(0)
    assert not cache.advance_start(5)


def test_a_new_epoch_is_noted_once() -> None:
    cache = EpochCache()
    assert cache.assign(2, 7)
    assert not cache.assign(2, 9)
    assert list(cache) == [(2, 7)]
    assert cache.latest == 2


def test_an_epoch_in_which_nothing_was_written_is_noted_too() -> None:
    cache = cache_of((0, 5))
    assert cache.assign(1, 5)
    assert cache.assign(4, 5)
    assert list(cache) == [(0, 5), (1, 5), (4, 5)]


@pytest.mark.parametrize(("epoch", "start_offset"), [(1, 20), (3, 9)])
def test_neither_epochs_nor_their_starts_go_back(epoch: int, start_offset: int) -> None:
    cache = cache_of((2, 10))
    with pytest.raises(AssertionError):
        cache.assign(epoch, start_offset)
    assert list(cache) == [(2, 10)]


@pytest.mark.parametrize(
    ("offset", "epoch"),
    [(0, 0), (9, 0), (10, 1), (19, 1), (20, 5), (29, 5), (30, 6), (1_000, 6)],
)
def test_an_offset_belongs_to_the_last_epoch_that_starts_at_or_before_it(
    offset: int, epoch: int
) -> None:
    assert cache_of(*ENTRIES).epoch_at(offset) == epoch


def test_an_offset_before_the_first_epoch_belongs_to_none_that_is_known() -> None:
    assert cache_of((3, 20)).epoch_at(19) == -1


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (0, (0, 10)),  # known: it ends where the next one starts
        (1, (1, 20)),
        (2, (1, 20)),  # not known: the largest below it
        (3, (3, 20)),  # known, and empty
        (4, (3, 20)),
        (5, (5, 30)),
        (6, (6, LOG_END_OFFSET)),  # the latest: it ends where the log does
        (9, (6, LOG_END_OFFSET)),
    ],
)
def test_an_epoch_ends_where_the_largest_known_up_to_it_does(
    epoch: int, expected: tuple[int, int]
) -> None:
    cache = cache_of(*ENTRIES)
    assert cache.end_of(epoch, log_end_offset=LOG_END_OFFSET) == expected


def test_an_epoch_below_all_that_are_known_has_no_end() -> None:
    assert cache_of((3, 20)).end_of(2, log_end_offset=LOG_END_OFFSET) == (-1, -1)


@pytest.mark.parametrize(
    ("log_end_offset", "left"),
    [
        (30, 5),  # epoch 6 starts at the end: it wrote nothing, and was still seen
        (29, 4),
        (20, 4),
        (19, 2),
        (0, 1),
    ],
)
def test_a_cut_log_forgets_epochs_that_start_beyond_its_end(log_end_offset: int, left: int) -> None:
    cache = cache_of(*ENTRIES)
    assert cache.cut(log_end_offset) is (left < len(ENTRIES))
    assert list(cache) == list(ENTRIES[:left])
    assert not cache.cut(log_end_offset)


@pytest.mark.parametrize(
    ("log_start_offset", "forgotten"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 3), (30, 4), (90, 4)]
)
def test_deleting_old_records_forgets_epochs_wholly_below_them(
    log_start_offset: int, forgotten: int
) -> None:
    cache = cache_of(*ENTRIES)
    assert cache.advance_start(log_start_offset) is (forgotten > 0)
    assert list(cache) == list(ENTRIES[forgotten:])
    assert not cache.advance_start(log_start_offset)


@given(entries=entries_of_caches(), offset=st.integers(0, 25))
def test_the_epoch_of_an_offset_is_what_a_search_of_all_entries_finds(
    entries: Entries, offset: int
) -> None:
    expected = max((epoch for epoch, start in entries if start <= offset), default=-1)
    assert cache_of(*entries).epoch_at(offset) == expected


@given(entries=entries_of_caches(), start=st.integers(0, 25), length=st.integers(0, 25))
def test_what_remains_of_a_log_keeps_its_epochs(entries: Entries, start: int, length: int) -> None:
    whole, kept = cache_of(*entries), cache_of(*entries)
    end = start + length
    kept.cut(end)
    kept.advance_start(start)
    for offset in range(start, end):
        assert kept.epoch_at(offset) == whole.epoch_at(offset)


@given(entries=entries_of_caches(), epoch=st.integers(0, 16))
def test_the_end_of_an_epoch_is_where_a_larger_one_begins(entries: Entries, epoch: int) -> None:
    known = [other for other, _ in entries if other <= epoch]
    starts = [start for other, start in entries if other > epoch]
    expected = (known[-1], min(starts, default=LOG_END_OFFSET)) if known else (-1, -1)
    assert cache_of(*entries).end_of(epoch, log_end_offset=LOG_END_OFFSET) == expected
