"""Base of the asynchronous clients: a client belongs to the event loop that first uses it."""

from __future__ import annotations

import asyncio

from raftlog.errors import ClosedError, InvalidRequestError


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

    def _bound(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set up what needs the loop. Called once, at the first use."""
