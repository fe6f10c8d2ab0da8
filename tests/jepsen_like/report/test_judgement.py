"""Verdicts in a report's words."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.testing.checker import verdict as checker
from raftlog.testing.checker.verdict import Anomaly, Outage, Verdict
from raftlog_jepsen.report import html
from raftlog_jepsen.report.html import judgement_of

NS = 1_000_000_000


def verdict(valid: Any = "valid", found: dict[str, int] | None = None, **other: Any) -> Verdict:
    return Verdict(valid=valid, counts=dict.fromkeys(checker.KINDS, 0) | (found or {}), **other)


def test_every_kind_is_there_with_its_sentence() -> None:
    judged = judgement_of(verdict(), 0)
    assert {a.kind: a.description for a in judged.anomalies} == dict(checker.KINDS)
    assert not any(a.count for a in judged.anomalies)
    assert (judged.state, judged.sentence) == ("valid", "No anomaly was found.")


def test_what_was_found_is_told_with_evidence() -> None:
    anomaly = Anomaly("MOVED", "17 is elsewhere", {"partition": "t:0", "replicas": {"1": [5, 6]}})
    judged = judgement_of(verdict("invalid", {"MOVED": 3}, anomalies=(anomaly,)), 0)
    (moved,) = [a for a in judged.anomalies if a.count]
    assert moved.count == 3
    assert moved.evidence == ('17 is elsewhere\n  partition: t:0\n  replicas: {"1": [5, 6]}',)
    assert judged.sentence == "1 kind of anomaly was found: MOVED (3)."


def test_several_kinds_are_all_named() -> None:
    told = html.sentence(verdict("invalid", {"MOVED": 3, "GAP": 1_000}))
    assert told == "2 kinds of anomaly were found: MOVED (3), GAP (1,000)."


def test_what_was_not_judged_is_no_zero() -> None:
    judged = judgement_of(verdict(not_applicable={"GAP": "no final log"}), 0)
    (gap,) = [a for a in judged.anomalies if a.kind == "GAP"]
    assert gap.why_not == "no final log"
    assert judged.sentence == "No anomaly was found. 1 kind of anomaly could not be checked."


def test_unknown_says_why() -> None:
    told = html.sentence(verdict("unknown", troubles=("it broke", "it burnt", "it sank")))
    assert told.endswith("anomalies are possible: it broke (and 2 more)")
    assert "reports no reason" in html.sentence(verdict("unknown"))


def test_outages_are_times_of_the_report() -> None:
    base = 5_000 * NS
    outages = (
        Outage(start_ns=base + 10 * NS, length_ns=4 * NS, unexcused_ns=0, faults=("kill",)),
        Outage(start_ns=base + 20 * NS, length_ns=9 * NS, unexcused_ns=3 * NS),
    )
    excused, bad = judgement_of(verdict(outages=outages), base).windows
    assert (excused.begin_s, excused.end_s) == (10, 14)
    assert excused.text == "no acknowledgement for 4 s"
    assert (bad.begin_s, bad.end_s) == (20, 29)
    assert bad.text == "no acknowledgement for 9 s, 3 s of it not excused by a fault"


@pytest.mark.parametrize(
    ("name", "value", "row"),
    [
        ("records_sent", 1_234_567, ("records sent", "1,234,567")),
        ("judging_s", 1.25, ("judging", "1.25 s")),
        ("longest_outage_ns", 3 * NS, ("longest outage", "3 s")),
        ("bytes_sent", 1_500, ("bytes sent", "1.5 kB")),
        ("appends", {"ok": 5_000, "wait_s": 2}, ("appends", "ok 5,000, wait 2 s")),
        ("complete", True, ("complete", "True")),
        ("seconds", 60.123, ("seconds", "1 min 0 s")),
        ("ratio", 0.98765, ("ratio", "0.99")),
    ],
)
def test_statistics_have_units(name: str, value: Any, row: tuple[str, str]) -> None:
    assert judgement_of(verdict(stats={name: value}), 0).stats == (row,)


def test_empty_statistics_are_left_out() -> None:
    assert judgement_of(verdict(stats={"set_aside": {}, "appends": 0}), 0).stats == (
        ("appends", "0"),
    )


def test_evidence_is_bounded() -> None:
    anomaly = Anomaly("GAP", "x", {"offsets": list(range(100_000))})
    judged = judgement_of(verdict("invalid", {"GAP": 1}, anomalies=(anomaly,)), 0)
    (gap,) = [a for a in judged.anomalies if a.count]
    assert len(gap.evidence[0]) < 2 * html.EVIDENCE_CHARS_MAX
