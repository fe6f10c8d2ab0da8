"""Receipts add up by partition, wait no longer than they have to, and tell of the first failure."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from raftlog.cli.receipts import FUTURES_MAX, Receipts
from raftlog.errors import RecordTooLargeError
from raftlog.types import OffsetRange, RecordMetadata


class Outcome:
    """A future that is done, pending (until it is waited for), or failed."""

    def __init__(
        self,
        value: RecordMetadata | Sequence[OffsetRange] = (),
        *,
        pending: bool = False,
        error: Exception | None = None,
    ) -> None:
        self._value, self._pending, self._error = value, pending, error
        self.waited_for = False

    def done(self) -> bool:
        return not self._pending

    def result(self, timeout: float | None = None) -> RecordMetadata | Sequence[OffsetRange]:
        self.waited_for = True
        if self._error is not None:
            raise self._error
        return self._value


def many(partition: int, first: int, last: int) -> Outcome:
    return Outcome([OffsetRange("t", partition, first, last)])


def test_ranges_and_single_records_add_up_by_partition() -> None:
    receipts = Receipts()
    receipts.expect(many(1, 10, 19))
    receipts.expect(many(0, 0, 4))
    receipts.expect(Outcome(RecordMetadata("t", 1, 20, 0)))
    receipts.settle_all()
    assert receipts.acknowledged == 16
    assert receipts.rows() == [
        {"partition": 0, "records": 5, "first_offset": 0, "last_offset": 4},
        {"partition": 1, "records": 11, "first_offset": 10, "last_offset": 20},
    ]


def test_nothing_is_waited_for_while_few_are_pending() -> None:
    receipts, pending = Receipts(), Outcome([OffsetRange("t", 0, 0, 9)], pending=True)
    receipts.expect(pending)
    receipts.expect(many(0, 10, 19))
    assert not pending.waited_for
    assert receipts.acknowledged == 0
    receipts.settle_all()
    assert receipts.acknowledged == 20


def test_the_oldest_is_waited_for_when_there_are_many() -> None:
    receipts, oldest = Receipts(), Outcome(pending=True)
    receipts.expect(oldest)
    for _ in range(FUTURES_MAX):
        receipts.expect(Outcome(pending=True))
    assert oldest.waited_for


def test_a_failure_is_raised_after_what_came_before_it() -> None:
    receipts = Receipts()
    receipts.expect(many(0, 0, 9))
    with pytest.raises(RecordTooLargeError):
        receipts.expect(Outcome(error=RecordTooLargeError("too large")))
    assert receipts.acknowledged == 10


def test_records_without_acknowledgement_have_no_offsets() -> None:
    receipts = Receipts()
    receipts.expect(Outcome(RecordMetadata("t", 0, -1, 0)))
    assert receipts.acknowledged == 0
    assert receipts.rows() == []
