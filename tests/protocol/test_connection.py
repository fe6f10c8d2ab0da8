"""Each connection state by itself: what it gives, refuses, and ends with."""

from __future__ import annotations

import dataclasses

import pytest

from raftlog import limits
from raftlog.errors import (
    BrokerUnavailableError,
    FrameError,
    InvalidRequestError,
    RaftlogError,
    UnsupportedApiError,
    UnsupportedVersionError,
)
from raftlog.protocol import api as apis
from raftlog.protocol import connection, schema
from raftlog.protocol.api import (
    API_VERSIONS,
    DELETE_TOPICS,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    Api,
)
from raftlog.protocol.connection import (
    FAREWELL_CORRELATION_ID,
    FRAME,
    MAGIC,
    Broken,
    ClientConnectionState,
    Refusal,
    Request,
    Response,
    ServerConnectionState,
    State,
)
from raftlog.protocol.records import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    TopicResult,
    TopicsResponse,
)
from raftlog.protocol.schema import Message
from raftlog.protocol.security import ApiVersionRange, ApiVersionsRequest
from tests.golden import make_protocol
from tests.protocol.link import deliver
from tests.protocol.pair import (
    BROKERS_ONLY,
    NO_BROKERS,
    UNACKNOWLEDGED,
    ConnectionPair,
    outstanding,
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
