"""What a request names twice is refused before anything is done."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.errors import InvalidRequestError
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    DeleteRecordsRequest,
    DescribeTopicsRequest,
    FetchPartition,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetQuery,
    ProducePartition,
    ProduceRequest,
    RecordsToDelete,
)
from raftlog.server.exchange import check_once
from tests.server.harness import Client

TWICE = [
    (apis.PRODUCE, ProduceRequest(acks=-1, partitions=[ProducePartition("t", 0, length=0)] * 2)),
    (apis.FETCH, FetchRequest(partitions=[FetchPartition("t", 0, offset=0)] * 2)),
    (apis.LIST_OFFSETS, ListOffsetsRequest(queries=[OffsetQuery("t", 0, at=5)] * 2)),
    (apis.DELETE_RECORDS, DeleteRecordsRequest(partitions=[RecordsToDelete("t", 0, 0)] * 2)),
    (apis.DESCRIBE_TOPICS, DescribeTopicsRequest(topics=["t", "t"])),
    (apis.METADATA, MetadataRequest(topics=["t", "t"])),
]


@pytest.mark.parametrize(("api", "request_"), TWICE, ids=[api.name for api, _ in TWICE])
def test_what_is_named_twice_is_refused(client: Client, api: apis.Api, request_: Any) -> None:
    client.create("t")
    with pytest.raises(InvalidRequestError, match=f"{api.name} contains t.* twice"):
        client.ask(api, request_)


def test_a_time_and_an_end_may_be_asked_of_one_partition(client: Client) -> None:
    client.create("t")
    queries = [OffsetQuery("t", 0, at=at) for at in ("earliest", "latest", 5)]
    assert len(client.ask(apis.LIST_OFFSETS, ListOffsetsRequest(queries=queries)).answers) == 3


def test_each_name_once_is_fine() -> None:
    check_once("fetch", [])
    check_once("fetch", [("t", 0), ("t", 1), ("u", 0)])
