"""A group's journal as Raft sees it: what matches a leader's log, what must be cut, what seals it.

A view: the entries are the journal's, and PySyncObj reads them there. No roles, no messages.
"""

from __future__ import annotations

from typing import Any, Final

from raftlog.consensus.envelope import SEAL
from raftlog.consensus.raft_journal import RaftJournal
from raftlog.consensus.settings import APPEND_BYTES, APPEND_ENTRIES_MAX

FIRST_INDEX: Final = 1  # of the entry that every log begins with, in term 0; it is never sent


class CommittedEntryError(Exception):
    """A message asks for a committed entry to be cut. It never is."""


class RaftLog:
    """Invariant: the journal's entries have the indexes from ``FIRST_INDEX`` on, without a gap."""

    __slots__ = ("_journal", "seal_index")

    def __init__(self, journal: RaftJournal) -> None:
        assert journal[0][1] == FIRST_INDEX and journal[0][2] == 0
        self._journal = journal
        # Of the first seal, committed or not: entries after it never count.
        self.seal_index = next((index for entry, index, _ in journal[:] if entry[0] == SEAL), None)

    def __len__(self) -> int:
        return len(self._journal)

    @property
    def last_index(self) -> int:
        return len(self._journal)

    @property
    def end(self) -> tuple[int, int]:
        """Term and index of the last entry: the larger, the more up to date (Raft, 5.4.1)."""
        _entry, index, term = self._journal[-1]
        return term, index

    def term_at(self, index: int) -> int | None:
        """The term of an entry; None when there is none at ``index``."""
        if FIRST_INDEX <= index <= len(self._journal):
            return self._journal[index - FIRST_INDEX][2]
        return None

    def entries_from(self, index: int) -> list[list[Any]]:
        """``[term, entry]`` from ``index`` on: at least one, not many more than fit an append."""
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
        """None when the entry at ``index`` is of ``term``; else where a leader should try next.

        That is the end of this log, or the first entry of the term that stands there instead: one
        round trip for each term, not for each entry (Raft, 5.3).
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
        """Take a leader's entries after ``previous``, cutting only from where a term differs.

        Entries that are here stay, also those after the leader's: it may have sent more since
        (hazard 2). Raises ``CommittedEntryError`` before it cuts at or below ``commit_index``.
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
    """Whether an append could be a leader's at all: terms never descend, nor pass its own."""
    if previous < FIRST_INDEX or (previous == FIRST_INDEX and previous_term != 0):
        return False
    if not entries:
        return previous_term <= leader_term
    first_term, last_term = int(entries[0][0]), int(entries[-1][0])
    return max(1, previous_term) <= first_term and last_term <= leader_term
