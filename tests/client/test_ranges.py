"""One range as it comes: what is taken of the batches, and which make a portion.

What is asked of the cluster is in ``test_range_reader``.
"""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.client.consumer import Checked
from raftlog.client.readers import Range
from raftlog.errors import CorruptBatchError
from raftlog.record import check
from tests.client.samples import stored_batch
from tests.client.test_subscription import A


def range_of(start: int, end: int, **changes: Any) -> Range:
    settings: dict[str, Any] = {"rows_max": 10, "bytes_max": 1 << 20, "timeout_ms": 1, **changes}
    return Range(tp=A, start=start, end=end, fetched=start, topic_id="", columns=None, **settings)


def is_enough(wanted: Range) -> bool:
    return wanted.is_enough


def batch(base: int, count: int, *, size: int = 1) -> Checked:
    data = memoryview(stored_batch(base, *[b"x" * size] * count))
    return check(data), data


def bases(taken: list[Checked]) -> list[int]:
    return [header.base_offset for header, _ in taken]


def test_batches_are_taken_in_order_from_the_one_with_the_start_on() -> None:
    wanted = range_of(4, 11)
    assert not is_enough(wanted)
    wanted.add([batch(0, 3), batch(3, 2), batch(5, 5)])
    assert (wanted.fetched, wanted.is_fetched, wanted.rows) == (10, False, 7)
    wanted.add([batch(5, 5), batch(10, 2)])
    assert (wanted.fetched, wanted.is_fetched, wanted.rows) == (12, True, 9)
    taken, pieces = wanted.take()
    assert (bases(taken), pieces) == ([3, 5, 10], 1)
    assert (wanted.rows, wanted.size_bytes, list(wanted.batches)) == (0, 0, [])


def test_a_gap_is_no_part_of_any_log() -> None:
    wanted = range_of(0, 20)
    wanted.add([batch(0, 3)])
    with pytest.raises(CorruptBatchError, match=r"offsets 3 to 4 are missing: .* starts at 5"):
        wanted.add([batch(5, 1)])


def test_a_portion_is_as_large_as_asked_for_and_no_larger() -> None:
    wanted = range_of(0, 100, rows_max=10)
    wanted.add([batch(0, 4), batch(4, 4)])
    assert not is_enough(wanted)
    wanted.add([batch(8, 4), batch(12, 4)])
    assert is_enough(wanted)
    assert bases(wanted.take()[0]) == [0, 4]
    assert not is_enough(wanted)
    wanted.add([batch(16, 2)])
    assert is_enough(wanted)
    assert bases(wanted.take()[0]) == [8, 12, 16]


def test_so_it_is_by_size() -> None:
    wanted = range_of(0, 100, bytes_max=2_500)
    wanted.add([batch(offset, 1, size=1_000) for offset in range(2)])
    assert not is_enough(wanted)
    wanted.add([batch(2, 1, size=1_000)])
    assert is_enough(wanted)
    assert bases(wanted.take()[0]) == [0, 1]


@pytest.mark.parametrize(
    ("rows", "size", "pieces"), [(10, 1, 1), (11, 1, 2), (30, 1, 3), (2, 5_000, 3), (1, 0, 1)]
)
def test_a_large_batch_is_one_portion_to_be_split(rows: int, size: int, pieces: int) -> None:
    wanted = range_of(0, 100, rows_max=10, bytes_max=4_000)
    wanted.add([batch(0, rows, size=size), batch(rows, 100)])
    taken, count = wanted.take()
    assert (bases(taken), count) == ([0], pieces)
