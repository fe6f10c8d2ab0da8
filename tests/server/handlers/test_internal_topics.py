"""The topic of consumer groups: clients read it, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.errors import (
    InvalidTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    AddPartitionsRequest,
    AlterTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    MetadataRequest,
    MetadataResponse,
    RecordsToDelete,
    TopicToAlter,
    TopicToExtend,
)
from raftlog.types import OFFSETS_TOPIC
from tests.server.handlers.group_client import GroupClient, at, group_client
from tests.server.harness import (
    Client,
    batch_of,
    error_of,
    only,
)


@pytest.fixture
def groups(client: Client) -> GroupClient:
    return group_client(client)


# -- the topic itself


def test_clients_do_not_write_it(groups: GroupClient) -> None:
    client = groups.client
    for name in (OFFSETS_TOPIC, "__raftlog-mine"):
        assert isinstance(error_of(client.create(name)), InvalidTopicError)
        produced = client.produce(name, batch_of(b"a"))
        assert isinstance(error_of(produced), InvalidTopicError)
    deletion = RecordsToDelete(topic=OFFSETS_TOPIC, partition=0, before_offset=-1)
    answer = client.ask(apis.DELETE_RECORDS, DeleteRecordsRequest(partitions=[deletion]))
    assert isinstance(error_of(only(answer.partitions)), InvalidTopicError)


@pytest.mark.parametrize(
    ("api", "message"),
    [
        (apis.DELETE_TOPICS, DeleteTopicsRequest(topics=[OFFSETS_TOPIC])),
        (
            apis.ADD_PARTITIONS,
            AddPartitionsRequest(topics=[TopicToExtend(name=OFFSETS_TOPIC, partitions=17)]),
        ),
        (
            apis.ALTER_TOPICS,
            AlterTopicsRequest(
                topics=[TopicToAlter(name=OFFSETS_TOPIC, config={"cleanup.policy": "delete"})]
            ),
        ),
    ],
    ids=["delete", "extend", "alter"],
)
def test_clients_do_not_change_it(groups: GroupClient, api: Any, message: Any) -> None:
    failed = only(groups.client.ask(api, message).results)
    assert isinstance(error_of(failed), InvalidTopicError)
    groups.commit(at(0, 5))
    assert groups.fetch() == {0: 5}


def test_an_operator_may_lower_how_many_have_to_be_in_sync(groups: GroupClient) -> None:
    """As the refusal of a write advises."""
    change = TopicToAlter(name=OFFSETS_TOPIC, config={"min.insync.replicas": "1"})
    answer = groups.client.ask(apis.ALTER_TOPICS, AlterTopicsRequest(topics=[change]))
    assert only(answer.results).failure is None


def test_it_is_shown_and_marked(groups: GroupClient) -> None:
    metadata: MetadataResponse = groups.client.ask(apis.METADATA, MetadataRequest())
    assert {topic.name: topic.is_internal for topic in metadata.topics} == {
        OFFSETS_TOPIC: True,
        "t": False,
    }
    described: DescribeTopicsResponse = groups.client.ask(
        apis.DESCRIBE_TOPICS, DescribeTopicsRequest()
    )
    assert {topic.name: topic.is_internal for topic in described.topics} == {
        OFFSETS_TOPIC: True,
        "t": False,
    }


def test_it_can_be_read(groups: GroupClient) -> None:
    groups.commit(at(0, 5))
    hosts = [groups.client.offset(OFFSETS_TOPIC, "latest", partition=p).offset for p in range(16)]
    assert sum(hosts) > 0
