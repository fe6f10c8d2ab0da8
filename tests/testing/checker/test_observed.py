"""What consumers were given is there at the end, and is what others were given."""

from __future__ import annotations

from tests.testing.checker.small import good


def test_observed_then_lost() -> None:
    small = good()
    small.invoke(7)
    small.poll((5, 1, 6, 1), (6, 1, 7, 1))
    small.finish()
    assert small.found() == {"OBSERVED-THEN-LOST": 1}


def test_it_does_not_matter_how_it_was_acknowledged() -> None:
    small = good()
    small.invoke(7, acks=1)
    small.complete(7, offsets=[(7, 1, 6)])
    small.poll((5, 1, 6, 1), (6, 1, 7, 1))
    small.finish()
    assert small.found() == {"OBSERVED-THEN-LOST": 1}


def test_what_was_deleted_is_not_lost() -> None:
    small = good()
    small.poll((0, 3, 1, 1), (3, 2, 4, 1))
    small.delete(4)
    small.finish(log=[(4, 1, 5, 1), (5, 1, 6, 1)], start=4)
    assert small.found() == {}


def test_another_value_at_the_offset() -> None:
    small = good()
    small.poll((0, 1, 1, 1), (1, 1, 6, 1))
    small.finish()
    assert small.found() == {"INCONSISTENT-OFFSET": 1}


def test_the_same_mistake_seen_twice_is_one_finding() -> None:
    small = good()
    for process in ("c1", "c2"):
        small.poll((0, 1, 1, 1), (1, 1, 6, 1), process=process)
    small.finish()
    assert small.found() == {"INCONSISTENT-OFFSET": 1}


def test_another_value_where_it_is_deleted() -> None:
    small = good()
    small.poll((0, 2, 1, 1), process="c1")
    small.poll((1, 1, 6, 1), process="c2")
    small.delete(3)
    small.finish(log=small.log[1:], start=3)
    assert small.found() == {"INCONSISTENT-OFFSET": 1}


def test_acknowledgements_count_where_it_is_deleted() -> None:
    small = good()
    small.invoke(7)
    small.poll((0, 1, 7, 1))
    small.delete(3)
    small.finish(log=small.log[1:], start=3)
    assert small.found() == {"INCONSISTENT-OFFSET": 1}


def test_another_epoch_of_a_record() -> None:
    small = good()
    small.poll((0, 3, 1, 2))
    small.finish()
    assert small.found() == {"EPOCH-ORDER": 1}


def test_an_epoch_may_be_unknown() -> None:
    small = good()
    small.poll((0, 3, 1, -1))
    small.finish()
    assert small.found() == {}


def test_epochs_go_down_where_it_is_deleted() -> None:
    small = good()
    small.poll((0, 1, 1, 2), (1, 2, 2, 1))
    small.delete(3)
    small.finish(log=small.log[1:], start=3)
    assert small.found() == {"EPOCH-ORDER": 1}


def test_without_a_final_log_consumers_are_compared_with_each_other() -> None:
    small = good()
    small.poll((0, 3, 1, 1), process="c1")
    small.poll((1, 1, 6, 1), process="c2")
    small.phase("end")
    verdict = small.judge()
    assert "INCONSISTENT-OFFSET" in verdict.kinds
    assert verdict.troubles


def test_beyond_the_budget_what_was_lost_is_not_compared() -> None:
    small = good()
    small.poll((5, 1, 6, 1))
    small.fault(1, budget="beyond")
    small.log.pop()
    small.append(7, process="q")
    small.finish()
    verdict = small.judge()
    assert verdict.valid == "valid"
    assert verdict.stats["found_but_not_judged"] == {"LOST-mid": 1, "OBSERVED-THEN-LOST": 1}
