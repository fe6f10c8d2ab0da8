"""Batches that take the place of others: which records, offsets, chain values and headers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import CorruptBatchError
from raftlog.record import (
    BatchHeader,
    Codec,
    check,
    decode_arrow,
    decode_lists,
    decode_records,
    find_timestamp,
    parse_header,
    validate,
    verify_chain,
)
from raftlog.record import batch as batch_module
from raftlog.record.compaction import COPIED_BYTES_MIN, Rewriter, open_original, tail_of
from raftlog.types import NO_PRODUCER_ID
from tests.record.batches import ALL_CODECS, NOW_MS, batch_of, forged, payload_of, resealed, stamped
from tests.record.strategies import codecs, records
from tests.storage.compacted import Row

TARGET = 2_000


def rows_of(batches: Sequence[bytes]) -> list[Row]:
    return [Row(*row) for batch in batches for row in zip(*decode_lists(batch), strict=True)]


def rewritten(
    batches: Sequence[bytes],
    masks: Sequence[Sequence[bool]],
    *,
    keeping: Sequence[int] = (),
    bytes_target: int = TARGET,
) -> list[bytes]:
    """The batches in place of ``batches``; those at ``keeping`` tell a producer's sequence."""
    rewriter = Rewriter(bytes_target=bytes_target)
    found = []
    for number, (batch, mask) in enumerate(zip(batches, masks, strict=True)):
        original = open_original(batch)
        found += rewriter.add(original, np.array(mask, np.bool_), keeps_producer=number in keeping)
    found += rewriter.finish()
    assert rewriter.finish() == []
    data = [b"".join(map(bytes, buffers)) for _header, buffers in found]
    assert [check(batch) for batch in data] == [header for header, _buffers in found]
    return data


def log_of(
    value_lists: Sequence[Sequence[bytes | None]],
    *,
    epochs: Sequence[int] | None = None,
    base_offset: int = 0,
    log_append_time: bool = False,
    producers: Sequence[tuple[int, int, int]] | None = None,
    **options: object,
) -> list[bytes]:
    """A batch for each list of values, stamped one after the other; each key tells its offset."""
    found: list[bytes] = []
    chain, offset = 0, base_offset
    for number, values in enumerate(value_lists):
        data = stamped(
            batch_of(
                values,
                keys=[b"k%d" % (offset + row) for row in range(len(values))],
                timestamps_ms=[NOW_MS + offset + row for row in range(len(values))],
                producer=(-1, -1, -1) if producers is None else producers[number],
                **options,
            ),
            base_offset=offset,
            leader_epoch=0 if epochs is None else epochs[number],
            append_timestamp_ms=NOW_MS + 1_000 + number,
            log_append_time=log_append_time,
            previous_chain=chain,
        )
        header = parse_header(data)
        found.append(data)
        chain, offset = header.chain, header.next_offset
    return found


def headers_of(batches: Sequence[bytes]) -> list[BatchHeader]:
    return [parse_header(batch) for batch in batches]


NONE_OF_FOUR = [False] * 4
ALL_OF_FOUR = [True] * 4
FOURS = [[b"a", b"b", b"c", b"d"]] * 3


# -- what is drawn in the module -------------------------------------------------------------------


def test_what_is_kept_of_several_batches_becomes_one_that_covers_all() -> None:
    originals = log_of([[b"a"] * 4, [b"b"] * 2, [b"c"] * 3, [b"d"]])
    masks = [[False, True, False, False], [False, True], [False, True, False], [False]]
    (batch,) = rewritten(originals, masks)
    header, last = parse_header(batch), parse_header(originals[-1])
    assert header.is_compacted
    assert (header.base_offset, header.next_offset, header.record_count) == (0, 10, 3)
    assert (header.chain, header.append_timestamp) == (last.chain, last.append_timestamp)
    assert header.producer_id == NO_PRODUCER_ID
    assert rows_of([batch]) == [rows_of(originals)[number] for number in (1, 5, 7)]


def test_a_batch_that_loses_nothing_and_stands_alone_goes_on_as_it_is() -> None:
    (original,) = log_of([[b"a", b"b"]], producers=[(7, 0, 0)])
    assert rewritten([original], [[True, True]]) == [original]


def test_small_whole_batches_are_joined_and_large_ones_are_not() -> None:
    small = log_of([[b"a"], [b"b"]])
    (joined,) = rewritten(small, [[True], [True]])
    assert parse_header(joined).is_dense
    assert rows_of([joined]) == rows_of(small)
    large = log_of([[b"a"], [b"x" * COPIED_BYTES_MIN], [b"c"]])
    assert rewritten(large, [[True]] * 3) == large


def test_a_range_without_records_goes_to_a_neighbour() -> None:
    originals = log_of(FOURS)
    (after,) = rewritten(originals, [[True, False, True, False], NONE_OF_FOUR, NONE_OF_FOUR])
    (before,) = rewritten(originals, [NONE_OF_FOUR, NONE_OF_FOUR, ALL_OF_FOUR])
    for batch, offsets in ((after, [0, 2]), (before, [8, 9, 10, 11])):
        assert (parse_header(batch).base_offset, parse_header(batch).next_offset) == (0, 12)
        assert list(decode_lists(batch).offsets) == offsets
    large = log_of([[b"a"], [b"x" * COPIED_BYTES_MIN]])
    (batch,) = rewritten(large, [[False], [True]])
    assert list(decode_lists(batch).offsets) == [1]
    assert parse_header(batch).base_offset == 0


def test_the_target_bounds_what_is_joined_and_not_what_was_one() -> None:
    originals = log_of([[b"x" * 900]] * 5 + [[b"x" * 5_000]])
    batches = rewritten([*originals], [[True]] * 6)
    assert [header.record_count for header in headers_of(batches)] == [2, 2, 1, 1]
    # A range without records takes no room, so it never begins a batch of its own.
    originals = log_of([[b"x" * 1_900], [b"y"], [b"y"]])
    assert len(rewritten(originals, [[True], [False], [False]])) == 1


@pytest.mark.parametrize("name", ["RECORDS_PER_BATCH_MAX", "HEADERS_PER_BATCH_MAX"])
def test_limits_of_a_batch_bound_what_is_joined(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    originals = log_of([[b"a"] * 2] * 3, headers=[(("n", b"1"),), (("n", b"2"),)])
    monkeypatch.setattr(limits, name, 4)
    batches = rewritten(originals, [[True] * 2] * 3)
    assert [header.record_count for header in headers_of(batches)] == [4, 2]


def test_offsets_of_more_than_31_bits_are_not_joined() -> None:
    width = 1 << 31  # Kafka's clients have no batch of more
    (second,) = log_of([[b"b"]], base_offset=width)
    far = resealed(empty_batch(), last_offset_delta=width - 1)
    assert len(rewritten([far, second], [[], [True]])) == 2


# -- epochs, producers, what is not a producer's ---------------------------------------------------


def test_no_batch_spans_two_epochs() -> None:
    originals = log_of(FOURS, epochs=[1, 2, 2])
    batches = rewritten(originals, [NONE_OF_FOUR, NONE_OF_FOUR, ALL_OF_FOUR])
    headers = headers_of(batches)
    assert [(h.leader_epoch, h.base_offset, h.record_count) for h in headers] == [
        (1, 0, 0),
        (2, 4, 4),
    ]
    assert headers[0].chain == parse_header(originals[0]).chain


def test_a_batch_that_tells_of_a_producer_stays_one_of_its_own() -> None:
    producers = [(7, 0, 0), (7, 0, 4), (7, 0, 8)]
    originals = log_of(FOURS, producers=producers)
    for kept in (NONE_OF_FOUR, [False, True, True, False], ALL_OF_FOUR):
        batches = rewritten(originals, [kept] * 3, keeping=[1])
        headers = headers_of(batches)
        assert [h.base_offset for h in headers] == [0, 4, 8]
        noted = headers[1]
        assert (noted.producer_id, noted.producer_epoch, noted.base_sequence) == (7, 0, 4)
        assert noted.last_offset_delta == 3
        assert noted.chain == parse_header(originals[1]).chain
    assert batches == originals
    assert parse_header(rewritten(originals, [ALL_OF_FOUR] * 3)[0]).producer_id == NO_PRODUCER_ID


def test_a_marker_stays_as_it_is_or_goes() -> None:
    first, second, third = log_of(FOURS)
    second = resealed(second, attributes=batch_module.CONTROL)
    assert open_original(second).is_marker
    batches = rewritten([first, second, third], [NONE_OF_FOUR, ALL_OF_FOUR, NONE_OF_FOUR])
    assert batches[1] == second
    (batch,) = rewritten([first, second, third], [NONE_OF_FOUR] * 3)
    assert not parse_header(batch).is_control


def test_records_of_a_transaction_become_plain_ones() -> None:
    """Their marker may go, and a restart must not find the transaction open."""
    first = log_of(FOURS, producers=[(7, 0, 0)] * 3)[0]
    first = resealed(first, attributes=batch_module.TRANSACTIONAL)
    for keeping in ([], [0]):
        (batch,) = rewritten([first], [ALL_OF_FOUR], keeping=keeping)
        header = parse_header(batch)
        assert (header.is_transactional, header.record_count) == (False, 4)


# -- times and codecs ------------------------------------------------------------------------------


def test_the_leaders_time_becomes_each_records_own() -> None:
    originals = log_of(FOURS, log_append_time=True)
    (batch,) = rewritten(originals, [[False, True, False, False]] * 3)
    assert not parse_header(batch).log_append_time
    times = [parse_header(original).append_timestamp for original in originals]
    assert list(decode_lists(batch).timestamps_ms) == times
    header = parse_header(batch)
    assert (header.first_timestamp, header.max_timestamp) == (times[0], times[-1])


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_the_last_batchs_codec_is_kept(codec: Codec) -> None:
    values = [[b"text that is short, and repeats itself " * 5] * 4] * 2
    first = log_of(values, codec=Codec.ZSTD)[0]
    second = stamped(
        batch_of(values[0], codec=codec), base_offset=4, previous_chain=parse_header(first).chain
    )
    (batch,) = rewritten([first, second], [[True, False, True, True]] * 2)
    assert parse_header(batch).codec is codec


# -- a batch without records -----------------------------------------------------------------------


def empty_batch(**fields: int) -> bytes:
    (batch,) = rewritten(log_of(FOURS[:1]), [NONE_OF_FOUR])
    return resealed(batch, **fields) if fields else batch


def test_every_reader_passes_over_a_batch_without_records() -> None:
    batch = empty_batch()
    header = validate(batch)
    assert (header.record_count, header.next_offset, header.newest_timestamp_ms) == (0, 4, 0)
    assert not header.is_dense
    assert rows_of([batch]) == []
    for from_offset in range(6):
        assert decode_records(batch, topic="t", partition=0, from_offset=from_offset) == []
        table = decode_arrow([batch], topic="t", partition=0, from_offset=from_offset)
        assert table.num_rows == 0
    for timestamp_ms in (-1, 0, NOW_MS):
        assert find_timestamp(batch, timestamp_ms) is None


def test_arrow_joins_batches_with_and_without_records() -> None:
    originals = log_of(FOURS, epochs=[0, 1, 2])
    batches = rewritten(originals, [[True] * 4, NONE_OF_FOUR, [False, True, True, False]])
    assert [header.record_count for header in headers_of(batches)] == [4, 0, 2]
    table = decode_arrow(batches, topic="t", partition=0, from_offset=2)
    assert table.column("offset").to_pylist() == [2, 3, 9, 10]


def test_a_batch_without_records_is_compacted_again() -> None:
    batch = empty_batch()
    assert rewritten([batch], [[]]) == [batch]


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"max_timestamp": NOW_MS}, "without a record"),
        ({"append_timestamp": -1}, "append timestamp"),
    ],
)
def test_a_batch_without_records_has_its_own_bounds(fields: dict[str, int], fault: str) -> None:
    with pytest.raises(CorruptBatchError, match=fault):
        parse_header(empty_batch(**fields))


@pytest.mark.parametrize(
    "columns", [{"timestamps": b"\0" * 8}, {"timestamps": b"", "offsets": b""}]
)
def test_rows_in_a_batch_without_records_are_refused(columns: dict[str, bytes]) -> None:
    fields = {"leader_flags": 2, "append_timestamp": NOW_MS, "record_count": 0}
    times = {"first_timestamp": 0, "max_timestamp": 0}
    data = forged(payload_of(0, **columns), **fields, **times)
    with pytest.raises(CorruptBatchError, match="rows where there are none"):
        validate(data)


# -- the chain -------------------------------------------------------------------------------------


def test_the_batch_after_a_compacted_one_follows_from_it() -> None:
    originals = log_of([*FOURS, [b"next"]])
    (batch,) = rewritten(originals[:3], [NONE_OF_FOUR, ALL_OF_FOUR, NONE_OF_FOUR])
    chain = parse_header(batch).chain
    following = parse_header(originals[3])
    assert verify_chain(following, previous_chain=chain)
    assert not verify_chain(following, previous_chain=chain ^ 1)
    # Its own value cannot be told from what is before it: that may be any.
    assert verify_chain(parse_header(batch), previous_chain=0)
    assert verify_chain(parse_header(batch), previous_chain=1)


def test_a_flipped_bit_of_a_compacted_batch_is_found() -> None:
    (batch,) = rewritten(log_of(FOURS), [[True, False, False, True]] * 3)
    for bit in range(8 * len(batch)):
        flipped = bytearray(batch)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatchError):
            check(bytes(flipped))


# -- a part of one ---------------------------------------------------------------------------------


@pytest.mark.parametrize("from_offset", [1, 4, 5, 11])
def test_the_rest_of_a_compacted_batch_ends_as_it_does(from_offset: int) -> None:
    kept = [[True, False, False, True]] * 3
    (batch,) = rewritten(log_of(FOURS, epochs=[2, 2, 2]), kept)
    tail = tail_of(batch, from_offset)
    header, whole = check(tail), parse_header(batch)
    assert header.is_compacted
    assert (header.base_offset, header.next_offset) == (from_offset, 12)
    assert (header.chain, header.leader_epoch) == (whole.chain, 2)
    assert rows_of([tail]) == [row for row in rows_of([batch]) if row.offset >= from_offset]


def test_the_rest_may_have_no_record() -> None:
    (batch,) = rewritten(log_of(FOURS), [[True, False, False, False], NONE_OF_FOUR, NONE_OF_FOUR])
    header = validate(tail_of(batch, 5))
    assert (header.record_count, header.base_offset, header.next_offset) == (0, 5, 12)


# -- anything --------------------------------------------------------------------------------------


class Draft(NamedTuple):
    """A batch of a log, and what becomes of it."""

    data: bytes
    kept: list[bool]
    keeps_producer: bool


def masks(count: int) -> st.SearchStrategy[list[bool]]:
    return st.lists(st.booleans(), min_size=count, max_size=count)


@st.composite
def drafts(draw: st.DrawFn) -> list[Draft]:
    """Batches that follow on each other, some of them compacted already."""
    found: list[Draft] = []
    chain, offset, epoch = 0, draw(st.integers(0, 1 << 40)), 0
    for _ in range(draw(st.integers(1, 8))):
        epoch += draw(st.sampled_from((0, 0, 0, 2)))
        source = draw(records(count_max=6))
        producer = draw(st.sampled_from(((-1, -1, -1), (7, 1, (1 << 31) - 3))))
        data = stamped(
            batch_of(
                source.values,
                keys=source.keys,
                headers=source.headers,
                timestamps_ms=source.timestamps_ms,
                offset_deltas=source.offset_deltas,
                codec=draw(codecs),
                producer=producer,
            ),
            base_offset=offset,
            leader_epoch=epoch,
            log_append_time=draw(st.booleans()),
            previous_chain=chain,
        )
        header = parse_header(data)
        kept = draw(
            st.lists(st.booleans(), min_size=len(source.values), max_size=len(source.values))
        )
        if draw(st.integers(0, 3)) == 0:  # an earlier compaction has come by
            (data,) = rewritten([data], [kept])
            header = parse_header(data)
            kept = draw(masks(header.record_count))
        keeps = header.has_producer and draw(st.booleans())
        found.append(Draft(data, kept, keeps))
        chain, offset = header.chain, header.next_offset
    return found


@given(found=drafts())
def test_records_offsets_epochs_and_chain_values_survive(found: list[Draft]) -> None:
    originals = [draft.data for draft in found]
    keeping = [number for number, draft in enumerate(found) if draft.keeps_producer]
    batches = rewritten(originals, [draft.kept for draft in found], keeping=keeping)
    expected = [
        row
        for draft in found
        for row, kept in zip(rows_of([draft.data]), draft.kept, strict=True)
        if kept
    ]
    assert rows_of(batches) == expected
    before, after = headers_of(originals), headers_of(batches)
    for data in batches:
        validate(data)
    assert after[0].base_offset == before[0].base_offset
    assert after[-1].next_offset == before[-1].next_offset
    assert all(one.next_offset == other.base_offset for one, other in pairwise(after))
    ends = {header.next_offset: header for header in before}
    for header in after:
        last = ends[header.next_offset]  # every one ends where one has ended, and says the same
        assert (header.chain, header.leader_epoch) == (last.chain, last.leader_epoch)
        assert header.append_timestamp == last.append_timestamp
        covered = [h for h in before if header.base_offset <= h.base_offset < header.next_offset]
        assert {h.leader_epoch for h in covered} == {header.leader_epoch}
    chain = after[0].chain
    for header in after[1:]:
        assert verify_chain(header, previous_chain=chain)
        chain = header.chain
    noted = {h.base_offset: h for h in after if h.has_producer}
    for number in keeping:
        header = noted[before[number].base_offset]
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (
            before[number].producer_id,
            before[number].producer_epoch,
            before[number].base_sequence,
        )
        assert header.last_offset_delta == before[number].last_offset_delta
