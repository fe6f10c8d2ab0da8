"""The time axis, bins and scales that all pictures share."""

from __future__ import annotations

import pytest

from raftlog_jepsen.report import pictures
from raftlog_jepsen.report.digest import digest
from raftlog_jepsen.report.pictures import BINS_MAX, LEFT, RIGHT, Sheet, Window, bins, node
from tests.jepsen_like.report.histories import append, start


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
    told = {element.get("id"): element.text for element in root}
    assert [told[name] for name in names] == ["Title", "Told."]
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
