"""Elements are escaped whatever they hold, and numbers say their unit."""

from __future__ import annotations

from xml.etree.ElementTree import fromstring

import pytest

from raftlog_jepsen.report import pictures
from raftlog_jepsen.report.pictures import add, node
from tests.jepsen_like.report.histories import HOSTILE


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
