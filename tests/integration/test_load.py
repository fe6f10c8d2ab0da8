"""The judge of the promises' tests is one that can condemn: each fault it is for, and none."""

from __future__ import annotations

import pytest

from raftlog.errors import DeliveryTimedOutError, NotEnoughReplicasError
from tests.integration.load import Found, Ledger

GOOD: list[Found] = [(0, b"a"), (1, b"b"), (2, b"unknown"), (3, b"c")]


def ledger() -> Ledger:
    return Ledger(
        sent=[b"a", b"b", b"unknown", b"refused", b"c", b"gone"],
        acknowledged={b"a": 0, b"b": 1, b"c": 3},
        failed={
            b"unknown": DeliveryTimedOutError("no answer"),
            b"gone": DeliveryTimedOutError("no answer"),
            b"refused": NotEnoughReplicasError("two are asked for"),
        },
    )


def test_a_log_with_all_that_was_acknowledged_is_good() -> None:
    assert ledger().judge(GOOD) == []
    assert Ledger().judge([]) == []


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (GOOD[:3], "lost: b'c', acknowledged at 3"),
        ([], "lost: b'a', acknowledged at 0"),
        ([(0, b"b"), (1, b"a"), *GOOD[2:]], "moved: b'a' from 0 to [1]"),
        ([*GOOD, (4, b"a")], "twice: b'a' at [0, 4]"),
        ([*GOOD, (4, b"z")], "from nowhere: b'z' at [4]"),
        ([*GOOD[:3], (3, b"refused"), (4, b"c")], "refused, and there: b'refused' at [3]"),
        ([*GOOD[:2], (3, b"c")], "a gap, or a step back: record 2 has offset 3"),
        ([(1, b"b"), (0, b"a"), *GOOD[2:]], "a gap, or a step back: record 0 has offset 1"),
        ([*GOOD[:3], (3, b"gone"), (4, b"c")], "out of order: b'c' at 4"),
    ],
)
def test_each_fault_is_found(found: list[Found], problem: str) -> None:
    problems = ledger().judge(found)
    assert any(text.startswith(problem) for text in problems), problems


def test_what_others_sent_is_judged_elsewhere() -> None:
    assert ledger().judge([*GOOD, (4, b"theirs")], strangers={b"theirs"}) == []
