"""Asynchronous clients belong to the loop that first uses them."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.client.base import LoopBound
from raftlog.errors import ClosedError, InvalidRequestError


class Client(LoopBound):
    """The least that a client is."""

    def __init__(self) -> None:
        self.loops: list[asyncio.AbstractEventLoop] = []

    def _bound(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loops.append(loop)

    async def use(self) -> None:
        self._bind()

    async def close(self) -> None:
        self._closed = True


def test_one_made_outside_a_loop_is_bound_by_its_first_use() -> None:
    client = Client()

    async def main() -> None:
        await client.use()
        await client.use()

    asyncio.run(main())
    assert len(client.loops) == 1


def test_another_loop_is_refused_with_the_reason() -> None:
    client = Client()
    asyncio.run(client.use())
    with pytest.raises(InvalidRequestError, match=r"this Client belongs to another event loop"):
        asyncio.run(client.use())


def test_a_closed_one_says_so() -> None:
    client = Client()
    asyncio.run(client.close())
    with pytest.raises(ClosedError, match="Client was closed"):
        asyncio.run(client.use())
