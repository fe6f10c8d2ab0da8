"""Checks the final log: the records that new consumers read from a partition, from its start to its
end.

The final log is that of the reader that reached the highest offset. All other checks use it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from raftlog.testing.checker.gather import Copy
from raftlog.testing.checker.partition import Log, Partition
from raftlog.testing.checker.runs import Bools, Cover, Runs, agree, overlaps
from raftlog.testing.checker.values import evidence
from raftlog.testing.checker.verdict import Findings, Found


def take_log(partition: Partition, findings: Findings) -> None:
    """Set ``partition.log``, if there is one, and check it alone and against other readers."""
    readers = [copy for copy in partition.gathered.readers.values() if copy.is_complete]
    if not readers:
        return
    farthest = max(readers, key=lambda copy: copy.end)
    given = Runs.of(farthest.records)
    _order(partition, farthest, given, findings)
    agreed = agree(given)
    for one, other in agreed.conflicts:
        _two_values(partition, one, other, [farthest.who, farthest.who], findings)
    end = int(agreed.runs.end.max(initial=farthest.end))
    partition.log = Log.of(farthest.start, end, agreed.runs)
    _start(partition, findings)
    if not partition.is_compacted:
        holes(partition, farthest, agreed.runs, findings)
    epoch_order(partition, farthest.who, agreed.runs, findings)
    for reader in readers:
        if reader is not farthest:
            _other_reader(partition, farthest, reader, findings)


def holes(partition: Partition, copy: Copy, runs: Runs, findings: Findings) -> None:
    """Report GAP: missing offsets between start and end."""
    start, end = np.array([copy.start]), np.array([copy.end])
    missing = overlaps(start, end, *Cover(runs.offset, runs.end).holes())

    def describe(place: int) -> Found:
        first, last = int(missing.start[place]), int(missing.end[place]) - 1
        message = (
            f"{partition.name}, {copy.who}: no records at {first} to {last}, in a log from "
            f"{copy.start} to {copy.end - 1}"
        )
        return (
            message,
            {"partition": partition.name, "offsets": [first, last], "replicas": [copy.who]},
        )

    findings.each("GAP", range(len(missing.start)), describe)


def epoch_order(partition: Partition, who: str, runs: Runs, findings: Findings) -> None:
    """Report EPOCH-ORDER: decreasing epochs with increasing offsets. ``runs`` are sorted by
    offset."""
    known = runs.take(runs.epoch >= 0)

    def describe(place: int) -> Found:
        offset = int(known.offset[place + 1])
        epochs = [int(known.epoch[place]), int(known.epoch[place + 1])]
        return (
            f"{partition.name}, {who}: epoch {epochs[0]} before offset {offset}, then {epochs[1]}",
            {"partition": partition.name, "offsets": [offset], "epochs": epochs, "replicas": [who]},
        )

    findings.each("EPOCH-ORDER", np.flatnonzero(known.epoch[1:] < known.epoch[:-1]), describe)


def compare(
    partition: Partition, runs: Runs, findings: Findings, kind: str, who: Callable[[int], Found]
) -> None:
    """Report ``kind`` where ``runs`` have other values than the final log, and EPOCH-ORDER where
    the values are the same and the epochs differ. ``who`` maps the run's ``by`` to the observer, as
    text and as evidence."""
    log = partition.log
    assert log is not None, "there is no final log to compare with"
    pieces = overlaps(runs.offset, runs.end, log.runs.offset, log.runs.end)
    mine = runs.cut(pieces.index, pieces.start, pieces.end)
    final = log.runs.cut(pieces.other, pieces.start, pieces.end)
    differ = mine.shift != final.shift
    restamped = ~differ & other_epochs(mine, final)

    def finding(place: int, what: str) -> Found:
        name, found = who(int(mine.by[place]))
        message = (
            f"{partition.name}: {name} {mine.describe(place)}; the final log has "
            f"{final.describe(place)}{what}"
        )
        return (
            message,
            {
                "partition": partition.name,
                "epochs": [int(mine.epoch[place]), int(final.epoch[place])],
            }
            | evidence(mine, place)
            | found,
        )

    findings.each(kind, np.flatnonzero(differ), lambda place: finding(place, ""))
    findings.each(
        "EPOCH-ORDER", np.flatnonzero(restamped), lambda place: finding(place, ", of another epoch")
    )


def other_epochs(runs: Runs, others: Runs) -> Bools:
    """Return in which rows both epochs are known, and differ."""
    found: Bools = (runs.epoch != others.epoch) & (runs.epoch >= 0) & (others.epoch >= 0)
    return found


def _order(partition: Partition, copy: Copy, runs: Runs, findings: Findings) -> None:
    """Check the order of a reader's polls, as for a consumer."""

    def describe(place: int) -> Found:
        offset, expected = int(runs.offset[place + 1]), int(runs.end[place])
        return (
            f"{partition.name}, {copy.who}: received {offset}, expected {expected}",
            {"partition": partition.name, "offsets": [offset, expected], "process": copy.who},
        )

    back = np.flatnonzero(runs.offset[1:] < runs.end[:-1])
    findings.each("NONMONOTONIC-POLL", back, describe)


def _start(partition: Partition, findings: Findings) -> None:
    log, allowed = partition.log, partition.deleted_below
    if log is None or partition.is_shortened or log.start <= allowed:
        return
    findings.add(
        "LOST-mid" if log.end > log.start else "LOST-tail",
        f"{partition.name} starts at {log.start}; no client deleted records above {allowed}",
        partition=partition.name,
        offsets=[allowed, log.start - 1],
    )


def _two_values(
    partition: Partition, one: Runs, other: Runs, who: list[str], findings: Findings
) -> None:
    findings.add(
        "INCONSISTENT-OFFSET",
        f"{partition.name}: {one.describe(0)} and {other.describe(0)}, {' and '.join(who)}",
        partition=partition.name,
        seen=[evidence(one, 0), evidence(other, 0)],
        processes=who,
    )


def _other_reader(partition: Partition, farthest: Copy, reader: Copy, findings: Findings) -> None:
    runs = Runs.of(reader.records)
    _order(partition, reader, runs, findings)
    agreed = agree(runs).runs
    who = f"{reader.who} received", {"processes": [reader.who, farthest.who]}
    compare(partition, agreed, findings, "INCONSISTENT-OFFSET", lambda _: who)
    if not partition.is_compacted:
        holes(partition, reader, agreed, findings)
    if reader.end < farthest.end:
        findings.add(
            "STUCK",
            f"{partition.name}: {reader.who} reached {reader.end}, {farthest.who} {farthest.end}",
            partition=partition.name,
            offsets=[reader.end, farthest.end - 1],
            processes=[reader.who, farthest.who],
        )
