"""One connection to a peer: what ends it, and what that does to those who wait for answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from raftlog.config import Address, BrokerConfig
from raftlog.errors import (
    AccessDeniedError,
    BrokerUnavailableError,
    ConnectionLostError,
    FrameError,
    RaftlogError,
)
from raftlog.memory_transport import MemoryTransport, join
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request, ServerConnectionState, farewell
from raftlog.protocol.peer import PeerPingRequest, PeerPingResponse, RaftRequest
from raftlog.server.peers.links import PeerChannel, SocketPeerConnector
from raftlog.server.tls import BrokerTls
from raftlog.testing.certificates import Certificates, create
from tests.client.virtual import VirtualLoop

PING = PeerPingRequest(sent=1, broker_epoch=0)


class Peer(asyncio.BufferedProtocol):
    """The other side: keeps what comes."""

    def __init__(self) -> None:
        self.state = ServerConnectionState()
        self.requests: list[Request] = []
        self.transport: Any = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.state.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        events = self.state.received(nbytes)
        self.requests += [event for event in events if isinstance(event, Request)]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


class Scene:
    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.lost: list[RaftlogError] = []
        self.channel = PeerChannel(
            loop, self.lost.append, scratch=memoryview(bytearray(4_096)), queue_bytes_max=1_000
        )
        self.peer = Peer()
        self.transport: MemoryTransport
        self.transport, _ = join(loop, self.channel, self.peer)

    async def come_to_rest(self) -> None:
        await asyncio.sleep(0.001)


@pytest.fixture
def scene() -> Callable[[Callable[[Scene], Coroutine[Any, Any, None]]], None]:
    def run(test: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            await test(Scene())

        loop = VirtualLoop()
        try:
            loop.run_until_complete(whole())
        finally:
            loop.close()

    return run


def test_answers_find_those_who_wait_for_them(scene: Any) -> None:
    async def test(s: Scene) -> None:
        first = s.channel.request(apis.PEER_PING, PING)
        second = s.channel.request(apis.PEER_PING, PING)
        assert s.channel.send(apis.RAFT, RaftRequest(), (b"en", b"velope"))
        await s.come_to_rest()
        ping, other, raft = s.peer.requests
        assert bytes(raft.attachment) == b"envelope"
        for request in (other, ping):
            s.peer.transport.writelines(s.peer.state.reply(request, PeerPingResponse()))
        assert isinstance((await second).message, PeerPingResponse)
        assert isinstance((await first).message, PeerPingResponse)
        assert s.lost == []

    scene(test)


def test_a_refusal_is_the_asking_sides_alone(scene: Any) -> None:
    async def test(s: Scene) -> None:
        refused = s.channel.request(apis.PEER_PING, PING)
        await s.come_to_rest()
        s.peer.transport.writelines(
            s.peer.state.fail(s.peer.requests[0], AccessDeniedError("not you"))
        )
        with pytest.raises(AccessDeniedError, match="not you"):
            await refused
        assert s.lost == []
        assert s.channel.ended is None

    scene(test)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", FrameError),
        (farewell(AccessDeniedError("go away")), AccessDeniedError),
        (None, ConnectionLostError),
    ],
)
def test_the_end_is_told_once_and_to_all_who_wait(
    scene: Any, said: bytes | None, error: type[Exception]
) -> None:
    async def test(s: Scene) -> None:
        waiting = s.channel.request(apis.PEER_PING, PING)
        if said is None:
            s.peer.transport.close()
        else:
            s.peer.transport.write(said)
        await s.come_to_rest()
        assert [type(lost) for lost in s.lost] == [error]
        with pytest.raises(error):
            await waiting
        assert s.peer.lost
        assert not s.channel.send(apis.RAFT, RaftRequest(), (b"x",))
        with pytest.raises(BrokerUnavailableError):
            s.channel.request(apis.PEER_PING, PING)
        s.channel.abort(ConnectionLostError("again"))
        assert len(s.lost) == 1

    scene(test)


def test_who_waits_no_more_is_left_alone(scene: Any) -> None:
    async def test(s: Scene) -> None:
        waiting = s.channel.request(apis.PEER_PING, PING)
        waiting.cancel()
        await s.come_to_rest()
        s.peer.transport.writelines(s.peer.state.reply(s.peer.requests[0], PeerPingResponse()))
        await s.come_to_rest()
        cancelled = s.channel.request(apis.PEER_PING, PING)
        cancelled.cancel()
        s.channel.abort(ConnectionLostError("the end"))
        assert [str(lost) for lost in s.lost] == ["the end"]

    scene(test)


def test_any_bytes_are_a_sign_of_life(scene: Any) -> None:
    async def test(s: Scene) -> None:
        began = s.channel.last_heard_seconds
        await asyncio.sleep(5)
        s.peer.transport.write(b"\x10")  # the first byte of an answer
        await s.come_to_rest()
        assert s.channel.last_heard_seconds >= began + 5

    scene(test)


def test_above_the_bound_of_the_queue_nothing_is_written(scene: Any) -> None:
    async def test(s: Scene) -> None:
        s.peer.transport.pause_reading()
        sent = [s.channel.send(apis.RAFT, RaftRequest(), (bytes(300),)) for _ in range(10)]
        assert sent == [True] * sum(sent) + [False] * (10 - sum(sent))
        assert 1_000 < s.channel.queued_bytes < 1_400
        with pytest.raises(BrokerUnavailableError, match="does not read"):
            s.channel.request(apis.PEER_PING, PING)
        s.peer.transport.resume_reading()
        await s.come_to_rest()
        assert s.channel.queued_bytes == 0
        assert s.channel.send(apis.RAFT, RaftRequest(), (b"x",))

    scene(test)


def test_a_channel_that_was_given_up_closes_what_is_connected_later() -> None:
    loop = VirtualLoop()

    async def test() -> None:
        lost: list[RaftlogError] = []
        channel = PeerChannel(loop, lost.append, scratch=memoryview(bytearray(4_096)))
        channel.abort(ConnectionLostError("too slow"))
        peer = Peer()
        join(loop, channel, peer)
        await asyncio.sleep(0.001)
        assert peer.lost
        assert len(lost) == 1

    try:
        loop.run_until_complete(test())
    finally:
        loop.close()


def test_the_connector_for_sockets_connects_without_delay_and_says_when_it_cannot() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        peer = Peer()
        server = await loop.create_server(lambda: peer, "127.0.0.1", 0)
        address = Address(*server.sockets[0].getsockname()[:2])
        channel = PeerChannel(loop, lambda _error: None, scratch=memoryview(bytearray(4_096)))
        connector = SocketPeerConnector()
        transport = await connector.connect(address, lambda: channel)
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        channel.abort(ConnectionLostError("done"))
        server.close()
        await server.wait_closed()
        with pytest.raises(OSError):
            await connector.connect(address, lambda: channel)

    asyncio.run(test())


def test_a_connection_to_a_broker_with_tls_verifies_its_certificate(
    certificates: Certificates, tmp_path: Path
) -> None:
    def settings(ca: Path) -> BrokerTls:
        settings = certificates.broker_settings() | {"tls.ca.file": str(ca)}
        return BrokerTls(BrokerConfig.from_text(settings), lambda: 0.0)

    stranger = create(tmp_path / "stranger")

    async def test() -> None:
        loop = asyncio.get_running_loop()
        answering, peer = settings(certificates.ca), Peer()
        server = await loop.create_server(lambda: peer, "127.0.0.1", 0, ssl=answering.listener)
        address = Address(*server.sockets[0].getsockname()[:2])
        channel = PeerChannel(loop, lambda _error: None, scratch=memoryview(bytearray(4_096)))
        transport = await SocketPeerConnector(answering).connect(address, lambda: channel)
        assert transport.get_extra_info("ssl_object").version() == "TLSv1.3"
        channel.abort(ConnectionLostError("done"))
        other = SocketPeerConnector(settings(stranger.ca))
        with pytest.raises(BrokerUnavailableError, match=r"Set tls\.ca\.file to the certificate"):
            await other.connect(address, lambda: channel)
        server.close()
        await server.wait_closed()

    asyncio.run(test())
