"""Throughput and latency: where the curves are, and what they say."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, fromstring

from raftlog.testing.history.entries import AnyEntry
from raftlog_jepsen.report import pictures
from raftlog_jepsen.report.digest import digest
from raftlog_jepsen.report.pictures import Window
from tests.jepsen_like.report.histories import append, start


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
