"""A client's connections to partition leaders: open, connecting, or waiting for the next attempt.

No method waits. A caller that needs a connection which is not open gets None, and ``on_change`` is
called when that changes; likewise for fresh metadata, which maps partitions to brokers.

A broker that is stopped or isolated keeps its connections and sends nothing. So each request is
registered as an ``InFlightRequest``. When its response is overdue, its broker is suspect: metadata
is requested from the other brokers until it answers, and ``on_change`` is called each time.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from raftlog.client.cluster import Cluster
from raftlog.client.connection import SILENCE_S, Connection
from raftlog.errors import RaftlogError

logger: Final = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 0.5  # at brokers that are overdue


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """One request that is sent and not answered. ``overdue_at``: seconds, monotonic clock."""

    link: BrokerConnection
    overdue_at: float


@dataclass(slots=True)
class BrokerConnection:
    """One broker, as one client sees it."""

    broker_id: int
    was_open: bool = False
    connecting_since: float | None = None
    failures: int = 0  # to connect, in a row
    not_before: float = 0.0  # backing off until then
    error: RaftlogError | None = None  # of the last failure
    in_flight: set[InFlightRequest] = field(default_factory=set)  # sent and not answered

    @property
    def overdue_at(self) -> float:
        """When the next answer should have come, or the connection have been made."""
        if self.in_flight:
            return min(request.overdue_at for request in self.in_flight)
        return math.inf if self.connecting_since is None else self.connecting_since + SILENCE_S

    def is_overdue(self, now: float) -> bool:
        """Whether an answer, or the connection, should have come by ``now``."""
        return self.overdue_at <= now


class BrokerConnections:
    """Used on one event loop. ``now`` is in seconds on the monotonic clock."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        now: Callable[[], float],
        on_change: Callable[[], None],
        in_flight_max: int,
    ) -> None:
        self.error: RaftlogError | None = None  # why metadata could not be had
        self._cluster = cluster
        self._now = now
        self._on_change = on_change
        self._in_flight_max = in_flight_max
        self._links: dict[int, BrokerConnection] = {}
        self._refreshing = False
        self._refreshes = 0  # in a row, without a success of what they were for
        self._refresh_not_before = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at = 0.0
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def link(self, broker_id: int) -> BrokerConnection:
        found = self._links.get(broker_id)
        if found is None:
            found = self._links[broker_id] = BrokerConnection(broker_id)
        return found

    def connection(self, link: BrokerConnection, now: float) -> Connection | None:
        """The broker's connection if a request can go out on it now; else one is on its way."""
        connection = self._cluster.open_connection(link.broker_id)
        if connection is None:
            if link.was_open:
                link.was_open = False
                self.refresh()  # it was lost: its partitions may be led by another broker by now
            if link.connecting_since is None and link.not_before <= now:
                link.connecting_since = now
                self._watch_from(link.overdue_at)
                self.run(self._connect(link))
            return None
        link.was_open = True
        if len(link.in_flight) >= self._in_flight_max:
            return None
        if not connection.writable:
            connection.on_writable = self._on_change
            return None
        return connection

    def retry_at(self, link: BrokerConnection, now: float) -> float | None:
        """When to ask again by oneself; None when ``on_change`` or an answer will say."""
        return link.not_before if link.not_before > now and link.connecting_since is None else None

    def is_usable(self, broker_id: int, now: float) -> bool:
        """False for a broker that cannot be reached, or says nothing, as far as is known."""
        link = self._links.get(broker_id)
        if link is None:
            return True
        connection = self._cluster.open_connection(broker_id)
        if connection is not None:
            return not (link.is_overdue(now) and connection.is_silent)
        return not link.failures and not link.is_overdue(now)

    async def _connect(self, link: BrokerConnection) -> None:
        try:
            await self._cluster.connection(link.broker_id)
        except RaftlogError as error:
            link.not_before = self._now() + self._cluster.backoff_seconds(link.failures)
            if not link.failures:
                logger.warning("%s; trying again until it can", error)
            link.failures += 1
            link.error = error
            self._cluster.doubt(link.broker_id)
            self.refresh()  # its partitions may be led by another broker by now
        else:
            link.failures = 0
            link.error = None
        finally:
            link.connecting_since = None
        self._on_change()

    # -- requests in flight

    def sent(self, link: BrokerConnection, *, wait_s: float = 0.0) -> InFlightRequest:
        """A request went out. ``wait_s``: the broker was asked to take so long, if need be."""
        request = InFlightRequest(link, self._now() + wait_s + SILENCE_S)
        link.in_flight.add(request)
        self._watch_from(request.overdue_at)
        return request

    def answered(self, request: InFlightRequest) -> None:
        """It was answered, or its connection is lost."""
        request.link.in_flight.remove(request)

    def _watch_from(self, at: float) -> None:
        if self._closed or (self._watch is not None and self._watch_at <= at):
            return
        if self._watch is not None:
            self._watch.cancel()
        self._watch_at = at
        delay = max(at - self._now(), 0.0)
        self._watch = asyncio.get_running_loop().call_later(delay, self._check_overdue)

    def _check_overdue(self) -> None:
        self._watch = None
        now = self._now()
        overdue = [link for link in self._links.values() if link.is_overdue(now)]
        next_at = min((link.overdue_at for link in self._links.values()), default=math.inf)
        for link in overdue:
            self._cluster.doubt(link.broker_id)
        if overdue:
            self.refresh()
            self._watch_from(now + _LOOK_AGAIN_S)
            self._on_change()
        elif next_at != math.inf:
            self._watch_from(next_at)

    # -- metadata

    def refresh(self) -> float | None:
        """Ask for fresh metadata, but not too often; if not yet, when it can be asked for."""
        now = self._now()
        if self._refreshing or self._closed:
            return None
        if self._refresh_not_before > now:
            return self._refresh_not_before
        self._refreshing = True
        self._refresh_not_before = now + self._cluster.backoff_seconds(self._refreshes)
        self._refreshes += 1
        self.run(self._refresh())
        return None

    def doubt(self, link: BrokerConnection) -> None:
        """What this broker says is old news, or it says nothing: rather ask others."""
        self._cluster.doubt(link.broker_id)

    def succeeded(self) -> None:
        """What was known was right: the next refresh need not wait."""
        self._refreshes = 0

    async def _refresh(self) -> None:
        try:
            await self._cluster.refresh()
            self.error = None
        except RaftlogError as error:
            self.error = error
        finally:
            self._refreshing = False
        self._on_change()

    # -- tasks

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until it is done, or ``close``."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
