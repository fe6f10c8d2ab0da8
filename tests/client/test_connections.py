"""A client's connections: one for each broker, opened once, by the first address that answers."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.client.connections import Connections
from raftlog.client.settings import ConnectionSettings, parse_bootstrap
from raftlog.config import Address
from raftlog.errors import BrokerUnavailableError, ClosedError, FrameError, WrongClusterError
from raftlog.protocol import api as apis
from tests.client.world import FakeCluster, ignore, run
from tests.running import runs


def connections_of(fake: FakeCluster) -> Connections:
    settings = ConnectionSettings(
        bootstrap=parse_bootstrap(fake.bootstrap),
        client_id="me",
        request_timeout_ms=30_000,
        bootstrap_timeout_ms=3_000,
        metadata_max_age_ms=30_000,
    )
    return Connections(settings, fake.connect)


def now() -> float:
    return asyncio.get_running_loop().time()


@runs(run)
async def test_one_is_opened_however_many_wait(fake: FakeCluster) -> None:
    connections = connections_of(fake)
    one, two = await asyncio.gather(*(connections.to(fake.addresses[1]) for _ in range(2)))
    assert one is two
    assert connections.of(1) is one
    assert connections.of(2) is None
    assert connections.reached
    assert fake.connects == ["broker-1"]
    await connections.close()


@runs(run, brokers=4)
async def test_dead_addresses_do_not_hold_up_the_live_one(fake: FakeCluster) -> None:
    fake.down = {1, 3}
    fake.unreachable = {2}
    connections = connections_of(fake)
    start = now()
    connection = await connections.first_of(list(fake.addresses.values()))
    assert connection.broker_id == 4
    assert now() - start < 1, "the one that does not refuse costs a moment"
    assert fake.connects == ["broker-1", "broker-2", "broker-3", "broker-4"]
    await connections.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@runs(run, brokers=2)
async def test_a_slow_one_is_there_when_it_comes(fake: FakeCluster) -> None:
    fake.pause(1)
    connections = connections_of(fake)
    assert (await connections.first_of(list(fake.addresses.values()))).broker_id == 2
    assert connections.of(1) is None
    fake.resume(1)
    await asyncio.sleep(0.1)
    assert connections.of(1) is not None, "its handshake went on"
    await connections.close()


@runs(run)
async def test_an_address_that_never_answers_is_given_up_in_the_end(fake: FakeCluster) -> None:
    fake.unreachable = {1}
    connections = connections_of(fake)
    start = now()
    with pytest.raises(BrokerUnavailableError, match="no connection within 10000 ms"):
        await connections.to(fake.addresses[1])
    assert now() - start == 10
    fake.unreachable = set()
    fake.next(apis.API_VERSIONS, ignore)
    with pytest.raises(BrokerUnavailableError, match="no handshake response"):
        await connections.to(fake.addresses[1])
    await connections.close()


@runs(run)
async def test_two_addresses_of_one_broker_share_a_connection(fake: FakeCluster) -> None:
    alias = Address("localhost", 9100)
    connections = connections_of(fake)
    first = await connections.to(fake.addresses[1])
    fake.addresses[1] = alias
    assert await connections.to(alias) is first, "what it carries must not be overtaken"
    await asyncio.sleep(0.01)
    assert len(fake.peers) == 1
    await connections.close()


@runs(run)
async def test_a_broker_of_another_cluster_is_refused(fake: FakeCluster) -> None:
    connections = connections_of(fake)
    connections.cluster_id = "ours"
    with pytest.raises(WrongClusterError, match=r"cluster fake, .* to cluster ours"):
        await connections.to(fake.addresses[1])
    await asyncio.sleep(0.01)
    assert not fake.peers
    await connections.close()


@runs(run, brokers=2)
async def test_strangers_everywhere_are_told_as_such(fake: FakeCluster) -> None:
    fake.next(apis.API_VERSIONS, *[lambda peer, _: peer.write([b"HTTP/1.1 400 Bad"])] * 2)
    connections = connections_of(fake)
    with pytest.raises(FrameError, match="an HTTP server"):
        await connections.first_of(list(fake.addresses.values()))
    await connections.close()


@runs(run, brokers=2)
async def test_closing(fake: FakeCluster) -> None:
    fake.unreachable = {2}
    connections = connections_of(fake)
    await connections.to(fake.addresses[1])
    waiting = asyncio.ensure_future(connections.to(fake.addresses[2]))
    await asyncio.sleep(0.1)
    await connections.close()
    await connections.close()
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(ClosedError):
        await connections.to(fake.addresses[1])
    assert connections.all_open() == []
