"""Writes go on unless a fault excuses that they do not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.testing.checker.small import SECOND, Small, good


def silence(seconds: float, *, is_tried: bool = True) -> Small:
    """Appends, a time without any answer, appends."""
    small = good()
    if is_tried:
        small.invoke(7, process="q")
    small.pass_s(seconds)
    if is_tried:
        small.complete(7, process="q")
    small.append(8)
    return small


def test_a_short_silence() -> None:
    small = silence(9)
    small.finish()
    assert small.found() == {}
    (outage,) = small.judge().outages
    assert outage.length_ns == pytest.approx(9 * SECOND, abs=SECOND / 10)
    assert outage.unexcused_ns == pytest.approx(outage.length_ns, abs=SECOND / 10)
    assert outage.faults == ()
    stats = small.judge().stats
    assert stats["outages"] == 1
    assert stats["outage_max_s"] == stats["outage_p50_s"] == pytest.approx(9, abs=0.1)


def test_a_long_silence() -> None:
    small = silence(11)
    small.finish()
    assert small.found() == {"UNAVAILABLE": 1}


def test_nobody_is_refused_who_does_not_ask() -> None:
    small = silence(60, is_tried=False)
    small.finish()
    assert small.found() == {}
    assert small.judge().outages == ()


def test_an_append_that_was_abandoned_waits_no_longer() -> None:
    small = good()
    small.invoke(7, process="q")
    small.pass_s(60)
    small.append(8)
    small.finish()
    assert small.found() == {}


@pytest.mark.parametrize(
    ("how", "is_bad"),
    [
        ({}, True),
        ({"expects": "outage"}, False),
        ({"budget": "beyond"}, False),
        ({"expects": "outage", "injected": False}, True),
    ],
)
def test_a_fault_excuses_what_it_was_expected_to_do(how: dict[str, Any], is_bad: bool) -> None:
    small = good()
    small.invoke(7, process="q")
    small.fault(1, **how)
    small.pass_s(30)
    if how.get("injected", True):
        small.fault(1, "end")
    small.pass_s(8)  # to recover
    small.complete(7, process="q")
    small.finish()
    assert small.judge().kinds == ({"UNAVAILABLE"} if is_bad else frozenset())
    (outage,) = small.judge().outages
    assert outage.faults == (() if how.get("injected") is False else ("kill",))


def test_a_fault_that_had_to_be_ended_was_there_in_part() -> None:
    small = good()
    small.invoke(7, process="q")
    small.fault(1, expects="outage", injected=False)
    small.pass_s(20)
    small.fault(1, "end")
    small.complete(7, process="q")
    small.finish()
    assert small.found() == {}


def test_what_was_expected_is_what_was_when_it_began() -> None:
    small = good()
    small.invoke(7, process="q")
    small.fault(1)
    small.pass_s(20)
    small.fault(1, "end", expects="outage", budget="beyond")
    small.complete(7, process="q")
    small.finish()
    assert small.found() == {"UNAVAILABLE": 1}


def test_recovery_takes_no_longer_than_anything_may() -> None:
    small = good()
    small.invoke(7, process="q")
    small.fault(1, expects="outage")
    small.fault(1, "end")
    small.pass_s(21)
    small.complete(7, process="q")
    small.finish()
    assert small.found() == {"UNAVAILABLE": 1}


def test_only_the_load_counts() -> None:
    small = good()
    small.invoke(7, process="q")
    small.phase("heal")
    small.pass_s(60)
    small.complete(7, process="q")
    small.finish()
    assert small.found() == {}


def test_without_phases_all_counts_from_the_first_append_to_the_last() -> None:
    small = silence(11)
    small.finish()
    small.entries = [e for e in small.entries if getattr(e, "name", "") in {"", "end"}]
    assert small.found() == {"UNAVAILABLE": 1}


def shares(ok: int, refused: int, **how: Any) -> dict[str, int]:
    small = good()
    small.fault(1, **how)
    for number in range(ok + refused):
        small.invoke(10 + number, process=f"q{number}")
        type_ = "ok" if number < ok else "info"
        small.complete(10 + number, process=f"q{number}", type_=type_)  # type: ignore[arg-type]
    if how.get("injected", True):
        small.fault(1, "end")
    small.finish()
    return small.found()


def test_most_have_to_succeed_under_faults_that_should_not_matter() -> None:
    assert shares(10, 10) == {}
    assert shares(9, 11) == {"UNAVAILABLE": 1}
    assert shares(1, 2) == {}  # too few to say
    assert shares(9, 11, expects="outage") == {}
    assert shares(9, 11, injected=False) == {}
