"""Two broker-wide memory budgets: incomplete requests, and responses that wait for clients.

Both may be exceeded by one request or response, so that one can always finish: a budget below the
size of one request slows the broker down and never stops it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol


class Reading(Protocol):
    """A connection, as the request budget sees it."""

    received_bytes: int  # total since the connection was opened

    @property
    def stalled_since_seconds(self) -> float | None:
        """Time since which a request is incomplete and its rest is being read; else None."""
        ...

    def abort(self, reason: str) -> None: ...

    def pause_for_memory(self) -> None: ...

    def resume_from_memory(self) -> None: ...


class RequestBudget:
    """Bytes of requests of all connections: incomplete, waiting, or not answered yet.

    Over ``bytes_max``, only the connection whose request began first continues to read. Its request
    completes (or times out) and releases memory, so that connections cannot block each other
    indefinitely.

    ``on_short`` is called whenever another connection has to wait.
    """

    def __init__(self, bytes_max: int, *, on_short: Callable[[], None] = lambda: None) -> None:
        self._bytes_max = bytes_max
        self._on_short = on_short
        self._held: dict[Reading, int] = {}  # in the order in which the requests began
        self._paused: dict[Reading, None] = {}
        self.bytes = 0

    @property
    def is_waited_for(self) -> bool:
        """Whether a connection waits for memory."""
        return bool(self._paused)

    def set(self, connection: Reading, size: int) -> None:
        """Set the size, in bytes, of the incomplete request of ``connection``."""
        before = self._held.get(connection, 0)
        if size == before:
            return
        self.bytes += size - before
        if size:
            self._held[connection] = size
        else:
            del self._held[connection]
        if size < before:
            self._resume()
        elif self.bytes > self._bytes_max and connection is not next(iter(self._held)):
            if connection not in self._paused:
                self._on_short()
            self._paused[connection] = None
            connection.pause_for_memory()

    def has_plenty(self) -> bool:
        """Whether three quarters of the budget are free."""
        return self.bytes <= self._bytes_max // 4

    def holders(self) -> list[Reading]:
        """Return the connections that hold memory, in the order in which their requests began."""
        return list(self._held)

    def forget(self, connection: Reading) -> None:
        """Forget a closed connection."""
        self._paused.pop(connection, None)
        self.set(connection, 0)

    def _resume(self) -> None:
        if self.bytes <= self._bytes_max:
            ready, self._paused = list(self._paused), {}
        else:
            oldest = next(iter(self._held))
            ready = [oldest] if oldest in self._paused else []
            self._paused.pop(oldest, None)
        for connection in ready:
            connection.resume_from_memory()


class ResponseBudget:
    """Bytes of responses that the kernel has not accepted yet, of all connections with slow
    readers.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[object, int] = {}
        self._waiting: deque[Callable[[], None]] = deque()
        self._admitting = False
        self.bytes = 0

    @property
    def full(self) -> bool:
        return self.bytes >= self._bytes_max

    @property
    def is_waited_for(self) -> bool:
        """Whether a connection waits for memory."""
        return bool(self._waiting)

    def set(self, connection: object, size: int) -> None:
        """Set the size, in bytes, of the unread responses of ``connection``."""
        self.bytes += size - self._held.pop(connection, 0)
        if size:
            self._held[connection] = size
        if self._admitting:  # a connection that was just admitted has written
            return
        self._admitting = True
        while self._waiting and not self.full:
            self._waiting.popleft()()
        self._admitting = False

    def when_room(self, ready: Callable[[], None]) -> None:
        """Call ``ready`` when there is memory, in the order of the calls."""
        self._waiting.append(ready)
