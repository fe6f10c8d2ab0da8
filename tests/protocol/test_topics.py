"""Topic administration: the bounds in its fields."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.protocol.records import (
    AddPartitionsRequest,
    AlterTopicsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    TopicsResponse,
    TopicToAlter,
    TopicToCreate,
)
from raftlog.protocol.schema import Message
from tests.protocol.fields import accepted, refused

MANY_KEYS = {f"key.{number}": "1" for number in range(limits.CONFIG_KEYS_PER_TOPIC_MAX + 1)}
TOPICS_MAX = limits.TOPICS_PER_REQUEST_MAX

# Each request, the list in it, one good item of that list, and how many there may be.
REQUESTS: list[tuple[type[Message], str, Any, int]] = [
    (CreateTopicsRequest, "topics", {"name": "a"}, TOPICS_MAX),
    (DeleteTopicsRequest, "topics", "a", TOPICS_MAX),
    (AlterTopicsRequest, "topics", {"name": "a", "config": {}}, TOPICS_MAX),
    (AddPartitionsRequest, "topics", {"name": "a", "partitions": 2}, TOPICS_MAX),
    (
        DeleteRecordsRequest,
        "partitions",
        {"topic": "a", "partition": 0, "before_offset": 1},
        limits.PARTITIONS_PER_REQUEST_MAX,
    ),
]


@pytest.mark.parametrize(("request_type", "name", "item", "most"), REQUESTS)
def test_a_request_names_some_topics_and_not_too_many(
    request_type: type[Message], name: str, item: Any, most: int
) -> None:
    accepted(request_type, {name: [item] * most})
    refused(request_type, {name: [item] * (most + 1)}, path=f"$.{name}")
    refused(request_type, {name: []}, path=f"$.{name}")
    refused(request_type, {}, path=name)


@pytest.mark.parametrize(
    ("request_type", "item", "path"),
    [
        (CreateTopicsRequest, {"name": ""}, "$.topics[0].name"),
        (CreateTopicsRequest, {"name": "a", "partitions": "3"}, "$.topics[0].partitions"),
        (CreateTopicsRequest, {"name": "a", "config": {"k": 1}}, "$.topics[0].config[...]"),
        (CreateTopicsRequest, {"name": "a", "config": {"k": None}}, "$.topics[0].config[...]"),
        (CreateTopicsRequest, {"name": "a", "config": {"k": "v" * 4_097}}, "$.topics[0].config"),
        (CreateTopicsRequest, {"name": "a", "config": {"k" * 257: "v"}}, "$.topics[0].config"),
        (CreateTopicsRequest, {"name": "a", "config": MANY_KEYS}, "$.topics[0].config"),
        (AlterTopicsRequest, {"name": "a"}, "config"),
        (AlterTopicsRequest, {"name": "a", "config": MANY_KEYS}, "$.topics[0].config"),
        (DeleteTopicsRequest, "x" * 1_000, "$.topics[0]"),
        (AddPartitionsRequest, {"name": "a", "partitions": 0}, "$.topics[0].partitions"),
        (AddPartitionsRequest, {"name": "a", "partitions": 10_001}, "$.topics[0].partitions"),
    ],
)
def test_a_topic_is_bounded(request_type: type[Message], item: Any, path: str) -> None:
    refused(request_type, {"topics": [item]}, path=path)


def test_one_bad_topic_does_not_hurt_its_neighbours() -> None:
    """Names and counts that cannot be met are judged topic by topic, by the broker."""
    bad = {"name": "a/b", "partitions": -1, "replication_factor": 1 << 40}
    message = accepted(CreateTopicsRequest, {"topics": [{"name": "a"}, bad]})
    assert message == CreateTopicsRequest([TopicToCreate("a"), TopicToCreate("a/b", -1, 1 << 40)])


def test_a_key_goes_back_to_its_default_by_none() -> None:
    message = accepted(AlterTopicsRequest, {"topics": [{"name": "a", "config": {"k": None}}]})
    assert message == AlterTopicsRequest([TopicToAlter("a", {"k": None})])


@pytest.mark.parametrize("before_offset", [-1, 0, (1 << 63) - 1])
def test_records_are_deleted_up_to_an_offset_or_the_high_watermark(before_offset: int) -> None:
    part = {"topic": "a", "partition": 0, "before_offset": before_offset}
    accepted(DeleteRecordsRequest, {"partitions": [part]})


@pytest.mark.parametrize("before_offset", [-2, 1 << 63, None])
def test_there_is_no_such_offset(before_offset: Any) -> None:
    part = {"topic": "a", "partition": 0, "before_offset": before_offset}
    path = "$.partitions[0].before_offset"
    refused(DeleteRecordsRequest, {"partitions": [part]}, path=path)


@pytest.mark.parametrize("topics", [None, [], ["a"]])
def test_all_topics_or_some_are_described(topics: list[str] | None) -> None:
    assert accepted(DescribeTopicsRequest, {"topics": topics}) == DescribeTopicsRequest(topics)


def test_answers_come_topic_by_topic() -> None:
    results = [{"name": "a", "id": "5f1d"}, {"name": "b", "failure": {"code": 206}}]
    message = accepted(TopicsResponse, {"results": results})
    assert isinstance(message, TopicsResponse)
    assert [result.failure is None for result in message.results] == [True, False]


def test_a_sound_partition_has_no_damage() -> None:
    info = {"partition": 0, "leader": 1, "leader_epoch": 0, "replicas": [1], "isr": [1]}
    topic = {"name": "a", "partitions": [{"info": info}]}
    message = accepted(DescribeTopicsResponse, {"topics": [topic]})
    assert isinstance(message, DescribeTopicsResponse)
    assert message.topics[0].partitions[0].damage == ""
