"""What the asynchronous clients share: they belong to the event loop that first uses them."""

from __future__ import annotations

import asyncio

from raftlog.errors import ClosedError, InvalidRequestError


class LoopBound:
    """Made anywhere, even where no loop runs; bound by its first use; then for that loop only."""

    _loop: asyncio.AbstractEventLoop | None = None
    _closed = False

    def _bind(self) -> None:
        """Take, or check, the running loop. Raises ``ClosedError`` and ``InvalidRequestError``."""
        loop = asyncio.get_running_loop()
        if self._closed:
            raise ClosedError(f"the {type(self).__name__} was closed")
        if loop is self._loop:
            return
        if self._loop is not None:
            raise InvalidRequestError(
                f"this {type(self).__name__} belongs to another event loop, which used it first "
                "(asyncio.run() starts a new one each time): make one for each loop"
            )
        self._loop = loop
        self._bound(loop)

    def _bound(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called once, when the loop is known."""
