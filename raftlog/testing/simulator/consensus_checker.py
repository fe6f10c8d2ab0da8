"""Checks of the Raft groups of a simulated cluster, during the run.

- The commands that state machines apply are prefixes of one history per group. Each command is
  applied once. When first applied, it is durable in a majority of the voters' directories.
- There is one leader per group, generation and term. In a directory, generations and terms never
  decrease, and there is one vote per term.
- A command with the outcome ``Applied`` is in the history at the reported place; one with
  ``NotProposed`` never is. Each command has one outcome.

The checker does not influence the run, and uses no random numbers. It reads durable state from the
bytes that a disk would have after a power cut, independent of the state of processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from raftlog.consensus import Applied, NotProposed, Outcome, journal_file
from raftlog.consensus.envelope import SEAL
from raftlog.consensus.raft_journal import Entry, Kind, RaftJournal

GroupId: TypeAlias = str
VIOLATIONS_MAX: Final = 20  # of one run; further ones are ignored


class Begun(NamedTuple):
    """Start of a generation of a group."""

    group_id: GroupId
    generation: int
    voters: Mapping[int, str]
    base: bytes


class DurableView:
    """The durable groups of one data directory, independent of power cuts."""

    def __init__(self) -> None:
        self.trouble: list[str] = []  # violations within the directory
        self.begun: list[Begun] = []  # generations, in the order in which they were read
        self._groups: dict[GroupId, RaftJournal] = {}
        self._end = 0
        self._newest: dict[GroupId, tuple[int, int]] = {}  # generation and term

    def group(self, group_id: GroupId) -> RaftJournal:
        found = self._groups.get(group_id)
        return RaftJournal(group_id, _no_record) if found is None else found

    def read_all(self, data: bytes) -> None:
        """Read a file that was replaced or truncated."""
        self._groups, self._end = {}, 0
        self.read_on(data)

    def read_on(self, data: bytes) -> None:
        """Read the blocks that were appended to the file."""
        while (header := journal_file.decode_header(data, self._end)) is not None:
            start = self._end + journal_file.HEADER_BYTES
            self._end = start + header.length
            records = msgpack.unpackb(data[start : self._end - 1], strict_map_key=False)
            for kind, *fields in records:
                self._take(kind, fields)
        for group_id, group in self._groups.items():
            newest = group.generation, group.getCurrentTerm()
            if newest < self._newest.get(group_id, newest):
                self.trouble.append(
                    f"{group_id}: from generation and term {self._newest[group_id]} to {newest}"
                )
            self._newest[group_id] = newest

    def _take(self, kind: int, fields: list[Any]) -> None:
        if kind in (Kind.BOOT, Kind.PEER):
            return
        group_id, *rest = fields
        if kind == Kind.DROP:
            del self._groups[group_id]
            return
        group = self._groups.setdefault(group_id, RaftJournal(group_id, _no_record))
        if kind == Kind.GENERATION:
            generation, voters, base = rest
            self.begun.append(Begun(group_id, generation, dict(voters), base))
        if kind == Kind.TERM and rest[0] == group.getCurrentTerm():
            vote = group.getVotedForNodeId()
            if vote is not None and vote != rest[1]:
                self.trouble.append(f"{group_id}: votes {vote} and {rest[1]} in term {rest[0]}")
        group.apply(kind, rest)


class Checker:
    """Checker of one run. ``violations``: sentences; empty if the run is valid."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.history: dict[GroupId, list[bytes]] = {}
        self.acked: dict[bytes, tuple[GroupId, int]] = {}  # by command: group, and place from 1
        self.views: dict[str, DurableView] = {}  # by directory, including lost ones
        self._refused: set[bytes] = set()
        self._answered: set[bytes] = set()
        self._leaders: dict[tuple[GroupId, int, int], str] = {}
        self._begun: dict[tuple[GroupId, int], Begun] = {}

    def violated(self, sentence: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX and sentence not in self.violations:
            self.violations.append(sentence)

    # -- state machines ----------------------------------------------------------------------------

    def applied(
        self,
        group_id: GroupId,
        place: int,
        command: bytes,
        entry: tuple[int, int, Entry] | None,
        voters: Mapping[int, str],
    ) -> None:
        """Check a command that a state machine applies as its ``place``-th one (from 1).

        ``entry``: generation, position and entry of the command in the journal of its broker; None
        if the journal does not contain it.
        """
        history = self.history.setdefault(group_id, [])
        if place <= len(history):
            if history[place - 1] != command:
                self.violated(
                    f"{group_id}: command {place} is {history[place - 1]!r} and {command!r}"
                )
            return
        if command in history:
            self.violated(f"{group_id}: {command!r} is applied twice")
        if command in self._refused:
            self.violated(f"{group_id}: {command!r} was not proposed, and is applied")
        if place != len(history) + 1:
            self.violated(f"{group_id}: command {place} is applied after {len(history)}")
            return
        history.append(command)
        if entry is None:
            self.violated(f"{group_id}: {command!r} is applied and not in the journal")
            return
        generation, position, stored = entry
        holders = [
            directory
            for directory in self._directories(voters)
            if self._holds(directory, group_id, generation, position, stored)
        ]
        if len(holders) <= len(voters) // 2:
            self.violated(
                f"{group_id}: {command!r} is committed and durable only on {holders} of {voters}"
            )

    def _directories(self, voters: Mapping[int, str]) -> list[str]:
        return [voters[broker_id] for broker_id in sorted(voters)]

    def _holds(
        self, directory: str, group_id: GroupId, generation: int, position: int, entry: Entry
    ) -> bool:
        group = self.durable(directory, group_id)
        return group.generation == generation and group[position : position + 1] == [entry]

    def restored(self, group_id: GroupId, commands: list[bytes]) -> None:
        """Check the state that a state machine restores at the start of a generation."""
        history = self.history.setdefault(group_id, [])
        if history[: len(commands)] != commands:
            self.violated(f"{group_id}: a generation begins with commands that were never applied")

    # -- nodes -------------------------------------------------------------------------------------

    def leads(self, group_id: GroupId, generation: int, term: int, directory: str) -> None:
        known = self._leaders.setdefault((group_id, generation, term), directory)
        if known != directory:
            self.violated(
                f"{group_id}: {known} and {directory} lead generation {generation}, term {term}"
            )

    def _begins(self, begun: Begun) -> None:
        """Check that a generation begins in one way, once its seal is durable on a majority."""
        group_id, generation = begun.group_id, begun.generation
        known = self._begun.setdefault((group_id, generation), begun)
        if known != begun:
            self.violated(f"{group_id}: generation {generation} begins in two ways")
        if known is not begun or not generation:
            return
        before = self._begun.get((group_id, generation - 1))
        voters = {} if before is None else before.voters
        sealed = [
            directory
            for directory in self._directories(voters)
            if self._has_sealed(directory, group_id, generation)
        ]
        if len(sealed) <= len(voters) // 2:
            self.violated(
                f"{group_id}: generation {generation} begins, and its seal is durable only on "
                f"{sealed} of {dict(voters)}"
            )

    def _has_sealed(self, directory: str, group_id: GroupId, generation: int) -> bool:
        group = self.durable(directory, group_id)
        if group.generation == generation - 1:
            return any(command[:1] == bytes([SEAL]) for command, _index, _term in group[:])
        return group.generation >= generation

    def stored(self, directory: str, data: bytes, *, replaced: bool) -> None:
        """Read the durable bytes of a directory's journal. ``replaced``: the file is a new one."""
        view = self.views.setdefault(directory, DurableView())
        if replaced:
            view.read_all(data)
        else:
            view.read_on(data)
        for trouble in view.trouble:
            self.violated(f"{directory}: {trouble}")
        for begun in view.begun:
            self._begins(begun)
        view.begun.clear()

    def durable(self, directory: str, group_id: GroupId) -> RaftJournal:
        """Return the durable state of a group in a directory; empty for an unknown directory."""
        return self.views.get(directory, DurableView()).group(group_id)

    # -- outcomes ----------------------------------------------------------------------------------

    def answered(self, group_id: GroupId, command: bytes, outcome: Outcome) -> None:
        if command in self._answered:
            self.violated(f"{group_id}: {command!r} has two outcomes")
        self._answered.add(command)
        history = self.history.setdefault(group_id, [])
        if isinstance(outcome, Applied):
            place = outcome.result
            if not isinstance(place, int) or history[place - 1 : place] != [command]:
                self.violated(f"{group_id}: {command!r}: outcome {outcome}, but not applied there")
            else:
                self.acked[command] = group_id, place
        elif isinstance(outcome, NotProposed):
            self._refused.add(command)
            if command in history:
                self.violated(f"{group_id}: {command!r} was not proposed, and is applied")

    # -- the end -----------------------------------------------------------------------------------

    def ends(self, machines: Mapping[tuple[str, GroupId], list[bytes]]) -> None:
        """Check the commands that each voter's directory has applied after the recovery."""
        for (directory, group_id), commands in machines.items():
            if commands != self.history.get(group_id, []):
                self.violated(f"{group_id}: {directory} has {len(commands)} commands at the end")
            for command, (acked_group, place) in self.acked.items():
                if acked_group == group_id and commands[place - 1 : place] != [command]:
                    self.violated(f"{group_id}: {command!r} was acknowledged, and {directory} "
                                  "has lost it")  # fmt: skip


def first_directory(broker_id: int) -> str:
    """Return the ID of the first data directory of a simulated broker."""
    return f"{broker_id}.0"


def _no_record(record: list[object]) -> None:
    raise AssertionError(f"a view is read-only: {record}")
