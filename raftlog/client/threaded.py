"""What every synchronous client has: a thread that does its work, and an end. Nothing else.

What a client is asked, and what else its end takes, is its own; so is a ``close`` with arguments.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from raftlog.client.environment import ClientEnvironment
from raftlog.client.loop_thread import LoopThread


class ThreadedClient:
    """The thread of a synchronous client: its host's, or one of its own, which ends with it.

    ``_used``: something was asked, so there is something to close. A client that is forgotten while
    it is used warns, and is closed without anybody's waiting for it.
    """

    _closed = True  # until it is set up: there is nothing to close
    _used = False

    def _take_thread(self, host: ClientEnvironment, name: str) -> None:
        """``name``: of the thread, if the host has none to lend."""
        self._owns_thread = host.loop_thread is None
        self._thread = host.loop_thread or LoopThread(name)

    def _stop_thread(self) -> None:
        if self._owns_thread:
            self._thread.stop()

    def _end_of_forgotten(self) -> Callable[[], Coroutine[Any, Any, None]]:
        """What closes the client when nobody holds it any more; it holds no reference to it."""
        raise NotImplementedError

    def __del__(self) -> None:
        if not self._closed and self._used:
            warnings.warn(
                f"unclosed {self!r}: close it, or use `with`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
            self._thread.abandon(self._end_of_forgotten(), stop=self._owns_thread)


class PlainClient(ThreadedClient):
    """One whose end needs nothing to be said: ``close()``, and ``with``."""

    def _end(self) -> None:
        """End what was begun; called once, and only if the client was used."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections. Idempotent. What is under way ends with ``ClosedError``."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._used:
                self._end()
        finally:
            self._stop_thread()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
