"""Where fetches wait: until there is enough to read, their time is up, or their connection is gone.

What is enough is the fetch's to say. Nothing here reads a log or writes an answer.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Hashable, Sequence
from typing import Final, Protocol

from raftlog.server.partition import Partition
from raftlog.server.timer_coalescing import coalesced_deadline

# A fetch of so many partitions is looked at whenever one of them moves; a wider one once in a turn
# of the loop, as the look costs time for each.
LOOKED_AT_ONCE_MAX: Final = 16  # partitions


class Waiting(Protocol):
    """A fetch, as the purgatory sees it."""

    def may_be_enough(self) -> bool:
        """Whether it is worth to resume it now."""
        ...

    def resume(self, *, final: bool = False) -> None:
        """Go on; ``final``: answer with whatever there is."""
        ...


class Parked:
    """One waiting fetch. Ends exactly once: answered, timed out or cancelled."""

    __slots__ = (
        "_fetch",
        "_hosts",
        "_is_over",
        "_look_due",
        "_purgatory",
        "_timer",
        "owner",
        "size_bytes",
    )

    def __init__(
        self,
        purgatory: Purgatory,
        owner: Hashable,
        hosts: Sequence[Partition],
        fetch: Waiting,
        timer_seconds: float,
        size_bytes: int,
    ) -> None:
        self.owner = owner
        self.size_bytes = size_bytes
        self._purgatory = purgatory
        self._hosts = hosts
        self._fetch = fetch
        self._look_due = False
        self._is_over = False
        end = coalesced_deadline(purgatory.loop.time(), timer_seconds)
        self._timer: TimerHandle = purgatory.loop.call_at(end, self.expire)

    def wake(self) -> None:
        """A watched partition moved."""
        if len(self._hosts) <= LOOKED_AT_ONCE_MAX:
            self._look()
        elif not self._look_due:
            self._look_due = True
            self._purgatory.loop.call_soon(self._look)

    def _look(self) -> None:
        self._look_due = False
        if not self._is_over and self._fetch.may_be_enough():
            self.cancel()
            self._fetch.resume()

    def expire(self) -> None:
        """Answer with whatever there is."""
        self.cancel()
        self._fetch.resume(final=True)

    def cancel(self) -> None:
        """Forget it, without an answer."""
        self._is_over = True
        self._timer.cancel()
        self._purgatory.forget(self)
        for host in self._hosts:
            host.unwatch(self)


class Purgatory:
    """All waiting fetches of a broker, by the connection that each came over.

    They take ``bytes_max`` of memory at most: where there are more, one is answered before its
    time, with what there is. It is the connection's own oldest where that has more than an equal
    share of the memory, else the oldest of all.
    """

    def __init__(self, loop: AbstractEventLoop, bytes_max: int) -> None:
        self.loop = loop
        self.bytes = 0
        self._bytes_max = bytes_max
        self._parked: dict[Parked, None] = {}  # in the order of arrival
        self._by_owner: dict[Hashable, dict[Parked, None]] = {}
        self._bytes_of: dict[Hashable, int] = {}  # by owner

    def __len__(self) -> int:
        return len(self._parked)

    def park(
        self,
        owner: Hashable,
        hosts: Sequence[Partition],
        fetch: Waiting,
        *,
        timer_seconds: float,
        size_bytes: int = 0,
    ) -> None:
        """Resume ``fetch`` when one of ``hosts`` moves and that is enough, or its time is up.

        ``size_bytes``: the memory that it takes while it waits.
        """
        parked = Parked(self, owner, hosts, fetch, timer_seconds, size_bytes)
        self._parked[parked] = None
        self._by_owner.setdefault(owner, {})[parked] = None
        self._bytes_of[owner] = self._bytes_of.get(owner, 0) + size_bytes
        self.bytes += size_bytes
        for host in hosts:
            host.watch(parked)
        while self.bytes > self._bytes_max:
            share = self.bytes / len(self._by_owner)
            mine = self._bytes_of.get(owner, 0) > share
            next(iter(self._by_owner[owner] if mine else self._parked)).expire()

    def forget(self, parked: Parked) -> None:
        if parked not in self._parked:
            return
        owner = parked.owner
        del self._parked[parked], self._by_owner[owner][parked]
        self.bytes -= parked.size_bytes
        self._bytes_of[owner] -= parked.size_bytes
        if not self._by_owner[owner]:
            del self._by_owner[owner], self._bytes_of[owner]

    def cancel(self, owner: Hashable) -> None:
        """The connection is gone: forget its fetches."""
        for parked in tuple(self._by_owner.get(owner, ())):
            parked.cancel()

    def expire_all(self) -> None:
        """Answer every one with what there is: the broker stops."""
        for parked in tuple(self._parked):
            parked.expire()
