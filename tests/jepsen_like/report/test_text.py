"""The end of a run on a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raftlog.testing.checker import verdict as checker
from raftlog.testing.checker.verdict import Anomaly, Outage, Verdict
from raftlog_jepsen.report import html


def verdict(valid: Any = "valid", found: dict[str, int] | None = None, **other: Any) -> Verdict:
    return Verdict(valid=valid, counts=dict.fromkeys(checker.KINDS, 0) | (found or {}), **other)


def test_the_verdict_is_the_last_row() -> None:
    rows = html.summary_rows(verdict(stats={"records_sent": 5_000}))
    assert rows[0] == ("records sent", "5,000")
    assert rows[-2] == ("anomalies", f"0; {len(checker.KINDS)} kinds checked")
    assert rows[-1] == ("verdict", "VALID. No anomaly was found.")


def test_outages_refusals_and_troubles_are_told() -> None:
    judged = verdict(
        "unknown",
        outages=tuple(
            Outage(start_ns=0, length_ns=n * 10**9, unexcused_ns=0) for n in (2, 7)
        ),
        not_injected=({"kind": "power"}, {"kind": "power"}, {"kind": "fds"}),
        troubles=tuple(f"trouble {n}" for n in range(8)),
        not_applicable={"GAP": "no log"},
    )  # fmt: skip
    rows = html.summary_rows(judged)
    assert ("without an ack", "2 times, the longest 7 s") in rows
    assert ("not injected", "power, 2 times") in rows
    assert ("not injected", "fds, 1 time") in rows
    assert ("trouble", "trouble 0") in rows
    assert ("", "and 3 more troubles") in rows
    assert ("anomalies", f"0; {len(checker.KINDS) - 1} kinds checked") in rows
    assert rows[-1][1].startswith("UNKNOWN. No anomaly was found, but anomalies are possible")


def test_anomalies_are_listed_with_zeros_if_wanted() -> None:
    judged = verdict("invalid", {"GAP": 1_234}, not_applicable={"MOVED": "no log"})
    assert html.anomaly_rows(judged) == [("GAP", "1,234", checker.KINDS["GAP"])]
    every = html.anomaly_rows(judged, zeros=True)
    assert [row[0] for row in every] == list(checker.KINDS)
    assert dict(row[:2] for row in every)["MOVED"] == "not judged"


def test_the_first_findings_of_each_kind_are_told() -> None:
    anomalies = [Anomaly("GAP", f"gap {n}") for n in range(9)] + [Anomaly("MOVED", "x" * 1_000)]
    lines = html.finding_lines(verdict("invalid", {"GAP": 9}, anomalies=tuple(anomalies)))
    assert lines[:3] == ["GAP: gap 0", "GAP: gap 1", "GAP: gap 2"]
    assert lines[3].startswith("MOVED: xxx")
    assert len(lines) == 4
    assert len(lines[3]) < 500


@dataclass
class Seen:
    phase: str = "load"
    elapsed_s: float = 12.3
    time_s: float = 60.0
    acknowledged: int = 123_456
    unknown: int = 0
    faults: tuple[str, ...] = ()


def test_the_live_line_says_how_far_it_is() -> None:
    assert html.progress_line(Seen(), 4_567.8) == (
        "load 12 of 60 s: 4,568 records/s, 123,456 acknowledged; no fault"
    )
    busy = html.progress_line(Seen(unknown=7, faults=("kill", "partition")), 0.0)
    assert busy.endswith("123,456 acknowledged, 7 unknown; kill, partition")
