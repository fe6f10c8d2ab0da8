"""What was before a topic was deleted is kept apart from what came after."""

from __future__ import annotations

import numpy as np

from raftlog.testing.checker.gather import FAIL, INFO, NEVER, OK, Change, FaultSpan
from raftlog.testing.checker.partition import UNCLEAR, Lifetimes


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
