"""Each connection state by itself: what it gives, refuses, and ends with."""

from __future__ import annotations

import dataclasses
import http.client
import io
import tracemalloc
from itertools import cycle
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import (
    BrokerUnavailableError,
    FrameError,
    InvalidRequestError,
    NotLeaderError,
    RaftlogError,
    ThrottledError,
    UnsupportedApiError,
    UnsupportedVersionError,
)
from raftlog.protocol import api as apis
from raftlog.protocol import connection, schema
from raftlog.protocol.api import (
    API_VERSIONS,
    DELETE_TOPICS,
    FETCH,
    INIT_PRODUCER_ID,
    METADATA,
    PARTITION_STATES,
    PEER_PING,
    PRODUCE,
    RAFT,
    Api,
)
from raftlog.protocol.connection import (
    FAREWELL_CORRELATION_ID,
    FIXED_BYTES,
    FRAME,
    LENGTH_BYTES,
    LENGTH_MIN,
    MAGIC,
    STATUS_FAILURE,
    Broken,
    ClientConnectionState,
    Frame,
    FrameReader,
    Refusal,
    Request,
    Response,
    ServerConnectionState,
    State,
    encode_failure,
    encode_request,
    encode_response,
    farewell,
    flaw,
)
from raftlog.protocol.peer import PeerPingRequest, PeerPingResponse, RaftRequest
from raftlog.protocol.records import (
    FetchedPartition,
    FetchResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    TopicResult,
    TopicsResponse,
)
from raftlog.protocol.schema import Failure, Message, NoResponse
from raftlog.protocol.security import ApiVersionRange, ApiVersionsRequest
from raftlog.types import Buffer
from tests.golden import make_protocol
from tests.protocol.link import SCRIBBLE, cuts, deliver, pieces
from tests.protocol.pair import (
    BROKERS_ONLY,
    NO_BROKERS,
    UNACKNOWLEDGED,
    ConnectionPair,
    exchanges,
    outstanding,
    pipelined,
    raw,
    response_frame,
)

# -- the broker's side -----------------------------------------------------------------------------


BAD_MESSAGES = [
    pytest.param(raw(999, b"\x80"), UnsupportedApiError, "API 999", id="api"),
    pytest.param(raw(1, b"\x80", version=9), UnsupportedVersionError, "version 9", id="version"),
    pytest.param(raw(1, b""), InvalidRequestError, "MetadataRequest", id="empty"),
    pytest.param(raw(1, b"\xc1"), InvalidRequestError, "MetadataRequest", id="no msgpack"),
    pytest.param(raw(1, b"\x80\x80"), InvalidRequestError, "MetadataRequest", id="two messages"),
    pytest.param(raw(2, b"\x80"), InvalidRequestError, "acks", id="field missing"),
    pytest.param(raw(1, b"\x81\xa6topics\x01"), InvalidRequestError, "topics", id="field's type"),
]


@pytest.mark.parametrize(("data", "error_type", "words"), BAD_MESSAGES)
def test_a_bad_message_is_refused_and_the_connection_goes_on(
    data: bytes, error_type: type[RaftlogError], words: str
) -> None:
    pair = ConnectionPair()
    (refusal, request) = pair.to_server([data, raw(1, b"\x80", correlation_id=6)])
    assert isinstance(refusal, Refusal)
    assert isinstance(refusal.error, error_type)
    assert words in str(refusal.error)
    assert isinstance(request, Request)
    assert (pair.server.state, pair.server.in_flight) == (State.OPEN, 1)


@pytest.mark.parametrize(("data", "error_type", "words"), BAD_MESSAGES)
def test_a_refusal_reaches_the_client_that_asked(
    data: bytes, error_type: type[RaftlogError], words: str
) -> None:
    pair = ConnectionPair()
    for _ in range(6):
        correlation_id, _ = pair.client.send(METADATA, BROKERS_ONLY)
    (refusal,) = pair.to_server([data])
    (response,) = pair.to_client(refusal.buffers)
    assert response.correlation_id == correlation_id == 5
    assert isinstance(response.message, error_type)
    assert words in str(response.message)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "does not use TLS"),
        (FRAME.pack(1 << 31, MAGIC, 1, 0, 0, 0, 0), "exceeds the limit"),
        (raw(1, b"\x80", correlation_id=FAREWELL_CORRELATION_ID), "reserved"),
        (raw(1, b"\x80") + raw(1, b"\x80"), "two requests in flight"),
    ],
)
def test_what_breaks_a_connection_ends_it_with_a_farewell(data: bytes, words: str) -> None:
    server = ServerConnectionState()
    first = raw(1, b"\x80", correlation_id=1)
    request, *_, broken = deliver(first + data + first, server)
    assert isinstance(broken, Broken)
    assert words in str(broken.error)
    assert words.encode() in broken.farewell
    assert (server.state, server.ended, server.bytes_held) == (State.ERROR, True, 0)
    assert deliver(first, server) == [], "what still comes is ignored"
    assert server.reply(request, NO_BROKERS) == [], "and nothing is answered any more"
    assert server.end_of_stream() is None


def test_http_is_said_farewell_in_http() -> None:
    (broken,) = deliver(b"GET / HTTP/1.1\r\n\r\n", ServerConnectionState())
    assert broken.farewell.startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_an_answer_over_the_limits_becomes_a_failure() -> None:
    pair = ConnectionPair()
    request = pair.send(DELETE_TOPICS, make_protocol.request_of(make_protocol.load()["apis"][7]))
    answer = TopicsResponse([TopicResult("x" * limits.FRAME_HEADER_BYTES_MAX)])
    (response,) = pair.to_client(pair.server.reply(request, answer))
    assert isinstance(response.message, InvalidRequestError)
    assert "Request fewer topics" in str(response.message)
    assert pair.server.in_flight == 0


def test_answering_wrongly_is_our_own_mistake() -> None:
    pair = ConnectionPair()
    request = pair.send(METADATA, BROKERS_ONLY)
    with pytest.raises(AssertionError, match="answers no"):
        pair.server.reply(request, InitProducerIdResponse(producer_id=1, producer_epoch=0))
    with pytest.raises(AssertionError):
        pair.server.finish(request)
    pair.server.reply(request, NO_BROKERS)
    with pytest.raises(AssertionError, match="response sent twice"):
        pair.server.reply(request, NO_BROKERS)
    with pytest.raises(AssertionError, match="finish"):
        pair.server.fail(pair.send(PRODUCE, UNACKNOWLEDGED, [b"abc"]), FrameError("no"))


def test_the_stream_may_end() -> None:
    server = ServerConnectionState()
    (request,) = deliver(raw(1, b"\x80"), server)
    assert server.end_of_stream() is None
    assert (server.state, server.ended) == (State.CLOSED, True)
    assert server.reply(request, NO_BROKERS) == []
    assert deliver(raw(1, b"\x80"), server) == []
    assert server.end_of_stream() is None, "asking again changes nothing"


def test_a_stream_that_ends_in_a_frame_is_an_error() -> None:
    server = ServerConnectionState()
    deliver(raw(1, b"\x80")[:9], server)
    assert server.in_frame
    assert "after 9 bytes of a frame" in str(server.end_of_stream())
    assert server.end_of_stream() is None, "said once"


# -- the client's side -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (raw(0, schema.encode(NO_BROKERS), correlation_id=9), "unexpected response to request 9"),
        (raw(0, b"\x80", correlation_id=FAREWELL_CORRELATION_ID), "unexpected response"),
        (raw(2, schema.encode(NO_BROKERS), correlation_id=0), "unknown status 2"),
        (
            raw(0, b"\x80", correlation_id=0),
            "cannot decode the response of the broker: MetadataResponse",
        ),
        (raw(1, b"\x80", correlation_id=0), "cannot decode the response of the broker: Failure"),
        (
            raw(0, schema.encode(NO_BROKERS), correlation_id=0, version=1),
            "response has version 1, but",
        ),
        (b"HTTP/1.1 400 Bad Request\r\n", "an HTTP server is at this address"),
        (bytes.fromhex("15030100020250"), "a TLS server is at this address"),
    ],
)
def test_an_answer_that_cannot_be_breaks_the_connection(data: bytes, words: str) -> None:
    pair = ConnectionPair()
    for _ in range(2):
        pair.client.send(METADATA, BROKERS_ONLY)
    good = response_frame(1, NO_BROKERS)
    (response, broken) = pair.to_client([good, data, good])
    assert isinstance(response, Response)
    assert isinstance(broken, Broken)
    assert isinstance(broken.error, FrameError)
    assert words in str(broken.error)
    assert pair.client.state is State.ERROR
    assert outstanding(pair.client) == {0: METADATA}, "its outcome is unknown"
    assert pair.to_client([good]) == []


def test_a_failure_that_answers_nothing_breaks_the_connection_with_its_own_words() -> None:
    pair = ConnectionPair()
    pair.client.send(PRODUCE, UNACKNOWLEDGED, [b"abc"])
    (broken,) = pair.to_client([response_frame(0, InvalidRequestError("acks is 7"))])
    assert isinstance(broken, Broken)
    assert isinstance(broken.error, InvalidRequestError)
    assert str(broken.error) == "acks is 7"


def test_an_ended_connection_sends_nothing() -> None:
    pair = ConnectionPair()
    assert pair.client.end_of_stream() is None
    with pytest.raises(BrokerUnavailableError, match="Open a new one"):
        pair.client.send(METADATA, BROKERS_ONLY)


def test_a_request_that_does_not_fit_changes_nothing() -> None:
    client = ClientConnectionState()
    with pytest.raises(InvalidRequestError, match="FRAME_BYTES_MAX"):
        client.send(METADATA, BROKERS_ONLY, [bytes(limits.MIB)] * 100)
    assert outstanding(client) == {}
    assert client.send(METADATA, BROKERS_ONLY)[0] == 0


def test_correlation_ids_skip_what_is_taken() -> None:
    client = ClientConnectionState()
    client._next_correlation_id = FAREWELL_CORRELATION_ID - 1
    ids = [client.send(METADATA, BROKERS_ONLY)[0] for _ in range(3)]
    client._next_correlation_id = FAREWELL_CORRELATION_ID - 1
    ids += [client.send(METADATA, BROKERS_ONLY)[0] for _ in range(2)]
    assert ids == [FAREWELL_CORRELATION_ID - 1, 0, 1, 2, 3]


def sent_version(client: ClientConnectionState, api: Api, message: Message) -> int:
    _, buffers = client.send(api, message)
    return int.from_bytes(b"".join(buffers)[8:10], "little")


@pytest.mark.parametrize(
    ("spoken", "version"), [((0, 5), 3), ((0, 2), 2), ((3, 9), 3), ((1, 1), 1)]
)
def test_the_highest_version_that_both_speak_is_sent(
    spoken: tuple[int, int], version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = dataclasses.replace(METADATA, version_min=1, version_max=3)
    monkeypatch.setitem(apis.APIS, METADATA.number, newer)
    client = ClientConnectionState()
    assert sent_version(client, newer, BROKERS_ONLY) == 3, "the client's own, until it knows"
    client.agree([ApiVersionRange(METADATA.number, *spoken), ApiVersionRange(9_999, 0, 0)])
    assert sent_version(client, newer, BROKERS_ONLY) == version


@pytest.mark.parametrize("spoken", [[], [ApiVersionRange(INIT_PRODUCER_ID.number, 1, 2)]])
def test_what_the_broker_does_not_speak_is_not_sent(spoken: list[ApiVersionRange]) -> None:
    client = ClientConnectionState()
    client.agree(spoken)
    with pytest.raises(UnsupportedVersionError, match=r"init_producer_id .* Upgrade the older"):
        client.send(INIT_PRODUCER_ID, InitProducerIdRequest())
    assert sent_version(client, API_VERSIONS, ApiVersionsRequest()) == 0, "which all speak"


# -- state -----------------------------------------------------------------------------------------


def test_the_table_says_where_every_state_goes() -> None:
    assert set(connection._TRANSITIONS) == set(State)


@pytest.mark.parametrize("state", [State.CLOSED, State.ERROR])
def test_an_end_is_final(state: State) -> None:
    assert set(connection._TRANSITIONS[state].values()) == {state}


# -- frame -----------------------------------------------------------------------------------------
#
# The frame as drawn, and what strangers on the port are told.


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


# -- frame reader ----------------------------------------------------------------------------------
#
# Bytes, however they are cut, become the same frames, in bounded memory; or a ``FrameError``.


SMALL = limits.FRAME_SMALL_BYTES_MAX
LARGE = 2 * limits.MIB


def frame_bytes(header: bytes = b"", attachment: bytes = b"", *, kind: int = 1) -> bytes:
    length = LENGTH_MIN + len(header) + len(attachment)
    return FRAME.pack(length, MAGIC, kind, 2, 0, 7, len(header)) + header + attachment


def declared(total: int) -> bytes:
    """The fixed bytes of a frame that will be ``total`` bytes long."""
    return FRAME.pack(total - LENGTH_BYTES, MAGIC, 1, 0, 0, 7, 0)


def new_scratch(size: int = 4096) -> memoryview:
    return memoryview(bytearray(size))


def contents(frames: list[Frame]) -> list[tuple[Any, ...]]:
    return [(f.api_or_status, f.version, f.correlation_id, f.header, f.attachment) for f in frames]


class KeepingReader(FrameReader):
    """Keeps every frame, as an owner does that uses it later."""

    def received(self, count: int, *, frames_max: int | None = None) -> list[Frame]:
        return [
            frame._replace(header=_copied(frame.header), attachment=_copied(frame.attachment))
            for frame in super().received(count, frames_max=frames_max)
        ]


def _copied(view: memoryview) -> memoryview:
    return memoryview(bytes(view))


frames_of_bytes = st.lists(
    st.builds(
        frame_bytes,
        st.binary(max_size=60),
        st.binary(max_size=60) | st.binary(min_size=200, max_size=300),
        kind=st.integers(0, 65_535),
    ),
    max_size=6,
)


# -- frames ----------------------------------------------------------------------------------------


@given(frames_of_bytes, cuts(), st.integers(FIXED_BYTES + 1, 120))
def test_frames_do_not_depend_on_how_they_are_cut(
    parts: list[bytes], sizes: list[int], scratch_size: int
) -> None:
    scratch = new_scratch(scratch_size)
    reader = KeepingReader(scratch=scratch)
    found = deliver(parts, reader, sizes=sizes, scratch=scratch)
    assert contents(found) == [
        (
            int.from_bytes(part[6:8], "little"),
            2,
            7,
            part[FIXED_BYTES : FIXED_BYTES + int.from_bytes(part[16:20], "little")],
            part[FIXED_BYTES + int.from_bytes(part[16:20], "little") :],
        )
        for part in parts
    ]
    assert reader.bytes_held == 0
    assert not reader.in_frame


@given(
    st.data(),
    st.binary(max_size=200) | frames_of_bytes.map(b"".join),
    st.integers(FIXED_BYTES + 1, 120),
)
def test_any_bytes_give_frames_or_a_frame_error(
    data: st.DataObject, stream: bytes, scratch_size: int
) -> None:
    if stream:
        position = data.draw(st.integers(0, len(stream) - 1))
        flipped = stream[position] ^ (1 << data.draw(st.integers(0, 7)))
        stream = stream[:position] + bytes([flipped]) + stream[position + 1 :]
    outcomes = []
    for sizes in ([], data.draw(cuts())):
        reader = KeepingReader(scratch=new_scratch(scratch_size))
        found: list[Frame] = []
        try:
            deliver(stream, reader, sizes=sizes, found=found)
        except FrameError:
            assert reader.error is not None
        outcomes.append((contents(found), reader.error is not None))
    assert outcomes[0] == outcomes[1], "cutting the bytes changed what they mean"


def test_two_readers_share_one_scratch() -> None:
    scratch = new_scratch()
    readers = [KeepingReader(scratch=scratch) for _ in range(3)]
    streams = [frame_bytes(bytes([number]) * 30, b"tail") * 5 for number in range(3)]
    found: list[list[Frame]] = [[], [], []]
    turns = [pieces(stream, [17, 3, 41]) for stream in streams]
    for turn in zip(*turns, strict=True):
        for number, piece in enumerate(turn):
            found[number] += deliver(piece, readers[number])
    for number in range(3):
        assert [frame.header for frame in found[number]] == [bytes([number]) * 30] * 5


def test_a_frame_that_came_whole_is_a_view_of_the_scratch() -> None:
    scratch = new_scratch()
    (frame,) = deliver(frame_bytes(b"head", b"tail"), FrameReader(scratch=scratch))
    assert not frame.owns_memory
    assert frame.attachment.obj is scratch.obj
    scratch[:] = bytes([SCRIBBLE]) * len(scratch)
    assert frame.attachment != b"tail", "which is why it has to be kept"


def test_sizes_at_the_edges() -> None:
    for first in [1, 19, 20, 21, 5000]:
        for total in [SMALL - 1, SMALL, SMALL + 1, LARGE]:
            body = bytes(range(256)) * (total // 256 + 1)
            data = frame_bytes(b"head", body[: total - FIXED_BYTES - 4])
            assert len(data) == total
            reader = KeepingReader()
            found = deliver(data[:first], reader) + deliver(data[first:] + data[:first], reader)
            assert contents(found) == [(1, 2, 7, b"head", data[24:])]
            assert reader.pending_bytes == first


def test_a_large_frame_is_written_to_once() -> None:
    """The kernel writes into the memory that the attachment is a view of."""
    data = frame_bytes(b"head", bytes(limits.MIB))
    reader = FrameReader(trusted_bytes=2 * limits.MIB, scratch=new_scratch())
    assert deliver(data[:1000], reader) == []
    view = reader.get_buffer()
    assert len(view) == len(data) - 1000, "room for the rest of the frame and not more"
    (frame,) = deliver(data[1000:], reader)
    assert frame.owns_memory
    assert frame.attachment.obj is view.obj
    assert frame.attachment.readonly


# -- memory ----------------------------------------------------------------------------------------


def test_nothing_is_held_between_frames() -> None:
    reader = FrameReader(scratch=new_scratch())
    deliver(frame_bytes(b"head", bytes(SMALL)) + frame_bytes(), reader)
    assert (reader.bytes_held, reader.pending_bytes, reader.in_frame) == (0, 0, False)


def test_what_is_held_of_a_small_frame_is_what_has_come() -> None:
    reader = FrameReader(scratch=new_scratch())
    deliver(frame_bytes(bytes(100))[:70], reader)
    assert (reader.bytes_held, reader.pending_bytes, reader.in_frame) == (70, 70, True)


def test_a_lying_length_takes_little_memory() -> None:
    scratch = new_scratch()
    tracemalloc.start()
    try:
        reader = FrameReader(scratch=scratch)
        deliver(declared(limits.FRAME_BYTES_MAX), reader)
        reader.get_buffer()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader.bytes_held < 3 * limits.MIB
    assert taken < 3 * limits.MIB


def test_memory_grows_only_with_what_arrives() -> None:
    total = 21 * limits.MIB
    reader = FrameReader(scratch=new_scratch())
    deliver(declared(total), reader)
    arrived = FIXED_BYTES
    piece = bytes(700 * limits.KIB)
    while arrived < total:
        count = min(len(piece), total - arrived)
        found = deliver(piece[:count], reader)
        arrived += count
        assert reader.bytes_held <= 2 * arrived
    assert [len(frame.attachment) for frame in found] == [total - FIXED_BYTES]
    assert reader.bytes_held == 0


def test_a_length_takes_no_memory_before_bytes_come() -> None:
    reader = FrameReader()
    assert deliver(declared(limits.FRAME_BYTES_MAX), reader) == []
    assert reader.bytes_held == FIXED_BYTES


@pytest.mark.parametrize("has_plenty", [True, False])
def test_who_has_sent_large_frames_is_trusted_with_as_much_again(has_plenty: bool) -> None:
    reader = FrameReader(may_trust=lambda: has_plenty)
    claim = declared(limits.FRAME_BYTES_MAX)
    assert len(deliver(frame_bytes(b"head", bytes(LARGE // 2)) + claim, reader)) == 1
    trusted = LARGE // 2 + FIXED_BYTES + 4
    assert reader.bytes_held == (trusted if has_plenty else FIXED_BYTES)


def test_the_first_frame_has_a_limit_of_its_own() -> None:
    small, large = frame_bytes(b"head"), frame_bytes(b"head", bytes(SMALL))
    reader = FrameReader(first_bytes_max=SMALL)
    assert len(deliver(small + large + large, reader)) == 3
    with pytest.raises(
        FrameError, match=f"{len(large) - LENGTH_BYTES}.*exceeds the limit of {SMALL}"
    ):
        deliver(large, FrameReader(first_bytes_max=SMALL))


def test_an_owner_may_hold_on_to_old_views() -> None:
    """asyncio does: the view is alive while it calls ``buffer_updated``."""
    reader = FrameReader(scratch=new_scratch())
    views = []
    data = frame_bytes(b"", bytes(3 * LARGE))
    found = []
    position = 0
    while position < len(data):
        views.append(reader.get_buffer())
        count = min(len(views[-1]), len(data) - position)
        views[-1][:count] = data[position : position + count]
        found += reader.received(count)
        position += count
    assert len(found) == 1


# -- holding frames back ---------------------------------------------------------------------------


@given(frames_of_bytes, st.integers(1, 3), st.integers(0, 30))
def test_frames_held_back_come_when_asked_for(
    parts: list[bytes], frames_max: int, cut: int
) -> None:
    data = b"".join(parts)
    data, tail = data[: len(data) - cut], data[len(data) - cut :]
    scratch = new_scratch()
    reader = KeepingReader(scratch=scratch)
    reader.get_buffer()[: len(data)] = data
    found = reader.received(len(data), frames_max=frames_max) if data else []
    while reader.waiting:
        scratch[:] = bytes([SCRIBBLE]) * len(scratch)
        assert not reader.in_frame
        more = reader.received(0, frames_max=frames_max)
        assert 0 < len(more) <= frames_max
        found += more
        assert len(found) <= len(parts), "frames come again and again"
    assert reader.received(0) == []
    found += deliver(tail, reader)
    assert contents(found) == contents(deliver(data + tail, KeepingReader()))
    assert reader.bytes_held == 0


def test_none_are_given_when_none_are_wanted() -> None:
    reader = FrameReader(scratch=new_scratch())
    data = frame_bytes(b"head")
    reader.get_buffer()[: len(data)] = data
    assert reader.received(len(data), frames_max=0) == []
    assert reader.waiting
    assert [frame.header for frame in reader.received(0)] == [b"head"]


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stranger",
    [b"GET / HTTP/1.1", b"SSH-2.0-x", b"\x16\x03\x01\x02\x00\x01", b"\x00" * 20, b"\xff" * 20],
)
def test_strangers_are_recognised_by_their_sixth_byte(stranger: bytes) -> None:
    reader = FrameReader(scratch=new_scratch())
    with pytest.raises(FrameError):
        deliver(stranger[:6], reader, sizes=[1])
    assert stranger.startswith(reader.first_bytes)
    assert reader.bytes_held == 0


@given(
    st.integers(0, 60) | st.sampled_from([999, 1000, 1001, 1 << 31]),
    st.sampled_from([MAGIC, MAGIC, MAGIC, MAGIC ^ 1]),
    st.sampled_from([0, 0, 0, 1, 0x8000]),
    st.integers(0, 60) | st.sampled_from([984, 985, limits.FRAME_HEADER_BYTES_MAX + 1]),
)
def test_a_reader_refuses_what_is_flawed_and_nothing_else(
    length: int, magic: int, flags: int, header_length: int
) -> None:
    fixed = FRAME.pack(length, magic, 1, 0, flags, 7, header_length)
    reader = FrameReader(1000, scratch=new_scratch())
    problem = flaw(fixed, bytes_max=1000)
    if problem is None:
        (frame,) = deliver(fixed + bytes(length - LENGTH_MIN), reader)
        assert len(frame.header) == header_length
        assert len(frame.header) + len(frame.attachment) == length - LENGTH_MIN
    else:
        with pytest.raises(FrameError) as caught:
            deliver(fixed, reader)
        assert str(caught.value) == problem


def test_a_header_over_its_limit_is_refused_in_a_frame_within_its_own() -> None:
    most = limits.FRAME_HEADER_BYTES_MAX
    fixed = FRAME.pack(2 * most, MAGIC, 1, 0, 0, 7, most + 1)
    with pytest.raises(FrameError, match="FRAME_HEADER_BYTES_MAX"):
        deliver(fixed, FrameReader(scratch=new_scratch()))


def test_an_oversize_frame_is_refused_before_memory_is_taken() -> None:
    reader = FrameReader(1000, scratch=new_scratch())
    assert len(deliver(declared(1000 + LENGTH_BYTES) + bytes(984), reader)) == 1
    with pytest.raises(FrameError, match="1001 bytes exceeds the limit of 1000"):
        deliver(declared(1001 + LENGTH_BYTES), reader)


def test_an_error_is_for_good() -> None:
    reader = FrameReader(scratch=new_scratch())
    with pytest.raises(FrameError, match="not a raftlog frame"):
        deliver(bytes(6), reader)
    with pytest.raises(FrameError, match="not a raftlog frame"):
        deliver(frame_bytes(b"head"), reader)


def test_frames_before_the_bad_bytes_come_first() -> None:
    reader = FrameReader(scratch=new_scratch())
    found = deliver(frame_bytes(b"one") + frame_bytes(b"two") + b"GET / HTTP/1.1", reader)
    assert [frame.header for frame in found] == [b"one", b"two"]
    assert reader.error is not None
    with pytest.raises(FrameError, match="not HTTP"):
        reader.received(0)


@pytest.mark.parametrize("size", [1, 19, 20, 30, SMALL + 100])
def test_a_stream_that_ends_in_a_frame_says_so(size: int) -> None:
    reader = FrameReader()
    assert reader.end_of_stream() is None
    deliver(frame_bytes(b"whole") + frame_bytes(bytes(2 * SMALL))[:size], reader)
    assert f"after {size} bytes of a frame" in str(reader.end_of_stream())


# -- connection pair -------------------------------------------------------------------------------
#
# Both connection states, joined by a link that cuts where it likes; and any bytes whatever.


# -- both sides together ---------------------------------------------------------------------------


def test_every_api_goes_there_and_back() -> None:
    for entry in make_protocol.load()["apis"]:
        pair = ConnectionPair(sizes=[1])
        api = make_protocol.api_named(entry["api"])
        message = make_protocol.request_of(entry)
        request = pair.send(api, message, [b"batch"])
        correlation_id = request.correlation_id
        assert request._replace(header_bytes=0) == Request(
            api, 0, correlation_id, message, memoryview(b"batch")
        )
        if api.one_way:
            pair.server.finish(request)
            assert (pair.server.in_flight, outstanding(pair.client)) == (0, {})
            continue
        answer = make_protocol.response_of(entry)
        (response,) = pair.to_client(pair.server.reply(request, answer, [b"bat", b"ch"]))
        assert response == Response(correlation_id, api, answer, memoryview(b"batch"))
        assert (pair.server.in_flight, outstanding(pair.client)) == (0, {})


@given(st.lists(exchanges, min_size=1, max_size=4), cuts(), st.data())
def test_requests_in_flight_are_answered_in_any_order(
    wanted: list[tuple[Any, ...]], sizes: list[int], data: st.DataObject
) -> None:
    pair = ConnectionPair(sizes=sizes)
    wire: list[Buffer] = []
    by_id = {}
    for exchange in wanted:
        api, message, attachment, _, _ = exchange
        correlation_id, buffers = pair.client.send(api, message, attachment)
        by_id[correlation_id] = exchange
        wire += buffers
    requests = pair.to_server(wire)
    assert [request.correlation_id for request in requests] == list(by_id), "in order"
    wire = []
    answered = []
    for request in data.draw(st.permutations(requests)):
        api, message, attachment, answer, answer_attachment = by_id[request.correlation_id]
        assert request[:2] == (api, api.version_max)
        assert (request.message, bytes(request.attachment)) == (message, b"".join(attachment))
        if not request.expects_response:
            pair.server.finish(request)
        elif isinstance(answer, RaftlogError):
            wire += pair.server.fail(request, answer)
            answered.append((request.correlation_id, api, str(answer), b""))
        else:
            wire += pair.server.reply(request, answer, answer_attachment)
            answered.append((request.correlation_id, api, answer, b"".join(answer_attachment)))
    responses = [
        (
            response.correlation_id,
            response.api,
            str(response.message) if isinstance(response.message, Exception) else response.message,
            response.attachment,
        )
        for response in pair.to_client(wire)
    ]
    assert responses == answered
    assert (pair.server.in_flight, outstanding(pair.client)) == (0, {})
    assert pair.server.bytes_held == pair.client.bytes_held == 0


def test_a_failure_arrives_as_the_same_error() -> None:
    pair = ConnectionPair()
    request = pair.send(METADATA, BROKERS_ONLY)
    (response,) = pair.to_client(pair.server.fail(request, NotLeaderError("broker 2 leads a:0")))
    assert isinstance(response.message, NotLeaderError)
    assert str(response.message) == "broker 2 leads a:0"
    assert (response.api, len(response.attachment)) == (METADATA, 0)


def test_without_acks_nothing_comes_back() -> None:
    pair = ConnectionPair()
    request = pair.send(PRODUCE, UNACKNOWLEDGED, [b"abc"])
    assert not request.expects_response
    assert outstanding(pair.client) == {}
    assert pair.server.in_flight == 1
    pair.server.finish(request)
    assert pair.server.in_flight == 0


def test_an_api_that_is_one_way_is_never_answered() -> None:
    pair = ConnectionPair()
    request = pair.send(RAFT, RaftRequest(), [b"envelope"])
    assert not request.expects_response
    assert request.attachment == b"envelope"
    assert (pair.server.in_flight, outstanding(pair.client)) == (1, {})
    with pytest.raises(AssertionError, match="call finish"):
        pair.server.reply(request, NoResponse())
    with pytest.raises(AssertionError, match="call finish"):
        pair.server.fail(request, ThrottledError("later"))
    pair.server.finish(request)
    assert pair.server.in_flight == 0


def test_requests_that_are_one_way_and_others_share_a_connection() -> None:
    pair = ConnectionPair(requests_in_flight_max=2)
    _, first = pair.client.send(RAFT, RaftRequest(), [b"1"])
    asked, second = pair.client.send(PEER_PING, PeerPingRequest(sent=1, broker_epoch=4))
    _, third = pair.client.send(RAFT, RaftRequest(), [b"3"])
    envelope, ping = pair.to_server([*first, *second, *third])
    assert pair.server.paused, "one way takes room too, until it is dealt with"
    pair.server.finish(envelope)
    (late,) = pair.server.resume()
    assert [bytes(one.attachment) for one in (envelope, late)] == [b"1", b"3"]
    (response,) = pair.to_client(pair.server.reply(ping, PeerPingResponse()))
    assert response == Response(asked, PEER_PING, PeerPingResponse(), memoryview(b""))
    assert outstanding(pair.client) == {}


def test_a_one_way_request_that_cannot_be_read_ends_its_connection() -> None:
    pair = ConnectionPair()
    number = PARTITION_STATES.number
    (refusal,) = pair.to_server([raw(number, b"\x80")])
    assert isinstance(refusal, Refusal)
    (end,) = pair.to_client(refusal.buffers)
    assert isinstance(end, Broken), "its sender has nothing outstanding, and is to notice"


def test_large_attachments_arrive_in_the_memory_they_were_read_into() -> None:
    pair = ConnectionPair()
    request = pair.send(FETCH, make_protocol.request_of(make_protocol.load()["apis"][3]))
    answer = FetchResponse([FetchedPartition("a", 0, length=3 * limits.MIB)])
    (response,) = pair.to_client(pair.server.reply(request, answer, [bytes(3 * limits.MIB)]))
    assert len(response.attachment) == 3 * limits.MIB
    assert response.attachment.readonly


def test_a_farewell_is_read_as_the_broker_wrote_it() -> None:
    pair = ConnectionPair()
    pair.client.send(METADATA, BROKERS_ONLY)
    (broken,) = pair.to_server([b"SSH-2.0-OpenSSH"])
    (end,) = pair.to_client([broken.farewell])
    assert isinstance(end, Broken)
    assert isinstance(end.error, FrameError)
    assert str(end.error) == str(broken.error)
    assert end.farewell == b""
    assert outstanding(pair.client) == {0: METADATA}, "for the owner to fail"


def test_a_farewell_may_be_any_error() -> None:
    (end,) = ConnectionPair().to_client([farewell(ThrottledError("over max.connections"))])
    assert isinstance(end, Broken)
    assert isinstance(end.error, ThrottledError)


# -- any bytes -------------------------------------------------------------------------------------


def check_events(events: list[Any], state: State, kinds: tuple[type, ...]) -> None:
    assert all(isinstance(event, (*kinds, Broken)) for event in events)
    assert [isinstance(event, Broken) for event in events[:-1]].count(True) == 0, "Broken is last"
    assert (state is State.ERROR) == bool(events and isinstance(events[-1], Broken))


@st.composite
def damaged(draw: st.DrawFn, frames: st.SearchStrategy[bytes]) -> bytes:
    """Good frames with a few bytes changed, cut out or put in."""
    data = bytearray(b"".join(draw(st.lists(frames, max_size=4))))
    for _ in range(draw(st.integers(0, 3))):
        position = draw(st.integers(0, len(data)))
        data[position : position + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(data)


request_frames = exchanges.map(
    lambda exchange: b"".join(
        encode_request(
            exchange[0].number,
            version=0,
            correlation_id=len(exchange[2]),
            message=exchange[1],
            attachment=exchange[2],
        )
    )
)


@given(st.binary(max_size=100) | damaged(request_frames), cuts())
def test_a_broker_survives_any_bytes(data: bytes, sizes: list[int]) -> None:
    server = ServerConnectionState(scratch=memoryview(bytearray(512)))
    events = deliver(data, server, sizes=sizes)
    check_events(events, server.state, (Request, Refusal))
    for event in events:
        if isinstance(event, Refusal):
            assert isinstance(
                event.error, InvalidRequestError | UnsupportedApiError | UnsupportedVersionError
            )
    end = server.end_of_stream()
    assert end is None or isinstance(end, FrameError)


@given(
    st.binary(max_size=100)
    | damaged(st.builds(response_frame, st.integers(0, 20), exchanges.map(lambda one: one[3]))),
    cuts(),
)
def test_a_client_survives_any_bytes(data: bytes, sizes: list[int]) -> None:
    client = ClientConnectionState(scratch=memoryview(bytearray(512)))
    for entry in make_protocol.load()["apis"]:
        client.send(make_protocol.api_named(entry["api"]), make_protocol.request_of(entry))
    events = deliver(data, client, sizes=sizes)
    check_events(events, client.state, (Response,))
    answered = {event.correlation_id for event in events if isinstance(event, Response)}
    assert answered.isdisjoint(outstanding(client))


# -- requests in flight ----------------------------------------------------------------------------
#
# A broker's connection takes so many requests at a time, loses none, and keeps their order.


def test_a_broker_pauses_at_its_limit_and_resumes_at_half_of_it() -> None:
    server = ServerConnectionState()
    most = limits.REQUESTS_IN_FLIGHT_MAX
    requests = deliver(pipelined(most + 10), server)
    assert len(requests) == server.in_flight == most
    assert server.paused
    for request in requests[: most // 2 - 1]:
        server.reply(request, NO_BROKERS)
        assert server.resume() == []
    server.reply(requests[most // 2 - 1], NO_BROKERS)
    late = server.resume()
    assert [event.correlation_id for event in late if isinstance(event, Request)] == list(
        range(most, most + 10)
    )
    assert (server.state, server.bytes_held) == (State.OPEN, 0)


def test_what_is_in_flight_already_counts() -> None:
    server = ServerConnectionState(requests_in_flight_max=4)
    assert len(deliver(pipelined(7)[: 3 * 21], server)) == 3
    assert not server.paused
    assert len(deliver(pipelined(7)[3 * 21 :], server)) == 1
    assert (server.in_flight, server.paused) == (4, True)


def test_a_broker_without_spare_room_pauses_even_with_nothing_held_back() -> None:
    server = ServerConnectionState(requests_in_flight_max=1)
    (request,) = deliver(raw(1, b"\x80"), server)
    assert server.paused
    server.reply(request, NO_BROKERS)
    assert server.resume() == []
    assert not server.paused


def test_refusals_take_no_room() -> None:
    server = ServerConnectionState(requests_in_flight_max=2)
    bad = raw(999, b"\x80")
    good = raw(1, b"\x80", correlation_id=1)
    events = deliver(bad * 5 + good + bad, server)
    assert [type(event) for event in events] == [Refusal] * 5 + [Request, Refusal]
    assert not server.paused


def test_what_was_held_back_may_be_broken() -> None:
    server = ServerConnectionState(requests_in_flight_max=1)
    (request,) = deliver(pipelined(2) + bytes(20), server)
    server.reply(request, NO_BROKERS)
    (second, broken) = server.resume()
    assert (type(second), type(broken)) == (Request, Broken)
    assert server.state is State.ERROR


@given(
    st.lists(st.sampled_from(["good", "bad"]), max_size=20),
    st.integers(1, 4),
    st.lists(st.integers(0, 3), min_size=1),
    cuts(),
)
def test_every_request_comes_once_in_order_and_within_the_limit(
    kinds: list[str], most: int, turns: list[int], sizes: list[int]
) -> None:
    """An owner that reads when it may, answers a few at a time, and resumes after each."""
    server = ServerConnectionState(requests_in_flight_max=most, scratch=memoryview(bytearray(64)))
    stream = b"".join(
        raw(1 if kind == "good" else 999, b"\x80", correlation_id=number)
        for number, kind in enumerate(kinds)
    )
    seen: list[int] = []
    open_requests: list[Request] = []
    size = cycle(sizes or [64])

    def take(events: list[Any]) -> None:
        seen.extend(event.correlation_id for event in events)
        open_requests.extend(event for event in events if isinstance(event, Request))
        assert len(seen) <= len(kinds)
        assert server.in_flight == len(open_requests) <= most

    for turn in cycle(turns):
        if stream and not server.paused:
            view = server.get_buffer()
            count = min(len(view), len(stream), next(size))
            view[:count] = stream[:count]
            stream = stream[count:]
            take(server.received(count))
        answers = turn if stream and not server.paused else max(turn, 1)
        for _ in range(min(answers, len(open_requests))):
            server.reply(open_requests.pop(0), NO_BROKERS)
            if server.paused:
                take(server.resume())
        if not stream and not open_requests:
            break
    assert seen == list(range(len(kinds)))
    assert (server.state, server.bytes_held) == (State.OPEN, 0)
