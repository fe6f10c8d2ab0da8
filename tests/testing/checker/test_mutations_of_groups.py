"""Mutations of groups and of compacted topics change nothing but those."""

from __future__ import annotations

from random import Random

import pytest

from raftlog.testing.history.entries import AnyEntry, Dump, Read
from tests.testing.checker.history_editor import HistoryEditor
from tests.testing.checker.mutations import MUTATIONS, Mutation
from tests.testing.checker.synthetic import history

GOOD = tuple(history(11))
MINE = [m for m in MUTATIONS if m.kind.startswith(("GROUP-", "COMPACT-"))]


def others(entries: list[AnyEntry] | tuple[AnyEntry, ...]) -> list[AnyEntry]:
    """What has to do neither with groups nor with keys."""
    return [
        entry
        for entry in entries
        if not getattr(entry, "group", "")
        and not getattr(entry, "partition", "").startswith("keyed:")
        and getattr(entry, "name", "") != "drain"
    ]


def test_there_are_some_for_each_kind() -> None:
    assert len({mutation.kind for mutation in MINE}) == 12
    assert len(MINE) >= 18


@pytest.mark.parametrize("mutation", MINE, ids=lambda m: m.name)
def test_what_a_mutation_leaves_alone(mutation: Mutation) -> None:
    tape = HistoryEditor(GOOD, Random(1))
    mutation.apply(tape)
    assert others(tape.entries) == others(GOOD)
    assert tape.entries != list(GOOD)


def test_copies_are_changed_alike_unless_it_is_about_one() -> None:
    mutation = next(m for m in MINE if m.name == "lose a key")
    tape = HistoryEditor(GOOD, Random(1))
    mutation.apply(tape)
    left = [
        e.records
        for e in tape.entries
        if isinstance(e, Read | Dump) and e.partition == "keyed:0" and e.records
    ]
    assert len({repr(records) for records in left}) == 1
