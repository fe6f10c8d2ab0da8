"""The choice of a connection's protocol, wherever its first bytes are cut."""

from __future__ import annotations

import pytest

from raftlog.kafka import api as apis
from raftlog.kafka.connection import KafkaConnectionState, KafkaRequest
from raftlog.protocol.connection import Broken, Request, ServerConnectionState, encode_request
from raftlog.protocol.security import ApiVersionsRequest
from raftlog.server.connection import Event, ProtocolChoice
from raftlog.testing.kafka_wire import request

NATIVE = b"".join(encode_request(1, version=0, correlation_id=1, message=ApiVersionsRequest()))
KAFKA = request(apis.API_VERSIONS, 0)


class Chooser:
    """A connection as far as the choice knows it."""

    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(65536))
        self.state: ProtocolChoice | ServerConnectionState | KafkaConnectionState = ProtocolChoice(
            1 << 20, self.scratch, self.chosen
        )

    def chosen(self, *, is_kafka: bool) -> ServerConnectionState | KafkaConnectionState:
        kind = KafkaConnectionState if is_kafka else ServerConnectionState
        self.state = state = kind(1 << 20, scratch=self.scratch)
        return state

    def feed(self, data: bytes) -> list[Event]:
        buffer = self.state.get_buffer()
        buffer[: len(data)] = data
        return list(self.state.received(len(data)))


@pytest.mark.parametrize(("data", "kind"), [(NATIVE, Request), (KAFKA, KafkaRequest)])
def test_the_first_request_arrives_wherever_it_is_cut(data: bytes, kind: type) -> None:
    for cut in range(1, len(data)):
        chooser = Chooser()
        events = chooser.feed(data[:cut])
        assert not events
        assert chooser.state.in_frame
        (event,) = chooser.feed(data[cut:])
        assert isinstance(event, kind)


def test_one_byte_at_a_time() -> None:
    chooser = Chooser()
    events = [event for byte in KAFKA for event in chooser.feed(bytes([byte]))]
    assert len(events) == 1


def test_noise_gets_the_answer_of_raftlogs_protocol() -> None:
    (event,) = Chooser().feed(b"GET / HTTP/1.1\r\n\r\n")
    assert isinstance(event, Broken)
    assert event.farewell


def test_a_stream_that_ends_before_the_choice() -> None:
    chooser = Chooser()
    assert chooser.state.end_of_stream() is None
    chooser.feed(b"\0\0")
    assert chooser.state.end_of_stream() is not None
    assert isinstance(chooser.state, ServerConnectionState)
