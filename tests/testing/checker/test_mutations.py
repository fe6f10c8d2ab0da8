"""There is a mutation for every kind, and each changes something, in the same way every time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from raftlog.testing.checker.judge import judge
from raftlog.testing.checker.verdict import KINDS
from raftlog.testing.history.entries import AnyEntry, Dump, Read
from tests.testing.checker import mutations_of_runs as runs
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


# -- mutations of groups ---------------------------------------------------------------------------
#
# Mutations of groups and of compacted topics change nothing but those.


MUTATIONS_OF_GROUPS_GOOD = tuple(history(11))
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
    tape = HistoryEditor(MUTATIONS_OF_GROUPS_GOOD, Random(1))
    mutation.apply(tape)
    assert others(tape.entries) == others(MUTATIONS_OF_GROUPS_GOOD)
    assert tape.entries != list(MUTATIONS_OF_GROUPS_GOOD)


def test_copies_are_changed_alike_unless_it_is_about_one() -> None:
    mutation = next(m for m in MINE if m.name == "lose a key")
    tape = HistoryEditor(MUTATIONS_OF_GROUPS_GOOD, Random(1))
    mutation.apply(tape)
    left = [
        e.records
        for e in tape.entries
        if isinstance(e, Read | Dump) and e.partition == "keyed:0" and e.records
    ]
    assert len({repr(records) for records in left}) == 1


# -- mutations of runs -----------------------------------------------------------------------------
#
# What spoils a run leaves its records alone: no other kind of anomaly comes of it.


MUTATIONS_OF_RUNS_GOOD = tuple(history(8))


@pytest.mark.parametrize(
    ("mutate", "kinds", "trouble"),
    [
        (runs.stop_for_a_while, {"UNAVAILABLE"}, ""),
        (runs.refuse_most, {"UNAVAILABLE"}, ""),
        (runs.break_off, set(), "did not complete"),
        (runs.read_nothing_at_the_end, set(), "was not read at the end"),
        (runs.acknowledge_nothing, set(), "no append was acknowledged"),
        (runs.claim_a_fault, set(), "without an effect"),
        (runs.inject_nothing, set(), "was injected"),
        (runs.be_in_trouble, set(), "?"),
        (runs.send_a_value_twice, set(), "that another append sends"),
    ],
)
def test_only_the_run_is_spoiled(
    mutate: Callable[[HistoryEditor], None], kinds: set[str], trouble: str
) -> None:
    tape = HistoryEditor(MUTATIONS_OF_RUNS_GOOD, Random(1))
    mutate(tape)
    verdict = judge(tape.entries)
    assert verdict.kinds == kinds
    if trouble:
        assert any(trouble in text for text in verdict.troubles)
    else:
        assert not verdict.troubles
