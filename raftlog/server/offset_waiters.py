"""Callbacks that wait for a log to reach an offset. Called in offset order, or all failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from raftlog.errors import RaftlogError
from raftlog.types import Offset

# Called once: with None, or with the reason why the offset will never be reached.
Acknowledge: TypeAlias = Callable[[RaftlogError | None], None]


class Watcher(Protocol):
    """Object to wake when there is more to read (a waiting fetch)."""

    def wake(self) -> None: ...


class OffsetWaiters:
    """Waiters in the order of arrival. Each one is called once."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[Offset, Acknowledge]] = deque()

    def add(self, end_offset: Offset, done: Acknowledge) -> None:
        """Call ``done`` when the log contains everything below ``end_offset``."""
        self._waiting.append((end_offset, done))

    def reached(self, offset: Offset) -> None:
        """Call the waiters up to ``offset``. A duplicate may wait behind newer batches; no waiter
        before it has a lower end.
        """
        waiting = self._waiting
        while waiting and waiting[0][0] <= offset:
            waiting.popleft()[1](None)

    def refuse(self, reason: RaftlogError) -> None:
        """Fail all waiters: this replica will never reach their offsets."""
        while self._waiting:
            self._waiting.popleft()[1](reason)
