"""The groups of a synthetic history: all that makes judging hard comes up."""

from __future__ import annotations

from random import Random

from raftlog.testing.history.entries import Commit, Committed, Member, Poll
from tests.testing.checker.synthetic_groups import (
    APPENDED,
    MEMBERLESS,
    PARTITIONS,
    SILENT,
    SPOKEN,
    TICKS,
    Groups,
)


def made(seed: int = 1) -> Groups:
    return Groups(Random(seed), [1_000_000 * tick for tick in range(1, TICKS + 1)])


def test_entries_are_in_order_and_the_same_for_the_same_seed() -> None:
    groups = made()
    entries = groups.entries()
    load = list(entries)
    times = [entry.time for entry in load]
    assert times == sorted(times)
    assert made().entries() == load
    assert any(made(seed).entries() != load for seed in range(2, 6))


def test_what_comes_up() -> None:
    entries = list(made().entries())
    whats = {entry.what for entry in entries if isinstance(entry, Member)}
    assert whats == {"start", "assigned", "revoked", "lost", "killed", "paused", "resumed", "end"}
    commits = [entry for entry in entries if isinstance(entry, Commit)]
    assert {commit.group for commit in commits} == {SPOKEN, MEMBERLESS}
    assert {commit.type for commit in commits} == {"invoke", "ok", "info"}
    given = {entry.group for entry in entries if isinstance(entry, Poll)}
    assert given == {SPOKEN, SILENT}


def test_in_the_end_all_is_given_and_committed() -> None:
    groups = made()
    groups.entries()
    ending = list(groups.ending(10**12))
    told = [e for e in ending if isinstance(e, Committed) and e.type == "ok" and e.group == SILENT]
    assert told
    for entry in told:
        assert entry.offsets == groups.ends
    for partition in PARTITIONS:
        runs = groups.log(partition)
        assert sum(count for _, count, _, _ in runs) == groups.ends[partition]
        assert {count for _, count, _, _ in runs} == {APPENDED}
