"""What of a log matches a leader's, what is cut, what seals it."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.consensus.journal import CommittedEntryError, RaftLog, is_consistent
from raftlog.consensus.settings import APPEND_BYTES, APPEND_ENTRIES_MAX
from raftlog.consensus.transport import COMMAND, encode_seal
from tests.consensus.journals import disk_of, open_journal

VOTERS = {1: "one", 2: "two", 3: "three"}


def command(text: str) -> bytes:
    return bytes([COMMAND]) + text.encode()


def log_of(*terms: int) -> RaftLog:
    """A log with these terms from index 2 on; each command is its index."""
    journal = open_journal(disk_of()).group("group")
    journal.begin_generation(0, VOTERS, b"")
    journal.add(b"\x01", 1, 0)
    for index, term in enumerate(terms, start=2):
        journal.add(command(str(index)), index, term)
    return RaftLog(journal)


def terms(log: RaftLog) -> list[int | None]:
    return [log.term_at(index) for index in range(2, len(log) + 1)]


def entries(*pairs: tuple[int, str]) -> list[list[Any]]:
    return [[term, command(text)] for term, text in pairs]


@pytest.mark.parametrize(
    ("mine", "index", "term", "guess"),
    [
        ((1, 1, 1), 4, 1, None),
        ((1, 1, 1), 1, 0, None),
        ((1, 1, 1), 5, 1, 5),  # ends before
        ((1, 1, 1), 99, 7, 5),
        ((1, 2, 2, 2), 5, 3, 3),  # the first of term 2
        ((2, 2, 2), 4, 3, 2),  # back to the first entry that can differ
    ],
)
def test_a_conflict_is_answered_with_the_beginning_of_its_term(
    mine: tuple[int, ...], index: int, term: int, guess: int | None
) -> None:
    assert log_of(*mine).conflict(index, term) == guess


def test_a_matching_suffix_stays() -> None:
    log = log_of(1, 1, 1, 1)  # hazard 2
    log.merge(2, entries((1, "3")), commit_index=1)
    assert terms(log) == [1, 1, 1, 1]
    log.merge(1, [], commit_index=1)
    assert terms(log) == [1, 1, 1, 1]


def test_what_conflicts_is_cut_with_all_after_it() -> None:
    log = log_of(1, 2, 2, 2)
    log.merge(2, entries((3, "x"), (3, "y")), commit_index=2)
    assert terms(log) == [1, 3, 3]
    assert log.entries_from(3) == entries((3, "x"), (3, "y"))


def test_nothing_committed_is_ever_cut() -> None:
    log = log_of(1, 2, 2)
    with pytest.raises(CommittedEntryError):
        log.merge(2, entries((3, "x")), commit_index=3)
    assert terms(log) == [1, 2, 2]


def test_the_first_seal_is_remembered_until_it_is_cut() -> None:
    log = log_of(1)
    assert log.seal_index is None
    log.add(encode_seal(VOTERS), 3, 1)
    log.add(encode_seal(VOTERS), 4, 1)
    assert log.seal_index == 3
    log.merge(3, entries((2, "x")), commit_index=1)
    assert log.seal_index == 3, "the first one stays"
    log.merge(2, entries((3, "x")), commit_index=1)
    assert log.seal_index is None


def test_a_seal_is_found_in_a_log_that_is_read_again() -> None:
    journal = open_journal(disk_of()).group("group")
    journal.begin_generation(0, VOTERS, b"")
    journal.add(b"\x01", 1, 0)
    journal.add(encode_seal(VOTERS), 2, 1)
    assert RaftLog(journal).seal_index == 2


def test_an_append_is_bounded_but_never_empty() -> None:
    log = log_of()
    for index in range(2, 3 * APPEND_ENTRIES_MAX):
        log.add(command("x"), index, 1)
    assert len(log.entries_from(2)) == APPEND_ENTRIES_MAX
    large = log_of()
    for index in range(2, 6):
        large.add(command("x" * APPEND_BYTES), index, 1)
    assert len(large.entries_from(2)) == 1


@pytest.mark.parametrize(
    ("previous", "previous_term", "added", "leader_term", "holds"),
    [
        (1, 0, [], 1, True),
        (0, 0, [], 1, False),  # there is no entry 0
        (1, 1, [], 1, False),  # the first entry is of term 0
        (3, 2, [], 1, False),  # of a term after the leader's
        (3, 2, [(1, "x")], 2, False),  # terms descend
        (3, 2, [(2, "x"), (3, "y")], 2, False),
        (1, 0, [(0, "x")], 2, False),  # only the first entry is of term 0
        (3, 2, [(2, "x"), (3, "y")], 3, True),
    ],
)
def test_what_no_leader_would_send(
    previous: int, previous_term: int, added: list[tuple[int, str]], leader_term: int, holds: bool
) -> None:
    assert is_consistent(previous, previous_term, entries(*added), leader_term) is holds
