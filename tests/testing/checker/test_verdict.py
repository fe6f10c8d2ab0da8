"""Verdicts: every kind is listed, the worst of several stays, and JSON has all of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from raftlog.testing import history as entries
from raftlog.testing.checker.judge import LOSSES, NOT_COMPACTED, Limits, judge, judge_file
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
from raftlog.testing.history import STRANGE, AnyEntry, Ends, Read, Recorder, Seen
from tests.testing.checker.small import SECOND, P, Small, good
from tests.testing.checker.synthetic import Size, history


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


# -- judge -----------------------------------------------------------------------------------------
#
# The judge as a whole: files, limits, statistics; and that it is quick.


def write(path: Path, entries: list[AnyEntry]) -> Path:
    times = iter([entry.time for entry in entries])
    recorder = Recorder(path, lambda: next(times))
    for entry in entries:
        recorder.record(entry)
    recorder.close()
    return path


def test_a_file_is_judged_as_its_entries_are(tmp_path: Path) -> None:
    small = good()
    small.finish(log=small.log[:2])
    path = write(tmp_path / "history.jsonl", small.entries)
    assert judge_file(path) == small.judge()
    assert judge_file(path).valid == "invalid"


def test_a_line_that_cannot_be_read(tmp_path: Path) -> None:
    small = good()
    small.finish()
    path = write(tmp_path / "history.jsonl", small.entries)
    path.write_bytes(path.read_bytes() + b'{"f":"app')
    verdict = judge_file(path)
    assert verdict.valid == "unknown"
    assert "line 16" in verdict.troubles[0]


def test_an_empty_history_proves_nothing() -> None:
    verdict = judge([])
    assert verdict.valid == "unknown"
    assert set(verdict.counts) == set(KINDS)


def test_all_of_a_verdict_fits_into_json() -> None:
    small = good()
    small.fault(1, injected=False)
    small.land(99)
    small.poll((0, 1, 6, 1))
    small.finish(log=small.log[1:])
    verdict = small.judge()
    assert json.loads(json.dumps(verdict.to_dict()))["valid"] == "invalid"
    for anomaly in verdict.anomalies:
        assert anomaly.kind in KINDS
        assert anomaly.message
        assert anomaly.evidence


def test_statistics() -> None:
    stats = judge(history(1)).stats
    assert stats["lines"]["append invoke"] == sum(stats["appends"].values())
    assert stats["partitions"] == 7
    assert stats["replicas_dumped"] == 21
    assert stats["groups"] == 3
    assert stats["group_operations"]["commits ok"] > 20
    assert stats["members"] == 5
    assert stats["faults_injected"] == {"kill": 1, "partition": 1}
    assert 70 < stats["load_s"] < stats["seconds"]
    assert 0 < stats["records_acknowledged"] < stats["records_sent"]


def test_limits() -> None:
    small = good()
    small.invoke(7, process="q")
    small.pass_s(6)
    small.complete(7, process="q")
    small.poll(at=0, takes_s=3)
    small.finish()
    assert small.found() == {}
    strict = Limits(outage_max_ns=5 * SECOND, lag_ns=5 * SECOND)
    assert small.judge(strict).kinds == {"UNAVAILABLE", "STALE-READ"}


def test_evidence_is_bounded() -> None:
    small = Small()
    for value in range(50):
        small.append(2 * value)
    small.finish(log=small.log[:1])
    assert small.judge().counts["LOST-tail"] == 49
    assert len(small.judge().anomalies) == 20
    assert len(small.judge(Limits(evidence_max=3)).anomalies) == 3


@pytest.mark.parametrize("phase", ["quiesce", "read"])
def test_a_cluster_that_does_not_come_to_rest(phase: str) -> None:
    small = good()
    small.phase(phase, "fail")
    small.finish()
    assert small.found() == {"STUCK": 1}


MILLION = """
import json, resource, sys, time
from pathlib import Path
from raftlog.testing.checker.judge import judge_file
begun = time.process_time()
verdict = judge_file(Path(sys.argv[1]))
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
lines = verdict.stats["lines"]
operations = lines["append invoke"] + lines["poll invoke"]
print(json.dumps([verdict.valid, operations, time.process_time() - begun, rss / 1024]))
"""


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
def test_a_million_operations_are_judged_in_a_minute_and_2_gib(tmp_path: Path) -> None:
    """Processor time, so that other work on the machine does not matter."""
    path = tmp_path / "history.jsonl"
    write_million(path)
    done = subprocess.run(
        [sys.executable, "-c", MILLION, str(path)], check=True, capture_output=True, text=True
    )
    valid, operations, seconds, mebibytes = json.loads(done.stdout)
    assert valid == "valid"
    assert operations >= 1_000_000
    assert seconds < 60
    assert mebibytes < 2_048


def write_million(path: Path) -> None:
    size = Size(
        operations=1_400_000, partitions=8, producers=16, consumers=8, group_max=50, time_s=600.0
    )
    encode = msgspec.json.Encoder().encode
    with path.open("wb") as file:
        for entry in history(1, size):
            file.write(encode(entry) + b"\n")


# -- log -------------------------------------------------------------------------------------------
#
# What was acknowledged is where it was acknowledged, in every order that was promised.


def test_a_good_history_has_nothing() -> None:
    small = good()
    small.finish()
    assert small.judge().valid == "valid"
    assert small.found() == {}


def test_lost_tail() -> None:
    small = good()
    small.finish(log=small.log[:2])
    assert small.found() == {"LOST-tail": 1}
    (anomaly,) = small.judge().anomalies
    assert anomaly.evidence["offsets"] == [5, 5]
    assert anomaly.evidence["operations"][0]["lines"] == [7, 8]


def test_lost_mid() -> None:
    """Another value, of which nobody knew, has taken its place."""
    small = good()
    small.invoke(9)
    small.finish(log=[(0, 3, 1, 1), (3, 1, 4, 1), (4, 1, 9, 1), (5, 1, 6, 1)])
    assert small.found() == {"LOST-mid": 1, "REALTIME-ORDER": 1}


def test_the_log_starts_where_nobody_deleted() -> None:
    small = good()
    small.finish(log=[(1, 2, 2, 1), *small.log[1:]], start=1)
    assert small.found() == {"LOST-mid": 2}  # the value, and the start
    small = Small()
    small.append(1)
    small.finish(log=[], start=1, end=1)
    assert small.found() == {"LOST-tail": 2}


def test_the_log_of_one_reader_starts_where_nobody_deleted() -> None:
    small = good()
    small.finish(second=small.log[1:])
    small.entries = [
        replace(entry, start=3) if isinstance(entry, Read) and entry.process == "r2" else entry
        for entry in small.entries
    ]
    assert small.found() == {"LOST-mid": 1}


def test_what_was_certainly_deleted_is_there_again() -> None:
    for type_ in ("ok", "info", "fail"):
        small = good()
        small.delete(4, type_)  # type: ignore[arg-type]
        small.finish()
        assert small.found() == ({"RESURRECTED": 1} if type_ == "ok" else {})


def test_records_of_a_deleted_topic_were_deleted_in_that_one_only() -> None:
    small = good()
    small.delete(4)
    small.admin("delete")
    small.log.clear()
    small.admin("create")
    small.append(11, process="p2")
    small.finish()
    assert small.found() == {}


def test_beyond_the_budget_a_deletion_may_be_lost() -> None:
    small = good()
    small.delete(4)
    small.fault(1, budget="beyond", expects="outage")
    small.finish()
    assert small.found() == {}


def test_what_was_deleted_may_be_gone_even_if_nobody_knows_that_it_was() -> None:
    for type_ in ("ok", "info"):
        small = good()
        small.delete(4, type_)  # type: ignore[arg-type]
        small.finish(log=[(4, 1, 5, 1), (5, 1, 6, 1)], start=4)
        assert small.found() == {}
    small = good()
    small.delete(4, "fail")
    small.finish(log=[(4, 1, 5, 1), (5, 1, 6, 1)], start=4)
    assert set(small.found()) == {"LOST-mid"}


@pytest.mark.parametrize("config", [{"retention.ms": "1000"}, {"retention.bytes": "65536"}])
def test_what_a_topic_does_not_retain_may_be_gone(config: dict[str, str]) -> None:
    topics = [{"name": "t", "config": [list(pair) for pair in config.items()]}]
    small = Small({"shape": {"topics": topics}})
    small.append(1, 3)
    small.append(4)
    small.finish(log=[(2, 1, 3, 1), (3, 1, 4, 1)], start=2)
    assert small.found() == {}


def test_retention_can_come_with_a_change() -> None:
    small = good()
    small.admin("alter", config={"retention.bytes": "65536"})
    small.finish(log=[(5, 1, 6, 1)], start=5)
    assert small.found() == {}
    small = good()
    small.admin("alter", config={"retention.bytes": "-1", "segment.bytes": "65536"})
    small.finish(log=[(5, 1, 6, 1)], start=5)
    assert "LOST-mid" in small.found()


def test_moved() -> None:
    small = good()
    small.finish(log=[(0, 3, 1, 1), (3, 1, 6, 1), (4, 1, 5, 1), (5, 1, 4, 1)])
    assert small.found() == {"MOVED": 2}


@pytest.mark.parametrize("acks", [0, 1])
def test_weaker_acknowledgements_promise_nothing(acks: int) -> None:
    small = good()
    small.invoke(7, acks=acks)
    small.complete(7, offsets=[(7, 1, 6)] if acks else [])
    small.finish()
    assert small.found() == {}


def test_an_acknowledged_part_binds_whatever_became_of_the_rest() -> None:
    for type_ in ("info", "fail"):
        small = good()
        small.invoke(7, 2)
        small.complete(7, 2, type_=type_, offsets=[(7, 1, 6)])  # type: ignore[arg-type]
        small.finish()
        assert small.found() == {"LOST-tail": 1}


def test_what_is_not_known_may_be_there_or_not() -> None:
    small = good()
    small.invoke(7)
    small.complete(7, type_="info")
    small.invoke(8)  # never completed
    small.land(8)
    small.finish()
    assert small.found() == {}


def test_real_time_order() -> None:
    small = good()
    small.invoke(7)
    small.complete(7, offsets=[(7, 1, 7)])
    small.append(8)  # sent when 7 was acknowledged, and yet before it
    small.log.append((7, 1, 7, 1))
    small.finish()
    assert small.found() == {"NONMONOTONIC-SEND": 1, "REALTIME-ORDER": 1}
    lone = good()
    lone.invoke(7, process="q")
    lone.complete(7, offsets=[(7, 1, 7)], process="q")
    lone.append(8)
    lone.log.append((7, 1, 7, 1))
    lone.finish()
    assert lone.found() == {"REALTIME-ORDER": 1}


def test_real_time_order_of_a_record_whose_outcome_is_unknown() -> None:
    for acks, type_ in ((-1, "info"), (1, "ok")):
        small = good()
        small.invoke(7)
        small.complete(7, offsets=[(7, 1, 7)])
        small.invoke(8, process="q", acks=acks)
        small.complete(8, process="q", type_=type_)  # type: ignore[arg-type]
        small.log[3:] = [(6, 1, 8, 1), (7, 1, 7, 1)]
        small.finish()
        assert small.found() == {"REALTIME-ORDER": 1}


def test_a_record_that_was_sent_before_may_have_any_place() -> None:
    small = good()
    small.invoke(8, process="q")
    small.invoke(7)
    small.complete(7, offsets=[(7, 1, 7)])
    small.complete(8, process="q", type_="info")
    small.log += [(6, 1, 8, 1), (7, 1, 7, 1)]
    small.finish()
    assert small.found() == {}


def test_operations_that_overlap_may_come_in_any_order() -> None:
    small = good()
    small.invoke(7, process="q")
    small.invoke(8)
    small.complete(8)
    small.complete(7, process="q")
    small.finish()
    assert small.found() == {}


def test_a_producers_order() -> None:
    small = good()
    small.invoke(7)
    small.invoke(8)
    small.complete(8)
    small.complete(7)
    small.finish()
    assert small.found() == {"NONMONOTONIC-SEND": 1}


def test_who_is_not_idempotent_may_be_overtaken() -> None:
    small = good()
    small.invoke(7, idempotent=False)
    small.invoke(8, idempotent=False)
    small.complete(8)
    small.complete(7)
    small.finish()
    assert small.found() == {}


def test_the_order_within_an_append() -> None:
    small = good()
    small.invoke(7, 2)
    small.complete(7, 2, offsets=[(7, 1, 7), (8, 1, 6)])
    small.log += [(6, 1, 8, 1), (7, 1, 7, 1)]
    small.finish()
    assert small.found() == {"INT-NONMONOTONIC-SEND": 1}


def test_beyond_the_budget_only_what_is_there_counts() -> None:
    small = good()
    small.fault(1, budget="beyond", expects="outage")
    small.log.pop()
    small.append(7, process="q")  # at an offset that 6 was acknowledged at
    small.finish()
    verdict = small.judge()
    assert verdict.valid == "valid"
    assert set(LOSSES) <= verdict.not_applicable.keys()
    assert {"LOST-tail", "LOST-mid", "OBSERVED-THEN-LOST"} <= set(LOSSES)
    assert verdict.stats["found_but_not_judged"] == {"LOST-mid": 1}


# -- compaction ------------------------------------------------------------------------------------
#
# Of every key, what was acknowledged last is in every copy; or it is deleted, and nothing is.


KEYS = 4
PLAN = {
    "shape": {
        "topics": [{"name": "t", "config": [["cleanup.policy", "compact"]], "keys": KEYS}],
    }
}


def of_key(key: int, *, dead: bool) -> list[int]:
    """Values of one key, tombstones or others, by size."""
    return [
        value
        for value in range(1, 2_000)
        if entries.key_of(value, KEYS) == key and entries.is_tombstone(value) == dead
    ]


A, B, C = of_key(0, dead=False)[:3]
DEAD = of_key(0, dead=True)[0]
OTHER, ANOTHER = of_key(1, dead=False)[:2]


def written(*values: int, plan: dict[str, Any] | None = None) -> Small:
    """Each appended by itself, at 0, 1, 2..."""
    small = Small(PLAN if plan is None else plan)
    for value in values:
        small.append(value)
    return small


def at(*offsets: int) -> Callable[[list[Seen]], list[Seen]]:
    """What is left of the log."""
    return lambda log: [seen for seen in log if seen[0] in offsets]


@pytest.mark.parametrize(
    ("values", "left", "kinds"),
    [
        ((A, B, OTHER), (0, 1, 2), {}),  # nothing is compacted yet
        ((A, B, OTHER), (1, 2), {}),
        ((A, B, OTHER), (0, 2), {"COMPACT-LOST-KEY": 2}),
        ((A, OTHER), (1,), {"COMPACT-LOST-KEY": 2}),
        ((A, DEAD, OTHER), (1, 2), {}),
        ((A, DEAD, OTHER), (2,), {}),
        ((A, DEAD, OTHER), (0, 2), {"COMPACT-RESURRECTED": 2}),
        ((A, DEAD, B, OTHER), (2, 3), {}),
        ((A, DEAD, B, OTHER), (3,), {"COMPACT-LOST-KEY": 2}),
        ((A, DEAD, B, OTHER), (0, 3), {"COMPACT-LOST-KEY": 2}),
        ((A, B, C, OTHER, ANOTHER), (2, 4), {}),
        ((A, B, C, OTHER, ANOTHER), (1, 4), {"COMPACT-LOST-KEY": 2}),
    ],
)
def test_what_may_be_gone(
    values: tuple[int, ...], left: tuple[int, ...], kinds: dict[str, int]
) -> None:
    """In each of two readers; the files of replicas have it all."""
    small = written(*values)
    whole = small.log
    files = {"records": whole}
    small.finish(log=at(*left)(whole), end=len(values), dumps={1: files, 2: files})
    assert small.found() == kinds


def test_every_copy_counts() -> None:
    small = written(A, B, OTHER)
    without = at(0, 2)(small.log)
    small.finish(dumps={2: {"records": without}})
    assert small.found() == {"COMPACT-LOST-KEY": 1}
    (anomaly,) = small.judge().anomalies
    assert "broker 2: key 0" in anomaly.message
    assert anomaly.evidence["offsets"] == [1, 0]


def test_a_replica_that_need_not_be_whole_may_lack_it() -> None:
    small = written(A, B, OTHER)
    small.finish(dumps={2: {"records": at(0, 2)(small.log), "should_be_whole": False}})
    assert small.found() == {}


def test_a_tombstone_of_which_nobody_knows_may_have_taken_it() -> None:
    small = written(A)
    small.invoke(DEAD, process="q")
    small.complete(DEAD, type_="info", process="q")
    small.land(DEAD)
    small.append(OTHER)
    small.finish(log=at(2)(small.log))
    assert small.found() == {}


def test_a_later_record_of_which_nobody_knew_is_as_good() -> None:
    small = written(A)
    small.invoke(B, process="q")
    small.land(B)
    small.append(OTHER)
    small.finish(log=at(1, 2)(small.log))
    assert small.found() == {}


def test_the_end_stays() -> None:
    small = written(A, OTHER)
    small.finish(log=at(0)(small.log), end=1)
    assert "LOST-tail" in small.found()


def test_a_record_that_moved() -> None:
    small = written(A, B, OTHER)
    log = [(0, 1, B, 1), (2, 1, OTHER, 1)]
    small.finish(log=log, end=3)
    assert set(small.found()) == {"COMPACT-LOST-KEY", "COMPACT-MOVED", "INCONSISTENT-OFFSET"}


def test_what_a_consumer_was_given_may_be_gone_if_it_is_superseded() -> None:
    small = written(A, B, OTHER)
    small.poll(*small.log)
    small.finish(log=at(1, 2)(small.log))
    assert small.found() == {}
    small = written(A, OTHER)
    small.poll(*small.log)
    small.finish(log=at(1)(small.log), end=2)
    assert small.found() == {"COMPACT-LOST-KEY": 4, "OBSERVED-THEN-LOST": 1}


@pytest.mark.parametrize(("given", "kinds"), [((2, 3), {}), ((0, 3), {"POLL-SKIP": 1})])
def test_a_consumer_may_only_leave_out_what_is_gone(
    given: tuple[int, ...], kinds: dict[str, int]
) -> None:
    small = written(A, B, C, OTHER)
    first, *rest = at(*given)(small.log)
    small.poll(first, at=0)
    small.poll(*rest, at=first[0] + 1)
    small.finish(log=at(2, 3)(small.log))
    assert small.found() == kinds


def test_without_keys_in_the_plan_nothing_is_said_of_keys() -> None:
    plan = {"shape": {"topics": [{"name": "t", "config": [["cleanup.policy", "compact"]]}]}}
    small = written(A, OTHER, plan=plan)
    small.finish(log=at(1)(small.log), end=2)
    assert small.found() == {}
    assert small.judge().not_applicable["COMPACT-LOST-KEY"] == NOT_COMPACTED


def test_a_topic_that_is_not_compacted_has_no_holes() -> None:
    small = written(A, B, plan={})
    small.finish(log=at(1)(small.log), end=2)
    assert set(small.found()) == {"GAP", "LOST-mid"}


def test_a_poll_may_skip_what_is_superseded_though_another_replica_has_it_still() -> None:
    small = written(A, B, OTHER)
    whole = small.log
    small.poll(*at(1, 2)(whole), at=0)
    small.finish()
    assert small.found() == {}


@pytest.mark.parametrize(("given", "kind"), [((0, 2), "INT-POLL-SKIP"), ((2,), "POLL-SKIP")])
def test_a_poll_may_not_skip_the_last_record_of_a_key(given: tuple[int, ...], kind: str) -> None:
    small = written(A, B, OTHER)
    small.poll(*at(*given)(small.log), at=0)
    small.finish()
    assert small.found() == {kind: 1}


# -- logs ------------------------------------------------------------------------------------------
#
# The final log: dense, its epochs in order, the same for all who read it.


def test_a_gap() -> None:
    small = good()
    small.invoke(7)
    small.log[2:] = [(5, 1, 6, 1), (7, 1, 7, 1)]
    small.finish()
    assert small.found() == {"GAP": 4}
    whose = {anomaly.evidence["replicas"][0] for anomaly in small.judge().anomalies}
    assert whose == {"r1", "r2", "broker 1", "broker 2"}


def test_a_log_that_ends_before_its_end() -> None:
    small = good()
    small.finish(end=8, dumps={1: {"end": 6}, 2: {"end": 6}})
    found = small.found()
    assert set(found) == {"GAP", "STUCK"}
    assert small.judge().anomalies[0].evidence["offsets"] == [6, 7]


def test_epochs_that_go_down() -> None:
    small = good()
    log = [(0, 3, 1, 1), (3, 2, 4, 3), (5, 1, 6, 2)]
    small.finish(log=log)
    assert set(small.found()) == {"EPOCH-ORDER"}


def test_epochs_that_nobody_knows() -> None:
    small = good()
    small.finish(log=[(0, 3, 1, 3), (3, 2, 4, -1), (5, 1, 6, 3)])
    assert small.found() == {}


def test_readers_disagree() -> None:
    small = good()
    small.finish(second=[(0, 3, 1, 1), (3, 1, 4, 1), (4, 1, 6, 1), (5, 1, 6, 1)])
    assert small.found() == {"INCONSISTENT-OFFSET": 1}


def test_readers_disagree_about_an_epoch() -> None:
    small = good()
    small.finish(second=[(0, 5, 1, 1), (5, 1, 6, 2)])
    assert small.found() == {"EPOCH-ORDER": 1}


def test_a_reader_is_left_behind() -> None:
    small = good()
    small.finish(second=small.log[:2], second_end=5)
    assert small.found() == {"STUCK": 1}


def test_a_reader_leaves_something_out() -> None:
    small = good()
    small.finish(second=[small.log[0], small.log[2]])
    assert small.found() == {"GAP": 1}


def test_a_reader_goes_back() -> None:
    small = good()
    small.finish(second=[(0, 3, 1, 1), (2, 1, 3, 1), (3, 2, 4, 1), (5, 1, 6, 1)])
    assert small.found() == {"NONMONOTONIC-POLL": 1}


def test_a_reader_is_given_two_values_at_one_offset() -> None:
    small = good()
    log = [(0, 3, 1, 1), (2, 1, 6, 1), (3, 2, 4, 1), (5, 1, 6, 1)]
    small.finish(log=log, second=small.log, dumps={1: {"records": small.log}})
    assert small.found() == {"INCONSISTENT-OFFSET": 1, "NONMONOTONIC-POLL": 1}


def test_the_parts_of_a_reader_are_one_log() -> None:
    small = good()
    small.finish()
    at, whole = next((at, e) for at, e in enumerate(small.entries) if isinstance(e, Read))
    small.entries[at : at + 1] = [
        Read(time=whole.time, process="r1", type="ok", partition=P, start=0, end=6, records=[run])
        for run in small.log
    ]
    assert small.found() == {}


def test_who_read_farthest_has_the_final_log() -> None:
    small = good()
    small.finish(log=small.log[:2], second=small.log, second_end=6)
    assert small.found()["STUCK"] >= 1
    assert "LOST-tail" not in small.found()


def test_a_reader_that_gave_up_is_not_believed() -> None:
    small = good()
    small.finish()
    for entry in small.entries:
        if isinstance(entry, Read) and entry.process == "r1":
            entry.type = "fail"
            entry.records = []
    verdict = small.judge()
    assert verdict.valid == "unknown"
    assert "r1 did not reach the end of t:0" in verdict.troubles


# -- observed --------------------------------------------------------------------------------------
#
# What consumers were given is there at the end, and is what others were given.


def test_observed_then_lost() -> None:
    small = good()
    small.invoke(7)
    small.poll((5, 1, 6, 1), (6, 1, 7, 1))
    small.finish()
    assert small.found() == {"OBSERVED-THEN-LOST": 1}


def test_it_does_not_matter_how_it_was_acknowledged() -> None:
    small = good()
    small.invoke(7, acks=1)
    small.complete(7, offsets=[(7, 1, 6)])
    small.poll((5, 1, 6, 1), (6, 1, 7, 1))
    small.finish()
    assert small.found() == {"OBSERVED-THEN-LOST": 1}


def test_what_was_deleted_is_not_lost() -> None:
    small = good()
    small.poll((0, 3, 1, 1), (3, 2, 4, 1))
    small.delete(4)
    small.finish(log=[(4, 1, 5, 1), (5, 1, 6, 1)], start=4)
    assert small.found() == {}


def test_another_value_at_the_offset() -> None:
    small = good()
    small.poll((0, 1, 1, 1), (1, 1, 6, 1))
    small.finish()
    assert small.found() == {"INCONSISTENT-OFFSET": 1}


def test_the_same_mistake_seen_twice_is_one_finding() -> None:
    small = good()
    for process in ("c1", "c2"):
        small.poll((0, 1, 1, 1), (1, 1, 6, 1), process=process)
    small.finish()
    assert small.found() == {"INCONSISTENT-OFFSET": 1}


def test_another_value_where_it_is_deleted() -> None:
    small = good()
    small.poll((0, 2, 1, 1), process="c1")
    small.poll((1, 1, 6, 1), process="c2")
    small.delete(3)
    small.finish(log=small.log[1:], start=3)
    assert small.found() == {"INCONSISTENT-OFFSET": 1}


def test_acknowledgements_count_where_it_is_deleted() -> None:
    small = good()
    small.invoke(7)
    small.poll((0, 1, 7, 1))
    small.delete(3)
    small.finish(log=small.log[1:], start=3)
    assert small.found() == {"INCONSISTENT-OFFSET": 1}


def test_another_epoch_of_a_record() -> None:
    small = good()
    small.poll((0, 3, 1, 2))
    small.finish()
    assert small.found() == {"EPOCH-ORDER": 1}


def test_an_epoch_may_be_unknown() -> None:
    small = good()
    small.poll((0, 3, 1, -1))
    small.finish()
    assert small.found() == {}


def test_epochs_go_down_where_it_is_deleted() -> None:
    small = good()
    small.poll((0, 1, 1, 2), (1, 2, 2, 1))
    small.delete(3)
    small.finish(log=small.log[1:], start=3)
    assert small.found() == {"EPOCH-ORDER": 1}


def test_without_a_final_log_consumers_are_compared_with_each_other() -> None:
    small = good()
    small.poll((0, 3, 1, 1), process="c1")
    small.poll((1, 1, 6, 1), process="c2")
    small.phase("end")
    verdict = small.judge()
    assert "INCONSISTENT-OFFSET" in verdict.kinds
    assert verdict.troubles


def test_beyond_the_budget_what_was_lost_is_not_compared() -> None:
    small = good()
    small.poll((5, 1, 6, 1))
    small.fault(1, budget="beyond")
    small.log.pop()
    small.append(7, process="q")
    small.finish()
    verdict = small.judge()
    assert verdict.valid == "valid"
    assert verdict.stats["found_but_not_judged"] == {"LOST-mid": 1, "OBSERVED-THEN-LOST": 1}


# -- polls -----------------------------------------------------------------------------------------
#
# Consumers are given records in order, all of them, and in time.


LOG = [(0, 3, 1, 1), (3, 2, 4, 1), (5, 1, 6, 1)]


def log_judged(*polls: list[tuple[int, int, int, int]]) -> dict[str, int]:
    """What is found when one consumer is given these, one after the other, from offset 0 on."""
    small = good()
    for records in polls:
        small.poll(*records, at=0)
    small.finish()
    return small.found()


def test_polls_that_follow_each_other() -> None:
    assert log_judged(LOG[:1], [], LOG[1:]) == {}
    assert log_judged([(0, 2, 1, 1)], [(2, 1, 3, 1), (3, 1, 4, 1)], [(4, 1, 5, 1), LOG[2]]) == {}


def test_a_record_is_left_out_within_a_poll() -> None:
    assert log_judged([(0, 1, 1, 1), (2, 1, 3, 1)]) == {"INT-POLL-SKIP": 1}


def test_a_poll_goes_back() -> None:
    assert log_judged([(0, 2, 1, 1), (1, 2, 2, 1)]) == {"INT-NONMONOTONIC-POLL": 1}


def test_a_record_is_left_out_between_polls() -> None:
    assert log_judged(LOG[:1], LOG[2:]) == {"POLL-SKIP": 1}


def test_a_record_is_left_out_before_the_first_poll() -> None:
    assert log_judged(LOG[1:]) == {"POLL-SKIP": 1}


def test_a_consumer_goes_back() -> None:
    assert log_judged(LOG[:2], LOG[1:]) == {"NONMONOTONIC-POLL": 1}


def test_each_consumer_has_its_own_position() -> None:
    small = good()
    small.poll(*LOG[1:], process="c1")
    small.poll(*LOG, process="c2")
    small.finish()
    assert small.found() == {}


def test_who_does_not_know_where_it_is_begins_anew() -> None:
    small = good()
    small.poll(*LOG[:1])
    small.poll(at=3, type_="info")
    small.poll(LOG[2], at=5)
    small.finish()
    assert small.found() == {}
    small = good()
    small.poll(*LOG[:1])
    small.poll(at=3, type_="fail")
    small.poll(LOG[2], at=5)
    small.finish()
    assert small.found() == {"POLL-SKIP": 1}


def test_deleted_records_may_be_left_out_once_they_are_being_deleted() -> None:
    small = good()
    small.poll(LOG[1], at=0, process="c0")
    small.delete(3)
    small.poll(LOG[1], at=0, process="c1")
    small.poll(LOG[2], at=0, process="c2")
    small.finish(log=small.log[1:], start=3)
    assert small.found() == {"POLL-SKIP": 2}


def test_what_is_not_retained_may_be_left_out() -> None:
    small = Small({"shape": {"topics": [{"name": "t", "config": [["retention.ms", "1"]]}]}})
    small.append(1, 3)
    small.append(4, 2)
    small.append(6)
    small.poll(LOG[1], at=0, process="c1")
    small.poll(LOG[2], at=0, process="c2")
    small.finish(log=small.log[1:], start=3)
    assert small.found() == {"POLL-SKIP": 1}


def test_a_stale_read() -> None:
    small = good()
    small.pass_s(11)
    small.poll(at=5, takes_s=6)
    small.finish()
    assert small.found() == {"STALE-READ": 1}


def test_who_is_at_the_end_waits_in_vain() -> None:
    small = good()
    small.pass_s(11)
    small.poll(at=6, takes_s=6)
    small.finish()
    assert small.found() == {}


def test_records_may_take_their_time() -> None:
    small = good()
    small.pass_s(9)
    small.poll(at=5, takes_s=6)
    small.finish()
    assert small.found() == {}


def test_a_consumer_may_need_time_to_connect() -> None:
    small = good()
    small.pass_s(30)
    small.poll(at=5, takes_s=2)
    small.poll(LOG[2], at=5)
    small.finish()
    assert small.found() == {}
    small = good()
    small.pass_s(30)
    for _ in range(4):
        small.poll(at=5, takes_s=2)
    small.finish()
    assert small.found() == {"STALE-READ": 2}


def test_what_was_deleted_is_not_missed() -> None:
    small = good()
    small.delete(6)
    small.pass_s(30)
    small.poll(at=5, takes_s=6)
    small.finish(log=[], start=6, end=6)
    assert small.found() == {}


def test_faults_excuse_stale_reads() -> None:
    small = good()
    small.fault(1)
    small.pass_s(30)
    small.poll(at=5, takes_s=6, process="during")
    small.fault(1, "end")
    small.pass_s(5)
    small.poll(at=5, takes_s=6, process="soon after")
    small.finish()
    assert small.found() == {}
    small = good()
    small.fault(1)
    small.fault(1, "end")
    small.fault(2, injected=False)
    small.pass_s(11)
    small.poll(at=5, takes_s=6)
    small.finish()
    assert small.found() == {"STALE-READ": 1}


def test_beyond_the_budget_positions_mean_nothing() -> None:
    small = good()
    small.fault(1, budget="beyond")
    small.poll(*LOG[:2], at=0)
    small.poll(*LOG[1:])
    small.finish()
    assert small.found() == {}


# -- values ----------------------------------------------------------------------------------------
#
# Values: each was sent, none that was refused, none twice, none of a topic that is no more.


def test_a_duplicate_of_an_idempotent_producer() -> None:
    small = good()
    small.land(2)
    small.finish()
    assert small.found() == {"DUPLICATE": 1}
    (anomaly,) = small.judge().anomalies
    assert [place["offsets"] for place in anomaly.evidence["places"]] == [[0, 2], [6, 6]]


def test_others_may_repeat() -> None:
    small = good()
    small.append(7, 2, idempotent=False)
    small.land(7, 2)
    small.finish()
    assert small.found() == {}


def test_a_duplicate_of_what_was_deleted() -> None:
    small = good()
    small.poll((0, 3, 1, 1))
    small.delete(3)
    small.land(1)
    small.finish(log=small.log[1:], start=3)
    assert small.found() == {"DUPLICATE": 1}


def test_what_failed_is_there() -> None:
    small = good()
    small.invoke(7, 3)
    small.complete(7, 3, type_="fail", offsets=[(7, 1, small.land(7))])
    small.finish()
    assert small.found() == {}
    small = good()
    small.invoke(7, 3)
    small.complete(7, 3, type_="fail", offsets=[(7, 1, small.land(7))])
    small.land(9)
    small.finish()
    assert small.found() == {"G1A": 1}
    assert small.judge().anomalies[0].evidence["operations"][0]["first"] == 7


def test_what_failed_was_shown() -> None:
    small = good()
    small.invoke(7)
    small.complete(7, type_="fail")
    small.poll((6, 1, 7, 1))
    small.finish()
    assert small.found() == {"G1A": 1, "OBSERVED-THEN-LOST": 1}


def test_phantoms() -> None:
    small = good()
    small.land(99)
    small.finish()
    assert small.found() == {"PHANTOM": 1}
    small = good()
    small.log.append((6, 2, STRANGE, 1))  # neither of which has a value
    small.finish()
    assert small.found() == {"PHANTOM": 2}
    small = good()
    small.finish(dumps={1: {"records": [*small.log, (6, 1, 99, 1)], "end": 7}})
    assert small.found() == {"PHANTOM": 1}


def test_a_value_of_another_partition_is_a_phantom() -> None:
    small = good()
    small.invoke(7, partition="t:1")
    small.complete(7, type_="info", partition="t:1")
    small.land(7)
    small.finish()
    assert small.judge().kinds == {"PHANTOM"}


def _recreated(delete: str = "ok") -> Small:
    small = good()
    small.poll(*small.log, process="c1")
    small.ends(6, process="a1")
    small.admin("delete", delete)  # type: ignore[arg-type]
    small.log.clear()
    small.admin("create")
    small.append(11, process="p2")
    return small


def test_a_topic_that_was_deleted_keeps_nothing() -> None:
    for delete in ("ok", "info"):
        small = _recreated(delete)
        small.poll((0, 1, 11, 1), process="c2")
        small.ends(1, process="a2")
        small.finish()
        assert small.found() == {}


def test_what_was_acknowledged_before_a_deletion_comes_back() -> None:
    small = _recreated()
    small.land(5)
    small.finish()
    assert small.found() == {"RESURRECTED": 1}


def test_a_consumer_may_still_have_what_it_fetched_before_the_deletion() -> None:
    small = good()
    small.poll((0, 1, 1, 1), process="slow")
    small.admin("delete")
    small.log.clear()
    small.admin("create")
    small.append(11, process="p2")
    small.pass_s(60)
    small.poll((1, 1, 2, 1), process="slow")
    small.finish()
    assert small.found() == {}


def test_it_is_seen_in_a_poll() -> None:
    small = _recreated()
    small.pass_s(60)
    small.poll((0, 1, 11, 1), (1, 1, 5, 1), process="c2")
    small.finish()
    assert small.found() == {"RESURRECTED": 1, "OBSERVED-THEN-LOST": 1}


def test_a_broker_may_hear_late_of_a_deletion() -> None:
    small = _recreated()
    small.poll((0, 3, 1, 1), process="c2")
    small.finish()
    assert small.found() == {}


def test_what_was_under_way_may_come_late() -> None:
    small = good()
    small.invoke(7)
    small.admin("delete")
    small.admin("create")
    small.log.clear()
    small.complete(7)
    small.finish()
    assert small.found() == {}


def test_what_comes_after_counts_as_ever() -> None:
    small = _recreated()
    small.append(12, process="p2")
    small.finish(log=small.log[:1])
    assert small.found() == {"LOST-tail": 1}


def test_the_lives_of_a_topic_before_are_judged_by_themselves() -> None:
    small = good()
    small.poll((0, 1, 1, 1), process="c1")
    small.poll((0, 1, 2, 1), process="c2")
    small.poll((3, 1, 99, 1), process="c3")
    small.admin("delete")
    small.admin("create")
    small.log.clear()
    small.append(11, process="p2")
    small.finish()
    assert small.found() == {"INCONSISTENT-OFFSET": 1, "PHANTOM": 1}


def test_the_name_of_the_partition_is_told() -> None:
    small = good()
    small.land(99)
    small.finish()
    assert P in small.judge().anomalies[0].message


# -- watermarks ------------------------------------------------------------------------------------
#
# Ends of partitions do not go back for those who ask afterwards.


def test_ends_that_grow() -> None:
    small = good()
    small.ends(6)
    small.append(7)
    small.ends(7)
    small.finish()
    assert small.found() == {}


def test_an_end_below_what_was_told() -> None:
    small = Small()
    small.invoke(1, 6)
    small.ends(6)
    small.ends(5, process="another")
    small.complete(1, 6)
    small.finish()
    assert small.found() == {"HW-REGRESSION": 1}
    (anomaly,) = small.judge().anomalies
    assert anomaly.evidence["offsets"] == [5, 6]
    assert anomaly.evidence["lines"] == [5, 7]


def test_an_end_below_what_was_acknowledged() -> None:
    small = good()
    small.ends(5)
    small.finish()
    assert small.found() == {"HW-REGRESSION": 1}


def test_an_end_below_what_was_polled() -> None:
    small = good()
    small.invoke(7)
    small.land(7)
    small.poll((5, 1, 6, 1), (6, 1, 7, 1))
    small.ends(6)
    small.finish()
    assert small.found() == {"HW-REGRESSION": 1}


def test_one_leader_may_know_more_than_the_others_do() -> None:
    small = good()
    small.invoke(7, acks=1)
    small.complete(7)
    small.ends(6)
    small.finish()
    assert small.found() == {}


def test_who_asked_before_may_be_told_less() -> None:
    small = good()
    small.add(Ends(time=0, process="slow", type="invoke"))
    small.append(7)
    small.ends(7)
    small.add(Ends(time=0, process="slow", type="ok", ends={P: 6}))
    small.finish()
    assert small.found() == {}


def test_a_topic_that_is_created_again_begins_at_0() -> None:
    small = good()
    small.ends(6)
    small.admin("delete")
    small.admin("create")
    small.log.clear()
    small.pass_s(60)
    small.append(11, process="p2")
    small.ends(1)
    small.ends(0, process="wrong")
    small.finish()
    assert small.found() == {"HW-REGRESSION": 1}


def test_beyond_the_budget_the_end_may_go_back() -> None:
    small = good()
    small.ends(4, process="wrong")
    small.add(Ends(time=0, process="slow", type="invoke"))
    small.fault(1, budget="beyond")
    small.add(Ends(time=0, process="slow", type="ok", ends={P: 3}))
    small.ends(2)
    small.finish()
    assert small.found() == {"HW-REGRESSION": 1}
