"""Two hosts with a connection between them, for the tests of the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from raftlog.testing.simulator.loop import NodeLoop, SimLoop
from raftlog.testing.simulator.network import Latency, SimNetwork, SimSocket, SimTransport

T = TypeVar("T")


class Peer(asyncio.BufferedProtocol):
    """Keeps what it is given, and notes what it is told, with the time."""

    def __init__(self, world: SimLoop) -> None:
        self.world = world
        self.received = b""
        self.noted: list[str] = []
        self.told_at: list[float] = []
        self.transport: Any = None
        self.keeps_open = False
        self._buffer = bytearray(16)

    def _note(self, what: str) -> None:
        self.noted.append(what)
        self.told_at.append(self.world.now)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._note("made")

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    def eof_received(self) -> bool:
        self._note("eof")
        return self.keeps_open

    def pause_writing(self) -> None:
        self._note("pause")

    def resume_writing(self) -> None:
        self._note("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self._note(f"lost {type(exc).__name__}" if exc else "lost")

    @property
    def is_lost(self) -> bool:
        return self.noted[-1].startswith("lost")


class Link:
    """A host that listens, one that connects, and both ends of their connection."""

    def __init__(self, seed: int = 0, **settings: Any) -> None:
        self.world = SimLoop()
        settings.setdefault("latency", Latency(0.001, 0.001))
        self.network = SimNetwork(self.world, Random(seed), **settings)
        self.server = NodeLoop(self.world, "server", sockets=self.network)
        self.client = NodeLoop(self.world, "client", sockets=self.network)
        self.accepted: list[Peer] = []
        self.listen()

    def listen(self) -> None:
        self.run_in(self.server, self._listen)

    async def _listen(self) -> asyncio.AbstractServer:
        loop = asyncio.get_running_loop()
        return await loop.create_server(self._accept, sock=SimSocket("server", 9))  # type: ignore[arg-type]

    def _accept(self) -> Peer:
        self.accepted.append(Peer(self.world))
        return self.accepted[-1]

    def restart_server(self) -> None:
        self.server = NodeLoop(self.world, "server", sockets=self.network)
        self.listen()

    def run_in(self, loop: NodeLoop, program: Callable[[], Coroutine[Any, Any, T]]) -> T:
        task = loop.create_task(program())
        self.world.run_until(task, limit_s=self.world.now + 100)
        return task.result()

    def connect(self, port: int = 9) -> tuple[Peer, Peer]:
        """The client's end and the server's."""

        async def program() -> tuple[Any, Peer]:
            loop = asyncio.get_running_loop()
            return await loop.create_connection(lambda: Peer(self.world), "server", port)

        _, near = self.run_in(self.client, program)
        self.wait(1)
        return near, self.accepted[-1]

    def wait(self, seconds: float) -> None:
        self.world.run_until(self.world.now + seconds)

    def kill_server(self) -> None:
        self.server.kill()
        self.network.process_died(self.server)

    def cut_power(self) -> None:
        self.server.kill()
        self.network.power_failed(self.server)


def buffered(peer: Peer) -> int:
    transport = peer.transport
    assert isinstance(transport, SimTransport)
    return transport.get_write_buffer_size()
