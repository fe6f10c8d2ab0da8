"""All data of one partition for the checks, as columns. Pure.

Built once from the gathered entries; the checks only read it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raftlog.testing.checker.gather import FAIL, NEVER, OK, SECOND, Change, FaultSpan, Gathered
from raftlog.testing.checker.verdict import Bools, Cover, Ints, Runs, overlaps


@dataclass(frozen=True, slots=True)
class Appends:
    """A row for each append. ``life``: of the topic, see ``lifetimes``."""

    names: Sequence[str]
    process: Ints
    first: Ints
    count: Ints
    acks: Ints
    idempotent: Ints
    invoked: Ints
    completed: Ints
    outcome: Ints
    line: Ints
    last_line: Ints
    life: Ints

    def describe(self, row: int) -> dict[str, Any]:
        """Return the row as evidence."""
        return {
            "f": "append",
            "process": self.names[int(self.process[row])],
            "first": int(self.first[row]),
            "count": int(self.count[row]),
            "lines": _lines(self.line[row], self.last_line[row]),
        }


@dataclass(frozen=True, slots=True)
class Polls:
    """A row for each completed poll of the whole run."""

    names: Sequence[str]
    session: Ints
    invoked: Ints
    completed: Ints
    line: Ints
    last_line: Ints
    resets_to_latest: Ints

    def session_began(self) -> Ints:
        """Return for each poll when its consumer polled first, in ns.

        The returned records may have been fetched at any time since then.
        """
        began = np.full(int(self.session.max(initial=-1)) + 1, NEVER, np.int64)
        np.minimum.at(began, self.session, self.invoked)
        return began[self.session]

    def describe(self, row: int) -> dict[str, Any]:
        """Return the row as evidence."""
        return {
            "f": "poll",
            "process": self.names[int(self.session[row])],
            "lines": _lines(self.line[row], self.last_line[row]),
        }

    def who(self, row: int) -> str:
        return self.names[int(self.session[row])]


@dataclass(frozen=True, slots=True)
class Log:
    """The final log: the records of the reader that reached the highest offset. ``runs`` are sorted
    and disjoint; ``values`` contains all their values."""

    start: int
    end: int
    runs: Runs
    values: Cover
    offsets: Cover

    @staticmethod
    def of(start: int, end: int, runs: Runs) -> Log:
        values = Cover(runs.value, runs.value + runs.count)
        return Log(start, end, runs, values, Cover(runs.offset, runs.end))


class Partition:
    """All data of one partition.

    ``acked``: acknowledged runs; ``by`` is the row of their append. ``seen``: results of polls in
    their order; ``by`` is the row of the poll, ``seen_life`` the life of the topic. ``log`` is set
    by the first of the checks; None if no reader read the partition at the end. ``is_shortened``:
    the settings of the topic allow brokers to delete records. ``is_compacted``: they allow brokers
    to remove superseded records; ``keys``: number of keys, 0 if unknown; ``keeps_tombstones``: the
    run is too short for a tombstone to be removed. ``beyond_since``: start of the first fault that
    exceeded the guarantees of the cluster, in ns. ``durable_acks``: the values of ``acks`` whose
    acknowledgement guarantees that the record remains.
    """

    def __init__(
        self,
        gathered: Gathered,
        *,
        names: Sequence[str],
        polls: Polls,
        lifetimes: Lifetimes,
        is_shortened: bool = False,
        is_compacted: bool = False,
        keys: int = 0,
        keeps_tombstones: bool = False,
        beyond_since: int = NEVER,
        durable_acks: Collection[int] = (-1,),
    ) -> None:
        self.gathered = gathered
        self.name = gathered.name
        self.polls = polls
        self.lifetimes = lifetimes
        self.is_shortened = is_shortened
        self.is_compacted = is_compacted
        self.keys = keys if is_compacted else 0
        self.keeps_tombstones = keeps_tombstones
        self.durable_acks = list(durable_acks)
        self.beyond_since = beyond_since
        self.log: Log | None = None
        self._odd: Runs | None = None  # see ``odd``
        columns = gathered.appends.columns()
        life = lifetimes.at(columns[5], columns[6])
        self.appends = Appends(names, *(*columns, life))
        row, first, count, offset = gathered.acked.columns()
        self.acked = Runs(offset, count, first, np.full(len(row), -1, np.int64), row)
        self.acked_life = life[row]
        self.seen = Runs.of(gathered.seen, gathered.seen_by.columns()[0])
        by = self.seen.by
        self.seen_life = (
            lifetimes.seen_at(polls.session_began()[by], polls.completed[by])
            if lifetimes.last
            else np.zeros(len(by), np.int64)
        )
        self.sent = Cover(self.appends.first, self.appends.first + self.appends.count)
        self.failed = self._failed()
        mine = self.appends.idempotent != 0
        self.idempotent = Cover(
            self.appends.first[mine], self.appends.first[mine] + self.appends.count[mine]
        )

    def _failed(self) -> Cover:
        """The values whose appends certainly failed."""
        failed = self.appends.outcome == FAIL
        first = self.appends.first[failed]
        kept = Cover(self.acked.value, self.acked.value + self.acked.count)
        holes = Cover(*kept.holes())
        return Cover(first, first + self.appends.count[failed]).both(holes)

    # -- records that may be missing

    @property
    def deleted_below(self) -> int:
        """Offset below which records may have been deleted by request, in the topic's last life."""
        return max((c.before for c in self._deletions()), default=0)

    @property
    def certainly_deleted_below(self) -> int:
        """Offset below which all records were deleted by request, in the topic's last life."""
        done = [change for change in self.gathered.deletions if change.outcome == OK]
        times = [[change.invoked, change.completed] for change in done]
        life = self.lifetimes.at(*np.array(times, np.int64).reshape(-1, 2).T)
        mine = np.array([change.before for change in done], np.int64)[life == self.lifetimes.last]
        return int(mine.max(initial=0))

    @property
    def gone_below(self) -> int:
        """Offset below which records may be missing for any legitimate reason, in the topic's last
        life."""
        below = self.deleted_below
        return max(below, self.log.start) if self.is_shortened and self.log else below

    def deleted_by(self, times: Ints, *, in_any_life: bool = False) -> Ints:
        """Return the offset below which records may have been deleted at each of these times, in
        ns. ``in_any_life``: also by deletions of records of a deleted topic."""
        found = self.gathered.deletions if in_any_life else self._deletions()
        changes = sorted(found, key=lambda change: change.invoked)
        invoked = np.array([change.invoked for change in changes], np.int64)
        before = np.array([0, *(change.before for change in changes)], np.int64)
        return np.maximum.accumulate(before)[np.searchsorted(invoked, times, "right")]

    def _deletions(self) -> list[Any]:
        return [
            change
            for change in self.gathered.deletions
            if change.outcome != FAIL and change.completed >= self.lifetimes.began
        ]

    # -- records

    @property
    def promised(self) -> Runs:
        """Records acknowledged in the topic's last life with the guarantee that they remain."""
        is_kept = np.isin(self.appends.acks[self.acked.by], self.durable_acks)
        return self.acked.take(is_kept & (self.acked_life == self.lifetimes.last))

    def odd(self) -> Runs:
        """Poll results of the topic's last life that are not identical in the final log: the few
        that need further checks."""
        if self._odd is None:
            polled = self.seen.take(self.seen_life == self.lifetimes.last)
            self._odd = polled.take(~self._is_there(polled))
        return self._odd

    def survivors(self, runs: Runs) -> Runs:
        """Return the runs that are completely in the final log at their offsets."""
        return runs.take(self._is_there(runs))

    def _is_there(self, runs: Runs) -> Bools:
        if self.log is None:
            return np.zeros(len(runs), np.bool_)
        log = self.log.runs
        pieces = overlaps(runs.offset, runs.end, log.offset, log.end)
        mine, final = runs.epoch[pieces.index], log.epoch[pieces.other]
        same = runs.shift[pieces.index] == log.shift[pieces.other]
        same &= (mine == final) | (mine < 0) | (final < 0)
        length = np.where(same, pieces.end - pieces.start, 0)
        found: Bools = np.bincount(pieces.index, length, len(runs)) == runs.count
        return found

    def acked_by(self, times: Ints, runs: Runs) -> Ints:
        """Return the end offset that the acknowledgements of ``runs`` before each time imply."""
        completed = self.appends.completed[runs.by]
        order = np.argsort(completed, kind="stable")
        known = np.maximum.accumulate(np.append(0, runs.end[order]))
        return known[np.searchsorted(completed[order], times, "left")]

    def is_missed(self) -> bool:
        """Return whether records were acknowledged in the last life, and the partition was not read
        at the end."""
        if self.log is not None:
            return False
        acked = self.acked_life == self.lifetimes.last
        tried = (self.appends.life == self.lifetimes.last) & (self.appends.outcome != FAIL)
        return bool(acked.any()) or (self.lifetimes.last == 0 and bool(tried.any()))

    def ok_appends(self) -> int:
        return int((self.appends.outcome == OK).sum())


def _lines(first: Any, last: Any) -> list[int]:
    return [int(first)] if last == 0 else [int(first), int(last)]


# -- lifetimes -------------------------------------------------------------------------------------
#
# The lives of a topic: before and after a deletion there are different logs. Pure.
#
# A deletion takes effect between its invocation and its *cut*. An operation that completed before
# the invocation belongs to the earlier life, one that was invoked after the cut to the later life.
# For others the life is unknown.
#
# Reads are less certain: a broker that does not know of the deletion yet can still respond to
# consumers, and under faults this can take long. For reads, a deletion is *visible* when it was cut
# and then no fault was active for some time.


UNCLEAR = -1  # the operation cannot be assigned to a life


class Lifetimes:
    """Lives of one topic. ``invoked``, ``cut`` and ``visible``: for each deletion, in the order of
    their invocations.

    ``lag_ns``: required time without a fault.
    """

    def __init__(
        self,
        changes: Iterable[Change] = (),
        faults: Iterable[FaultSpan] = (),
        lag_ns: int = 10 * SECOND,
    ) -> None:
        ordered = sorted(changes, key=lambda change: change.invoked)
        deletions = [c for c in ordered if c.what == "delete" and c.outcome != FAIL]
        cuts = [_cut(change, ordered) for change in deletions]
        harmful = sorted((f.begun, f.ended) for f in faults if f.is_harmful)
        self.invoked: Ints = np.array([change.invoked for change in deletions], np.int64)
        self.cut: Ints = np.array(cuts, np.int64)
        self.visible: Ints = np.array([_visible(cut, harmful, lag_ns) for cut in cuts], np.int64)

    @property
    def last(self) -> int:
        """The number of the topic's life at the end; the first one is 0."""
        return len(self.invoked)

    @property
    def is_clear(self) -> bool:
        """Whether the start of the last life is known."""
        return bool(np.all(self.cut < NEVER))

    @property
    def began(self) -> int:
        """Earliest possible start of the last life, in ns; 0 if the topic has only one."""
        return int(self.invoked[-1]) if len(self.invoked) else 0

    def at(self, invoked: Ints, completed: Ints) -> Ints:
        """Return the life that each change of the log belongs to, or ``UNCLEAR``."""
        return self._at(invoked, completed, self.cut)

    def seen_at(self, invoked: Ints, completed: Ints) -> Ints:
        """Return the life that each reading operation observed, or ``UNCLEAR``."""
        return self._at(invoked, completed, self.visible)

    def _at(self, invoked: Ints, completed: Ints, ends: Ints) -> Ints:
        if not len(self.invoked):
            return np.zeros(len(invoked), np.int64)
        over = np.searchsorted(np.sort(ends), invoked, "left")
        begun = np.searchsorted(self.invoked, completed, "right")
        return np.where(begun > over, UNCLEAR, over)


def _cut(deletion: Change, changes: Sequence[Change]) -> int:
    """Return when it had certainly taken effect. A deletion with an unknown outcome has, once the
    topic is created or deleted again; otherwise ``NEVER``."""
    if deletion.outcome == OK:
        return deletion.completed
    later = [
        change.completed
        for change in changes
        if change.invoked > deletion.invoked
        and change.outcome == OK
        and change.what in {"create", "delete"}
    ]
    return min(later, default=NEVER)


def _visible(cut: int, faults: Sequence[tuple[int, int]], lag_ns: int) -> int:
    """Return when the deletion is visible. ``faults``: start and end of each, in order."""
    quiet_since = cut
    for begun, ended in faults:
        if begun < quiet_since + lag_ns and ended > quiet_since:
            quiet_since = ended
    return min(quiet_since + lag_ns, NEVER)
