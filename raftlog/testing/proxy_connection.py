"""One connection through a relay: bytes are read, delayed, changed and written, as toxics define.

Runs on the relays' event loop. ``toxics`` determines the bytes; this module contains sockets and
waiting.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from raftlog.testing.toxics import (
    BACKWARD,
    FORWARD,
    Counts,
    Direction,
    Late,
    Mangler,
    Reset,
    SlowClose,
    Toxic,
    Toxics,
    delay_of,
    find,
    pieces,
)

CHUNK_BYTES: Final = 1 << 16
CHUNKS_MAX: Final = 256  # queued chunks in one direction of a connection
_RST: Final = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: close() sends RST
_END: Final = b""  # of a stream


@dataclass
class Channel:
    """Shared state of all connections of a link, in one direction. ``flowing``: bytes may pass."""

    way: Direction
    random: Random
    toxics: dict[type[Toxic], Toxic] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    flowing: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.mangler = Mangler(self.random, self.counts)


class ProxyConnection:
    """One connection through a relay: a flow each way."""

    def __init__(
        self,
        channels: Mapping[Direction, Channel],
        dialler: socket.socket,
        target: socket.socket,
    ) -> None:
        self._dialler, self._target = dialler, target
        for end in (dialler, target):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # slices are sent separately
        self._is_reset = False
        self._tasks: list[asyncio.Task[None]] = []
        self._forward = Flow(channels[FORWARD], dialler, target)
        self._backward = Flow(channels[BACKWARD], target, dialler)

    async def run(self) -> None:
        """Run until both streams have ended, or one end is closed, or it is reset."""
        flows = (self._forward, self._backward)
        for flow in flows:
            flow.counts.connections += 1
        steps = [step for flow in flows for step in (flow.read(), flow.write())]
        self._tasks = [asyncio.get_running_loop().create_task(step) for step in steps]
        if self._is_reset:  # before the start
            await cancel(self._tasks)
        try:
            # A cancelled task does not end the others.
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
            self._is_reset |= any(
                t.done() and not t.cancelled() and t.exception() for t in self._tasks
            )
        except asyncio.CancelledError:
            self._is_reset = True
            raise
        finally:
            await cancel(self._tasks)
            for flow in flows:
                flow.counts.dropped += flow.held
            close(self._dialler, is_reset=self._is_reset)
            close(self._target, is_reset=self._is_reset)

    def reset(self) -> None:
        """Send RST to both ends immediately."""
        if not self._is_reset:
            self._forward.counts.resets += 1
            self._is_reset = True
            for task in self._tasks:
                task.cancel()

    def held(self, way: Direction) -> int:
        """Return the bytes received in this direction and not forwarded."""
        return self._flow(way).held

    def leaving(self, way: Direction) -> int:
        """Return the received bytes that no later toxic can hold."""
        return self._flow(way).leaving

    def _flow(self, way: Direction) -> Flow:
        return self._forward if way == FORWARD else self._backward

    async def be_late(self, toxic: Late) -> None:
        """Forward the initiator's bytes after it has lost the connection.

        Has no effect on a connection without bytes.
        """
        flow = self._forward
        reading, _, *backward = self._tasks
        flow.gate.clear()
        if not flow.waiting:
            flow.has_some.clear()
        try:
            async with asyncio.timeout(toxic.gather_s):
                await flow.has_some.wait()
        except TimeoutError:
            flow.gate.set()
            return
        await cancel([reading, *backward])
        flow.is_late = True
        flow.put(_END)
        flow.counts.resets += 1
        close(self._dialler, is_reset=True)
        await asyncio.sleep(toxic.delay_s)
        flow.gate.set()


class Flow:
    """The bytes of one direction of one connection."""

    def __init__(self, channel: Channel, source: socket.socket, sink: socket.socket) -> None:
        self.counts = channel.counts
        self.gate = asyncio.Event()  # set, unless received bytes are gathered
        self.gate.set()
        self.has_some = asyncio.Event()  # bytes were received
        self.waiting = 0  # bytes received and not forwarded
        self.leaving = 0  # of those, the bytes that no toxic can hold
        self.is_late = False  # the sender has lost the connection
        self._channel = channel
        self._source, self._sink = source, sink
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._room = asyncio.Semaphore(CHUNKS_MAX)  # free queue entries; the end needs none
        self._stream = channel.mangler.stream(channel.way)
        self._due = 0.0  # when the last queued bytes are forwarded
        self._free_at = 0.0  # earliest time of the next piece
        self._passed = 0

    @property
    def _toxics(self) -> Toxics:
        return self._channel.toxics

    @property
    def held(self) -> int:
        """Return the bytes received, read or not, and not forwarded."""
        return self.waiting + (unread(self._source) if self._source.fileno() >= 0 else 0)

    async def read(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._room.acquire()
            await self._channel.flowing.wait()
            data = await loop.sock_recv(self._source, CHUNK_BYTES)
            self.put(self._stream.change(data, self._toxics) if data else _END)
            if not data:
                return

    def put(self, data: bytes) -> None:
        """Queue bytes that are forwarded after their delay."""
        self.waiting += len(data)
        if data:
            self.has_some.set()
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now + delay_of(self._toxics, self._channel.random))
        self._queue.put_nowait((self._due, data))

    async def write(self) -> None:
        while True:
            due, data = await self._queue.get()
            is_delayed = await _sleep_until(due)
            if not data:
                break
            await self._send(data, is_delayed=is_delayed)
            self._room.release()
        slow_close = find(self._toxics, SlowClose)
        if slow_close is not None:
            await asyncio.sleep(slow_close.delay_s)
        await self._leave()
        self._sink.shutdown(socket.SHUT_WR)

    async def _send(self, data: bytes, *, is_delayed: bool) -> None:
        loop = asyncio.get_running_loop()
        view = memoryview(data)
        for size, pause_s in pieces(len(data), self._toxics, self._channel.random):
            is_delayed |= await _sleep_until(self._free_at)
            is_delayed |= await self._leave()
            self.leaving = size
            await loop.sock_sendall(self._sink, view[:size])
            view = view[size:]
            self._count(size, is_delayed=is_delayed)
            reset = find(self._toxics, Reset)
            if reset is not None and self._passed >= reset.after_bytes:
                self.counts.resets += 1
                raise ConnectionResetError("reset by a toxic")
            self._free_at = loop.time() + pause_s

    async def _leave(self) -> bool:
        """Return when bytes may be forwarded; True if that was not immediately."""
        gates = (self.gate, self._channel.flowing)
        if all(gate.is_set() for gate in gates):
            return False
        for gate in gates:
            await gate.wait()
        return True

    def _count(self, size: int, *, is_delayed: bool) -> None:
        self._passed += size
        self.leaving = 0
        self.waiting -= size
        self.counts.passed += size
        self.counts.delayed += size * is_delayed
        self.counts.late += size * self.is_late


async def _sleep_until(time_s: float) -> bool:
    """Sleep until a time of the loop's clock. Returns True if it had not passed yet."""
    wait_s = time_s - asyncio.get_running_loop().time()
    if wait_s <= 0:
        return False
    await asyncio.sleep(wait_s)
    return True


def unread(end: socket.socket) -> int:
    """Return the number of unread bytes in the socket; see tcp(7)."""
    count = array.array("i", [0])
    fcntl.ioctl(end, termios.FIONREAD, count)
    return count[0]


def close(end: socket.socket, *, is_reset: bool) -> None:
    """Close a socket; with an RST if it is reset. It may already be closed."""
    if is_reset and end.fileno() >= 0:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
    end.close()


async def cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks, and return when they have ended, with any result."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
