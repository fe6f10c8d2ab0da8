"""There is a mutation for every kind, and each changes something, in the same way every time."""

from __future__ import annotations

from random import Random

import pytest

from raftlog.testing.checker.verdict import KINDS
from tests.testing.checker.history_editor import HistoryEditor
from tests.testing.checker.mutations import MUTATIONS, UNKNOWN, Mutation
from tests.testing.checker.synthetic import history

GOOD = tuple(history(7))


def test_every_kind_has_a_mutation() -> None:
    assert {mutation.kind for mutation in MUTATIONS} == {*KINDS, UNKNOWN}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.kind}: {m.name}")
def test_a_mutation_changes_a_tape_of_its_own(mutation: Mutation) -> None:
    before = repr(GOOD)
    one, other = HistoryEditor(GOOD, Random(3)), HistoryEditor(GOOD, Random(3))
    mutation.apply(one)
    mutation.apply(other)
    assert one.entries == other.entries
    assert one.entries != list(GOOD)
    assert repr(GOOD) == before
    times = [entry.time for entry in one.entries]
    assert times == sorted(times)
