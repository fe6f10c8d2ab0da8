"""Replies to Kafka requests that fail."""

from __future__ import annotations

from typing import Any, cast

import pytest

from raftlog import limits
from raftlog.errors import InvalidRequestError, InvalidTopicError, ThrottledError
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.connection import KafkaConnectionState, KafkaRequest
from raftlog.kafka.errors import Place
from raftlog.protocol.records import BrokerInfo, PartitionInfo
from raftlog.server.connection import Connection
from raftlog.server.kafka.reply import (
    KafkaReply,
    ResponseRoom,
    check_count,
    hint_leaders,
    refused_by_code,
    unsigned,
)
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


# -- parts -----------------------------------------------------------------------------------------
#
# Partitions of Kafka requests, and hints to their leaders.


Response = codec.structs("response", apis.FETCH.key)


class Paper:
    """A broker that knows two others, and that broker 2 leads all partitions."""

    broker_id = 1

    class topics:  # noqa: N801 - an attribute of the context
        @staticmethod
        def get(name: str) -> Any:
            return None if name == "none" else Paper

        @staticmethod
        def info(_topic: Any, index: int) -> PartitionInfo:
            return PartitionInfo(partition=index, leader=2, leader_epoch=7, replicas=[2], isr=[2])

    hosts = (None, None)

    @staticmethod
    def brokers(_local_host: str, *, for_kafka: bool) -> list[BrokerInfo]:
        assert for_kafka
        return [BrokerInfo(id=number, host="h", port=number) for number in (1, 2, 3)]


def test_clients_are_told_where_the_leader_is() -> None:
    moved = Response.PartitionData(error_code=errors.NOT_LEADER_OR_FOLLOWER)
    other = Response.PartitionData(error_code=errors.OFFSET_OUT_OF_RANGE)
    response = Response.root()
    parts = [("t", 0, moved), ("t", 1, other), ("none", 0, Response.PartitionData(error_code=6))]
    hint_leaders(cast(Any, Paper()), Response, response, "here", parts)
    assert (moved.current_leader.leader_id, moved.current_leader.leader_epoch) == (2, 7)
    assert other.current_leader.leader_id == -1
    assert [(each.node_id, each.port) for each in response.node_endpoints] == [(2, 2)]


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    check_count("fetch", 100_000)
    with pytest.raises(InvalidRequestError, match="KAFKA_ITEMS_MAX"):
        check_count("fetch", 100_001)
    monkeypatch.setattr(limits, "KAFKA_RESPONSE_BYTES_MAX", 10)
    room = ResponseRoom()
    for size_bytes in (4, 5, 1_000):
        room.check("a part")
        room.use(size_bytes)
    with pytest.raises(ThrottledError, match="Request it again"):
        room.check("a part")
    assert (unsigned(3), unsigned(-1)) == (3, 10_000)
