"""Decoding: offsets, times, slices, lookups; and nothing but ``CorruptBatchError`` for the rest."""

from __future__ import annotations

import pytest

from raftlog.errors import CorruptBatchError, InvalidRequestError
from raftlog.record import Codec, decode_lists, decode_records, find_timestamp, split, validate
from raftlog.types import ConsumerRecord
from tests.record.batches import ALL_CODECS, NOW_MS, batch_of, forged, stamped

VALUES = [b"a", None, b"ccc", b"", b"e"]
KEYS = [b"k0", b"k1", None, b"", b"k4"]
HEADERS = [(), (("x", b"1"), ("y", None)), (), (("\xe4", b""),), (("z", b"26"),)]
TIMES = [50, 20, 80, 80, 30]
BATCH = batch_of(VALUES, keys=KEYS, headers=HEADERS, timestamps_ms=TIMES)
STORED = stamped(BATCH, base_offset=100, leader_epoch=4)
SPARSE = stamped(
    batch_of(VALUES, keys=KEYS, headers=HEADERS, timestamps_ms=TIMES,
             offset_deltas=[1, 2, 7, 8, 20]),
    base_offset=100,
    leader_epoch=4,
)  # fmt: skip
LATE = stamped(BATCH, base_offset=100, append_timestamp_ms=NOW_MS, log_append_time=True)


pytestmark = pytest.mark.usefixtures("both_ways")


def test_lists() -> None:
    lists = decode_lists(STORED)
    assert list(lists.offsets) == [100, 101, 102, 103, 104]
    assert list(lists.timestamps_ms) == TIMES
    assert (lists.keys, lists.values, lists.headers) == (KEYS, VALUES, HEADERS)


def test_records() -> None:
    records = decode_records(STORED, topic="clicks", partition=3)
    assert records == [
        ConsumerRecord("clicks", 3, 100 + row, KEYS[row], VALUES[row], HEADERS[row], TIMES[row], 4)
        for row in range(5)
    ]
    assert all(type(record) is ConsumerRecord for record in records)
    assert type(records[1].headers) is tuple
    assert type(records[1].headers[0]) is tuple


def test_offsets_of_a_batch_with_holes() -> None:
    assert list(decode_lists(SPARSE).offsets) == [101, 102, 107, 108, 120]
    assert [record.offset for record in decode_records(SPARSE, topic="t", partition=0)] == [
        101, 102, 107, 108, 120
    ]  # fmt: skip
    assert validate(SPARSE).next_offset == 121


def test_records_from_an_offset_on() -> None:
    for from_offset in [-1, 0, 99, *range(100, 123), 1 << 40, 1 << 70]:
        for data in [STORED, SPARSE, LATE]:
            everything = decode_records(data, topic="t", partition=0)
            assert decode_records(data, topic="t", partition=0, from_offset=from_offset) == [
                record for record in everything if record.offset >= from_offset
            ]


def test_the_leaders_time_is_every_records_time() -> None:
    assert list(decode_lists(LATE).timestamps_ms) == [NOW_MS] * 5
    records = decode_records(LATE, topic="t", partition=0, from_offset=102)
    assert [record.timestamp_ms for record in records] == [NOW_MS] * 3


@pytest.mark.parametrize(
    ("timestamp_ms", "row"),
    [(-(1 << 70), 0), (-1, 0), (0, 0), (50, 0), (51, 2), (80, 2), (81, None), (1 << 70, None)],
)
def test_find_timestamp_is_the_first_at_or_after(timestamp_ms: int, row: int | None) -> None:
    for data in (STORED, SPARSE):
        expected = None if row is None else (list(decode_lists(data).offsets)[row], TIMES[row])
        assert find_timestamp(data, timestamp_ms) == expected


def test_find_timestamp_goes_by_the_leaders_time() -> None:
    assert find_timestamp(LATE, NOW_MS) == (100, NOW_MS)
    assert find_timestamp(LATE, 10) == (100, NOW_MS)
    assert find_timestamp(LATE, NOW_MS + 1) is None


@pytest.mark.parametrize("data", [STORED, SPARSE, LATE], ids=["stored", "sparse", "late"])
def test_find_timestamp_from_an_offset(data: bytes) -> None:
    records = decode_lists(data)
    found = list(zip(records.offsets, records.timestamps_ms, strict=True))
    for from_offset in range(records.offsets[0] - 1, records.offsets[-1] + 2):
        for timestamp_ms in (0, 51, 80, NOW_MS):
            expected = [(o, at) for o, at in found if o >= from_offset and at >= timestamp_ms]
            at = find_timestamp(data, timestamp_ms, from_offset=from_offset)
            assert at == (expected[0] if expected else None)


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_every_reader_refuses_a_flipped_payload(codec: Codec) -> None:
    data = bytearray(batch_of([b"value" * 20] * 20, codec=codec))
    data[-3] ^= 4
    for reader in (
        validate,
        decode_lists,
        lambda batch: decode_records(batch, topic="t", partition=0),
        lambda batch: find_timestamp(batch, 5),
    ):
        with pytest.raises(CorruptBatchError, match="CRC"):
            reader(data)


def test_keys_may_be_required_of_every_record() -> None:
    assert validate(batch_of([b"v"] * 2, keys=[b"", b"k"]), keys_required=True).record_count == 2
    for keys, row in (([None, b"k"], 0), ([b"k", b"", None], 2), (None, 0)):
        batch = batch_of([b"v"] * (len(keys) if keys else 1), keys=keys)
        assert validate(batch).record_count
        with pytest.raises(InvalidRequestError, match=f"record {row} of the batch has no key"):
            validate(batch, keys_required=True)


def test_the_crc_is_left_out_on_request_but_not_the_rest() -> None:
    flipped = bytearray(batch_of([b"abc"]))
    flipped[flipped.index(b"abc")] ^= 1
    assert decode_lists(flipped, check_crc=False).values == [b"`bc"]
    records = decode_records(flipped, topic="t", partition=0, check_crc=False)
    assert records[0].value == b"`bc"
    for wrong in (BATCH[:-1], BATCH + b"x", forged(b"\xc0" * 12)):
        with pytest.raises(CorruptBatchError):
            decode_lists(wrong, check_crc=False)
        with pytest.raises(CorruptBatchError):
            decode_records(wrong, topic="t", partition=0, check_crc=False)


def test_values_do_not_share_memory_with_the_batch() -> None:
    data = bytearray(BATCH)
    lists = decode_lists(data)
    data[:] = bytes(len(data))
    assert lists.values == VALUES
    assert lists.headers == HEADERS


def test_views_of_a_fetch_answer_decode_as_they_come() -> None:
    answer = STORED + SPARSE + LATE
    assert [decode_lists(view).values for view in split(answer)] == [VALUES] * 3


def test_large_entries_and_many_records() -> None:
    values = [b"x" * 300_000, b"", b"y" * 70_000] + [b"%d" % row for row in range(5_000)]
    for codec in ALL_CODECS:
        assert decode_lists(batch_of(values, codec=codec)).values == values
