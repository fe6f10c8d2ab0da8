"""The frame as drawn, and what strangers on the port are told."""

from __future__ import annotations

import http.client
import io
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import FrameError, InvalidRequestError, ThrottledError
from raftlog.protocol import schema
from raftlog.protocol.connection import (
    FAREWELL_CORRELATION_ID,
    FIXED_BYTES,
    FRAME,
    MAGIC,
    STATUS_FAILURE,
    Frame,
    FrameReader,
    encode_failure,
    encode_request,
    encode_response,
    farewell,
    flaw,
)
from raftlog.protocol.records import MetadataRequest, TopicResult, TopicsResponse
from raftlog.protocol.schema import Failure
from raftlog.types import Buffer
from tests.protocol.link import deliver

BYTES_MAX = 1_000_000
MESSAGE = MetadataRequest(topics=["a"])
HEADER = schema.encode(MESSAGE)


def start(
    *,
    length: int = 100,
    magic: int = MAGIC,
    flags: int = 0,
    header_length: int = 10,
) -> bytes:
    return FRAME.pack(length, magic, 1, 0, flags, 7, header_length)


# -- encoding --------------------------------------------------------------------------------------


def test_a_frame_is_laid_out_as_drawn() -> None:
    data = b"".join(
        encode_request(
            0x0203, version=0x0405, correlation_id=0x06070809, message=MESSAGE, attachment=[b"xyz"]
        )
    )
    assert data[0:4] == (len(data) - 4).to_bytes(4, "little")
    assert data[4:6] == b"RL"
    assert data[6:8] == bytes([3, 2])
    assert data[8:10] == bytes([5, 4])
    assert data[10:12] == bytes(2)
    assert data[12:16] == bytes([9, 8, 7, 6])
    assert data[16:20] == len(HEADER).to_bytes(4, "little")
    assert data[20:] == HEADER + b"xyz"


def test_attachments_are_handed_on_without_a_copy() -> None:
    parts: list[Buffer] = [b"one", bytearray(b"two"), memoryview(b"three")]
    buffers = encode_response(version=0, correlation_id=1, message=MESSAGE, attachment=parts)
    assert all(given is taken for given, taken in zip(parts, buffers[1:], strict=True))


def test_a_view_of_wider_items_counts_by_its_bytes() -> None:
    wide = memoryview(bytes(16)).cast("I")
    buffers = encode_response(version=0, correlation_id=1, message=MESSAGE, attachment=[wide])
    (frame,) = deliver(buffers, FrameReader())
    assert frame.attachment == bytes(16)


@pytest.mark.parametrize(
    ("message", "attachment"),
    [
        pytest.param(MESSAGE, [bytes(limits.MIB)] * 100, id="frame"),
        pytest.param(
            TopicsResponse([TopicResult("x" * limits.FRAME_HEADER_BYTES_MAX)]), [], id="header"
        ),
    ],
)
def test_what_no_reader_would_take_is_not_sent(message: Any, attachment: list[bytes]) -> None:
    with pytest.raises(InvalidRequestError, match=r"FRAME_HEADER_BYTES_MAX .* fewer topics"):
        encode_response(version=0, correlation_id=1, message=message, attachment=attachment)


def test_a_failure_carries_its_code_and_sentence() -> None:
    buffers = encode_failure(version=3, correlation_id=9, error=ThrottledError("wait a little"))
    (frame,) = deliver(buffers, FrameReader())
    assert (frame.api_or_status, frame.version, frame.correlation_id) == (STATUS_FAILURE, 3, 9)
    assert schema.decode(frame.header, Failure) == Failure(ThrottledError.code, "wait a little")


def test_a_kept_frame_does_not_change_with_its_scratch() -> None:
    scratch = bytearray(b"headattached")
    view = memoryview(scratch)
    frame = Frame(1, 0, 7, view[:4], view[4:])
    kept = frame.keep()
    scratch[:] = bytes(len(scratch))
    assert (bytes(kept.header), bytes(kept.attachment)) == (b"head", b"attached")
    assert kept.owns_memory
    assert kept.keep() is kept


# -- flaws -----------------------------------------------------------------------------------------


def test_what_is_wrong_is_said() -> None:
    for data, words in [
        (b"GET / HTTP/1.1\r\n", "not HTTP"),
        (b"GET ", "not HTTP"),
        (b"POST /topics", "not HTTP"),
        (b"HEAD / ", "not HTTP"),
        (b"PUT /a ", "not HTTP"),
        (b"OPTIONS *", "not HTTP"),
        (b"DELETE /a", "not HTTP"),
        (b"PATCH /a ", "not HTTP"),
        (b"CONNECT a:1", "not HTTP"),
        (b"TRACE / ", "not HTTP"),
        (b"PRI * HTTP/2.0\r\n", "not HTTP"),
        (b"GET RLx ", "not HTTP"),
        (b"HTTP/1.1 400 Bad Request", "an HTTP server"),
        (bytes.fromhex("160301020001"), "this broker does not use TLS"),
        (bytes.fromhex("150301000202"), "a TLS server"),
        (b"SSH-2.0-OpenSSH_9.2", "not a raftlog frame: they start with 53 53 48"),
        (bytes(5), "not a raftlog frame"),
        (start(magic=MAGIC + 1), "not a raftlog frame"),
        (start(length=BYTES_MAX + 1)[:6], "1000001 bytes exceeds the limit of 1000000"),
        (start(length=2 * limits.GIB)[:6], "2147483648 bytes exceeds .*FRAME_BYTES_MAX"),
        (start(length=15), "15 bytes is shorter than the minimum of 16"),
        (start(flags=0x8000), "reserved flags 0x8000"),
        (start(header_length=85), "header of 85 bytes does not fit into the 84"),
        (start(length=16, header_length=1), "header of 1 bytes does not fit into the 0"),
        (start(header_length=limits.FRAME_HEADER_BYTES_MAX + 1), "FRAME_HEADER_BYTES_MAX"),
    ]:
        problem = flaw(data, bytes_max=BYTES_MAX)
        assert problem is not None
        with pytest.raises(FrameError, match=words):
            raise FrameError(problem)


@pytest.mark.parametrize(
    "data",
    [
        start(),
        start(length=BYTES_MAX),
        start(length=16, header_length=0),
        start(header_length=84),
        start() + b"GET ",
    ],
)
def test_no_beginning_of_a_good_frame_is_refused(data: bytes) -> None:
    assert [flaw(data[:size], bytes_max=BYTES_MAX) for size in range(len(data))] == [None] * len(
        data
    )


@given(st.binary(max_size=FIXED_BYTES) | st.builds(start, length=st.integers(0, 200)))
def test_what_is_wrong_stays_wrong_as_more_comes(data: bytes) -> None:
    wrong = [flaw(data[:size], bytes_max=BYTES_MAX) is not None for size in range(len(data) + 1)]
    assert wrong == sorted(wrong)


# -- farewell --------------------------------------------------------------------------------------


class _Socket:
    """As much of a socket as ``http.client`` reads from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def test_http_is_answered_in_http() -> None:
    answer = farewell(FrameError("no frame"), b"GET /metrics HTTP/1.1\r\n")
    response = http.client.HTTPResponse(cast("Any", _Socket(answer)))
    response.begin()
    assert (response.status, response.getheader("Connection")) == (400, "close")
    assert response.getheader("Content-Type") == "text/plain; charset=utf-8"
    body = response.read()
    assert b"uses the raftlog protocol, not HTTP" in body
    assert answer.endswith(b"\r\n\r\n" + body), "nothing follows the body"


@pytest.mark.parametrize("first_bytes", [b"", b"SSH-2.0", b"\x16\x03\x01", b"HTTP/1.1"])
def test_others_are_answered_with_a_failure_of_the_connection(first_bytes: bytes) -> None:
    (frame,) = deliver(farewell(FrameError("no frame"), first_bytes), FrameReader())
    assert frame.correlation_id == FAREWELL_CORRELATION_ID
    assert frame.api_or_status == STATUS_FAILURE
    assert schema.decode(frame.header, Failure) == Failure(FrameError.code, "no frame")
