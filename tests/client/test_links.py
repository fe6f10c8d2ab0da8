"""Roads to the leaders: opened once, retried with pauses, full when they are."""

from __future__ import annotations

import asyncio

from raftlog.client.links import Links, leader_of
from raftlog.errors import BrokerUnavailableError
from raftlog.protocol import api as apis
from raftlog.protocol.metadata import MetadataRequest
from tests.client.test_cluster import cluster_of
from tests.client.world import FakeCluster, ignore, run


async def links_of(fake: FakeCluster, told: list[float]) -> Links:
    cluster = cluster_of(fake)
    await cluster.topic("t")
    clock = fake.host.clock
    return Links(
        cluster, now=clock.monotonic, on_change=lambda: told.append(now()), in_flight_max=2
    )


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_road_is_opened_once_and_told_of() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t", leaders=[2])
        told: list[float] = []
        links = await links_of(fake, told)
        link = links.link(2)
        assert links.connection(link, now()) is None
        assert links.connection(link, now()) is None
        assert links.retry_at(link, now()) is None, "it is told"
        await asyncio.sleep(0.01)
        assert len(told) == 1
        connection = links.connection(link, now())
        assert connection is not None
        assert fake.connects.count("broker-2") == 1
        link.in_flight = 2
        assert links.connection(link, now()) is None
        link.in_flight = 0
        connection.writable = False
        assert links.connection(link, now()) is None
        connection.resume_writing()
        assert len(told) == 2
        assert links.connection(link, now()) is connection
        await links.close()

    run(test, brokers=2)


def test_a_road_that_cannot_be_opened_is_tried_again_later() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t", leaders=[2])
        told: list[float] = []
        links = await links_of(fake, told)
        fake.down.add(2)
        link = links.link(2)
        for attempt in range(1, 4):
            assert links.connection(link, now()) is None
            await asyncio.sleep(0.001)
            assert link.failures == attempt
            assert isinstance(link.error, BrokerUnavailableError)
            retry_at = links.retry_at(link, now())
            assert retry_at is not None
            assert links.connection(link, now()) is None
            assert fake.connects.count("broker-2") == attempt, "not before"
            await asyncio.sleep(retry_at - now() + 0.001)
        fake.down.clear()
        links.connection(link, now())
        await asyncio.sleep(0.01)
        assert links.connection(link, now()) is not None
        assert (link.failures, link.error) == (0, None)
        assert len(fake.asked(MetadataRequest)) > 1, "its partitions may have moved"
        await links.close()

    run(test, brokers=2)


def test_metadata_is_refreshed_with_pauses_until_something_succeeds() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        links = await links_of(fake, [])
        before = len(fake.asked(MetadataRequest))
        for _ in range(100):
            links.refresh()
            await asyncio.sleep(0.01)
        asked = len(fake.asked(MetadataRequest)) - before
        assert 2 < asked < 15
        links.succeeded()
        await asyncio.sleep(1)
        assert links.refresh() is None
        assert links.refresh() is None, "one is under way"
        await links.close()

    run(test)


def test_a_refresh_that_fails_leaves_its_reason() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        told: list[float] = []
        links = await links_of(fake, told)
        fake.kill(1)
        links.refresh()
        await asyncio.sleep(0.01)
        assert isinstance(links.error, BrokerUnavailableError)
        assert told
        fake.down.clear()
        await asyncio.sleep(2)
        links.refresh()
        await asyncio.sleep(0.01)
        assert links.error is None
        await links.close()

    run(test)


def test_closing_ends_what_is_under_way() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t", leaders=[2])
        links = await links_of(fake, [])
        fake.next(apis.API_VERSIONS, ignore)
        links.connection(links.link(2), now())
        await asyncio.sleep(0.01)
        await links.close()
        await links.close()

    run(test, brokers=2)


def test_a_leader_or_none() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t", 2, leaders=[1, None])
        cluster = cluster_of(fake)
        await cluster.topic("t")
        assert leader_of(cluster, "t", 0) == 1
        assert leader_of(cluster, "t", 1) is None
        await cluster.close()

    run(test)
