"""Two asyncio transports joined in memory: a connection without a socket, on one event loop.

For the embedded log and for tests. Protocols see the behavior of TCP: bytes arrive in order, in
pieces of any size and after a delay; a paused reader pauses the writer; ``close`` delivers the
written bytes first, ``abort`` discards them. Buffers are not copied: the writer must not change
them after the write.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from raftlog import limits
from raftlog.types import Buffer

HIGH_BYTES_DEFAULT: Final = 64 * limits.KIB


class MemoryTransport(asyncio.Transport):
    """One end of a connection, created by ``join``. Its methods are asyncio's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._peer: MemoryTransport = self  # until joined
        self._incoming: deque[memoryview] = deque()  # written by the peer, not yet delivered
        self._incoming_bytes = 0
        self._peer_ended = False  # the stream ends after the incoming bytes
        self._delivering = False  # a delivery is scheduled on the loop
        self._reading = True
        self._writing_ended = False
        self._closing = False
        self._lost = False
        self._writer_paused = False
        self._high = HIGH_BYTES_DEFAULT
        self._low = HIGH_BYTES_DEFAULT // 4

    # -- writing

    def write(self, data: Buffer) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        peer = self._peer
        if self._writing_ended or self._closing or peer._lost:
            return  # as a socket's transport: connection_lost reports the loss
        for data in list_of_data:
            view = memoryview(data).cast("B")
            if view:
                peer._incoming.append(view)
                peer._incoming_bytes += len(view)
        peer._deliver_soon()
        if not self._writer_paused and peer._incoming_bytes > self._high:
            self._writer_paused = True
            self._protocol.pause_writing()

    def write_eof(self) -> None:
        if not self._writing_ended:
            self._writing_ended = True
            self._peer._peer_ended = True
            self._peer._deliver_soon()

    def can_write_eof(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_BYTES_DEFAULT if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._peer._incoming_bytes

    # -- reading

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._deliver_soon()

    # -- closing

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Deliver the written bytes, then close. Bytes that arrive until then are discarded."""
        if self._closing:
            return
        self._closing = True
        self._drop_incoming()
        self.write_eof()
        if not self._peer._incoming:
            self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        """Close both sides immediately, without delivering the written bytes."""
        self._closing = True
        self._peer._drop_incoming()
        self._loop.call_soon(self._lose, None)
        self._loop.call_soon(self._peer._lose, ConnectionResetError("the other side aborted"))

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.BufferedProtocol)
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002 - has none
        return default

    # -- delivery, always from the loop: a write never calls the other protocol

    def _deliver_soon(self) -> None:
        if not self._delivering and not self._lost:
            self._delivering = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Fill the protocol's buffer once, as a read from a socket does."""
        self._delivering = False
        if self._closing or self._lost or not self._reading:
            return
        if self._incoming:
            buffer = memoryview(self._protocol.get_buffer(self._incoming_bytes))
            count = fill(buffer, self._incoming)
            self._incoming_bytes -= count
            self._peer._drained()
            self._protocol.buffer_updated(count)
            self._deliver_soon()
        elif self._peer_ended:
            self._peer_ended = False
            if not self._protocol.eof_received():
                self.close()

    def _drop_incoming(self) -> None:
        self._incoming.clear()
        self._incoming_bytes = 0
        self._peer._drained()

    def _drained(self) -> None:
        """Resume writing after the peer has read enough of the written bytes."""
        if self._writer_paused and self._peer._incoming_bytes <= self._low:
            self._writer_paused = False
            self._loop.call_soon(self._protocol.resume_writing)
        if self._closing and not self._peer._incoming:
            self._loop.call_soon(self._lose, None)

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._drop_incoming()
        self._protocol.connection_lost(error)


def fill(buffer: memoryview, pieces: deque[memoryview]) -> int:
    """Move bytes from the front of ``pieces`` to ``buffer``. Returns their number."""
    count = 0
    while pieces and count < len(buffer):
        first = pieces[0]
        size = min(len(first), len(buffer) - count)
        buffer[count : count + size] = first[:size]
        count += size
        if size == len(first):
            pieces.popleft()
        else:
            pieces[0] = first[size:]
    return count


def join(
    loop: asyncio.AbstractEventLoop,
    left: asyncio.BufferedProtocol,
    right: asyncio.BufferedProtocol,
) -> tuple[MemoryTransport, MemoryTransport]:
    """Connect two protocols and call their ``connection_made`` immediately."""
    transports = MemoryTransport(loop, left), MemoryTransport(loop, right)
    transports[0]._peer, transports[1]._peer = transports[1], transports[0]
    left.connection_made(transports[0])
    right.connection_made(transports[1])
    return transports
