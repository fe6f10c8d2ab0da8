"""A client's view of the cluster: merging news, finding leaders, saying why not."""

from __future__ import annotations

import pytest

from raftlog.client.metadata import ClusterView, unreachable
from raftlog.config import Address
from raftlog.errors import (
    BrokerUnavailableError,
    FrameError,
    LeaderNotAvailableError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol.metadata import BrokerInfo, MetadataResponse, PartitionInfo, TopicInfo
from raftlog.protocol.schema import Failure


def response(*topics: TopicInfo) -> MetadataResponse:
    return MetadataResponse(
        cluster_id="c", brokers=[BrokerInfo(id=1, host="::1", port=9)], topics=list(topics)
    )


def topic(name: str, *leaders: int | None) -> TopicInfo:
    return TopicInfo(
        name=name,
        id="x",
        max_message_bytes=100,
        partitions=[
            PartitionInfo(partition=number, leader=leader, leader_epoch=0, replicas=[], isr=[])
            for number, leader in reversed(list(enumerate(leaders)))
        ],
    )


def missing(name: str) -> TopicInfo:
    return TopicInfo(name=name, failure=Failure.of(UnknownTopicError(f"no {name}")))


def test_news_are_merged() -> None:
    view = ClusterView().merge(response(topic("a", 1, 2), topic("b", 1)), asked=["a", "b"])
    assert view.brokers == {1: Address("::1", 9)}
    assert view.topic("a").leaders == (1, 2)
    later = view.merge(response(topic("a", 2, 2, None)), asked=["a"])
    assert later.topic("a").partition_count == 3
    assert later.topic("b") == view.topic("b")
    assert view.topic("a").partition_count == 2, "a view never changes"


def test_an_answer_for_all_topics_replaces_all() -> None:
    view = ClusterView().merge(response(topic("a", 1), missing("c")), asked=["a", "c"])
    assert set(view.merge(response(topic("b", 1)), asked=None).topics) == {"b"}
    assert not view.merge(response(), asked=None).failures


def test_a_topic_comes_and_goes() -> None:
    view = ClusterView().merge(response(missing("a")), asked=["a"])
    with pytest.raises(UnknownTopicError, match="no a"):
        view.topic("a")
    view = view.merge(response(topic("a", 1)), asked=["a"])
    assert view.leader("a", 0) == 1
    view = view.merge(response(missing("a")), asked=["a"])
    with pytest.raises(UnknownTopicError):
        view.leader("a", 0)
    with pytest.raises(UnknownTopicError, match="raftlog topic create zz"):
        view.topic("zz")


def test_leaders() -> None:
    view = ClusterView().merge(response(topic("a", 1, None)), asked=["a"])
    assert view.leader("a", 0) == 1
    with pytest.raises(LeaderNotAvailableError, match="a:1"):
        view.leader("a", 1)
    for partition in (-1, 2):
        with pytest.raises(UnknownPartitionError, match=f"no partition {partition}: it has 2"):
            view.leader("a", partition)


def test_what_cannot_be_reached_is_named_with_its_reason_and_what_to_do() -> None:
    error = unreachable(
        {
            Address("a", 1): BrokerUnavailableError("connection refused"),
            Address("::1", 2): FrameError("an HTTP server"),
        }
    )
    assert isinstance(error, BrokerUnavailableError)
    for part in ("a:1 (connection refused)", "[::1]:2 (an HTTP server)", "raftlog up"):
        assert part in str(error)
    assert "--bootstrap / RAFTLOG_BOOTSTRAP" in str(error)


def test_a_stranger_at_every_address_is_no_reason_to_wait() -> None:
    error = unreachable({Address("a", 1): FrameError("a:1: an HTTP server")})
    assert isinstance(error, FrameError)
