"""Synthetic histories have all that makes judging hard, and nothing that is wrong."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from raftlog.testing.checker.judge import judge
from raftlog.testing.history import entries as keys
from raftlog.testing.history.entries import (
    AnyEntry,
    Append,
    Commit,
    Committed,
    Dump,
    Member,
    Poll,
    Read,
)
from tests.testing.checker.synthetic import SHORT, SIDE, Size, history
from tests.testing.checker.synthetic_compaction import CLEAN, KEYS, TOMBSTONES_KEPT, Compacted
from tests.testing.checker.synthetic_groups import (
    APPENDED,
    MEMBERLESS,
    PARTITIONS,
    SILENT,
    SPOKEN,
    TICKS,
    Groups,
)


@pytest.mark.parametrize("seed", range(50, 60))
def test_they_are_valid(seed: int) -> None:
    verdict = judge(history(seed))
    assert (verdict.valid, verdict.kinds, verdict.troubles) == ("valid", frozenset(), ())


def test_the_same_seed_and_size_give_the_same() -> None:
    assert list(history(1)) == list(history(1))
    assert list(history(1)) != list(history(2))


def test_they_are_as_long_as_they_should_be() -> None:
    for operations in (300, 3_000):
        size = Size(operations=operations, time_s=120.0)
        invoked = [
            e
            for e in history(1, size)
            if e.type == "invoke" and not getattr(e, "group", "") and "keyed" not in e.process
        ]
        count = sum(isinstance(entry, Append | Poll) for entry in invoked)
        assert 0.7 * operations < count < 1.3 * operations


def has_duplicates(entries: list[AnyEntry]) -> bool:
    values: Counter[int] = Counter()
    for entry in entries:
        if isinstance(entry, Read) and entry.process == "reader-1":
            for _, count, first, _ in entry.records:
                values.update(range(first, first + count))
    return max(values.values()) > 1


def test_they_have_all_that_makes_judging_hard() -> None:
    entries = list(history(1))
    appends = [entry for entry in entries if isinstance(entry, Append)]
    ends = Counter(entry.type for entry in appends)
    assert min(ends[type_] for type_ in ("ok", "fail", "info")) > 0
    assert ends["invoke"] > ends["ok"] + ends["fail"] + ends["info"]  # some are never completed
    assert {entry.acks for entry in appends} == {-1, 0, 1}
    assert {entry.idempotent for entry in appends} == {True, False}
    assert any(e.type == "info" and e.offsets for s in range(5) for e in of(s, Append))
    assert any(has_duplicates(list(history(seed))) for seed in range(5))
    starts = {entry.partition: entry.start for entry in entries if isinstance(entry, Read)}
    assert starts["load:0"] == 0
    assert starts["load:1"] > 0  # somebody deleted records
    assert starts[SHORT] > 0  # the brokers did
    assert SIDE in starts
    assert any(not dump.should_be_whole for dump in of(1, Dump))
    consumers = {entry.process for entry in entries if isinstance(entry, Poll)}
    assert len(consumers) > 3  # sessions end, others begin


def of(seed: int, kind: type) -> list[Append]:
    return [entry for entry in history(seed) if isinstance(entry, kind)]


# -- synthetic compaction --------------------------------------------------------------------------
#
# The compacted topic of a synthetic history: what is left of each key is what was last of it.


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


# -- synthetic groups ------------------------------------------------------------------------------
#
# The groups of a synthetic history: all that makes judging hard comes up.


def synthetic_groups_made(seed: int = 1) -> Groups:
    return Groups(Random(seed), [1_000_000 * tick for tick in range(1, TICKS + 1)])


def test_entries_are_in_order_and_the_same_for_the_same_seed() -> None:
    groups = synthetic_groups_made()
    entries = groups.entries()
    load = list(entries)
    times = [entry.time for entry in load]
    assert times == sorted(times)
    assert synthetic_groups_made().entries() == load
    assert any(synthetic_groups_made(seed).entries() != load for seed in range(2, 6))


def test_what_comes_up() -> None:
    entries = list(synthetic_groups_made().entries())
    whats = {entry.what for entry in entries if isinstance(entry, Member)}
    assert whats == {"start", "assigned", "revoked", "lost", "killed", "paused", "resumed", "end"}
    commits = [entry for entry in entries if isinstance(entry, Commit)]
    assert {commit.group for commit in commits} == {SPOKEN, MEMBERLESS}
    assert {commit.type for commit in commits} == {"invoke", "ok", "info"}
    given = {entry.group for entry in entries if isinstance(entry, Poll)}
    assert given == {SPOKEN, SILENT}


def test_in_the_end_all_is_given_and_committed() -> None:
    groups = synthetic_groups_made()
    groups.entries()
    ending = list(groups.ending(10**12))
    noted = [e for e in ending if isinstance(e, Committed) and e.type == "ok" and e.group == SILENT]
    assert noted
    for entry in noted:
        assert entry.offsets == groups.ends
    for partition in PARTITIONS:
        runs = groups.log(partition)
        assert sum(count for _, count, _, _ in runs) == groups.ends[partition]
        assert {count for _, count, _, _ in runs} == {APPENDED}
