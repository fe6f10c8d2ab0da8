"""Roads to the leaders: opened once, retried with pauses, full when they are."""

from __future__ import annotations

import asyncio
import math

import pytest

from raftlog.client.broker_connections import BrokerConnections
from raftlog.errors import BrokerUnavailableError
from raftlog.protocol import api as apis
from raftlog.protocol.metadata import MetadataRequest
from tests.client.test_cluster import cluster_of
from tests.client.world import FakeCluster, ignore, run


async def links_of(fake: FakeCluster, told: list[float]) -> BrokerConnections:
    cluster = cluster_of(fake)
    await cluster.topic("t")
    clock = fake.host.clock
    return BrokerConnections(
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
        requests = [links.sent(link) for _ in range(2)]
        assert links.connection(link, now()) is None
        for request in requests:
            links.answered(request)
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


def test_a_broker_that_says_nothing_is_noticed_and_others_are_asked() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t", leaders=[1])
        told: list[float] = []
        links = await links_of(fake, told)
        link = links.link(1)
        connection = links.connection(link, now())
        assert connection is not None
        fake.pause(1)
        future = connection.start(apis.METADATA, MetadataRequest(topics=[]), timeout_ms=20_000)
        request = links.sent(link)
        start, asked = now(), len(fake.asked(MetadataRequest))
        assert (len(link.in_flight), link.is_overdue(now())) == (1, False)
        await asyncio.sleep(0.9)
        assert not told
        assert links.is_usable(1, now())
        await asyncio.sleep(0.2)
        assert link.is_overdue(now())
        assert not links.is_usable(1, now())
        assert told[0] == pytest.approx(start + 1, abs=0.01)
        await asyncio.sleep(5)
        assert 5 < len(fake.asked(MetadataRequest)) - asked < 15, "while it lasts"
        assert {broker for broker, _ in fake.requests[asked:]} == {2}
        fake.resume(1)
        await future
        links.answered(request)
        assert (len(link.in_flight), link.is_overdue(now())) == (0, False)
        assert links.is_usable(1, now())
        told.clear()
        await asyncio.sleep(5)
        assert len(told) <= 1
        await links.close()

    run(test, brokers=2)


def test_a_wait_that_was_asked_for_is_no_silence() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        links = await links_of(fake, [])
        link = links.link(1)
        first = links.sent(link, wait_s=3)
        await asyncio.sleep(0.5)
        second = links.sent(link, wait_s=3)
        assert link.overdue_at == first.overdue_at == pytest.approx(now() + 3.5)
        links.answered(first)
        assert link.overdue_at == second.overdue_at
        links.answered(second)
        assert link.overdue_at == math.inf
        patient, hasty = links.sent(link, wait_s=3), links.sent(link)
        assert link.overdue_at == hasty.overdue_at == pytest.approx(now() + 1)
        links.answered(hasty)
        assert link.overdue_at == patient.overdue_at
        await links.close()

    run(test)


def test_a_broker_that_cannot_be_reached_is_not_usable_and_comes_back() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t", leaders=[2])
        told: list[float] = []
        links = await links_of(fake, told)
        fake.unreachable = {2}
        link = links.link(2)
        assert links.is_usable(2, now()), "nothing is known of it"
        links.connection(link, now())
        assert links.is_usable(2, now()), "it may take a moment"
        await asyncio.sleep(1.1)
        assert not links.is_usable(2, now())
        assert told, "somebody may want to turn to another"
        await asyncio.sleep(10)
        assert link.failures == 1
        fake.unreachable = set()
        await asyncio.sleep(2)
        links.connection(link, now())
        await asyncio.sleep(0.1)
        assert links.is_usable(2, now())
        await links.close()

    run(test, brokers=2)


def test_a_road_that_is_lost_is_a_reason_to_ask_who_leads() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        links = await links_of(fake, [])
        link = links.link(1)
        assert links.connection(link, now()) is not None
        asked = len(fake.asked(MetadataRequest))
        fake.peers[0].transport.abort()
        await asyncio.sleep(0.01)
        links.connection(link, now())
        await asyncio.sleep(0.01)
        assert len(fake.asked(MetadataRequest)) == asked + 1
        assert links.connection(link, now()) is not None
        await links.close()

    run(test)
