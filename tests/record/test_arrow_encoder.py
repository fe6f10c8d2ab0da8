"""Arrow to a batch: the same bytes as ``encode`` makes of the same records, and the same errors."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import InvalidRequestError, RecordTooLargeError
from raftlog.record import (
    Codec,
    arrow,
    decode_lists,
    encode,
    encode_arrow,
    partitions_of_arrow,
    seal,
)
from raftlog.record.key_hash import partition_of_key
from tests.record.batches import ALL_CODECS, NOW_MS
from tests.record.strategies import Records, codecs, records

BYTES = [pa.binary(), pa.large_binary(), pa.binary_view()]
PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
LARGE_PAIR = pa.struct([("value", pa.large_binary()), ("key", pa.large_string())])
HEADERS = [pa.list_(PAIR), pa.large_list(LARGE_PAIR)]


def headers_array(rows: list[Any], kind: pa.DataType) -> pa.Array:
    """Rows of pairs, as they are in Arrow."""
    return pa.array(
        [None if row is None else [dict(zip(("key", "value"), pair)) for pair in row]  # noqa: B905
         for row in rows],
        kind,
    )  # fmt: skip


def around(array: pa.Array, other: pa.Array) -> pa.Array:
    """The array as a slice of a longer one."""
    longer = pa.concat_arrays([other, array, other])
    return longer.slice(len(other), len(array))


@given(records(), codecs, st.sampled_from(BYTES), st.sampled_from(HEADERS), st.integers(0, 17))
def test_the_bytes_are_those_of_encode(
    made: Records, codec: Codec, kind: pa.DataType, headers_kind: pa.DataType, before: int
) -> None:
    expected = encode(
        made.values,
        keys=made.keys,
        headers=made.headers,
        timestamps_ms=made.timestamps_ms,
        codec=codec,
    )
    values = pa.array(made.values, kind)
    keys = None if made.keys is None else pa.array(made.keys, kind)
    headers = None if made.headers is None else headers_array(made.headers, headers_kind)
    stamps = pa.array(made.timestamps_ms, pa.int64())

    def body(cut: Any) -> Any:
        return encode_arrow(
            cut(values),
            keys=None if keys is None else cut(keys),
            headers=None if headers is None else cut(headers),
            timestamps_ms=cut(stamps),
            codec=codec,
        )

    assert body(lambda array: array) == expected
    half = len(values) // 2
    assert body(lambda array: pa.chunked_array([array[:half], array[half:]])) == expected
    if not pa.types.is_binary_view(kind):  # these cannot be joined by pyarrow
        filler = {"key": "filler", "value": b"filler"}
        others = {headers_kind: [filler] * 2, pa.int64(): 7}
        sliced = body(
            lambda array: around(
                array, pa.array([others.get(array.type, b"filler"), None] * before, array.type)
            )
        )
        assert sliced == expected


def test_text_and_bytes_of_one_size() -> None:
    texts = ["a", None, "\xe4\u20ac", ""]
    octets = [None if text is None else text.encode() for text in texts]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        found = encode_arrow(pa.array(texts, kind), keys=pa.array(texts, kind), timestamps_ms=1)
        assert found == encode(octets, keys=octets, timestamps_ms=1)
    fixed = [b"abc", None, b"def"]
    assert encode_arrow(pa.array(fixed, pa.binary(3)), timestamps_ms=1) == encode(
        fixed, timestamps_ms=1
    )


def test_what_lies_under_a_null_is_left_out() -> None:
    ends, blob = np.array([0, 1, 4, 4, 6], np.int32), b"aSECee"
    validity = pa.py_buffer(bytes([0b1101]))
    for kind in (pa.binary(), pa.string()):
        buffers = [validity, pa.py_buffer(ends), pa.py_buffer(blob)]
        hiding = pa.Array.from_buffers(kind, 4, buffers)
        assert encode_arrow(hiding, keys=hiding, timestamps_ms=1) == encode(
            [b"a", None, b"", b"ee"], keys=[b"a", None, b"", b"ee"], timestamps_ms=1
        )


def test_headers_under_a_null_list_are_left_out() -> None:
    pairs = pa.array([{"key": name, "value": b"v"} for name in "abc"], PAIR)
    ends = pa.py_buffer(np.array([0, 1, 2, 3], np.int32))
    validity = pa.py_buffer(bytes([0b101]))
    hiding = pa.Array.from_buffers(pa.list_(PAIR), 3, [validity, ends], children=[pairs])
    values = [b"1", b"2", b"3"]
    found = encode_arrow(pa.array(values), headers=hiding, timestamps_ms=1)
    rows = [(("a", b"v"),), None, (("c", b"v"),)]
    assert found == encode(values, headers=rows, timestamps_ms=1)


def test_no_keys_and_no_headers_at_all() -> None:
    plain = encode([b"v"] * 3, timestamps_ms=NOW_MS)
    values = pa.array([b"v"] * 3)
    for keys in (None, pa.nulls(3), pa.nulls(3, pa.string())):
        for headers in (None, pa.nulls(3), pa.nulls(3, HEADERS[0]), pa.array([[]] * 3, HEADERS[0])):
            assert encode_arrow(values, keys=keys, headers=headers, timestamps_ms=NOW_MS) == plain
    nothing = encode([None] * 2, timestamps_ms=1)
    assert encode_arrow(pa.nulls(2), timestamps_ms=1) == nothing


@pytest.mark.parametrize("codec", ALL_CODECS)
def test_codecs_and_levels(codec: Codec) -> None:
    values = [b"value %d" % (row % 7) for row in range(3_000)]
    level = None if codec is Codec.NONE else 2
    body = encode_arrow(pa.array(values), timestamps_ms=NOW_MS, codec=codec, level=level)
    assert body == encode(values, timestamps_ms=NOW_MS, codec=codec, level=level)
    assert body.codec is codec
    assert decode_lists(seal(body) + body.payload).values == values
    with pytest.raises(InvalidRequestError, match="level"):
        encode_arrow(pa.array(values), timestamps_ms=NOW_MS, codec=codec, level=999)


@pytest.mark.parametrize(
    "timestamps",
    [
        pa.array([5, 9, 7]),
        pa.array([5, 9, 7], pa.int32()),
        pa.array([5, 9, 7], pa.uint64()),
        pa.chunked_array([pa.array([5]), pa.array([9, 7])]),
        np.array([5, 9, 7]),
        np.array([5, 0, 9, 0, 7])[::2],
        pa.array([1, 5, 9, 7])[1:],
    ],
    ids=lambda stamps: str(getattr(stamps, "type", "numpy")),
)
def test_timestamps_of_every_kind(timestamps: Any) -> None:
    expected = encode([b""] * 3, timestamps_ms=[5, 9, 7])
    assert encode_arrow(pa.array([b""] * 3), timestamps_ms=timestamps) == expected
    assert (expected.first_timestamp_ms, expected.max_timestamp_ms) == (5, 9)


@pytest.mark.parametrize(
    "timestamps",
    [
        -1,
        1 << 64,
        pa.array([1]),
        pa.array([1, 2, 3]),
        pa.array([1, -1]),
        pa.array([1, None]),
        pa.array([1.0, 2.0]),
        pa.array(["1", "2"]),
        np.array([[1, 2]]),
        np.array([1.5, 2.5]),
    ],
)
def test_timestamps_are_whole_milliseconds_for_each_record(timestamps: Any) -> None:
    with pytest.raises(InvalidRequestError, match="timestamps are 2 whole numbers of milliseconds"):
        encode_arrow(pa.array([b"", b""]), timestamps_ms=timestamps)


@pytest.mark.parametrize(
    "timestamps",
    [
        limits.TIMESTAMP_MS_MAX + 1,
        pa.array([0, limits.TIMESTAMP_MS_MAX + 1]),
        pa.array([0, (1 << 64) - 1], pa.uint64()),
    ],
)
def test_timestamps_beyond_9999_are_refused(timestamps: Any) -> None:
    with pytest.raises(InvalidRequestError, match="milliseconds, not microseconds"):
        encode_arrow(pa.array([b"", b""]), timestamps_ms=timestamps)


def test_columns_of_different_lengths_are_refused() -> None:
    two = pa.array([b"", b""])
    with pytest.raises(InvalidRequestError, match="1 keys for 2 values"):
        encode_arrow(two, keys=two[:1], timestamps_ms=1)
    with pytest.raises(InvalidRequestError, match="3 headers for 2 values"):
        encode_arrow(two, headers=pa.nulls(3), timestamps_ms=1)


@pytest.mark.parametrize("count", [0, limits.RECORDS_PER_BATCH_MAX + 1])
def test_a_count_that_no_batch_has_is_refused(count: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"{count} records; a batch has 1 to 1048576"):
        encode_arrow(pa.nulls(count, pa.binary()), timestamps_ms=1)


@pytest.mark.parametrize(
    "wrong", [pa.array([1]), pa.array([[b"a"]]), pa.array([b"a"]).dictionary_encode(), [b"a"]]
)
def test_what_is_not_bytes_is_a_type_error(wrong: Any) -> None:
    with pytest.raises(TypeError, match="values of "):
        encode_arrow(wrong, timestamps_ms=1)
    with pytest.raises(TypeError, match="keys of "):
        encode_arrow(pa.array([b"v"]), keys=wrong, timestamps_ms=1)


@pytest.mark.parametrize(
    "headers",
    [
        pa.array([b"a"]),
        pa.array([["a"]]),
        pa.array([[{"name": "a", "value": b"b"}]]),
        pa.array([[{"key": "a"}]]),
        pa.array([[{"key": b"a", "value": b"b"}]]),
        pa.array([[{"key": None, "value": b"b"}]], HEADERS[0]),
        pa.array([[None]], HEADERS[0]),
    ],
    ids=lambda array: str(array.type),
)
def test_headers_that_are_no_pairs_are_refused(headers: pa.Array) -> None:
    with pytest.raises(InvalidRequestError, match="headers are pairs of a name"):
        encode_arrow(pa.array([b""]), headers=headers, timestamps_ms=1)


def test_header_names_that_are_no_text_are_refused() -> None:
    names = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
    )
    pairs = pa.StructArray.from_arrays([names, pa.array([b"v"])], ["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pairs)
    with pytest.raises(InvalidRequestError, match="headers are pairs of a name"):
        encode_arrow(pa.array([b""]), headers=headers, timestamps_ms=1)


def test_a_header_value_that_is_not_bytes_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="header values of Arrow's type int64"):
        encode_arrow(pa.array([b""]), headers=pa.array([[{"key": "a", "value": 1}]]),
                     timestamps_ms=1)  # fmt: skip


def test_too_many_headers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEADERS_PER_BATCH_MAX", 3)
    row = [("a", None), ("b", None)]
    values = pa.array([b"", b""])
    few = headers_array([row, None], HEADERS[0])
    assert encode_arrow(values, headers=few, timestamps_ms=NOW_MS).record_count == 2
    with pytest.raises(InvalidRequestError, match="4 headers; a batch has at most 3"):
        encode_arrow(values, headers=headers_array([row, row], HEADERS[0]), timestamps_ms=NOW_MS)


def test_what_no_batch_can_hold_is_refused() -> None:
    chunk = bytes(limits.MIB)
    count = limits.BATCH_UNCOMPRESSED_BYTES_MAX // limits.MIB
    values = pa.array([chunk] * count)
    with pytest.raises(RecordTooLargeError, match="64 records take 67109"):
        encode_arrow(values, timestamps_ms=NOW_MS, codec=Codec.ZSTD)
    assert encode_arrow(values[1:], timestamps_ms=NOW_MS).record_count == 63
    large = headers_array([[("a", chunk)] * (count + 1)], HEADERS[0])
    with pytest.raises(RecordTooLargeError, match="headers of 68"):
        encode_arrow(values[:1], headers=large, timestamps_ms=NOW_MS)


def test_the_largest_batch_is_within_the_limit_on_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    size = encode([bytes(1_000)], timestamps_ms=NOW_MS).size_bytes
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", size)
    assert encode_arrow(pa.array([bytes(1_000)]), timestamps_ms=NOW_MS).size_bytes == size
    with pytest.raises(RecordTooLargeError, match="that a batch may have"):
        encode_arrow(pa.array([bytes(1_001)]), timestamps_ms=NOW_MS)


# -- arrow keys ------------------------------------------------------------------------------------
#
# Partitions of Arrow's keys: those of the same keys one by one.


TYPES = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view()]


def expected(keys: list[bytes | None], count: int) -> list[int]:
    return [-1 if key is None else partition_of_key(key, count) for key in keys]


def partitions(keys: list[bytes | None], count: int) -> list[int]:
    found = partitions_of_arrow(pa.array(keys, pa.binary()), count)
    assert found.dtype == np.int64
    return [int(partition) for partition in found]


def test_keys_of_one_length() -> None:
    for size in [*range(65), 255, 256, 257, 1_000]:
        chance = random.Random(size)
        keys: list[bytes | None] = [chance.randbytes(size) for _ in range(20)]
        for count in (1, 2, 7, 10_000):
            assert partitions(keys, count) == expected(keys, count)


@given(
    st.lists(st.none() | st.binary(max_size=64) | st.binary(min_size=250, max_size=300)),
    st.integers(1, 10_000),
    st.integers(0, 5),
)
def test_keys_of_all_lengths(keys: list[bytes | None], count: int, skipped: int) -> None:
    assert partitions(keys, count) == expected(keys, count)
    part = pa.array(keys, pa.binary())[skipped:]
    assert partitions_of_arrow(part, count).tolist() == expected(keys[skipped:], count)


def test_more_keys_than_are_hashed_at_a_time() -> None:
    chance = random.Random(5)
    rows = 2 * arrow._ROWS + 3
    keys: list[bytes | None] = [chance.randbytes(chance.randrange(20)) for _ in range(rows)]
    keys[0] = keys[arrow._ROWS] = None
    assert partitions(keys, 50) == expected(keys, 50)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_keys_of_every_type(kind: pa.DataType) -> None:
    keys: list[bytes | None] = [b"a", None, b"\xc3\xa9", b"", b"four", b"fives", b"a" * 300]
    assert partitions_of_arrow(pa.array(keys, kind), 9).tolist() == expected(keys, 9)
    chunked = pa.chunked_array([pa.array(keys[:2], kind), pa.array(keys[2:], kind)])
    assert partitions_of_arrow(chunked, 9).tolist() == expected(keys, 9)


def test_no_keys() -> None:
    for none in (pa.nulls(3), pa.nulls(3, pa.binary())):
        assert partitions_of_arrow(none, 9).tolist() == [-1, -1, -1]
    for empty in (pa.nulls(0), pa.array([], pa.binary()), pa.chunked_array([], pa.binary())):
        assert partitions_of_arrow(empty, 9).tolist() == []


@pytest.mark.parametrize("count", [0, -1, 10_001])
def test_a_count_that_no_topic_has(count: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"{count} partitions: a topic has 1 to 10000"):
        partitions_of_arrow(pa.array([b"a"]), count)


@pytest.mark.parametrize("keys", [pa.array([1, 2]), pa.array([[b"a"]]), [b"a"]])
def test_keys_that_are_not_bytes(keys: Any) -> None:
    with pytest.raises(TypeError, match="keys of "):
        partitions_of_arrow(keys, 2)
