"""Which shards there are, and what they hear: as leadership and topics come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

import pytest

from raftlog import limits
from raftlog.config import BrokerConfig, TopicConfig
from raftlog.consumer_groups import GroupShard, TopicInfo, partition_of_group
from raftlog.consumer_groups.values import Topics
from raftlog.errors import (
    BrokerUnavailableError,
    ClusterNotReadyError,
    CommitUnknownError,
    DiskFullError,
    InvalidGroupError,
    InvalidPartitionsError,
    LeaderNotAvailableError,
    NotCoordinatorError,
    OutcomeUnknownError,
    RaftlogError,
    ThrottledError,
    TopicExistsError,
)
from raftlog.protocol.records import BrokerInfo
from raftlog.replication.cluster_commands import CreateTopic
from raftlog.replication.partition_state import PartitionState
from raftlog.server.administration import Administration
from raftlog.server.cluster.topics import ClusterTopics
from raftlog.server.groups.coordinator import (
    PATIENCE_SECONDS,
    TOPICS_SECONDS,
    Coordinator,
    CoordinatorServices,
    Lookup,
    TopicMaker,
    agreed_topics,
)
from raftlog.server.groups.shard import ActiveShard
from raftlog.server.topic_table import HostedTopic, TopicTable
from raftlog.types import OFFSETS_TOPIC
from tests.running import runs
from tests.server.cluster.fake import Scene, play, state_of
from tests.server.consumer_groups.fake_groups import FakeGroups
from tests.server.harness import error_of

COUNT = 4


class FakeSource:
    """Topics at a version, as the test says."""

    def __init__(self) -> None:
        self.now = Topics({}, 1)
        self.asked = 0

    def topics(self) -> Topics:
        self.asked += 1
        return self.now


class Coordinating:
    """A broker's table with ``__consumer_offsets``, of which this broker has copies."""

    def __init__(self, s: Scene) -> None:
        self.s = s
        self.made: list[FakeGroups] = []
        self.is_started = True
        self.table = TopicTable()
        self.source = FakeSource()
        self.hosts = [s.host(partition=number) for number in range(COUNT)]
        self.table.state_of = self._state_of
        self.coordinator = Coordinator(
            CoordinatorServices(
                loop=s.loop,
                clock=s.services.clock,
                topics=self.table,
                agreed=self.source.topics,
                new_groups=self._new_groups,
                confirm=lambda _host, done: done(None),
                on_unreadable=lambda _host, _offset: None,
            )
        )

    def _state_of(self, _topic_id: str, partition: int) -> PartitionState:
        return state_of(2, 3, leader=2, epoch=partition)

    def _new_groups(self) -> GroupShard:
        groups = FakeGroups()
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
        assert [groups.noted for groups in c.made] == [[c.source.now], [c.source.now]]
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
        noted: list[int] = []

        def change() -> None:
            noted.extend(len(groups.noted) for groups in c.made)
            c.source.now = Topics({"t": TopicInfo("1", 3)}, 3)
            c.coordinator.topics_changed()

        asyncio.get_running_loop().call_later(TOPICS_SECONDS, change)
        await asyncio.sleep(1)
        assert noted == [1, 0], "the other one was next"
        assert [groups.noted for groups in c.made] == [[first, c.source.now]] * 2

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
        assert [groups.noted for groups in c.made] == [[c.source.now], []]
        await asyncio.sleep(1)
        assert [groups.noted for groups in c.made] == [[c.source.now], [c.source.now]], "once"

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
        assert c.made[0].noted == [c.source.now]
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


# -- lookup ----------------------------------------------------------------------------------------
#
# Finding coordinators: the topic is made once, by whoever is asked, and with all its copies.


BROKERS = {1: BrokerInfo(id=1, host="a", port=1), 2: BrokerInfo(id=2, host="b", port=2)}


class FakeAuthority:
    """Makes topics when the test lets it, and answers what the test says."""

    def __init__(self, table: TopicTable) -> None:
        self._table = table
        self.made: list[tuple[str, int, int, Mapping[str, str]]] = []
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def create(
        self, name: str, *, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> None:
        await self.gate.wait()
        self.made.append((name, partitions, replication_factor, config))
        if self.error is not None:
            raise self.error
        self._table.add(
            HostedTopic(name, "o", TopicConfig.from_text(config), config, [None] * partitions)
        )


class Looking:
    """``told``: what those were told who waited for the topic."""

    def __init__(self, s: Scene, **settings: Any) -> None:
        self.table = TopicTable()
        self.table.state_of = self._state_of
        self.leaders: dict[int, int] = {}
        self.authority = FakeAuthority(self.table)
        self.administration = Administration(s.loop)
        self.copies = 3, 3
        self.noted: list[RaftlogError | None] = []
        config = BrokerConfig(**settings)
        self.maker = TopicMaker(
            OFFSETS_TOPIC,
            self.table,
            self.administration,
            partitions=config.offsets_topic_num_partitions,
            replication_factor=config.offsets_topic_replication_factor,
            settings={"segment.bytes": str(config.offsets_topic_segment_bytes)},
            authority=cast(ClusterTopics, self.authority),
            copies=lambda: self.copies,
            now=s.loop.time,
        )
        self.lookup = Lookup(self.table, self.maker)

    def _state_of(self, _topic_id: str, partition: int) -> PartitionState | None:
        leader = self.leaders.get(partition)
        return None if leader is None else state_of(1, 2, 3, leader=leader)

    async def ask(self) -> RaftlogError | None:
        future: asyncio.Future[RaftlogError | None] = asyncio.get_running_loop().create_future()
        self.maker.when_made(future.set_result)
        return await future


def lookup_play_with(
    test: Callable[[Looking, Scene], Coroutine[Any, Any, None]], **settings: Any
) -> None:
    async def run(s: Scene) -> None:
        looking = Looking(s, **settings)
        await test(looking, s)
        await looking.administration.finish()

    play(run)


def test_it_is_made_as_the_settings_say() -> None:
    async def test(x: Looking, _s: Scene) -> None:
        assert await x.ask() is None
        ((name, partitions, copies, config),) = x.authority.made
        assert (name, partitions, copies) == (OFFSETS_TOPIC, 7, 2)
        topic = TopicConfig.from_text(config)
        assert topic.is_compacted
        assert not topic.is_deleted_by_age
        assert topic.segment_bytes == 65_536
        assert await x.ask() is None
        assert len(x.authority.made) == 1, "once"

    lookup_play_with(
        test,
        offsets_topic_num_partitions=7,
        offsets_topic_replication_factor=2,
        offsets_topic_segment_bytes=65_536,
    )


@runs(lookup_play_with)
async def test_who_asks_while_it_is_made_waits(x: Looking, s: Scene) -> None:
    x.authority.gate.clear()
    for _ in range(100):
        x.maker.when_made(x.noted.append)
    await s.come_to_rest()
    assert x.noted == []
    x.authority.gate.set()
    await s.come_to_rest()
    assert x.noted == [None] * 100
    assert len(x.authority.made) == 1


def test_not_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COORDINATOR_LOOKUPS_MAX", 3)

    async def test(x: Looking, s: Scene) -> None:
        for _ in range(3):
            x.maker.when_made(x.noted.append)
        with pytest.raises(ThrottledError, match="COORDINATOR_LOOKUPS_MAX"):
            x.maker.when_made(x.noted.append)
        await s.come_to_rest()
        assert len(x.noted) == 3

    lookup_play_with(test)


def test_another_broker_made_it_at_the_same_time() -> None:
    async def test(x: Looking, _s: Scene) -> None:
        x.authority.error = TopicExistsError("made meanwhile")
        assert await x.ask() is None
        found = x.lookup.find("g", BROKERS)
        assert isinstance(error_of(found), LeaderNotAvailableError), "not heard of here yet"

    lookup_play_with(test)


@pytest.mark.parametrize(
    ("error", "noted"),
    [
        (InvalidPartitionsError("3 copies, 1 broker"), ClusterNotReadyError),
        (CommitUnknownError("maybe"), ClusterNotReadyError),
        (ClusterNotReadyError("no majority"), ClusterNotReadyError),
        (DiskFullError("no room"), DiskFullError),
        (KeyError("a bug"), OutcomeUnknownError),
    ],
)
def test_what_may_pass_is_told_as_such(error: Exception, noted: type[RaftlogError]) -> None:
    async def test(x: Looking, _s: Scene) -> None:
        x.authority.error = error
        assert type(await x.ask()) is noted
        x.authority.error = None
        assert await x.ask() is None

    lookup_play_with(test)


def test_a_broker_that_has_just_started_makes_nothing() -> None:
    async def test(x: Looking, _s: Scene) -> None:
        x.table.is_complete = False
        assert isinstance(await x.ask(), ClusterNotReadyError)
        assert x.authority.made == []

    lookup_play_with(test)


@runs(lookup_play_with)
async def test_a_broker_that_stops_makes_nothing(x: Looking, s: Scene) -> None:
    x.administration.close(BrokerUnavailableError("the broker stops"))
    x.maker.when_made(x.noted.append)
    x.maker.when_made(x.noted.append)
    await s.come_to_rest()
    assert [type(error) for error in x.noted] == [BrokerUnavailableError] * 2


def test_changes_that_wait_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(x: Looking, _s: Scene) -> None:
        monkeypatch.setattr(limits, "ADMIN_REQUESTS_PENDING_MAX", 0)
        x.maker.when_made(x.noted.append)
        assert isinstance(x.noted.pop(), ThrottledError)
        monkeypatch.undo()
        assert await x.ask() is None

    lookup_play_with(test)


def test_brokers_that_have_yet_to_come_are_waited_for_and_not_for_ever() -> None:
    async def test(x: Looking, _s: Scene) -> None:
        x.copies = 3, 1
        error = await x.ask()
        assert isinstance(error, ClusterNotReadyError)
        assert "2 brokers of the cluster are not up" in str(error)
        await asyncio.sleep(PATIENCE_SECONDS / 2)
        assert isinstance(await x.ask(), ClusterNotReadyError)
        await asyncio.sleep(PATIENCE_SECONDS / 2 + 0.1)
        assert await x.ask() is None
        assert [copies for _, _, copies, _ in x.authority.made] == [1]

    lookup_play_with(test)


def test_who_says_how_many_copies_waits_for_nobody() -> None:
    async def test(x: Looking, _s: Scene) -> None:
        x.copies = 3, 2
        assert await x.ask() is None

    lookup_play_with(test, offsets_topic_replication_factor=2)


def test_the_coordinator_is_who_leads() -> None:
    async def test(x: Looking, _s: Scene) -> None:
        await x.ask()
        partition = partition_of_group("g", 16)
        x.leaders[partition] = 2
        found = x.lookup.find("g", BROKERS)
        assert (found.broker_id, found.host, found.port) == (2, "b", 2)
        for leader in (None, 3):
            x.leaders.pop(partition, None)
            if leader is not None:
                x.leaders[partition] = leader  # a broker that cannot be asked
            missing = error_of(x.lookup.find("g", BROKERS))
            assert isinstance(missing, LeaderNotAvailableError)
        bad = x.lookup.find("x" * 300, BROKERS)
        assert isinstance(error_of(bad), InvalidGroupError)

    lookup_play_with(test)


# -- topic source ----------------------------------------------------------------------------------
#
# Which topics there are, and a version that grows with them.


def test_those_that_were_agreed_on() -> None:
    async def test(s: Scene) -> None:
        s.register(1)
        before = agreed_topics(s.machine)
        s.command(
            CreateTopic(name="t", topic_id="T", partitions=3, replication_factor=1, overrides={})
        )
        topics = agreed_topics(s.machine)
        assert dict(before.by_name) == {}
        assert dict(topics.by_name) == {"t": TopicInfo("T", 3)}
        assert topics.version == s.machine.version > before.version

    play(test)
