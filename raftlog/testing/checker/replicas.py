"""Checks the files of replicas after all brokers stopped, against the final log. Pure.

A replica that was in the ISR has to store the complete final log. Others may store less. They may
also end with records that were never committed, as a former leader leaves them, if those have other
epochs than the final log at these offsets: the replica would truncate them after its restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations

import numpy as np

from raftlog.testing.checker import values
from raftlog.testing.checker.gather import Copy
from raftlog.testing.checker.logs import compare, epoch_order, holes, other_epochs
from raftlog.testing.checker.partition import Partition
from raftlog.testing.checker.runs import Runs, agree, overlaps
from raftlog.testing.checker.values import evidence
from raftlog.testing.checker.verdict import Findings

INTERNAL = "__"  # name prefix of internal topics


def check_replicas(partition: Partition, findings: Findings) -> None:
    if partition.name.startswith(INTERNAL):
        _internal(partition, findings)
        return
    agreeing: list[Copy] = []
    tails: list[tuple[Copy, Runs]] = []
    for copy in partition.gathered.dumps.values():
        if copy.problem:
            findings.add(
                "DAMAGED-REPLICA",
                f"{partition.name}, {copy.who}: {copy.problem}",
                partition=partition.name,
                replicas=[copy.who],
            )
        runs = agree(Runs.of(copy.records)).runs
        if _one(partition, copy, runs, findings) and not copy.problem:
            agreeing.append(copy)
        if partition.log is not None:
            runs = runs.above(partition.log.end)
        tails.append((copy, runs))
        values.check_values(partition, runs, f", in the files of {copy.who}", findings)
    _chains(partition, agreeing, findings)
    _tails(partition, tails, findings)


def _internal(partition: Partition, findings: Findings) -> None:
    """Check an internal topic: copies are complete, and agree with each other. Its records are not
    known to the checker."""
    copies = list(partition.gathered.dumps.values())
    for copy in copies:
        if copy.problem:
            findings.add(
                "DAMAGED-REPLICA",
                f"{partition.name}, {copy.who}: {copy.problem}",
                partition=partition.name,
                replicas=[copy.who],
            )
    _chains(partition, [copy for copy in copies if not copy.problem], findings)


def _one(partition: Partition, copy: Copy, runs: Runs, findings: Findings) -> bool:
    """Check the files of one replica. Returns whether they agree with the final log."""
    epoch_order(partition, copy.who, runs, findings)
    log = partition.log
    if log is None:
        if not partition.is_compacted:
            holes(partition, copy, runs, findings)
        return False
    start = copy.start
    if not partition.is_shortened:
        start = min(start, max(log.start, partition.deleted_below))
    # Records that could not be read are not missing.
    if not copy.problem and not partition.is_compacted:
        holes(partition, replace(copy, start=start), runs, findings)
    if copy.should_be_whole and copy.end < log.end and not copy.problem:
        findings.add(
            "STUCK",
            f"{partition.name}, {copy.who}: ends at {copy.end}, the final log at {log.end}",
            partition=partition.name,
            offsets=[copy.end, log.end - 1],
            replicas=[copy.who],
        )
    if not copy.should_be_whole and _ends_uncommitted(partition, runs):
        return False
    before = sum(findings.counts.values())
    who = f"{copy.who} has", {"replicas": [copy.who]}
    compare(partition, runs, findings, "REPLICA-DIVERGENCE", lambda _: who)
    return sum(findings.counts.values()) == before


def _ends_uncommitted(partition: Partition, runs: Runs) -> bool:
    """Return whether it agrees with the final log up to some offset and has other epochs from there
    on."""
    assert partition.log is not None, "there is no final log"
    log = partition.log.runs
    pieces = overlaps(runs.offset, runs.end, log.offset, log.end)
    mine = runs.cut(pieces.index, pieces.start, pieces.end)
    final = log.cut(pieces.other, pieces.start, pieces.end)
    others = other_epochs(mine, final)
    same = ~others & (mine.shift == final.shift)
    first = int(np.argmax(others)) if others.any() else len(others)
    return bool(others.any() and others[first:].all() and same[:first].all())


def _chains(partition: Partition, copies: Iterable[Copy], findings: Findings) -> None:
    """Check that copies with the same end and the same records have the same hash-chain value."""
    chains: dict[int, Copy] = {}
    for copy in copies:
        if not copy.chain:
            continue
        first = chains.setdefault(copy.end, copy)
        if first.chain != copy.chain:
            findings.add(
                "REPLICA-DIVERGENCE",
                f"{partition.name} to {copy.end}: {first.who} has the chain {first.chain}, "
                f"{copy.who} {copy.chain}",
                partition=partition.name,
                offsets=[copy.end - 1],
                replicas=[first.who, copy.who],
            )


def _tails(partition: Partition, tails: Iterable[tuple[Copy, Runs]], findings: Findings) -> None:
    """Check ends beyond the final log. Replicas may differ there; but one epoch has one leader,
    which assigns an offset only once."""
    for (one, runs), (other, others) in combinations(tails, 2):
        pieces = overlaps(runs.offset, runs.end, others.offset, others.end)
        mine = runs.cut(pieces.index, pieces.start, pieces.end)
        theirs = others.cut(pieces.other, pieces.start, pieces.end)
        bad = (mine.shift != theirs.shift) & (mine.epoch == theirs.epoch) & (mine.epoch >= 0)
        for place in np.flatnonzero(bad).tolist():
            findings.add(
                "EPOCH-ORDER",
                f"{partition.name}, epoch {int(mine.epoch[place])}: {one.who} has "
                f"{mine.describe(place)}, {other.who} {theirs.describe(place)}",
                partition=partition.name,
                replicas=[one.who, other.who],
                **evidence(mine, place),
            )
