"""Fetch purgatory: fetches wait here for data, their time limit, or their connection's end.

The fetch decides what is enough. This module reads no log and writes no response.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Hashable, Sequence
from typing import Final, Protocol

from raftlog.server.partition import Partition
from raftlog.server.scheduling import coalesced_deadline

# A fetch of at most this many partitions is checked at every change of one of them; a larger one
# once per turn of the loop, as its check takes time for each partition.
CHECKED_AT_ONCE_MAX: Final = 16  # partitions


class Waiting(Protocol):
    """A fetch, as the purgatory sees it."""

    def may_be_enough(self) -> bool:
        """Whether a resume may find enough data now."""
        ...

    def resume(self, *, final: bool = False) -> None:
        """Continue; ``final``: respond with the available data."""
        ...


class Parked:
    """One waiting fetch. It ends exactly once: answered, timed out or cancelled."""

    __slots__ = (
        "_check_due",
        "_fetch",
        "_hosts",
        "_is_over",
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
        self._check_due = False
        self._is_over = False
        end = coalesced_deadline(purgatory.loop.time(), timer_seconds)
        self._timer: TimerHandle = purgatory.loop.call_at(end, self.expire)

    def wake(self) -> None:
        """Process a change of a watched partition."""
        if len(self._hosts) <= CHECKED_AT_ONCE_MAX:
            self._check()
        elif not self._check_due:
            self._check_due = True
            self._purgatory.loop.call_soon(self._check)

    def _check(self) -> None:
        self._check_due = False
        if not self._is_over and self._fetch.may_be_enough():
            self.cancel()
            self._fetch.resume()

    def expire(self) -> None:
        """Respond with the available data."""
        self.cancel()
        self._fetch.resume(final=True)

    def cancel(self) -> None:
        """Remove it, without a response."""
        self._is_over = True
        self._timer.cancel()
        self._purgatory.forget(self)
        for host in self._hosts:
            host.unwatch(self)


class Purgatory:
    """All waiting fetches of a broker, by the connection of each.

    They use at most ``bytes_max`` of memory. Above it, one is answered early, with the available
    data: the oldest of the new fetch's connection if that uses more than an equal share of the
    memory, else the oldest of all.
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
        """Resume ``fetch`` when one of ``hosts`` changes and there is enough data, or after its
        time limit.

        ``size_bytes``: its memory while it waits.
        """
        parked = Parked(self, owner, hosts, fetch, timer_seconds, size_bytes)
        self._parked[parked] = None
        self._by_owner.setdefault(owner, {})[parked] = None
        self._bytes_of[owner] = self._bytes_of.get(owner, 0) + size_bytes
        self.bytes += size_bytes
        for host in hosts:
            host.watch(parked)
        # guard: the memory of waiting fetches is limited
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
        """Remove the fetches of a closed connection."""
        for parked in tuple(self._by_owner.get(owner, ())):
            parked.cancel()

    def expire_all(self) -> None:
        """Answer all fetches with the available data: the broker stops."""
        for parked in tuple(self._parked):
            parked.expire()
