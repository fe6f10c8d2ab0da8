"""Answers and requests are failpoints: before they leave, and once the system has them."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from raftlog.config import Address, BrokerConfig
from raftlog.disk import OsDisk
from raftlog.errors import ConnectionLostError, InvalidTopicError
from raftlog.failpoints import VARIABLE, FailpointDisk
from raftlog.memory_transport import MemoryTransport, join
from raftlog.protocol import api as apis
from raftlog.protocol.connection import ClientConnectionState, Request, Response
from raftlog.protocol.peer import PeerPingRequest, RaftRequest
from raftlog.protocol.records import MetadataRequest, MetadataResponse
from raftlog.server.broker import REAL
from raftlog.server.connection import Connection, Connections, ConnectionServices
from raftlog.server.failpoints import FailpointConnection, FailpointConnector, surroundings
from raftlog.server.main import world
from raftlog.server.metrics import Counters
from raftlog.server.peers.links import PeerChannel, SocketPeerConnector
from raftlog.server.scheduling import ResponseBudget, Turns, Workers
from tests.client.virtual import VirtualLoop
from tests.server.peers.test_links import Peer
from tests.server.test_main import process, refusal

PING = PeerPingRequest(sent=1, broker_epoch=0)
METADATA = MetadataResponse(cluster_id="", brokers=[], topics=[])
ADDRESS = Address("127.0.0.1", 1)


class Points:
    """Keeps what was hit, with what had arrived at the other side by then, and fails one."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.hits: list[tuple[str, int]] = []
        self.arrived = lambda: 0

    def hit(self, site: str) -> None:
        self.hits.append((site, self.arrived()))
        if site == self.failing:
            raise OSError(errno.EIO, "no")


def run(test: Coroutine[Any, Any, None]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(test)
    finally:
        loop.close()


# -- requests to peers -----------------------------------------------------------------------------


class MemoryConnector:
    """Joins a channel to a ``Peer``."""

    def __init__(self) -> None:
        self.peer = Peer()
        self.transport: MemoryTransport

    async def connect(self, address: Address, protocol_factory: Any) -> asyncio.Transport:
        self.transport, _ = join(asyncio.get_running_loop(), protocol_factory(), self.peer)
        return self.transport


async def dialled(points: Points) -> tuple[PeerChannel, Peer, list[Exception]]:
    connector, lost = MemoryConnector(), []
    channel = PeerChannel(
        asyncio.get_running_loop(), lost.append, scratch=memoryview(bytearray(4_096))
    )
    await FailpointConnector(connector, points.hit).connect(ADDRESS, lambda: channel)
    points.arrived = lambda: len(connector.peer.requests)
    return channel, connector.peer, lost


def test_a_request_to_a_peer_is_a_failpoint_before_and_after() -> None:
    async def test() -> None:
        points = Points()
        channel, peer, _ = await dialled(points)
        answer = channel.request(apis.PEER_PING, PING)
        assert channel.send(apis.RAFT, RaftRequest(), (b"en", b"velope"))
        await asyncio.sleep(0.01)
        sites = [site for site, _ in points.hits]
        assert sorted(sites) == [f"peer.{api}.{moment}" for api in ("peer_ping", "raft")
                                 for moment in ("after", "before")]  # fmt: skip
        assert sites.index("peer.raft.before") < sites.index("peer.raft.after")
        assert [request.api.name for request in peer.requests] == ["peer_ping", "raft"]
        assert bytes(peer.requests[1].attachment) == b"envelope"
        assert channel.queued_bytes == 0
        assert not answer.done()

    run(test())


@pytest.mark.parametrize(("moment", "arrived"), [("before", 0), ("after", 1)])
def test_a_request_that_fails_takes_its_connection_along(moment: str, arrived: int) -> None:
    async def test() -> None:
        channel, peer, lost = await dialled(Points(f"peer.peer_ping.{moment}"))
        answer = channel.request(apis.PEER_PING, PING)
        await asyncio.sleep(0.01)
        assert len(peer.requests) <= arrived
        assert peer.lost
        assert len(lost) == 1
        with pytest.raises(ConnectionLostError):
            await answer

    run(test())


# -- answers ---------------------------------------------------------------------------------------


class Client(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.state = ClientConnectionState()
        self.responses: list[Response] = []
        self.is_lost = False
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.state.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        for event in self.state.received(nbytes):
            assert isinstance(event, Response)
            self.responses.append(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


def connections_that(
    handle: Callable[[Connection, Request], None],
    make: Callable[[ConnectionServices], Connection] = Connection,
) -> Connections:
    """Connections whose requests ``handle`` answers."""
    loop = asyncio.get_running_loop()
    return Connections(
        BrokerConfig(),
        loop,
        responses=ResponseBudget(1 << 20),
        counters=Counters(),
        turns=Turns(loop, loop.time),
        workers=Workers(loop, count=0, name="none"),
        on_request=handle,
        on_kafka_request=lambda _connection, _request: None,
        on_lost=lambda _connection: None,
        make_connection=make,
    )


async def asked(points: Points, error: InvalidTopicError | None = None) -> Client:
    """A client that has asked for metadata, and got it, or an error, if nothing came between."""

    def handle(connection: Connection, request: Request) -> None:
        if error is not None:
            connection.refuse(request, error)
        else:
            connection.respond(request, METADATA)

    connections = connections_that(handle, surroundings(points.hit).make_connection)
    client = Client()
    points.arrived = lambda: len(client.responses)
    join(asyncio.get_running_loop(), client, connections.make())
    client.transport.writelines(client.state.send(apis.METADATA, MetadataRequest(topics=None))[1])
    await asyncio.sleep(0.01)
    connections.abort("it is over")
    return client


@pytest.mark.parametrize("error", [None, InvalidTopicError("no")])
def test_an_answer_is_a_failpoint_before_and_after(error: InvalidTopicError | None) -> None:
    async def test() -> None:
        points = Points()
        client = await asked(points, error)
        assert [site for site, _ in points.hits] == [
            "reply.metadata.before",
            "reply.metadata.after",
        ]
        assert len(client.responses) == 1

    run(test())


@pytest.mark.parametrize("error", [None, InvalidTopicError("no")])
def test_an_answer_that_fails_before_does_not_arrive(error: InvalidTopicError | None) -> None:
    async def test() -> None:
        points = Points("reply.metadata.before")
        client = await asked(points, error)
        assert len(points.hits) == 1
        assert client.is_lost
        assert client.responses == []

    run(test())


def test_an_answer_that_fails_after_takes_its_connection_along() -> None:
    async def test() -> None:
        points = Points("reply.metadata.after")
        client = await asked(points)
        assert len(points.hits) == 2
        assert client.is_lost

    run(test())


def test_after_means_that_the_system_has_it() -> None:
    """On the loop and the sockets of a broker: what dies there has answered."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    there: list[bool] = []

    async def test() -> None:
        loop = asyncio.get_running_loop()
        both = asyncio.Event()

        def hit(_site: str) -> None:
            try:
                there.append(bool(theirs.recv(1 << 16, socket.MSG_PEEK)))
            except BlockingIOError:
                there.append(False)
            if len(there) == 2:
                both.set()

        connections = connections_that(lambda asking, request: asking.respond(request, METADATA))
        await loop.connect_accepted_socket(lambda: FailpointConnection(connections, hit=hit), ours)
        state = ClientConnectionState()
        theirs.sendall(b"".join(state.send(apis.METADATA, MetadataRequest(topics=None))[1]))
        await both.wait()
        connections.abort("it is over")

    with theirs, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())
    assert there == [False, True]


# -- a broker that is started ----------------------------------------------------------------------


def test_unset_is_a_broker_with_nothing_in_its_way() -> None:
    disk, around = world({}, BrokerConfig())
    assert type(disk) is OsDisk
    assert around is REAL
    assert around.make_connection is Connection
    connector = SocketPeerConnector()
    assert around.around_connector(connector) is connector


def test_set_is_a_broker_on_failpoints() -> None:
    disk, around = world({VARIABLE: "segment.*=note"}, BrokerConfig())
    assert type(disk) is FailpointDisk
    assert type(around.around_connector(SocketPeerConnector())) is FailpointConnector
    assert around.make_connection is not Connection


@pytest.mark.integration
def test_a_broker_warns_that_failpoints_are_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"@{tmp_path}/failpoints")
    with process(tmp_path / "data") as broker:
        broker.address()
        assert f"failpoints active: points=0 rules, from {tmp_path}/failpoints." in "".join(
            broker.said
        )


@pytest.mark.integration
def test_a_broker_with_wrong_failpoints_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "segment.wrote.before=crash")
    assert "Similar names: segment.write.before" in refusal(tmp_path / "data")
    assert not (tmp_path / "data").exists()
