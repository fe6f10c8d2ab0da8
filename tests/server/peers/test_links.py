"""Links between brokers: up, down, refused, and those that must not be."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from raftlog import limits
from raftlog.config import Address, BrokerConfig
from raftlog.consensus.journal import PeerSeen
from raftlog.consensus.transport import Heard
from raftlog.errors import (
    AccessDeniedError,
    BrokerIdInUseError,
    BrokerRemovedError,
    BrokerUnavailableError,
    ConnectionLostError,
    FrameError,
    RaftlogError,
    StaleBrokerError,
    UnsupportedVersionError,
    WrongClusterError,
)
from raftlog.memory_transport import MemoryTransport, join
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request, ServerConnectionState, farewell
from raftlog.protocol.peer import (
    ENVELOPE_BYTES_MAX,
    PeerIdentity,
    PeerPingRequest,
    PeerPingResponse,
    RaftRequest,
)
from raftlog.protocol.records import MetadataRequest
from raftlog.protocol.security import PEER_PROTOCOL_VERSION, Dialling
from raftlog.server.peers import (
    BACKOFF_SECONDS_MAX,
    BACKOFF_SECONDS_MIN,
    PeerChannel,
    Peering,
    PeerRegistry,
    SocketPeerConnector,
    backoff_seconds,
)
from raftlog.server.tls import BrokerTls
from raftlog.testing.certificates import Certificates, create
from tests.client.virtual import VirtualLoop
from tests.server.peers.world import FakeBroker, Run, World, alternating, at, pair

# -- links -----------------------------------------------------------------------------------------

# Links between brokers in memory, in virtual time: up, down, refused, superseded, full.


# -- up and down ---------------------------------------------------------------------------------


def test_three_brokers_link_up_and_pass_envelopes(run: Run) -> None:
    async def test(world: World) -> None:
        brokers = [world.broker(broker_id) for broker_id in (1, 2, 3)]
        for broker in brokers:
            broker.links.set_addresses(at(1, 2, 3))
        await world.until(lambda: all(len(broker.ups) == 2 for broker in brokers))
        one, two, three = brokers
        assert {peer.broker_id: peer for peer in one.ups} == {
            2: two.identity,
            3: three.identity,
        }
        one.links.send(2, b"first")
        one.links.send(2, b"second")
        three.links.send(2, b"third")
        await world.until(lambda: len(two.received) == 3)
        assert [data for peer, data in two.received if peer == 1] == [b"first", b"second"]
        assert (3, b"third") in two.received
        assert one.links.identity(2) == two.identity
        assert two.peering.broker_epochs == {1: 71, 3: 73}

    run(test)


def test_a_quiet_link_stays_up_by_its_pings(run: Run) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        await world.pass_seconds(60)
        assert one.events == [("up", 2)]
        assert two.events == [("up", 1)]
        assert len(world.dials) == 2
        assert {peer for peer, _, _ in one.clocks} == {2}, "each answer tells the peer's clock"
        assert {wall_ms for _, wall_ms, _ in one.clocks} == {2_000}
        assert all(0 <= round_trip_s < 1 for _, _, round_trip_s in one.clocks)

    run(test)


def test_a_link_that_is_cut_is_made_again(run: Run) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        for left, _right in world.pipes:
            left.abort()
        await world.until(lambda: len(one.ups) == 2 and len(two.ups) == 2)
        assert alternating(one.events, 2) == ["up", "down", "up"]
        one.links.send(2, b"again")
        await world.until(lambda: two.received == [(1, b"again")])

    run(test)


def test_a_silent_peer_is_down_after_the_session_timeout(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        await world.pass_seconds(1)
        world.power_off(two)
        began = world.loop.time()
        await world.until(lambda: ("down", 2) in one.events)
        assert 2.4 < world.loop.time() - began <= 3.1  # the last answer may be a heartbeat old
        assert "broker.session.timeout.ms" in one.reasons[0]

    run(test)


def test_a_peer_is_heard_until_half_the_session_timeout_went_by_in_silence(run: Run) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        await world.pass_seconds(60)
        assert one.links.is_heard(2)
        assert not one.links.is_heard(1), "only peers"
        world.power_off(two)
        await world.pass_seconds(0.9)
        assert one.links.is_heard(2)
        await world.pass_seconds(0.7)
        assert one.links.is_up(2)
        assert not one.links.is_heard(2)
        await world.until(lambda: ("down", 2) in one.events)
        assert not one.links.is_heard(2)

    run(test)


def test_a_peer_that_never_answers_the_dial_is_given_up(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one = world.broker(1)
        world.hangs = True
        one.links.set_addresses(at(2))
        await world.until(lambda: len(world.dials) == 2)
        assert world.dials[1][0] - world.dials[0][0] > 3
        assert "broker.session.timeout.ms" in one.links.status()[0].problem
        assert one.events == []

    run(test)


def test_a_handshake_survives_a_second_of_latency_each_way(run: Run) -> None:
    async def test(world: World) -> None:
        world.latency_s = 1.0
        one, _ = await pair(world)
        assert [kind for kind, _peer in one.events] == ["up"]
        await world.pass_seconds(30)
        assert [kind for kind, _peer in one.events] == ["up"], "it stays up by its pings"

    run(test)


def test_dialling_backs_off_with_jitter_and_tells_a_reason_once(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: World) -> None:
        one = world.broker(1)
        with caplog.at_level(logging.INFO, "raftlog.server.peers"):
            one.links.set_addresses(at(2))
            await world.until(lambda: len(world.dials) == 20)
        noted = [record.getMessage() for record in caplog.records]
        assert len(noted) == 1, noted
        assert "nobody listens" in noted[0]
        times = [time for time, _port in world.dials]
        pauses = [later - sooner for sooner, later in pairwise(times)]
        assert 0.049 < pauses[0] < 0.06
        assert all(0.049 < pause < 0.501 for pause in pauses)
        assert min(pauses[6:]) > 0.249
        assert len({round(pause, 3) for pause in pauses[6:]}) > 3  # jitter

    run(test)


def test_an_address_at_which_the_peer_is_not_is_told_with_the_one_that_it_has(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """A typing error in ``voters`` of one broker: the others reach it, it does not reach them."""

    async def test(world: World) -> None:
        one, two = world.broker(1), world.broker(2)
        one.links.set_addresses({2: Address("h", 99)})
        two.links.set_addresses(at(1))
        await world.until(lambda: two.ups)
        await world.pass_seconds(30)
        assert not one.ups
        said = f"is connected to this broker, and has the address {two.identity.host}:2"
        texts = [record.getMessage() for record in caplog.records]
        assert sum("address=h:99" in text and said in text for text in texts) == 1, texts
        assert any(said in standing.problem for standing in one.links.status())

    with caplog.at_level(logging.WARNING):
        run(test)


def test_a_peer_that_comes_in_is_dialled_at_once(run: Run) -> None:
    async def test(world: World) -> None:
        one = world.broker(1, chance=lambda: 0.999)
        one.links.set_addresses(at(2))
        await world.until(lambda: len(world.dials) == 8)  # now it pauses for half a second
        dialled = world.loop.time()
        two = world.broker(2)
        two.links.set_addresses(at(1))
        await world.until(lambda: one.links.is_up(2))
        assert world.loop.time() - dialled < 0.1

    run(test)


def test_a_connection_that_ends_with_its_handshake_never_was_a_link(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = world.broker(1), world.broker(2)

        def hang_up(_peer: PeerIdentity) -> None:
            if len(two.incoming) < 3:  # the proof's answer and the farewell come in one piece
                world.loop.call_soon(two.incoming[-1].end, BrokerUnavailableError("not now"))

        two.registry.on_incoming = hang_up
        one.links.set_addresses(at(2))
        await world.until(lambda: one.links.is_up(2))
        assert len(world.dials) == 3
        assert one.events == [("up", 2)]

    run(test)


# -- which peers there are -----------------------------------------------------------------------


def test_peers_are_added_moved_and_removed_while_running(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        three = world.broker(3)
        one.links.set_addresses(at(1, 2, 3))
        await world.until(lambda: one.links.is_up(3))
        assert alternating(one.events, 2) == ["up"]
        one.links.set_addresses(at(1, 3))
        assert one.events[-1] == ("down", 2)
        assert not one.links.is_up(2)
        assert [status.broker_id for status in one.links.status()] == [3]
        world.listening[33] = three
        one.links.set_addresses({1: Address("broker", 1), 3: Address("broker", 33)})
        assert one.events[-1] == ("down", 3)
        await world.until(lambda: one.links.is_up(3))
        assert world.dials[-1][1] == 33
        assert two.links.is_up(1)

    run(test)


def test_closing_ends_every_link_and_dials_no_more(run: Run) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        one.links.set_addresses(at(1, 2, 9))  # nobody is at 9
        await one.links.close()
        assert alternating(one.events, 2) == ["up", "down"]
        dials = len([port for _time, port in world.dials if port in (2, 9)])
        await world.pass_seconds(10)
        assert len([port for _time, port in world.dials if port in (2, 9)]) == dials
        one.links.set_addresses(at(1, 2))
        one.links.send(2, b"too late")
        assert one.links.status() == []
        await world.pass_seconds(1)
        assert two.received == []

    run(test)


def test_closing_while_dialling_leaves_nothing_behind(run: Run) -> None:
    async def test(world: World) -> None:
        one = world.broker(1)
        world.hangs = True
        one.links.set_addresses(at(2))
        await world.pass_seconds(0.1)
        began = world.loop.time()
        await one.links.close()
        assert world.loop.time() - began < 0.01
        assert one.events == []

    run(test)


# -- bounds and requests -------------------------------------------------------------------------


def test_a_peer_that_does_not_read_loses_envelopes_and_no_memory(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world, queue_bytes_max=10_000)
        to_two = one.links._links[2].channel
        pipe = next(right for left, right in world.pipes if left.get_protocol() is to_two)
        pipe.pause_reading()
        for _ in range(100):
            one.links.send(2, bytes(1_000))
        (status,) = one.links.status()
        assert 80 < status.envelopes_dropped < 95
        assert 10_000 <= status.queued_bytes < 12_000
        with pytest.raises(BrokerUnavailableError, match="does not read"):
            one.links.request(2, apis.METADATA, MetadataRequest())
        pipe.resume_reading()
        await world.until(lambda: len(two.received) == 100 - status.envelopes_dropped)
        one.links.send(2, b"after")
        await world.until(lambda: (1, b"after") in two.received)
        assert alternating(one.events, 2) == ["up"]

    run(test)


def test_a_slow_peer_that_takes_what_is_queued_is_not_given_up(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world, queue_bytes_max=8 << 20)
        to_two = one.links._links[2].channel
        pipe = next(right for left, right in world.pipes if left.get_protocol() is to_two)
        pipe.pause_reading()
        for _ in range(40):
            one.links.send(2, bytes(100_000))
        heard = to_two.last_heard_seconds
        for _ in range(14):
            pipe.resume_reading()
            await asyncio.sleep(0)
            pipe.pause_reading()
            await world.pass_seconds(0.6)
        assert len(two.received) < 40
        assert world.loop.time() - heard > 2 * 3.0
        assert alternating(one.events, 2) == ["up"]
        await world.until(lambda: ("down", 2) in one.events)  # now it takes nothing more
        assert world.loop._selector.turns < 1_000, "a timer was due at once, again and again"

    run(test)


@pytest.mark.parametrize(("protocol", "is_received"), [(PEER_PROTOCOL_VERSION, True), (5, False)])
def test_the_state_of_a_large_cluster_reaches_a_voter_of_this_release(
    run: Run, protocol: int, is_received: bool
) -> None:
    """One of an earlier release ends its connection at envelopes of over 4 MiB."""

    async def test(world: World) -> None:
        one, two = world.broker(1), world.broker(2)
        two.identity = replace(two.identity, protocol_version=protocol)
        two.connections.request_bytes_max = limits.MIB
        one.links.set_addresses(at(1, 2))
        await world.until(lambda: one.links.is_up(2))
        one.links.send(2, bytes(5 * limits.MIB))
        if is_received:
            await world.until(lambda: len(two.received) == 1)
        one.links.send(2, b"next")
        await world.until(lambda: (1, b"next") in two.received)
        sizes = [len(data) for _, data in two.received]
        assert sizes == ([5 * limits.MIB] if is_received else []) + [4]

    run(test)


def test_what_fits_no_frame_and_what_has_no_link_is_dropped(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        one.links.send(2, bytes(ENVELOPE_BYTES_MAX + 1))
        assert one.links.status()[0].envelopes_dropped == 1
        one.links.send(9, b"nobody has this id")
        await world.stop(two)
        await world.until(lambda: not one.links.is_up(2))
        one.links.send(2, b"nobody is there")
        assert one.links.status()[0].envelopes_dropped == 2
        assert not one.links.notify(2, apis.RAFT, RaftRequest(), (b"x",))
        for peer in (2, 9):
            with pytest.raises(BrokerUnavailableError):
                one.links.request(peer, apis.METADATA, MetadataRequest())

    run(test)


def test_requests_are_answered_over_the_link_and_fail_with_it(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        answer = await one.links.request(2, apis.PEER_PING, PeerPingRequest(sent=1, broker_epoch=5))
        assert isinstance(answer.message, apis.PEER_PING.response)
        assert two.peering.broker_epochs[1] == 5
        assert one.links.notify(2, apis.RAFT, RaftRequest(), (b"told",))
        await world.until(lambda: two.received == [(1, b"told")])
        waiting = one.links.request(2, apis.PEER_PING, PeerPingRequest(sent=2, broker_epoch=5))
        await one.links.close()
        with pytest.raises(ConnectionLostError):
            await waiting

    run(test)


def test_a_loop_that_stood_still_does_not_blame_its_peers(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        await world.pass_seconds(1)
        world.loop.now += 20  # as a process that was stopped for so long
        await world.pass_seconds(10)
        assert alternating(one.events, 2) == ["up"]
        assert alternating(two.events, 1) == ["up"]

    run(test)


# -- channel ---------------------------------------------------------------------------------------
#
# One connection to a peer: what ends it, and what that does to those who wait for answers.


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


# -- link ------------------------------------------------------------------------------------------
#
# How long a link waits before it dials again. What else a link does is in ``test_links``.


@pytest.mark.parametrize(
    ("failures", "chance", "seconds"),
    [
        (0, 0.0, 0.05),
        (0, 0.999_999, 0.05),
        (1, 0.0, 0.05),
        (1, 0.5, 0.075),
        (2, 0.5, 0.15),
        (3, 0.0, 0.2),
        (4, 0.0, 0.25),
        (4, 0.5, 0.375),
        (1_000_000, 0.0, 0.25),
        (1_000_000, 1.0, 0.5),
    ],
)
def test_the_pause_doubles_up_to_a_bound_and_is_spread(
    failures: int, chance: float, seconds: float
) -> None:
    assert backoff_seconds(failures, chance) == pytest.approx(seconds)
    assert BACKOFF_SECONDS_MIN <= backoff_seconds(failures, chance) <= BACKOFF_SECONDS_MAX


# -- peering ---------------------------------------------------------------------------------------
#
# What the handlers are given: each handshake has a nonce, and an identity, of its own.


def identity(broker_id: int, cluster_id: str = "") -> PeerIdentity:
    return PeerIdentity(
        broker_id=broker_id,
        directory_id=f"disk-{broker_id}",
        boot=1,
        host="broker",
        port=1,
        protocol_version=1,
        cluster_id=cluster_id,
    )


def peering_of(
    me: Callable[[], PeerIdentity],
    on_refused: Callable[[int, RaftlogError], None] = lambda _peer, _error: None,
) -> Peering:
    nonces = iter([bytes([1] * 32), bytes([2] * 32)])
    return Peering(
        secret=b"sesame",
        me=me,
        nonce=lambda: next(nonces),
        registry=PeerRegistry(
            seen=lambda _id: None, heard=lambda _id: None, time=lambda: 0.0, session_timeout_s=1.0
        ),
        receive=lambda _peer, _envelope: None,
        wall_ms=lambda: 0,
        on_refused=on_refused,
    )


def test_each_handshake_is_with_a_nonce_of_its_own_and_who_we_are_now() -> None:
    known = ["", "c1"]
    peering = peering_of(lambda: identity(1, known.pop(0)))
    dialling = Dialling(b"sesame", identity(2), bytes(32), expected=1)
    first = peering.answering()
    second = peering.answering()
    one, two = first.answer(dialling.hello()), second.answer(dialling.hello())
    assert (one.nonce[0], two.nonce[0]) == (1, 2)
    assert (one.identity.cluster_id, two.identity.cluster_id) == ("", "c1")
    proof = dialling.check(one)
    with pytest.raises(AccessDeniedError):
        second.check(proof)
    assert first.check(proof) == identity(2)


class Incoming:
    """A connection, as the registry sees it."""

    last_active_seconds = 0.0
    peer_identity: PeerIdentity | None = None
    is_closed = False
    certificate = None

    def abort(self, reason: str) -> None:
        raise AssertionError(reason)


def test_an_answer_that_is_out_of_date_brings_no_connection_about() -> None:
    """Who founds a cluster has to know that those it counts on have not joined another one."""
    known = ["", "c1"]
    peering = peering_of(lambda: identity(1, known.pop(0)))
    dialling = Dialling(b"sesame", identity(2), bytes(32), expected=1)
    answering = peering.answering()
    prove = dialling.check(answering.answer(dialling.hello()))
    with pytest.raises(BrokerUnavailableError, match="has joined a cluster"):
        peering.admit(answering, prove, Incoming())
    assert peering.registry.latest(2) is None


def test_a_proved_peer_of_another_cluster_is_told_of_here_too() -> None:
    noted: list[tuple[int, str]] = []
    peering = peering_of(
        lambda: identity(1, "c1"), on_refused=lambda peer, error: noted.append((peer, str(error)))
    )
    dialling = Dialling(b"sesame", identity(2, "c2"), bytes(32), expected=1)
    answering = peering.answering()
    prove = dialling.check(answering.answer(dialling.hello()))
    with pytest.raises(WrongClusterError, match="c2"):
        peering.admit(answering, prove, Incoming())
    ((peer, why),) = noted
    assert peer == 2
    assert "belongs to cluster c2" in why
    assert peering.registry.latest(2) is None


# -- registry --------------------------------------------------------------------------------------
#
# Who may take part: stale copies, ids in use, newer connections.


TIMEOUT_S = 3.0


def peer(
    directory: str = "disk", boot: int = 1, broker_id: int = 2, port: int = 2, journal: int = 0
) -> PeerIdentity:
    return PeerIdentity(
        broker_id=broker_id,
        directory_id=directory,
        boot=boot,
        host="broker",
        port=port,
        protocol_version=1,
        journal_sequence=journal,
    )


@dataclass
class RegistryIncoming:
    last_active_seconds: float = 0.0
    is_closed: bool = False
    certificate: None = None
    peer_identity: PeerIdentity | None = None
    aborted: list[str] = field(default_factory=list)

    def abort(self, reason: str) -> None:
        self.is_closed = True
        self.aborted.append(reason)


class RegistryScene:
    def __init__(self) -> None:
        self.now = 0.0
        self.version_min = 1
        self.seen: dict[int, PeerSeen] = {}
        self.heard: dict[int, Heard] = {}
        self.came: list[PeerIdentity] = []
        self.registry = PeerRegistry(
            seen=self.seen.get,
            heard=self.heard.get,
            time=lambda: self.now,
            session_timeout_s=TIMEOUT_S,
            version_min=lambda: self.version_min,
            check_state=self.check_state,
        )
        self.registry.on_incoming = self.came.append
        self.removed: set[str] = set()

    def check_state(self, peer: PeerIdentity) -> None:
        if peer.directory_id in self.removed:
            raise BrokerRemovedError("it was removed")


def test_a_stranger_may_come_in() -> None:
    scene = RegistryScene()
    scene.registry.check(peer())
    assert scene.registry.latest(2) is None
    assert not scene.registry.is_live(2)
    scene.registry.admit_incoming(peer(), RegistryIncoming())
    assert scene.registry.latest(2) == peer()
    assert scene.registry.is_live(2)
    assert scene.came == [peer()]


@pytest.mark.parametrize(
    ("seen", "now", "is_stale"),
    [
        (PeerSeen("disk", 5), peer(boot=4), True),
        (PeerSeen("disk", 5), peer(boot=5), False),
        (PeerSeen("disk", 5), peer(boot=6), False),
        (PeerSeen("another", 5), peer(boot=1), False),
        # Stored before this broker started: the copy lacks blocks that the peer has reported.
        (PeerSeen("disk", 5, sequence=9), replace(peer(boot=6), journal_sequence=8), True),
        (PeerSeen("disk", 5, sequence=9), replace(peer(boot=6), journal_sequence=9), False),
        (PeerSeen("another", 5, sequence=9), replace(peer(boot=6), journal_sequence=8), False),
    ],
)
@pytest.mark.parametrize("way", ["incoming", "outgoing"])
def test_an_older_boot_of_a_directory_is_stale(
    seen: PeerSeen, now: PeerIdentity, is_stale: bool, way: str
) -> None:
    scene = RegistryScene()
    scene.seen[2] = seen

    def admit() -> None:
        if way == "incoming":
            scene.registry.admit_incoming(now, RegistryIncoming())
        else:
            scene.registry.admit_outgoing(now)

    if is_stale:
        with pytest.raises(StaleBrokerError):
            admit()
        assert not scene.registry.is_live(2)
        assert scene.came == []
    else:
        admit()
        assert scene.registry.is_live(2)


@pytest.mark.parametrize("way", ["incoming", "outgoing"])
def test_a_journal_that_has_lost_its_end_is_refused_for_good(way: str) -> None:
    scene = RegistryScene()
    scene.heard[2] = Heard("disk", boot=3, sequence=20)

    def admit(now: PeerIdentity) -> None:
        if way == "incoming":
            scene.registry.admit_incoming(now, RegistryIncoming())
        else:
            scene.registry.admit_outgoing(now)

    with pytest.raises(StaleBrokerError, match="has lost acknowledged blocks") as first:
        admit(peer(boot=4, journal=19))
    assert not scene.registry.is_live(2)
    with pytest.raises(StaleBrokerError) as later:  # boots alone have added as many blocks again
        admit(peer(boot=9, journal=25))
    assert str(later.value) == str(first.value)
    admit(peer("new disk", boot=1, journal=1))
    assert scene.registry.is_live(2)


def test_a_journal_that_holds_all_it_told_of_is_no_matter() -> None:
    scene = RegistryScene()
    scene.heard[2] = Heard("disk", boot=3, sequence=20)
    scene.registry.admit_incoming(peer(boot=3, journal=8), RegistryIncoming())  # told of it since
    scene.registry.admit_incoming(peer(boot=4, journal=20), RegistryIncoming())
    assert scene.came == [peer(boot=3, journal=8), peer(boot=4, journal=20)]


def test_a_boot_seen_in_this_run_counts_before_it_is_durable() -> None:
    scene = RegistryScene()
    scene.registry.admit_outgoing(peer(boot=7))
    scene.registry.outgoing_down(2)
    with pytest.raises(StaleBrokerError):
        scene.registry.admit_incoming(peer(boot=6), RegistryIncoming())


def test_another_directory_is_refused_while_a_link_to_the_first_is_up() -> None:
    scene = RegistryScene()
    scene.registry.admit_outgoing(peer("first"))
    with pytest.raises(BrokerIdInUseError, match="first"):
        scene.registry.admit_incoming(peer("second"), RegistryIncoming())
    scene.registry.outgoing_down(2)
    scene.registry.admit_incoming(peer("second"), RegistryIncoming())


def test_a_copy_that_runs_beside_its_original_is_refused() -> None:
    scene = RegistryScene()
    scene.registry.admit_outgoing(peer(boot=4, port=2))
    with pytest.raises(BrokerIdInUseError, match="twice"):
        scene.registry.admit_incoming(peer(boot=4, port=3), RegistryIncoming())
    scene.registry.admit_incoming(peer(boot=4, port=2), RegistryIncoming())
    scene.registry.admit_incoming(peer(boot=5, port=3), RegistryIncoming())  # it has moved


@pytest.mark.parametrize("end", ["closed", "silent"])
def test_another_directory_is_refused_while_the_first_is_heard_of(end: str) -> None:
    scene = RegistryScene()
    first = RegistryIncoming()
    scene.registry.admit_incoming(peer("first"), first)
    scene.now = TIMEOUT_S - 0.1
    with pytest.raises(BrokerIdInUseError):
        scene.registry.admit_outgoing(peer("second"))
    if end == "closed":
        first.is_closed = True
    else:
        scene.now = TIMEOUT_S
    assert not scene.registry.is_live(2)
    scene.registry.admit_outgoing(peer("second"))
    assert scene.registry.latest(2) == peer("second")


def test_other_ids_are_none_of_its_business() -> None:
    scene = RegistryScene()
    scene.registry.admit_outgoing(peer("first"))
    scene.registry.admit_outgoing(peer("second", broker_id=3))
    scene.registry.outgoing_down(9)


def test_a_newer_connection_supersedes_the_older_one() -> None:
    scene = RegistryScene()
    older, newer = RegistryIncoming(), RegistryIncoming()
    older.peer_identity = peer()
    scene.registry.admit_incoming(peer(), older)
    scene.registry.admit_incoming(peer(boot=2), newer)
    assert older.peer_identity is None
    assert len(older.aborted) == 1
    assert not newer.is_closed
    assert scene.registry.latest(2) == peer(boot=2)


def test_a_refused_connection_supersedes_nothing() -> None:
    scene = RegistryScene()
    older, newer = RegistryIncoming(), RegistryIncoming()
    scene.registry.admit_incoming(peer(boot=2), older)
    with pytest.raises(StaleBrokerError):
        scene.registry.admit_incoming(peer(boot=1), newer)
    assert not older.is_closed
    assert scene.registry.latest(2) == peer(boot=2)


def test_a_peer_that_would_misread_the_clusters_state_is_refused_and_disconnected() -> None:
    scene = RegistryScene()
    older, newer = RegistryIncoming(), RegistryIncoming()
    scene.registry.admit_incoming(peer(), older)
    scene.registry.admit_incoming(replace(peer("other", broker_id=3), protocol_version=2), newer)
    scene.version_min = 2
    scene.registry.end_refused()
    assert (older.is_closed, newer.is_closed) == (True, False)
    with pytest.raises(UnsupportedVersionError, match="Upgrade broker 2"):
        scene.registry.admit_incoming(peer(), RegistryIncoming())
    with pytest.raises(UnsupportedVersionError):
        scene.registry.admit_outgoing(peer())
    scene.registry.admit_outgoing(replace(peer(boot=2), protocol_version=2))


def test_a_broker_that_the_state_excludes_is_disconnected_and_refused() -> None:
    """It may have missed its removal, and learns of it when it connects again."""
    scene = RegistryScene()
    removed, other = RegistryIncoming(), RegistryIncoming()
    scene.registry.admit_incoming(peer(), removed)
    scene.registry.admit_incoming(peer("other", broker_id=3), other)
    scene.removed.add("disk")
    scene.registry.end_refused()
    assert (removed.is_closed, other.is_closed) == (True, False)
    for admit in (scene.registry.admit_outgoing, scene.registry.check):
        with pytest.raises(BrokerRemovedError):
            admit(peer(boot=2))


# -- strangers -------------------------------------------------------------------------------------

# Links that must not be: other secrets, clusters, copies and namesakes; and who comes back.


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "two", "expected", "says"),
    [
        ({"secret": b"other"}, {}, AccessDeniedError, "secret"),
        ({"cluster": "c2"}, {}, WrongClusterError, "c2"),
        (
            {"voters": "1", "cluster": ""},
            {"voters": "1,2", "cluster": ""},
            WrongClusterError,
            "voters 1",
        ),
    ],
)
def test_those_who_do_not_belong_together_both_learn_why(
    run: Run,
    one: dict[str, Any],
    two: dict[str, Any],
    expected: type[Exception],
    says: str,
) -> None:
    async def test(world: World) -> None:
        stranger, native = world.broker(1, **one), world.broker(2, **two)
        stranger.links.set_addresses(at(2))
        native.links.set_addresses(at(1))
        await world.pass_seconds(20)
        for broker, other in ((stranger, 2), (native, 1)):
            assert broker.events == []
            ((peer, error),) = broker.refusals  # once, however often it tries
            assert (peer, type(error)) == (other, expected)
            assert says in str(error)
            (status,) = broker.links.status()
            assert type(status.refusal) is expected
        assert stranger.received == native.received == []

    run(test)


def test_a_cluster_id_that_is_not_known_yet_is_no_obstacle(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        joining, member = world.broker(1, cluster=""), world.broker(2)
        joining.links.set_addresses(at(2))
        member.links.set_addresses(at(1))
        await world.until(lambda: joining.links.is_up(2) and member.links.is_up(1))
        assert joining.ups[0].cluster_id == "c1"

    run(test)


def test_another_broker_than_expected_is_no_link(run: Run) -> None:
    async def test(world: World) -> None:
        one = world.broker(1)
        world.broker(3, port=2)
        one.links.set_addresses(at(2))
        await world.pass_seconds(5)
        assert one.events == []
        assert "broker 3 responded" in one.links.status()[0].problem
        assert one.refusals == []  # it may be put right without this broker

    run(test)


def test_a_broker_with_our_id_is_told_and_so_are_we(run: Run) -> None:
    async def test(world: World) -> None:
        one = world.broker(1)
        world.broker(1, port=2, directory="elsewhere")
        one.links.set_addresses(at(2))
        await world.until(lambda: one.refusals)
        ((peer, error),) = one.refusals
        assert peer == 2
        assert isinstance(error, BrokerIdInUseError)
        assert "elsewhere" in str(error)

    run(test)


def test_the_second_broker_with_an_id_is_refused_while_the_first_is_live(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        double = world.broker(2, port=22, directory="double")
        double.links.set_addresses(at(1))
        await world.until(lambda: double.refusals)
        ((peer, error),) = double.refusals
        assert peer == 1
        assert isinstance(error, BrokerIdInUseError)
        assert "disk-2" in str(error)
        assert "double" in str(error)
        await world.pass_seconds(10)
        assert alternating(one.events, 2) == ["up"]
        assert alternating(two.events, 1) == ["up"]
        assert double.events == []

    run(test)


def test_a_wiped_broker_comes_back_once_its_old_self_is_gone(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        await world.stop(two)
        wiped = world.broker(2, directory="new disk")
        wiped.links.set_addresses(at(1))
        await world.until(lambda: one.links.is_up(2) and wiped.links.is_up(1))
        assert one.ups[-1].directory_id == "new disk"
        assert wiped.refusals == []

    run(test)


def test_a_wiped_broker_whose_old_self_fell_silent_waits_for_the_session_timeout(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        world.power_off(two)
        wiped = world.broker(2, directory="new disk")
        wiped.links.set_addresses(at(1))
        await world.until(lambda: wiped.refusals)
        assert isinstance(wiped.refusals[0][1], BrokerIdInUseError)
        await world.until(lambda: wiped.links.is_up(1) and one.links.identity(2) is not None)
        assert one.links.identity(2) == wiped.identity
        assert wiped.links.status()[0].refusal is None

    run(test)


def test_an_old_copy_of_a_data_directory_is_refused(run: Run) -> None:
    async def test(world: World) -> None:
        one = world.broker(1, seen={2: PeerSeen("disk-2", 7)})
        copy = world.broker(2, boot=6)
        one.links.set_addresses(at(2))
        copy.links.set_addresses(at(1))
        await world.until(lambda: copy.refusals)
        ((_peer, error),) = copy.refusals
        assert isinstance(error, StaleBrokerError)
        assert "disk-2" in str(error)
        await world.pass_seconds(10)
        assert one.events == copy.events == []
        assert one.refusals == []  # it is not this broker that has to be wiped
        assert "old copy" in one.links.status()[0].problem

    run(test)


def test_a_broker_whose_journal_has_lost_its_end_is_refused(run: Run) -> None:
    async def test(world: World) -> None:
        one = world.broker(1, heard={2: Heard("disk-2", 7, 90)}.get)
        cut = world.broker(2, boot=8, journal_sequence=60)
        one.links.set_addresses(at(2))
        cut.links.set_addresses(at(1))
        await world.until(lambda: cut.refusals)
        ((_peer, error),) = cut.refusals
        assert isinstance(error, StaleBrokerError)
        assert "the consensus journal of broker 2 has lost" in str(error)
        await world.pass_seconds(10)
        assert one.events == cut.events == []
        assert len(cut.refusals) == 1
        assert one.refusals == []  # it is not this broker that has to be wiped
        assert "has lost acknowledged blocks" in one.links.status()[0].problem
        await world.stop(cut)
        wiped = world.broker(2, directory="new disk", journal_sequence=1)
        wiped.links.set_addresses(at(1))
        await world.until(lambda: one.links.is_up(2) and wiped.links.is_up(1))

    run(test)


def test_a_boot_is_remembered_from_the_link_itself(run: Run) -> None:
    async def test(world: World) -> None:
        one = world.broker(1)
        two = world.broker(2, boot=3)
        two.links.set_addresses(at(1))
        await world.until(lambda: two.links.is_up(1))
        await world.stop(two)
        copy = world.broker(2, boot=2)
        copy.links.set_addresses(at(1))
        await world.until(lambda: copy.refusals)
        assert isinstance(copy.refusals[0][1], StaleBrokerError)
        assert one.registry.latest(2) == two.identity

    run(test)


# -- newer runs and newer connections ------------------------------------------------------------


def test_a_broker_that_started_again_ends_the_link_to_its_older_run(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        world.power_off(two)
        again = world.broker(2, boot=2)
        again.links.set_addresses(at(1))
        began = world.loop.time()
        await world.until(lambda: one.links.is_up(2) and one.ups[-1].boot == 2)
        assert world.loop.time() - began < 1  # much less than a session timeout
        assert alternating(one.events, 2) == ["up", "down", "up"]

    run(test)


def test_a_newer_connection_silences_the_older_one(run: Run) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        old = one.links._links[2].channel
        old_pipe = next(right for left, right in world.pipes if left.get_protocol() is old)
        old_pipe.pause_reading()
        old.send(apis.RAFT, RaftRequest(), (b"late",))
        # The same broker connects anew, as if its old connection had been lost on its side only.
        anew = FakeBroker(world.loop, world, 1)
        world.brokers.append(anew)
        anew.links.set_addresses(at(2))
        await world.until(lambda: anew.links.is_up(2))
        anew.links.send(2, b"new")
        old_pipe.resume_reading()
        await world.until(lambda: two.received)
        await world.pass_seconds(0.2)
        assert (1, b"late") not in two.received
        assert ("down", 2) in one.events

    run(test)


def test_what_was_read_of_a_superseded_connection_is_not_handled(
    run: Run,
) -> None:
    async def test(world: World) -> None:
        one, two = await pair(world)
        older = next(c for c in two.incoming if c.peer_identity == one.identity)
        newer = two.make()
        two.registry.admit_incoming(one.identity, newer)
        assert older.peer_identity is None  # so dispatch refuses what is still held of it
        assert two.registry.is_live(1)

    run(test)
