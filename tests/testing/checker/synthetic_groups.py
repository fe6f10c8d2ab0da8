"""The part of a synthetic history that has consumer groups in it: members that come, die and are
stopped, a group whose members do not say what they commit, offsets that nobody's member commits.

What is committed is a dictionary; what has to be judged is all there: an owner that does not know
that it is one no more, commits of which nobody knows whether they came into effect, partitions that
change hands while records are under way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from raftlog.testing.history import (
    AnyEntry,
    Append,
    Commit,
    Committed,
    Member,
    Poll,
    Seen,
    Type,
)

PARTITIONS: Final = ("grouped:0", "grouped:1")
TICKS: Final = 100  # of the load
APPEND_EVERY: Final = 5
APPENDED: Final = 8  # records at a time
FIRST_VALUE: Final = 1 << 41  # others do not get so far
SPOKEN, SILENT, MEMBERLESS = "g-spoken", "g-silent", "g-memberless"
SESSION_S: Final = 2.0


@dataclass(slots=True)
class _Member:
    name: str
    positions: dict[str, int] = field(default_factory=dict)
    generation: int = 0
    is_paused: bool = False


@dataclass
class Groups:
    """``at``: the times of the ticks, in ns. ``entries`` are in order; then ``logs`` has, by
    partition, how many records there are, whose values follow each other."""

    random: Random
    at: list[int]
    out: list[AnyEntry] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    firsts: dict[str, list[int]] = field(default_factory=lambda: {p: [] for p in PARTITIONS})
    committed: dict[tuple[str, str], int] = field(default_factory=dict)
    members: dict[str, _Member] = field(default_factory=dict)
    now: int = 0
    _next_value: int = FIRST_VALUE

    def entries(self) -> list[AnyEntry]:
        """All of the load."""
        for tick in range(TICKS):
            self.now = self.at[tick]
            if not tick % APPEND_EVERY:
                for partition in PARTITIONS:
                    self._append(partition)
            self._change(tick)
            for member in self.members.values():
                if not member.is_paused and tick % 3 == 0:
                    self._consume(member, tick)
            if tick % 4 == 1 and tick > 2:
                self._commit_alone(tick)
            if tick % 7 == 5:
                self._ask("asker", self._step)
        return self.out

    def ending(self, now: int) -> Iterator[AnyEntry]:
        """Once all is healed: members catch up and leave, and others ask what is committed."""
        self.out, self.now = [], now
        for name in ("a.2", "c", "s"):
            member = self.members[name]
            self._consume(member, 0)
            self._member(name, "end")
        for reader in ("committed-1", "committed-2"):
            self._ask(reader, self._step)
        yield from self.out

    def log(self, partition: str) -> list[Seen]:
        """The runs of its final log."""
        return [
            (number * APPENDED, APPENDED, first, 1)
            for number, first in enumerate(self.firsts[partition])
        ]

    # -- what happens

    def _change(self, tick: int) -> None:
        """Members come and go; who is dead or stopped loses what it has when its session ends."""
        one, other = PARTITIONS
        if tick == 4:
            self._start("a", SPOKEN)
            self._assign("a", PARTITIONS)
            self._start("s", SILENT)
            self._assign("s", PARTITIONS)
        elif tick == 20:
            self._start("b", SPOKEN)
            self._revoke("a", other)
            self._assign("b", [other])
        elif tick == 40:
            self._member("a", "killed")
            del self.members["a"]
        elif tick == 48:
            self._assign("b", [one])
        elif tick == 55:
            self._start("c", SPOKEN)
            self._revoke("b", one)
            self._assign("c", [one])
        elif tick == 65:
            self.members["b"].is_paused = True
            self._member("b", "paused")
        elif tick == 75:
            self._start("a.2", SPOKEN)
            self._assign("a.2", [other])
        elif tick == 80:
            self._member("b", "resumed")
            self._commit("b", SPOKEN, self.members["b"].positions, "info")
            self._member("b", "lost", [other])
            self._member("b", "end")
            del self.members["b"]

    def _step(self) -> int:
        self.now += 1
        return self.now

    def _append(self, partition: str) -> None:
        first, self._next_value = self._next_value, self._next_value + APPENDED
        offset = self.ends[partition]
        self.ends[partition] += APPENDED
        self.firsts[partition].append(first)
        types: tuple[tuple[Type, list[tuple[int, int, int]]], ...] = (
            ("invoke", []),
            ("ok", [(first, APPENDED, offset)]),
        )
        for type_, offsets in types:
            self.out.append(
                Append(
                    time=self._step(), process="feeder", type=type_, partition=partition,
                    first=first, count=APPENDED, offsets=offsets,
                )
            )  # fmt: skip

    def _start(self, name: str, group: str) -> None:
        self.members[name] = _Member(name)
        commits = "auto" if group == SILENT else "manual"
        args = {"topics": ["grouped"], "commits": commits, "session_timeout_s": SESSION_S}
        self._member(name, "start", args=args)

    def _assign(self, name: str, partitions: Any) -> None:
        member = self.members[name]
        member.generation += 1
        group = _group(name)
        for partition in partitions:
            member.positions[partition] = self.committed.get((group, partition), 0)
        self._member(name, "assigned", list(partitions))

    def _revoke(self, name: str, partition: str) -> None:
        member = self.members[name]
        self._commit(name, SPOKEN, {partition: member.positions.pop(partition)}, "ok")
        member.generation += 1
        self._member(name, "revoked", [partition])

    def _member(
        self, name: str, what: str, partitions: Any = (), args: dict[str, Any] | None = None
    ) -> None:
        self.out.append(
            Member(
                time=self._step(), process=name, type="info", group=_group(name), what=what,
                partitions=list(partitions), args=args or {},
            )
        )  # fmt: skip

    def _consume(self, member: _Member, tick: int) -> None:
        records: dict[str, list[Seen]] = {}
        for partition, position in member.positions.items():
            end = self.ends[partition]
            if position < end:
                records[partition] = _part(self.log(partition), position)
                member.positions[partition] = end
        group = _group(member.name)
        if not records:
            return
        process = f"{member.name}#{member.generation}"
        kinds: tuple[tuple[Type, dict[str, list[Seen]]], ...] = (("invoke", {}), ("ok", records))
        for type_, found in kinds:
            self.out.append(
                Poll(
                    time=self._step(), process=process, type=type_, records=found, group=group,
                    at=self.now,
                )
            )  # fmt: skip
        if group == SILENT:
            self.committed |= {(group, p): member.positions[p] for p in records}
        elif not tick % 2:
            self._commit(member.name, group, {p: member.positions[p] for p in records}, "ok")

    def _commit_alone(self, tick: int) -> None:
        """Somebody who is no member; of each eighth commit nobody knows what became of it."""
        end = min(self.ends.values())
        outcome: Type = "ok" if tick % 8 == 1 else "info"
        offset = min(end, self.committed.get((MEMBERLESS, PARTITIONS[0]), 0) + 1)
        self._commit(f"committer-{tick}", MEMBERLESS, dict.fromkeys(PARTITIONS, offset), outcome)

    def _commit(self, process: str, group: str, offsets: Mapping[str, int], outcome: Type) -> None:
        lands = outcome == "ok" or (group == MEMBERLESS and self.random.random() < 0.5)
        for type_ in ("invoke", outcome):
            self.out.append(
                Commit(
                    time=self._step(), process=process, type=type_, group=group,
                    offsets=dict(offsets), error="Error" if type_ == "info" else "",
                )
            )  # fmt: skip
            if lands and type_ == "invoke":
                self.committed |= {(group, name): offset for name, offset in offsets.items()}

    def _ask(self, who: str, step: Any) -> None:
        for group in (SPOKEN, SILENT, MEMBERLESS):
            self.out.append(Committed(time=step(), process=who, type="invoke", group=group))
            noted = {name: self.committed.get((group, name), -1) for name in PARTITIONS}
            self.out.append(
                Committed(time=step(), process=who, type="ok", group=group, offsets=noted)
            )


def _group(member: str) -> str:
    return SILENT if member == "s" else SPOKEN


def _part(runs: list[Seen], position: int) -> list[Seen]:
    """What of runs is at ``position`` and above."""
    found = []
    for offset, count, value, epoch in runs:
        skip = max(0, position - offset)
        if skip < count:
            found.append((offset + skip, count - skip, value + skip, epoch))
    return found
