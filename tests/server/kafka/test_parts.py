"""Partitions of Kafka requests, and hints to their leaders."""

from __future__ import annotations

from typing import Any, cast

import pytest

from raftlog import limits
from raftlog.errors import InvalidRequestError, ThrottledError
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.protocol.records import BrokerInfo, PartitionInfo
from raftlog.server.kafka.reply import ResponseRoom, check_count, hint_leaders, unsigned

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
