"""Which shards there are, and what they hear: as leadership and topics come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from raftlog.config import TopicConfig
from raftlog.consumer_groups import GroupShard, TopicInfo, partition_of_group
from raftlog.consumer_groups.values import Topics
from raftlog.errors import (
    BrokerUnavailableError,
    ClusterNotReadyError,
    InvalidGroupError,
    NotCoordinatorError,
)
from raftlog.replication.partition_state import PartitionState
from raftlog.server.groups.coordinator import TOPICS_SECONDS, Coordinator, CoordinatorServices
from raftlog.server.groups.shard import ActiveShard
from raftlog.server.topic_table import HostedTopic, TopicTable
from raftlog.types import OFFSETS_TOPIC
from tests.server.cluster.paper import Scene, play, state_of
from tests.server.consumer_groups.paper_groups import PaperGroups

COUNT = 4


class PaperSource:
    """Topics at a version, as the test says."""

    def __init__(self) -> None:
        self.now = Topics({}, 1)
        self.asked = 0

    def topics(self) -> Topics:
        self.asked += 1
        return self.now

    def version_of(self, topics: Topics) -> int:
        return topics.version


class Coordinating:
    """A broker's table with ``__consumer_offsets``, of which this broker has copies."""

    def __init__(self, s: Scene) -> None:
        self.s = s
        self.made: list[PaperGroups] = []
        self.is_started = True
        self.table = TopicTable()
        self.source = PaperSource()
        self.hosts = [s.host(partition=number) for number in range(COUNT)]
        self.table.state_of = self._state_of
        self.coordinator = Coordinator(
            CoordinatorServices(
                loop=s.loop,
                clock=s.services.clock,
                topics=self.table,
                source=self.source,
                new_groups=self._new_groups,
                confirm=lambda _host, done: done(None),
                on_unreadable=lambda _host, _offset: None,
            )
        )

    def _state_of(self, _topic_id: str, partition: int) -> PartitionState:
        return state_of(2, 3, leader=2, epoch=partition)

    def _new_groups(self) -> GroupShard:
        groups = PaperGroups()
        groups.is_started = self.is_started
        self.made.append(groups)
        return cast(GroupShard, groups)

    def add_topic(self) -> None:
        self.table.add(HostedTopic(OFFSETS_TOPIC, "o", TopicConfig(), {}, list(self.hosts)))

    def lead(self, *partitions: int, epoch: int = 5) -> None:
        for number in partitions:
            self.hosts[number].lead(state_of(1, epoch=epoch), 1, lag_max_seconds=10)
        self.coordinator.poll_soon()

    def group_in(self, partition: int) -> str:
        names = (f"group-{number}" for number in range(1_000))
        return next(name for name in names if partition_of_group(name, COUNT) == partition)

    def shard(self, partition: int) -> ActiveShard:
        return self.coordinator.shard(self.group_in(partition))


def play_with(test: Callable[[Coordinating, Scene], Coroutine[Any, Any, None]]) -> None:
    async def run(s: Scene) -> None:
        c = Coordinating(s)
        await test(c, s)
        await c.coordinator.stop()

    play(run)


def test_there_is_a_shard_for_what_is_led() -> None:
    async def test(c: Coordinating, s: Scene) -> None:
        c.add_topic()
        c.lead(0, 2)
        await s.come_to_rest()
        assert len(c.made) == 2
        assert [shard.host for shard in c.coordinator.shards()] == [c.hosts[0], c.hosts[2]]
        assert c.shard(2).host is c.hosts[2]
        with pytest.raises(NotCoordinatorError, match=r"broker 2 coordinates it"):
            c.shard(1)

    play_with(test)


def test_who_asks_need_not_wait_until_leadership_was_noticed() -> None:
    async def test(c: Coordinating, s: Scene) -> None:
        c.add_topic()
        c.hosts[1].lead(state_of(1, epoch=5), 1, lag_max_seconds=10)
        assert c.shard(1).is_loading
        c.hosts[1].lead(state_of(1, epoch=6), 1, lag_max_seconds=10)
        assert c.shard(1).epoch == 6
        await s.come_to_rest()

    play_with(test)


def test_a_shard_ends_with_leadership() -> None:
    async def test(c: Coordinating, s: Scene) -> None:
        c.add_topic()
        c.lead(0, 1)
        await s.come_to_rest()
        ended = c.shard(0)
        c.hosts[0].follow(2, 6)
        c.coordinator.poll_soon()
        await s.come_to_rest()
        assert ended.is_over
        assert len(c.coordinator.shards()) == 1
        with pytest.raises(NotCoordinatorError):
            c.shard(0)

    play_with(test)


def test_a_new_epoch_is_read_anew() -> None:
    """Somebody else may have led in between."""

    async def test(c: Coordinating, s: Scene) -> None:
        c.add_topic()
        c.lead(0)
        await s.come_to_rest()
        first = c.shard(0)
        c.lead(0, epoch=7)
        await s.come_to_rest()
        assert c.shard(0) is not first
        assert len(c.made) == 2

    play_with(test)


def test_a_copy_that_was_made_anew_is_another_one() -> None:
    async def test(c: Coordinating, s: Scene) -> None:
        c.add_topic()
        c.lead(0)
        await s.come_to_rest()
        first = c.shard(0)
        c.hosts[0].close(NotCoordinatorError("x"))
        c.hosts[0] = s.host()
        c.table.topic(OFFSETS_TOPIC).hosts[0] = c.hosts[0]
        c.lead(0)
        await s.come_to_rest()
        assert c.shard(0) is not first

    play_with(test)


def test_without_the_topic_nobody_coordinates() -> None:
    async def test(c: Coordinating, s: Scene) -> None:
        with pytest.raises(NotCoordinatorError, match="__consumer_offsets does not exist"):
            c.shard(0)
        assert c.coordinator.shards() == []
        c.table.is_complete = False
        with pytest.raises(ClusterNotReadyError):
            c.shard(0)
        with pytest.raises(ClusterNotReadyError):
            c.coordinator.shards()
        await s.come_to_rest()

    play_with(test)


def test_a_name_that_is_none() -> None:
    async def test(c: Coordinating, _s: Scene) -> None:
        with pytest.raises(InvalidGroupError):
            c.coordinator.shard("x" * 300)

    play_with(test)


def test_shards_hear_of_topics_soon_and_of_many_changes_once() -> None:
    async def test(c: Coordinating, s: Scene) -> None:
        c.add_topic()
        c.lead(0, 1)
        await s.come_to_rest()
        for number in range(2, 12):
            c.source.now = Topics({"t": TopicInfo("1", number)}, number)
            c.coordinator.topics_changed()
        await asyncio.sleep(TOPICS_SECONDS + 0.01)
        assert [groups.told for groups in c.made] == [[c.source.now], [c.source.now]]
        assert c.coordinator.metadata_version == 11

    play_with(test)


def test_topics_are_not_read_for_no_shard() -> None:
    """Of thousands, each creation of one would read all."""

    async def test(c: Coordinating, s: Scene) -> None:
        c.add_topic()
        await s.come_to_rest()
        c.coordinator.topics_changed()
        await asyncio.sleep(TOPICS_SECONDS + 0.01)
        assert c.coordinator._known is None

    play_with(test)


def test_changes_while_shards_hear_wait_for_the_next_round() -> None:
    """Rounds that overlap would take the loop's time from all else while many topics go."""

    async def test(c: Coordinating, s: Scene) -> None:
        c.add_topic()
        c.lead(0, 1)
        await s.come_to_rest()
        first = c.source.now = Topics({"t": TopicInfo("1", 2)}, 2)
        c.coordinator.topics_changed()
        told: list[int] = []

        def change() -> None:
            told.extend(len(groups.told) for groups in c.made)
            c.source.now = Topics({"t": TopicInfo("1", 3)}, 3)
            c.coordinator.topics_changed()

        asyncio.get_running_loop().call_later(TOPICS_SECONDS, change)
        await asyncio.sleep(1)
        assert told == [1, 0], "the other one was next"
        assert [groups.told for groups in c.made] == [[first, c.source.now]] * 2

    play_with(test)


def test_who_asks_finds_a_shard_that_has_heard() -> None:
    """It may have been told of the topic by this very broker. Other shards hear later: with many
    groups, all of them at once would hold the loop.
    """

    async def test(c: Coordinating, s: Scene) -> None:
        c.add_topic()
        c.lead(0, 1)
        await s.come_to_rest()
        c.source.now = Topics({"t": TopicInfo("1", 1)}, 2)
        c.coordinator.topics_changed()
        c.shard(0)
        assert [groups.told for groups in c.made] == [[c.source.now], []]
        await asyncio.sleep(1)
        assert [groups.told for groups in c.made] == [[c.source.now], [c.source.now]], "once"

    play_with(test)


def test_a_shard_begins_with_the_topics_of_now() -> None:
    """What was known before may be older than what the log's last coordinator had seen, although
    no topic has changed since: brokers that come and go change the cluster's state, too.
    """

    async def test(c: Coordinating, s: Scene) -> None:
        c.add_topic()
        assert c.coordinator.metadata_version == 1
        c.source.now = Topics({}, 5)
        c.lead(0)
        await s.come_to_rest()
        assert c.made[0].started == [c.source.now]

    play_with(test)


def test_a_shard_that_waits_for_a_newer_state_of_the_cluster_hears_of_it() -> None:
    async def test(c: Coordinating, s: Scene) -> None:
        c.add_topic()
        c.is_started = False
        c.lead(0)
        await s.come_to_rest()
        assert c.shard(0).is_loading
        c.source.now = Topics({}, 2)
        c.coordinator.version_changed()
        await asyncio.sleep(1)
        assert c.made[0].told == [c.source.now]
        asked = c.source.asked
        c.coordinator.version_changed()
        await asyncio.sleep(1)
        assert c.source.asked == asked, "nobody waits any more"

    play_with(test)


def test_the_end() -> None:
    async def test(c: Coordinating, s: Scene) -> None:
        c.add_topic()
        c.lead(0)
        await s.come_to_rest()
        c.lead(1)
        shard = c.coordinator.shards()[0]
        c.coordinator.topics_changed()
        await c.coordinator.stop()
        assert shard.is_over
        c.coordinator.close(BrokerUnavailableError("again"))
        c.lead(2)
        c.coordinator.topics_changed()
        await asyncio.sleep(1)
        assert len(c.made) == 1
        with pytest.raises(NotCoordinatorError, match="the broker stops"):
            c.shard(0)
        with pytest.raises(NotCoordinatorError, match="the broker stops"):
            c.coordinator.shards()

    play_with(test)
