"""The single pass over a history: entries in, columns of numbers out. Checks the format only.

Violations of the format (a completion without its invocation, values that were sent twice) are
*troubles*: the history cannot be checked with certainty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, Final

from raftlog.testing import history
from raftlog.testing.checker.gather_groups import GroupsGatherer
from raftlog.testing.checker.transactions import (
    Finding,
    Outcome,
    Place,
    Read,
    Transaction,
    check,
)
from raftlog.testing.checker.verdict import FAR, TRANSACTIONS, UNSETTLED, Table
from raftlog.testing.history import AnyEntry, Seen
from raftlog.types import Offset, TopicPartition

NEVER: Final = FAR  # time of a missing completion
OK, FAIL, INFO = range(3)
OUTCOMES: Final = {"ok": OK, "fail": FAIL, "info": INFO}
TROUBLES_MAX: Final = 50
FORMER: Final = "@"  # marks a partition of a deleted topic, in entries of group members only
SECOND: Final = 1_000_000_000

# Columns of the tables.
APPEND: Final = ("process", "first", "count", "acks", "idempotent", "invoked", "completed",
                 "outcome", "line", "last_line")  # fmt: skip
_COMPLETED, _OUTCOME, _LAST_LINE = 6, 7, 9
ACKED: Final = ("row", "first", "count", "offset")
POLL: Final = ("session", "invoked", "completed", "line", "last_line", "resets_to_latest")
ENDS: Final = ("end", "invoked", "completed", "line")


@dataclass(slots=True)
class Copy:
    """A partition at the end, as one reader received it, or as one replica stores it."""

    who: str
    start: int
    end: int
    chain: str = ""
    should_be_whole: bool = True
    problem: str = ""
    is_complete: bool = True
    records: Table = field(default_factory=lambda: Table(4))

    def add(self, records: list[Seen]) -> None:
        self.records.add(chain.from_iterable(records))


@dataclass(slots=True)
class Change:
    """A deletion of records or of a topic, or another change of topics."""

    what: str
    process: str
    invoked: int
    line: int
    before: int = 0
    args: dict[str, Any] = field(default_factory=dict)
    completed: int = NEVER
    outcome: int = INFO


@dataclass(slots=True)
class Idle:
    """A poll that returned no records though a record above its position had been acknowledged.

    ``since``: start of the time in which the consumer received no records.
    """

    poll: int
    position: int
    since: int


@dataclass(slots=True)
class Gathered:
    """All data of one partition. ``positions``: start position and time of each session."""

    name: str
    appends: Table = field(default_factory=lambda: Table(len(APPEND)))
    acked: Table = field(default_factory=lambda: Table(len(ACKED)))
    seen: Table = field(default_factory=lambda: Table(4))
    seen_by: Table = field(default_factory=lambda: Table(1))
    ends: Table = field(default_factory=lambda: Table(len(ENDS)))
    deletions: list[Change] = field(default_factory=list)
    readers: dict[str, Copy] = field(default_factory=dict)
    dumps: dict[int, Copy] = field(default_factory=dict)
    idle: list[Idle] = field(default_factory=list)
    positions: dict[int, tuple[int, int]] = field(default_factory=dict)
    acked_end: int = 0

    @property
    def topic(self) -> str:
        return self.name.rpartition(":")[0] or self.name


@dataclass(slots=True)
class FaultSpan:
    """A fault from before its start until after its end. ``injected``: None if unknown."""

    number: int
    kind: str
    targets: list[int]
    begun: int
    ended: int = NEVER
    injected: bool | None = None
    effect: dict[str, Any] = field(default_factory=dict)
    is_beyond: bool = False
    is_outage: bool = False

    @property
    def is_harmful(self) -> bool:
        """Whether it may have had an effect. A fault that was not injected, but had to be ended,
        may have had an effect in part."""
        return self.injected is not False or self.ended < NEVER


class Gatherer:
    """Gathers entries: call it for every entry in order, then read its fields. ``lag_ns``: how long
    after a fault consumers may receive no records."""

    def __init__(self, lag_ns: int = 10 * SECOND) -> None:
        self.lag_ns = lag_ns
        self.start: history.Start | None = None
        self.partitions: dict[str, Gathered] = {}
        self.topics: dict[str, list[Change]] = {}
        self.processes: list[str] = []  # names by number, of producers and other processes
        self.sessions: list[str] = []  # names of consumers, by session
        self.polls = Table(len(POLL))
        self.groups = GroupsGatherer(self.trouble)
        self.transactions = TransactionsGatherer(self.trouble)
        self.faults: dict[int, FaultSpan] = {}
        self.phases: list[history.Phase] = []
        self.troubles: list[str] = []
        self.lines: dict[tuple[type[AnyEntry], str], int] = {}  # number of entries by kind and type
        self.line = 0
        self.time = -FAR
        self.began = FAR
        self._process: dict[str, int] = {}
        self._session: dict[str, int] = {}
        self._known: list[set[str]] = []  # partitions that a session started to read
        self._idle_since: list[int] = []
        self._appending: dict[int, tuple[Gathered, int]] = {}  # by first value
        self._polling: dict[str, tuple[int, int, dict[str, int]]] = {}
        self._asking: dict[str, int] = {}
        self._changing: dict[tuple[str, str], Change] = {}
        self._active: set[int] = set()
        self._fault_ended = -FAR
        self._take: dict[type[AnyEntry], Callable[[Any], None]] = {
            history.Start: self._started,
            history.Append: self._append,
            history.Poll: self._poll,
            history.Ends: self._ends,
            history.Delete: self._delete,
            history.Admin: self._admin,
            history.Commit: lambda entry: self.groups.commit(entry, self.line),
            history.Committed: lambda entry: self.groups.committed(entry, self.line),
            history.Member: lambda entry: self.groups.member(entry, self.line),
            history.Transact: lambda entry: self.transactions.transact(entry, self.line),
            history.TxnRead: self.transactions.read,
            history.Fault: self._fault,
            history.Phase: self.phases.append,
            history.Note: self._note,
            history.Read: self._read,
            history.Dump: self._dump,
        }

    def add(self, entry: AnyEntry) -> None:
        self.line += 1
        if entry.time < self.time:
            self.trouble(f"line {self.line} is of an earlier time than the line before it")
        self.time = entry.time
        self.began = min(self.began, entry.time)
        kind = type(entry), entry.type
        self.lines[kind] = self.lines.get(kind, 0) + 1
        self._take[type(entry)](entry)

    def trouble(self, text: str) -> None:
        if len(self.troubles) < TROUBLES_MAX:
            self.troubles.append(text)

    def partition(self, name: str) -> Gathered:
        found = self.partitions.get(name)
        if found is None:
            found = self.partitions[name] = Gathered(name)
        return found

    # -- clients

    def _number(self, process: str) -> int:
        number = self._process.setdefault(process, len(self.processes))
        if number == len(self.processes):
            self.processes.append(process)
        return number

    def _append(self, entry: history.Append) -> None:
        if entry.type == "invoke":
            partition = self.partition(entry.partition)
            if entry.first in self._appending or entry.count < 1 or entry.first < 0:
                self.trouble(f"line {self.line} sends {entry.first} again, or no valid values")
                return
            self._appending[entry.first] = partition, len(partition.appends)
            partition.appends.add(
                (self._number(entry.process), entry.first, entry.count, entry.acks,
                 entry.idempotent, entry.time, NEVER, INFO, self.line, 0)
            )  # fmt: skip
            return
        pending = self._appending.pop(entry.first, None)
        if pending is None:
            self.trouble(f"line {self.line} completes an append that was not invoked")
            return
        partition, row = pending
        cells, at = partition.appends.cells, row * len(APPEND)
        cells[at + _COMPLETED] = entry.time
        cells[at + _OUTCOME] = OUTCOMES[entry.type]
        cells[at + _LAST_LINE] = self.line
        for first, count, offset in entry.offsets:
            partition.acked.add((row, first, count, offset))
            partition.acked_end = max(partition.acked_end, offset + count)

    def _poll(self, entry: history.Poll) -> None:
        if entry.type == "invoke":
            if entry.process in self._polling:
                self.trouble(f"line {self.line} polls while {entry.process} is polling")
            self._polling[entry.process] = entry.time, self.line, entry.positions
            session = self._session.get(entry.process)
            if session is None:
                session = self._session[entry.process] = len(self.sessions)
                self.sessions.append(entry.process)
                self._known.append(set())
                self._idle_since.append(NEVER)
            known = self._known[session]
            if not entry.positions.keys() <= known:
                for name in entry.positions.keys() - known:
                    known.add(name)
                    begin = entry.positions[name], entry.time
                    self.partition(name).positions[session] = begin
            return
        pending = self._polling.pop(entry.process, None)
        if pending is None:
            self.trouble(f"line {self.line} completes a poll that was not invoked")
            return
        invoked, line, positions = pending
        session, row = self._session[entry.process], len(self.polls)
        self.polls.add((session, invoked, entry.time, line, self.line, entry.resets_to_latest))
        if entry.group:
            self.groups.poll(entry, invoked, self.line)
        if any(entry.records.values()):
            self._seen(entry, row)
            self._idle_since[session] = NEVER
        elif entry.type == "ok":
            self._idle(session, row, invoked, positions)
        if entry.type == "info":  # its position is unknown now: the next poll starts a new sequence
            del self._session[entry.process]

    def _seen(self, entry: history.Poll, row: int) -> None:
        for name, runs in entry.records.items():
            if FORMER in name:
                continue
            partition = self.partition(name)
            partition.seen.add(chain.from_iterable(runs))
            partition.seen_by.add(repeat(row, len(runs)))

    def _idle(self, session: int, row: int, invoked: int, positions: dict[str, int]) -> None:
        since = self._idle_since[session] = min(self._idle_since[session], invoked)
        if self._active or invoked < self._fault_ended + self.lag_ns:
            return
        for name, position in positions.items():
            partition = self.partitions[name]
            if position < partition.acked_end:
                partition.idle.append(Idle(row, position, since))

    def _ends(self, entry: history.Ends) -> None:
        if entry.type == "invoke":
            self._asking[entry.process] = entry.time
            return
        invoked = self._asking.pop(entry.process, None)
        if invoked is None:
            self.trouble(f"line {self.line} is a response without a request")
            return
        for name, end in entry.ends.items():
            self.partition(name).ends.add((end, invoked, entry.time, self.line))

    # -- changes

    def _delete(self, entry: history.Delete) -> None:
        deletions = self.partition(entry.partition).deletions
        change = self._changed(("delete", entry.partition), entry, "delete", deletions)
        if change is not None:
            change.before = max(change.before, entry.before)

    def _admin(self, entry: history.Admin) -> None:
        changes = self.topics.setdefault(entry.topic, [])
        change = self._changed((f"admin {entry.what}", entry.topic), entry, entry.what, changes)
        if change is not None:
            change.args = change.args or entry.args

    def _changed(
        self,
        what: tuple[str, str],
        entry: history.Delete | history.Admin,
        name: str,
        changes: list[Change],
    ) -> Change | None:
        """Track changes: a process makes one change at a time of the same kind to the same
        object."""
        key = f"{entry.process} {what[0]}", what[1]
        if entry.type == "invoke":
            change = Change(name, entry.process, entry.time, self.line)
            changes.append(change)
            self._changing[key] = change
            return change
        found = self._changing.pop(key, None)
        if found is None:
            self.trouble(f"line {self.line} completes a change that was not invoked")
            return None
        found.completed, found.outcome = entry.time, OUTCOMES[entry.type]
        return found

    # -- the runner

    def _started(self, entry: history.Start) -> None:
        if self.start is not None:
            self.trouble(f"line {self.line} starts a run that is already started")
        self.start = self.start or entry
        if entry.format != history.FORMAT:
            self.trouble(
                f"the history has format {entry.format}, and this version checks {history.FORMAT}"
            )

    def _fault(self, entry: history.Fault) -> None:
        fault = self.faults.get(entry.id)
        if fault is None:
            fault = FaultSpan(entry.id, entry.kind, entry.targets, entry.time)
            self.faults[entry.id] = fault
        if entry.phase == "begin":
            fault.is_beyond |= entry.budget == "beyond"
            fault.is_outage |= entry.expects == "outage"
            self._active.add(entry.id)
            if entry.type != "invoke":
                fault.injected, fault.effect = entry.injected, entry.effect
                fault.targets = entry.targets or fault.targets
        elif entry.type != "invoke":
            fault.ended = entry.time
        if fault.injected is False or fault.ended < NEVER:
            self._active.discard(entry.id)
            self._fault_ended = entry.time

    def _note(self, entry: history.Note) -> None:
        if entry.is_trouble:
            self.trouble(entry.text)

    def _read(self, entry: history.Read) -> None:
        if entry.type == "invoke":
            return
        readers = self.partition(entry.partition).readers
        copy = readers.get(entry.process)
        if copy is None:
            copy = readers[entry.process] = Copy(entry.process, entry.start, entry.end)
        copy.end = max(copy.end, entry.end)
        if entry.type == "fail":
            copy.is_complete = False
            self.trouble(f"{entry.process} did not reach the end of {entry.partition}")
        copy.add(entry.records)

    def _dump(self, entry: history.Dump) -> None:
        dumps = self.partition(entry.partition).dumps
        copy = dumps.get(entry.broker)
        if copy is None:
            copy = dumps[entry.broker] = Copy(f"broker {entry.broker}", entry.start, entry.end)
        copy.end = max(copy.end, entry.end)
        copy.chain = entry.chain or copy.chain
        copy.should_be_whole &= entry.should_be_whole
        copy.problem = entry.problem or copy.problem
        copy.add(entry.records)


# -- transactions ----------------------------------------------------------------------------------
#
# The entries of transactions, gathered for ``checker.transactions``.

TRANSACTION_OUTCOMES: Final[dict[str, Outcome]] = {
    "ok": "committed",
    "fail": "aborted",
    "info": "unknown",
}


class TransactionsGatherer:
    """Call it for every entry in order. ``partitions``: names of those that transactions wrote."""

    def __init__(self, trouble: Callable[[str], None]) -> None:
        self.partitions: set[str] = set()
        self.operations: dict[str, int] = {}  # completions, by type
        self._trouble = trouble
        self._transactions: dict[str, Transaction] = {}
        self._open: dict[str, int] = {}  # by name, the time of the invocation
        self._reads: list[Read] = []
        self._finals: dict[str, dict[TopicPartition, list[tuple[Offset, bytes]]]] = {}
        self._end: history.TxnRead | None = None

    def transact(self, entry: history.Transact, line: int) -> None:
        if entry.type == "invoke":
            if entry.name in self._transactions:
                self._trouble(f"line {line} begins {entry.name} again")
            self._open[entry.name] = entry.time
            self._transactions[entry.name] = Transaction(entry.name)
        elif self._open.pop(entry.name, None) is None:
            self._trouble(f"line {line} completes {entry.name}, which was not begun")
            return
        else:
            self.operations[entry.type] = self.operations.get(entry.type, 0) + 1
        made = self._transactions[entry.name]
        made.sent, made.read = _places(entry.sent), _places(entry.read)
        made.outcome = TRANSACTION_OUTCOMES.get(entry.type, "unknown")
        made.ending_s = entry.ending / SECOND if entry.ending else None
        made.after_fence = entry.after_fence
        self.partitions.update(name for name, _ in (*entry.sent, *entry.read))

    def read(self, entry: history.TxnRead) -> None:
        at_s = entry.time / SECOND
        for name, records in entry.records.items():
            where = _partition(name)
            for offset, value in records:
                self._reads.append(Read(entry.process, at_s, where, offset, b"%d" % value))
            if entry.is_final:
                final = self._finals.setdefault(entry.process, {})
                final.setdefault(where, []).extend((at, b"%d" % value) for at, value in records)
        if entry.is_complete:
            self._end = entry

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong, with the kinds of ``verdict``."""
        for name, invoked in self._open.items():  # its end may have been requested
            self._transactions[name].ending_s = invoked / SECOND
        if self._transactions and self._end is None:
            self._trouble("transactions were written, and the records were not read at the end")
        if self._end is None:
            return
        final = self._finals.get(self._end.process, {})
        committed = {_partition(name): at for name, at in self._end.committed.items()}
        transactions = list(self._transactions.values())
        group = committed if self._end.has_group else None
        for kind, text in check(transactions, self._reads, final, group):
            yield Finding(TRANSACTIONS + kind, text)
        for text in self._end.unsettled:
            yield Finding(UNSETTLED, text)


def _partition(name: str) -> TopicPartition:
    topic, _, number = name.rpartition(":")
    return TopicPartition(topic, int(number))


def _places(placed: list[history.Placed]) -> list[Place]:
    return [Place(_partition(name), b"%d" % value) for name, value in placed]
