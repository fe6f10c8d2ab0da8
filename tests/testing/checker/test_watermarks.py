"""Ends of partitions do not go back for those who ask afterwards."""

from __future__ import annotations

from raftlog.testing.history.entries import Ends
from tests.testing.checker.small import P, Small, good


def test_ends_that_grow() -> None:
    small = good()
    small.ends(6)
    small.append(7)
    small.ends(7)
    small.finish()
    assert small.found() == {}


def test_an_end_below_what_was_told() -> None:
    small = Small()
    small.invoke(1, 6)
    small.ends(6)
    small.ends(5, process="another")
    small.complete(1, 6)
    small.finish()
    assert small.found() == {"HW-REGRESSION": 1}
    (anomaly,) = small.judge().anomalies
    assert anomaly.evidence["offsets"] == [5, 6]
    assert anomaly.evidence["lines"] == [5, 7]


def test_an_end_below_what_was_acknowledged() -> None:
    small = good()
    small.ends(5)
    small.finish()
    assert small.found() == {"HW-REGRESSION": 1}


def test_an_end_below_what_was_polled() -> None:
    small = good()
    small.invoke(7)
    small.land(7)
    small.poll((5, 1, 6, 1), (6, 1, 7, 1))
    small.ends(6)
    small.finish()
    assert small.found() == {"HW-REGRESSION": 1}


def test_one_leader_may_know_more_than_the_others_do() -> None:
    small = good()
    small.invoke(7, acks=1)
    small.complete(7)
    small.ends(6)
    small.finish()
    assert small.found() == {}


def test_who_asked_before_may_be_told_less() -> None:
    small = good()
    small.add(Ends(time=0, process="slow", type="invoke"))
    small.append(7)
    small.ends(7)
    small.add(Ends(time=0, process="slow", type="ok", ends={P: 6}))
    small.finish()
    assert small.found() == {}


def test_a_topic_that_is_created_again_begins_at_0() -> None:
    small = good()
    small.ends(6)
    small.admin("delete")
    small.admin("create")
    small.log.clear()
    small.pass_s(60)
    small.append(11, process="p2")
    small.ends(1)
    small.ends(0, process="wrong")
    small.finish()
    assert small.found() == {"HW-REGRESSION": 1}


def test_beyond_the_budget_the_end_may_go_back() -> None:
    small = good()
    small.ends(4, process="wrong")
    small.fault(1, budget="beyond")
    small.ends(2)
    small.finish()
    assert small.found() == {"HW-REGRESSION": 1}
