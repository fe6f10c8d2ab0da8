"""Two transports joined in memory behave as a socket's do, where a protocol can tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from raftlog.memory_transport import MemoryTransport, join
from tests.running import runs


class Peer(asyncio.BufferedProtocol):
    """Keeps what it is given, and notes what it is told."""

    def __init__(self, buffer_bytes: int = 16) -> None:
        self.received = b""
        self.noted: list[str] = []
        self.keep_open_after_eof = False
        self._buffer = bytearray(buffer_bytes)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.noted.append("made")

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    def eof_received(self) -> bool:
        self.noted.append("eof")
        return self.keep_open_after_eof

    def pause_writing(self) -> None:
        self.noted.append("pause")

    def resume_writing(self) -> None:
        self.noted.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.noted.append(f"lost {type(exc).__name__}" if exc else "lost")


class Pair:
    """Both ends."""

    def __init__(self) -> None:
        self.left, self.right = Peer(), Peer()
        ends = join(asyncio.get_running_loop(), self.left, self.right)
        self.to_right: MemoryTransport = ends[0]
        self.to_left: MemoryTransport = ends[1]


def on_a_loop(test: Callable[[Pair], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        await test(Pair())

    asyncio.run(run())


async def settle() -> None:
    """Let the loop turn until nothing is due any more."""
    for _ in range(100):
        await asyncio.sleep(0)


@given(
    pieces=st.lists(st.binary(max_size=50), max_size=20),
    buffer_bytes=st.integers(1, 40),
    together=st.booleans(),
)
def test_bytes_come_in_order_whatever_the_pieces(
    pieces: list[bytes], buffer_bytes: int, together: bool
) -> None:
    async def test() -> None:
        left, right = Peer(), Peer(buffer_bytes)
        transport, _ = join(asyncio.get_running_loop(), left, right)
        if together:
            transport.writelines(pieces)
        else:
            for piece in pieces:
                transport.write(piece)
        transport.close()
        assert right.received == b"", "nothing is delivered from within a write"
        while right.noted[-1] != "lost":  # noqa: ASYNC110 - each turn of the loop may change it
            await asyncio.sleep(0)
        assert right.received == b"".join(pieces)
        assert right.noted == ["made", "eof", "lost"]
        assert left.noted[-1] == "lost"

    asyncio.run(test())


@runs(on_a_loop)
async def test_both_directions(p: Pair) -> None:
    p.to_right.write(b"there")
    p.to_left.write(bytearray(b"back"))
    await settle()
    assert (p.right.received, p.left.received) == (b"there", b"back")


@runs(on_a_loop)
async def test_a_paused_reader_pauses_the_writer(p: Pair) -> None:
    p.to_right.set_write_buffer_limits(high=10, low=4)
    assert p.to_right.get_write_buffer_limits() == (4, 10)
    p.to_left.pause_reading()
    assert not p.to_left.is_reading()
    p.to_right.write(b"x" * 10)
    assert p.left.noted == ["made"]
    p.to_right.write(b"x")
    assert p.left.noted == ["made", "pause"]
    assert p.to_right.get_write_buffer_size() == 11
    await settle()
    assert p.right.received == b""
    p.to_left.resume_reading()
    await settle()
    assert p.right.received == b"x" * 11
    assert p.left.noted == ["made", "pause", "resume"]
    assert p.to_right.get_write_buffer_size() == 0


@runs(on_a_loop)
async def test_the_end_of_the_stream_leaves_the_other_direction_open(p: Pair) -> None:
    p.right.keep_open_after_eof = True
    assert p.to_right.can_write_eof()
    p.to_right.write(b"last")
    p.to_right.write_eof()
    p.to_right.write(b"too late")
    await settle()
    assert (p.right.received, p.right.noted) == (b"last", ["made", "eof"])
    p.to_left.write(b"answer")
    await settle()
    assert p.left.received == b"answer"
    p.to_left.close()
    await settle()
    assert p.left.noted == ["made", "eof", "lost"]
    assert p.right.noted == ["made", "eof", "lost"]


@runs(on_a_loop)
async def test_closing_waits_for_a_paused_reader(p: Pair) -> None:
    p.to_left.pause_reading()
    p.to_right.write(b"x" * 100)
    p.to_right.close()
    p.to_right.close()
    await settle()
    assert p.to_right.is_closing()
    assert p.left.noted == ["made"]
    p.to_left.resume_reading()
    await settle()
    assert p.right.received == b"x" * 100
    assert p.left.noted == ["made", "lost"]
    assert p.right.noted == ["made", "eof", "lost"]


@runs(on_a_loop)
async def test_aborting_delivers_nothing_more(p: Pair) -> None:
    p.to_right.write(b"never seen")
    p.to_left.write(b"nor this")
    p.to_right.abort()
    p.to_right.write(b"nor that")
    await settle()
    assert (p.left.received, p.right.received) == (b"", b"")
    assert p.left.noted == ["made", "lost"]
    assert p.right.noted == ["made", "lost ConnectionResetError"]
    p.to_right.abort()
    p.to_right.close()
    await settle()
    assert p.left.noted == ["made", "lost"]


@runs(on_a_loop)
async def test_the_protocol_can_be_looked_at_and_replaced(p: Pair) -> None:
    other = Peer()
    assert p.to_left.get_protocol() is p.right
    p.to_left.set_protocol(other)
    p.to_right.write(b"x")
    await settle()
    assert other.received == b"x"
    assert p.to_left.get_extra_info("peername", "nobody") == "nobody"
