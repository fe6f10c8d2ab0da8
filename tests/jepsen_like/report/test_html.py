"""The report as a file: complete, well-formed, escaped, and small."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest

from raftlog.testing.checker import verdict as checker
from raftlog.testing.checker.verdict import Anomaly, Outage, Verdict
from raftlog.testing.history.entries import AnyEntry, Note, Recorder
from raftlog_jepsen.report import pictures as markup
from raftlog_jepsen.report.html import MARKS, write_report
from tests.jepsen_like.report import histories
from tests.jepsen_like.report.histories import HOSTILE, append, at, fault, sorted_by_time, start

SVG = f"{{{markup.SVG_NAMESPACE}}}"


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
    outside = set(re.findall(r"https?://[^\s\"'<]+", text))
    assert outside == {"http://www.w3.org/2000/svg"}  # a name, not an address


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
    pictures = list(root.iter(f"{SVG}svg"))
    assert [p.findtext(f"{SVG}title") for p in pictures] == [
        "Timeline of the run",
        "Throughput",
        "Latency of appends",
    ]
    assert all(p.findtext(f"{SVG}desc") for p in pictures)


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
