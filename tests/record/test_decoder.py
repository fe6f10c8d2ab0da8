"""Decoding, of integers, of batches and to Arrow: with numpy and by loops."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from raftlog import limits
from raftlog.errors import CorruptBatchError, InvalidRequestError, UnsupportedFeatureError
from raftlog.record import (
    HEADER_BYTES,
    Codec,
    arrow,
    arrow_schema,
    decode_arrow,
    decode_lists,
    decode_records,
    find_timestamp,
    payload,
    split,
    validate,
)
from raftlog.types import ConsumerRecord
from tests.record.batches import ALL_CODECS, BAR, NOW_MS, batch_of, forged, stamped, u32, u64
from tests.record.kafka_batches import KafkaRecord, as_stored, kafka_batch

pytestmark = pytest.mark.usefixtures("both_ways")

# -- integers --------------------------------------------------------------------------------------

# Arithmetic on packed integers: the loop and numpy give the same answers.


U32_MAX = (1 << 32) - 1
U64_MAX = (1 << 64) - 1


@pytest.mark.parametrize("integers", [(), (7,), (0, U32_MAX), (U32_MAX,) * 300])
def test_total_does_not_wrap(integers: tuple[int, ...]) -> None:
    assert payload.total(u32(*integers)) == sum(integers)


@pytest.mark.parametrize(
    ("integers", "expected"),
    [((5,), True), ((0, 1, U32_MAX), True), ((1, 1), False), ((2, 1), False), ((1, 2, 2), False)],
)
def test_is_increasing_is_strict(integers: tuple[int, ...], expected: bool) -> None:
    assert payload.is_increasing(u32(*integers)) is expected


@pytest.mark.parametrize(("bound", "index"), [(0, 0), (2, 0), (3, 1), (5, 1), (6, 2), (9, 3)])
def test_first_at_least_in_increasing_integers(bound: int, index: int) -> None:
    assert payload.first_at_least(u32(2, 5, 7), bound) == index


@pytest.mark.parametrize(("indexes", "expected"), [((0, 2), True), ((1,), False), ((0, 1), False)])
def test_are_zero_at(indexes: tuple[int, ...], expected: bool) -> None:
    assert payload.are_zero_at(u32(0, 3, 0), u32(*indexes)) is expected


def test_highest_is_unsigned() -> None:
    assert payload.highest_of(u64(3, U64_MAX, 5)) == U64_MAX


@pytest.mark.parametrize(("bound", "index"), [(0, 0), (4, 1), (9, 1), (10, 3), (11, 4)])
def test_find_at_least_takes_the_first_in_place(bound: int, index: int) -> None:
    assert payload.find_at_least(u64(3, 9, 4, 10), bound) == index
    zeros = [0] * 1_000
    assert payload.find_at_least(u64(*zeros, 9), bound) == (bound > 0) * 1_000 + (bound > 9)


@pytest.mark.parametrize(
    ("blob", "lengths", "expected"),
    [
        (f"a{BAR}b".encode(), (1, 3, 1), False),
        (f"a{BAR}b".encode(), (2, 2, 1), True),
        (f"a{BAR}".encode(), (0, 4, 0, 0), False),  # empty entries after the end
        (BAR.encode(), (1, 1, 1), True),
    ],
)
def test_splits_a_character(blob: bytes, lengths: tuple[int, ...], expected: bool) -> None:
    assert payload.splits_a_character(blob, u32(*lengths)) is expected


def test_last_and_packing_are_little_endian() -> None:
    assert payload.last(b"\x01\0\0\0\x02\x01\0\0") == 0x102
    assert payload.pack_u32([1, 2]) == b"\x01\0\0\0\x02\0\0\0"
    assert tuple(payload.u32(payload.pack_u32([1, 2]))) == (1, 2)
    assert tuple(payload.u64(payload.pack_u64([1, 2]))) == (1, 2)


# -- batches ---------------------------------------------------------------------------------------

# Decoding: offsets, times, slices, lookups; and nothing but ``CorruptBatchError`` for the rest.


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


# -- Arrow -----------------------------------------------------------------------------------------

# Arrow: the same records as the other readers give, whole columns at a time.


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PLAIN = stamped(batch_of([b"p", b"q"], timestamps_ms=7), base_offset=300, leader_epoch=5)
NULLS = stamped(batch_of([None] * 3, keys=[b"a", b"b", b"c"]), base_offset=400)
EMPTY_HEADERS = stamped(batch_of([b"r"], headers=[(("", b""),)]), base_offset=500)
ROWS = as_stored(
    kafka_batch([KafkaRecord(b"s", None, 7, (("a", None),)), KafkaRecord(None, b"k")] * 40),
    base_offset=600,
)
EVERY = [STORED, SPARSE, LATE, PLAIN, NULLS, EMPTY_HEADERS, ROWS]


def row_of(record: ConsumerRecord) -> dict[str, Any]:
    headers = [{"key": name, "value": value} for name, value in record.headers]
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "key": record.key,
        "value": record.value,
        "headers": headers or None,
        "timestamp": EPOCH + timedelta(milliseconds=record.timestamp_ms),
        "leader_epoch": record.leader_epoch,
    }


def expected(batches: Sequence[bytes], from_offset: int = 0) -> list[dict[str, Any]]:
    return [
        row_of(record)
        for batch in batches
        for record in decode_records(batch, topic="clicks", partition=3, from_offset=from_offset)
    ]


def arrow_of(batches: Sequence[bytes], from_offset: int = 0, **options: Any) -> pa.RecordBatch:
    table = decode_arrow(batches, topic="clicks", partition=3, from_offset=from_offset, **options)
    table.validate(full=True)
    return table


def test_the_schema_is_what_spark_wants() -> None:
    assert arrow_of([PLAIN]).schema.equals(
        pa.schema(
            {
                "topic": pa.string(),
                "partition": pa.int32(),
                "offset": pa.int64(),
                "key": pa.binary(),
                "value": pa.binary(),
                "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
                "timestamp": pa.timestamp("us", "UTC"),
                "leader_epoch": pa.int32(),
            }
        )
    )


@pytest.mark.parametrize("batch", EVERY)
def test_one_batch(batch: bytes) -> None:
    assert arrow_of([batch]).to_pylist() == expected([batch])


@pytest.mark.parametrize("order", [1, -1])
def test_many_batches_become_one(order: int) -> None:
    batches = EVERY[::order] * 2
    assert arrow_of(batches).to_pylist() == expected(batches)


def test_from_an_offset_on() -> None:
    for from_offset in [*range(98, 124), 301, 402, 501, 1 << 70]:
        assert arrow_of(EVERY, from_offset).to_pylist() == expected(EVERY, from_offset)
        assert arrow_of([SPARSE], from_offset).to_pylist() == expected([SPARSE], from_offset)


def test_to_an_offset() -> None:
    for to_offset in [0, *range(98, 124), 301, 402, 501, 1 << 70]:
        for from_offset in (0, 102, 110):
            for batches in (EVERY, [SPARSE], [STORED]):
                found = arrow_of(batches, from_offset, to_offset=to_offset).to_pylist()
                rows = expected(batches, from_offset)
                assert found == [row for row in rows if row["offset"] < to_offset]


@pytest.mark.parametrize("batches", [[STORED], [SPARSE], [LATE], [NULLS], EVERY, []])
def test_any_columns_in_any_order(batches: list[bytes]) -> None:
    names = list(arrow_schema().names)
    full = arrow_of(batches, 101)
    for columns in [*([name] for name in names), names[::-1], ("value", "offset"), names]:
        found = arrow_of(batches, 101, columns=columns)
        assert found.schema.names == list(columns)
        for name in columns:
            assert found.column(name).equals(full.column(name))
            assert found.schema.field(name).equals(full.schema.field(name))


def test_whose_time_it_is_can_be_asked_for() -> None:
    found = arrow_of([STORED, LATE], columns=["timestamp_type", "offset"])
    assert found.schema.field("timestamp_type").type == pa.int32()
    assert found.column("timestamp_type").to_pylist() == [0] * 5 + [1] * 5


@pytest.mark.parametrize(
    ("columns", "error", "match"),
    [
        ([], InvalidRequestError, "one at least"),
        (["key", "key"], InvalidRequestError, "each once"),
        (["key", "valeu"], InvalidRequestError, "no 'valeu'; there are topic, .*timestamp_type"),
        ("key", TypeError, r"a list of names, such as \['key'\]"),
    ],
)
def test_columns_that_there_are_not(columns: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        arrow_of([STORED], columns=columns)


def test_a_column_that_is_not_asked_for_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_ARROW_OFFSET_MAX", 100)
    big = batch_of([b"v" * 60], keys=[b"k"])
    assert arrow_of([big, big], columns=["key", "partition"]).num_rows == 2
    with pytest.raises(InvalidRequestError, match="values of 120 together"):
        arrow_of([big, big], columns=["value"])


def test_what_headers_have_is_read_without_the_payload() -> None:
    whole = batch_of(VALUES * 200, timestamps_ms=NOW_MS, codec=Codec.ZSTD)
    damaged = whole[:HEADER_BYTES] + bytes(len(whole) - HEADER_BYTES)
    asked: dict[str, Any] = {"topic": "t", "partition": 0, "check_crc": False}
    table = decode_arrow([damaged], **asked, columns=["offset", "partition"], from_offset=3)
    assert table.column("offset").to_pylist() == list(range(3, len(VALUES) * 200))
    with pytest.raises(CorruptBatchError):
        decode_arrow([damaged], **asked, columns=["offset", "value"])


def test_no_batches_give_no_rows_in_the_same_schema() -> None:
    assert arrow_of([]).num_rows == 0
    assert arrow_of([]).schema == arrow_of([PLAIN]).schema == arrow_of([PLAIN], 999).schema


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_codecs(codec: int) -> None:
    data = batch_of(VALUES * 200, keys=KEYS * 200, headers=HEADERS * 200,
                    timestamps_ms=TIMES * 200, codec=codec)  # fmt: skip
    assert arrow_of([data, data]).to_pylist() == expected([data, data])


def test_names_in_any_language_and_the_last_millisecond() -> None:
    data = batch_of([b""], timestamps_ms=limits.TIMESTAMP_MS_MAX)
    table = decode_arrow([data], topic="\xe4", partition=0)
    table.validate(full=True)
    assert table.column("topic").to_pylist() == ["\xe4"]
    assert table.column("timestamp")[0].value == limits.TIMESTAMP_MS_MAX * 1_000


@pytest.mark.parametrize("wrong", [BATCH[:-1], BATCH + b"x", b"", bytes(200), forged(b"\xc0" * 12)])
def test_corrupt_batches_are_refused(wrong: bytes) -> None:
    for check_crc in (True, False):
        with pytest.raises(CorruptBatchError):
            decode_arrow([PLAIN, wrong], topic="t", partition=0, check_crc=check_crc)


def test_the_crc_is_left_out_on_request() -> None:
    flipped = bytearray(batch_of([b"abc"], timestamps_ms=NOW_MS))
    flipped[flipped.index(b"abc")] ^= 1
    with pytest.raises(CorruptBatchError, match="CRC"):
        decode_arrow([flipped], topic="t", partition=0)
    table = decode_arrow([flipped], topic="t", partition=0, check_crc=False)
    assert table.column("value").to_pylist() == [b"`bc"]


def test_more_than_an_arrow_array_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_ARROW_OFFSET_MAX", 100)
    big = batch_of([b"v" * 60])
    assert decode_arrow([big], topic="t", partition=0).num_rows == 1
    with pytest.raises(InvalidRequestError, match="values of 120 together"):
        decode_arrow([big, big], topic="t", partition=0)
    with pytest.raises(InvalidRequestError, match="topic names"):
        decode_arrow([batch_of([b""] * 11)], topic="ten chars.", partition=0)


def test_a_single_plain_batch_is_not_copied() -> None:
    data = bytearray(batch_of([b"v" * 1_000]))
    table = decode_arrow([data], topic="t", partition=0)
    data[data.index(b"vvv")] = ord("w")
    assert table.column("value")[0].as_py()[:3] == b"wvv"


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    arrow.arrow_schema.cache_clear()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnsupportedFeatureError, match=r"pip install -e '\.\[arrow\]'"):
        decode_arrow([PLAIN], topic="t", partition=0)
