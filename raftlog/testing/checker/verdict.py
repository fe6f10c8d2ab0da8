"""Verdict types: kinds of anomaly with their exact conditions, findings, and the verdict.

This module contains only the texts and types. The other modules of this package find the anomalies.
A run of consecutive records is one finding, independent of its length.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from raftlog.testing.checker import transactions

Valid: TypeAlias = Literal["valid", "invalid", "unknown"]
Found: TypeAlias = tuple[str, dict[str, Any]]  # a message, and evidence

SEVERITY: Final[Mapping[Valid, int]] = {"valid": 0, "unknown": 1, "invalid": 2}
EVIDENCE_MAX: Final = 20  # findings of one kind that are reported with evidence

TRANSACTIONS: Final = "TXN-"  # begins the kinds of ``checker.transactions``
UNSETTLED: Final = "TXN-UNSETTLED"

KINDS: Final[Mapping[str, str]] = {
    "LOST-tail": "an acknowledged value is not in the final log, which ends below its offset",
    "LOST-mid": "an acknowledged value is not in the final log, which has later offsets; or the "
    "log starts above the highest offset that a client deleted",
    "MOVED": "an acknowledged value is in the final log at another offset than acknowledged",
    "DUPLICATE": "a value of an idempotent producer is at two offsets",
    "G1A": "a reader received a value whose append certainly failed",
    "PHANTOM": "a reader received a value that no client sent to that partition",
    "NONMONOTONIC-SEND": "an idempotent producer's acknowledged appends are not in its order",
    "INT-NONMONOTONIC-SEND": "within one append of an idempotent producer, values are not in order",
    "REALTIME-ORDER": "a value was acknowledged before another with a lower offset was sent, also "
    "if the outcome of that one is unknown",
    "OBSERVED-THEN-LOST": "a value that a consumer received is not in the final log",
    "INCONSISTENT-OFFSET": "two values were read, or acknowledged, at one offset",
    "INT-POLL-SKIP": "within one poll, a record is missing",
    "INT-NONMONOTONIC-POLL": "within one poll, the offsets of a partition do not increase",
    "POLL-SKIP": "a record is missing between two polls of one consumer, or before its first",
    "NONMONOTONIC-POLL": "a poll returned an offset below the consumer's position",
    "STALE-READ": "a consumer received no records, long after a record at or above its position "
    "was acknowledged and after the last fault had ended",
    "HW-REGRESSION": "an end offset is lower than one that was known before the request",
    "GAP": "offsets are missing in a log above its start",
    "EPOCH-ORDER": "leader epochs decrease with increasing offsets, or differ for one record, or "
    "one epoch has two values at an offset",
    "REPLICA-DIVERGENCE": "a replica's log differs from the final log below its end",
    "DAMAGED-REPLICA": "a replica's files were corrupt at the end of the run",
    "STUCK": "after all faults were healed, a replica or a reader did not reach the end",
    "RESURRECTED": "a value acknowledged before its topic was deleted is in the topic that "
    "was created afterwards; or the log starts below an offset that a client deleted up to",
    "GROUP-OFFSET-LOST": "a lower offset was returned than the one that a group had committed, or "
    "than one that was returned before; or a member started below it",
    "GROUP-OFFSET-PHANTOM": "an offset was returned as committed that no client tried to commit",
    "GROUP-OFFSET-AHEAD": "an offset was returned as committed beyond the end of the partition",
    "GROUP-OFFSET-ZERO": "no offset, or 0, was returned as committed after another was stored",
    "GROUP-SKIPPED": "a record below what a group has committed was processed by none of its "
    "members",
    "GROUP-UNDELIVERED": "a record was delivered to no member of a group, though later ones were",
    "GROUP-TWO-OWNERS": "two members of a group owned a partition at the same time, and commits of "
    "both were accepted, or both were running for longer than the detection time, or the second "
    "received it before the first was asked to release it; on exact clocks, the first polled or "
    "committed after the second had received it",
    "GROUP-COMMIT-BACKWARD": "a commit was accepted below one that another member, or the same, "
    "had made since the partition was assigned to the committer",
    "GROUP-STUCK": "after all faults were healed, the members of a group did not reach the end",
    "COMPACT-LOST-KEY": "the last acknowledged record of a key is missing in a compacted topic, "
    "and no later record has that key",
    "COMPACT-RESURRECTED": "a key has a value again, older than the acknowledged record that "
    "deleted it",
    "COMPACT-MOVED": "in a compacted topic, an acknowledged record is at another offset",
    "UNAVAILABLE": "no append was acknowledged for too long, or less than half of those sent, "
    "though the faults at that time should not have prevented it",
    **{f"{TRANSACTIONS}{kind}": text for kind, text in transactions.KINDS.items()},
    UNSETTLED: "after all faults were healed, a transaction stayed open, or the workers of a group "
    "did not reach the end",
}


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding.

    ``evidence``: the partition, offsets, values, operations (with their lines in the history, from
    1) and replicas that belong to it; ready for JSON.
    """

    kind: str
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A time without an acknowledgement while at least one client waited for one.

    Times in ns of the history's clock. ``unexcused_ns``: the part of it that no fault excuses.
    ``faults``: the kinds that were active.
    """

    start_ns: int
    length_ns: int
    unexcused_ns: int
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict on one history.

    ``counts``: findings by kind, with every kind. ``anomalies``: the first ``EVIDENCE_MAX`` of each
    kind. ``troubles``: reasons why the verdict is uncertain. ``not_injected``: faults that had no
    effect. ``not_applicable``: kinds that were not checked, each with the reason.
    """

    valid: Valid
    counts: Mapping[str, int]
    anomalies: tuple[Anomaly, ...] = ()
    stats: Mapping[str, Any] = field(default_factory=dict)
    outages: tuple[Outage, ...] = ()
    troubles: tuple[str, ...] = ()
    not_injected: tuple[Mapping[str, Any], ...] = ()
    not_applicable: Mapping[str, str] = field(default_factory=dict)

    @property
    def kinds(self) -> frozenset[str]:
        """Return the kinds that were found."""
        return frozenset(kind for kind, count in self.counts.items() if count)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of verdict.json."""
        return asdict(self)


class Findings:
    """Collector of findings, with evidence for the first of each kind.

    ``not_applicable``: kinds that do not count for the verdict, each with the reason.
    """

    def __init__(
        self,
        not_applicable: Mapping[str, str] | None = None,
        evidence_max: int = EVIDENCE_MAX,
    ) -> None:
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.set_aside: dict[str, int] = {}
        self.anomalies: list[Anomaly] = []
        self.not_applicable = dict(not_applicable or {})
        self.evidence_max = evidence_max

    def add(self, kind: str, message: str, **evidence: Any) -> None:
        self.each(kind, (0,), lambda _: (message, evidence))

    def each(self, kind: str, places: Iterable[Any], describe: Callable[[int], Found]) -> None:
        """Add a finding for each of ``places`` (numbers). Calls ``describe`` only for the first
        ones."""
        for place in places:
            if kind in self.not_applicable:
                self.set_aside[kind] = self.set_aside.get(kind, 0) + 1
                continue
            self.counts[kind] += 1
            if self.counts[kind] <= self.evidence_max:
                message, evidence = describe(int(place))
                self.anomalies.append(Anomaly(kind, message, evidence))


def judged(counts: Mapping[str, int], troubles: Iterable[str]) -> Valid:
    """Return the verdict for these findings and troubles."""
    if any(counts.values()):
        return "invalid"
    return "unknown" if any(True for _ in troubles) else "valid"


def merge(verdicts: Iterable[Verdict]) -> Verdict:
    """Merge verdicts on the same run: the worst verdict, with all findings.

    If two verdicts have a statistic of the same name, the later one is kept. Without verdicts the
    result is unknown.
    """
    several = list(verdicts)
    counts = dict.fromkeys(KINDS, 0)
    for verdict in several:
        for kind, count in verdict.counts.items():
            counts[kind] = counts.get(kind, 0) + count
    return Verdict(
        valid=max((v.valid for v in several), key=SEVERITY.__getitem__, default="unknown"),
        counts=counts,
        anomalies=tuple(anomaly for v in several for anomaly in v.anomalies),
        stats={name: stat for v in several for name, stat in v.stats.items()},
        outages=tuple(outage for v in several for outage in v.outages),
        troubles=tuple(trouble for v in several for trouble in v.troubles),
        not_injected=tuple(fault for v in several for fault in v.not_injected),
        not_applicable={kind: why for v in several for kind, why in v.not_applicable.items()},
    )


# -- runs ------------------------------------------------------------------------------------------
#
# Arithmetic with runs and intervals of integers, for complete columns. Pure.
#
# A run is a number of records with consecutive offsets and values. Two runs agree where they
# overlap if and only if their *shift*, value minus offset, is the same: a million records are
# compared with one subtraction per run.


Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

FAR: Final = 1 << 60  # above every offset, value and time
NO_INTS: Final[Ints] = np.zeros(0, np.int64)


class Table:
    """Rows of ``width`` integers; only appended to."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.cells = array("q")

    def __len__(self) -> int:
        return len(self.cells) // self.width

    def add(self, row: Iterable[int]) -> None:
        """Append one row, or several rows one after the other."""
        self.cells.extend(row)

    def columns(self) -> tuple[Ints, ...]:
        """Return views of the columns. The table must not grow while they are used."""
        cells: Ints = np.frombuffer(self.cells, np.int64) if self.cells else NO_INTS
        rows = cells.reshape(-1, self.width)
        return tuple(rows[:, column] for column in range(self.width))


@dataclass(frozen=True, slots=True)
class Pieces:
    """Overlaps of intervals. ``index``: row of the first; ``other``: row of the second."""

    index: Ints
    other: Ints
    start: Ints
    end: Ints


def overlaps(start: Ints, end: Ints, other_start: Ints, other_end: Ints) -> Pieces:
    """Return all overlaps of intervals with ``other`` ones, which are sorted, disjoint and not
    empty."""
    low = np.searchsorted(other_end, start, "right")
    high = np.searchsorted(other_start, end, "left")
    many = np.where(end > start, np.maximum(high - low, 0), 0)
    index = np.repeat(np.arange(len(start)), many)
    within = np.arange(len(index)) - np.repeat(np.cumsum(many) - many, many)
    other = np.repeat(low, many) + within
    return Pieces(
        index,
        other,
        np.maximum(start[index], other_start[other]),
        np.minimum(end[index], other_end[other]),
    )


class Cover:
    """A set of integers, stored as sorted, disjoint intervals that are not adjacent."""

    def __init__(self, start: Ints, end: Ints) -> None:
        is_real = end > start
        order = np.argsort(start[is_real], kind="stable")
        start = start[is_real][order]
        end = np.maximum.accumulate(end[is_real][order]) if len(order) else NO_INTS
        is_fresh = start[1:] > end[:-1]
        ones = np.ones(min(len(start), 1), np.bool_)
        self.start: Ints = start[np.concatenate((ones, is_fresh))]
        self.end: Ints = end[np.concatenate((is_fresh, ones))]
        self._before = np.concatenate(([0], np.cumsum(self.end - self.start)))

    def below(self, limit: Ints) -> Ints:
        """Return the number of members below each limit."""
        if not len(self.start):
            return np.zeros(len(limit), np.int64)
        at = np.searchsorted(self.start, limit, "left") - 1
        inside = np.minimum(limit, self.end[at]) - self.start[at]
        return np.where(at >= 0, self._before[at] + inside, 0)

    def count(self, start: Ints, end: Ints) -> Ints:
        """Return the number of members in each of the intervals."""
        return self.below(end) - self.below(start)

    def holes(self) -> tuple[Ints, Ints]:
        """Return the intervals of all non-members, from -FAR to FAR."""
        return np.concatenate(([-FAR], self.end)), np.concatenate((self.start, [FAR]))

    def both(self, other: Cover) -> Cover:
        """Return the intersection."""
        common = overlaps(self.start, self.end, other.start, other.end)
        return Cover(common.start, common.end)


@dataclass(frozen=True, slots=True)
class Runs:
    """Records that were observed in one partition, a row for each run. ``by``: the observer, a
    number defined by the owner. An epoch below 0 is unknown."""

    offset: Ints
    count: Ints
    value: Ints
    epoch: Ints
    by: Ints

    @staticmethod
    def of(table: Table, by: Ints | None = None) -> Runs:
        """Create runs from a table of offsets, counts, values and epochs. A foreign value, which is
        below 0, has no successor: each such record becomes a separate run."""
        seen_by = np.zeros(len(table), np.int64) if by is None else by
        runs = Runs(*(*table.columns(), seen_by))
        many = np.where(runs.value < 0, runs.count, 1)
        if bool(np.all(many == 1)):
            return runs
        runs = runs.take(np.repeat(np.arange(len(runs)), many))
        within = np.arange(len(runs)) - np.repeat(np.cumsum(many) - many, many)
        one = np.ones(len(runs), np.int64)
        is_strange = runs.value < 0
        return Runs(
            runs.offset + within,
            np.where(is_strange, one, runs.count),
            runs.value,
            runs.epoch,
            runs.by,
        )

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def end(self) -> Ints:
        return self.offset + self.count

    @property
    def shift(self) -> Ints:
        return self.value - self.offset

    def take(self, which: Ints | Bools) -> Runs:
        return Runs(*(column[which] for column in self._columns()))

    def cut(self, index: Ints, start: Ints, end: Ints) -> Runs:
        """Return the parts from offset ``start`` to ``end`` of the runs at ``index``."""
        whole = self.take(index)
        return Runs(start, end - start, whole.shift + start, whole.epoch, whole.by)

    def with_(self, other: Runs) -> Runs:
        """Return these runs, followed by the others."""
        pairs = zip(self._columns(), other._columns(), strict=True)
        return Runs(*(np.concatenate(pair) for pair in pairs))

    def outside(self, cover: Cover) -> Runs:
        """Return the parts whose offsets are not in ``cover``."""
        pieces = overlaps(self.offset, self.end, *cover.holes())
        return self.cut(pieces.index, pieces.start, pieces.end)

    def above(self, limit: int) -> Runs:
        """Return the parts from offset ``limit`` on."""
        start = np.maximum(self.offset, limit)
        index = np.flatnonzero(start < self.end)
        return self.cut(index, start[index], self.end[index])

    def below(self, limit: int) -> Runs:
        """Return the parts below offset ``limit``."""
        end = np.minimum(self.end, limit)
        index = np.flatnonzero(self.offset < end)
        return self.cut(index, self.offset[index], end[index])

    def describe(self, place: int) -> str:
        offset, count, value = (int(c[place]) for c in (self.offset, self.count, self.value))
        if count == 1:
            return f"{value} at {offset}"
        return f"{value} to {value + count - 1} at {offset} to {offset + count - 1}"

    def _columns(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        return self.offset, self.count, self.value, self.epoch, self.by


NO_RUNS: Final = Runs(NO_INTS, NO_INTS, NO_INTS, NO_INTS, NO_INTS)


class Agreed(NamedTuple):
    """Result of merging observations. ``runs``: sorted and disjoint. ``conflicts`` and ``epochs``:
    pairs of overlapping runs with different values, or with the same values and different epochs.
    """

    runs: Runs
    conflicts: list[tuple[Runs, Runs]]
    epochs: list[tuple[Runs, Runs]]


def agree(sightings: Runs) -> Agreed:
    """Merge runs of all observers; of two that overlap, the one with the lower first offset is
    used. One sweep after sorting."""
    runs = distinct(sightings)
    if not len(runs) or bool(np.all(runs.offset[1:] >= runs.end[:-1])):
        return Agreed(runs, [], [])
    conflicts: list[tuple[int, int]] = []
    epochs: list[tuple[int, int]] = []
    kept: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    offset, end = runs.offset.tolist(), runs.end.tolist()
    shift, epoch = runs.shift.tolist(), runs.epoch.tolist()
    for row in range(len(runs)):
        back = len(kept) - 1
        while back >= 0 and ends[back] > offset[row]:
            one = kept[back]
            if starts[back] >= end[row]:
                pass
            elif shift[one] != shift[row]:
                conflicts.append((one, row))
            elif epoch[one] != epoch[row] and epoch[one] >= 0 and epoch[row] >= 0:
                epochs.append((one, row))
            back -= 1
        start = max(offset[row], ends[-1]) if kept else offset[row]
        if start < end[row]:
            kept.append(row)
            starts.append(start)
            ends.append(end[row])
    agreed = runs.cut(*(np.array(column, np.int64) for column in (kept, starts, ends)))
    return Agreed(agreed, _pairs(runs, conflicts), _pairs(runs, epochs))


def distinct(runs: Runs) -> Runs:
    """Return runs sorted by offset, longest first, without duplicates."""
    order = np.lexsort((runs.epoch, runs.value, -runs.count, runs.offset))
    runs = runs.take(order)
    is_new = np.ones(len(runs), np.bool_)
    if len(runs) > 1:
        is_new[1:] = (
            (runs.offset[1:] != runs.offset[:-1])
            | (runs.count[1:] != runs.count[:-1])
            | (runs.value[1:] != runs.value[:-1])
            | (runs.epoch[1:] != runs.epoch[:-1])
        )
    return runs.take(is_new)


def _pairs(runs: Runs, rows: list[tuple[int, int]]) -> list[tuple[Runs, Runs]]:
    def one(row: int) -> Runs:
        return runs.take(np.array([row]))

    return [(one(a), one(b)) for a, b in rows]


def running_max(values: Ints) -> Ints:
    """Return for each place the greatest value before it; -FAR for the first."""
    before = np.full(len(values), -FAR, np.int64)
    if len(values) > 1:
        before[1:] = np.maximum.accumulate(values[:-1])
    return before
