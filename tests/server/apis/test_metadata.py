"""API versions: what a client learns first."""

from __future__ import annotations

from pathlib import Path

from raftlog.config import Address
from raftlog.errors import InvalidTopicError, UnknownTopicError
from raftlog.protocol import api as apis
from raftlog.protocol.records import MetadataRequest, MetadataResponse
from raftlog.protocol.schema import PartitionRange
from raftlog.protocol.security import ApiVersionsRequest, ApiVersionsResponse
from raftlog.server.dispatch import HANDLERS
from tests.server.harness import Client, RunningBroker, error_of, only, running


def test_every_api_is_named_and_served(broker: RunningBroker, client: Client) -> None:
    answer: ApiVersionsResponse = client.ask(apis.API_VERSIONS, ApiVersionsRequest())
    assert {spoken.api for spoken in answer.apis} == set(apis.APIS) == set(HANDLERS)
    assert answer.broker_id == 1
    assert answer.cluster_id
    assert answer.broker_software.startswith("raftlog")


# -- metadata --------------------------------------------------------------------------------------
#
# Metadata: brokers, topics, and where clients are told to connect.


def ask(client: Client, topics: list[str] | None = None) -> MetadataResponse:
    answer: MetadataResponse = client.ask(apis.METADATA, MetadataRequest(topics=topics))
    return answer


def test_the_broker_names_the_address_it_listens_on(broker: RunningBroker, client: Client) -> None:
    info = only(ask(client).brokers)
    assert (info.id, info.host, info.port) == (1, *broker.address)
    assert info.rack is None


def test_an_advertised_address_and_a_rack(tmp_path: Path) -> None:
    settings = {"advertised_listen": "logs.example:9100", "rack": "north", "id": "7"}
    with running(tmp_path, **settings) as broker, broker.client() as client:
        info = only(ask(client).brokers)
        assert (info.id, info.host, info.port, info.rack) == (7, "logs.example", 9100, "north")


def test_who_listens_everywhere_is_found_where_the_client_found_it(tmp_path: Path) -> None:
    with running(tmp_path, listen="0.0.0.0:0") as broker:
        for host in ("127.0.0.1", "127.0.0.2"):
            with Client(Address(host, broker.address.port)) as client:
                info = only(ask(client).brokers)
                assert (info.host, info.port) == (host, broker.address.port)


def test_all_topics_or_those_asked_for(client: Client) -> None:
    client.create("b", partitions=2, max_message_bytes="5000")
    client.create("a", message_timestamp_type="LogAppendTime")
    topics = ask(client).topics
    assert [topic.name for topic in topics] == ["a", "b"]
    assert [topic.timestamp_type for topic in topics] == ["LogAppendTime", "CreateTime"]
    assert topics[1].max_message_bytes == 5_000
    assert [(p.partition, p.leader, p.isr) for p in topics[1].partitions] == [
        (0, 1, [1]),
        (1, 1, [1]),
    ]
    span = PartitionRange(start=1, count=9)
    request = MetadataRequest(topics=["b"], span=span)
    (part,) = client.ask(apis.METADATA, request).topics
    assert part.partitions == topics[1].partitions[1:]
    assert ask(client, []).topics == []
    named = ask(client, ["b", "nope", "a/b"]).topics
    assert named[0] == topics[1]
    assert isinstance(error_of(named[1]), UnknownTopicError)
    assert isinstance(error_of(named[2]), InvalidTopicError)


def test_cluster_id_outlives_a_restart(tmp_path: Path) -> None:
    seen = set()
    for _ in range(2):
        with running(tmp_path) as broker, broker.client() as client:
            seen.add(ask(client).cluster_id)
    assert len(seen) == 1
