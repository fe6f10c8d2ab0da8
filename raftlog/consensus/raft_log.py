"""Raft log of a group: comparison with a leader's log, truncation, and the seal.

A view of the group's journal, from which PySyncObj reads the entries. No roles, no messages.
"""

from __future__ import annotations

from typing import Any, Final

from raftlog.consensus.envelope import SEAL
from raftlog.consensus.raft_journal import RaftJournal
from raftlog.consensus.settings import APPEND_BYTES, APPEND_ENTRIES_MAX

FIRST_INDEX: Final = 1  # index of the first entry of every log, in term 0; it is never sent


class CommittedEntryError(Exception):
    """A message requires the truncation of a committed entry, which is rejected."""


class RaftLog:
    """Invariant: the journal's entries have consecutive indexes from ``FIRST_INDEX`` on."""

    __slots__ = ("_journal", "seal_index")

    def __init__(self, journal: RaftJournal) -> None:
        assert journal[0][1] == FIRST_INDEX and journal[0][2] == 0
        self._journal = journal
        # Index of the first seal, committed or not: entries after it have no effect.
        self.seal_index = next((index for entry, index, _ in journal[:] if entry[0] == SEAL), None)

    def __len__(self) -> int:
        return len(self._journal)

    @property
    def last_index(self) -> int:
        return len(self._journal)

    @property
    def end(self) -> tuple[int, int]:
        """Term and index of the last entry. The log with the larger value is more up to date
        (Raft, 5.4.1).
        """
        _entry, index, term = self._journal[-1]
        return term, index

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at ``index``; None if there is no entry."""
        if FIRST_INDEX <= index <= len(self._journal):
            return self._journal[index - FIRST_INDEX][2]
        return None

    def entries_from(self, index: int) -> list[list[Any]]:
        """Return ``[term, entry]`` from ``index`` on: at least one, about one append at most."""
        start = index - FIRST_INDEX
        entries: list[list[Any]] = []
        room = APPEND_BYTES
        for entry, _index, term in self._journal[start : start + APPEND_ENTRIES_MAX]:
            room -= len(entry)
            if entries and room < 0:
                break
            entries.append([term, entry])
        return entries

    def add(self, entry: bytes, index: int, term: int) -> None:
        self._journal.add(entry, index, term)
        if entry[0] == SEAL and self.seal_index is None:
            self.seal_index = index

    def conflict(self, index: int, term: int) -> int | None:
        """Return None if the entry at ``index`` has ``term``, else the index to probe next.

        This is the end of this log, or the first entry of the conflicting term: one round trip per
        term instead of per entry (Raft, 5.3).
        """
        mine = self.term_at(index)
        if mine == term:
            return None
        if mine is None:
            return self.last_index + 1
        while index > FIRST_INDEX + 1 and self.term_at(index - 1) == mine:
            index -= 1
        return index

    def merge(self, previous: int, entries: list[list[Any]], *, commit_index: int) -> None:
        """Append a leader's entries after ``previous``. Truncate only where a term differs.

        Existing entries are kept, also those after the leader's: they may be from a later message
        (hazard 2). Raises ``CommittedEntryError`` before a truncation at or below ``commit_index``.
        """
        index = previous
        for term, entry in entries:
            index += 1
            mine = self.term_at(index)
            if mine == term:
                continue
            if mine is not None:
                if index <= commit_index:
                    raise CommittedEntryError(f"index {index} of term {mine} is not of {term}")
                self._cut(index)
            self.add(entry, index, term)

    def _cut(self, index: int) -> None:
        self._journal.deleteEntriesFrom(index - FIRST_INDEX)
        if self.seal_index is not None and self.seal_index >= index:
            self.seal_index = None


def is_consistent(
    previous: int, previous_term: int, entries: list[list[Any]], leader_term: int
) -> bool:
    """Return whether an append is valid: terms never decrease or exceed the leader's term."""
    if previous < FIRST_INDEX or (previous == FIRST_INDEX and previous_term != 0):
        return False
    if not entries:
        return previous_term <= leader_term
    first_term, last_term = int(entries[0][0]), int(entries[-1][0])
    return max(1, previous_term) <= first_term and last_term <= leader_term
