"""The compacted topic of a synthetic history: what is left of each key is what was last of it."""

from __future__ import annotations

from random import Random

import pytest

from raftlog.testing.history import entries as keys
from raftlog.testing.history.entries import Append
from tests.testing.checker.synthetic_compaction import CLEAN, KEYS, TOMBSTONES_KEPT, Compacted


def made(seed: int) -> Compacted:
    compacted = Compacted(Random(seed), 0, 10**9)
    compacted.entries()
    return compacted


@pytest.mark.parametrize("seed", range(5))
def test_what_is_left_is_what_was_last(seed: int) -> None:
    compacted = made(seed)
    left = compacted.log()
    assert 0 < len(left) < compacted.log_end
    assert [offset for offset, *_ in left] == sorted({offset for offset, *_ in left})
    for offset, _, value, _ in left:
        assert compacted.values[offset] == value
    state = {keys.key_of(value, KEYS): value for value in compacted.values}
    now = {keys.key_of(value, KEYS): value for _, _, value, _ in left}
    for key, value in state.items():
        assert now.get(key) == value or (key not in now and keys.is_tombstone(value))


def test_holes_and_tombstones_come_up() -> None:
    compacted = made(1)
    clean = int(CLEAN * compacted.log_end)
    left = compacted.log()
    assert sum(offset < clean for offset, *_ in left) < clean / 2
    assert [offset for offset, *_ in left if offset >= clean] == [*range(clean, compacted.log_end)]
    gone = [
        value
        for value in compacted.values[: int(TOMBSTONES_KEPT * compacted.log_end)]
        if keys.is_tombstone(value)
    ]
    assert gone
    assert not set(gone) & {value for _, _, value, _ in left}


def test_entries_are_in_order_and_some_nobody_knows() -> None:
    entries = Compacted(Random(1), 0, 10**9).entries()
    times = [entry.time for entry in entries]
    assert times == sorted(times)
    assert {e.type for e in entries if isinstance(e, Append)} == {"invoke", "ok", "info"}
