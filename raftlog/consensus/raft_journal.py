"""Durable state of one Raft group: generation, term, vote, entries.

The view that PySyncObj has of a broker's journal, in its own interface. Every change becomes a
record of the journal's pending block and is applied to memory at once, by the same code that
replays the file: what is in memory is what a restart would find once that block is durable. Nothing
here touches a file, and nothing may be sent or counted before the block is.

The commit index is not kept (Raft, figure 2: it is volatile), so nothing of a journal is applied
before a leader of this term says that it is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, TypeAlias, overload

from pysyncobj.journal import Journal as LibraryJournal

BrokerId: TypeAlias = int
DirectoryId: TypeAlias = str  # the identity of a data directory; a wiped broker has a new one
Entry: TypeAlias = tuple[bytes, int, int]  # command, index, term
NodeId: TypeAlias = int | str


class Kind(IntEnum):
    """The first field of a record. Those of a group have its id as their second."""

    BOOT = 0  # boot
    PEER = 1  # broker id, directory id, boot, run
    GENERATION = 2  # group, generation, [[broker id, directory id], ...], base
    TERM = 3  # group, term, vote
    ADD = 4  # group, index, term, command
    CUT = 5  # group, entries kept
    DROP = 6  # group


class RaftJournal(LibraryJournal):  # type: ignore[misc]  # the library has no types
    """One group's part of a broker's journal. Made by ``Journal.group``, not by hand."""

    def __init__(self, group_id: str, record: Callable[[list[Any]], None]) -> None:
        self.group_id = group_id
        self.generation = 0
        self.voters: dict[BrokerId, DirectoryId] = {}  # of this generation
        self.base = b""  # the state that this generation began with
        self.is_new = True  # nothing was ever journaled for the group
        self._record = record
        self._is_dropped = False
        self._term = 0
        self._vote: NodeId | None = None
        self._entries: list[Entry] = []

    # -- changes -----------------------------------------------------------------------------------

    def begin_generation(
        self, generation: int, voters: Mapping[BrokerId, DirectoryId], base: bytes
    ) -> None:
        """Forget the entries, term and vote of the generation before, and begin this one.

        Atomic with all else that the same sync makes durable. Generations only go up.
        """
        assert generation > self.generation or (self.is_new and generation >= 0)
        self._change(Kind.GENERATION, generation, sorted(voters.items()), bytes(base))

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Append the entry that comes next."""
        if self._entries:
            _command, last_index, last_term = self._entries[-1]
            assert idx == last_index + 1 and term >= last_term, "an entry out of order"
        self._change(Kind.ADD, idx, term, bytes(command))

    def clear(self) -> None:
        """Drop every entry."""
        self.deleteEntriesFrom(0)

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803 - the library's names
        """Drop the entries from position ``entryFrom`` (0: the first one) to the end."""
        assert entryFrom >= 0
        if entryFrom < len(self._entries):
            self._change(Kind.CUT, entryFrom)

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803
        """Refused: entries leave from the front only with their whole generation."""
        raise NotImplementedError("the front of a generation's journal is never dropped")

    def setCurrentTerm(self, term: int, votedForNodeId: NodeId | None) -> None:  # noqa: N802, N803
        """Note a newer term, or the one vote that there is in a term."""
        if (term, votedForNodeId) == (self._term, self._vote):
            return
        assert term > self._term or (term == self._term and self._vote is None), "a vote taken back"
        self._change(Kind.TERM, term, votedForNodeId)

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """Nothing: see the module."""

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Nothing is put off."""

    def _destroy(self) -> None:
        """Nothing: the file is the broker's, for all groups."""

    def _change(self, kind: Kind, *fields: Any) -> None:
        assert not self._is_dropped, f"{self.group_id} was dropped from the journal"
        self._record([int(kind), self.group_id, *fields])

    # -- what is there -----------------------------------------------------------------------------

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...
    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        """Always 1: see the module."""
        return 1

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._term

    def getVotedForNodeId(self) -> NodeId | None:  # noqa: N802
        return self._vote

    # -- the journal's side ------------------------------------------------------------------------

    def apply(self, kind: int, fields: list[Any]) -> None:
        """Change memory as a record says; it is in the pending block, or comes from the file."""
        self.is_new = False
        if kind == Kind.ADD:
            index, term, command = fields
            self._entries.append((command, index, term))
        elif kind == Kind.CUT:
            (kept,) = fields
            del self._entries[kept:]
        elif kind == Kind.TERM:
            self._term, self._vote = fields
        else:
            assert kind == Kind.GENERATION
            self.generation, voters, self.base = fields
            self.voters = dict(voters)
            self._term, self._vote, self._entries = 0, None, []

    def mark_dropped(self) -> None:
        """From now on a change is a mistake of ours: it would bring back half of the group."""
        self._is_dropped = True

    def live_records(self) -> list[list[Any]]:
        """The records that make a new journal hold what this one does."""
        if self.is_new:
            return []
        group = self.group_id
        voters = sorted(self.voters.items())
        records: list[list[Any]] = [[Kind.GENERATION, group, self.generation, voters, self.base]]
        if self._term or self._vote is not None:
            records.append([Kind.TERM, group, self._term, self._vote])
        records += [
            [Kind.ADD, group, index, term, command] for command, index, term in self._entries
        ]
        return records
