"""The columns of one partition, and what may be gone of it."""

from __future__ import annotations

import numpy as np

from raftlog.testing.checker.gather import Gatherer
from raftlog.testing.checker.partition import Lifetimes, Log, Partition, Polls
from raftlog.testing.checker.verdict import Runs, Table
from raftlog.testing.history.entries import Seen
from tests.testing.checker.small import P, Small, good


def partition_of(small: Small, *, is_shortened: bool = False) -> Partition:
    run = Gatherer()
    for entry in small.entries:
        run.add(entry)
    found = Partition(
        run.partitions[P],
        names=run.processes,
        polls=Polls(run.sessions, *run.polls.columns()),
        lifetimes=Lifetimes(run.topics.get("t", ())),
        is_shortened=is_shortened,
    )
    table = Table(4)
    for record in small.log:
        table.add(record)
    start = small.log[0][0] if small.log else 0
    found.log = Log.of(start, small.end, Runs.of(table))
    return found


def offsets(runs: Runs) -> list[int]:
    return runs.offset.tolist()


def test_what_is_promised() -> None:
    small = good()
    small.append(7, acks=1)
    found = partition_of(small)
    assert offsets(found.acked) == [0, 3, 5, 6]
    assert offsets(found.promised) == [0, 3, 5]
    assert found.ok_appends() == 4


def test_values_by_what_became_of_them() -> None:
    small = good()
    small.invoke(7, 4, idempotent=False)
    small.complete(7, 4, type_="fail", offsets=[(8, 1, 6)])
    found = partition_of(small)
    assert found.failed.start.tolist() == [7, 9]
    assert found.failed.end.tolist() == [8, 11]
    assert (found.sent.start.tolist(), found.sent.end.tolist()) == ([1], [11])
    assert found.idempotent.end.tolist() == [7]


def test_what_may_be_gone() -> None:
    small = good()
    small.delete(2)
    between = small.now
    small.delete(4, "info")
    small.delete(5, "fail")
    found = partition_of(small)
    assert found.deleted_below == found.gone_below == 4
    times = np.array([0, between, small.now])
    assert found.deleted_by(times).tolist() == [0, 2, 4]
    small.log = small.log[2:]
    assert partition_of(small, is_shortened=True).gone_below == 5


def test_deletions_of_a_topic_that_is_gone_count_no_more() -> None:
    small = good()
    small.delete(4)
    small.admin("delete")
    small.admin("create")
    assert partition_of(small).deleted_below == 0


def test_what_is_just_so_in_the_log_is_not_odd() -> None:
    small = good()
    odd: list[Seen] = [(3, 1, 5, 1), (5, 1, 6, 2), (5, 2, 6, 1)]
    for number, record in enumerate([(1, 3, 2, 1), (4, 2, 5, 1), (0, 1, 1, -1), *odd]):
        small.poll(record, process=f"c{number}")
    found = partition_of(small)
    rows = found.odd()
    assert list(zip(offsets(rows), rows.count.tolist(), rows.value.tolist(), strict=True)) == [
        record[:3] for record in odd
    ]
    assert found.odd() is rows


def test_survivors() -> None:
    small = good()
    small.log[1] = (3, 2, 40, 1)
    found = partition_of(small)
    assert offsets(found.survivors(found.acked)) == [0, 5]


def test_what_had_been_acknowledged_by_when() -> None:
    small = good()
    found = partition_of(small)
    completed = found.appends.completed.tolist()
    times = np.array([0, completed[0], completed[0] + 1, completed[2], small.now + 1])
    assert found.acked_by(times, found.promised).tolist() == [0, 0, 3, 5, 6]


def test_what_nobody_read() -> None:
    found = partition_of(good())
    assert not found.is_missed()
    found.log = None
    assert found.is_missed()


def test_operations_as_evidence() -> None:
    small = good()
    small.poll((0, 3, 1, 1))
    small.invoke(9)
    found = partition_of(small)
    assert found.appends.describe(0) == {
        "f": "append",
        "process": "p",
        "first": 1,
        "count": 3,
        "lines": [3, 4],
    }
    assert found.appends.describe(3)["lines"] == [11]
    assert found.polls.describe(0) == {"f": "poll", "process": "c", "lines": [9, 10]}
    assert found.polls.who(0) == "c"
