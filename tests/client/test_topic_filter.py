"""Topics subscribed to by a pattern: those that come, and those that go. In virtual time."""

from __future__ import annotations

import re

import pytest

from raftlog import limits
from raftlog.client.consumer import TopicFilter, matching
from raftlog.client.subscription import Subscription
from raftlog.errors import InvalidRequestError, UnknownTopicError
from raftlog.types import TopicPartition
from tests.client.consumer_groups.consuming import consumer_of
from tests.client.consumer_groups.fake_coordinator import FakeCoordinator
from tests.client.samples import consumer_settings
from tests.client.test_cluster import cluster_of
from tests.client.world import FakeCluster, run
from tests.running import runs


def test_the_whole_name_has_to_match_and_internal_topics_never_do() -> None:
    names = ["logs-b", "logs-a", "my-logs-a", "__raftlog-logs-a", "logs-"]
    assert matching(re.compile("logs-."), names) == ["logs-a", "logs-b"]
    assert "__raftlog-logs-a" not in matching(re.compile(".*"), names)


def topics_of(subscription: Subscription) -> set[str]:
    return {tp.topic for tp in subscription.parts}


@runs(run)
async def test_a_pattern_follows_the_topics_that_there_are(fake: FakeCluster) -> None:
    fake.create("a1", 2)
    fake.create("b1")
    cluster = cluster_of(fake)
    subscription = Subscription(consumer_settings(auto_offset_reset="latest"))
    interest = TopicFilter(cluster, subscription, None)
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


@runs(run)
async def test_a_topic_by_name_has_to_exist(fake: FakeCluster) -> None:
    cluster = cluster_of(fake)
    interest = TopicFilter(cluster, Subscription(consumer_settings()), None)
    with pytest.raises(UnknownTopicError):
        await interest.subscribe(["nope"], None)


# -- more topics than a member of a group may read


def test_a_pattern_that_begins_to_match_too_many_topics_is_told_of_and_drops_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "TOPICS_PER_MEMBER_MAX", 2)

    async def test(fake: FakeCluster) -> None:
        fake.create("b1")
        fake.create("b2")
        groups = FakeCoordinator(fake)
        async with consumer_of(fake, metadata_max_age_ms=1_000) as consumer:
            await consumer.subscribe(pattern="[ab].*")
            await consumer.poll(100)
            fake.create("a1")  # it comes first in the order of names
            fake.create("a2")
            groups.know_topics()
            for _ in range(2):  # as long as it is so
                with pytest.raises(InvalidRequestError) as caught:
                    await consumer.poll(60_000)
                for part in ("matches 4 topics", "up to 2", "continues with 2 topics", "narrower"):
                    assert part in str(caught.value)
            assert {tp.topic for tp in await consumer.assignment()} == {"b1", "b2"}
            assert await consumer.poll(100) == [], "it goes on in between"
            del fake.topics["b1"], fake.topics["a2"]
            groups.know_topics()
            while {tp.topic for tp in await consumer.assignment()} != {"a1", "b2"}:
                try:
                    await consumer.poll(100)
                except InvalidRequestError as error:
                    assert "narrower" in str(error)  # noqa: PT017 - it was told of before
            await consumer.poll(10_000)

    run(test)


@pytest.mark.parametrize("names", [None, ["a1", "a2", "b1"]])
def test_a_subscription_to_too_many_topics_changes_nothing(
    names: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TOPICS_PER_MEMBER_MAX", 2)

    async def test(fake: FakeCluster) -> None:
        for name in ("a1", "a2", "b1"):
            fake.create(name)
        FakeCoordinator(fake)
        async with consumer_of(fake, metadata_max_age_ms=1_000) as consumer:
            await consumer.subscribe(pattern="a.*")
            await consumer.poll(100)
            with pytest.raises(InvalidRequestError, match="3 topics"):
                await consumer.subscribe(names, pattern=None if names else ".*")
            assert {tp.topic for tp in await consumer.assignment()} == {"a1", "a2"}
            del fake.topics["a2"]
            while {tp.topic for tp in await consumer.assignment()} != {"a1"}:
                await consumer.poll(100)  # the pattern is tried still

    run(test)


def test_without_a_group_a_pattern_may_match_any_number_of_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "TOPICS_PER_MEMBER_MAX", 2)

    async def test(fake: FakeCluster) -> None:
        for name in ("a1", "a2", "b1"):
            fake.create(name)
        async with consumer_of(fake, group=None) as consumer:
            await consumer.subscribe(pattern=".*")
            assert {tp.topic for tp in await consumer.assignment()} == {"a1", "a2", "b1"}

    run(test)
