"""Both connection states, joined by a link that cuts where it likes; and any bytes whatever."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import (
    FrameError,
    InvalidRequestError,
    NotLeaderError,
    RaftlogError,
    ThrottledError,
    UnsupportedApiError,
    UnsupportedVersionError,
)
from raftlog.protocol.api import (
    FETCH,
    METADATA,
    PARTITION_STATES,
    PEER_PING,
    PRODUCE,
    RAFT,
)
from raftlog.protocol.connection import (
    Broken,
    ClientConnectionState,
    Refusal,
    Request,
    Response,
    ServerConnectionState,
    State,
    encode_request,
    farewell,
)
from raftlog.protocol.peer import PeerPingRequest, PeerPingResponse, RaftRequest
from raftlog.protocol.records import FetchedPartition, FetchResponse
from raftlog.protocol.schema import NoResponse
from raftlog.types import Buffer
from tests.golden import make_protocol
from tests.protocol.link import cuts, deliver
from tests.protocol.pair import (
    BROKERS_ONLY,
    UNACKNOWLEDGED,
    ConnectionPair,
    exchanges,
    outstanding,
    raw,
    response_frame,
)

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
