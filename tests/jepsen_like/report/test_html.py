"""The report as a file: complete, well-formed, escaped, and small."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest

from raftlog.testing.checker import verdict as checker
from raftlog.testing.checker.verdict import Anomaly, Outage, Verdict
from raftlog.testing.history import AnyEntry, Note, Recorder
from raftlog_jepsen.report import html
from raftlog_jepsen.report.digest import Digest, FaultSpan, digest
from raftlog_jepsen.report.html import MARKS, judgement_of, write_report
from raftlog_jepsen.report.pictures import COLOURS, Window
from tests.jepsen_like.report import histories
from tests.jepsen_like.report.histories import (
    HOSTILE,
    PLAN,
    append,
    at,
    fault,
    sorted_by_time,
    start,
)


def verdict(valid: Any = "valid", found: dict[str, int] | None = None, **other: Any) -> Verdict:
    return Verdict(valid=valid, counts=dict.fromkeys(checker.KINDS, 0) | (found or {}), **other)


def written(directory: Path, entries: Any, judged: Verdict | None = None) -> tuple[str, Element]:
    text = write_report(directory, entries, judged or verdict()).read_text(encoding="utf-8")
    return text, fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def texts(root: Element) -> str:
    return " ".join(" ".join(root.itertext()).split())


class Balance(HTMLParser):
    """Fails on an element that HTML would not read as it was meant."""

    VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.stack.pop() == tag


@pytest.fixture(scope="module")
def lively() -> list[AnyEntry]:
    return histories.lively()


def test_the_report_is_one_file_that_asks_for_nothing(
    lively: list[AnyEntry], tmp_path: Path
) -> None:
    text, _ = written(tmp_path, lively)
    assert not re.findall(r"<(script|link|iframe|img)", text)
    assert not re.findall(r"(?:src|href)=", text)
    assert not re.findall(r"@import|url\((?!#)", text)
    assert "://" not in text


def test_html_reads_it_as_xml_does(lively: list[AnyEntry], tmp_path: Path) -> None:
    text, root = written(tmp_path, lively)
    parser = Balance()
    parser.feed(text)
    assert parser.stack == []
    assert {"svg", "table", "details"} <= parser.tags
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("valid", ["valid", "invalid", "unknown"])
def test_the_verdict_stands_at_the_top_in_words(valid: Any, tmp_path: Path) -> None:
    found = {"MOVED": 2} if valid == "invalid" else {}
    troubles = ("the end is missing",) if valid == "unknown" else ()
    _, root = written(tmp_path, [start()], verdict(valid, found, troubles=troubles))
    header = root.find("body/header")
    assert header is not None
    assert header.get("class") == valid
    assert texts(header).startswith(f"{MARKS[valid]} {valid}")
    assert root.findtext("head/title") == f"raftlog chaos: {valid}"
    if troubles:
        assert "the end is missing" in texts(header)


def test_zeros_are_shown_and_findings_come_with_evidence(tmp_path: Path) -> None:
    anomalies = tuple(Anomaly("MOVED", f"value {n} is elsewhere", {"offset": n}) for n in (7, 8))
    judged = verdict(
        "invalid", {"MOVED": 30}, anomalies=anomalies, not_applicable={"GAP": "nobody read"}
    )
    _, root = written(tmp_path, [start()], judged)
    rows = {
        cells[0].text: [cell.text for cell in cells[1:]]
        for row in root.iter("tr")
        if len(cells := row.findall("td")) == 3 and cells[0].text in checker.KINDS
    }
    assert rows.keys() == checker.KINDS.keys()
    assert rows["MOVED"][0] == "30"
    assert rows["DUPLICATE"] == ["0", checker.KINDS["DUPLICATE"]]
    assert rows["GAP"][0] == "not judged"
    assert "nobody read" in (rows["GAP"][1] or "")
    (details,) = [d for d in root.iter("details") if "MOVED" in (d.findtext("summary") or "")]
    assert details.findtext("summary") == "MOVED: evidence of 2 of 30"
    assert [pre.text for pre in details.iter("pre")] == [
        "value 7 is elsewhere\n  offset: 7",
        "value 8 is elsewhere\n  offset: 8",
    ]


def test_the_numbers_are_those_of_the_history(tmp_path: Path) -> None:
    entries = sorted_by_time(
        [start(), start(100)],
        append(10, 0.25, 0, 1_000),
        append(20, 1, 1_000, 5, "info", process="p2", error="TimeoutError: none"),
        fault(1, "kill", 30, 40, targets=(1,), effect={"ended": 1}),
        fault(2, "power", 50, None, effect={"why": "no disks"}, injected=False),
    )
    outage = Outage(start_ns=at(31), length_ns=8_000_000_000, unexcused_ns=0)
    _, root = written(tmp_path, entries, verdict(stats={"records_final": 1_005}, outages=(outage,)))
    text = texts(root)
    assert (
        "1,000 records acknowledged in 1 min 40 s; 1 fault injected, 1 fault not injected" in text
    )
    assert "1: no disks" in text
    assert "8 s 31.0 s 39.0 s kill 1 no acknowledgement for 8 s" in text
    assert "records final 1,005" in text
    assert "append 1 1 0 0" in text
    assert "TimeoutError: none" in text
    assert "raftlog chaos run --seed 42" in text
    assert "raftlog chaos check history.jsonl" in text


def test_hostile_words_of_a_history_stay_words(tmp_path: Path) -> None:
    entries = sorted_by_time(
        [start(plan={"seed": HOSTILE, "nemeses": [HOSTILE]})],
        append(1, 1, 0, 1, "info", partition=HOSTILE, error=HOSTILE),
        fault(1, HOSTILE, 2, 3, effect={HOSTILE: HOSTILE}, args={HOSTILE: [HOSTILE]}),
        fault(2, HOSTILE, 2, 3, effect={"why": HOSTILE}, injected=False),
        [Note(time=at(5), process="r", type="info", text=HOSTILE, is_trouble=True)],
    )
    judged = verdict(
        "invalid",
        {"GAP": 1, HOSTILE: 1},
        anomalies=(Anomaly("GAP", HOSTILE, {HOSTILE: HOSTILE}),),
        troubles=(HOSTILE,),
        stats={HOSTILE: HOSTILE},
        not_applicable={"MOVED": HOSTILE},
    )
    text, _ = written(tmp_path, entries, judged)
    assert "<script" not in text
    parser = Balance()
    parser.feed(text)
    assert parser.stack == []


def test_pictures_and_their_titles_are_there(lively: list[AnyEntry], tmp_path: Path) -> None:
    _, root = written(tmp_path, lively)
    labels = [figure.get("aria-label") or "" for figure in root.iter("figure")]
    assert [label.partition(". ")[0] for label in labels] == [
        "Timeline of the run",
        "Throughput",
        "Latency of appends",
    ]
    assert all(label.partition(". ")[2] for label in labels)
    (bar,) = [i for i in root.iter("i") if (i.get("title") or "").startswith("wipe on broker 2")]
    assert bar.get("class") == "bar beyond"
    assert bar.findtext("b") == "2!"


def test_the_colours_are_for_light_and_dark(tmp_path: Path) -> None:
    text, _ = written(tmp_path, [start()])
    for name, (light, dark) in COLOURS.items():
        assert f"--{name}: {light};" in text
        assert f"--{name}: {dark};" in text


def test_a_file_is_read_and_one_that_is_damaged_is_shown_up_to_there(tmp_path: Path) -> None:
    times = iter(range(10))
    recorder = Recorder(tmp_path / "history.jsonl", lambda: next(times) * 1_000_000_000)
    for entry in [start(), *append(1, 1, 0, 77)]:
        recorder.record(entry)
    recorder.close()
    with recorder.path.open("ab") as file:
        file.write(b'{"f": "append", "time": "when?"}\n')
    text, _ = written(tmp_path, recorder.path, verdict("unknown", troubles=("line 4",)))
    assert "77 records acknowledged" in text
    assert f"raftlog chaos check {tmp_path}/history.jsonl" in text


def test_a_long_run_has_a_small_report(tmp_path: Path) -> None:
    """Two hours of six thousand faults, with an error of its own for each append."""
    entries = sorted_by_time(
        *(append(n, 0.5, n, 1, "info" if n % 3 else "ok", error=f"e{n}") for n in range(7_200)),
        *(fault(n, "kill", n, n + 0.5, targets=(n % 3,), args={"n": n}) for n in range(6_000)),
        [Note(time=at(n), process="r", type="info", text="x" * 5_000) for n in range(1_000)],
    )
    outages = tuple(
        Outage(start_ns=at(n * 60), length_ns=10**9, unexcused_ns=0) for n in range(300)
    )
    path = write_report(tmp_path, entries, verdict(outages=outages))
    assert path.stat().st_size < 3_000_000


def test_more_operations_make_no_larger_report(tmp_path: Path) -> None:
    small, large = (
        write_report(tmp_path, histories.large(count), verdict()).stat().st_size
        for count in (10_000, 40_000)
    )
    assert large < small * 2
    assert large < 200_000


def test_an_empty_history_has_a_report(tmp_path: Path) -> None:
    _, root = written(tmp_path, [], verdict("unknown", troubles=("nothing was acknowledged",)))
    assert "0 records acknowledged" in texts(root)


# -- judgement -------------------------------------------------------------------------------------
#
# Verdicts in a report's words.


NS = 1_000_000_000


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
    noted = html.sentence(verdict("invalid", {"MOVED": 3, "GAP": 1_000}))
    assert noted == "2 kinds of anomaly were found: MOVED (3), GAP (1,000)."


def test_what_was_not_judged_is_no_zero() -> None:
    judged = judgement_of(verdict(not_applicable={"GAP": "no final log"}), 0)
    (gap,) = [a for a in judged.anomalies if a.kind == "GAP"]
    assert gap.why_not == "no final log"
    assert judged.sentence == "No anomaly was found. 1 kind of anomaly could not be checked."


def test_unknown_says_why() -> None:
    noted = html.sentence(verdict("unknown", troubles=("it broke", "it burnt", "it sank")))
    assert noted.endswith("anomalies are possible: it broke (and 2 more)")
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


# -- run facts -------------------------------------------------------------------------------------
#
# What a run was, and the commands that make it and judge it again.


def of(plan: dict[str, Any]) -> Digest:
    return digest([start(plan=plan), start(75, plan=plan)])


def test_the_plan_and_the_machine_are_told() -> None:
    facts = dict(html.rows(of(PLAN)))
    assert facts["seed"] == "42"
    assert facts["workload"] == "append"
    assert facts["clients"] == "3 producers, 2 consumers"
    assert facts["kinds of fault"] == "kill, partition, power, disk-full, two at a time"
    assert facts["brokers"] == "3"
    assert facts["topic chaos-a"] == "4 partitions, replication factor 3, min ISR 2"
    assert facts["flush policy"] == "durable"
    assert facts["load"] == "1 min 0 s"
    assert facts["complete run"] == "1 min 15 s"
    assert facts["network"] == "namespaces"


def test_the_run_can_be_made_again() -> None:
    assert html.again_command(of(PLAN)) == (
        "raftlog chaos run --seed 42 --workload append --nemesis kill,partition,power,disk-full "
        "--time 60 --brokers 3 --pairs"
    )
    quiet = {"seed": 1, "nemeses": [], "rate": 500.0}
    assert html.again_command(of(quiet)) == ("raftlog chaos run --seed 1 --nemesis none --rate 500")


def test_words_for_the_shell_are_quoted() -> None:
    command = html.again_command(of({"seed": 1, "nemeses": ["$(reboot)"]}))
    assert "'$(reboot)'" in command
    commands = dict(html.repeat_commands(of(PLAN), "/a b/history.jsonl"))
    assert commands["check this history again"] == "raftlog chaos check '/a b/history.jsonl'"
    assert "run the same plan again" in commands


@pytest.mark.parametrize(
    "plan",
    [
        {"mine": True},
        {"shape": 3, "workload": "append", "nemeses": 7, "time_s": "long"},
        {"shape": {"topics": [None, 4]}, "workload": {"producers": 5}},
        {"shape": {"topics": 9}},
    ],
)
def test_plans_of_others_are_no_reason_to_fail(plan: dict[str, Any]) -> None:
    found = of(plan)
    assert "complete run" in dict(html.rows(found))
    assert list(dict(html.repeat_commands(found, "h"))) == ["check this history again"]


def test_without_a_plan_only_the_length_is_known() -> None:
    assert html.rows(Digest(length_s=5)) == [("complete run", "5 s")]


# -- tables ----------------------------------------------------------------------------------------
#
# Rows of the report's tables: sums by kind, reasons, outages with what lasted then.


def span(number: int, kind: str, begin_s: float, end_s: float, **other: object) -> FaultSpan:
    return FaultSpan(number, kind, begin_s, end_s, **other)  # type: ignore[arg-type]


def refused(number: int, kind: str, why: str) -> FaultSpan:
    return span(number, kind, 1, 2, injected=False, effect={"why": why})


def test_effects_of_a_kind_are_summed_up() -> None:
    faults = [
        span(1, "kill", 0, 1, effect={"ended": {"1": "signal 9"}, "pid": 17, "took_s": 0.5}),
        span(2, "kill", 0, 1, effect={"ended": {"2": "x", "3": "y"}}, effect_end={"took_s": 2.0}),
        span(3, "kill", 0, 1, effect={"is_leader": True, "dropped_bytes": 1_500_000}),
        span(4, "kill", 0, 1, effect={"dirty_bytes": {"1": 4_000, "2": 6_000}, "who": "all"}),
    ]
    ((kind, tried, injected, left, beyond, seen),) = html.fault_rows(faults)
    assert (kind, tried, injected, left, beyond) == ("kill", "4", "4", "0", "0")
    words = "ended signal 9: 1 time, ended x: 1 time, ended y: 1 time"
    assert seen == f"{words}, took_s 2.5 s, is_leader 1, dropped_bytes 1.5 MB, dirty_bytes 10 kB"


def test_effects_of_what_was_not_injected_do_not_count() -> None:
    faults = [span(1, "kill", 0, 1, effect={"why": "no", "ended": 5}, injected=False)]
    assert html.fault_rows(faults)[0][-1] == ""


def test_reasons_are_counted_the_most_frequent_first() -> None:
    faults = [refused(n, "power", "no disks") for n in range(5)]
    faults += [refused(9, "power", f"reason {n}") for n in range(4)]
    faults.append(span(10, "power", 0, 1, beyond=True))
    ((_, tried, injected, left, beyond, _),) = html.fault_rows(faults)
    assert (tried, injected, beyond) == ("10", "1", "1")
    assert left == "9: no disks (5 times); reason 0; reason 1; and 2 other reasons"


def test_a_kind_that_never_came_up_has_a_row() -> None:
    rows = html.fault_rows([span(1, "kill", 0, 1)], ["pause", "kill"])
    assert [row[:4] for row in rows] == [
        ("pause", "0", "0", "never selected in this run"),
        ("kill", "1", "1", "0"),
    ]


def test_each_fault_says_what_was_seen_at_both_ends() -> None:
    faults = [
        span(1, "kill", 1, 2, targets=[1, 2], args={"who": "leader"}, effect={"ended": 2},
             effect_end={"took_s": 1}, expects="outage"),
        refused(2, "power", "no disks"),
        span(3, "slow-link", 1, 2, beyond=True, trouble_end="no tc"),
    ]  # fmt: skip
    kill, power, slow = html.each_fault_rows(faults)
    assert kill[:5] == ("1", "kill", "1, 2", "1.0 s to 2.0 s", "who leader")
    assert kill[5:] == ("ended 2; at its end took_s 1", "may stop")
    assert power[5] == "NOT INJECTED: no disks"
    assert slow[5:] == ("not ended as planned: no tc", "beyond budget; must continue")


def test_the_list_of_faults_ends_somewhere() -> None:
    many = [span(n, "kill", 0, 1) for n in range(html.FAULTS_LISTED_MAX + 5)]
    assert len(html.each_fault_rows(many)) == html.FAULTS_LISTED_MAX


def test_outages_are_listed_longest_first_with_the_faults_of_that_time() -> None:
    faults = [
        span(1, "kill", 5, 12, targets=[1]),
        span(2, "partition", 50, 60),
        span(3, "pause", 0, 9.9, targets=[2, 3]),
        span(4, "power", 10, 11, injected=False),
    ]
    windows = [Window(10, 11, "short"), Window(49, 60, "long"), Window(80, 81, "alone")]
    rows = html.window_rows(windows, faults)
    assert rows[0] == ("11 s", "49.0 s", "60.0 s", "partition", "long")
    assert rows[1] == ("1 s", "10.0 s", "11.0 s", "kill 1", "short")
    assert rows[2][3] == "none"


def test_many_faults_at_once_are_not_all_named() -> None:
    faults = [span(n, "kill", 0, 100, targets=[n]) for n in range(10)]
    ((*_, active, _),) = html.window_rows([Window(5, 6)], faults)
    assert active.endswith("; and 4 more")


def test_operations_errors_and_latencies_are_those_of_the_digest() -> None:
    found = digest(
        sorted_by_time(
            [start()],
            append(0, 0.1, 0, 5),
            append(1, 0.2, 5, 5, process="p2"),
            append(2, 1, 10, 5, "info", process="p3", error="TimeoutError"),
            append(4, 1, 20, 1, process="p4")[:1],
        )
    )
    assert html.operation_rows(found) == [("append", "2", "1", "0", "1")]
    assert html.error_rows(found) == [("append", "info", "1", "TimeoutError")]
    shares = dict(html.latency_rows(found))
    assert shares["all"] == "200 ms"
    assert list(shares) == ["50 %", "90 %", "99 %", "99.9 %", "all"]
    assert html.latency_rows(Digest()) == []


def test_an_operation_that_never_ended_at_all_has_a_row() -> None:
    assert html.operation_rows(Digest(unfinished=Counter(poll=2))) == [("poll", "0", "0", "0", "2")]


def test_troubles_stand_above_other_notes() -> None:
    notes = [
        (1.0, Note(time=at(1), process="r", type="info", text="early")),
        (9.0, Note(time=at(9), process="r", type="info", text="bad", is_trouble=True)),
    ]
    assert html.note_rows(Digest(notes=notes)) == [
        ("TROUBLE", "9.0 s", "bad"),
        ("", "1.0 s", "early"),
    ]


def test_a_column_of_numbers_is_marked_for_the_eye(tmp_path: Path) -> None:
    _, root = written(tmp_path, sorted_by_time([start()], append(0, 0.1, 0, 5)))
    (made,) = [t for t in root.iter("table") if "Operations." in (t.findtext("caption") or "")]
    heads, cells = list(made.iter("th")), list(made.iter("td"))
    assert [(h.text, h.get("class"), h.get("scope")) for h in heads[:2]] == [
        ("operation", None, "col"),
        ("ok", "n", "col"),
    ]
    assert [(c.text, c.get("class")) for c in cells[:2]] == [("append", None), ("1", "n")]


def test_data_is_shown_shortly() -> None:
    assert html.compact({"a": [1, 2], "b": {"c": "d"}, "e": None}) == "a [1, 2], b c d, e null"
    assert html.compact("x" * 500).endswith("200 more characters")


# -- text ------------------------------------------------------------------------------------------
#
# The end of a run on a terminal.


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
