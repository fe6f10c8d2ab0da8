"""Conversion of a verdict to the texts of a report. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from raftlog.testing.checker import verdict as checker
from raftlog.testing.checker.verdict import Outage, Valid, Verdict
from raftlog_jepsen.report import markup
from raftlog_jepsen.report.canvas import Window

NS: Final = 1_000_000_000
EVIDENCE_CHARS_MAX: Final = 1_500  # of one finding
JudgementRow: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One kind of anomaly: description, number of findings, and evidence for some.

    ``why_not``: why the kind was not checked; ``count`` is then not significant.
    """

    kind: str
    description: str
    count: int
    evidence: tuple[str, ...] = ()
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Texts of a verdict for a report. ``anomalies``: all kinds, also those without findings."""

    state: Valid
    sentence: str
    anomalies: tuple[Anomaly, ...]
    windows: tuple[Window, ...] = ()
    stats: tuple[JudgementRow, ...] = ()
    troubles: tuple[str, ...] = ()


def judgement_of(verdict: Verdict, base_ns: int) -> Judgement:
    """Return the texts of ``verdict``. ``base_ns``: time of the first history entry; times in the
    report are relative to it."""
    anomalies = tuple(_anomaly(kind, verdict) for kind in {**checker.KINDS, **verdict.counts})
    return Judgement(
        state=verdict.valid,
        sentence=sentence(verdict),
        anomalies=anomalies,
        windows=tuple(_window(outage, base_ns) for outage in verdict.outages),
        stats=stat_rows(verdict),
        troubles=verdict.troubles,
    )


def sentence(verdict: Verdict) -> str:
    """Return the verdict in one or two sentences."""
    found = {kind: count for kind, count in verdict.counts.items() if count}
    left = len(verdict.not_applicable)
    also = f" {markup.counted(left, 'kind')} of anomaly could not be checked." if left else ""
    if found:
        listed = ", ".join(f"{kind} ({count:,})" for kind, count in found.items())
        were = "was" if len(found) == 1 else "were"
        return f"{markup.counted(len(found), 'kind')} of anomaly {were} found: {listed}.{also}"
    if verdict.valid == "unknown":
        first = verdict.troubles[0] if verdict.troubles else "the checker reports no reason"
        more = f" (and {len(verdict.troubles) - 1:,} more)" if verdict.troubles[1:] else ""
        return f"No anomaly was found, but anomalies are possible: {markup.cut(first, 300)}{more}"
    return f"No anomaly was found.{also}"


def _anomaly(kind: str, verdict: Verdict) -> Anomaly:
    return Anomaly(
        kind,
        checker.KINDS.get(kind, ""),
        verdict.counts.get(kind, 0),
        tuple(_describe(one) for one in verdict.anomalies if one.kind == kind),
        verdict.not_applicable.get(kind, ""),
    )


def _describe(anomaly: checker.Anomaly) -> str:
    evidence = (f"  {name}: {_shown(value)}" for name, value in anomaly.evidence.items())
    lines = [anomaly.message, *evidence]
    return markup.cut("\n".join(lines), EVIDENCE_CHARS_MAX)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _window(outage: Outage, base_ns: int) -> Window:
    begin = (outage.start_ns - base_ns) / NS
    length = outage.length_ns / NS
    description = f"no acknowledgement for {markup.seconds(length)}"
    if outage.unexcused_ns > 0:
        description += f", {markup.seconds(outage.unexcused_ns / NS)} of it not excused by a fault"
    return Window(begin, begin + length, description)


def stat_rows(verdict: Verdict, without: Collection[str] = ()) -> tuple[JudgementRow, ...]:
    """Return name and value of each statistic that is not empty."""
    rows = ((name, amount(name, value)) for name, value in verdict.stats.items())
    return tuple((words(name), text) for name, text in rows if text and name not in without)


def words(name: str) -> str:
    """Return the name of a statistic as words, without its unit suffix."""
    return name.removesuffix("_ns").removesuffix("_s").removesuffix("_ms").replace("_", " ")


def amount(name: str, value: Any) -> str:
    """Return the value of a statistic in the unit of its name suffix."""
    if isinstance(value, Mapping):
        return ", ".join(f"{words(str(key))} {amount(str(key), v)}" for key, v in value.items())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return markup.cut(str(value), 300)
    for unit, scale in (("_ns", NS), ("_ms", 1_000), ("_s", 1)):
        if name.endswith(unit):
            return markup.seconds(value / scale)
    if name.endswith("seconds"):
        return markup.seconds(value)
    if "bytes" in name:
        return markup.size(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
