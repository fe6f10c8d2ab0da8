"""Writes go on unless a fault excuses that they do not."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.testing.history.entries import Phase, Read
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


# -- run validity ----------------------------------------------------------------------------------
#
# A run that proves nothing is not valid.


def doubts(small: Small) -> tuple[str, ...]:
    verdict = small.judge()
    assert verdict.valid == ("unknown" if verdict.troubles else "valid")
    return verdict.troubles


def test_a_whole_run_leaves_no_doubt() -> None:
    small = good()
    small.fault(1)
    small.fault(1, "end")
    small.finish()
    assert doubts(small) == ()


def test_a_run_that_broke_off() -> None:
    small = good()
    small.finish()
    assert isinstance(small.entries.pop(), Phase)
    assert doubts(small) == ("the run did not complete",)


def test_nothing_was_acknowledged() -> None:
    small = Small()
    small.invoke(1)
    small.complete(1, type_="info")
    small.finish()
    assert doubts(small) == ("no append was acknowledged",)


def test_a_partition_was_not_read() -> None:
    small = good()
    small.invoke(7, partition="t:1")
    small.complete(7, partition="t:1", offsets=[(7, 1, 0)])
    small.finish()
    assert doubts(small) == ("t:1 has appends, and was not read at the end",)


def test_a_topic_that_is_gone_cannot_be_read() -> None:
    small = good()
    small.admin("delete")
    small.phase("end")
    assert doubts(small) == ()


def test_nothing_but_refused_appends_needs_no_reader() -> None:
    small = good()
    small.invoke(7, partition="t:1")
    small.complete(7, partition="t:1", type_="fail")
    small.finish()
    assert doubts(small) == ()


def test_a_fault_without_effect() -> None:
    small = good()
    small.fault(1, effect={})
    small.finish()
    (trouble,) = doubts(small)
    assert "without an effect" in trouble


def test_a_fault_of_which_nobody_says_anything() -> None:
    small = good()
    small.fault(1)
    small.entries.pop()
    small.finish()
    assert doubts(small) == ("fault 1 (kill): no record of its injection",)


def test_what_was_not_injected_is_listed() -> None:
    small = good()
    small.fault(1, targets=[2], injected=False, effect={"why": "no root"})
    small.fault(2)
    small.fault(2, "end")
    small.finish()
    verdict = small.judge()
    assert verdict.valid == "valid"
    (fault,) = verdict.not_injected
    assert (fault["id"], fault["kind"], fault["targets"], fault["why"]) == (
        1,
        "kill",
        [2],
        "no root",
    )
    assert verdict.stats["faults_injected"] == {"kill": 1}


@pytest.mark.parametrize("asked", [(), ("kill",)])
def test_faults_were_asked_for_and_there_were_none(asked: tuple[str, ...]) -> None:
    small = Small({"nemeses": list(asked)})
    small.append(1)
    small.finish()
    reason = "no fault of kill was injected: the run was too short to select it"
    assert doubts(small) == ((reason,) if asked else ())


@pytest.mark.parametrize("asked", [[["kill"]], [["pause", "kill"]], [["kill"], ["pause"]]])
def test_each_name_that_was_asked_for_took_effect(asked: list[list[str]]) -> None:
    small = Small({"nemeses": ["kill", "pause"], "requested": asked})
    small.append(1)
    small.fault(1, targets=[2])
    small.fault(1, "end")
    small.fault(2, kind="pause", targets=[2], injected=False, effect={"why": "not Linux"})
    small.finish()
    missed = asked == [["kill"], ["pause"]]
    assert doubts(small) == (("no fault of pause was injected: not Linux",) if missed else ())


def test_the_runner_is_in_trouble() -> None:
    small = good()
    small.note("all is well")
    small.note("a client died", is_trouble=True)
    small.finish()
    assert doubts(small) == ("a client died",)


def test_an_acknowledgement_without_offsets() -> None:
    small = good()
    small.invoke(7, 2)
    small.complete(7, 2, offsets=[(7, 1, 6)])
    small.land(7, 2)
    small.finish()
    assert "without offsets for all of it" in doubts(small)[0]


def test_an_acknowledgement_of_values_of_others() -> None:
    small = good()
    small.invoke(7, 2)
    small.complete(7, 2, offsets=[(8, 2, 6)])
    small.land(7, 3)
    small.finish()
    assert "values of other appends" in small.judge().troubles[0]


def test_values_are_sent_once() -> None:
    small = good()
    small.invoke(5, 3, process="q")
    small.finish()
    assert doubts(small)[0].startswith("2 appends send values that another append sends")


def test_findings_outweigh_doubts() -> None:
    small = good()
    small.finish(log=small.log[:2])
    small.entries = [e for e in small.entries if not (isinstance(e, Read) and e.process == "r2")]
    small.entries.pop()
    verdict = small.judge()
    assert verdict.valid == "invalid"
    assert verdict.troubles
