"""Where a copy continues, and which copies must not be continued."""

from __future__ import annotations

import pytest

from raftlog.client.consumer import Checked
from raftlog.mirror.mirror import Place, difference, refusal, sequence_of
from raftlog.protocol.records import DescribedProducer
from raftlog.record import encode, parse_header, seal
from tests.record.test_compaction import FOURS, log_of, rewritten

UNKNOWN = DescribedProducer(1)


def known(last_offset: int, *, epoch: int = 0, sequence: int = 0) -> DescribedProducer:
    return DescribedProducer(1, epoch, sequence, last_offset, 0)


def place(
    end: int,
    written: DescribedProducer,
    *,
    start: int = 0,
    source: tuple[int, int] = (0, 100),
) -> Place:
    return Place(start, end, written, *source)


@pytest.mark.parametrize(
    ("found", "position", "why"),
    [
        (place(0, UNKNOWN), 0, ""),
        (place(0, UNKNOWN, source=(50, 50)), 0, ""),
        (place(10, known(9)), 10, ""),
        (place(10, known(14)), 15, ""),  # committed since the end was queried
        (place(10, known(8)), 10, "another producer has written the offsets 9 to 9"),
        (place(10, UNKNOWN), 10, ""),  # compared with the source
        (place(10, UNKNOWN, source=(10, 100)), 10, "may have records"),
        (place(10, known(9), source=(10, 100)), 10, ""),
        (place(10, UNKNOWN, start=10, source=(10, 100)), 10, ""),  # empty
        (place(101, known(100)), 101, "beyond the end 100"),
        (place(101, UNKNOWN, start=101), 101, "beyond the end 100"),
    ],
)
def test_a_copy_continues_at_its_end_unless_it_is_not_ours(
    found: Place, position: int, why: str
) -> None:
    assert found.position == position
    assert (why in refusal(found)) if why else not refusal(found)


def test_only_offsets_that_both_logs_have_are_compared() -> None:
    assert place(10, UNKNOWN, source=(9, 20)).is_comparable
    assert not place(10, UNKNOWN, source=(10, 20)).is_comparable
    assert not place(10, UNKNOWN, start=10).is_comparable


def test_the_sequence_continues_in_the_epoch_of_the_last_run() -> None:
    assert sequence_of(place(10, UNKNOWN)) == (0, 0)
    assert sequence_of(place(10, known(9, epoch=3, sequence=4))) == (3, 5)


def batch_with(*values: bytes, time_ms: int = 1) -> Checked:
    body = encode(list(values), timestamps_ms=time_ms)
    data = memoryview(seal(body) + body.payload)
    return parse_header(data), data


def test_records_are_compared_by_offset() -> None:
    ours = place(2, UNKNOWN)
    assert not difference(ours, batch_with(b"a", b"b"), batch_with(b"a", b"b"))
    assert not difference(ours, batch_with(b"a", b"b"), batch_with(b"a"))
    for other in (batch_with(b"a", b"c"), batch_with(b"a", b"b", time_ms=2)):
        assert "offset" in difference(ours, batch_with(b"a", b"b"), other)


def test_without_a_common_record_only_the_producer_state_proves_the_copy() -> None:
    (empty,) = rewritten(log_of(FOURS[:1]), [[False] * 4])
    checked = parse_header(empty), memoryview(empty)
    assert not difference(place(4, known(3)), checked, checked)
    assert "none at its end to compare" in difference(place(4, UNKNOWN), checked, checked)
