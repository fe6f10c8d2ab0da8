"""Roads to the leaders: opened once, retried with pauses, full when they are."""

from __future__ import annotations

import asyncio
import math

import pytest

from raftlog.client.connection import Answer
from raftlog.client.requests import BrokerConnection, BrokerConnections, InFlightRequest
from raftlog.errors import BrokerUnavailableError, ConnectionLostError, RaftlogError
from raftlog.protocol import api as apis
from raftlog.protocol.records import MetadataRequest, MetadataResponse
from tests.client.test_cluster import cluster_of
from tests.client.world import FakeCluster, ignore, run
from tests.running import runs


class Owner:
    """Notes what becomes of its loads, which are numbers, and when something changed."""

    def __init__(self, told: list[float]) -> None:
        self.told = told
        self.responses: list[int] = []
        self.failures: list[tuple[int, RaftlogError]] = []

    def on_change(self) -> None:
        self.told.append(now())

    def on_response(self, link: BrokerConnection[int], load: int, answer: Answer) -> None:
        assert isinstance(answer.message, MetadataResponse)
        self.responses.append(load)

    def on_failure(self, link: BrokerConnection[int], load: int, error: RaftlogError) -> None:
        self.failures.append((load, error))


async def links_of(
    fake: FakeCluster, told: list[float], owner: Owner | None = None
) -> BrokerConnections[int]:
    cluster = cluster_of(fake)
    await cluster.topic("t")
    return BrokerConnections(
        cluster, owner or Owner(told), now=fake.host.clock.monotonic, in_flight_max=2
    )


def send(links: BrokerConnections[int], link: BrokerConnection[int], load: int = 0) -> bool:
    connection = links.connection(link, now())
    assert connection is not None
    return links.send(link, connection, load, apis.METADATA, MetadataRequest(topics=[]))


def now() -> float:
    return asyncio.get_running_loop().time()


@runs(run, brokers=2)
async def test_a_road_is_opened_once_and_told_of(fake: FakeCluster) -> None:
    fake.create("t", leaders=[2])
    told: list[float] = []
    owner = Owner(told)
    links = await links_of(fake, told, owner)
    link = links.link(2)
    assert links.connection(link, now()) is None
    assert links.connection(link, now()) is None
    assert links.retry_at(link, now()) is None, "it is told"
    await asyncio.sleep(0.01)
    assert len(told) == 1
    connection = links.connection(link, now())
    assert connection is not None
    assert fake.connects.count("broker-2") == 1
    assert all(send(links, link, load) for load in (7, 8))
    assert [request.load for request in links.in_flight()] == [7, 8]
    assert links.connection(link, now()) is None, "two are in flight"
    await asyncio.sleep(0.01)
    assert (owner.responses, list(links.in_flight())) == ([7, 8], [])
    connection.writable = False
    assert links.connection(link, now()) is None
    connection.resume_writing()
    assert len(told) == 2
    assert links.connection(link, now()) is connection
    await links.close()


@runs(run, brokers=2)
async def test_a_road_that_cannot_be_opened_is_tried_again_later(fake: FakeCluster) -> None:
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


@runs(run)
async def test_metadata_is_refreshed_with_pauses_until_something_succeeds(
    fake: FakeCluster,
) -> None:
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


@runs(run)
async def test_a_refresh_that_fails_leaves_its_reason(fake: FakeCluster) -> None:
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


@runs(run, brokers=2)
async def test_closing_ends_what_is_under_way(fake: FakeCluster) -> None:
    fake.create("t", leaders=[2])
    links = await links_of(fake, [])
    fake.next(apis.API_VERSIONS, ignore)
    links.connection(links.link(2), now())
    await asyncio.sleep(0.01)
    await links.close()
    await links.close()


@runs(run, brokers=2)
async def test_a_broker_that_says_nothing_is_noticed_and_others_are_asked(
    fake: FakeCluster,
) -> None:
    fake.create("t", leaders=[1])
    told: list[float] = []
    links = await links_of(fake, told)
    link = links.link(1)
    fake.pause(1)
    send(links, link)
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
    await asyncio.sleep(0.01)
    assert (len(link.in_flight), link.is_overdue(now())) == (0, False)
    assert links.is_usable(1, now())
    told.clear()
    await asyncio.sleep(5)
    assert len(told) <= 1
    await links.close()


@runs(run)
async def test_a_wait_that_was_asked_for_is_no_silence(fake: FakeCluster) -> None:
    fake.create("t")
    links = await links_of(fake, [])
    link = links.link(1)
    connection = links.connection(link, now())
    assert connection is not None
    requests: list[InFlightRequest[int]] = []

    def ask(wait_ms: int) -> None:
        fake.next(apis.METADATA, ignore)
        message = MetadataRequest(topics=[])
        links.send(link, connection, 0, apis.METADATA, message, wait_ms=wait_ms)
        requests.append(list(link.in_flight)[-1])

    ask(3_000)
    await asyncio.sleep(0.5)
    ask(3_000)
    assert link.overdue_at == requests[0].overdue_at == pytest.approx(now() + 3.5)
    del link.in_flight[requests[0]]
    assert link.overdue_at == requests[1].overdue_at
    del link.in_flight[requests[1]]
    assert link.overdue_at == math.inf
    ask(3_000)
    ask(0)
    assert link.overdue_at == requests[3].overdue_at == pytest.approx(now() + 1)
    del link.in_flight[requests[3]]
    assert link.overdue_at == requests[2].overdue_at
    link.in_flight.clear()
    await links.close()


@runs(run, brokers=2)
async def test_a_broker_that_cannot_be_reached_is_not_usable_and_comes_back(
    fake: FakeCluster,
) -> None:
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


@runs(run)
async def test_a_road_that_is_lost_is_a_reason_to_ask_who_leads(fake: FakeCluster) -> None:
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


@runs(run)
async def test_a_request_that_fails_makes_its_broker_doubtful_and_its_load_is_returned(
    fake: FakeCluster,
) -> None:
    fake.create("t")
    owner = Owner([])
    links = await links_of(fake, [], owner)
    link = links.link(1)
    connection = links.connection(link, now())
    assert connection is not None
    asked = len(fake.asked(MetadataRequest))
    fake.next(apis.METADATA, ignore)
    send(links, link, 7)
    fake.peers[0].transport.abort()
    await asyncio.sleep(0.01)
    ((load, error),) = owner.failures
    assert (load, list(links.in_flight())) == (7, [])
    assert isinstance(error, ConnectionLostError)
    assert len(fake.asked(MetadataRequest)) == asked + 1, "who leads now?"
    message = MetadataRequest(topics=[])
    assert not links.send(link, connection, 8, apis.METADATA, message), "it is closed"
    assert [load for load, _ in owner.failures] == [7, 8]
    await links.close()


@runs(run)
async def test_what_ends_after_the_close_is_nobodys_business(fake: FakeCluster) -> None:
    fake.create("t")
    owner = Owner([])
    links = await links_of(fake, [], owner)
    send(links, links.link(1))
    await links.close()
    await asyncio.sleep(0.01)
    assert (owner.responses, owner.failures) == ([], [])
