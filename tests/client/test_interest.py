"""Topics subscribed to by a pattern: those that come, and those that go. In virtual time."""

from __future__ import annotations

import re

import pytest

from raftlog.client.interest import Interest, matching
from raftlog.client.subscription import Subscription
from raftlog.errors import UnknownTopicError
from raftlog.types import TopicPartition
from tests.client.samples import consumer_settings
from tests.client.test_cluster import cluster_of
from tests.client.world import FakeCluster, run


def test_the_whole_name_has_to_match_and_internal_topics_never_do() -> None:
    names = ["logs-b", "logs-a", "my-logs-a", "__logs-a", "logs-"]
    assert matching(re.compile("logs-."), names) == ["logs-a", "logs-b"]
    assert "__logs-a" not in matching(re.compile(".*"), names)


def topics_of(subscription: Subscription) -> set[str]:
    return {tp.topic for tp in subscription.parts}


def test_a_pattern_follows_the_topics_that_there_are() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("a1", 2)
        fake.create("b1")
        cluster = cluster_of(fake)
        subscription = Subscription(consumer_settings(auto_offset_reset="latest"))
        interest = Interest(cluster, subscription, None)
        await interest.subscribe([], re.compile("a.*"))
        assert (interest.topics, topics_of(subscription)) == (("a1",), {"a1"})
        assert subscription.is_open
        fake.create("a2")
        await cluster.refresh()
        assert topics_of(subscription) == {"a1", "a2"}
        resets = {tp.topic: part.reset for tp, part in subscription.parts.items()}
        assert resets == {"a1": "latest", "a2": "earliest"}
        del fake.topics["a1"]
        await cluster.refresh()
        assert set(subscription.parts) == {TopicPartition("a2", 0)}
        await interest.subscribe(["a2"], None)
        assert not subscription.is_open
        fake.create("a3")
        await cluster.refresh()
        assert topics_of(subscription) == {"a2"}
        interest.nothing()
        assert interest.topics == ()

    run(test)


def test_a_topic_by_name_has_to_exist() -> None:
    async def test(fake: FakeCluster) -> None:
        cluster = cluster_of(fake)
        interest = Interest(cluster, Subscription(consumer_settings()), None)
        with pytest.raises(UnknownTopicError):
            await interest.subscribe(["nope"], None)

    run(test)
