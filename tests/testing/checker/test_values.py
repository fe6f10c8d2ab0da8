"""Values: each was sent, none that was refused, none twice, none of a topic that is no more."""

from __future__ import annotations

from raftlog.testing.history.entries import STRANGE
from tests.testing.checker.small import P, Small, good


def test_a_duplicate_of_an_idempotent_producer() -> None:
    small = good()
    small.land(2)
    small.finish()
    assert small.found() == {"DUPLICATE": 1}
    (anomaly,) = small.judge().anomalies
    assert [place["offsets"] for place in anomaly.evidence["places"]] == [[0, 2], [6, 6]]


def test_others_may_repeat() -> None:
    small = good()
    small.append(7, 2, idempotent=False)
    small.land(7, 2)
    small.finish()
    assert small.found() == {}


def test_a_duplicate_of_what_was_deleted() -> None:
    small = good()
    small.poll((0, 3, 1, 1))
    small.delete(3)
    small.land(1)
    small.finish(log=small.log[1:], start=3)
    assert small.found() == {"DUPLICATE": 1}


def test_what_failed_is_there() -> None:
    small = good()
    small.invoke(7, 3)
    small.complete(7, 3, type_="fail", offsets=[(7, 1, small.land(7))])
    small.finish()
    assert small.found() == {}
    small = good()
    small.invoke(7, 3)
    small.complete(7, 3, type_="fail", offsets=[(7, 1, small.land(7))])
    small.land(9)
    small.finish()
    assert small.found() == {"G1A": 1}
    assert small.judge().anomalies[0].evidence["operations"][0]["first"] == 7


def test_what_failed_was_shown() -> None:
    small = good()
    small.invoke(7)
    small.complete(7, type_="fail")
    small.poll((6, 1, 7, 1))
    small.finish()
    assert small.found() == {"G1A": 1, "OBSERVED-THEN-LOST": 1}


def test_phantoms() -> None:
    small = good()
    small.land(99)
    small.finish()
    assert small.found() == {"PHANTOM": 1}
    small = good()
    small.log.append((6, 2, STRANGE, 1))  # neither of which has a value
    small.finish()
    assert small.found() == {"PHANTOM": 2}
    small = good()
    small.finish(dumps={1: {"records": [*small.log, (6, 1, 99, 1)], "end": 7}})
    assert small.found() == {"PHANTOM": 1}


def test_a_value_of_another_partition_is_a_phantom() -> None:
    small = good()
    small.invoke(7, partition="t:1")
    small.complete(7, type_="info", partition="t:1")
    small.land(7)
    small.finish()
    assert small.judge().kinds == {"PHANTOM"}


def _recreated(delete: str = "ok") -> Small:
    small = good()
    small.poll(*small.log, process="c1")
    small.ends(6, process="a1")
    small.admin("delete", delete)  # type: ignore[arg-type]
    small.log.clear()
    small.admin("create")
    small.append(11, process="p2")
    return small


def test_a_topic_that_was_deleted_keeps_nothing() -> None:
    for delete in ("ok", "info"):
        small = _recreated(delete)
        small.poll((0, 1, 11, 1), process="c2")
        small.ends(1, process="a2")
        small.finish()
        assert small.found() == {}


def test_what_was_acknowledged_before_a_deletion_comes_back() -> None:
    small = _recreated()
    small.land(5)
    small.finish()
    assert small.found() == {"RESURRECTED": 1}


def test_a_consumer_may_still_have_what_it_fetched_before_the_deletion() -> None:
    small = good()
    small.poll((0, 1, 1, 1), process="slow")
    small.admin("delete")
    small.log.clear()
    small.admin("create")
    small.append(11, process="p2")
    small.pass_s(60)
    small.poll((1, 1, 2, 1), process="slow")
    small.finish()
    assert small.found() == {}


def test_it_is_seen_in_a_poll() -> None:
    small = _recreated()
    small.pass_s(60)
    small.poll((0, 1, 11, 1), (1, 1, 5, 1), process="c2")
    small.finish()
    assert small.found() == {"RESURRECTED": 1, "OBSERVED-THEN-LOST": 1}


def test_a_broker_may_hear_late_of_a_deletion() -> None:
    small = _recreated()
    small.poll((0, 3, 1, 1), process="c2")
    small.finish()
    assert small.found() == {}


def test_what_was_under_way_may_come_late() -> None:
    small = good()
    small.invoke(7)
    small.admin("delete")
    small.admin("create")
    small.log.clear()
    small.complete(7)
    small.finish()
    assert small.found() == {}


def test_what_comes_after_counts_as_ever() -> None:
    small = _recreated()
    small.append(12, process="p2")
    small.finish(log=small.log[:1])
    assert small.found() == {"LOST-tail": 1}


def test_the_lives_of_a_topic_before_are_judged_by_themselves() -> None:
    small = good()
    small.poll((0, 1, 1, 1), process="c1")
    small.poll((0, 1, 2, 1), process="c2")
    small.poll((3, 1, 99, 1), process="c3")
    small.admin("delete")
    small.admin("create")
    small.log.clear()
    small.append(11, process="p2")
    small.finish()
    assert small.found() == {"INCONSISTENT-OFFSET": 1, "PHANTOM": 1}


def test_the_name_of_the_partition_is_told() -> None:
    small = good()
    small.land(99)
    small.finish()
    assert P in small.judge().anomalies[0].message
