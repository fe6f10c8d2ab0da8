"""The pictures of a report: what is drawn where, and what its titles say."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.testing.checker.judge import judge
from raftlog.testing.history import AnyEntry, Member
from raftlog_jepsen.nemesis import driver
from raftlog_jepsen.report import html, pictures
from raftlog_jepsen.report.digest import digest
from raftlog_jepsen.report.html import judgement_of
from raftlog_jepsen.report.pictures import (
    BAR_WIDTH_MIN,
    BINS_MAX,
    COLOURS,
    ROWS_MAX,
    Bar,
    Chart,
    Picture,
    Window,
    bins,
    ownership,
    timeline,
)
from tests.jepsen_like.report.histories import append, at, fault, phases, sorted_by_time, start
from tests.testing.checker import synthetic


def bars(picture: Picture, *labels: str) -> list[Bar]:
    """The bars of all rows, or of those with these labels."""
    return [bar for row in picture.rows if not labels or row.label in labels for bar in row.bars]


def titles(picture: Picture) -> list[str]:
    return [bar.title for bar in bars(picture)]


def chart_of(picture: Picture) -> Chart:
    assert picture.chart is not None
    return picture.chart


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
    assert 2 <= len(pictures.ticks(length_s)) <= 16


def test_an_outage_is_shaded_and_is_never_invisible() -> None:
    (shade,) = timeline_drawn(windows=(Window(10, 10.001, "1 ms of nothing"),)).shades
    assert shade.width == BAR_WIDTH_MIN
    assert shade.title == "1 ms of nothing"


# -- numbers --------------------------------------------------------------------------------------


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


def member(when: float, what: str, name: str = "g/m1.1", *partitions: str, **how: Any) -> Member:
    return Member(
        time=at(when), process=name, type="info", group="g", what=what,
        partitions=list(partitions), **how,
    )  # fmt: skip


def drawn(*members: Member, faults: tuple[Any, ...] = ()) -> Picture:
    picture = ownership(digest(sorted_by_time([start(), start(100)], list(members), *faults)))
    assert picture is not None
    return picture


def test_a_bar_from_assigned_to_revoked() -> None:
    picture = drawn(
        member(20, "assigned", "g/m1.1", "t:0"),
        member(60, "revoked", "g/m1.1", "t:0"),
        member(60, "assigned", "g/m2.1", "t:0"),
        member(80, "killed", "g/m2.1"),
    )
    one, other = bars(picture, "g t:0")
    assert one[:4] == (20, 40, "g/m1.1: 20.0 s to 60.0 s, revoked", "m1.1")
    assert other[:4] == (60, 20, "g/m2.1: 60.0 s to 80.0 s, killed", "m2.1")
    assert one.kind == other.kind
    assert one.colour != other.colour


def test_two_at_a_time_are_one_below_the_other() -> None:
    picture = drawn(
        member(10, "assigned", "g/m1.1", "t:0"),
        member(12, "paused", "g/m1.1"),
        member(40, "assigned", "g/m2.1", "t:0"),
        member(60, "resumed", "g/m1.1"),
        member(61, "lost", "g/m1.1", "t:0"),
    )
    one, stopped, other = bars(picture)
    assert one.title == "g/m1.1: 10.0 s to 61.0 s, lost"
    assert other.title == "g/m2.1: 40.0 s to 100.0 s; another member assumed ownership, too"
    assert (one.kind, other.kind) == ("", "half")
    assert (stopped.left, stopped.width, stopped.kind) == (12, 48, " over hatch")


def test_faults_are_below() -> None:
    picture = drawn(
        member(10, "assigned", "g/m1.1", "t:0"),
        faults=(fault(1, "member-kill", 20, 40, effect={"ended": 1}),),
    )
    assert [row.label for row in picture.rows] == ["g t:0", "member-kill"]


def test_many_partitions_are_bounded_and_in_their_order() -> None:
    names = [f"t:{number}" for number in range(ROWS_MAX + 10)]
    picture = drawn(member(10, "assigned", "g/m1.1", *reversed(names)))
    labels = [row.label for row in picture.rows]
    assert labels[:3] == ["g t:0", "g t:1", "g t:2"]
    assert labels[-1] == "and 10 more"


def test_a_report_has_it_where_there_are_members() -> None:
    entries = list(synthetic.history(1))
    found = digest(entries)
    page = html.page(found, judgement_of(judge(entries), found.base_ns))
    assert "Partition ownership" in page
    assert "GROUP-SKIPPED" in page
    without = [entry for entry in entries if not isinstance(entry, Member)]
    assert ownership(digest(without)) is None


# -- plots -----------------------------------------------------------------------------------------


def history() -> list[AnyEntry]:
    """100 records a second for ten seconds, of which the fifth has none."""
    seconds = [s for s in range(10) if s != 5]
    entries = [e for s in seconds for e in append(s + 0.1, 0.01 * (s + 1), s * 100, 100)]
    return [start(), *entries, start(10)]


def test_throughput_tells_records_per_second() -> None:
    picture = pictures.throughput(digest(history()), ())
    chart = chart_of(picture)
    told = [column.title for column in chart.columns]
    assert told[0] == "0.0 s to 1.0 s: 100 records acknowledged, 0 read"
    assert told[5] == "5.0 s to 6.0 s: 0 records acknowledged, 0 read"
    assert chart.scale[-1] == (100, "100")
    assert chart.curves[0].path.startswith("M0.5 0.0h.1L1.5 0.0")
    assert "L5.5 100.0L" in chart.curves[0].path
    assert "100 at most" in picture.description


def test_latency_rises_with_the_time_and_breaks_where_there_is_none() -> None:
    chart = chart_of(pictures.latency(digest(history()), ()))
    path = chart.curves[0].path
    heights = [
        float(place.split()[1].split("h")[0]) for place in path[1:].replace("M", "L").split("L")
    ]
    assert heights == sorted(heights, reverse=True)
    assert len(heights) == 9
    assert path.count("M") == 2
    told = [column.title for column in chart.columns]
    assert told[9].startswith("9.0 s to 10.0 s: half within ")
    assert told[9].endswith(", longest 100 ms")
    assert told[5] == "5.0 s to 6.0 s: no append ended"
    assert {"10 ms", "100 ms"} <= {text for _, text in chart.scale}


def test_what_became_unknown_is_marked_apart() -> None:
    entries = [*history(), *append(10, 30, 5_000, 1, "info")]
    picture = pictures.latency(digest(entries), ())
    marked = [c for c in chart_of(picture).columns if [kind for kind, _ in c.parts] == ["mark"]]
    assert [c.title.partition(": ")[2][:10] for c in marked] in (["info after"], ["half withi"])
    assert picture.legend[-1][-1] == "info: half took at most that long"


def test_outages_are_shaded_in_both() -> None:
    for draw in (pictures.throughput, pictures.latency):
        (shade,) = draw(digest(history()), (Window(5, 6, "nothing"),)).shades
        assert shade[:3] == (50, 10, "nothing")


def test_nothing_at_all_can_be_drawn() -> None:
    for draw in (pictures.throughput, pictures.latency, timeline):
        assert len(chart_of(draw(digest([]), ())).columns) == 1


# -- timeline --------------------------------------------------------------------------------------


def timeline_drawn(*groups: list[object], windows: tuple[Window, ...] = ()) -> Picture:
    return timeline(digest(sorted_by_time([start(), start(100)], *groups)), windows)


def test_a_fault_is_a_bar_from_its_beginning_to_its_end() -> None:
    picture = timeline_drawn(fault(1, "kill", 20, 40, targets=(2,), effect={"ended": 1}))
    title = "kill on broker 2, 20.0 s to 40.0 s; ended 1"
    assert bars(picture, "kill") == [Bar(20, 20, title, "2", "", "process")]


def test_what_was_not_injected_is_crossed_out_and_says_why() -> None:
    refused = fault(1, "power", 20, None, effect={"why": "no loop devices"}, injected=False)
    (bar,) = bars(timeline_drawn(refused), "power")
    assert bar.title == "power, 20.0 s to 20.1 s, not injected: no loop devices"
    assert bar.kind == "cross"
    (bar,) = bars(timeline_drawn(fault(1, "power", 20, 30)), "power")
    assert bar.kind == ""


def test_beyond_the_budget_is_marked_by_more_than_a_colour() -> None:
    (bar,) = bars(timeline_drawn(fault(1, "wipe", 20, 60, targets=(1, 2), budget="beyond")))
    assert bar.title == "wipe on brokers 1, 2, 20.0 s to 60.0 s, beyond budget"
    assert (bar.text, bar.kind) == ("1,2!", "beyond")


def test_faults_of_one_kind_that_overlap_do_not_cover_each_other() -> None:
    overlapping = [fault(n, "kill", 10 + n, 50 + n) for n in range(3)]
    rows = timeline_drawn(*overlapping, fault(9, "kill", 80, 90)).rows
    assert [row.label for row in rows] == ["kill", "", ""]
    assert [[bar.left for bar in row.bars] for row in rows] == [[10, 80], [11], [12]]


def test_outages_have_a_row_and_a_shade() -> None:
    picture = timeline_drawn(windows=(Window(10, 20, "no acknowledgement for 10 s"),))
    (bar,) = bars(picture, "no acks")
    assert bar[:4] == (10, 10, "no acknowledgement for 10 s", "10 s")
    assert [shade[:3] for shade in picture.shades] == [bar[:3]]


def test_appends_are_stacked_and_told_by_the_second() -> None:
    entries = [
        *append(5, 0.1, 0, 7),
        *append(5.2, 0.1, 7, 1, "info"),
        *append(5.4, 0.1, 8, 1, "fail"),
    ]
    column = chart_of(timeline_drawn(entries)).columns[5]
    assert column.title == "5.0 s to 6.0 s: 1 appends ok, 1 info, 1 fail; 7 records"
    assert [kind for kind, _ in column.parts] == ["ok", "info hatch", "fail cross"]
    assert len({height for _, height in column.parts}) == 1


def test_phases_are_named() -> None:
    found = bars(timeline_drawn(list(phases(60))), "phase")
    assert ("load: 4.0 s to 64.0 s", "load") in [(bar.title, bar.text) for bar in found]


def test_very_many_faults_are_drawn_together() -> None:
    many = [fault(n, "kill", n / 200, n / 200 + 0.004, targets=(1,)) for n in range(20_000)]
    told = titles(timeline_drawn(*many))
    assert len(told) < 2_000
    assert any("more" in title for title in told)
    few = many[: pictures.FAULT_BARS_MAX // 2]
    assert len(titles(timeline_drawn(*few))) == len(few)


def test_every_kind_has_a_colour() -> None:
    for kind in driver.KINDS:
        assert pictures.family(kind) in COLOURS
        assert pictures.family(kind) != "other"


def test_a_kind_of_somebody_else_has_a_colour_too() -> None:
    assert pictures.family("meteorite") == "other"
