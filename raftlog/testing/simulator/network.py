"""The network between simulated processes: reachability, latency and loss.

Hosts have names; a process runs on the host with the name of its loop. Connections behave like
TCP: bytes arrive in order or not at all. A cut link does not end a connection: bytes are sent again
until the link is restored, or until one end or both time out. A connection may therefore be
half-open for a long time, and bytes may arrive very late.
"""

from __future__ import annotations

import asyncio
import errno
import os
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from raftlog import limits
from raftlog.testing.simulator.loop import NS, NodeLoop, SimLoop
from raftlog.testing.simulator.transport import Factory, Mark, SimTransport, Wire, wire_up

# When TCP resends the first packet of a connection, in seconds after the previous attempt.
CONNECT_RETRIES_S: Final = (0.0, 1.0, 2.0, 4.0, 8.0)
CONNECT_LAST_WAIT_S: Final = 16.0
GIVE_UP_S: Final = (0.5, 20.0)  # range of the timeout of an end without a response
RETRANSMIT_S_MAX: Final = 1.0  # from the end of a cut to the next attempt


@dataclass(frozen=True, slots=True)
class Latency:
    """Travel time of packets: at least ``least_s``, on average ``mean_s`` longer."""

    least_s: float = 50e-6
    mean_s: float = 200e-6


class SimSocket:
    """A listening socket, with the methods that a broker uses."""

    def __init__(self, host: str, port: int) -> None:
        self._name = (host, port)

    def getsockname(self) -> tuple[str, int]:
        return self._name


class SimServer(asyncio.AbstractServer):
    """A listening process, until ``close`` or the end of the process."""

    def __init__(
        self, network: SimNetwork, loop: NodeLoop, factory: Factory, address: tuple[str, int]
    ) -> None:
        self.loop = loop
        self.factory = factory
        self.address = address
        self._network = network

    def close(self) -> None:
        self._network.unlisten(self)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop

    def is_serving(self) -> bool:
        return self._network.listener(*self.address) is self

    async def start_serving(self) -> None:
        """Do nothing: it serves already."""

    async def serve_forever(self) -> None:
        """Do nothing: it serves already."""

    async def wait_closed(self) -> None:
        """Do nothing: ``close`` takes effect immediately."""


class SimNetwork:
    """The simulated network, and the ``Carrier`` of its transports. Draws from ``random`` only."""

    def __init__(
        self,
        world: SimLoop,
        random: Random,
        *,
        latency: Latency | None = None,
        socket_bytes: int = 64 * limits.KIB,
        slicing: float = 0.0,
    ) -> None:
        """``socket_bytes``: socket buffers of a connection in each direction. ``slicing``: share of
        reads that return only a part of the available bytes.
        """
        self.latency = latency or Latency()
        self.socket_bytes = socket_bytes
        self.chance = random.random
        self.packets = 0
        self.packets_lost = 0
        self._slicing = slicing
        self._world = world
        self._random = random
        self._kernel = NodeLoop(world, "network", step_ns=1)
        self._listeners: dict[tuple[str, int], SimServer] = {}
        self._cut: dict[tuple[str, str], None] = {}  # links in one direction
        self._down: dict[str, None] = {}  # hosts without power
        self._slow: dict[tuple[str, str], float] = {}  # links, with seconds added to each packet
        self._ends: dict[SimTransport, None] = {}
        self._next_port: dict[str, int] = {}

    # -- calls from processes ----------------------------------------------------------------------

    def listen(self, loop: NodeLoop, factory: Factory, host: str, port: int) -> SimServer:
        """Accept connections to ``host:port``. Raises ``OSError`` if the address is in use."""
        if self.listener(host, port) is not None:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        server = self._listeners[host, port] = SimServer(self, loop, factory, (host, port))
        return server

    def unlisten(self, server: SimServer) -> None:
        if self._listeners.get(server.address) is server:
            del self._listeners[server.address]

    def listener(self, host: str, port: int) -> SimServer | None:
        """Return the server that listens on this address; None without one."""
        server = self._listeners.get((host, port))
        return server if server is not None and server.loop.is_alive else None

    async def connect(
        self, loop: NodeLoop, factory: Factory, host: str, port: int
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        """Connect. Raises ``OSError`` if refused, or without a response within half a minute."""
        source = loop.name
        for wait_s in CONNECT_RETRIES_S:
            await asyncio.sleep(wait_s)
            if not self.reaches(source, host):
                continue
            await asyncio.sleep(self._travel_s(source, host))
            server = self.listener(host, port)
            if host in self._down or not self.reaches(host, source):
                continue
            await asyncio.sleep(self._travel_s(host, source))
            if server is None:
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            return self._join(loop, factory, server)
        await asyncio.sleep(CONNECT_LAST_WAIT_S)
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    def _join(
        self, loop: NodeLoop, factory: Factory, server: SimServer
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        port = self._next_port[loop.name] = self._next_port.get(loop.name, 40_000) + 1
        here, there = (loop.name, port), server.address
        near = SimTransport(self, loop, host=loop.name, name=here, peer=there)
        far = SimTransport(self, server.loop, host=there[0], name=there, peer=here)
        wire_up(near, far)
        self._ends[near] = self._ends[far] = None
        self.carry(near.out, Mark.ACCEPT)
        protocol = factory()
        near.open(protocol)
        return near, protocol

    # -- faults ------------------------------------------------------------------------------------

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Block all packets between two hosts; ``one_way``: only from ``a`` to ``b``."""
        links = [(a, b)] if one_way else [(a, b), (b, a)]
        fresh = [link for link in links if link not in self._cut]
        self._cut |= dict.fromkeys(fresh)
        for end in self._between(a, b) if fresh else ():
            if self.chance() < 0.5:
                wait_s = self._random.uniform(*GIVE_UP_S)
                self._kernel.call_later(wait_s, self._give_up, end)

    def mend(self, a: str, b: str) -> None:
        """Undo ``cut`` in both directions."""
        self._cut.pop((a, b), None)
        self._cut.pop((b, a), None)
        for end in self._between(a, b):
            self._send_again(end.out)

    def partition(self, *groups: Sequence[str]) -> None:
        """Cut all links between the groups. Hosts in no group still reach all others."""
        for number, group in enumerate(groups):
            for other in groups[number + 1 :]:
                for a in group:
                    for b in other:
                        self.cut(a, b)

    def heal(self, hosts: Collection[str] | None = None) -> None:
        """End cuts and slowness of all links, or of those between ``hosts``."""
        for link in [*self._slow, *self._cut]:
            if hosts is None or (link[0] in hosts and link[1] in hosts):
                self._slow.pop(link, None)
                self.mend(*link)

    def slow(self, a: str, b: str, added_s: float) -> None:
        """Delay every packet from ``a`` to ``b`` by ``added_s``; 0 ends the delay."""
        self._slow[a, b] = added_s

    def reset_connections(self, a: str, b: str) -> int:
        """Reset all connections between two hosts, as a middlebox does. Returns their number."""
        ends = list(self._between(a, b))
        for end in ends:
            end.reset()
        return len(ends) // 2

    def connected_to(self, host: str) -> list[str]:
        """Return the other hosts that have connections with ``host``, also half-open ones."""
        found = {end.out.receiver.host: None for end in self._ends if end.host == host}
        return [other for other in found if other != host]

    def process_died(self, loop: NodeLoop) -> None:
        """Close the sockets of a killed process, as its kernel does."""
        for end in [end for end in self._ends if end.loop is loop]:
            end.die()
            self.over(end)
        self._forget_listeners(loop)

    def power_failed(self, loop: NodeLoop) -> None:
        """Turn a host off. Its peers are not notified."""
        self._down[loop.name] = None
        for end in [end for end in self._ends if end.host == loop.name]:
            end.shut()
        self._forget_listeners(loop)

    def power_on(self, host: str) -> None:
        """Turn a host on. Peers that sent it packets while it was off receive a reset later."""
        self._down.pop(host, None)
        for end in [end for end in self._ends if end.host == host and end.is_shut]:
            if end.incoming_wire.unanswered:
                wait_s = self._random.uniform(0, 3 * RETRANSMIT_S_MAX)
                self._kernel.call_later(wait_s, self.carry, end.out, Mark.RESET)
            self._send_again(end.incoming_wire)

    def reaches(self, a: str, b: str) -> bool:
        """Return whether a packet from ``a`` reaches ``b``, if ``b`` has power."""
        return (a, b) not in self._cut

    @property
    def cuts(self) -> list[tuple[str, str]]:
        """The directed links that are cut."""
        return list(self._cut)

    def _between(self, a: str, b: str) -> Iterable[SimTransport]:
        hosts = {(a, b), (b, a)}
        return [end for end in self._ends if (end.host, end.out.receiver.host) in hosts]

    def _give_up(self, end: SimTransport) -> None:
        a, b = end.host, end.out.receiver.host
        if not (self.reaches(a, b) and self.reaches(b, a)):
            end.give_up()

    def _forget_listeners(self, loop: NodeLoop) -> None:
        for server in [server for server in self._listeners.values() if server.loop is loop]:
            self.unlisten(server)

    # -- packets -----------------------------------------------------------------------------------

    def carry(self, wire: Wire, packet: memoryview | Mark) -> None:
        """Deliver ``packet`` after the earlier ones, unless the link is cut."""
        a, b = wire.sender.host, wire.receiver.host
        if a in self._down:
            return
        if not self.reaches(a, b):
            if packet is not Mark.RESET:  # TCP does not resend a reset
                wire.held.append(packet)
            return
        at_ns = self._world.now_ns + round(self._travel_s(a, b) * NS)
        wire.arrives_ns = at_ns = max(at_ns, wire.arrives_ns + 1)
        arrive = partial(self._arrive, wire, packet, wire.epoch)
        self._world.push(at_ns, self._kernel, asyncio.Handle(arrive, (), self._kernel, None))

    def _travel_s(self, a: str, b: str) -> float:
        latency = self.latency
        extra_s = self._random.expovariate(1 / latency.mean_s)
        return latency.least_s + extra_s + self._slow.get((a, b), 0.0)

    def _send_again(self, wire: Wire) -> None:
        if wire.held and self.reaches(wire.sender.host, wire.receiver.host):
            held, wire.held = wire.held, []
            wait_ns = round(self._random.uniform(0, RETRANSMIT_S_MAX) * NS)
            wire.arrives_ns = max(wire.arrives_ns, self._world.now_ns + wait_ns)
            for packet in held:
                self.carry(wire, packet)

    def _arrive(self, wire: Wire, packet: memoryview | Mark, epoch: int) -> None:
        self.packets += 1
        end = wire.receiver
        if epoch != wire.epoch or end.host in self._down:
            self.packets_lost += 1
            wire.unanswered = True
            return
        if isinstance(packet, memoryview):
            self._world.note(f"{wire.sender.host}>{end.host} {zlib.crc32(packet):08x}")
        if packet is not Mark.ACCEPT:
            end.arrive(packet)
            return
        server = self.listener(*end.get_extra_info("sockname"))
        if server is None or server.loop is not end.loop:
            end.shut()
            self.carry(end.out, Mark.RESET)
        else:
            end.loop.call_soon(self._accept, end, server)

    def _accept(self, end: SimTransport, server: SimServer) -> None:
        if not end.is_shut:
            end.open(server.factory())

    def read_size(self, available: int) -> int:
        if self._slicing and self.chance() < self._slicing:
            return self._random.randint(1, available)
        return available

    def over(self, end: SimTransport) -> None:
        """Forget a connection once both ends are lost."""
        if end.out.receiver.is_shut:
            self._ends.pop(end, None)
            self._ends.pop(end.out.receiver, None)
