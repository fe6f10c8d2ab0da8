"""Requests that wait for a log to reach an offset: answered in log order, or all refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from raftlog.errors import RaftlogError
from raftlog.types import Offset

# Called once, with None, or with why it will never be.
Acknowledge: TypeAlias = Callable[[RaftlogError | None], None]


class Watcher(Protocol):
    """Who wants to know that there is more to read (a waiting fetch)."""

    def wake(self) -> None: ...


class OffsetWaiters:
    """In the order in which they came. Every one is called once."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[Offset, Acknowledge]] = deque()

    def add(self, end_offset: Offset, done: Acknowledge) -> None:
        """Call ``done`` when everything below ``end_offset`` is there."""
        self._waiting.append((end_offset, done))

    def reached(self, offset: Offset) -> None:
        """A duplicate may wait behind newer batches; what stands before it ends no earlier."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= offset:
            waiting.popleft()[1](None)

    def refuse(self, reason: RaftlogError) -> None:
        """It will never be reached here."""
        while self._waiting:
            self._waiting.popleft()[1](reason)
