"""One group's view of the journal: the library's interface, and what it may not do."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.consensus.journal import RaftJournal


def journal_of(
    entries: int, *, term: int = 1, records: list[list[Any]] | None = None
) -> RaftJournal:
    """A group in generation 1 with so many entries; ``records`` takes down its changes."""
    taken: list[list[Any]] = [] if records is None else records

    def record(change: list[Any]) -> None:
        taken.append(change)
        kind, _group, *fields = change
        journal.apply(kind, fields)

    journal = RaftJournal("g", record)
    journal.begin_generation(1, {2: "b", 1: "a"}, b"base")
    journal.setCurrentTerm(term, None)
    for index in range(1, entries + 1):
        journal.add(b"%d" % index, index, term)
    return journal


def test_a_new_group_has_nothing() -> None:
    journal = RaftJournal("g", lambda change: None)
    assert journal.is_new
    assert (journal.generation, journal.voters, journal.base) == (0, {}, b"")
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId(), len(journal)) == (0, None, 0)
    assert journal.live_records() == []


def test_it_is_a_list_of_entries_as_the_library_wants_it() -> None:
    journal = journal_of(5, term=3)
    assert len(journal) == 5
    assert journal[0] == (b"1", 1, 3)
    assert journal[-1] == (b"5", 5, 3)
    assert journal[1:3] == [(b"2", 2, 3), (b"3", 3, 3)]
    assert journal[7:] == []
    with pytest.raises(IndexError):
        journal[5]


def test_entries_are_cut_from_the_end_only() -> None:
    journal = journal_of(5)
    journal.deleteEntriesFrom(3)
    assert [index for _, index, _ in journal[:]] == [1, 2, 3]
    with pytest.raises(NotImplementedError):
        journal.deleteEntriesTo(1)
    journal.clear()
    assert len(journal) == 0


def test_cutting_nothing_is_no_change() -> None:
    records: list[list[Any]] = []
    journal = journal_of(2, records=records)
    before = len(records)
    journal.deleteEntriesFrom(2)
    journal.deleteEntriesFrom(9)
    assert len(records) == before


@pytest.mark.parametrize(("index", "term"), [(7, 1), (5, 1), (6, 0)])
def test_an_entry_comes_next_or_not_at_all(index: int, term: int) -> None:
    journal = journal_of(5)
    with pytest.raises(AssertionError):
        journal.add(b"x", index, term)
    assert len(journal) == 5


def test_a_vote_is_given_once_in_a_term_and_terms_only_grow() -> None:
    records: list[list[Any]] = []
    journal = journal_of(0, term=4, records=records)
    journal.setCurrentTerm(4, 2)
    before = len(records)
    journal.setCurrentTerm(4, 2)  # the same again is no change
    assert len(records) == before
    for term, vote in ((4, 1), (4, None), (3, None), (3, 2)):
        with pytest.raises(AssertionError):
            journal.setCurrentTerm(term, vote)
    journal.setCurrentTerm(5, 1)
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (5, 1)


def test_a_generation_begins_with_nothing_of_the_one_before() -> None:
    journal = journal_of(5, term=9)
    journal.setCurrentTerm(9, 1)
    journal.begin_generation(2, {3: "c"}, b"sealed")
    assert (journal.generation, journal.voters, journal.base) == (2, {3: "c"}, b"sealed")
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId(), len(journal)) == (0, None, 0)


@pytest.mark.parametrize("generation", [0, 1])
def test_a_generation_never_comes_back(generation: int) -> None:
    journal = journal_of(1)
    with pytest.raises(AssertionError):
        journal.begin_generation(generation, {}, b"")


def test_the_commit_index_is_not_kept() -> None:
    records: list[list[Any]] = []
    journal = journal_of(5, records=records)
    before = len(records)
    journal.setRaftCommitIndex(5)
    journal.onOneSecondTimer()
    journal._destroy()
    assert journal.getRaftCommitIndex() == 1
    assert len(records) == before


def test_a_dropped_group_takes_no_changes() -> None:
    journal = journal_of(2)
    journal.mark_dropped()
    for change in (
        lambda: journal.add(b"x", 3, 1),
        lambda: journal.setCurrentTerm(5, None),
        lambda: journal.begin_generation(2, {}, b""),
        journal.clear,
    ):
        with pytest.raises(AssertionError, match="dropped"):
            change()


def test_live_records_make_the_same_journal() -> None:
    journal = journal_of(3, term=2)
    journal.setCurrentTerm(6, 2)
    copy = RaftJournal("g", lambda change: None)
    for kind, group, *fields in journal.live_records():
        assert group == "g"
        copy.apply(kind, fields)
    assert copy[:] == journal[:]
    assert (copy.getCurrentTerm(), copy.getVotedForNodeId()) == (6, 2)
    assert (copy.generation, copy.voters, copy.base) == (1, {1: "a", 2: "b"}, b"base")
    assert not copy.is_new
