"""Consumers are given records in order, all of them, and in time."""

from __future__ import annotations

from tests.testing.checker.small import Small, good

LOG = [(0, 3, 1, 1), (3, 2, 4, 1), (5, 1, 6, 1)]


def judged(*polls: list[tuple[int, int, int, int]]) -> dict[str, int]:
    """What is found when one consumer is given these, one after the other, from offset 0 on."""
    small = good()
    for records in polls:
        small.poll(*records, at=0)
    small.finish()
    return small.found()


def test_polls_that_follow_each_other() -> None:
    assert judged(LOG[:1], [], LOG[1:]) == {}
    assert judged([(0, 2, 1, 1)], [(2, 1, 3, 1), (3, 1, 4, 1)], [(4, 1, 5, 1), LOG[2]]) == {}


def test_a_record_is_left_out_within_a_poll() -> None:
    assert judged([(0, 1, 1, 1), (2, 1, 3, 1)]) == {"INT-POLL-SKIP": 1}


def test_a_poll_goes_back() -> None:
    assert judged([(0, 2, 1, 1), (1, 2, 2, 1)]) == {"INT-NONMONOTONIC-POLL": 1}


def test_a_record_is_left_out_between_polls() -> None:
    assert judged(LOG[:1], LOG[2:]) == {"POLL-SKIP": 1}


def test_a_record_is_left_out_before_the_first_poll() -> None:
    assert judged(LOG[1:]) == {"POLL-SKIP": 1}


def test_a_consumer_goes_back() -> None:
    assert judged(LOG[:2], LOG[1:]) == {"NONMONOTONIC-POLL": 1}


def test_each_consumer_has_its_own_position() -> None:
    small = good()
    small.poll(*LOG[1:], process="c1")
    small.poll(*LOG, process="c2")
    small.finish()
    assert small.found() == {}


def test_who_does_not_know_where_it_is_begins_anew() -> None:
    small = good()
    small.poll(*LOG[:1])
    small.poll(at=3, type_="info")
    small.poll(LOG[2], at=5)
    small.finish()
    assert small.found() == {}
    small = good()
    small.poll(*LOG[:1])
    small.poll(at=3, type_="fail")
    small.poll(LOG[2], at=5)
    small.finish()
    assert small.found() == {"POLL-SKIP": 1}


def test_deleted_records_may_be_left_out_once_they_are_being_deleted() -> None:
    small = good()
    small.poll(LOG[1], at=0, process="c0")
    small.delete(3)
    small.poll(LOG[1], at=0, process="c1")
    small.poll(LOG[2], at=0, process="c2")
    small.finish(log=small.log[1:], start=3)
    assert small.found() == {"POLL-SKIP": 2}


def test_what_is_not_retained_may_be_left_out() -> None:
    small = Small({"shape": {"topics": [{"name": "t", "config": [["retention.ms", "1"]]}]}})
    small.append(1, 3)
    small.append(4, 2)
    small.append(6)
    small.poll(LOG[1], at=0, process="c1")
    small.poll(LOG[2], at=0, process="c2")
    small.finish(log=small.log[1:], start=3)
    assert small.found() == {"POLL-SKIP": 1}


def test_a_stale_read() -> None:
    small = good()
    small.pass_s(11)
    small.poll(at=5, takes_s=6)
    small.finish()
    assert small.found() == {"STALE-READ": 1}


def test_who_is_at_the_end_waits_in_vain() -> None:
    small = good()
    small.pass_s(11)
    small.poll(at=6, takes_s=6)
    small.finish()
    assert small.found() == {}


def test_records_may_take_their_time() -> None:
    small = good()
    small.pass_s(9)
    small.poll(at=5, takes_s=6)
    small.finish()
    assert small.found() == {}


def test_a_consumer_may_need_time_to_connect() -> None:
    small = good()
    small.pass_s(30)
    small.poll(at=5, takes_s=2)
    small.poll(LOG[2], at=5)
    small.finish()
    assert small.found() == {}
    small = good()
    small.pass_s(30)
    for _ in range(4):
        small.poll(at=5, takes_s=2)
    small.finish()
    assert small.found() == {"STALE-READ": 2}


def test_what_was_deleted_is_not_missed() -> None:
    small = good()
    small.delete(6)
    small.pass_s(30)
    small.poll(at=5, takes_s=6)
    small.finish(log=[], start=6, end=6)
    assert small.found() == {}


def test_faults_excuse_stale_reads() -> None:
    small = good()
    small.fault(1)
    small.pass_s(30)
    small.poll(at=5, takes_s=6, process="during")
    small.fault(1, "end")
    small.pass_s(5)
    small.poll(at=5, takes_s=6, process="soon after")
    small.finish()
    assert small.found() == {}
    small = good()
    small.fault(1)
    small.fault(1, "end")
    small.fault(2, injected=False)
    small.pass_s(11)
    small.poll(at=5, takes_s=6)
    small.finish()
    assert small.found() == {"STALE-READ": 1}


def test_beyond_the_budget_positions_mean_nothing() -> None:
    small = good()
    small.fault(1, budget="beyond")
    small.poll(*LOG[:2], at=0)
    small.poll(*LOG[1:])
    small.finish()
    assert small.found() == {}
