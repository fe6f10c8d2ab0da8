"""Leadership is moved only so often, of each partition and of all."""

from __future__ import annotations

import pytest

from raftlog.errors import ThrottledError
from raftlog.server.cluster.operations import BURST, INTERVAL_SECONDS, PER_SECOND, TransferRate
from raftlog.types import TopicPartition


def admitted(rate: TransferRate, partition: int, now: float) -> bool:
    try:
        rate.admit(TopicPartition("t", partition), now)
    except ThrottledError:
        return False
    return True


def test_a_partition_is_moved_once_in_an_interval() -> None:
    rate = TransferRate()
    times = [100.0, 100.1, 100.0 + INTERVAL_SECONDS - 0.1, 100.0 + INTERVAL_SECONDS]
    assert [admitted(rate, 0, now) for now in times] == [True, False, False, True]
    assert admitted(rate, 1, 100.0 + INTERVAL_SECONDS)


def test_all_of_them_have_a_rate() -> None:
    rate = TransferRate()
    count = sum(admitted(rate, number, 50 + number / 100) for number in range(1_000))
    assert count == pytest.approx(BURST + 10 * PER_SECOND, abs=1)


def test_what_is_refused_is_not_counted() -> None:
    rate = TransferRate()
    assert sum(admitted(rate, number, 10.0) for number in range(100)) == BURST
    assert admitted(rate, 7, 10.0 + INTERVAL_SECONDS)
