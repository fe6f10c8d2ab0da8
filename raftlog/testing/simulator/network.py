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
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random
from typing import Any, Final, Protocol

from raftlog import limits
from raftlog.memory_transport import fill
from raftlog.testing.simulator.loop import NS, NodeLoop, SimLoop
from raftlog.types import Buffer

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


# -- transport -------------------------------------------------------------------------------------
#
# Simulated TCP connections: two ends, and a wire in each direction that keeps the order of bytes.
#
# An end behaves towards its protocol like an asyncio socket transport, and towards its peer like a
# kernel: it receives packets while its process is paused, and responds with a reset to data for a
# closed socket or an ended process. The network (``Carrier``) determines whether and when a packet
# arrives.


HIGH_BYTES_DEFAULT: Final = 64 * limits.KIB


class Mark(Enum):
    """Packets without bytes."""

    ACCEPT = "accept"  # the first packet of a connection, to the listener
    END = "end"  # FIN
    RESET = "reset"  # RST


class Carrier(Protocol):
    """Interface of the network for the ends of connections."""

    socket_bytes: int

    def carry(self, wire: Wire, packet: memoryview | Mark) -> None:
        """Deliver ``packet`` later, after the earlier packets of ``wire``."""
        ...

    def chance(self) -> float:
        """Return a random number like ``random.random``: in [0, 1)."""
        ...

    def read_size(self, available: int) -> int:
        """Return the number of bytes that one read returns: 1 to ``available``."""
        ...

    def over(self, end: SimTransport) -> None:
        """Note that ``end`` no longer has a protocol or a process."""
        ...


class Wire:
    """One direction of a connection."""

    __slots__ = ("arrives_ns", "epoch", "held", "receiver", "sender", "unanswered", "unread_bytes")

    def __init__(self, sender: SimTransport, receiver: SimTransport) -> None:
        self.sender = sender
        self.receiver = receiver
        self.arrives_ns = 0  # time of the last packet's arrival; the next packet arrives later
        self.epoch = 0  # packets of an older epoch are lost in flight
        self.held: list[memoryview | Mark] = []  # not received because of a cut; TCP resends it
        self.unanswered = False  # a packet was lost that TCP will resend
        self.unread_bytes = 0  # written, and not yet read by the receiver's protocol

    def lose_all(self) -> None:
        """Lose all packets that have not arrived."""
        self.epoch += 1
        self.held.clear()


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self, carrier: Carrier, loop: NodeLoop, *, host: str, name: object, peer: object
    ) -> None:
        super().__init__()
        self.loop = loop
        self.host = host
        self.is_shut = False  # closed in the kernel: sends nothing more, refuses arriving data
        self.out: Wire  # set by ``wire_up``
        self.incoming_wire: Wire
        self._carrier = carrier
        self._names = {"sockname": name, "peername": peer}
        self._protocol: asyncio.BaseProtocol | None = None  # set by ``open``
        self._incoming: deque[memoryview] = deque()
        self._incoming_bytes = 0
        self._peer_ended = False  # the end of the stream follows the incoming bytes
        self._peer_reset = False  # the connection is lost after the incoming bytes
        self._delivering = False  # a delivery is scheduled on the loop
        self._reading = True
        self._writing_ended = False
        self._closing = False
        self._lost = False
        self._writer_paused = False
        self._high = HIGH_BYTES_DEFAULT
        self._low = HIGH_BYTES_DEFAULT // 4

    def open(self, protocol: asyncio.BaseProtocol) -> None:
        """Attach the connection to a protocol. Must run on the loop of the protocol's process."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._deliver_soon()

    # -- writing

    def write(self, data: Buffer) -> None:
        if self._writing_ended or self.is_shut:
            return  # like asyncio's socket transport: connection_lost reports the loss
        view = memoryview(data).cast("B")
        if not view:
            return
        self.out.unread_bytes += len(view)
        self._carrier.carry(self.out, view)
        if not self._writer_paused and self.get_write_buffer_size() > self._high:
            self._writer_paused = True
            assert self._protocol is not None
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        for data in list_of_data:
            self.write(data)

    def write_eof(self) -> None:
        if not self._writing_ended and not self.is_shut:
            self._writing_ended = True
            self._carrier.carry(self.out, Mark.END)

    def can_write_eof(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_BYTES_DEFAULT if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that do not fit into the socket buffers."""
        return max(0, self.out.unread_bytes - self._carrier.socket_bytes)

    def _drained(self) -> None:
        """Resume writing, or finish ``close``, after the peer has read bytes."""
        size = self.get_write_buffer_size()
        if self._writer_paused and size <= self._low:
            self._writer_paused = False
            self.loop.call_soon(self._resume_writing)
        if self._closing and not size:
            self.loop.call_soon(self._lose, None)

    def _resume_writing(self) -> None:
        if not self._lost and self._protocol is not None:
            self._protocol.resume_writing()

    # -- reading

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._deliver_soon()

    # -- end of the connection, requested by the protocol

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """End the connection after the written bytes. Bytes that are unread, or arrive later, cause
        a reset.
        """
        if self._closing:
            return
        self._closing = True
        unread = self._incoming_bytes
        self._drop_incoming()
        if unread:
            self._reset_peer()
        else:
            self.write_eof()
        self.is_shut = True
        if not self.get_write_buffer_size():
            self.loop.call_soon(self._lose, None)

    def abort(self) -> None:
        """End the connection immediately with a reset."""
        if self._lost:
            return
        self._closing = True
        self._drop_incoming()
        self._reset_peer()
        self.loop.call_soon(self._lose, None)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._names.get(name, default)

    # -- end of the connection for other reasons

    def shut(self) -> None:
        """Close this end without a packet to the peer, as a power failure does."""
        self.is_shut = True

    def die(self) -> None:
        """Close the socket of a killed process, as its kernel does."""
        if self.is_shut:
            return
        if self._incoming_bytes or self._carrier.chance() < 0.2:
            self._reset_peer()
        else:
            self.write_eof()
        self.is_shut = True

    def give_up(self) -> None:
        """End the connection to an unresponsive peer with ``ETIMEDOUT``, as the kernel does.

        The peer receives no packet.
        """
        if not self._lost:
            self.is_shut = True
            self._fail(OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

    def reset(self) -> None:
        """Reset the connection at this end, as a firewall or a load balancer on the path does."""
        if not self._lost:
            self._arrive_reset()

    def _reset_peer(self) -> None:
        """Send a reset. Packets in flight may be lost: the peer's kernel discards unread bytes."""
        if self.is_shut:
            return
        self.is_shut = True
        if self._carrier.chance() < 0.5:
            self.out.lose_all()
        self._carrier.carry(self.out, Mark.RESET)

    # -- packets from the network: processed outside of any process, as by a kernel

    def arrive(self, packet: memoryview | Mark) -> None:
        """Process a packet that has arrived."""
        if packet is Mark.RESET:
            if not self._lost:
                self._arrive_reset()
        elif self.is_shut or not self.loop.is_alive:
            if not isinstance(packet, Mark):
                self._carrier.carry(self.out, Mark.RESET)  # no process uses this end
        elif packet is Mark.END:
            self._peer_ended = True
            self._deliver_soon()
        else:
            assert isinstance(packet, memoryview)
            self._incoming.append(packet)
            self._incoming_bytes += len(packet)
            self._deliver_soon()

    def _arrive_reset(self) -> None:
        self.is_shut = True
        self.out.lose_all()
        if self._reading and self._incoming and self._carrier.chance() < 0.5:
            self._peer_reset = True  # bytes received before the reset can still be read
            self._deliver_soon()
        else:
            self._fail(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    # -- delivery to the protocol, always on the loop of its process

    def _deliver_soon(self) -> None:
        if not self._delivering and not self._lost:
            self._delivering = True
            self.loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Perform one read from the socket. The network determines its size (``read_size``)."""
        self._delivering = False
        protocol = self._protocol
        if self._closing or self._lost or not self._reading or protocol is None:
            return
        if self._incoming:
            self._read(protocol)
            self._deliver_soon()
        elif self._peer_reset:
            self._fail(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
        elif self._peer_ended:
            self._peer_ended = False
            assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
            if not protocol.eof_received():
                self.close()

    def _read(self, protocol: asyncio.BaseProtocol) -> None:
        size = self._carrier.read_size(self._incoming_bytes)
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(size))
            count = fill(buffer[:size], self._incoming)
            self._taken(count)
            protocol.buffer_updated(count)
        else:
            assert isinstance(protocol, asyncio.Protocol)
            data = bytearray(size)
            self._taken(fill(memoryview(data), self._incoming))
            protocol.data_received(bytes(data))

    def _taken(self, count: int) -> None:
        self._incoming_bytes -= count
        self.incoming_wire.unread_bytes -= count
        self.incoming_wire.sender._drained()

    def _drop_incoming(self) -> None:
        self._incoming.clear()
        self._taken(self._incoming_bytes)

    def _fail(self, error: OSError) -> None:
        self.loop.call_soon(self._lose, error)

    def _lose(self, error: OSError | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = self.is_shut = True
        self._drop_incoming()
        self._carrier.over(self)
        if self._protocol is not None:
            self._protocol.connection_lost(error)


def wire_up(left: SimTransport, right: SimTransport) -> None:
    """Connect two ends by two wires."""
    left.out = right.incoming_wire = Wire(left, right)
    right.out = left.incoming_wire = Wire(right, left)


Factory = Callable[[], asyncio.BaseProtocol]
