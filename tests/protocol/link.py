"""A fake link: bytes from one side reach the other cut into pieces, as a network cuts them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from hypothesis import strategies as st

from raftlog.types import Buffer

SCRIBBLE = 0xEE


class Receiver(Protocol):
    """A ``FrameReader`` or one of the connection states."""

    def get_buffer(self) -> memoryview: ...

    def received(self, count: int) -> Sequence[Any]: ...


def cuts() -> st.SearchStrategy[list[int]]:
    """Sizes of the pieces, used over and over; none means all at once."""
    return st.lists(st.integers(1, 70), max_size=8)


def pieces(data: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    position = turn = 0
    while position < len(data):
        size = sizes[turn % len(sizes)] if sizes else len(data)
        yield data[position : position + size]
        position += size
        turn += 1


def deliver(
    data: Iterable[Buffer] | Buffer,
    receiver: Receiver,
    *,
    sizes: Sequence[int] = (),
    scratch: memoryview | None = None,
    found: list[Any] | None = None,
) -> list[Any]:
    """Everything that ``receiver`` makes of ``data``; in ``found`` even if it raises.

    ``scratch`` is overwritten after every piece, as another connection that shares it would.
    """
    whole = bytes(data) if isinstance(data, Buffer) else b"".join(data)
    found = [] if found is None else found
    for piece in pieces(whole, sizes):
        rest = piece
        while rest:
            view = receiver.get_buffer()
            assert len(view) > 0, "asyncio refuses an empty buffer"
            count = min(len(view), len(rest))
            view[:count] = rest[:count]
            rest = rest[count:]
            found += receiver.received(count)
        if scratch is not None:
            scratch[:] = bytes([SCRIBBLE]) * len(scratch)
    return found
