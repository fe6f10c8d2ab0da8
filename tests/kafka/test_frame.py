"""Frames: the choice between two protocols, client ids, and the pieces of a response."""

from __future__ import annotations

import pytest

from raftlog.kafka import api as apis
from raftlog.kafka.codec import READ_ERRORS, is_kafka, read_client_id, response
from raftlog.protocol.connection import encode_request
from raftlog.protocol.security import ApiVersionsRequest
from raftlog.testing.kafka_wire import request


def test_a_kafka_request_is_known_by_its_first_bytes() -> None:
    for api in apis.APIS.values():
        assert is_kafka(request(api, api.version_max)[:6], 1 << 20)
    for unknown in (b"\0\x63", b"\1\x2c", b"\3\xff", b"\xff\xff"):
        assert is_kafka(b"\0\0\0\x20" + unknown, 1 << 20)
        assert is_kafka(b"\0\0\0\x20" + unknown + bytes(9), 1 << 20), "more has arrived"
    for other in (b"RL", b"\4\0", bytes(range(4, 6))):
        assert not is_kafka(b"\0\0\0\x20" + other, 1 << 20)


@pytest.mark.parametrize(
    "first",
    [
        b"".join(encode_request(1, version=0, correlation_id=1, message=ApiVersionsRequest()))[:6],
        b"GET / ",
        b"\x16\x03\x01\x02\x00\x01",  # TLS
        bytes(6),  # a length of 0
        b"\x00\x00\x00\x07\x00\x00",
        b"\x00\x20\x00\x00\x00\x00",  # over the limit
        b"\x00\x00\x00\x20RL",
    ],
)
def test_anything_else_is_not(first: bytes) -> None:
    assert not is_kafka(first, 1 << 20)


def test_the_client_id_and_the_tags_behind_it() -> None:
    head = bytes(8)
    assert read_client_id(memoryview(head + b"\0\2abX"), flexible=False) == ("ab", 12)
    assert read_client_id(memoryview(head + b"\xff\xffX"), flexible=False) == ("", 10)
    assert read_client_id(memoryview(head + b"\0\1a\1\5\2xyZ"), flexible=True) == ("a", 16)


@pytest.mark.parametrize(
    "tail", [b"\0\x09ab", b"\0\1a\1\5\x09xy", b"\0\1a\xff\xff\xff\x7f", b"\0\1a", b"\0\1\xff\0"]
)
def test_a_bad_header_is_refused(tail: bytes) -> None:
    with pytest.raises(READ_ERRORS):
        read_client_id(memoryview(bytes(8) + tail), flexible=True)


def test_a_response_joins_small_pieces_and_copies_no_large_ones() -> None:
    large = bytes(10_000)
    buffers = response(9, [b"a", b"b", large, b"c"], flexible=True)
    assert buffers[1] is large
    assert b"".join(buffers) == (
        (4 + 1 + 10_003).to_bytes(4, "big") + (9).to_bytes(4, "big") + b"\0ab" + large + b"c"
    )
