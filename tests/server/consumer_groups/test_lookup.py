"""Finding coordinators: the topic is made once, by whoever is asked, and with all its copies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

import pytest

from raftlog import limits
from raftlog.config import BrokerConfig, TopicConfig
from raftlog.consumer_groups import partition_of_group
from raftlog.errors import (
    BrokerUnavailableError,
    ClusterNotReadyError,
    CommitUnknownError,
    DiskFullError,
    InvalidGroupError,
    InvalidPartitionsError,
    LeaderNotAvailableError,
    OutcomeUnknownError,
    RaftlogError,
    ThrottledError,
    TopicExistsError,
)
from raftlog.protocol.records import BrokerInfo
from raftlog.replication.partition_state import PartitionState
from raftlog.server.administration import Administration, TopicAuthority
from raftlog.server.groups.coordinator import PATIENCE_SECONDS, Lookup
from raftlog.server.topic_table import HostedTopic, TopicTable
from raftlog.types import OFFSETS_TOPIC
from tests.running import runs
from tests.server.cluster.paper import Scene, play, state_of
from tests.server.harness import error_of

BROKERS = {1: BrokerInfo(id=1, host="a", port=1), 2: BrokerInfo(id=2, host="b", port=2)}


class PaperAuthority:
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
        self.authority = PaperAuthority(self.table)
        self.administration = Administration(s.loop)
        self.copies = 3, 3
        self.told: list[RaftlogError | None] = []
        self.lookup = Lookup(
            BrokerConfig(**settings),
            self.table,
            self.administration,
            authority=lambda: cast(TopicAuthority, self.authority),
            copies=lambda: self.copies,
            now=s.loop.time,
        )

    def _state_of(self, _topic_id: str, partition: int) -> PartitionState | None:
        leader = self.leaders.get(partition)
        return None if leader is None else state_of(1, 2, 3, leader=leader)

    async def ask(self) -> RaftlogError | None:
        future: asyncio.Future[RaftlogError | None] = asyncio.get_running_loop().create_future()
        self.lookup.when_made(future.set_result)
        return await future


def play_with(test: Callable[[Looking, Scene], Coroutine[Any, Any, None]], **settings: Any) -> None:
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

    play_with(
        test,
        offsets_topic_num_partitions=7,
        offsets_topic_replication_factor=2,
        offsets_topic_segment_bytes=65_536,
    )


@runs(play_with)
async def test_who_asks_while_it_is_made_waits(x: Looking, s: Scene) -> None:
    x.authority.gate.clear()
    for _ in range(100):
        x.lookup.when_made(x.told.append)
    await s.come_to_rest()
    assert x.told == []
    x.authority.gate.set()
    await s.come_to_rest()
    assert x.told == [None] * 100
    assert len(x.authority.made) == 1


def test_not_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COORDINATOR_LOOKUPS_MAX", 3)

    async def test(x: Looking, s: Scene) -> None:
        for _ in range(3):
            x.lookup.when_made(x.told.append)
        with pytest.raises(ThrottledError, match="COORDINATOR_LOOKUPS_MAX"):
            x.lookup.when_made(x.told.append)
        await s.come_to_rest()
        assert len(x.told) == 3

    play_with(test)


def test_another_broker_made_it_at_the_same_time() -> None:
    async def test(x: Looking, _s: Scene) -> None:
        x.authority.error = TopicExistsError("made meanwhile")
        assert await x.ask() is None
        found = x.lookup.find("g", BROKERS)
        assert isinstance(error_of(found), LeaderNotAvailableError), "not heard of here yet"

    play_with(test)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (InvalidPartitionsError("3 copies, 1 broker"), ClusterNotReadyError),
        (CommitUnknownError("maybe"), ClusterNotReadyError),
        (ClusterNotReadyError("no majority"), ClusterNotReadyError),
        (DiskFullError("no room"), DiskFullError),
        (KeyError("a bug"), OutcomeUnknownError),
    ],
)
def test_what_may_pass_is_told_as_such(error: Exception, told: type[RaftlogError]) -> None:
    async def test(x: Looking, _s: Scene) -> None:
        x.authority.error = error
        assert type(await x.ask()) is told
        x.authority.error = None
        assert await x.ask() is None

    play_with(test)


def test_a_broker_that_has_just_started_makes_nothing() -> None:
    async def test(x: Looking, _s: Scene) -> None:
        x.table.is_complete = False
        assert isinstance(await x.ask(), ClusterNotReadyError)
        assert x.authority.made == []

    play_with(test)


@runs(play_with)
async def test_a_broker_that_stops_makes_nothing(x: Looking, s: Scene) -> None:
    x.administration.close(BrokerUnavailableError("the broker stops"))
    x.lookup.when_made(x.told.append)
    x.lookup.when_made(x.told.append)
    await s.come_to_rest()
    assert [type(error) for error in x.told] == [BrokerUnavailableError] * 2


def test_changes_that_wait_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(x: Looking, _s: Scene) -> None:
        monkeypatch.setattr(limits, "ADMIN_REQUESTS_PENDING_MAX", 0)
        x.lookup.when_made(x.told.append)
        assert isinstance(x.told.pop(), ThrottledError)
        monkeypatch.undo()
        assert await x.ask() is None

    play_with(test)


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

    play_with(test)


def test_who_says_how_many_copies_waits_for_nobody() -> None:
    async def test(x: Looking, _s: Scene) -> None:
        x.copies = 3, 2
        assert await x.ask() is None

    play_with(test, offsets_topic_replication_factor=2)


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

    play_with(test)
