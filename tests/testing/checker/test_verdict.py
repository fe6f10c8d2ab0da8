"""Verdicts: every kind is listed, the worst of several stays, and JSON has all of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from random import Random

import numpy as np
import pytest

from raftlog.testing.checker.verdict import (
    FAR,
    KINDS,
    NO_RUNS,
    Anomaly,
    Cover,
    Findings,
    Ints,
    Outage,
    Runs,
    Table,
    Valid,
    Verdict,
    agree,
    distinct,
    judged,
    merge,
    overlaps,
    running_max,
)
from raftlog.testing.history.entries import Seen


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


# -- runs ------------------------------------------------------------------------------------------
#
# Arithmetic with runs gives what arithmetic with single records would give.


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def runs(*records: Seen) -> Runs:
    table = Table(4)
    for record in records:
        table.add(record)
    return Runs.of(table)


def rows(found: Runs) -> list[Seen]:
    columns = (found.offset, found.count, found.value, found.epoch)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def intervals(random: Random, count: int) -> list[tuple[int, int]]:
    starts = [random.randrange(60) for _ in range(count)]
    return [(start, start + random.randrange(8)) for start in starts]


def columns(pairs: Iterable[tuple[int, int]]) -> tuple[Ints, Ints]:
    pairs = list(pairs)
    return ints(*(start for start, _ in pairs)), ints(*(end for _, end in pairs))


def members(pairs: Iterable[tuple[int, int]]) -> set[int]:
    return {member for start, end in pairs for member in range(start, end)}


@pytest.mark.parametrize("number", range(30))
def test_covers_are_sets(number: int) -> None:
    random = Random(number)
    some, others = intervals(random, random.randrange(12)), intervals(random, 6)
    cover, there = Cover(*columns(some)), members(some)
    asked = intervals(random, 20)
    expected = [len(there & set(range(*pair))) for pair in asked]
    assert cover.count(*columns(asked)).tolist() == expected
    assert bool(np.all(cover.start[1:] > cover.end[:-1]))
    both = cover.both(Cover(*columns(others)))
    assert members(zip(both.start.tolist(), both.end.tolist(), strict=True)) == (
        there & members(others)
    )
    holes = Cover(*cover.holes())
    assert holes.count(ints(0), ints(80)).tolist() == [80 - len(there)]
    assert holes.start[0] == -FAR
    assert holes.end[-1] == FAR


@pytest.mark.parametrize("number", range(30))
def test_overlaps_are_those_of_each_pair(number: int) -> None:
    random = Random(number)
    some = intervals(random, 15)
    cover = Cover(*columns(intervals(random, 8)))
    others = list(zip(cover.start.tolist(), cover.end.tolist(), strict=True))
    pieces = overlaps(*columns(some), cover.start, cover.end)
    found = zip(
        *(c.tolist() for c in (pieces.index, pieces.other, pieces.start, pieces.end)), strict=True
    )
    assert list(found) == [
        (index, other, max(start, first), min(end, last))
        for index, (start, end) in enumerate(some)
        for other, (first, last) in enumerate(others)
        if max(start, first) < min(end, last)
    ]


def test_a_table_grows_by_rows() -> None:
    table = Table(2)
    assert [len(column) for column in table.columns()] == [0, 0]
    table = Table(2)
    table.add((1, 2))
    table.add((3, 4, 5, 6))
    assert len(table) == 3
    assert [column.tolist() for column in table.columns()] == [[1, 3, 5], [2, 4, 6]]


def test_parts_of_runs() -> None:
    some = runs((0, 4, 10, 1), (4, 2, 50, 2))
    assert rows(some.above(3)) == [(3, 1, 13, 1), (4, 2, 50, 2)]
    assert rows(some.below(3)) == [(0, 3, 10, 1)]
    assert rows(some.outside(Cover(ints(1, 4), ints(2, 5)))) == [
        (0, 1, 10, 1),
        (2, 2, 12, 1),
        (5, 1, 51, 2),
    ]
    assert rows(some.with_(NO_RUNS)) == rows(some)
    assert (some.describe(0), runs((7, 1, 9, 0)).describe(0)) == ("10 to 13 at 0 to 3", "9 at 7")


def test_strange_records_do_not_follow_each_other() -> None:
    assert rows(runs((0, 2, 10, 1), (2, 3, -1, 1), (5, 1, 7, 1))) == [
        (0, 2, 10, 1),
        (2, 1, -1, 1),
        (3, 1, -1, 1),
        (4, 1, -1, 1),
        (5, 1, 7, 1),
    ]


def test_what_was_seen_twice_is_there_once() -> None:
    seen = runs((5, 1, 1, 1), (0, 2, 7, 1), (5, 1, 1, 1), (0, 3, 7, 1))
    assert rows(distinct(seen)) == [(0, 3, 7, 1), (0, 2, 7, 1), (5, 1, 1, 1)]
    assert rows(distinct(NO_RUNS)) == []


@pytest.mark.parametrize("number", range(30))
def test_sightings_of_one_log_agree(number: int) -> None:
    random = Random(number)
    log = [(offset, 100 + offset * (1 + offset // 20), offset // 20) for offset in range(60)]
    seen = []
    for start, end in intervals(random, 40):
        for offset, value, epoch in log[start:end]:
            if seen and seen[-1][0] + seen[-1][1] == offset and seen[-1][2] + seen[-1][1] == value:
                seen[-1] = (seen[-1][0], seen[-1][1] + 1, seen[-1][2], epoch)
            else:
                seen.append((offset, 1, value, epoch))
    seen = [run for run in seen if run[0] % 20 + run[1] <= 20]  # of one epoch each
    agreed = agree(runs(*seen))
    assert not agreed.conflicts
    there = {offset for run in seen for offset in range(run[0], run[0] + run[1])}
    found = [
        (offset + n, value + n, epoch)
        for offset, count, value, epoch in rows(agreed.runs)
        for n in range(count)
    ]
    assert found == [record for record in log if record[0] in there]


def test_sightings_that_disagree() -> None:
    agreed = agree(runs((0, 4, 10, 1), (2, 1, 12, 1), (2, 1, 99, 1), (3, 3, 13, 2)))
    assert [(rows(one), rows(other)) for one, other in agreed.conflicts] == [
        ([(0, 4, 10, 1)], [(2, 1, 99, 1)])
    ]
    assert [(rows(one), rows(other)) for one, other in agreed.epochs] == [
        ([(0, 4, 10, 1)], [(3, 3, 13, 2)])
    ]
    assert rows(agreed.runs) == [(0, 4, 10, 1), (4, 2, 14, 2)]


def test_an_unknown_epoch_agrees_with_all() -> None:
    agreed = agree(runs((0, 4, 10, -1), (2, 2, 12, 1)))
    assert not agreed.conflicts
    assert not agreed.epochs


def test_running_max() -> None:
    assert running_max(ints(3, 1, 5, 4)).tolist() == [-FAR, 3, 3, 5]
    assert running_max(ints()).tolist() == []
