"""Entries of consumer groups, as columns: commits, fetched offsets, ownership.

Part of the single pass over a history; see ``gather``. Checks the format only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from raftlog.testing import history
from raftlog.testing.checker.verdict import FAR, Table

SECOND: Final = 1_000_000_000
NEVER: Final = FAR
INFO: Final = 2
OUTCOMES: Final = {"ok": 0, "fail": 1, "info": INFO}

# Columns of the tables.
COMMITS: Final = ("member", "offset", "invoked", "completed", "outcome", "line", "last_line")
_COMPLETED, _OUTCOME, _LAST_LINE = 3, 4, 6
FETCHED: Final = ("who", "offset", "invoked", "completed", "line", "last_line")
BEGINNINGS: Final = ("paused", "cut")
ENDINGS: Final = ("resumed", "mended")
GIVEN: Final = ("offset", "count", "value", "epoch", "member", "at", "line")


@dataclass(slots=True)
class Span:
    """A time interval, in ns."""

    begin: int
    end: int = NEVER


@dataclass(slots=True)
class Owned(Span):
    """Ownership of a partition in the view of a member. ``how`` it ended: revoked, lost, killed,
    end."""

    member: int = 0
    how: str = ""


@dataclass(slots=True)
class MemberLife:
    """One process of a group. Times in ns."""

    name: str
    group: str
    began: int
    ended: int = NEVER
    topics: list[str] = field(default_factory=list)
    is_silent: bool = False  # its commits are not recorded
    is_ordered: bool = False  # its commits have sequence numbers: none takes effect late
    session_ns: int = 45 * SECOND
    handling_ns: int = 0
    pauses: list[Span] = field(default_factory=list)
    polls: list[Span] = field(default_factory=list)  # the successful ones
    cuts: list[Span] = field(default_factory=list)
    closed: int = NEVER  # start of its shutdown

    def spans(self, what: str) -> list[Span]:
        """Return the intervals that ``what`` starts or ends."""
        return self.pauses if what in {"paused", "resumed"} else self.cuts


@dataclass(slots=True)
class Share:
    """All data of one partition in one group."""

    commits: Table = field(default_factory=lambda: Table(len(COMMITS)))
    fetched: Table = field(default_factory=lambda: Table(len(FETCHED)))
    given: Table = field(default_factory=lambda: Table(len(GIVEN)))
    owned: list[Owned] = field(default_factory=list)


@dataclass(slots=True)
class Group:
    """One consumer group; ``shares`` by the name of the partition."""

    name: str
    shares: dict[str, Share] = field(default_factory=dict)
    members: list[int] = field(default_factory=list)

    def is_ordered(self, members: Mapping[int, MemberLife]) -> bool:
        """Return whether all its commits have an order. Those of other clients have none."""
        return bool(self.members) and all(members[member].is_ordered for member in self.members)

    def share(self, partition: str) -> Share:
        found = self.shares.get(partition)
        if found is None:
            found = self.shares[partition] = Share()
        return found


class GroupsGatherer:
    """Gathers entries of groups. ``trouble``: called for violations of the format."""

    def __init__(self, trouble: Callable[[str], None]) -> None:
        self.groups: dict[str, Group] = {}
        self.names: list[str] = []  # of all processes that commit or fetch, members too, by number
        self.members: dict[int, MemberLife] = {}  # by the number of its name
        self.operations: dict[str, int] = {}  # commits and fetches, by outcome
        self._trouble = trouble
        self._number: dict[str, int] = {}
        self._committing: dict[tuple[str, str], list[tuple[Share, int]]] = {}
        self._asking: dict[tuple[str, str], tuple[int, int]] = {}

    def group(self, name: str) -> Group:
        found = self.groups.get(name)
        if found is None:
            found = self.groups[name] = Group(name)
        return found

    def number(self, name: str) -> int:
        """Return the number of a name: the same for the same name."""
        found = self._number.setdefault(name, len(self.names))
        if found == len(self.names):
            self.names.append(name)
        return found

    def _count(self, what: str) -> None:
        self.operations[what] = self.operations.get(what, 0) + 1

    # -- offsets

    def commit(self, entry: history.Commit, line: int) -> None:
        key, at = (entry.process, entry.group), entry.at or entry.time
        if entry.type == "invoke":
            if key in self._committing:  # the earlier commit's partitions are unknown now
                del self._committing[key]
            number, rows = self._member(entry.process), []
            for name, offset in entry.offsets.items():
                share = self.group(entry.group).share(name)
                rows.append((share, len(share.commits)))
                share.commits.add((number, offset, at, NEVER, INFO, line, 0))
            self._committing[key] = rows
            return
        pending = self._committing.pop(key, None)
        if pending is None:
            self._trouble(f"line {line} completes a commit that was not invoked")
            return
        self._count(f"commits {entry.type}")
        for share, row in pending:
            cells, place = share.commits.cells, row * len(COMMITS)
            cells[place + _COMPLETED] = at
            cells[place + _OUTCOME] = OUTCOMES[entry.type]
            cells[place + _LAST_LINE] = line

    def committed(self, entry: history.Committed, line: int) -> None:
        key = entry.process, entry.group
        if entry.type == "invoke":
            self._asking[key] = entry.time, line
            return
        pending = self._asking.pop(key, None)
        if pending is None:
            self._trouble(f"line {line} is a response without a request")
            return
        self._count(f"fetches {entry.type}")
        if entry.type != "ok":
            return
        invoked, first = pending
        number = self.number(entry.process)
        for name, offset in entry.offsets.items():
            share = self.group(entry.group).share(name)
            share.fetched.add((number, offset, invoked, entry.time, first, line))

    # -- members

    def _member(self, process: str) -> int:
        """Return the number of a member, one of whose sequences of polls or commits this is."""
        return self.number(process.partition("#")[0])

    def poll(self, entry: history.Poll, invoked: int, line: int) -> None:
        """Record a completed poll of a member: the records that it has processed."""
        number, at = self._member(entry.process), entry.at or entry.time
        if entry.type == "ok" and number in self.members:
            self.members[number].polls.append(Span(invoked, at))
        group = self.group(entry.group)
        for name, runs in entry.records.items():
            rows = ((*run, number, at, line) for run in runs)
            group.share(name).given.add(chain.from_iterable(rows))

    def member(self, entry: history.Member, line: int) -> None:
        at, number = entry.at or entry.time, self.number(entry.process)
        if entry.what == "start":
            self._started(entry, number, at)
            return
        life = self.members.get(number)
        if life is None:
            self._trouble(f"line {line} is of {entry.process}, which never started")
            return
        group = self.group(life.group)
        if entry.what == "assigned":
            for name in entry.partitions:
                group.share(name).owned.append(Owned(at, member=number))
        elif entry.what in {"revoked", "lost"}:
            for name in entry.partitions:
                _end(group.share(name), number, at, entry.what)
        elif entry.what in {"killed", "end"}:
            life.ended = min(life.ended, at)
            for share in group.shares.values():
                _end(share, number, life.ended, entry.what)
        elif entry.what == "close":
            life.closed = at
        elif entry.what in BEGINNINGS:
            life.spans(entry.what).append(Span(at))
        elif entry.what in ENDINGS and life.spans(entry.what):
            life.spans(entry.what)[-1].end = at

    def _started(self, entry: history.Member, number: int, at: int) -> None:
        args: dict[str, Any] = entry.args
        self.members[number] = MemberLife(
            entry.process,
            entry.group,
            at,
            topics=[str(topic) for topic in args.get("topics") or ()],
            is_silent=args.get("commits") == "auto",
            is_ordered=not args.get("protocol"),  # of a Kafka client
            session_ns=int(float(args.get("session_timeout_s", 45.0)) * SECOND),
            handling_ns=int(float(args.get("handling_s", 0.0)) * SECOND),
        )
        self.group(entry.group).members.append(number)


def _end(share: Share, member: int, at: int, how: str) -> None:
    for owned in reversed(share.owned):
        if owned.member == member:
            if owned.end == NEVER:
                owned.end, owned.how = at, how
            return
