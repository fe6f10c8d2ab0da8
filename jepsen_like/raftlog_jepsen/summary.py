"""Key results of a run, for tables of many runs: ``summary.json``."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from raftlog.testing.checker.verdict import Verdict
from raftlog_jepsen.report.digest import Digest, FaultSpan

NS: Final = 1_000_000_000
KILLS: Final = "SIGKILLs of brokers"  # prefix of the runner's note


def summarise(found: Digest, verdict: Verdict) -> dict[str, Any]:
    """Return the key results of a run. Times in seconds.

    ``effects``: number of affected brokers by kind of effect, for faults that can affect several
    brokers at once. A power cut of three brokers counts as three ``power cuts of brokers``.
    """
    injected = [fault for fault in found.faults if fault.injected]
    load = [phase for phase in found.phases if phase.name == "load"]
    outages = [outage.length_ns / NS for outage in verdict.outages]
    return {
        "verdict": verdict.valid,
        "anomalies": {kind: count for kind, count in verdict.counts.items() if count},
        "troubles": list(verdict.troubles),
        "acknowledged": found.total.acked,
        "load_s": round(sum(phase.end_s - phase.begin_s for phase in load), 1),
        "injected": dict(sorted(Counter(fault.kind for fault in injected).items())),
        "not_injected": dict(
            sorted(Counter(fault.kind for fault in found.faults if not fault.injected).items())
        ),
        "effects": dict(sorted(_effects(found, injected).items())),
        "longest_outage_s": round(max(outages, default=0.0), 2),
    }


def _effects(found: Digest, injected: list[FaultSpan]) -> Counter[str]:
    effects: Counter[str] = Counter()
    for fault in injected:
        if fault.kind == "power":
            effects["power cuts of brokers"] += len(fault.targets)
        if fault.kind == "wipe":
            effects["disks wiped"] += len(fault.targets)
    for _, note in found.notes:
        name, _, counts = note.text.partition(": ")
        if name == KILLS:
            effects[KILLS] += int(counts.split()[0])
    return effects
