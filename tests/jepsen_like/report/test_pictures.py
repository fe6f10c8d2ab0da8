"""The time axis, bins and scales that all pictures share."""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest

from raftlog.testing.checker.judge import judge
from raftlog.testing.history.entries import AnyEntry, Member
from raftlog_jepsen.nemesis import driver
from raftlog_jepsen.report import html, pictures
from raftlog_jepsen.report.digest import digest
from raftlog_jepsen.report.html import judgement_of
from raftlog_jepsen.report.pictures import (
    BINS_MAX,
    COLOURS,
    LEFT,
    RIGHT,
    ROWS_MAX,
    Sheet,
    Window,
    add,
    bins,
    node,
    ownership,
    timeline,
)
from tests.jepsen_like.report.histories import (
    HOSTILE,
    append,
    at,
    fault,
    phases,
    sorted_by_time,
    start,
)
from tests.testing.checker import synthetic


def sheet(length_s: float = 100.0) -> Sheet:
    return Sheet("s", "Title", "Told.", length_s=length_s)


@pytest.mark.parametrize(("at_s", "x"), [(0, LEFT), (100, RIGHT), (-5, LEFT), (500, RIGHT)])
def test_time_goes_from_the_left_to_the_right(at_s: float, x: float) -> None:
    assert sheet().x(at_s) == x


@pytest.mark.parametrize("length_s", [0.0, 0.5, 3.0, 399.0, 401.0, 21_600.0, 604_800.0])
def test_bins_cover_the_run_and_are_not_too_many(length_s: float) -> None:
    found = digest([start(), start(length_s)])
    made = bins(found)
    assert 1 <= len(made) <= BINS_MAX
    assert made[0].begin_s == 0
    assert made[-1].begin_s + made[-1].width_s >= length_s


def test_bins_lose_nothing() -> None:
    entries = [entry for n in range(900) for entry in append(n, 0.5, n * 3, 3)]
    found = digest([start(), *entries])
    made = bins(found)
    assert len(made) < 900
    assert sum(one.counts.acked for one in made) == 2_700
    assert sum(one.counts.appends["ok"] for one in made) == 900
    assert sum(sum(one.counts.ok.values()) for one in made) == 900


@pytest.mark.parametrize(
    "largest", [0.0, 0.3, 1.0, 7.0, 40.0, 58.0, 100.0, 999.0, 1_000.0, 123_456.0]
)
def test_a_scale_holds_its_largest_value_in_a_few_round_steps(largest: float) -> None:
    top, step = pictures.scale_of(largest)
    assert top >= largest
    assert 1 <= round(top / step) <= 5
    assert top == pytest.approx(round(top / step) * step)


@pytest.mark.parametrize(
    ("at_s", "length_s", "text"),
    [(30, 60, "30 s"), (90, 600, "1:30"), (3_700, 20_000, "1:01:40")],
)
def test_ticks_say_their_unit_or_look_like_a_clock(at_s: int, length_s: float, text: str) -> None:
    assert pictures.tick(at_s, length_s) == text


@pytest.mark.parametrize("length_s", [1.0, 60.0, 3_599.0, 86_400.0, 604_800.0])
def test_an_axis_has_a_handful_of_ticks(length_s: float) -> None:
    drawn = sheet(length_s)
    drawn.axis(0, 100)
    assert 2 <= len(drawn.root.findall("text")) <= 16


def test_a_picture_can_be_told_to_those_who_do_not_see_it() -> None:
    root = sheet().finish(200)
    names = (root.get("aria-labelledby") or "").split()
    noted = {element.get("id"): element.text for element in root}
    assert [noted[name] for name in names] == ["Title", "Told."]
    assert root.get("role") == "img"
    assert root.get("viewBox") == "0 0 1000 200"


def test_an_outage_is_shaded_behind_everything_and_is_never_invisible() -> None:
    drawn = sheet()
    drawn.put(node("circle"))
    drawn.shade([Window(10, 10.001, "1 ms of nothing")], 0, 50)
    tags = [element.tag for element in drawn.root]
    assert tags == ["title", "desc", "defs", "rect", "circle"]
    (shade,) = drawn.root.findall("rect")
    assert float(shade.get("width", "0")) >= 1.5
    assert shade.findtext("title") == "1 ms of nothing"


def test_every_colour_has_a_pair_for_light_and_dark() -> None:
    style = pictures.style()
    for name, (light, dark) in pictures.COLOURS.items():
        assert f"--{name}: {light};" in style
        assert f"--{name}: {dark};" in style


# -- markup ----------------------------------------------------------------------------------------
#
# Elements are escaped whatever they hold, and numbers say their unit.


def test_what_is_hostile_comes_out_as_text() -> None:
    made = node("p", HOSTILE, node("b", HOSTILE), HOSTILE, title=HOSTILE)
    text = pictures.serialise(made)
    assert "<script" not in text
    read = fromstring(text)
    expected = HOSTILE.translate({0: "\ufffd", 0x1B: "\ufffd", 0xD800: "\ufffd"})
    assert read.text == expected
    assert read[0].text == expected
    assert read[0].tail == expected
    assert read.get("title") == expected


def test_names_of_attributes_are_python_s_and_none_is_left_out() -> None:
    made = node("rect", class_="a", stroke_width=1.25, x=7, href=None, patternUnits="u")
    assert made.attrib == {"class": "a", "stroke-width": "1.2", "x": "7", "patternUnits": "u"}


def test_children_keep_their_order() -> None:
    made = add(node("p", "a", None, "b"), node("i"), "c", "d")
    assert pictures.serialise(made) == "<p>ab<i></i>cd</p>"


def test_long_text_is_cut_and_says_so() -> None:
    assert pictures.cut("abc", 3) == "abc"
    assert pictures.cut("abcdef", 3) == "abc ... and 3 more characters"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (0.000_001_5, "2 µs"),
        (0.001_5, "1.5 ms"),
        (0.25, "250 ms"),
        (1.234, "1.23 s"),
        (65, "1 min 5 s"),
        (3_600 + 120, "1 h 2 min"),
    ],
)
def test_lengths_of_time(value: float, text: str) -> None:
    assert pictures.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0.0 s"), (75.04, "75.0 s"), (600, "0:10:00"), (3_723, "1:02:03")]
)
def test_moments(value: float, text: str) -> None:
    assert pictures.clock(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (12_345, "12.3 kB"), (5_000_000_000_000, "5,000 GB")],
)
def test_bytes(count: int, text: str) -> None:
    assert pictures.size(count) == text


def test_nouns_follow_their_number() -> None:
    assert [pictures.counted(n, "kill") for n in (0, 1, 2_000)] == [
        "0 kills",
        "1 kill",
        "2,000 kills",
    ]


# -- owners ----------------------------------------------------------------------------------------
#
# The picture of who owned what: a bar for each time, one below the other where there are two.


def member(when: float, what: str, name: str = "g/m1.1", *partitions: str, **how: Any) -> Member:
    return Member(
        time=at(when), process=name, type="info", group="g", what=what,
        partitions=list(partitions), **how,
    )  # fmt: skip


def drawn(*members: Member, faults: tuple[Any, ...] = ()) -> Element:
    picture = ownership(digest(sorted_by_time([start(), start(100)], list(members), *faults)))
    assert picture is not None
    fromstring(pictures.serialise(picture))  # well-formed
    return picture


def bars(picture: Element) -> dict[str, Element]:
    return {
        bar.findtext("title") or "": bar
        for bar in picture.findall("rect")
        if (bar.findtext("title") or "").startswith("g/")
    }


def test_a_bar_from_assigned_to_revoked() -> None:
    picture = drawn(
        member(20, "assigned", "g/m1.1", "t:0"),
        member(60, "revoked", "g/m1.1", "t:0"),
        member(60, "assigned", "g/m2.1", "t:0"),
        member(80, "killed", "g/m2.1"),
    )
    found = bars(picture)
    assert list(found) == [
        "g/m1.1: 20.0 s to 60.0 s, revoked",
        "g/m2.1: 60.0 s to 80.0 s, killed",
    ]
    one, other = found.values()
    width = RIGHT - LEFT
    assert float(one.get("x", "0")) == pytest.approx(LEFT + 0.2 * width, abs=0.1)
    assert float(one.get("width", "0")) == pytest.approx(0.4 * width, abs=0.1)
    assert one.get("height") == other.get("height")
    assert one.get("style") != other.get("style")
    texts = [text.text for text in picture.findall("text")]
    assert {"g t:0", "m1.1", "m2.1"} <= set(texts)


def test_two_at_a_time_are_one_below_the_other() -> None:
    picture = drawn(
        member(10, "assigned", "g/m1.1", "t:0"),
        member(12, "paused", "g/m1.1"),
        member(40, "assigned", "g/m2.1", "t:0"),
        member(60, "resumed", "g/m1.1"),
        member(61, "lost", "g/m1.1", "t:0"),
    )
    found = bars(picture)
    assert list(found) == [
        "g/m1.1: 10.0 s to 61.0 s, lost",
        "g/m2.1: 40.0 s to 100.0 s; another member assumed ownership, too",
    ]
    one, other = found.values()
    assert float(other.get("height", "0")) < float(one.get("height", "0"))
    hatched = [r for r in picture.findall("rect") if r.get("fill") == "url(#owners-hatch)"]
    assert len(hatched) == 1
    assert float(hatched[0].get("width", "0")) == pytest.approx(0.48 * (RIGHT - LEFT), abs=0.5)


def test_faults_are_below() -> None:
    picture = drawn(
        member(10, "assigned", "g/m1.1", "t:0"),
        faults=(fault(1, "member-kill", 20, 40, effect={"ended": 1}),),
    )
    texts = [text.text for text in picture.findall("text")]
    assert "member-kill" in texts


def test_many_partitions_are_bounded_and_in_their_order() -> None:
    names = [f"t:{number}" for number in range(ROWS_MAX + 10)]
    picture = drawn(member(10, "assigned", "g/m1.1", *reversed(names)))
    labels = [t.text for t in picture.findall("text") if t.get("text-anchor") == "end"]
    assert labels[:3] == ["g t:0", "g t:1", "g t:2"]
    assert "and 10 more" in labels


def test_a_report_has_it_where_there_are_members() -> None:
    entries = list(synthetic.history(1))
    found = digest(entries)
    page = html.page(found, judgement_of(judge(entries), found.base_ns))
    assert "Partition ownership" in page
    assert "GROUP-SKIPPED" in page
    without = [entry for entry in entries if not isinstance(entry, Member)]
    assert ownership(digest(without)) is None


# -- plots -----------------------------------------------------------------------------------------
#
# Throughput and latency: where the curves are, and what they say.


def history() -> list[AnyEntry]:
    """100 records a second for ten seconds, of which the fifth has none."""
    seconds = [s for s in range(10) if s != 5]
    entries = [e for s in seconds for e in append(s + 0.1, 0.01 * (s + 1), s * 100, 100)]
    return [start(), *entries, start(10)]


def titles(picture: Element) -> list[str]:
    fromstring(pictures.serialise(picture))
    return [title.text or "" for title in picture.iter("title")]


def heights(picture: Element, number: int) -> list[float]:
    """The y of each point of the curve with this number."""
    curves = [p for p in picture.findall("path") if p.get("class") == "curve"]
    return [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", curves[number].get("d") or "")]


def test_throughput_tells_records_per_second() -> None:
    picture = pictures.throughput(digest(history()), ())
    assert "0.0 s to 1.0 s: 100 records acknowledged, 0 read" in titles(picture)
    assert "5.0 s to 6.0 s: 0 records acknowledged, 0 read" in titles(picture)
    points = heights(picture, 0)
    assert points[0] == pictures.TOP
    assert points[5] == pictures.BOTTOM
    assert "100 at most" in (picture.findtext("desc") or "")


def test_latency_rises_with_the_time_and_breaks_where_there_is_none() -> None:
    picture = pictures.latency(digest(history()), ())
    longest = heights(picture, 0)
    assert longest == sorted(longest, reverse=True)
    assert len(longest) == 9
    curve = next(p for p in picture.findall("path") if p.get("class") == "curve")
    assert (curve.get("d") or "").count("M") == 2
    (last,) = [t for t in titles(picture) if t.startswith("9.0 s to 10.0 s: half within ")]
    assert last.endswith(", longest 100 ms")
    assert "5.0 s to 6.0 s: no append ended" in titles(picture)


def test_latency_has_a_logarithmic_scale_with_units() -> None:
    texts = [t.text for t in pictures.latency(digest(history()), ()).findall("text")]
    assert {"10 ms", "100 ms"} <= set(texts)


def test_what_became_unknown_is_marked_apart() -> None:
    entries = [*history(), *append(10, 30, 5_000, 1, "info")]
    picture = pictures.latency(digest(entries), ())
    assert any("info after 30" in title or "info after 29" in title for title in titles(picture))
    assert "info: half took at most that long" in [t.text for t in picture.findall("text")]


def test_outages_are_shaded_in_both() -> None:
    windows = (Window(5, 6, "nothing"),)
    for draw in (pictures.throughput, pictures.latency):
        assert "nothing" in titles(draw(digest(history()), windows))


def test_nothing_at_all_can_be_drawn() -> None:
    for draw in (pictures.throughput, pictures.latency):
        titles(draw(digest([]), ()))


# -- timeline --------------------------------------------------------------------------------------
#
# The picture of a run: what is drawn, what its titles say, and that it stays small.


def timeline_titles(picture: Element) -> list[str]:
    return [title.text or "" for title in picture.iter("title")]


def labels(picture: Element) -> list[str]:
    return [text.text or "" for text in picture.findall("text") if text.get("text-anchor") == "end"]


def timeline_drawn(*groups: list[object], windows: tuple[Window, ...] = ()) -> Element:
    picture = timeline(digest(sorted_by_time([start(), start(100)], *groups)), windows)
    fromstring(pictures.serialise(picture))  # well-formed
    return picture


def test_a_fault_is_a_bar_from_its_beginning_to_its_end() -> None:
    picture = timeline_drawn(fault(1, "kill", 20, 40, targets=(2,), effect={"ended": 1}))
    (bar,) = [r for r in picture.findall("rect") if "kill on" in (r.findtext("title") or "")]
    assert float(bar.get("x", "0")) == pytest.approx(LEFT + 0.2 * (RIGHT - LEFT), abs=0.1)
    assert float(bar.get("width", "0")) == pytest.approx(0.2 * (RIGHT - LEFT), abs=0.1)
    assert bar.findtext("title") == "kill on broker 2, 20.0 s to 40.0 s; ended 1"
    assert "var(--process)" in (bar.get("style") or "")
    assert "kill" in labels(picture)
    assert "2" in [text.text for text in picture.findall("text") if text.get("class") == "on"]


def test_what_was_not_injected_is_crossed_out_and_says_why() -> None:
    refused = fault(1, "power", 20, None, effect={"why": "no loop devices"}, injected=False)
    picture = timeline_drawn(refused)
    assert "power, 20.0 s to 20.1 s, not injected: no loop devices" in timeline_titles(picture)
    crossed = [r for r in picture.findall("rect") if r.get("fill") == "url(#timeline-cross)"]
    assert len(crossed) == 1
    injected = timeline_drawn(fault(1, "power", 20, 30))
    assert not [r for r in injected.findall("rect") if r.get("fill") == "url(#timeline-cross)"]


def test_beyond_the_budget_is_marked_by_more_than_a_colour() -> None:
    picture = timeline_drawn(fault(1, "wipe", 20, 60, targets=(1, 2), budget="beyond"))
    assert "wipe on brokers 1, 2, 20.0 s to 60.0 s, beyond budget" in timeline_titles(picture)
    assert "1,2!" in [text.text for text in picture.findall("text")]


def test_faults_of_one_kind_that_overlap_do_not_cover_each_other() -> None:
    overlapping = [fault(n, "kill", 10 + n, 50 + n) for n in range(3)]
    picture = timeline_drawn(*overlapping, fault(9, "kill", 80, 90))
    rows = {r.findtext("title"): r.get("y") for r in picture.findall("rect")}
    three = [rows[f"kill, {10 + n:.1f} s to {50 + n:.1f} s"] for n in range(3)]
    assert len(set(three)) == 3
    assert rows["kill, 80.0 s to 90.0 s"] == three[0]


def test_outages_have_a_row_and_a_shade() -> None:
    picture = timeline_drawn(windows=(Window(10, 20, "no acknowledgement for 10 s"),))
    assert "no acks" in labels(picture)
    assert "10 s" in [text.text for text in picture.findall("text")]
    assert timeline_titles(picture).count("no acknowledgement for 10 s") == 2


def test_appends_are_stacked_and_told_by_the_second() -> None:
    entries = [
        *append(5, 0.1, 0, 7),
        *append(5.2, 0.1, 7, 1, "info"),
        *append(5.4, 0.1, 8, 1, "fail"),
    ]
    found = timeline_titles(timeline_drawn(entries))
    assert "5.0 s to 6.0 s: 1 appends ok, 1 info, 1 fail; 7 records" in found


def test_phases_are_named() -> None:
    picture = timeline_drawn(list(phases(60)))
    assert "load: 4.0 s to 64.0 s" in timeline_titles(picture)
    assert "load" in [text.text for text in picture.findall("text")]


def test_hostile_words_stay_words() -> None:
    hostile = fault(1, HOSTILE, 20, 40, effect={HOSTILE: HOSTILE})
    text = pictures.serialise(timeline_drawn(hostile, windows=(Window(1, 2, HOSTILE),)))
    assert "<script" not in text


def test_very_many_faults_are_drawn_together() -> None:
    many = [fault(n, "kill", n / 200, n / 200 + 0.004, targets=(1,)) for n in range(20_000)]
    picture = timeline_drawn(*many)
    assert len(pictures.serialise(picture)) < 500_000
    assert any("more" in title for title in timeline_titles(picture))
    few = many[: pictures.FAULT_BARS_MAX // 2]
    bars = [t for t in timeline_titles(timeline_drawn(*few)) if t.startswith("kill on broker 1")]
    assert len(bars) == len(few)


def test_an_empty_run_has_a_picture_too() -> None:
    assert timeline(digest([]), ()).get("viewBox")


def test_every_kind_has_a_colour() -> None:
    for kind in driver.KINDS:
        assert pictures.family(kind) in COLOURS
        assert pictures.family(kind) != "other"


def test_a_kind_of_somebody_else_has_a_colour_too() -> None:
    assert pictures.family("meteorite") == "other"
