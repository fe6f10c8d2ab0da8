"""Checks acknowledged records: lost, moved, not in a producer's order or not in real-time order.
Pure.

A log is linearizable if every append takes effect between its invocation and its acknowledgement:
no record that was acknowledged before another append was sent may be after it.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from raftlog.testing.checker.gather import NEVER
from raftlog.testing.checker.logs import compare
from raftlog.testing.checker.partition import Partition
from raftlog.testing.checker.runs import Runs, overlaps, running_max
from raftlog.testing.checker.values import evidence
from raftlog.testing.checker.verdict import Findings, Found


def check_appends(partition: Partition, findings: Findings) -> None:
    promised = partition.promised
    _kept(partition, promised, findings)
    if partition.beyond_since < NEVER:  # offsets of lost records can have been reused
        promised = partition.survivors(promised)
    _real_time(partition, promised, findings)
    _producers_order(partition, findings)


def missing_from_log(partition: Partition, runs: Runs) -> Runs:
    """Return the parts of runs that are not at their offsets in the final log and must not be
    missing."""
    log = partition.log
    assert log is not None, "there is no final log"
    pieces = overlaps(runs.offset, runs.end, log.runs.offset, log.runs.end)
    other = runs.shift[pieces.index] != log.runs.shift[pieces.other]
    elsewhere = runs.cut(pieces.index[other], pieces.start[other], pieces.end[other])
    return runs.outside(log.offsets).with_(elsewhere).above(partition.gone_below)


def _kept(partition: Partition, promised: Runs, findings: Findings) -> None:
    log = partition.log
    if log is None:
        return
    missing = missing_from_log(partition, promised)
    if partition.is_compacted:  # ``compaction`` checks missing records below the end
        compare(partition, promised, findings, "INCONSISTENT-OFFSET", partial(_sender, partition))
        missing = missing.above(log.end)
    present = log.values.count(missing.value, missing.value + missing.count)

    def describe(place: int) -> Found:
        message = (
            f"{partition.name}: {missing.describe(place)} was acknowledged; the log, from "
            f"{log.start} "
            f"to {log.end - 1}, does not have it there"
        )
        return (
            message,
            {
                "partition": partition.name,
                "operations": [partition.appends.describe(int(missing.by[place]))],
            }
            | evidence(missing, place),
        )

    is_lost = present < missing.count
    is_tail = (missing.offset >= log.end) | (log.end == log.start)
    findings.each("LOST-tail", np.flatnonzero(is_lost & is_tail), describe)
    findings.each("LOST-mid", np.flatnonzero(is_lost & ~is_tail), describe)
    findings.each("MOVED", np.flatnonzero(present > 0), describe)


def _sender(partition: Partition, row: int) -> Found:
    return "acknowledged:", {"operations": [partition.appends.describe(row)]}


def _real_time(partition: Partition, acked: Runs, findings: Findings) -> None:
    """Check real-time order: by increasing offset, with the latest invocation so far."""
    order = np.lexsort((acked.value, acked.offset))
    acked = acked.take(order)
    invoked = partition.appends.invoked[acked.by]
    completed = partition.appends.completed[acked.by]
    latest = running_max(invoked)

    def describe(place: int) -> Found:
        lower = int(np.argmax(invoked[:place]))
        message = (
            f"{partition.name}: {acked.describe(place)} was acknowledged before "
            f"{acked.describe(lower)} "
            "was sent"
        )
        return (
            message,
            {
                "partition": partition.name,
                "offsets": [int(acked.offset[place]), int(acked.offset[lower])],
                "operations": [
                    partition.appends.describe(int(acked.by[n])) for n in (place, lower)
                ],
                "times_ns": [int(completed[place]), int(invoked[lower])],
            },
        )

    findings.each("REALTIME-ORDER", np.flatnonzero(completed < latest), describe)


def _producers_order(partition: Partition, findings: Findings) -> None:
    """Check producers' order, for idempotent producers only: retries of others may be overtaken.
    Records that only one leader acknowledged count if they still exist."""
    appends = partition.appends
    ordered = partition.acked.take(
        (appends.idempotent[partition.acked.by] != 0) & (partition.acked_life >= 0)
    )
    weak = appends.acks[ordered.by] != -1
    if partition.beyond_since < NEVER:
        weak[:] = True
    acked = ordered.take(~weak).with_(partition.survivors(ordered.take(weak)))
    process, life = appends.process[acked.by], appends.life[acked.by]
    order = np.lexsort((acked.value, acked.by, life, process))
    acked, process, life = acked.take(order), process[order], life[order]
    same = (process[1:] == process[:-1]) & (life[1:] == life[:-1])
    back = same & (acked.offset[1:] < acked.end[:-1])
    inside = acked.by[1:] == acked.by[:-1]

    def describe(place: int) -> Found:
        rows = [int(row) for row in acked.by[place : place + 2]]
        message = (
            f"{partition.name}, {appends.names[int(process[place])]}: "
            f"{acked.describe(place)}, then "
            f"{acked.describe(place + 1)}"
        )
        return (
            message,
            {
                "partition": partition.name,
                "offsets": [int(acked.offset[place]), int(acked.offset[place + 1])],
                "operations": [appends.describe(row) for row in dict.fromkeys(rows)],
            },
        )

    findings.each("NONMONOTONIC-SEND", np.flatnonzero(back & ~inside), describe)
    findings.each("INT-NONMONOTONIC-SEND", np.flatnonzero(back & inside), describe)
