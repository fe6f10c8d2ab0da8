"""Arithmetic with runs and intervals of integers, whole columns at a time. Pure.

A run is a number of records that follow each other in offset and in value. Two runs agree where
they overlap if and only if their *shift*, value minus offset, is the same: a million records are
compared with as many subtractions as there are runs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

FAR: Final = 1 << 60  # above every offset, value and time
NO_INTS: Final[Ints] = np.zeros(0, np.int64)


class Table:
    """Rows of ``width`` integers that grow by appending."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.cells = array("q")

    def __len__(self) -> int:
        return len(self.cells) // self.width

    def add(self, row: Iterable[int]) -> None:
        """One row, or several of them one after the other."""
        self.cells.extend(row)

    def columns(self) -> tuple[Ints, ...]:
        """Views of the columns; the table must not grow as long as they are used."""
        cells: Ints = np.frombuffer(self.cells, np.int64) if self.cells else NO_INTS
        rows = cells.reshape(-1, self.width)
        return tuple(rows[:, column] for column in range(self.width))


@dataclass(frozen=True, slots=True)
class Pieces:
    """Where intervals overlap others. ``index``: of the one; ``other``: of the other."""

    index: Ints
    other: Ints
    start: Ints
    end: Ints


def overlaps(start: Ints, end: Ints, other_start: Ints, other_end: Ints) -> Pieces:
    """All overlaps of intervals with ``other`` ones, which are sorted, disjoint and not empty."""
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
    """A set of integers, kept as sorted, disjoint intervals that do not touch."""

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
        """How many members are below each limit."""
        if not len(self.start):
            return np.zeros(len(limit), np.int64)
        at = np.searchsorted(self.start, limit, "left") - 1
        inside = np.minimum(limit, self.end[at]) - self.start[at]
        return np.where(at >= 0, self._before[at] + inside, 0)

    def count(self, start: Ints, end: Ints) -> Ints:
        """How many members are in each of the intervals."""
        return self.below(end) - self.below(start)

    def holes(self) -> tuple[Ints, Ints]:
        """The intervals of all that is no member, from -FAR to FAR."""
        return np.concatenate(([-FAR], self.end)), np.concatenate((self.start, [FAR]))

    def both(self, other: Cover) -> Cover:
        """The members of both."""
        common = overlaps(self.start, self.end, other.start, other.end)
        return Cover(common.start, common.end)


@dataclass(frozen=True, slots=True)
class Runs:
    """Records that were seen in one partition, a row for each run. ``by``: what saw it (a number
    whose meaning is the owner's). An epoch below 0 is not known."""

    offset: Ints
    count: Ints
    value: Ints
    epoch: Ints
    by: Ints

    @staticmethod
    def of(table: Table, by: Ints | None = None) -> Runs:
        """What a table of offsets, counts, values and epochs says. Of a strange value, which is
        below 0, there is none that follows: each such record becomes a run by itself."""
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
        """The parts from offset ``start`` to ``end`` of the runs at ``index``."""
        whole = self.take(index)
        return Runs(start, end - start, whole.shift + start, whole.epoch, whole.by)

    def with_(self, other: Runs) -> Runs:
        """These, and then the others."""
        pairs = zip(self._columns(), other._columns(), strict=True)
        return Runs(*(np.concatenate(pair) for pair in pairs))

    def outside(self, cover: Cover) -> Runs:
        """The parts whose offsets are not in ``cover``."""
        pieces = overlaps(self.offset, self.end, *cover.holes())
        return self.cut(pieces.index, pieces.start, pieces.end)

    def above(self, limit: int) -> Runs:
        """The parts from offset ``limit`` on."""
        start = np.maximum(self.offset, limit)
        index = np.flatnonzero(start < self.end)
        return self.cut(index, start[index], self.end[index])

    def below(self, limit: int) -> Runs:
        """The parts below offset ``limit``."""
        end = np.minimum(self.end, limit)
        index = np.flatnonzero(self.offset < end)
        return self.cut(index, self.offset[index], end[index])

    def tell(self, place: int) -> str:
        offset, count, value = (int(c[place]) for c in (self.offset, self.count, self.value))
        if count == 1:
            return f"{value} at {offset}"
        return f"{value} to {value + count - 1} at {offset} to {offset + count - 1}"

    def _columns(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        return self.offset, self.count, self.value, self.epoch, self.by


NO_RUNS: Final = Runs(NO_INTS, NO_INTS, NO_INTS, NO_INTS, NO_INTS)


class Agreed(NamedTuple):
    """What sightings come to. ``runs``: sorted and disjoint. ``conflicts`` and ``epochs``: pairs of
    runs which overlap but have other values, or the same values under other epochs."""

    runs: Runs
    conflicts: list[tuple[Runs, Runs]]
    epochs: list[tuple[Runs, Runs]]


def agree(sightings: Runs) -> Agreed:
    """Lay runs over each other, whoever saw them; of two that overlap, the one with the lower first
    offset is believed. One sweep after sorting."""
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
    """Sorted by offset, longest first; what was seen twice is there once."""
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
    """For each place the greatest value before it; -FAR for the first."""
    before = np.full(len(values), -FAR, np.int64)
    if len(values) > 1:
        before[1:] = np.maximum.accumulate(values[:-1])
    return before
