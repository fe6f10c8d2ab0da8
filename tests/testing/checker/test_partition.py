"""The columns of one partition, and what may be gone of it."""

from __future__ import annotations

import numpy as np

from raftlog.testing.checker.gather import FAIL, INFO, NEVER, OK, Change, FaultSpan, Gatherer
from raftlog.testing.checker.partition import UNCLEAR, Lifetimes, Log, Partition, Polls
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


# -- lifetimes -------------------------------------------------------------------------------------
#
# What was before a topic was deleted is kept apart from what came after.


def change(what: str, invoked: int, completed: int, outcome: int = OK) -> Change:
    return Change(what, "op", invoked, 1, completed=completed, outcome=outcome)


def lives(lifetimes: Lifetimes, *spans: tuple[int, int]) -> list[int]:
    invoked, completed = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    return lifetimes.at(invoked, completed).tolist()


def test_a_topic_that_stays_has_one_life() -> None:
    only = Lifetimes()
    assert (only.last, only.began, only.is_clear) == (0, 0, True)
    assert lives(only, (0, 5), (7, NEVER)) == [0, 0]


def test_a_deletion_parts_two_lives() -> None:
    two = Lifetimes([change("create", 30, 35), change("delete", 10, 20)])
    assert (two.last, two.began, two.is_clear) == (1, 10, True)
    assert lives(two, (0, 9), (0, 10), (15, 16), (20, 30), (21, 22), (0, NEVER)) == [
        0, UNCLEAR, UNCLEAR, UNCLEAR, 1, UNCLEAR,
    ]  # fmt: skip


def test_many_deletions() -> None:
    many = Lifetimes([change("delete", 10 * n, 10 * n + 1) for n in range(1, 4)])
    assert lives(many, (1, 2), (12, 13), (22, 23), (32, 33), (12, 23)) == [0, 1, 2, 3, UNCLEAR]


def test_a_refused_deletion_is_none() -> None:
    assert Lifetimes([change("delete", 10, 20, FAIL)]).last == 0


def test_a_deletion_of_which_nobody_knows() -> None:
    unknown = change("delete", 10, 20, INFO)
    forever = Lifetimes([unknown])
    assert not forever.is_clear
    assert lives(forever, (0, 9), (50, 60)) == [0, UNCLEAR]
    failed = Lifetimes([unknown, change("create", 30, 35, INFO), change("alter", 30, 35)])
    assert not failed.is_clear
    made_anew = Lifetimes([unknown, change("create", 30, 35)])
    assert lives(made_anew, (0, 9), (25, 26), (36, 37)) == [0, UNCLEAR, 1]
    again = Lifetimes([unknown, change("delete", 30, 35)])
    assert lives(again, (0, 9), (25, 26), (36, 37)) == [0, UNCLEAR, 2]


def test_what_is_read_takes_longer_to_change() -> None:
    def fault(begun: int, ended: int, *, injected: bool | None = True) -> FaultSpan:
        return FaultSpan(1, "kill", [], begun, ended, injected)

    def visible(*faults: FaultSpan) -> int:
        return int(Lifetimes([change("delete", 10, 20)], faults, lag_ns=100).visible[0])

    assert visible() == 120
    assert visible(fault(0, 15)) == 120
    assert visible(fault(0, 50)) == 150
    assert visible(fault(90, 95), fault(60, 70)) == 195
    assert visible(fault(150, 200)) == 120
    assert visible(fault(30, NEVER)) == NEVER
    assert visible(fault(30, NEVER, injected=False)) == 120
    late = Lifetimes([change("delete", 10, 20)], lag_ns=100)
    times = np.array([5, 15, 100, 121])
    assert late.seen_at(times, times).tolist() == [0, UNCLEAR, UNCLEAR, 1]
