"""Checks the results of polls: order, completeness, and staleness. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from raftlog.testing.checker.compaction import lasting
from raftlog.testing.checker.gather import SECOND
from raftlog.testing.checker.partition import Partition
from raftlog.testing.checker.runs import FAR, Bools, Ints, Runs
from raftlog.testing.checker.verdict import Findings, Found


class _Sequence(NamedTuple):
    """Runs in the order in which each consumer received them. ``expected``: the next offset, -FAR
    if unknown; ``is_inside``: it is not the first run of its poll."""

    runs: Runs
    expected: Ints
    is_inside: Bools
    is_former: Bools  # received from a topic that was deleted


def check_polls(partition: Partition, findings: Findings, *, lag_ns: int = 10 * SECOND) -> None:
    """Check that polls of one consumer are consecutive, and return existing records after
    ``lag_ns``."""
    _continuity(partition, findings)
    _stale(partition, findings, lag_ns)


def _continuity(partition: Partition, findings: Findings) -> None:
    runs, expected, is_inside, is_former = _sequence(partition)
    completed = partition.polls.completed[runs.by]
    within = completed < partition.beyond_since
    gone = partition.deleted_by(completed)
    if is_former.any():
        gone = np.where(is_former, partition.deleted_by(completed, in_any_life=True), gone)
    if partition.is_shortened:
        gone[:] = partition.gone_below if partition.log is not None else FAR
    is_known = within & (expected > -FAR)
    resets = (partition.polls.resets_to_latest[runs.by] != 0) & (expected < gone)
    back = is_known & (runs.offset < expected)
    skip = is_known & ~resets & (runs.offset > np.maximum(expected, gone))
    if partition.is_compacted:
        skip &= _are_any_in(lasting(partition), np.maximum(expected, gone), runs.offset)
        skip &= ~is_former  # its final log is unknown

    def describe(place: int) -> Found:
        poll = int(runs.by[place])
        offset, wanted = int(runs.offset[place]), int(expected[place])
        return (
            f"{partition.name}, {partition.polls.who(poll)}: received {offset}, expected {wanted}",
            {
                "partition": partition.name,
                "offsets": [offset, wanted],
                "operations": [partition.polls.describe(poll)],
            },
        )

    findings.each("INT-NONMONOTONIC-POLL", np.flatnonzero(back & is_inside), describe)
    findings.each("NONMONOTONIC-POLL", np.flatnonzero(back & ~is_inside), describe)
    findings.each("INT-POLL-SKIP", np.flatnonzero(skip & is_inside), describe)
    findings.each("POLL-SKIP", np.flatnonzero(skip & ~is_inside), describe)


def _are_any_in(offsets: Ints, start: Ints, end: Ints) -> Bools:
    """Return whether any of ``offsets``, ascending, is between each start and its end
    (exclusive)."""
    found: Bools = np.searchsorted(offsets, start) < np.searchsorted(offsets, end)
    return found


def _sequence(partition: Partition) -> _Sequence:
    clear = partition.seen_life >= 0
    runs, life = partition.seen.take(clear), partition.seen_life[clear]
    session = partition.polls.session[runs.by]
    order = np.lexsort((life, session))  # stable: keeps the order of the polls
    runs, life, session = runs.take(order), life[order], session[order]
    expected = np.full(len(runs), -FAR, np.int64)
    follows = (session[1:] == session[:-1]) & (life[1:] == life[:-1])
    expected[1:][follows] = runs.end[:-1][follows]
    is_inside = np.zeros(len(runs), np.bool_)
    is_inside[1:] = follows & (runs.by[1:] == runs.by[:-1])
    firsts = np.flatnonzero(np.concatenate((np.ones(min(len(runs), 1), np.bool_), ~follows)))
    begun = [partition.gathered.positions.get(int(s), (-FAR, 0)) for s in session[firsts]]
    at = np.array([time for _, time in begun], np.int64)
    same = partition.lifetimes.seen_at(at, at) == life[firsts]
    positions = np.array([position for position, _ in begun], np.int64)
    expected[firsts] = np.where(same & (positions >= 0), positions, -FAR)
    return _Sequence(runs, expected, is_inside, life < partition.lifetimes.last)


def _stale(partition: Partition, findings: Findings, lag_ns: int) -> None:
    """Report polls that returned no records although no fault had been active for a long time.

    Half of ``lag_ns`` is granted for connecting.
    """
    idle = partition.gathered.idle
    if not idle:
        return
    polls, promised = partition.polls, partition.promised
    rows = np.array([one.poll for one in idle], np.int64)
    position = np.array([one.position for one in idle], np.int64)
    since = np.array([one.since for one in idle], np.int64)
    invoked, completed = polls.invoked[rows], polls.completed[rows]
    acked = partition.acked_by(invoked - lag_ns, promised)
    is_last_life = partition.lifetimes.seen_at(invoked, completed) == partition.lifetimes.last
    is_late = (completed - since >= lag_ns // 2) & (completed < partition.beyond_since)
    there = np.maximum(position, partition.gone_below)
    stale = is_last_life & is_late & (there < acked)
    if partition.is_compacted:
        stale &= _are_any_in(lasting(partition), there, acked)

    def describe(place: int) -> Found:
        poll = int(rows[place])
        message = (
            f"{partition.name}, {polls.who(poll)}: no records from {int(position[place])} on, "
            f"but records below {int(acked[place])} were acknowledged {lag_ns // SECOND} s before"
        )
        return (
            message,
            {
                "partition": partition.name,
                "offsets": [int(position[place]), int(acked[place]) - 1],
                "operations": [polls.describe(poll)],
            },
        )

    findings.each("STALE-READ", np.flatnonzero(stale), describe)
