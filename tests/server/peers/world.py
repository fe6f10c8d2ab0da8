"""Brokers that know of each other, in memory and in virtual time: links, handlers and all between.

Only consensus is left out: envelopes are collected.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeAlias

from raftlog.config import Address, BrokerConfig
from raftlog.errors import RaftlogError
from raftlog.memory_transport import MemoryTransport, join
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.protocol.peer import PeerIdentity
from raftlog.server import dispatch as dispatching
from raftlog.server.apis import peer
from raftlog.server.authentication import Authenticator
from raftlog.server.connection import Connection, Connections
from raftlog.server.metrics import Counters
from raftlog.server.peers import PeerConnector, Peering, PeerLinks, PeerRegistry
from raftlog.server.scheduling import ResponseBudget, Steps, Turns, Workers
from tests.client.virtual import VirtualLoop

HEARTBEAT_MS = 500
SESSION_MS = 3_000
SECRET = b"sesame"

HANDLERS = {
    apis.PEER_HELLO.number: peer.handle_hello,
    apis.PEER_PROVE.number: peer.handle_prove,
    apis.RAFT.number: peer.handle_raft,
    apis.PEER_PING.number: peer.handle_ping,
}


class Context:
    """As much of a broker's context as these requests need."""

    def __init__(self, peering: Peering, loop: asyncio.AbstractEventLoop) -> None:
        self.peering = peering
        self.authenticator = Authenticator(BrokerConfig(), loop, bytes)
        self.counters = Counters()
        self.access = SimpleNamespace(applies_to=lambda _connection: False)
        self.broker_id = peering.me().broker_id
        self.cluster_id = peering.me().cluster_id
        self.peer_protocol = peering.me().protocol_version
        self.operations = self  # what api_versions asks for the cluster's id

    @property
    def cluster(self) -> Context:
        return self


def _registry(loop: asyncio.AbstractEventLoop, seen: dict[int, Any], heard: Any) -> PeerRegistry:
    session_s = SESSION_MS / 1_000
    return PeerRegistry(seen=seen.get, heard=heard, time=loop.time, session_timeout_s=session_s)


def ignored(*_arguments: object) -> None:
    """What nothing here depends on."""


class FakeBroker:
    """One broker: its links, and what answers those of others."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connector: PeerConnector,
        broker_id: int,
        *,
        port: int = 0,
        directory: str = "",
        boot: int = 1,
        secret: bytes = SECRET,
        cluster: str = "c1",
        voters: str = "",
        seen: dict[int, Any] | None = None,
        heard: Callable[[int], Any] = lambda _peer: None,
        journal_sequence: int = 0,
        queue_bytes_max: int = 1 << 20,
        chance: Callable[[], float] | None = None,
        receive: Callable[[int, bytes], None] | None = None,
    ) -> None:
        self.identity = PeerIdentity(
            broker_id=broker_id,
            directory_id=directory or f"disk-{broker_id}",
            boot=boot,
            host="broker",
            port=port or broker_id,
            protocol_version=1,
            cluster_id=cluster,
            journal_sequence=journal_sequence,
            voters=voters,
        )
        self._begin_to_note()
        dice = random.Random(broker_id)
        self.registry = _registry(loop, seen or {}, heard)
        self.peering = Peering(
            secret=secret,
            me=lambda: self.identity,
            nonce=lambda: dice.randbytes(32),
            registry=self.registry,
            receive=receive or (lambda peer_id, data: self.received.append((peer_id, data))),
            wall_ms=lambda: 1_000 * broker_id,
            on_refused=lambda _peer_id, _error: None,
        )
        self.context = Context(self.peering, loop)
        self.connections = self._connections(loop)
        self.links = PeerLinks(
            loop,
            connector,
            self.registry,
            secret=secret,
            me=lambda: self.identity,
            nonce=lambda: dice.randbytes(32),
            chance=chance or dice.random,
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=SESSION_MS,
            on_clock=lambda *clock: self.clocks.append(clock),
            on_up=self._up,
            on_down=self._down,
            on_refused=lambda peer_id, error: self.refusals.append((peer_id, error)),
            broker_epoch=lambda: 70 + broker_id,
            queue_bytes_max=queue_bytes_max,
        )

    def _connections(self, loop: asyncio.AbstractEventLoop) -> Connections:
        return Connections(
            BrokerConfig(),
            loop,
            responses=ResponseBudget(1 << 20),
            counters=self.context.counters,
            turns=Turns(loop, loop.time),
            workers=Workers(loop, count=0, name="none"),
            on_request=self._dispatch,
            on_kafka_request=ignored,
            on_lost=ignored,
        )

    def _begin_to_note(self) -> None:
        self.incoming: list[Connection] = []  # ever
        self.clocks: list[tuple[int, int, float]] = []  # of peers, as their answers told
        self.events: list[tuple[str, int]] = []
        self.reasons: list[str] = []
        self.ups: list[PeerIdentity] = []
        self.refusals: list[tuple[int, RaftlogError]] = []
        self.received: list[tuple[int, bytes]] = []

    def make(self) -> Connection:
        connection = self.connections.make()
        self.incoming.append(connection)
        return connection

    async def close(self) -> None:
        await self.links.close()
        self.connections.abort("the test is over")

    def _dispatch(self, connection: Connection, request: Request) -> Steps | None:
        return dispatching.dispatch(self.context, connection, request)  # type: ignore[arg-type]

    def _up(self, identity: PeerIdentity) -> None:
        self.events.append(("up", identity.broker_id))
        self.ups.append(identity)

    def _down(self, broker_id: int, reason: RaftlogError) -> None:
        self.events.append(("down", broker_id))
        self.reasons.append(str(reason))


class Late:
    """Stands before a protocol: what it writes leaves after the world's latency, in order."""

    def __init__(self, protocol: Any, world: World) -> None:
        self._protocol = protocol
        self._world = world
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._protocol.connection_made(self)

    def __getattr__(self, name: str) -> Any:
        of = self._protocol if hasattr(self._protocol, name) else self._transport
        return getattr(of, name)

    def abort(self) -> None:
        self._transport.abort()

    def write(self, data: Any) -> None:
        self._world.loop.call_later(self._world.latency_s, self._transport.write, bytes(data))

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))


class World:
    """A network of memory transports: who can be dialled, by port."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.listening: dict[int, FakeBroker] = {}
        self.brokers: list[FakeBroker] = []
        self.pipes: list[tuple[MemoryTransport, MemoryTransport]] = []  # dialler's side first
        self.dials: list[tuple[float, int]] = []
        self.hangs = False  # a dial never comes to an end
        self.latency_s = 0.0  # of each way

    async def connect(
        self, address: Address, protocol_factory: Callable[[], asyncio.BufferedProtocol]
    ) -> asyncio.Transport:
        self.dials.append((self.loop.time(), address.port))
        if self.hangs:
            await self.loop.create_future()
        broker = self.listening.get(address.port)
        if broker is None:
            raise ConnectionRefusedError(111, f"nobody listens at {address}")
        protocol: Any = protocol_factory()
        incoming: Any = broker.make()
        if self.latency_s:
            await asyncio.sleep(2 * self.latency_s)
            protocol, incoming = Late(protocol, self), Late(incoming, self)
        self.pipes.append(join(self.loop, protocol, incoming))
        return self.pipes[-1][0]

    def broker(self, broker_id: int, *, port: int = 0, **facts: Any) -> FakeBroker:
        """A broker that listens. One that listened on the same port is there no more."""
        broker = FakeBroker(self.loop, self, broker_id, port=port, **facts)
        self.listening[port or broker_id] = broker
        self.brokers.append(broker)
        return broker

    async def stop(self, broker: FakeBroker) -> None:
        """As a process that ends: nobody listens, every connection is closed."""
        for port, listening in list(self.listening.items()):
            if listening is broker:
                del self.listening[port]
        await broker.close()

    def power_off(self, broker: FakeBroker) -> None:
        """As a machine without power: it says nothing more, and nothing tells the others so.

        Silences every connection there is.
        """
        for port, listening in list(self.listening.items()):
            if listening is broker:
                del self.listening[port]
        for pipe in self.pipes:
            for end in pipe:
                end.pause_reading()
        for link in broker.links._links.values():
            link._stopped = True
            link._cancel_timer()

    async def pass_seconds(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def until(self, condition: Callable[[], object]) -> None:
        """Virtual time goes on until it is so; a minute at most."""
        end = self.loop.time() + 60
        while not condition():
            assert self.loop.time() < end, "it never came to pass"
            await asyncio.sleep(0.01)


Run: TypeAlias = Callable[[Callable[[World], Coroutine[Any, Any, None]]], None]


async def pair(world: World, **facts: Any) -> tuple[FakeBroker, FakeBroker]:
    """Two brokers with links in both directions, up."""
    one, two = world.broker(1, **facts), world.broker(2)
    one.links.set_addresses(at(1, 2))
    two.links.set_addresses(at(1, 2))
    await world.until(lambda: one.links.is_up(2) and two.links.is_up(1))
    return one, two


def alternating(events: list[tuple[str, int]], peer: int) -> list[str]:
    """What happened to the link to ``peer``, which takes turns."""
    kinds = [kind for kind, broker_id in events if broker_id == peer]
    assert kinds == ["up", "down"] * (len(kinds) // 2) + ["up"] * (len(kinds) % 2)
    return kinds


def at(*ports: int) -> dict[int, Address]:
    """The addresses of the brokers with these ids, each listening at the port of its id."""
    return {port: Address("broker", port) for port in ports}


def run(test: Callable[[World], Coroutine[Any, Any, None]], monkeypatch: Any) -> None:
    """Run a test in virtual time, and end all of its brokers."""
    for number, handler in HANDLERS.items():
        monkeypatch.setitem(dispatching.HANDLERS, number, handler)
    loop = VirtualLoop()
    mistakes: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: mistakes.append(context))

    async def whole() -> None:
        world = World(loop)
        try:
            await test(world)
        finally:
            for broker in world.brokers:
                await broker.close()

    try:
        loop.run_until_complete(asyncio.wait_for(whole(), 600))
        gc.collect()  # a future whose error nobody has seen tells it when it goes
    finally:
        loop.close()
    assert mistakes == []
