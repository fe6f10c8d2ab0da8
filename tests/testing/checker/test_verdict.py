"""Verdicts: every kind is listed, the worst of several stays, and JSON has all of it."""

from __future__ import annotations

import json

import pytest

from raftlog.testing.checker.verdict import (
    KINDS,
    Anomaly,
    Findings,
    Outage,
    Valid,
    Verdict,
    judged,
    merge,
)


def verdict(valid: Valid, kind: str = "", **stats: int) -> Verdict:
    counts = dict.fromkeys(KINDS, 0)
    if kind:
        counts[kind] = 2
    return Verdict(valid=valid, counts=counts, stats=stats, troubles=("t",) * (valid == "unknown"))


def test_each_kind_has_its_condition() -> None:
    for kind, condition in KINDS.items():
        assert condition, kind
        assert condition[0].islower(), kind


@pytest.mark.parametrize(
    ("several", "worst"),
    [
        ((), "unknown"),
        (("valid", "valid"), "valid"),
        (("valid", "unknown"), "unknown"),
        (("unknown", "invalid", "valid"), "invalid"),
    ],
)
def test_the_worst_of_several(several: tuple[Valid, ...], worst: Valid) -> None:
    merged = merge(verdict(valid) for valid in several)
    assert merged.valid == worst
    assert set(merged.counts) == set(KINDS)


def test_merging_keeps_what_was_found() -> None:
    one, other = verdict("invalid", "GAP", a=1), verdict("invalid", "GAP", b=2)
    merged = merge([one, other, verdict("unknown")])
    assert merged.kinds == {"GAP"}
    assert merged.counts["GAP"] == 4
    assert merged.stats == {"a": 1, "b": 2}
    assert merged.troubles == ("t",)


def test_a_kind_of_another_checker_can_be_merged() -> None:
    other = Verdict(valid="invalid", counts={"GROUP-OFFSET-LOST": 1})
    assert merge([verdict("valid"), other]).kinds == {"GROUP-OFFSET-LOST"}


def test_judged() -> None:
    assert judged({"GAP": 0}, []) == "valid"
    assert judged({"GAP": 0}, ["trouble"]) == "unknown"
    assert judged({"GAP": 1}, ["trouble"]) == "invalid"


def test_only_the_first_findings_are_told() -> None:
    findings = Findings(evidence_max=2)
    asked: list[int] = []

    def describe(place: int) -> tuple[str, dict[str, int]]:
        asked.append(place)
        return f"at {place}", {"place": place}

    findings.each("GAP", range(5), describe)
    findings.add("GAP", "another")
    assert asked == [0, 1]
    assert findings.counts["GAP"] == 6
    assert findings.counts["MOVED"] == 0
    assert [str(anomaly) for anomaly in findings.anomalies] == ["GAP: at 0", "GAP: at 1"]
    assert findings.anomalies[0].evidence == {"place": 0}


def test_what_is_not_applicable_is_set_aside() -> None:
    findings = Findings({"GAP": "because"})
    findings.add("GAP", "a gap")
    assert findings.counts["GAP"] == 0
    assert findings.set_aside == {"GAP": 1}
    assert not findings.anomalies


def test_a_verdict_as_json() -> None:
    whole = Verdict(
        valid="invalid",
        counts={"GAP": 1},
        anomalies=(Anomaly("GAP", "a gap", {"offsets": [1, 2]}),),
        outages=(Outage(start_ns=1, length_ns=2, unexcused_ns=0, faults=("kill",)),),
        not_injected=({"id": 1},),
        not_applicable={"MOVED": "because"},
    )
    assert json.loads(json.dumps(whole.to_dict())) == {
        "valid": "invalid",
        "counts": {"GAP": 1},
        "anomalies": [{"kind": "GAP", "message": "a gap", "evidence": {"offsets": [1, 2]}}],
        "stats": {},
        "outages": [{"start_ns": 1, "length_ns": 2, "unexcused_ns": 0, "faults": ["kill"]}],
        "troubles": [],
        "not_injected": [{"id": 1}],
        "not_applicable": {"MOVED": "because"},
    }
