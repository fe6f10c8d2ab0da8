"""Checks availability: times without acknowledgements, and which of them faults excuse. Pure.

A fault is an excuse from before its start until some time after its end, if it was expected to stop
writes, or exceeded the guarantees of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from raftlog.testing.checker.gather import NEVER, OK, SECOND, FaultSpan
from raftlog.testing.checker.partition import Appends
from raftlog.testing.checker.runs import NO_INTS, Cover, Ints
from raftlog.testing.checker.verdict import Findings, Outage
from raftlog.testing.history.entries import Phase

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
