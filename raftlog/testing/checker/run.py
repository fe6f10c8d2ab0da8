"""Checks availability: times without acknowledgements, and which of them faults excuse. Pure.

A fault is an excuse from before its start until some time after its end, if it was expected to stop
writes, or exceeded the guarantees of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Final

import numpy as np

from raftlog.testing.checker import log as values
from raftlog.testing.checker.gather import NEVER, OK, SECOND, Copy, FaultSpan, Gatherer
from raftlog.testing.checker.log import compare, epoch_order, evidence, holes, other_epochs
from raftlog.testing.checker.partition import Appends, Partition
from raftlog.testing.checker.verdict import (
    NO_INTS,
    Cover,
    Findings,
    Ints,
    Outage,
    Runs,
    agree,
    overlaps,
)
from raftlog.testing.history import Phase

SHARE_OK_MIN: Final = 0.5
SENT_MIN: Final = 20  # appends under faults; with fewer, no share is computed
OUTAGE_MIN_NS: Final = SECOND  # shorter ones are not reported


def check(
    appends: Sequence[Appends],
    faults: Iterable[FaultSpan],
    phases: Iterable[Phase],
    findings: Findings,
    *,
    outage_max_ns: int = 10 * SECOND,
) -> tuple[tuple[Outage, ...], dict[str, Any]]:
    """Report UNAVAILABLE. Returns every outage of a second or more, and statistics."""
    invoked = _joined([one.invoked for one in appends])
    completed = _joined([one.completed for one in appends])
    is_ok = _joined([one.outcome for one in appends]) == OK
    begin, end = _load(phases, invoked, completed)
    # It is unknown how long a client waited for an abandoned append: alone it must not count as an
    # outage.
    waited = np.where(completed < NEVER, completed, invoked + outage_max_ns // 2)
    attempts = Cover(np.maximum(invoked, begin), np.minimum(waited, end))
    harmful = [fault for fault in faults if fault.is_harmful]
    excuses = _excuses(harmful, outage_max_ns)
    outages = _outages(np.sort(completed[is_ok]), begin, end, attempts, excuses, harmful)
    for outage in outages:
        if outage.unexcused_ns > outage_max_ns:
            findings.add(
                "UNAVAILABLE",
                f"no append was acknowledged for {outage.length_ns / SECOND:.1f} s, "
                f"{outage.unexcused_ns / SECOND:.1f} s of it not excused by a fault "
                f"(faults: {', '.join(outage.faults) or 'none'})",
                start_ns=outage.start_ns,
                end_ns=outage.start_ns + outage.length_ns,
                faults=list(outage.faults),
            )
    inside = (invoked >= begin) & (invoked < end)
    share = _share(invoked[inside], completed[inside], is_ok[inside], harmful, excuses)
    if share is not None and share < SHARE_OK_MIN:
        findings.add(
            "UNAVAILABLE",
            f"of the appends under faults that should not have prevented them, {share:.0%} were "
            "acknowledged",
            share=share,
        )
    return outages, _stats(outages, share, end - begin)


def _joined(columns: Sequence[Ints]) -> Ints:
    return np.concatenate(columns) if columns else NO_INTS


def _load(phases: Iterable[Phase], invoked: Ints, completed: Ints) -> tuple[int, int]:
    """Return when clients were active: the phase ``load``, else from the first to the last
    append."""
    ordered = sorted(phases, key=lambda phase: phase.time)
    begin = next((phase.time for phase in ordered if phase.name == "load"), None)
    if begin is not None:
        end = next((p.time for p in ordered if p.name != "load" and p.time > begin), None)
    else:
        begin, end = int(invoked.min(initial=NEVER)), None
    over = completed[completed < NEVER]
    last = int(max(over.max(initial=0), invoked.max(initial=0)))
    return begin, max(begin, last if end is None else end)


def _excuses(faults: Iterable[FaultSpan], allowance_ns: int) -> Cover:
    spans = [f for f in faults if f.is_outage or f.is_beyond]
    begun = np.array([fault.begun for fault in spans], np.int64)
    ended = np.array([min(fault.ended + allowance_ns, NEVER) for fault in spans], np.int64)
    return Cover(begun, ended)


def _outages(
    acknowledged: Ints,
    begin: int,
    end: int,
    attempts: Cover,
    excuses: Cover,
    faults: Sequence[FaultSpan],
) -> tuple[Outage, ...]:
    inside = acknowledged[(acknowledged > begin) & (acknowledged < end)]
    marks = np.concatenate(([begin], inside, [end]))
    start, stop = marks[:-1], marks[1:]
    long = stop - start >= OUTAGE_MIN_NS
    start, stop = start[long], stop[long]
    attempted = attempts.count(start, stop)
    unexcused = attempted - attempts.both(excuses).count(start, stop)
    return tuple(
        Outage(
            start_ns=int(start[row]),
            length_ns=int(stop[row] - start[row]),
            unexcused_ns=int(unexcused[row]),
            faults=_active(faults, int(start[row]), int(stop[row])),
        )
        for row in np.flatnonzero(attempted >= OUTAGE_MIN_NS).tolist()
    )


def _active(faults: Iterable[FaultSpan], start: int, stop: int) -> tuple[str, ...]:
    kinds = (fault.kind for fault in faults if fault.begun < stop and fault.ended > start)
    return tuple(dict.fromkeys(kinds))


def _share(
    invoked: Ints,
    completed: Ints,
    is_ok: Ints,
    faults: Sequence[FaultSpan],
    excuses: Cover,
) -> float | None:
    """Return the share of the appends sent under a fault that were acknowledged, from 0 to 1,
    without those that an excuse covers in part; None for too few of them."""
    begun = np.array([fault.begun for fault in faults], np.int64)
    active = Cover(begun, np.array([fault.ended for fault in faults], np.int64))
    under = active.count(invoked, invoked + 1) > 0
    counted = under & (excuses.count(invoked, np.maximum(completed, invoked + 1)) == 0)
    sent = int(counted.sum())
    return int((counted & is_ok).sum()) / sent if sent >= SENT_MIN else None


def _stats(outages: Sequence[Outage], share: float | None, length_ns: int) -> dict[str, Any]:
    lengths = np.array([outage.length_ns for outage in outages], np.int64)
    return {
        "load_s": length_ns / SECOND,
        "outages": len(outages),
        "outage_p50_s": float(np.median(lengths)) / SECOND if len(lengths) else 0.0,
        "outage_max_s": int(lengths.max(initial=0)) / SECOND,
        "outage_unexcused_max_s": max((o.unexcused_ns for o in outages), default=0) / SECOND,
    } | ({} if share is None else {"ok_share_under_faults": share})


# -- run validity ----------------------------------------------------------------------------------
#
# Checks whether the run itself is conclusive. Pure.
#
# A run proves nothing if no append was acknowledged, if no log was read at the end, or if faults
# were reported without an effect. Its verdict is *unknown*, which counts as a failure.


NO_APPENDS: Final = "no append was acknowledged"


def not_injected(faults: Mapping[int, FaultSpan]) -> tuple[dict[str, Any], ...]:
    """Return the faults that were not injected, each with the reason."""
    return tuple(
        {
            "id": fault.number,
            "kind": fault.kind,
            "targets": list(fault.targets),
            "time": fault.begun,
            "why": str(fault.effect.get("why", fault.effect or "")),
        }
        for fault in faults.values()
        if fault.injected is False
    )


def troubles(run: Gatherer, partitions: Sequence[Partition]) -> Iterator[str]:
    """Yield each reason why the verdict cannot be better than unknown."""
    yield from run.troubles
    yield from _faults(run)
    if not any(phase.name == "end" for phase in run.phases):
        yield "the run did not complete"
    has_written = run.transactions.operations.get("ok", 0)
    if not has_written and not any(partition.ok_appends() for partition in partitions):
        yield NO_APPENDS
    for partition in partitions:
        if partition.is_missed():
            yield f"{partition.name} has appends, and was not read at the end"
        yield from _form(partition)
    yield from _values(partitions)


def _faults(run: Gatherer) -> Iterator[str]:
    for fault in run.faults.values():
        if fault.injected is None:
            yield f"fault {fault.number} ({fault.kind}): no record of its injection"
        elif fault.injected and not fault.effect:
            yield f"fault {fault.number} ({fault.kind}) is recorded as injected, without an effect"
    plan = run.start.plan if run.start is not None else {}
    injected = {fault.kind for fault in run.faults.values() if fault.injected}
    # One injected kind of a group is enough: few test machines can inject all of them.
    for kinds in plan.get("requested") or [plan.get("nemeses", [])]:
        if kinds and injected.isdisjoint(kinds):
            names = ", ".join(map(str, kinds))
            tried = [fault for fault in run.faults.values() if fault.kind in kinds]
            why = "; ".join(sorted({str(fault.effect.get("why", "")) for fault in tried} - {""}))
            reason = why or ("without effect" if tried else "the run was too short to select it")
            yield f"no fault of {names} was injected: {reason}"


def _form(partition: Partition) -> Iterator[str]:
    """Check that completions of appends conform to the format."""
    appends, acked = partition.appends, partition.acked
    end = appends.first + appends.count
    foreign = (acked.value < appends.first[acked.by]) | (acked.value + acked.count > end[acked.by])
    if foreign.any():
        row = int(acked.by[int(np.argmax(foreign))])
        yield (
            f"{partition.name}: {appends.describe(row)} was acknowledged with values of "
            f"other appends"
        )
    acknowledged = np.bincount(acked.by, acked.count, len(end)) if len(end) else np.zeros(0)
    partly = (appends.outcome == OK) & (appends.acks != 0) & (acknowledged != appends.count)
    if partly.any():
        row = int(np.argmax(partly))
        yield f"{partition.name}: {appends.describe(row)} is ok, without offsets for all of it"
    if (partition.seen.count < 1).any():
        yield f"{partition.name}: a poll returned a run with less than one record"


def _values(partitions: Sequence[Partition]) -> Iterator[str]:
    """Check that each value is sent only once."""
    if not partitions:
        return
    first = np.concatenate([partition.appends.first for partition in partitions])
    count = np.concatenate([partition.appends.count for partition in partitions])
    order = np.argsort(first)
    twice = first[order][1:] < (first + count)[order][:-1]
    if twice.any():
        yield f"{int(twice.sum())} appends send values that another append sends, such as " + str(
            int(first[order][1:][twice][0])
        )


# -- replicas --------------------------------------------------------------------------------------
#
# Checks the files of replicas after all brokers stopped, against the final log. Pure.
#
# A replica that was in the ISR has to store the complete final log. Others may store less. They may
# also end with records that were never committed, as a former leader leaves them, if those have
# other epochs than the final log at these offsets: the replica would truncate them after its
# restart.


INTERNAL = "__"  # name prefix of internal topics


def check_replicas(partition: Partition, findings: Findings) -> None:
    if partition.name.startswith(INTERNAL):
        check_copies(partition, findings)
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


def check_copies(partition: Partition, findings: Findings) -> None:
    """Check a partition whose records are not known to the checker, such as one of an internal
    topic: copies are complete, and agree with each other."""
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
