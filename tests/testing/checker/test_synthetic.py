"""Synthetic histories have all that makes judging hard, and nothing that is wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from raftlog.testing.checker.judge import judge
from raftlog.testing.history.entries import AnyEntry, Append, Dump, Poll, Read
from tests.testing.checker.synthetic import SHORT, SIDE, Size, history


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
