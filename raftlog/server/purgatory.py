"""Where fetches wait: until there is enough to read, their time is up, or their connection is gone.

What is enough is the fetch's to say. Nothing here reads a log or writes an answer.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

from raftlog.server.replica_host import PartitionHost
from raftlog.server.slack import end_of_wait

# Tries to answer; True when it did. ``final``: answer with whatever there is.
Attempt: TypeAlias = Callable[[bool], bool]


class Parked:
    """One waiting fetch. Ends exactly once: answered, timed out or cancelled."""

    __slots__ = ("_attempt", "_hosts", "_purgatory", "_timer", "owner")

    def __init__(
        self,
        purgatory: Purgatory,
        owner: Hashable,
        hosts: Sequence[PartitionHost],
        attempt: Attempt,
        timer_seconds: float,
    ) -> None:
        self.owner = owner
        self._purgatory = purgatory
        self._hosts = hosts
        self._attempt = attempt
        end = end_of_wait(purgatory.loop.time(), timer_seconds)
        self._timer: TimerHandle = purgatory.loop.call_at(end, self.expire)

    def wake(self) -> None:
        """A watched partition moved."""
        if self._attempt(False):
            self.cancel()

    def expire(self) -> None:
        """Answer with whatever there is."""
        self.cancel()
        answered = self._attempt(True)
        assert answered, "the last attempt must answer"

    def cancel(self) -> None:
        """Forget it, without an answer."""
        self._timer.cancel()
        self._purgatory.forget(self)
        for host in self._hosts:
            host.unwatch(self)


class Purgatory:
    """All waiting fetches of a broker, by the connection that each came over."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self._parked: dict[Hashable, dict[Parked, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._parked.values()))

    def park(
        self,
        owner: Hashable,
        hosts: Sequence[PartitionHost],
        attempt: Attempt,
        *,
        timer_seconds: float,
    ) -> None:
        """Call ``attempt`` whenever one of ``hosts`` moves, and at last when the time is up."""
        parked = Parked(self, owner, hosts, attempt, timer_seconds)
        self._parked.setdefault(owner, {})[parked] = None
        for host in hosts:
            host.watch(parked)

    def forget(self, parked: Parked) -> None:
        of_owner = self._parked.get(parked.owner, {})
        of_owner.pop(parked, None)
        if not of_owner:
            self._parked.pop(parked.owner, None)

    def cancel(self, owner: Hashable) -> None:
        """The connection is gone: forget its fetches."""
        for parked in tuple(self._parked.get(owner, ())):
            parked.cancel()

    def expire_all(self) -> None:
        """Answer every one with what there is: the broker stops."""
        for of_owner in tuple(self._parked.values()):
            for parked in tuple(of_owner):
                parked.expire()
