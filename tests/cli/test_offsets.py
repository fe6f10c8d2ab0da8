"""The OFFSETS grammar: a table of texts and what they mean."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog_cli.options import (
    EARLIEST,
    LATEST,
    Bound,
    Extent,
    From,
    Offsets,
    confine,
    parse_offsets,
    parse_time,
    resolve,
)

NOW_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NEW_YEAR_MS = 1_704_067_200_000  # 2024-01-01T00:00:00Z


def at(milliseconds: int) -> Bound:
    return Bound(From.TIME, milliseconds)


def offset(number: int) -> Bound:
    return Bound(From.OFFSET, number)


def test_offsets_mean_what_the_grammar_says() -> None:
    for text, meaning in [
        ("earliest", Offsets(EARLIEST)),
        ("latest", Offsets(LATEST)),
        ("0", Offsets(offset(0))),
        ("47", Offsets(offset(47))),
        ("-10", Offsets(Bound(From.END, 10))),
        ("+10", Offsets(Bound(From.BEGINNING, 10))),
        ("5:9", Offsets(offset(5), offset(9))),
        ("5:5", Offsets(offset(5), offset(5))),
        ("@1700000000000", Offsets(at(NOW_MS))),
        ("@-2h", Offsets(at(NOW_MS - 2 * HOUR_MS))),
        ("@-1h30m", Offsets(at(NOW_MS - HOUR_MS * 3 // 2))),
        ("@-2h:-1h", Offsets(at(NOW_MS - 2 * HOUR_MS), at(NOW_MS - HOUR_MS))),
        ("@2024-01-01", Offsets(at(NEW_YEAR_MS))),
        ("@2024-01-01T00:00", Offsets(at(NEW_YEAR_MS))),
        ("@2024-01-01T00:00:00Z", Offsets(at(NEW_YEAR_MS))),
        ("@2024-01-01T01:00:00+01:00", Offsets(at(NEW_YEAR_MS))),
        ("@2024-01-01T00:00:00.250", Offsets(at(NEW_YEAR_MS + 250))),
        ("@2024-01-01:2024-01-02", Offsets(at(NEW_YEAR_MS), at(NEW_YEAR_MS + DAY_MS))),
        (
            "@2024-01-01T00:00:00:2024-01-01T01:00:00",
            Offsets(at(NEW_YEAR_MS), at(NEW_YEAR_MS + HOUR_MS)),
        ),
        (
            "@2024-01-01T01:00+01:00:2024-01-01T01:00Z",
            Offsets(at(NEW_YEAR_MS), at(NEW_YEAR_MS + HOUR_MS)),
        ),
        ("@1700000000000:1700000000001", Offsets(at(NOW_MS), at(NOW_MS + 1))),
    ]:
        assert parse_offsets(text, now_ms=NOW_MS) == meaning


@pytest.mark.parametrize(
    "text",
    [
        "",
        "first",
        "EARLIEST",
        "1.5",
        "--1",
        "-",
        "+",
        "1:",
        ":1",
        "9:5",
        "1:2:3",
        "@",
        "@yesterday",
        "@-2 h",
        "@-2y",
        "@-1h:-2h",
        "@2024-13-01",
        "٤٧",
        "99999999999999999999",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not one of|TIME|starts"):
        parse_offsets(text, now_ms=NOW_MS)


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_offsets(text, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [("-5ms", 5), ("-5s", 5_000), ("-5m", 300_000), ("-1d", DAY_MS), ("-2w", 14 * DAY_MS)],
)
def test_relative_times_count_back_from_now(text: str, ago_ms: int) -> None:
    assert parse_time(text, now_ms=NOW_MS) == NOW_MS - ago_ms


def test_a_time_before_1970_is_1970() -> None:
    assert parse_time("-9999w", now_ms=NOW_MS) == 0
    assert parse_time("1969-07-20", now_ms=NOW_MS) == 0


EXTENT = Extent(beginning=100, end=200)


@pytest.mark.parametrize(
    ("bound", "at_time", "expected"),
    [
        (EARLIEST, None, 100),
        (LATEST, None, 200),
        (Bound(From.END, 10), None, 190),
        (Bound(From.END, 1_000), None, 100),
        (Bound(From.BEGINNING, 10), None, 110),
        (Bound(From.BEGINNING, 1_000), None, 200),
        (offset(150), None, 150),
        (offset(7), None, 7),
        (at(NOW_MS), 120, 120),
        (at(NOW_MS), None, 200),
    ],
)
def test_bounds_become_offsets(bound: Bound, at_time: int | None, expected: int) -> None:
    assert resolve(bound, EXTENT, at_time=at_time) == expected


@pytest.mark.parametrize(("wanted", "given"), [(7, 100), (100, 100), (150, 150), (999, 200)])
def test_confined_offsets_are_ones_that_exist(wanted: int, given: int) -> None:
    assert confine(wanted, EXTENT) == given
