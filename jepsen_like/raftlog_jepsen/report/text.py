"""The result of a run as rows of text for terminals. The caller prints them. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from raftlog.testing.checker import verdict as checker
from raftlog.testing.checker.verdict import Verdict
from raftlog_jepsen.report import judgement, markup
from raftlog_jepsen.report.judgement import NS, sentence

Row = tuple[str, str]
FINDINGS_MAX: Final = 3  # of each kind
TROUBLES_MAX: Final = 5
VALUE_CHARS_MAX: Final = 160  # of one statistic
ANOMALY_COLUMNS: Final = ("anomaly", "found", "description")


def summary_rows(verdict: Verdict) -> list[Row]:
    """Return names and values: statistics, outages, faults that were not injected, troubles, and
    the verdict."""
    shown_below = [name for name in verdict.stats if name == "lines" or name.startswith("outage")]
    stats = judgement.stat_rows(verdict, without=shown_below)
    rows = [(name, markup.cut(value, VALUE_CHARS_MAX)) for name, value in stats]
    if verdict.outages:
        longest = max(outage.length_ns for outage in verdict.outages) / NS
        times = markup.counted(len(verdict.outages), "time")
        rows.append(("without an ack", f"{times}, the longest {markup.seconds(longest)}"))
    for kind, count in Counter(str(f.get("kind", "")) for f in verdict.not_injected).items():
        rows.append(("not injected", f"{kind}, {markup.counted(count, 'time')}"))
    rows += (("trouble", markup.cut(text, 300)) for text in verdict.troubles[:TROUBLES_MAX])
    left = len(verdict.troubles) - TROUBLES_MAX
    if left > 0:
        rows.append(("", f"and {left:,} more troubles"))
    rows.append(("anomalies", _anomaly_counts(verdict)))
    rows.append(("verdict", f"{verdict.valid.upper()}. {sentence(verdict)}"))
    return rows


def _anomaly_counts(verdict: Verdict) -> str:
    judged = len(verdict.counts) - len(verdict.not_applicable)
    return f"{sum(verdict.counts.values()):,}; {markup.counted(judged, 'kind')} checked"


def anomaly_rows(verdict: Verdict, *, zeros: bool = False) -> list[tuple[str, str, str]]:
    """Return kind, count and description of each finding; with ``zeros`` of all kinds."""
    return [
        (
            kind,
            "not judged" if kind in verdict.not_applicable else f"{count:,}",
            checker.KINDS.get(kind, ""),
        )
        for kind, count in verdict.counts.items()
        if count or zeros
    ]


def finding_lines(verdict: Verdict) -> list[str]:
    """Return the first ``FINDINGS_MAX`` findings of each kind, one line each."""
    shown: Counter[str] = Counter()
    lines = []
    for anomaly in verdict.anomalies:
        shown[anomaly.kind] += 1
        if shown[anomaly.kind] <= FINDINGS_MAX:
            lines.append(markup.cut(str(anomaly), 400))
    return lines


def progress_line(progress: Any, rate: float) -> str:
    """Return the progress of a run as one line. ``rate``: current rate, acknowledged records per
    second."""
    faults = ", ".join(progress.faults) or "no fault"
    unknown = f", {progress.unknown:,} unknown" if progress.unknown else ""
    return (
        f"{progress.phase} {progress.elapsed_s:.0f} of {progress.time_s:g} s: "
        f"{rate:,.0f} records/s, {progress.acknowledged:,} acknowledged{unknown}; {faults}"
    )
