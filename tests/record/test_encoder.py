"""Encoding: what it takes, how it is stored, and the errors for what it does not take."""

from __future__ import annotations

import array
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from raftlog import limits
from raftlog.errors import InvalidRequestError, RecordTooLargeError
from raftlog.record import Codec, check, decode_lists, encode, validate
from tests.record.batches import ALL_CODECS, NOW_MS, batch_of


def test_values_alone() -> None:
    body = encode([b"a", b"", b"ccc"], timestamps_ms=NOW_MS)
    assert (body.record_count, body.codec, body.last_offset_delta) == (3, Codec.NONE, 2)
    assert (body.first_timestamp_ms, body.max_timestamp_ms) == (NOW_MS, NOW_MS)
    assert body.uncompressed_length == len(body.payload)
    lists = decode_lists(batch_of([b"a", b"", b"ccc"]))
    assert lists.values == [b"a", b"", b"ccc"]
    assert lists.keys == [None] * 3
    assert lists.headers == [()] * 3


def test_all_kinds_of_entries_come_back() -> None:
    for count in [1, 2, 255, 256, 257, 3_000]:
        for codec in ALL_CODECS:
            values = [None if row % 7 == 3 else b"v" * (row % 50) for row in range(count)]
            keys = [None if row % 3 == 0 else b"%d" % row for row in range(count)]
            headers = [tuple((f"h{n}", None if n == 1 else b"x") for n in range(row % 4))
                       for row in range(count)]  # fmt: skip
            stamps = [NOW_MS + (row * 7919) % 1_000 for row in range(count)]
            data = batch_of(values, keys=keys, headers=headers, timestamps_ms=stamps, codec=codec)
            header = validate(data)
            assert header.codec in {codec, Codec.NONE}
            assert (header.first_timestamp, header.max_timestamp) == (stamps[0], max(stamps))
            lists = decode_lists(data)
            assert lists.values == values
            assert lists.keys == keys
            assert lists.headers == headers
            assert list(lists.timestamps_ms) == stamps
            assert list(lists.offsets) == list(range(count))


def test_bytes_like_entries_count_in_bytes() -> None:
    wide = memoryview(array.array("I", [1, 2]))
    flat = memoryview(b"abcdef")
    values = [bytearray(b"xy"), flat[1:3], flat[::2], wide, None, b"", memoryview(b"")]
    expected = [b"xy", b"bc", b"ace", wide.tobytes(), None, b"", b""]
    assert decode_lists(batch_of(values, keys=values)).values == expected
    assert decode_lists(batch_of(values, keys=values)).keys == expected
    for value, octets in zip(values, expected, strict=True):
        assert decode_lists(batch_of([value])).values == [octets]


def test_a_value_that_is_not_bytes_is_a_type_error() -> None:
    for beside in [[], [b"fine"], [None]]:
        for wrong in ["text", 5, 1.5, ["x"], ("a",), {"a": 1}, object()]:
            kind = type(wrong).__name__
            row = len(beside)
            with pytest.raises(
                TypeError, match=rf"value {row} is of type {kind}, .* serializer for v"
            ):
                encode([*beside, wrong], timestamps_ms=NOW_MS)
            with pytest.raises(
                TypeError, match=rf"key {row} is of type {kind}, .* serializer for key"
            ):
                encode([b""] * (row + 1), keys=[*beside, wrong], timestamps_ms=NOW_MS)


def test_lengths_that_the_caller_has_are_used() -> None:
    values = [b"a", b"", b"ccc"]
    plain = encode(values, timestamps_ms=NOW_MS)
    for kind in (np.uint32, np.int64, ">u4"):
        lengths = np.array([1, 0, 3], kind)
        assert encode(values, timestamps_ms=NOW_MS, lengths=lengths) == plain


def test_lengths_may_say_0_for_a_null_and_wrong_sums_are_measured_again() -> None:
    values = [b"a", None, b"ccc"]
    plain = encode(values, timestamps_ms=NOW_MS)
    for lengths in ([1, 0, 3], [1, 0, 4]):
        array_ = np.array(lengths, np.uint32)
        assert encode(values, timestamps_ms=NOW_MS, lengths=array_) == plain


@pytest.mark.parametrize(
    "timestamps", [-1, 1 << 64, [NOW_MS], [NOW_MS] * 3, [1, -1], [1, 1.5], [1, "2"], [1, None]]
)
def test_timestamps_are_whole_milliseconds_for_each_record(timestamps: Any) -> None:
    with pytest.raises(InvalidRequestError, match="timestamps are 2 whole numbers of milliseconds"):
        encode([b"", b""], timestamps_ms=timestamps)


@pytest.mark.parametrize("timestamps", [limits.TIMESTAMP_MS_MAX + 1, [0, (1 << 64) - 1]])
def test_timestamps_beyond_9999_are_refused(timestamps: Any) -> None:
    with pytest.raises(InvalidRequestError, match="milliseconds, not microseconds"):
        encode([b"", b""], timestamps_ms=timestamps)


def test_timestamps_may_be_numpys() -> None:
    stamps = np.array([NOW_MS, NOW_MS + 1])
    assert encode([b"", b""], timestamps_ms=stamps) == encode(
        [b"", b""], timestamps_ms=[NOW_MS, NOW_MS + 1]
    )
    assert validate(batch_of([b""], timestamps_ms=limits.TIMESTAMP_MS_MAX))
    assert validate(batch_of([b""], timestamps_ms=0))


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="1 keys for 2 values"):
        encode([b"", b""], keys=[b""], timestamps_ms=NOW_MS)
    with pytest.raises(InvalidRequestError, match="3 headers for 2 values"):
        encode([b"", b""], headers=[()] * 3, timestamps_ms=NOW_MS)


@pytest.mark.parametrize("count", [0, limits.RECORDS_PER_BATCH_MAX + 1])
def test_a_count_that_no_batch_has_is_refused(count: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"{count} records; a batch has 1 to 1048576"):
        encode([b""] * count, timestamps_ms=NOW_MS)


@pytest.mark.parametrize(
    "headers",
    [
        [("name",)],
        [("name", b"value", "more")],
        [(b"name", b"value")],
        [("\ud800", b"value")],
        [(None, b"value")],
        [5],
        5,
    ],
)
def test_headers_that_are_no_pairs_are_refused(headers: Any) -> None:
    with pytest.raises(InvalidRequestError, match="headers are pairs of a name"):
        encode([b""], headers=[headers], timestamps_ms=NOW_MS)


def test_a_header_value_that_is_not_bytes_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="header value 1 is of type str"):
        encode([b""], headers=[(("a", b"x"), ("b", "y"))], timestamps_ms=NOW_MS)  # type: ignore[list-item]


def test_headers_in_other_containers_and_none_for_none() -> None:
    rows: list[Any] = [
        None,
        [("a", bytearray(b"1"))],
        (),
        [["b", memoryview(b"2")]],
        (("c", None),),
    ]
    data = batch_of([b""] * 5, headers=rows)
    assert decode_lists(data).headers == [(), (("a", b"1"),), (), (("b", b"2"),), (("c", None),)]
    assert encode([b""] * 2, headers=[(), None], timestamps_ms=1) == encode(
        [b""] * 2, timestamps_ms=1
    )


def test_too_many_headers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEADERS_PER_BATCH_MAX", 3)
    row = (("a", None), ("b", None))
    assert encode([b""], headers=[row], timestamps_ms=NOW_MS)
    with pytest.raises(InvalidRequestError, match="4 headers; a batch has at most 3"):
        encode([b"", b""], headers=[row, row], timestamps_ms=NOW_MS)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_what_no_batch_can_hold_is_refused_before_it_is_joined(codec: Codec) -> None:
    chunk = bytes(limits.MIB)
    values = [chunk] * (limits.BATCH_UNCOMPRESSED_BYTES_MAX // limits.MIB)
    with pytest.raises(RecordTooLargeError, match="64 records take 67109"):
        encode(values, timestamps_ms=NOW_MS, codec=codec)
    assert encode(values[1:], timestamps_ms=NOW_MS).record_count == 63


def test_the_largest_batch_is_within_the_limit_on_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    size = encode([bytes(1_000)], timestamps_ms=NOW_MS).size_bytes
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", size)
    assert check(batch_of([bytes(1_000)])).length == size
    with pytest.raises(RecordTooLargeError, match="that a batch may have"):
        encode([bytes(1_001)], timestamps_ms=NOW_MS)
    assert encode([bytes(2_000)], timestamps_ms=NOW_MS, codec=Codec.LZ4).size_bytes < size


def test_a_value_of_4_gib_is_refused() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 32

    with pytest.raises(RecordTooLargeError, match="value does not fit any batch"):
        encode([Huge()], timestamps_ms=NOW_MS)


def test_what_does_not_shrink_is_stored_raw() -> None:
    body = encode([b"x"], timestamps_ms=NOW_MS, codec=Codec.ZSTD)
    assert body.codec is Codec.NONE
    assert body == encode([b"x"], timestamps_ms=NOW_MS)
    assert check(batch_of([b"x"], codec=Codec.GZIP)).codec is Codec.NONE


def test_a_level_is_checked_whether_or_not_it_is_used() -> None:
    values = [b"same " * 50] * 50
    low, high = (
        encode(values, timestamps_ms=1, codec=Codec.ZSTD, level=level).payload for level in (1, 19)
    )
    assert len(high) <= len(low)
    with pytest.raises(InvalidRequestError, match="99 is not a level of zstd"):
        encode([b""], timestamps_ms=1, codec=Codec.ZSTD, level=99)


def test_holes_are_written_and_dense_offsets_are_not() -> None:
    assert encode([b"a", b"b"], timestamps_ms=1, offset_deltas=[0, 1]) == encode(
        [b"a", b"b"], timestamps_ms=1
    )
    data = batch_of([b"a", b"b", b"c"], offset_deltas=[2, 3, 9])
    header = validate(data)
    assert (header.record_count, header.last_offset_delta, header.is_dense) == (3, 9, False)
    assert list(decode_lists(data).offsets) == [2, 3, 9]
    with pytest.raises(AssertionError):
        encode([b"a", b"b"], timestamps_ms=1, offset_deltas=[1, 1])


def test_a_batch_keeps_its_range_when_its_last_record_is_gone() -> None:
    data = batch_of([b"a", b"b"], offset_deltas=[0, 1], last_offset_delta=4)
    header = validate(data)
    assert (header.record_count, header.last_offset_delta, header.is_dense) == (2, 4, False)
    assert list(decode_lists(data).offsets) == [0, 1]


@pytest.mark.integration
def test_small_batches_load_neither_numpy_nor_pyarrow() -> None:
    program = (
        "import sys; from raftlog.record import *\n"
        "body = encode([b'v', None], keys=[b'k', b''], timestamps_ms=[1, 2], codec=Codec.LZ4)\n"
        "decode_records(seal(body) + body.payload, topic='t', partition=0)\n"
        "sys.exit(str(sorted({'numpy', 'pyarrow'} & set(sys.modules))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == "[]"
