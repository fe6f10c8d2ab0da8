"""Checks whether the run itself is conclusive. Pure.

A run proves nothing if no append was acknowledged, if no log was read at the end, or if faults were
reported without an effect. Its verdict is *unknown*, which counts as a failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from raftlog.testing.checker.gather import OK, FaultSpan, Gatherer
from raftlog.testing.checker.partition import Partition

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
    if not any(partition.ok_appends() for partition in partitions):
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
