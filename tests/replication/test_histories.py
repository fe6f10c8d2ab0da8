"""Histories of a cluster: which of two is the continuation of the other."""

from __future__ import annotations

import pytest

from raftlog import limits
from raftlog.protocol.peer import HISTORY_CHARS_MAX
from raftlog.replication.histories import ID_CHARS, Relation, decode, encode, extended, relation


@pytest.mark.parametrize(
    ("mine", "theirs", "how"),
    [
        ("", "", "same"),
        ("", "a", "behind"),
        ("a", "a,b", "behind"),
        ("a", "a,b,c", "behind"),
        ("b", "b,c", "behind"),  # the beginning is no longer kept
        ("a,b", "a,b", "same"),
        ("a", "b", "diverged"),
        ("a,b", "a,c", "diverged"),
        ("a,b", "a,c,d", "diverged"),
    ],
)
def test_one_is_the_continuation_of_the_other_or_they_have_diverged(
    mine: str, theirs: str, how: Relation
) -> None:
    other: dict[Relation, Relation] = {"behind": "ahead", "same": "same", "diverged": "diverged"}
    assert relation(decode(mine), decode(theirs)) == how
    assert relation(decode(theirs), decode(mine)) == other[how]


def test_the_newest_recoveries_are_kept_and_fit_an_identity() -> None:
    history: tuple[str, ...] = ()
    for number in range(limits.RECOVERIES_KEPT + 2):
        history = extended(history, f"{number:0{ID_CHARS}x}")
    assert len(history) == limits.RECOVERIES_KEPT
    assert int(history[-1], 16) == limits.RECOVERIES_KEPT + 1
    assert len(encode(history)) < HISTORY_CHARS_MAX
    assert decode(encode(history)) == history
