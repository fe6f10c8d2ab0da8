"""Simulated TCP connections: two ends, and a wire in each direction that keeps the order of bytes.

An end behaves towards its protocol like an asyncio socket transport, and towards its peer like a
kernel: it receives packets while its process is paused, and responds with a reset to data for a
closed socket or an ended process. The network (``Carrier``) determines whether and when a packet
arrives.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, Protocol

from raftlog import limits
from raftlog.memory_transport import fill
from raftlog.testing.simulator.loop import NodeLoop
from raftlog.types import Buffer

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
