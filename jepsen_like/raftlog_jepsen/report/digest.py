"""Digest: the data of a history that a report needs, collected in one pass with limited memory.

Counts operations per second, and latencies in exponential buckets, so that the memory does not grow
with the number of operations. Only the checker detects anomalies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from raftlog.testing.history import (
    Admin,
    AnyEntry,
    Append,
    Commit,
    Committed,
    Delete,
    Ends,
    Entry,
    Fault,
    Member,
    Note,
    Phase,
    Poll,
    Start,
)

NS: Final = 1_000_000_000
BUCKETS_PER_DOUBLING: Final = 8  # all values of a bucket are within 5 % of its middle
NOTES_MAX: Final = 200
NEW_LEADERS_MAX: Final = 2_000
MEMBERS_MAX: Final = 20_000
ERRORS_MAX: Final = 200  # different error texts
ERROR_CHARS_MAX: Final = 160

Histogram: TypeAlias = dict[int, int]  # bucket -> count


def bucket(duration_ns: int) -> int:
    """Return the bucket of a latency. Latencies below 1 µs count as 1 µs."""
    return int(math.log2(max(duration_ns / 1_000, 1.0)) * BUCKETS_PER_DOUBLING)


def middle_s(number: int) -> float:
    """Return the middle of a bucket, in seconds."""
    return float(2 ** ((number + 0.5) / BUCKETS_PER_DOUBLING)) / 1e6


def quantile_s(histogram: Histogram, share: float) -> float:
    """Return the latency that ``share`` (0 to 1) of all operations do not exceed, in seconds.

    Raises ``ValueError`` if ``histogram`` is empty.
    """
    wanted = share * sum(histogram.values())
    seen = 0
    for number in sorted(histogram):
        seen += histogram[number]
        if seen >= wanted:
            return middle_s(number)
    raise ValueError("no latency was counted")


@dataclass(slots=True)
class Second:
    """Operations completed in one second, or in several merged seconds."""

    appends: Counter[str] = field(default_factory=Counter)  # operations, by type
    acked: int = 0  # records
    read: int = 0  # records that consumers received
    ok: Histogram = field(default_factory=dict)  # latencies of appends with outcome ok
    unknown: Histogram = field(default_factory=dict)  # latencies of appends with outcome info
    longest_ns: int = 0  # longest latency of appends with outcome ok

    def merge(self, other: Second) -> None:
        self.appends.update(other.appends)
        self.acked += other.acked
        self.read += other.read
        self.longest_ns = max(self.longest_ns, other.longest_ns)
        for mine, theirs in ((self.ok, other.ok), (self.unknown, other.unknown)):
            for number, count in theirs.items():
                mine[number] = mine.get(number, 0) + count


@dataclass(slots=True)
class FaultSpan:
    """One fault, from its start to its end. Times in seconds since the history began.

    ``end_s``: end of the history for a fault that was not ended. ``why``: why it was not injected.
    """

    id: int
    kind: str
    begin_s: float
    end_s: float = math.inf
    targets: list[int] = field(default_factory=list)
    args: dict[str, Any] = field(default_factory=dict)
    injected: bool = True
    beyond: bool = False
    expects: str = "available"
    effect: dict[str, Any] = field(default_factory=dict)
    effect_end: dict[str, Any] = field(default_factory=dict)
    trouble_end: str = ""  # why the fault could not be ended

    @property
    def why(self) -> str:
        if self.injected:
            return ""
        return str(self.effect.get("why", "no reason recorded"))


@dataclass(slots=True)
class PhaseSpan:
    """One phase of the runner. Times in seconds since the history began."""

    name: str
    begin_s: float
    end_s: float


@dataclass(slots=True)
class Digest:
    """The condensed history. ``seconds``: only seconds in which an operation was completed."""

    start: Start | None = None
    base_ns: int = 0  # time of the first entry, on the clock of the history
    length_s: float = 0.0
    entries: int = 0
    phases: list[PhaseSpan] = field(default_factory=list)
    faults: list[FaultSpan] = field(default_factory=list)
    seconds: dict[int, Second] = field(default_factory=dict)
    operations: dict[str, Counter[str]] = field(default_factory=dict)  # by name, by type
    unfinished: Counter[str] = field(default_factory=Counter)  # invoked and never completed
    errors: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # name, type, text
    notes: list[tuple[float, Note]] = field(default_factory=list)
    notes_left_out: int = 0
    new_leaders: list[tuple[float, str, int]] = field(default_factory=list)  # s, partition, epoch
    members: list[Member] = field(default_factory=list)  # events of members of consumer groups

    @property
    def total(self) -> Second:
        """All seconds of the run, merged."""
        return merged(self.seconds.values())

    @property
    def troubles(self) -> list[tuple[float, Note]]:
        return [(at, note) for at, note in self.notes if note.is_trouble]


def merged(seconds: Iterable[Second]) -> Second:
    whole = Second()
    for second in seconds:
        whole.merge(second)
    return whole


def digest(entries: Iterable[AnyEntry]) -> Digest:
    """Condense a history. Reads ``entries`` once, in order."""
    reader = _Reader()
    for entry in entries:
        reader.take(entry)
    return reader.finish()


class _Reader:
    def __init__(self) -> None:
        self.result = Digest()
        self._base: int | None = None
        self._now = 0  # ns since the first entry
        self._open: dict[tuple[str, str, int], int] = {}  # operation, process, first: start
        self._faults: dict[int, FaultSpan] = {}
        self._epochs: dict[str, int] = {}
        self._take: dict[type[Entry], Callable[[Any], None]] = {
            Start: self._start,
            Append: self._append,
            Poll: self._poll,
            Ends: self._other,
            Delete: self._other,
            Admin: self._other,
            Commit: self._other,
            Committed: self._other,
            Member: self._member,
            Fault: self._fault,
            Phase: self._phase,
            Note: self._note,
        }

    def take(self, entry: AnyEntry) -> None:
        if self._base is None:
            self._base = self.result.base_ns = entry.time
        self._now = max(self._now, entry.time - self._base)
        self.result.entries += 1
        taker = self._take.get(type(entry))
        if taker is not None:
            taker(entry)

    def finish(self) -> Digest:
        result = self.result
        result.length_s = self._now / NS
        for phase in result.phases:
            phase.end_s = min(phase.end_s, result.length_s)
        for fault in result.faults:
            fault.end_s = min(fault.end_s, result.length_s)
        for name, _process, _first in self._open:
            result.unfinished[name] += 1
        return result

    @property
    def _at_s(self) -> float:
        return self._now / NS

    def _second(self) -> Second:
        number = self._now // NS
        second = self.result.seconds.get(number)
        if second is None:
            second = self.result.seconds[number] = Second()
        return second

    def _start(self, entry: Start) -> None:
        self.result.start = entry

    def _phase(self, entry: Phase) -> None:
        phases = self.result.phases
        if phases:
            phases[-1].end_s = self._at_s
        phases.append(PhaseSpan(entry.name, self._at_s, math.inf))

    def _note(self, entry: Note) -> None:
        if len(self.result.notes) < NOTES_MAX or entry.is_trouble:
            self.result.notes.append((self._at_s, entry))
        else:
            self.result.notes_left_out += 1

    # -- operations

    def _complete(
        self,
        name: str,
        entry: Append | Poll | Ends | Delete | Admin | Commit | Committed,
        first: int,
    ) -> int:
        """Count a completed operation. Returns its duration in ns; -1 without an invocation."""
        self.result.operations.setdefault(name, Counter())[entry.type] += 1
        if entry.error:
            errors = self.result.errors
            key = (name, str(entry.type), entry.error[:ERROR_CHARS_MAX])
            if key in errors or len(errors) < ERRORS_MAX:
                errors[key] += 1
        begun = self._open.pop((name, entry.process, first), None)
        return -1 if begun is None else self._now - begun

    def _append(self, entry: Append) -> None:
        if entry.type == "invoke":
            self._open["append", entry.process, entry.first] = self._now
            return
        took = self._complete("append", entry, entry.first)
        second = self._second()
        second.appends[entry.type] += 1
        for _first, count, _offset in entry.offsets:
            second.acked += count
        if took >= 0 and entry.type != "fail":
            histogram = second.ok if entry.type == "ok" else second.unknown
            number = bucket(took)
            histogram[number] = histogram.get(number, 0) + 1
            if entry.type == "ok" and took > second.longest_ns:
                second.longest_ns = took

    def _poll(self, entry: Poll) -> None:
        if entry.type == "invoke":
            self._open["poll", entry.process, 0] = self._now
            return
        self._complete("poll", entry, 0)
        for partition, runs in entry.records.items():
            if runs:
                self._second().read += sum(count for _offset, count, _value, _epoch in runs)
                self._epoch(partition, runs[-1][3])

    def _member(self, entry: Member) -> None:
        if len(self.result.members) < MEMBERS_MAX:
            self.result.members.append(entry)

    def _other(self, entry: Ends | Delete | Admin | Commit | Committed) -> None:
        name = type(entry).__name__.lower()
        if entry.type == "invoke":
            self._open[name, entry.process, 0] = self._now
        else:
            self._complete(name, entry, 0)

    def _epoch(self, partition: str, epoch: int) -> None:
        known = self._epochs.get(partition)
        if known is None or epoch > known:
            self._epochs[partition] = epoch
            if known is not None and len(self.result.new_leaders) < NEW_LEADERS_MAX:
                self.result.new_leaders.append((self._at_s, partition, epoch))

    # -- faults

    def _fault(self, entry: Fault) -> None:
        span = self._faults.get(entry.id)
        if entry.phase == "begin" or span is None:
            if span is None:
                span = FaultSpan(entry.id, entry.kind, self._at_s)
                self._faults[entry.id] = span
                self.result.faults.append(span)
            span.args = entry.args or span.args
            span.expects = entry.expects
            span.beyond = span.beyond or entry.budget == "beyond"
            if entry.type != "invoke":
                span.injected = entry.injected
                span.effect = entry.effect
                if not entry.injected:
                    span.end_s = self._at_s
        elif entry.type != "invoke":
            span.end_s = self._at_s if span.injected else span.end_s
            span.effect_end = entry.effect
            if not entry.injected:
                span.trouble_end = str(entry.effect.get("why", "no reason recorded"))
        span.targets = entry.targets or span.targets
