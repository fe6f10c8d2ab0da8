"""The environment of a client: how it connects, its thread, its clock and its random numbers.

The default is the real one. The embedded log and the tests pass others.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from raftlog.client.connection import Connector
from raftlog.client.retry import Chance
from raftlog.client.threads import LoopThread
from raftlog.clock import Clock, SystemClock
from raftlog.errors import ClosedError, InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEnvironment:
    """Environment of a client. The defaults are the real network, clock and random numbers.

    ``connector``: None opens TCP connections. ``loop_thread``: shared by synchronous clients; None
    creates one per client, which ends with it. Asynchronous clients run on the caller's loop.
    ``entropy``: returns the given number of unpredictable random bytes.
    """

    connector: Connector | None = None
    loop_thread: LoopThread | None = None
    clock: Clock = field(default_factory=SystemClock)
    chance: Chance = field(default_factory=lambda: random.Random().random)  # noqa: S311 - jitter
    entropy: Callable[[int], bytes] = os.urandom


# -- loop bound ------------------------------------------------------------------------------------
#
# Base of the asynchronous clients: a client belongs to the event loop that first uses it.


class LoopBound:
    """Client that can be created without a running loop, and is bound to its first loop."""

    _loop: asyncio.AbstractEventLoop | None = None
    _closed = False

    def _bind(self) -> None:
        """Bind the client to the running loop, or check that it is bound to it.

        Raises ``ClosedError`` if the client is closed, and ``InvalidRequestError`` if it is bound
        to another loop.
        """
        loop = asyncio.get_running_loop()
        if self._closed:
            raise ClosedError(f"the {type(self).__name__} was closed")
        if loop is self._loop:
            return
        if self._loop is not None:
            raise InvalidRequestError(
                f"this {type(self).__name__} belongs to another event loop, which used it first "
                "(asyncio.run() starts a new loop each time). Create one client per event loop"
            )
        self._loop = loop
        self._bound(loop)

    @staticmethod
    async def _to_the_end(close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Await ``close()``, which goes on if the caller is cancelled, even twice."""
        # Without a loop, as when a forgotten coroutine is collected, ``close`` is not called.
        await asyncio.shield(asyncio.get_running_loop().create_task(close()))

    def _bound(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set up what needs the loop. Called once, at the first use."""
