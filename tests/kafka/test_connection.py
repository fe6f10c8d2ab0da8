"""A broker's side of a Kafka connection: requests cut anywhere, order of responses, bad input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.codec import finish
from raftlog.kafka.connection import (
    KafkaBroken,
    KafkaConnectionState,
    KafkaEvent,
    KafkaRequest,
    KafkaUnread,
)
from raftlog.testing.kafka_wire import request, response

Produce = codec.structs("request", apis.PRODUCE.key)
Empty = codec.structs("response", apis.METADATA.key).root


def _state(**arguments: int) -> KafkaConnectionState:
    return KafkaConnectionState(scratch=memoryview(bytearray(65536)), **arguments)


def _feed(state: KafkaConnectionState, data: bytes) -> list[KafkaEvent]:
    events: list[KafkaEvent] = []
    while data:
        buffer = state.get_buffer()
        count = min(len(buffer), len(data))
        assert count, "a connection always has memory for more"
        buffer[:count] = data[:count]
        data = data[count:]
        events += state.received(count)
    return events


def _requests(events: list[KafkaEvent]) -> list[KafkaRequest]:
    requests = [finish(each.read) if isinstance(each, KafkaUnread) else each for each in events]
    assert all(isinstance(each, KafkaRequest) for each in requests), requests
    return [each for each in requests if isinstance(each, KafkaRequest)]


def _broken(events: list[KafkaEvent]) -> str:
    last = events[-1]
    assert isinstance(last, KafkaBroken)
    return str(last.error)


def _produce(size: int, number: int) -> bytes:
    part = Produce.PartitionProduceData(index=number, records=[bytes([number]) * size])
    topic = Produce.TopicProduceData(name="t", partition_data=[part])
    return request(apis.PRODUCE, 9, Produce.root(acks=1, topic_data=[topic]))


@given(
    sizes=st.lists(st.sampled_from((0, 10, 70_000, 200_000)), min_size=1, max_size=5),
    cuts=st.lists(st.integers(1, 300_000), max_size=6),
)
def test_requests_are_the_same_wherever_the_stream_is_cut(
    sizes: list[int], cuts: list[int]
) -> None:
    data = b"".join(_produce(size, number) for number, size in enumerate(sizes))
    state = _state()
    events: list[KafkaEvent] = []
    for cut in [*cuts, len(data)]:
        events += _feed(state, data[:cut])
        data = data[cut:]
    found = _requests(events)
    records = [each.message.topic_data[0].partition_data[0].records for each in found]
    assert [(len(each), set(each)) for each in records] == [
        (size, {number} if size else set()) for number, size in enumerate(sizes)
    ]
    assert state.end_of_stream() is None


def test_responses_leave_in_the_order_of_the_requests() -> None:
    state = _state()
    first, second, third = _requests(
        _feed(state, b"".join(request(apis.METADATA, 1, correlation_id=n) for n in (5, 6, 7)))
    )
    assert finish(state.reply(third, Empty())) == []
    assert finish(state.reply(second, Empty())) == []
    assert state.bytes_held > 0
    sent = finish(state.reply(first, Empty()))
    assert [response(apis.METADATA, 1, bytes(each))[0] for each in sent] == [5, 6, 7]
    assert (state.in_flight, state.bytes_held) == (0, 0)


def test_a_request_without_a_response_holds_back_none() -> None:
    state = _state()
    message = Produce.root(acks=0)
    quiet, after = _requests(
        _feed(state, request(apis.PRODUCE, 3, message) + request(apis.METADATA, 1))
    )
    assert not quiet.expects_response
    assert finish(state.reply(after, Empty())) == []
    assert len(state.finish(quiet)) == 1


def test_too_many_requests_in_flight_pause_the_connection() -> None:
    state = _state(requests_in_flight_max=2)
    data = b"".join(request(apis.METADATA, 1, correlation_id=n) for n in range(4))
    found = _requests(_feed(state, data))
    assert len(found) == 2
    assert state.paused
    assert not state.in_frame, "the client has not stalled: the broker does not read"
    finish(state.reply(found[0], Empty()))
    more = _requests(state.resume())
    assert [each.correlation_id for each in more] == [2]
    finish(state.reply(found[1], Empty()))
    finish(state.reply(more[0], Empty()))
    assert [each.correlation_id for each in _requests(state.resume())] == [3]
    assert not state.paused


def test_an_unknown_version_of_api_versions_becomes_version_0() -> None:
    data = request(apis.API_VERSIONS, 3)
    data = data[:6] + (99).to_bytes(2, "big") + data[8:]
    (found,) = _requests(_feed(_state(), data))
    assert (found.version, found.asked_version) == (0, 99)


@pytest.mark.parametrize(
    ("api", "version", "data"),
    [
        (apis.METADATA, 13, request(apis.METADATA, 13, body=b"\x7f")),
        (apis.INIT_PRODUCER_ID, 0, request(apis.INIT_PRODUCER_ID, 0, body=b"\0\1\xff")),
        (apis.METADATA, 13, (9 << 20).to_bytes(4, "big") + request(apis.METADATA, 13)[4:]),
        (
            apis.INIT_PRODUCER_ID,
            5,
            request(apis.INIT_PRODUCER_ID, 5, body=b"\xff" * limits.FRAME_SMALL_BYTES_MAX),
        ),
    ],
    ids=["flexible", "plain", "too long to be received", "decoded in steps"],
)
def test_an_invalid_request_gets_an_error_after_the_responses_before_it(
    api: apis.Api, version: int, data: bytes
) -> None:
    state = _state()
    first, last = _feed(state, request(apis.METADATA, 1) + data)
    if isinstance(last, KafkaUnread):
        with pytest.raises(codec.BadMessageError) as raised:
            finish(last.read)
        last = last.broken(raised.value)
    assert isinstance(last, KafkaBroken)
    assert last.answer is not None
    assert finish(state.reply(*last.answer)) == []
    assert isinstance(first, KafkaRequest)
    sent = b"".join(finish(state.reply(first, Empty())))
    second = sent[4 + int.from_bytes(sent[:4], "big") :]
    number, message = response(api, version, second)
    assert (number, message.error_code) == (7, errors.INVALID_REQUEST)
    if api is apis.METADATA:
        assert not hasattr(message, "error_message")


@pytest.mark.parametrize(
    "data",
    [
        request(apis.METADATA, 12, body=b"\x7f"),
        request(apis.LIST_OFFSETS, 1, body=b"\0"),
        (9 << 20).to_bytes(4, "big") + b"\0\3",
        (9 << 20).to_bytes(4, "big") + request(apis.METADATA, 13)[4:7] + b"\x63" + bytes(9),
    ],
    ids=["no place for an error", "no place at all", "no header", "unknown version"],
)
def test_without_a_place_for_the_error_the_connection_is_closed(data: bytes) -> None:
    (last,) = _feed(_state(), data)
    assert isinstance(last, KafkaBroken)
    assert last.answer is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (request(apis.METADATA, 1)[:4].replace(b"\0", b"\x7f") + bytes(20), "request of"),
        (bytes(4) + bytes(20), "request of 0 bytes"),
        ((9 << 20).to_bytes(4, "big") + b"\0\3", "KAFKA_REQUEST_BYTES_MAX"),
        (request(apis.METADATA, 1)[:5] + b"\x63" + bytes(17), "key 99 version"),
        (request(apis.PRODUCE, 3, body=b"")[:6] + b"\0\2" + bytes(12), "Produce version 2"),
        (request(apis.METADATA, 1, body=b"\0"), "Metadata version 1 is invalid"),
        (request(apis.METADATA, 1, client_id=b"\xff"), "is invalid"),
        (request(apis.DESCRIBE_CONFIGS, 1, body=b"\0\0\0\1\2\0\1\xff" + bytes(4)), "is invalid"),
    ],
)
def test_bad_input_ends_the_connection(data: bytes, reason: str) -> None:
    state = _state()
    good = request(apis.METADATA, 1)
    events = _feed(state, good + data)
    assert isinstance(events[0], KafkaRequest), "what came before is handled"
    assert reason in _broken(events)
    assert state.received(0) == []
    assert finish(state.reply(events[0], Empty())) == []


def test_bytes_behind_a_message_are_ignored() -> None:
    """librdkafka 2.16 sends three behind a request for all topics."""
    data = bytes.fromhex("0003000d 00000003 0007 72646b61666b61 00 00 000000 01 00 00")
    (found,) = _requests(_feed(_state(), len(data).to_bytes(4, "big") + data))
    assert (found.client_id, found.message.topics) == ("rdkafka", None)


def test_memory_is_not_taken_for_a_claimed_length() -> None:
    state = _state()
    _feed(state, (90 << 20).to_bytes(4, "big") + bytes(20))
    assert state.bytes_held <= 64 * limits.KIB


def test_the_end_of_the_stream_inside_a_request_is_told() -> None:
    state = _state()
    _feed(state, request(apis.METADATA, 1)[:-1])
    assert state.in_frame
    assert state.end_of_stream() is not None


def test_tokens_of_an_early_handshake_are_requests_without_a_header() -> None:
    """Of any length, until the client has authenticated."""
    is_authenticated = False
    state = KafkaConnectionState(
        scratch=memoryview(bytearray(65536)), is_authenticated=lambda: is_authenticated
    )
    asked = codec.structs("request", apis.SASL_HANDSHAKE.key).root(mechanism="PLAIN")
    for code in (33, 0):
        (handshake,) = _requests(_feed(state, request(apis.SASL_HANDSHAKE, 0, asked)))
        answer = codec.structs("response", apis.SASL_HANDSHAKE.key).root(error_code=code)
        finish(state.reply(handshake, answer))
    structs = codec.structs("response", apis.SASL_AUTHENTICATE.key)
    for token, code, sent in (
        (b"", 0, b"\0\0\0\1x"),
        (b"a" * 99, 0, b"\0\0\0\1x"),
        (b"b", 58, b""),
    ):
        (made,) = _requests(_feed(state, len(token).to_bytes(4, "big") + token))
        assert (made.api, bytes(made.message.auth_bytes)) == (apis.SASL_AUTHENTICATE, token)
        answer = structs.root(error_code=code, auth_bytes=b"x")
        assert b"".join(finish(state.reply(made, answer))) == sent
    is_authenticated = True
    (metadata,) = _requests(_feed(state, request(apis.METADATA, 12)))
    assert metadata.api is apis.METADATA
    assert "7 bytes" in _broken(_feed(state, b"\0\0\0\7" + bytes(7)))
