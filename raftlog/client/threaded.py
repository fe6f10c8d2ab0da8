"""Base of the synchronous clients: the I/O thread, and closing.

Each client implements its own calls, and the rest of its close; some have a ``close`` with
arguments.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from raftlog.client.threads import LoopThread

if TYPE_CHECKING:
    from raftlog.client.base import ClientEnvironment


class ThreadedClient:
    """Synchronous client with an I/O thread: a shared one, or one that ends with the client.

    ``_used``: the client was called, so it must be closed. A used client that is garbage-collected
    unclosed emits a ``ResourceWarning``, and is closed in the background.
    """

    _closed = True  # until the client is set up
    _used = False

    def _take_thread(self, host: ClientEnvironment, name: str) -> None:
        """Use the shared thread of ``host``, or create one with this ``name``."""
        self._owns_thread = host.loop_thread is None
        self._thread = host.loop_thread or LoopThread(name)

    def _stop_thread(self) -> None:
        if self._owns_thread:
            self._thread.stop()

    def _end_of_forgotten(self) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return a function that closes a garbage-collected client. It holds no reference to it."""
        raise NotImplementedError

    def __del__(self) -> None:
        if not self._closed and self._used:
            warnings.warn(
                f"unclosed {self!r}. Call close(), or use `with`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
            if not sys.is_finalizing():  # nothing can be closed then
                self._thread.abandon(self._end_of_forgotten(), stop=self._owns_thread)


class Closeable:
    """Context manager that calls ``close()``."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class PlainClient(ThreadedClient, Closeable):
    """Client with a plain ``close()``."""

    def _end(self) -> None:
        """Close what the client opened. Called once, and only if the client was used."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections. Idempotent. Calls in progress raise ``ClosedError``."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._used:
                self._end()
        finally:
            self._stop_thread()
