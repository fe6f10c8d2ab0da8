"""Replies to Kafka requests that fail."""

from __future__ import annotations

from typing import Any, cast

from raftlog import limits
from raftlog.errors import InvalidTopicError
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.connection import KafkaConnectionState, KafkaRequest
from raftlog.kafka.errors import Place
from raftlog.server.connection import Connection
from raftlog.server.kafka.reply import KafkaReply, refused_by_code
from raftlog.server.metrics import Counters
from raftlog.testing.kafka_wire import request


class PaperConnection:
    """Notes what it is asked to do."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.services = self.turns = self
        self.share_began = 0.0
        self.counters = Counters()
        self.meter = None
        self.peer = "a client"

    def respond_kafka(self, _request: KafkaRequest, message: Any) -> None:
        self.done.append(message)

    def finish(self, _request: KafkaRequest) -> None:
        self.done.append("finished")

    def abort(self, reason: str) -> None:
        self.done.append(reason)

    def note_refusal(self, what: str, _error: Exception, _request_id: int) -> None:
        self.done.append(what)


def _reply(data: bytes) -> tuple[PaperConnection, KafkaReply]:
    state = KafkaConnectionState(scratch=memoryview(bytearray(65536)))
    state.get_buffer()[: len(data)] = data
    (received,) = state.received(len(data))
    assert isinstance(received, KafkaRequest)
    connection = PaperConnection()
    refuse = refused_by_code(Place.METADATA)
    return connection, KafkaReply(cast(Connection, connection), received, refuse)


def test_an_error_becomes_a_code_and_a_text() -> None:
    connection, reply = _reply(request(apis.DESCRIBE_CLUSTER, 0))
    reply.refuse(InvalidTopicError("bad name"))
    what, answer = connection.done
    assert what == "DescribeCluster"
    assert (answer.error_code, answer.error_message) == (errors.INVALID_TOPIC, "bad name")


def test_an_internal_error_is_counted_and_answered() -> None:
    connection, reply = _reply(request(apis.DESCRIBE_CLUSTER, 0))
    reply.fail_by_mistake(KeyError("x"))
    assert connection.counters.mistakes == 1
    assert connection.done[0].error_code == errors.REQUEST_TIMED_OUT


def test_a_request_without_a_response_closes_the_connection() -> None:
    root = codec.structs("request", apis.PRODUCE.key).root
    connection, reply = _reply(request(apis.PRODUCE, 3, root(acks=0)))
    assert not reply.request.attachment, "megabytes would stay in memory"
    reply.fail(InvalidTopicError("bad name"))
    assert connection.done[0] == "finished"
    assert "bad name" in connection.done[1]


def test_texts_are_short_and_can_be_encoded() -> None:
    assert InvalidTopicError("\udcff").wire_text.encode() == b"?"
    assert len(InvalidTopicError("x" * 10_000).wire_text) == limits.ERROR_MESSAGE_CHARS_MAX
