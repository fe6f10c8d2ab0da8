"""One partition as a consumer knows it: what of it is processed."""

from __future__ import annotations

import pytest

from raftlog import limits
from raftlog.client.subscription import Batch, PartitionFetchState
from tests.client.test_subscription import A


@pytest.mark.parametrize(
    ("position", "unprocessed", "is_iterated", "processed"),
    [
        (None, None, False, None),
        (7, None, False, 7),
        (7, None, True, 7),
        (7, 3, False, 3),  # polled: all since then may be in hand
        (7, 3, True, 6),  # iterated: the last one is
        (3, 3, True, 3),  # nothing is handed out yet
        (None, 3, True, None),
    ],
)
def test_processed_is_what_is_not_in_hand(
    position: int | None, unprocessed: int | None, is_iterated: bool, processed: int | None
) -> None:
    part = PartitionFetchState(
        A, position, "earliest", unprocessed=unprocessed, is_iterated=is_iterated
    )
    assert part.processed == processed


def test_what_has_no_end_is_fetched_as_it_is() -> None:
    part = PartitionFetchState(A, 0, "error")
    batches = [Batch(memoryview(b""), 10), Batch(memoryview(b""), 20)]
    assert part.bytes_to_fetch(1_000) == 1_000
    assert part.up_to_end(batches, 500) == batches


@pytest.mark.parametrize(
    ("until", "count"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (21, 3), (30, 3), (99, 3)]
)
def test_batches_above_the_end_are_left_out(until: int, count: int) -> None:
    part = PartitionFetchState(A, 0, "error", until=until)
    batches = [Batch(memoryview(b""), end) for end in (10, 20, 30)]
    assert part.up_to_end(batches, 500) == batches[:count]


def test_about_as_much_is_fetched_as_there_is_to_the_end() -> None:
    part = PartitionFetchState(A, 0, "error", fetch_offset=1_000, until=101_000)
    assert part.bytes_to_fetch(1 << 30) == 100_000 * 128 * 9 // 8
    assert part.bytes_to_fetch(5_000) == 5_000
    part.up_to_end([Batch(memoryview(b""), 2_000)], 20_000)  # 20 bytes each
    part.fetch_offset = 2_000
    assert part.bytes_to_fetch(1 << 30) == 99_000 * 20 * 9 // 8
    part.fetch_offset = 100_999
    assert part.bytes_to_fetch(1 << 30) == 64 * limits.KIB
