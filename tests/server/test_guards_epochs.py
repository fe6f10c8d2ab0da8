"""A request of a client that knows another leader than this one: refused, whatever it asks for."""

from __future__ import annotations

from raftlog.errors import UnknownLeaderEpochError
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    FetchPartition,
    FetchRequest,
    ListOffsetsRequest,
    OffsetQuery,
    ProducePartition,
    ProduceRequest,
)
from tests.server.harness import Client, batch_of, error_of, only

NEWER = 7


def test_records_of_a_producer_that_knows_a_newer_leader_are_not_appended(client: Client) -> None:
    client.create("t")
    batch = batch_of(b"a")
    part = ProducePartition(topic="t", partition=0, length=len(batch), leader_epoch=NEWER)
    answer = client.produced(
        client.send(apis.PRODUCE, ProduceRequest(acks=-1, partitions=[part]), [batch])
    )
    assert isinstance(error_of(answer), UnknownLeaderEpochError)
    assert client.offset("t", "latest").offset == 0


def test_a_consumer_that_knows_a_newer_leader_is_given_nothing(client: Client) -> None:
    client.create("t")
    client.produce("t", batch_of(b"a"))
    part = FetchPartition(topic="t", partition=0, offset=0, leader_epoch=NEWER)
    partitions, values = client.fetched(
        client.send(apis.FETCH, FetchRequest(partitions=[part], wait_ms_max=0))
    )
    assert isinstance(error_of(only(partitions)), UnknownLeaderEpochError)
    assert values == []


def test_a_consumer_that_knows_a_newer_leader_is_told_no_offset(client: Client) -> None:
    client.create("t")
    query = OffsetQuery(topic="t", partition=0, at="latest", leader_epoch=NEWER)
    answer = client.ask(apis.LIST_OFFSETS, ListOffsetsRequest(queries=[query]))
    assert isinstance(error_of(only(answer.answers)), UnknownLeaderEpochError)
