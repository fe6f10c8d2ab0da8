"""What was acknowledged is where it was acknowledged, in every order that was promised."""

from __future__ import annotations

import pytest

from raftlog.testing.checker.judge import LOSSES
from tests.testing.checker.small import Small, good


def test_a_good_history_has_nothing() -> None:
    small = good()
    small.finish()
    assert small.judge().valid == "valid"
    assert small.found() == {}


def test_lost_tail() -> None:
    small = good()
    small.finish(log=small.log[:2])
    assert small.found() == {"LOST-tail": 1}
    (anomaly,) = small.judge().anomalies
    assert anomaly.evidence["offsets"] == [5, 5]
    assert anomaly.evidence["operations"][0]["lines"] == [7, 8]


def test_lost_mid() -> None:
    """Another value, of which nobody knew, has taken its place."""
    small = good()
    small.invoke(9)
    small.finish(log=[(0, 3, 1, 1), (3, 1, 4, 1), (4, 1, 9, 1), (5, 1, 6, 1)])
    assert small.found() == {"LOST-mid": 1}


def test_the_log_starts_where_nobody_deleted() -> None:
    small = good()
    small.finish(log=[(1, 2, 2, 1), *small.log[1:]], start=1)
    assert small.found() == {"LOST-mid": 2}  # the value, and the start
    small = Small()
    small.append(1)
    small.finish(log=[], start=1, end=1)
    assert small.found() == {"LOST-tail": 2}


def test_what_was_deleted_may_be_gone_even_if_nobody_knows_that_it_was() -> None:
    for type_ in ("ok", "info"):
        small = good()
        small.delete(4, type_)  # type: ignore[arg-type]
        small.finish(log=[(4, 1, 5, 1), (5, 1, 6, 1)], start=4)
        assert small.found() == {}
    small = good()
    small.delete(4, "fail")
    small.finish(log=[(4, 1, 5, 1), (5, 1, 6, 1)], start=4)
    assert set(small.found()) == {"LOST-mid"}


@pytest.mark.parametrize("config", [{"retention.ms": "1000"}, {"retention.bytes": "65536"}])
def test_what_a_topic_does_not_retain_may_be_gone(config: dict[str, str]) -> None:
    topics = [{"name": "t", "config": [list(pair) for pair in config.items()]}]
    small = Small({"shape": {"topics": topics}})
    small.append(1, 3)
    small.append(4)
    small.finish(log=[(2, 1, 3, 1), (3, 1, 4, 1)], start=2)
    assert small.found() == {}


def test_retention_can_come_with_a_change() -> None:
    small = good()
    small.admin("alter", config={"retention.bytes": "65536"})
    small.finish(log=[(5, 1, 6, 1)], start=5)
    assert small.found() == {}
    small = good()
    small.admin("alter", config={"retention.bytes": "-1", "segment.bytes": "65536"})
    small.finish(log=[(5, 1, 6, 1)], start=5)
    assert "LOST-mid" in small.found()


def test_moved() -> None:
    small = good()
    small.finish(log=[(0, 3, 1, 1), (3, 1, 6, 1), (4, 1, 5, 1), (5, 1, 4, 1)])
    assert small.found() == {"MOVED": 2}


@pytest.mark.parametrize("acks", [0, 1])
def test_weaker_acknowledgements_promise_nothing(acks: int) -> None:
    small = good()
    small.invoke(7, acks=acks)
    small.complete(7, offsets=[(7, 1, 6)] if acks else [])
    small.finish()
    assert small.found() == {}


def test_an_acknowledged_part_binds_whatever_became_of_the_rest() -> None:
    for type_ in ("info", "fail"):
        small = good()
        small.invoke(7, 2)
        small.complete(7, 2, type_=type_, offsets=[(7, 1, 6)])  # type: ignore[arg-type]
        small.finish()
        assert small.found() == {"LOST-tail": 1}


def test_what_is_not_known_may_be_there_or_not() -> None:
    small = good()
    small.invoke(7)
    small.complete(7, type_="info")
    small.invoke(8)  # never completed
    small.land(8)
    small.finish()
    assert small.found() == {}


def test_real_time_order() -> None:
    small = good()
    small.invoke(7)
    small.complete(7, offsets=[(7, 1, 7)])
    small.append(8)  # sent when 7 was acknowledged, and yet before it
    small.log.append((7, 1, 7, 1))
    small.finish()
    assert small.found() == {"NONMONOTONIC-SEND": 1, "REALTIME-ORDER": 1}
    lone = good()
    lone.invoke(7, process="q")
    lone.complete(7, offsets=[(7, 1, 7)], process="q")
    lone.append(8)
    lone.log.append((7, 1, 7, 1))
    lone.finish()
    assert lone.found() == {"REALTIME-ORDER": 1}


def test_operations_that_overlap_may_come_in_any_order() -> None:
    small = good()
    small.invoke(7, process="q")
    small.invoke(8)
    small.complete(8)
    small.complete(7, process="q")
    small.finish()
    assert small.found() == {}


def test_a_producers_order() -> None:
    small = good()
    small.invoke(7)
    small.invoke(8)
    small.complete(8)
    small.complete(7)
    small.finish()
    assert small.found() == {"NONMONOTONIC-SEND": 1}


def test_who_is_not_idempotent_may_be_overtaken() -> None:
    small = good()
    small.invoke(7, idempotent=False)
    small.invoke(8, idempotent=False)
    small.complete(8)
    small.complete(7)
    small.finish()
    assert small.found() == {}


def test_the_order_within_an_append() -> None:
    small = good()
    small.invoke(7, 2)
    small.complete(7, 2, offsets=[(7, 1, 7), (8, 1, 6)])
    small.log += [(6, 1, 8, 1), (7, 1, 7, 1)]
    small.finish()
    assert small.found() == {"INT-NONMONOTONIC-SEND": 1}


def test_beyond_the_budget_only_what_is_there_counts() -> None:
    small = good()
    small.fault(1, budget="beyond", expects="outage")
    small.log.pop()
    small.append(7, process="q")  # at an offset that 6 was acknowledged at
    small.finish()
    verdict = small.judge()
    assert verdict.valid == "valid"
    assert set(LOSSES) <= verdict.not_applicable.keys()
    assert {"LOST-tail", "LOST-mid", "OBSERVED-THEN-LOST"} <= set(LOSSES)
    assert verdict.stats["found_but_not_judged"] == {"LOST-mid": 1}
