"""Idempotence: duplicates answered, gaps refused, sequences that wrap, memory that is bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import OutOfOrderSequenceError, ProducerFencedError
from raftlog.record import BatchHeader, parse_header
from raftlog.storage.producer_state import (
    PRODUCER_EXPIRY_MS,
    SEQUENCES,
    ProducerTable,
    WrittenBatch,
    last_sequence,
)
from tests.storage.logs import NOW_MS, batch_of

ID = 7


def header_of(
    sequence: int, *, count: int = 1, epoch: int = 0, offset: int = 0, producer_id: int = ID
) -> BatchHeader:
    header = parse_header(batch_of([b"x"] * count, producer=(producer_id, epoch, sequence)))
    return header._replace(base_offset=offset, append_timestamp=NOW_MS + offset)


def table_of(*headers: BatchHeader) -> ProducerTable:
    table = ProducerTable()
    for header in headers:
        assert table.check(header) is None
        table.note(header)
    return table


def test_sequences_follow_on_each_other() -> None:
    table = table_of(header_of(0, count=3), header_of(3, count=2), header_of(5))
    assert table.check(header_of(6)) is None


@pytest.mark.parametrize("sequence", [0, 1, 5, SEQUENCES - 1])
def test_an_unknown_producer_starts_at_0(sequence: int) -> None:
    if sequence == 0:
        assert ProducerTable().check(header_of(sequence)) is None
        return
    with pytest.raises(OutOfOrderSequenceError, match=f"sequence {sequence} where 0 comes next"):
        ProducerTable().check(header_of(sequence))


@pytest.mark.parametrize("sequence", [4, 6, 100, SEQUENCES - 1])
def test_a_gap_is_refused_in_either_direction(sequence: int) -> None:
    table = table_of(header_of(0, count=5))
    with pytest.raises(OutOfOrderSequenceError, match=f"{sequence} where 5 comes next"):
        table.check(header_of(sequence))


def test_a_duplicate_of_the_last_few_is_answered_with_where_it_is() -> None:
    count = limits.PRODUCER_BATCHES_REMEMBERED
    table = table_of(*(header_of(2 * n, count=2, offset=100 + 2 * n) for n in range(count + 2)))
    for n in range(2, count + 2):
        offset = 100 + 2 * n
        assert table.check(header_of(2 * n, count=2)) == WrittenBatch(
            2 * n, 2 * n + 1, offset, offset + 1, NOW_MS + offset
        )
    with pytest.raises(OutOfOrderSequenceError, match="older than the last 5"):
        table.check(header_of(2, count=2))


def test_the_same_sequence_with_another_count_is_no_duplicate() -> None:
    table = table_of(header_of(0, count=2))
    with pytest.raises(OutOfOrderSequenceError):
        table.check(header_of(0, count=3))


def test_sequences_wrap_from_the_largest_to_0() -> None:
    table = ProducerTable()
    table.note(header_of(SEQUENCES - 2, count=2, offset=10))
    assert table.check(header_of(0)) is None
    with pytest.raises(OutOfOrderSequenceError):
        table.check(header_of(1))
    assert table.check(header_of(SEQUENCES - 2, count=2)) is not None


def test_a_batch_may_span_the_wrap() -> None:
    table = ProducerTable()
    table.note(header_of(SEQUENCES - 2, count=5, offset=10))
    assert last_sequence(SEQUENCES - 2, 5) == 2
    assert table.check(header_of(3)) is None
    duplicate = table.check(header_of(SEQUENCES - 2, count=5))
    assert duplicate is not None
    assert (duplicate.base_offset, duplicate.last_offset) == (10, 14)


def test_a_new_epoch_starts_at_0_and_fences_the_old_one() -> None:
    table = table_of(header_of(0, count=3), header_of(0, epoch=2))
    with pytest.raises(ProducerFencedError, match="epoch 1 is fenced by epoch 2"):
        table.check(header_of(3, epoch=1))
    with pytest.raises(ProducerFencedError):
        table.check(header_of(0, count=3))
    assert table.check(header_of(1, epoch=2)) is None


def test_a_new_epoch_may_not_start_in_the_middle() -> None:
    with pytest.raises(OutOfOrderSequenceError, match="1 where 0 comes next"):
        table_of(header_of(0)).check(header_of(1, epoch=1))


def test_producers_do_not_mix() -> None:
    table = table_of(header_of(0, count=3), header_of(0, producer_id=8))
    assert table.check(header_of(3)) is None
    assert table.check(header_of(1, producer_id=8)) is None
    assert len(table) == 2


def test_beyond_the_limit_the_one_that_wrote_longest_ago_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_PER_PARTITION_MAX", 3)
    table = ProducerTable()
    for producer_id in (1, 2, 3):
        table.note(header_of(0, producer_id=producer_id))
    table.note(header_of(1, producer_id=1))
    table.note(header_of(0, producer_id=4))
    assert len(table) == 3
    assert table.check(header_of(2, producer_id=1)) is None
    with pytest.raises(OutOfOrderSequenceError):
        table.check(header_of(1, producer_id=2))


def test_who_has_not_written_for_long_is_forgotten() -> None:
    table = table_of(header_of(0, offset=0), header_of(0, offset=50, producer_id=8))
    assert table.expire(now_ms=NOW_MS + PRODUCER_EXPIRY_MS) == 0
    assert table.expire(now_ms=NOW_MS + PRODUCER_EXPIRY_MS + 1) == 1
    assert len(table) == 1
    assert table.check(header_of(1, producer_id=8)) is None


def test_a_snapshot_is_the_table() -> None:
    table = table_of(
        *(header_of(n, offset=n) for n in range(8)), header_of(0, producer_id=8, offset=9)
    )
    copy = ProducerTable.from_snapshot(table.snapshot())
    assert copy.snapshot() == table.snapshot()
    assert copy.check(header_of(7)) == table.check(header_of(7))
    with pytest.raises(OutOfOrderSequenceError):
        copy.check(header_of(1))


def test_a_snapshot_keeps_who_wrote_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_PER_PARTITION_MAX", 2)
    table = table_of(header_of(0, producer_id=1), header_of(0, producer_id=2))
    table.note(header_of(1, producer_id=1))
    copy = ProducerTable.from_snapshot(table.snapshot())
    copy.note(header_of(0, producer_id=3))
    assert copy.check(header_of(2, producer_id=1)) is None


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=14), st.data())
def test_cutting_gives_the_table_of_the_shorter_log(
    batches: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """Also when the log itself has lost its first part to retention."""
    headers, offset, epoch, sequence = [], 0, 0, 0
    for count, is_new_epoch in batches:
        if is_new_epoch:
            epoch, sequence = epoch + 1, 0
        headers.append(header_of(sequence, count=count, epoch=epoch, offset=offset))
        offset, sequence = offset + count, sequence + count
    cut = data.draw(st.integers(0, len(headers)))
    first_left = data.draw(st.integers(0, cut))
    end = headers[cut].base_offset if cut < len(headers) else offset
    table, expected, rebuilt = ProducerTable(), ProducerTable(), ProducerTable()
    for number, header in enumerate(headers):
        table.note(header)
        if number < cut:
            expected.note(header)
            if number >= first_left:
                rebuilt.note(header)
    table.cut(end, rebuilt)
    if len(headers) - cut < limits.PRODUCER_BATCHES_REMEMBERED and (
        cut == len(headers) or not any(new for _, new in batches[cut:])
    ):
        assert table.snapshot() == expected.snapshot() or first_left > 0
        known = table.snapshot()["producers"]
        assert [row[:2] for row in known] == [row[:2] for row in expected.snapshot()["producers"]]
        if known:
            assert known[0][2][-1] == expected.snapshot()["producers"][0][2][-1]
    elif first_left == 0:
        assert table.snapshot() == expected.snapshot()
