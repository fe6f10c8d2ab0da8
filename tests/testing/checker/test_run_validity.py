"""A run that proves nothing is not valid."""

from __future__ import annotations

import pytest

from raftlog.testing.history.entries import Phase, Read
from tests.testing.checker.small import Small, good


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
