"""Arrow: the same records as the other readers give, whole columns at a time."""

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
    decode_records,
)
from raftlog.types import ConsumerRecord
from tests.record.batches import ALL_CODECS, NOW_MS, batch_of, forged, stamped
from tests.record.kafka_batches import KafkaRecord, as_stored, kafka_batch
from tests.record.test_decoder import BATCH, HEADERS, KEYS, LATE, SPARSE, STORED, TIMES, VALUES

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PLAIN = stamped(batch_of([b"p", b"q"], timestamps_ms=7), base_offset=300, leader_epoch=5)
NULLS = stamped(batch_of([None] * 3, keys=[b"a", b"b", b"c"]), base_offset=400)
EMPTY_HEADERS = stamped(batch_of([b"r"], headers=[(("", b""),)]), base_offset=500)
ROWS = as_stored(
    kafka_batch([KafkaRecord(b"s", None, 7, (("a", None),)), KafkaRecord(None, b"k")] * 40),
    base_offset=600,
)
EVERY = [STORED, SPARSE, LATE, PLAIN, NULLS, EMPTY_HEADERS, ROWS]


pytestmark = pytest.mark.usefixtures("both_ways")


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
