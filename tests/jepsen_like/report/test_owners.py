"""The picture of who owned what: a bar for each time, one below the other where there are two."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest

from raftlog.testing.checker.judge import judge
from raftlog.testing.history.entries import Member
from raftlog_jepsen.report import html, pictures
from raftlog_jepsen.report.digest import digest
from raftlog_jepsen.report.html import judgement_of
from raftlog_jepsen.report.pictures import LEFT, RIGHT, ROWS_MAX, ownership
from tests.jepsen_like.report.histories import at, fault, sorted_by_time, start
from tests.testing.checker import synthetic


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
