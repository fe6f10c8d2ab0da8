"""Durable state of one Raft group: generation, term, vote, entries.

Implements PySyncObj's journal interface on a broker's journal. Every change becomes a record of the
journal's pending block and is applied to memory immediately, by the same code that replays the
file: once the block is durable, a restart restores the state in memory. No code here uses files.
Before the block is durable, the broker must not send messages that depend on it or count entries.

The commit index is not stored (Raft, figure 2: it is volatile), so the entries of a journal are not
applied before a leader of the current term reports that they are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, TypeAlias, overload

from pysyncobj.journal import Journal as LibraryJournal

BrokerId: TypeAlias = int
DirectoryId: TypeAlias = str  # identity of a data directory; a new directory has a new one
Entry: TypeAlias = tuple[bytes, int, int]  # command, index, term
NodeId: TypeAlias = int | str


class Kind(IntEnum):
    """First field of a record. Records of a group have the group id as the second field."""

    BOOT = 0  # boot
    PEER = 1  # broker id, directory id, boot, run, journal block that it has reported
    GENERATION = 2  # group, generation, [[broker id, directory id], ...], base
    TERM = 3  # group, term, vote
    ADD = 4  # group, index, term, command
    CUT = 5  # group, entries kept
    DROP = 6  # group


class RaftJournal(LibraryJournal):  # type: ignore[misc]  # the library has no types
    """Part of a broker's journal for one group. Only ``Journal.group`` creates it."""

    def __init__(self, group_id: str, record: Callable[[list[Any]], None]) -> None:
        self.group_id = group_id
        self.generation = 0
        self.voters: dict[BrokerId, DirectoryId] = {}  # of this generation
        self.base = b""  # initial state of this generation
        self.is_new = True  # the journal has no record of the group
        self._record = record
        self._is_dropped = False
        self._term = 0
        self._vote: NodeId | None = None
        self._entries: list[Entry] = []

    # -- changes -----------------------------------------------------------------------------------

    def begin_generation(
        self, generation: int, voters: Mapping[BrokerId, DirectoryId], base: bytes
    ) -> None:
        """Remove the entries, term and vote of the previous generation, and start this one.

        Atomic with all other changes of the same sync. Generations only increase.
        """
        assert generation > self.generation or (self.is_new and generation >= 0)
        self._change(Kind.GENERATION, generation, sorted(voters.items()), bytes(base))

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Append the next entry."""
        if self._entries:
            _command, last_index, last_term = self._entries[-1]
            assert idx == last_index + 1 and term >= last_term, "an entry out of order"
        self._change(Kind.ADD, idx, term, bytes(command))

    def clear(self) -> None:
        """Remove all entries."""
        self.deleteEntriesFrom(0)

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803 - the library's names
        """Remove the entries from position ``entryFrom`` (0: the first one) to the end."""
        assert entryFrom >= 0
        if entryFrom < len(self._entries):
            self._change(Kind.CUT, entryFrom)

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803
        """Not supported: the first entries are only removed with their whole generation."""
        raise NotImplementedError("the first entries of a generation are never removed")

    def setCurrentTerm(self, term: int, votedForNodeId: NodeId | None) -> None:  # noqa: N802, N803
        """Record a newer term, or the only vote of a term."""
        if (term, votedForNodeId) == (self._term, self._vote):
            return
        assert term > self._term or (term == self._term and self._vote is None), "a changed vote"
        self._change(Kind.TERM, term, votedForNodeId)

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """Do nothing: the commit index is not stored."""

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Do nothing: no work is deferred."""

    def _destroy(self) -> None:
        """Do nothing: the file is shared by all groups of the broker."""

    def _change(self, kind: Kind, *fields: Any) -> None:
        assert not self._is_dropped, f"{self.group_id} was dropped from the journal"
        self._record([int(kind), self.group_id, *fields])

    # -- contents ----------------------------------------------------------------------------------

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...
    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        """Return 1: the commit index is not stored."""
        return 1

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._term

    def getVotedForNodeId(self) -> NodeId | None:  # noqa: N802
        return self._vote

    # -- called by the journal ---------------------------------------------------------------------

    def apply(self, kind: int, fields: list[Any]) -> None:
        """Apply a record to memory. It is in the pending block, or was read from the file."""
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
        """Reject further changes: they would restore a part of the group."""
        self._is_dropped = True

    def live_records(self) -> list[list[Any]]:
        """Return the records that restore this state in a new journal."""
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
