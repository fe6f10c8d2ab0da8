"""Checks compacted topics: the last record of each key exists, and no other record is missing.
Pure.

A record may be removed once a later record has the same key; a tombstone also some time after the
records that it deleted. For every acknowledged record that is not in a copy of the log, one of two
conditions must hold: a later record of its key is in the copy, or the key is deleted and has no
record there. Keys and tombstones follow from values (``keys``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raftlog.testing.checker.gather import FAIL, Copy
from raftlog.testing.checker.partition import Partition
from raftlog.testing.checker.runs import FAR, NO_INTS, Bools, Ints, Runs, agree
from raftlog.testing.checker.verdict import Findings, Found
from raftlog.testing.history import keys

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class State:
    """State of a copy of the log: for each key, the offset of its last record and whether that
    deletes it; ``NOWHERE`` if there is none."""

    last: Ints
    is_deleted: Bools

    @staticmethod
    def of(runs: Runs, count: int) -> State:
        """Compute the state. ``runs`` of the copy, by increasing offset; ``count`` of keys."""
        offset, value = _records(runs)
        last = np.full(count, NOWHERE, np.int64)
        is_deleted = np.zeros(count, np.bool_)
        key = keys.keys_of(value, count)
        last[key] = offset  # of several assignments to one index the last one counts
        is_deleted[key] = keys.are_tombstones(value)
        return State(last, is_deleted)


class Deletions:
    """The last possible deletion of each key. A tombstone with an unknown outcome, or one whose
    acknowledgement guarantees nothing, may be at any later offset."""

    def __init__(self, partition: Partition) -> None:
        count = partition.keys
        self.last = np.full(count, NOWHERE, np.int64)
        appends = partition.appends
        offset, value = _records(partition.promised)
        is_tombstone = keys.are_tombstones(value)
        offset, value = offset[is_tombstone], value[is_tombstone]
        np.maximum.at(self.last, keys.keys_of(value, count), offset)
        unknown = appends.outcome != FAIL
        first, many = appends.first[unknown], appends.count[unknown]
        tried = _spread(first, many)
        tried = tried[keys.are_tombstones(tried)]
        tried = np.setdiff1d(tried, value)
        self.last[keys.keys_of(tried, count)] = FAR


def may_be_gone(partition: Partition, records: Runs, state: State, deletions: Deletions) -> Bools:
    """Return for each of these single records whether a copy with ``state`` may lack it."""
    offset, value = records.offset, records.value
    key = keys.keys_of(value, partition.keys)
    there, is_behind = state.last[key], state.last[key] > offset
    if partition.keeps_tombstones:
        return is_behind
    is_deleting = keys.are_tombstones(value)
    deleted = deletions.last[key] > offset
    found: Bools = is_behind | ((there < partition.gone_below) & (is_deleting | deleted))
    return found


def lasting(partition: Partition) -> Ints:
    """Return the offsets of the final log, ascending, that every reader must receive: the last
    record of each key that is not deleted. Empty if the keys of the topic are unknown.

    A superseded record can be in the log of one replica, and removed on another.
    """
    if partition.log is None or not partition.keys:
        return NO_INTS
    state = State.of(partition.log.runs, partition.keys)
    return np.sort(state.last[(state.last != NOWHERE) & ~state.is_deleted])


def not_superseded(partition: Partition, missing: Runs) -> Runs:
    """Return the records that the final log must contain: all of them, unless the topic is
    compacted."""
    if not partition.is_compacted or not len(missing) or partition.log is None:
        return missing
    if not partition.keys:  # it is unknown which records have one key
        return missing.above(partition.log.end)
    records, state = _each(missing), State.of(partition.log.runs, partition.keys)
    return records.take(~may_be_gone(partition, records, state, Deletions(partition)))


def check_compaction(partition: Partition, findings: Findings) -> None:
    """Report COMPACT-LOST-KEY, COMPACT-RESURRECTED and COMPACT-MOVED, in every copy that should be
    complete: of readers and of replicas."""
    readers = [copy for copy in partition.gathered.readers.values() if copy.is_complete]
    dumps = [
        copy
        for copy in partition.gathered.dumps.values()
        if copy.should_be_whole and not copy.problem
    ]
    if not partition.keys or partition.log is None:
        return
    promised, deletions = _each(partition.promised), Deletions(partition)
    for copy in (*readers, *dumps):
        _copy(partition, copy, promised, deletions, findings)


def _copy(
    partition: Partition, copy: Copy, promised: Runs, deletions: Deletions, findings: Findings
) -> None:
    """Check one copy. ``promised``: acknowledged records, one by one."""
    runs = agree(Runs.of(copy.records)).runs
    offset, value = promised.offset, promised.value
    there = np.searchsorted(runs.end, offset, "right")
    place = np.minimum(there, max(len(runs) - 1, 0))
    if len(runs):
        is_there = (there < len(runs)) & (runs.offset[place] <= offset)
        is_there &= runs.shift[place] == value - offset
    else:
        is_there = np.zeros(len(offset), np.bool_)
    _moved(partition, copy, runs, promised.take(~is_there), findings)
    # Other checks report records above its end.
    missing = promised.take(~is_there & (offset < copy.end) & (offset >= partition.gone_below))
    state = State.of(runs, partition.keys)
    missing = missing.take(~may_be_gone(partition, missing, state, deletions))
    if len(missing):
        _missing(partition, copy, missing, state, findings)


def _missing(
    partition: Partition, copy: Copy, missing: Runs, state: State, findings: Findings
) -> None:
    key = keys.keys_of(missing.value, partition.keys)
    is_dead = keys.are_tombstones(missing.value)
    last = _last_of_each(key, missing.offset)
    is_back = is_dead & (state.last[key] >= 0) & ~state.is_deleted[key] & last
    is_gone = state.is_deleted[key] | (partition.keeps_tombstones & (state.last[key] == NOWHERE))
    is_lost = last & (~is_dead | is_gone)  # replaced by an older tombstone, or by nothing

    def describe(row: int) -> Found:
        which = int(key[row])
        now = int(state.last[which])
        has = f"its last record there is at {now}" if now >= 0 else "it has no record there"
        message = (
            f"{partition.name}, {copy.who}: key {which}: {missing.describe(row)} was "
            f"acknowledged, and "
            f"{has}"
        )
        return (
            message,
            {
                "partition": partition.name,
                "key": which,
                "offsets": [int(missing.offset[row]), now],
                "values": [int(missing.value[row])],
                "operations": [partition.appends.describe(int(missing.by[row]))],
                "replicas": [copy.who],
            },
        )

    findings.each("COMPACT-LOST-KEY", np.flatnonzero(is_lost), describe)
    findings.each("COMPACT-RESURRECTED", np.flatnonzero(is_back), describe)


def _moved(partition: Partition, copy: Copy, runs: Runs, missing: Runs, findings: Findings) -> None:
    """Report acknowledged values that the copy has at another offset."""
    offset, value = _records(runs)
    order = np.argsort(value, kind="stable")
    offset, value = offset[order], value[order]
    place = np.searchsorted(value, missing.value, "left")
    inside = np.minimum(place, max(len(value) - 1, 0))
    if not len(value):
        return
    is_moved = (place < len(value)) & (value[inside] == missing.value)

    def describe(row: int) -> Found:
        now = int(offset[inside[row]])
        return (
            (
                f"{partition.name}, {copy.who}: {missing.describe(row)} was acknowledged, and "
                f"is at {now}"
            ),
            {
                "partition": partition.name,
                "offsets": [int(missing.offset[row]), now],
                "operations": [partition.appends.describe(int(missing.by[row]))],
                "replicas": [copy.who],
            },
        )

    findings.each("COMPACT-MOVED", np.flatnonzero(is_moved), describe)


# -- runs as single records ------------------------------------------------------------------------


def _spread(first: Ints, count: Ints) -> Ints:
    """Return first, first + 1, ... of each row."""
    if not len(first):
        return NO_INTS
    starts = np.repeat(first - (np.cumsum(count) - count), count)
    return starts + np.arange(int(count.sum()))


def _records(runs: Runs) -> tuple[Ints, Ints]:
    """Return offset and value of each record, except foreign ones."""
    usual = runs.take(runs.value >= 0)
    return _spread(usual.offset, usual.count), _spread(usual.value, usual.count)


def _each(runs: Runs) -> Runs:
    """Return a row for each record."""
    usual = runs.take(runs.value >= 0)
    index = np.repeat(np.arange(len(usual)), usual.count)
    offset = _spread(usual.offset, usual.count)
    return usual.cut(index, offset, offset + 1)


def _last_of_each(key: Ints, offset: Ints) -> Bools:
    """Return whether a row has the highest offset of its key."""
    highest: dict[int, int] = {}
    for which, at in zip(key.tolist(), offset.tolist(), strict=True):
        highest[which] = max(at, highest.get(which, NOWHERE))
    return np.array(
        [highest[which] == at for which, at in zip(key.tolist(), offset.tolist(), strict=True)],
        np.bool_,
    )
