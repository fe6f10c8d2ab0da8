"""Rows of the report's tables: sums by kind, reasons, outages with what lasted then."""

from __future__ import annotations

from collections import Counter

from raftlog.testing.history.entries import Note
from raftlog_jepsen.report import html
from raftlog_jepsen.report.digest import Digest, FaultSpan, digest
from raftlog_jepsen.report.pictures import Window
from tests.jepsen_like.report.histories import append, at, sorted_by_time, start


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


def test_a_column_of_numbers_is_marked_for_the_eye() -> None:
    made = html.table(("kind", "#times"), [("kill", "5")], "Caption.")
    heads, cells = list(made.iter("th")), list(made.iter("td"))
    assert [(h.text, h.get("class"), h.get("scope")) for h in heads] == [
        ("kind", None, "col"),
        ("times", "n", "col"),
    ]
    assert [(c.text, c.get("class")) for c in cells] == [("kill", None), ("5", "n")]
    assert made.find("table/caption") is not None


def test_data_is_shown_shortly() -> None:
    assert html.compact({"a": [1, 2], "b": {"c": "d"}, "e": None}) == "a [1, 2], b c d, e null"
    assert html.compact("x" * 500).endswith("200 more characters")
