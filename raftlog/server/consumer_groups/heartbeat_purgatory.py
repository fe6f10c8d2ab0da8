"""Heartbeat purgatory: heartbeats without a result wait here until there is one, or time out.

The shard decides the response. At most one heartbeat per member waits.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Hashable, Iterable
from typing import TypeAlias

from raftlog.errors import RaftlogError
from raftlog.server.timer_coalescing import coalesced_deadline

MemberKey: TypeAlias = tuple[str, str]  # consumer group and member id
# Called once: with None when the heartbeat must be answered, or with the error.
Unpark: TypeAlias = Callable[[RaftlogError | None], None]


class HeartbeatPurgatory:
    """Waiting heartbeats of one shard."""

    __slots__ = ("_by_owner", "_loop", "_parked")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._parked: dict[MemberKey, tuple[Hashable, TimerHandle, Unpark]] = {}
        self._by_owner: dict[Hashable, set[MemberKey]] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def park(
        self, member: MemberKey, owner: Hashable, unpark: Unpark, *, wait_seconds: float
    ) -> None:
        """Call ``unpark`` after ``wait_seconds``, or earlier when the member is woken.

        ``owner``: the connection of the heartbeat; if it closes, the heartbeat is forgotten.
        """
        assert member not in self._parked, "the older heartbeat must be answered first"
        end = coalesced_deadline(self._loop.time(), wait_seconds)
        timer = self._loop.call_at(end, self.wake, member)
        self._parked[member] = owner, timer, unpark
        self._by_owner.setdefault(owner, set()).add(member)

    def wake(self, member: MemberKey) -> None:
        """Answer the member's heartbeat, if one waits."""
        unpark = self._take(member)
        if unpark is not None:
            unpark(None)

    def wake_all(self) -> None:
        for member in tuple(self._parked):
            self.wake(member)

    def refuse_all(self, reason: RaftlogError) -> None:
        """Fail all heartbeats with ``reason``."""
        for member in tuple(self._parked):
            unpark = self._take(member)
            if unpark is not None:
                unpark(reason)

    def forget(self, owner: Hashable) -> None:
        """Forget the heartbeats of a closed connection."""
        members: Iterable[MemberKey] = tuple(self._by_owner.get(owner, ()))
        for member in members:
            self._take(member)

    def _take(self, member: MemberKey) -> Unpark | None:
        found = self._parked.pop(member, None)
        if found is None:
            return None
        owner, timer, unpark = found
        timer.cancel()
        of_owner = self._by_owner[owner]
        of_owner.discard(member)
        if not of_owner:
            del self._by_owner[owner]
        return unpark
