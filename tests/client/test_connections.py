"""A client's connections: one for each broker, opened once, by the first address that answers."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.client.cluster import Connections
from raftlog.client.connection import keep_authenticated
from raftlog.client.settings import ConnectionSettings, SaslSettings, parse_bootstrap
from raftlog.config import Address
from raftlog.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    ClosedError,
    ClusterNotReadyError,
    ConnectionLostError,
    FrameError,
    RaftlogError,
    ThrottledError,
    WrongClusterError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import MetadataRequest
from tests.client.world import FakeCluster, ignore, refuse, run
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


@runs(run)
async def test_a_client_that_was_rejected_is_not_only_throttled(fake: FakeCluster) -> None:
    """The broker refuses further attempts without a comparison: the first reason still holds."""
    throttled, rejected = refuse(ThrottledError("T")), refuse(AuthenticationError("E"))
    fake.next(apis.API_VERSIONS, throttled, rejected, throttled, throttled)
    fake.next(apis.API_VERSIONS, refuse(ClusterNotReadyError("C")))
    connections = connections_of(fake)
    expected = (
        BrokerUnavailableError,  # other clients of this address have failed
        *(AuthenticationError,) * 3,
        BrokerUnavailableError,  # the broker restarts
    )
    for error in expected:
        with pytest.raises(error):
            await connections.to(fake.addresses[1])
    (await connections.to(fake.addresses[1])).abort(ClosedError("E"))
    fake.next(apis.API_VERSIONS, throttled)
    with pytest.raises(BrokerUnavailableError):
        await connections.to(fake.addresses[1])
    await connections.close()


@pytest.mark.parametrize("error", [ThrottledError("E"), AuthenticationError("E")])
@runs(run)
async def test_requests_that_wait_while_a_session_is_not_renewed_have_an_unknown_outcome(
    fake: FakeCluster, *, error: RaftlogError
) -> None:
    connections = connections_of(fake)
    connection = await connections.to(fake.addresses[1])
    fake.next(apis.METADATA, ignore)
    waiting = connection.start(apis.METADATA, MetadataRequest(topics=None), timeout_ms=9_000)
    fake.next(apis.SASL_AUTHENTICATE, refuse(error))
    sasl = SaslSettings(mechanism="SCRAM-SHA-256", username="alice", password="p")
    await keep_authenticated(connection, sasl, bytes, 1.0, timeout_ms=9_000)
    with pytest.raises(ConnectionLostError, match=r"could not authenticate again: .*E"):
        await waiting
    await connections.close()


@pytest.mark.parametrize("others", [{2, 3}, set()])
@runs(run, brokers=3)
async def test_one_rejection_is_the_reason_of_all(fake: FakeCluster, *, others: set[int]) -> None:
    """The brokers have the same users, so the ones that cannot be reached are not waited for."""
    fake.down = others
    fake.always[apis.API_VERSIONS] = refuse(ThrottledError("T"))
    fake.next(apis.API_VERSIONS, refuse(AuthenticationError("E")))
    connections = connections_of(fake)
    with pytest.raises(AuthenticationError):
        await connections.first_of(list(fake.addresses.values()))
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
