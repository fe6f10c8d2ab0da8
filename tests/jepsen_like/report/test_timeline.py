"""The picture of a run: what is drawn, what its titles say, and that it stays small."""

from __future__ import annotations

from xml.etree.ElementTree import Element, fromstring

import pytest

from raftlog_jepsen.nemesis import driver
from raftlog_jepsen.report import pictures
from raftlog_jepsen.report.digest import digest
from raftlog_jepsen.report.pictures import COLOURS, LEFT, RIGHT, Window, timeline
from tests.jepsen_like.report.histories import (
    HOSTILE,
    append,
    fault,
    phases,
    sorted_by_time,
    start,
)


def titles(picture: Element) -> list[str]:
    return [title.text or "" for title in picture.iter("title")]


def labels(picture: Element) -> list[str]:
    return [text.text or "" for text in picture.findall("text") if text.get("text-anchor") == "end"]


def drawn(*groups: list[object], windows: tuple[Window, ...] = ()) -> Element:
    picture = timeline(digest(sorted_by_time([start(), start(100)], *groups)), windows)
    fromstring(pictures.serialise(picture))  # well-formed
    return picture


def test_a_fault_is_a_bar_from_its_beginning_to_its_end() -> None:
    picture = drawn(fault(1, "kill", 20, 40, targets=(2,), effect={"ended": 1}))
    (bar,) = [r for r in picture.findall("rect") if "kill on" in (r.findtext("title") or "")]
    assert float(bar.get("x", "0")) == pytest.approx(LEFT + 0.2 * (RIGHT - LEFT), abs=0.1)
    assert float(bar.get("width", "0")) == pytest.approx(0.2 * (RIGHT - LEFT), abs=0.1)
    assert bar.findtext("title") == "kill on broker 2, 20.0 s to 40.0 s; ended 1"
    assert "var(--process)" in (bar.get("style") or "")
    assert "kill" in labels(picture)
    assert "2" in [text.text for text in picture.findall("text") if text.get("class") == "on"]


def test_what_was_not_injected_is_crossed_out_and_says_why() -> None:
    refused = fault(1, "power", 20, None, effect={"why": "no loop devices"}, injected=False)
    picture = drawn(refused)
    assert "power, 20.0 s to 20.1 s, not injected: no loop devices" in titles(picture)
    crossed = [r for r in picture.findall("rect") if r.get("fill") == "url(#timeline-cross)"]
    assert len(crossed) == 1
    injected = drawn(fault(1, "power", 20, 30))
    assert not [r for r in injected.findall("rect") if r.get("fill") == "url(#timeline-cross)"]


def test_beyond_the_budget_is_marked_by_more_than_a_colour() -> None:
    picture = drawn(fault(1, "wipe", 20, 60, targets=(1, 2), budget="beyond"))
    assert "wipe on brokers 1, 2, 20.0 s to 60.0 s, beyond budget" in titles(picture)
    assert "1,2!" in [text.text for text in picture.findall("text")]


def test_faults_of_one_kind_that_overlap_do_not_cover_each_other() -> None:
    overlapping = [fault(n, "kill", 10 + n, 50 + n) for n in range(3)]
    picture = drawn(*overlapping, fault(9, "kill", 80, 90))
    rows = {r.findtext("title"): r.get("y") for r in picture.findall("rect")}
    three = [rows[f"kill, {10 + n:.1f} s to {50 + n:.1f} s"] for n in range(3)]
    assert len(set(three)) == 3
    assert rows["kill, 80.0 s to 90.0 s"] == three[0]


def test_outages_have_a_row_and_a_shade() -> None:
    picture = drawn(windows=(Window(10, 20, "no acknowledgement for 10 s"),))
    assert "no acks" in labels(picture)
    assert "10 s" in [text.text for text in picture.findall("text")]
    assert titles(picture).count("no acknowledgement for 10 s") == 2


def test_appends_are_stacked_and_told_by_the_second() -> None:
    entries = [
        *append(5, 0.1, 0, 7),
        *append(5.2, 0.1, 7, 1, "info"),
        *append(5.4, 0.1, 8, 1, "fail"),
    ]
    found = titles(drawn(entries))
    assert "5.0 s to 6.0 s: 1 appends ok, 1 info, 1 fail; 7 records" in found


def test_phases_are_named() -> None:
    picture = drawn(list(phases(60)))
    assert "load: 4.0 s to 64.0 s" in titles(picture)
    assert "load" in [text.text for text in picture.findall("text")]


def test_hostile_words_stay_words() -> None:
    hostile = fault(1, HOSTILE, 20, 40, effect={HOSTILE: HOSTILE})
    text = pictures.serialise(drawn(hostile, windows=(Window(1, 2, HOSTILE),)))
    assert "<script" not in text


def test_very_many_faults_are_drawn_together() -> None:
    many = [fault(n, "kill", n / 200, n / 200 + 0.004, targets=(1,)) for n in range(20_000)]
    picture = drawn(*many)
    assert len(pictures.serialise(picture)) < 500_000
    assert any("more" in title for title in titles(picture))
    few = many[: pictures.FAULT_BARS_MAX // 2]
    bars = [t for t in titles(drawn(*few)) if t.startswith("kill on broker 1")]
    assert len(bars) == len(few)


def test_an_empty_run_has_a_picture_too() -> None:
    assert timeline(digest([]), ()).get("viewBox")


def test_every_kind_has_a_colour() -> None:
    for kind in driver.KINDS:
        assert pictures.family(kind) in COLOURS
        assert pictures.family(kind) != "other"


def test_a_kind_of_somebody_else_has_a_colour_too() -> None:
    assert pictures.family("meteorite") == "other"
