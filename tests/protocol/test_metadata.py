"""``metadata``: asking for all, for some and for none, and the bounds of an answer."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.protocol.records import MetadataRequest, MetadataResponse, TopicInfo
from tests.protocol.fields import accepted, refused


@pytest.mark.parametrize("topics", [None, [], ["a"], ["a"] * limits.TOPICS_PER_REQUEST_MAX])
def test_all_topics_none_and_some_are_three_things(topics: list[str] | None) -> None:
    assert accepted(MetadataRequest, {"topics": topics}) == MetadataRequest(topics=topics)


def test_to_say_nothing_is_to_ask_for_all() -> None:
    assert accepted(MetadataRequest, {}) == MetadataRequest(topics=None)


@pytest.mark.parametrize(
    ("topics", "path"),
    [
        (["a"] * (limits.TOPICS_PER_REQUEST_MAX + 1), "$.topics"),
        ([""], "$.topics[0]"),
        (["x" * 1_000], "$.topics[0]"),
        (["a", None], "$.topics[1]"),
    ],
)
def test_a_request_is_bounded(topics: list[Any], path: str) -> None:
    refused(MetadataRequest, {"topics": topics}, path=path)


def test_an_illegal_name_gets_as_far_as_its_own_answer() -> None:
    """Names are judged topic by topic, by the broker: here only their size is."""
    accepted(MetadataRequest, {"topics": ["../etc", "ä", "x" * 300]})


PARTITION: dict[str, Any] = {
    "partition": 0,
    "leader": None,
    "leader_epoch": -1,
    "replicas": [],
    "isr": [],
}
BROKER: dict[str, Any] = {"id": 1, "host": "h", "port": 9100}


def answer(*, broker: dict[str, Any] = BROKER, partition: dict[str, Any]) -> dict[str, Any]:
    topic = {"name": "a", "partitions": [partition]}
    return {"cluster_id": "c", "brokers": [broker], "topics": [topic]}


def test_a_partition_may_have_no_leader() -> None:
    message = accepted(MetadataResponse, answer(partition=PARTITION))
    assert isinstance(message, MetadataResponse)
    assert message.topics[0].partitions[0].leader is None


def test_a_topic_that_is_not_there_has_a_failure_and_nothing_else() -> None:
    failed = accepted(TopicInfo, {"name": "a", "failure": {"code": 207, "message": "none"}})
    assert isinstance(failed, TopicInfo)
    assert failed.failure is not None
    assert failed.partitions == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partition", -1),
        ("partition", limits.PARTITIONS_PER_TOPIC_MAX),
        ("leader", -1),
        ("leader_epoch", -2),
        ("leader_epoch", 1 << 31),
        ("replicas", [1 << 31]),
        ("isr", None),
    ],
)
def test_a_partition_is_bounded(name: str, value: Any) -> None:
    wrong = answer(partition={**PARTITION, name: value})
    refused(MetadataResponse, wrong, path=f"$.topics[0].partitions[0].{name}")


@pytest.mark.parametrize("controller", [None, 0, 7])
def test_a_cluster_has_a_controller_or_waits_for_one(controller: int | None) -> None:
    message = accepted(MetadataResponse, {**answer(partition=PARTITION), "controller": controller})
    assert isinstance(message, MetadataResponse)
    assert message.controller == controller
    wrong = {**answer(partition=PARTITION), "controller": -1}
    refused(MetadataResponse, wrong, path="$.controller")


@pytest.mark.parametrize(("name", "value"), [("id", -1), ("port", 65_536), ("host", 1)])
def test_a_broker_is_bounded(name: str, value: Any) -> None:
    wrong = answer(broker={**BROKER, name: value}, partition=PARTITION)
    refused(MetadataResponse, wrong, path=f"$.brokers[0].{name}")
