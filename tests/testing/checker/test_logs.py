"""The final log: dense, its epochs in order, the same for all who read it."""

from __future__ import annotations

from raftlog.testing.history.entries import Read
from tests.testing.checker.small import P, good


def test_a_gap() -> None:
    small = good()
    small.invoke(7)
    small.log[2:] = [(5, 1, 6, 1), (7, 1, 7, 1)]
    small.finish()
    assert small.found() == {"GAP": 4}
    whose = {anomaly.evidence["replicas"][0] for anomaly in small.judge().anomalies}
    assert whose == {"r1", "r2", "broker 1", "broker 2"}


def test_a_log_that_ends_before_its_end() -> None:
    small = good()
    small.finish(end=8, dumps={1: {"end": 6}, 2: {"end": 6}})
    found = small.found()
    assert set(found) == {"GAP", "STUCK"}
    assert small.judge().anomalies[0].evidence["offsets"] == [6, 7]


def test_epochs_that_go_down() -> None:
    small = good()
    log = [(0, 3, 1, 1), (3, 2, 4, 3), (5, 1, 6, 2)]
    small.finish(log=log)
    assert set(small.found()) == {"EPOCH-ORDER"}


def test_epochs_that_nobody_knows() -> None:
    small = good()
    small.finish(log=[(0, 3, 1, 3), (3, 2, 4, -1), (5, 1, 6, 3)])
    assert small.found() == {}


def test_readers_disagree() -> None:
    small = good()
    small.finish(second=[(0, 3, 1, 1), (3, 1, 4, 1), (4, 1, 6, 1), (5, 1, 6, 1)])
    assert small.found() == {"INCONSISTENT-OFFSET": 1}


def test_readers_disagree_about_an_epoch() -> None:
    small = good()
    small.finish(second=[(0, 5, 1, 1), (5, 1, 6, 2)])
    assert small.found() == {"EPOCH-ORDER": 1}


def test_a_reader_is_left_behind() -> None:
    small = good()
    small.finish(second=small.log[:2], second_end=5)
    assert small.found() == {"STUCK": 1}


def test_a_reader_leaves_something_out() -> None:
    small = good()
    small.finish(second=[small.log[0], small.log[2]])
    assert small.found() == {"GAP": 1}


def test_a_reader_goes_back() -> None:
    small = good()
    small.finish(second=[(0, 3, 1, 1), (2, 1, 3, 1), (3, 2, 4, 1), (5, 1, 6, 1)])
    assert small.found() == {"NONMONOTONIC-POLL": 1}


def test_a_reader_is_given_two_values_at_one_offset() -> None:
    small = good()
    log = [(0, 3, 1, 1), (2, 1, 6, 1), (3, 2, 4, 1), (5, 1, 6, 1)]
    small.finish(log=log, second=small.log, dumps={1: {"records": small.log}})
    assert small.found() == {"INCONSISTENT-OFFSET": 1, "NONMONOTONIC-POLL": 1}


def test_the_parts_of_a_reader_are_one_log() -> None:
    small = good()
    small.finish()
    at, whole = next((at, e) for at, e in enumerate(small.entries) if isinstance(e, Read))
    small.entries[at : at + 1] = [
        Read(time=whole.time, process="r1", type="ok", partition=P, start=0, end=6, records=[run])
        for run in small.log
    ]
    assert small.found() == {}


def test_who_read_farthest_has_the_final_log() -> None:
    small = good()
    small.finish(log=small.log[:2], second=small.log, second_end=6)
    assert small.found()["STUCK"] >= 1
    assert "LOST-tail" not in small.found()


def test_a_reader_that_gave_up_is_not_believed() -> None:
    small = good()
    small.finish()
    for entry in small.entries:
        if isinstance(entry, Read) and entry.process == "r1":
            entry.type = "fail"
            entry.records = []
    verdict = small.judge()
    assert verdict.valid == "unknown"
    assert "r1 did not reach the end of t:0" in verdict.troubles
