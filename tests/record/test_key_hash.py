"""Golden values of Kafka's own tests; ``tests/client/test_settings.py`` has the hash by hand."""

from __future__ import annotations

import msgpack
import pytest

from raftlog import limits
from raftlog.errors import CorruptBatchError
from raftlog.record import decode_lists, encode, validate
from raftlog.record.key_hash import POSITIVE, partition_of_key
from tests.record.batches import (
    BAR,
    NOW_MS,
    batch_of,
    column_of,
    forged,
    headers_of,
    numpy_from,
    payload_of,
    resealed,
    u32,
    u64,
)


@pytest.mark.parametrize(
    ("key", "digest"), [(b"21", -973932308), (b"foobar", -790332482), (b"abc", 479470107)]
)
def test_keys_land_where_kafka_puts_them(key: bytes, digest: int) -> None:
    for count in (1, 7, 10_000):
        assert partition_of_key(key, count) == (digest & POSITIVE) % count


# -- payload ---------------------------------------------------------------------------------------
#
# The columns: what is written is as drawn, and what does not add up is refused.


VALUE = (u32(1), b"v", None)
TWO = {"record_count": 2, "last_offset_delta": 1}
THREE = {"record_count": 3, "last_offset_delta": 2}


def refused(payload: bytes, match: str, **fields: int) -> None:
    data = forged(payload, **fields)
    for integers in (1, 1 << 30):
        with numpy_from(integers), pytest.raises(CorruptBatchError, match=match):
            validate(data)


@pytest.mark.parametrize("count", [1, 127, 128, 255, 256, 300, 70_000])
def test_the_payload_is_msgpacks_shortest_form_of_the_columns(count: int) -> None:
    values = [b"v" * (row % 3) for row in range(count)]
    keys = [None if row % 5 == 4 else b"k%d" % row for row in range(count)]
    headers = [(("name", b"value"), ("n\xe4me", None)) if row % 2 else () for row in range(count)]
    stamps = [NOW_MS + row for row in range(count)]
    body = encode(values, keys=keys, headers=headers, timestamps_ms=stamps)
    assert body.payload == payload_of(
        count,
        timestamps=u64(*stamps),
        keys=column_of(keys),
        values=column_of(values),
        headers=headers_of(headers),
    )


def test_blobs_of_every_msgpack_size() -> None:
    for size in (0, 255, 256, 65_535, 65_536, 1 << 20):
        value = bytes(size)
        assert encode([value], timestamps_ms=NOW_MS).payload == payload_of(
            1, values=(u32(size), value, None)
        )


def test_what_is_not_the_array_drawn_is_refused() -> None:
    for payload in [
        b"",
        b"\xc1",
        b"\x9a",
        bytes(100),
        b"\x91" * 5_000,
        b"\xdd\xff\xff\xff\xff" + bytes(50),
        b"\x9a\x01\xc6\xff\xff\xff\xff" + bytes(50),
        payload_of(1) + b"\0",
        payload_of(1)[:-1],
        msgpack.packb([1, u64(NOW_MS), None]),
        msgpack.packb([1, *[None] * 9]),
        msgpack.packb([1, u64(NOW_MS), None, None, b"", None, *VALUE, None, None]),
        msgpack.packb({"n": 1}),
        payload_of(1, timestamps="12345678"),
        payload_of(1, values=(u32(1), "v", None)),
        payload_of(1, values=([1], b"v", None)),
        payload_of(1, values=(u32(0), None, None)),
        payload_of(1, headers=[]),
        payload_of(1, headers=[b""] * 7),
        payload_of(1, headers={}),
    ]:
        data = forged(payload + b"" if len(payload) > 8 else payload + b"\xc0" * 9)
        with pytest.raises(CorruptBatchError, match="not an array of columns"):
            validate(data)


def test_the_smallest_proper_payload_is_accepted() -> None:
    data = forged(payload_of(1))
    assert decode_lists(data) == ([0], [NOW_MS], [None], [None], [()]) or decode_lists(
        data
    ).offsets == range(1)
    assert validate(forged(payload_of(1, values=VALUE))).record_count == 1


def test_a_count_that_is_not_the_headers_is_refused() -> None:
    refused(payload_of(2), "2 records where the header says 1")
    refused(payload_of(1), "1 record where the header says 2", **TWO)
    refused(msgpack.packb([-1, *msgpack.unpackb(payload_of(1))[1:]]), "-1 records")


@pytest.mark.parametrize("timestamps", [b"", u64(NOW_MS)[:-1], u64(NOW_MS, NOW_MS)])
def test_timestamps_of_another_number_are_refused(timestamps: bytes) -> None:
    refused(payload_of(1, timestamps=timestamps), "bytes of timestamps for 1 record")


@pytest.mark.parametrize(
    ("timestamps", "first", "highest"),
    [
        ((NOW_MS, NOW_MS + 1, NOW_MS), NOW_MS, NOW_MS),  # the highest is higher
        ((NOW_MS, NOW_MS, NOW_MS), NOW_MS, NOW_MS + 1),  # the highest is lower
        ((NOW_MS - 1, NOW_MS, NOW_MS), NOW_MS, NOW_MS),  # the first is another
        ((NOW_MS, (1 << 64) - 1, NOW_MS), NOW_MS, NOW_MS),  # -1, were it signed
        ((NOW_MS, 1 << 63, NOW_MS), NOW_MS, NOW_MS),
    ],
)
def test_timestamps_that_belie_the_header_are_refused(
    timestamps: tuple[int, ...], first: int, highest: int
) -> None:
    refused(
        payload_of(3, timestamps=u64(*timestamps)),
        "where the header says",
        first_timestamp=first,
        max_timestamp=highest,
        **THREE,
    )


@pytest.mark.parametrize(
    ("offsets", "last"),
    [
        ((0, 1), 2),  # one too few
        ((0, 1, 2, 3), 3),  # one too many
        ((0, 1, 6), 5),  # the last is beyond the header's
        ((0, 0, 5), 5),
        ((3, 2, 5), 5),
        ((6, 7, 5), 5),
    ],
)
def test_offsets_that_do_not_ascend_within_the_range_are_refused(
    offsets: tuple[int, ...], last: int
) -> None:
    refused(payload_of(3, offsets=u32(*offsets)), "offsets", **THREE | {"last_offset_delta": last})


def test_holes_without_offsets_are_refused() -> None:
    refused(payload_of(3), "no offsets, but 9 in range", **THREE | {"last_offset_delta": 8})


def test_a_column_that_does_not_add_up_is_refused() -> None:
    for column, fault in [
        ((None, b"x", None), "without lengths"),
        ((None, b"", u32(0)), "without lengths"),
        ((u32(0), b"", None), "4 bytes of"),
        ((u32(1, 1, 1, 1), b"abcd", None), "16 bytes of"),
        ((u32(1, 1, 1)[:-1], b"abc", None), "11 bytes of"),
        ((u32(1, 1, 1), b"ab", None), "of 3 bytes where there are 2"),
        ((u32(1, 1, 1), b"abcd", None), "of 3 bytes where there are 4"),
        ((u32(2, (1 << 32) - 1, 2), b"abc", None), "where there are 3"),  # 3, modulo 2^32
        ((u32(1, 0, 1), b"ab", b""), "0 bytes of rows"),
        ((u32(1, 0, 1), b"ab", u32(1)[:-1]), "3 bytes of rows"),
        ((u32(1, 0, 1), b"ab", u32(3)), "do not ascend within 3"),
        ((u32(0, 0, 1), b"a", u32(1, 0)), "do not ascend"),
        ((u32(0, 0, 1), b"a", u32(1, 1)), "do not ascend"),
        ((u32(1, 0, 0), b"a", u32(1 << 31, 2)), "do not ascend"),
        ((u32(1, 1, 1), b"abc", u32(1)), "with a length"),
    ]:
        for what in ["keys", "values"]:
            if what == "keys":
                refused(payload_of(3, keys=column), fault, **THREE)
            else:
                refused(payload_of(3, values=column), fault, **THREE)


NAMES = (u32(1, 1), b"ab")
NO_VALUES = (None, b"", None)


@pytest.mark.parametrize(
    ("headers", "fault"),
    [
        ([u32(2), *NAMES, *NO_VALUES], "4 bytes of header counts"),
        ([u32(1, 0, 0), *NAMES, *NO_VALUES], "8 bytes of header name lengths for 1"),
        ([u32(1, 1, 1), *NAMES, *NO_VALUES], "8 bytes of header name lengths for 3"),
        ([u32(1 << 30, 0, 0), *NAMES, *NO_VALUES], "a batch has at most"),
        ([u32(1, 1, 0), u32(1, 1), b"a", *NO_VALUES], "header names of 2 bytes"),
        ([u32(1, 1, 0), *NAMES, u32(1), b"a", None], "header value lengths"),
        ([u32(1, 1, 0), *NAMES, u32(1, 0), b"a", u32(0)], "null header value with a length"),
        (
            [u32(1, 1, 0), u32(1, 1), b"a\xff", *NO_VALUES],
            "not UTF-8: invalid start byte at byte 1",
        ),
        ([u32(1, 1, 0), u32(1, 1), b"\xc3\xa4", *NO_VALUES], "inside a character"),
        ([u32(1, 1, 0), u32(2, 2), f"{BAR}a".encode(), *NO_VALUES], "inside a character"),
        ([u32(1, 1, 0), u32(0, 3), b"\xed\xa0\x80", *NO_VALUES], "not UTF-8"),  # a surrogate
    ],
)
def test_headers_that_do_not_add_up_are_refused(headers: list[object], fault: str) -> None:
    refused(payload_of(3, headers=headers), fault, **THREE)


def test_too_many_headers_are_refused_by_the_named_limit() -> None:
    counts = u32(limits.HEADERS_PER_BATCH_MAX, 1, 0)
    refused(payload_of(3, headers=[counts, b"", b"", None, b"", None]), "4194305 headers", **THREE)


def test_lies_in_a_compressed_payload_are_found_too() -> None:
    data = batch_of([b"v" * 500] * 3, codec=4)
    assert validate(data).codec == 4
    for fields, fault in (
        (TWO, "3 records where the header says 2"),
        ({"max_timestamp": NOW_MS + 1}, "timestamp"),
        ({"last_offset_delta": 5}, "no offsets"),
        ({"uncompressed_length": len(data)}, "zstd frame"),
        ({"attributes": 3}, "lz4"),
        ({"attributes": 1}, "gzip"),
    ):
        with pytest.raises(CorruptBatchError, match=fault):
            validate(resealed(data, **fields))
