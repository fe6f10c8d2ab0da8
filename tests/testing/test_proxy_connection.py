"""One connection through a relay: how it ends, what it drops, and what it keeps in order."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

import pytest

from raftlog.testing.relays import (
    BACKWARD,
    DIRECTIONS,
    FORWARD,
    Channel,
    Latency,
    ProxyConnection,
    Slicer,
    SlowClose,
    cancel,
    close,
    unread,
)

SOON_S = 10.0


class Ends:
    """A connection in between two pairs of sockets, and what both its ends say."""

    def __init__(self) -> None:
        self.channels = {way: Channel(way, Random(0)) for way in DIRECTIONS}
        for channel in self.channels.values():
            channel.flowing.set()
        self.near, dialler = _joined()
        target, self.far = _joined()
        self.connection = ProxyConnection(self.channels, dialler, target)
        self.run = asyncio.get_running_loop().create_task(self.connection.run())

    async def send(self, end: socket.socket, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(end, data)

    async def receive(self, end: socket.socket, size: int) -> bytes:
        async with asyncio.timeout(SOON_S):
            return await asyncio.get_running_loop().sock_recv(end, size)


def _joined() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    for end in (one, other):
        end.setblocking(False)
    return one, other


@contextlib.asynccontextmanager
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    try:
        yield made
    finally:
        await cancel([made.run])
        made.near.close()
        made.far.close()


def played(test: Callable[[Ends], Awaitable[None]]) -> Callable[[], None]:
    """The test, on a loop of its own."""

    async def play() -> None:
        async with ends() as made:
            await test(made)

    def run() -> None:
        asyncio.run(play())

    run.__name__ = test.__name__
    return run


@played
async def test_it_ends_when_both_streams_have(made: Ends) -> None:
    await made.send(made.near, b"there")
    assert await made.receive(made.far, 100) == b"there"
    made.near.shutdown(socket.SHUT_WR)
    assert await made.receive(made.far, 1) == b""
    assert not made.run.done()
    made.far.shutdown(socket.SHUT_WR)
    assert await made.receive(made.near, 1) == b""
    async with asyncio.timeout(SOON_S):
        await made.run


@played
async def test_it_is_reset_when_one_end_is(made: Ends) -> None:
    close(made.near, is_reset=True)
    with pytest.raises(ConnectionResetError):
        await made.receive(made.far, 1)
    async with asyncio.timeout(SOON_S):
        await made.run


@played
async def test_what_never_went_on_is_dropped(made: Ends) -> None:
    made.channels[FORWARD].toxics[Latency] = Latency(delay_s=60)
    await made.send(made.near, b"never")
    made.connection.reset()
    async with asyncio.timeout(SOON_S):
        await made.run
    counts = made.channels[FORWARD].counts
    assert (counts.dropped, counts.passed, counts.resets) == (5, 0, 1)
    assert made.channels[BACKWARD].counts.resets == 0


@played
async def test_slices_and_ends_keep_their_order(made: Ends) -> None:
    made.channels[FORWARD].toxics |= {
        Slicer: Slicer(bytes_max=7, pause_s=0.0001),
        Latency: Latency(delay_s=0.001, jitter_s=0.001),
        SlowClose: SlowClose(delay_s=0.001),
    }
    data = bytes(range(256)) * 4
    await made.send(made.near, data)
    made.near.shutdown(socket.SHUT_WR)
    got = b""
    while part := await made.receive(made.far, 1 << 16):
        got += part
    assert got == data
    assert made.channels[FORWARD].counts.delayed == len(data)


def test_unread_bytes_are_counted() -> None:
    one, other = _joined()
    with one, other:
        other.setblocking(True)
        assert unread(other) == 0
        one.sendall(b"four")
        other.recv(1, socket.MSG_PEEK)
        assert unread(other) == 4


def test_a_socket_may_be_closed_twice() -> None:
    one, other = _joined()
    with other:
        close(one, is_reset=True)
        close(one, is_reset=True)
        other.setblocking(True)
        with pytest.raises(ConnectionResetError):
            other.recv(1)
