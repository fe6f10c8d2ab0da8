"""A client's connections to partition leaders: open, connecting, or waiting for the next attempt.

No method waits. A caller that needs a connection which is not open gets None, and ``on_change`` is
called when that changes; likewise for fresh metadata, which maps partitions to brokers.

The producer's sender and the consumer's fetcher send their requests here: ``send`` keeps each one
with its partitions (the load) until the response, an error, or the end of the client. Its owner can
take partitions out of the load in that time.

A broker that is stopped or isolated keeps its connections and sends nothing. When a response is
overdue, its broker is suspect: metadata is requested from the other brokers until it answers, and
``on_change`` is called each time.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from raftlog.client.cluster import Cluster
from raftlog.client.connection import SILENCE_S, Answer, Connection
from raftlog.errors import AuthenticationError, RaftlogError
from raftlog.protocol.api import Api
from raftlog.protocol.connection import expects_response
from raftlog.protocol.schema import Message
from raftlog.types import Buffer

logger: Final = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 0.5  # check interval of overdue brokers


LoadT = TypeVar("LoadT")


@dataclass(slots=True, eq=False)
class InFlightRequest(Generic[LoadT]):
    """Request that is sent and has no response yet. ``overdue_at``: seconds, monotonic clock."""

    link: BrokerConnection[LoadT]
    load: LoadT
    overdue_at: float


@dataclass(slots=True)
class BrokerConnection(Generic[LoadT]):
    """Connection state of one broker."""

    broker_id: int
    was_open: bool = False
    connecting_since: float | None = None
    failures: int = 0  # consecutive failed connection attempts
    not_before: float = 0.0  # monotonic seconds; end of the connection back-off
    error: RaftlogError | None = None  # last connection error
    # Sent, without a response, in send order.
    in_flight: dict[InFlightRequest[LoadT], None] = field(default_factory=dict)

    @property
    def rejection(self) -> AuthenticationError | None:
        """The error if the broker rejected the credentials of this client: a retry repeats it."""
        return self.error if isinstance(self.error, AuthenticationError) else None

    @property
    def overdue_at(self) -> float:
        """Time at which the next response, or the connection, is overdue."""
        if self.in_flight:
            return min(request.overdue_at for request in self.in_flight)
        return math.inf if self.connecting_since is None else self.connecting_since + SILENCE_S

    def is_overdue(self, now: float) -> bool:
        """Return True if a response, or the connection, is overdue at ``now``."""
        return self.overdue_at <= now


class LoadOwner(Protocol[LoadT]):
    """The owner of the loads: what becomes of each one is its decision."""

    def on_change(self) -> None:
        """Process a changed connection, new metadata, or an overdue response."""
        ...

    def on_response(self, link: BrokerConnection[LoadT], load: LoadT, answer: Answer) -> None:
        """Process a response."""
        ...

    def on_failure(self, link: BrokerConnection[LoadT], load: LoadT, error: RaftlogError) -> None:
        """Process the failure of a whole request. Usually the connection failed."""
        ...


class BrokerConnections(Generic[LoadT]):
    """Connections to partition leaders. Used on one event loop. ``now``: monotonic seconds."""

    def __init__(
        self,
        cluster: Cluster,
        owner: LoadOwner[LoadT],
        *,
        now: Callable[[], float],
        in_flight_max: int,
    ) -> None:
        self.error: RaftlogError | None = None  # last metadata refresh error
        self._cluster = cluster
        self._now = now
        self._owner = owner
        self._in_flight_max = in_flight_max
        self._links: dict[int, BrokerConnection[LoadT]] = {}
        self._refreshing = False
        self._refreshes = 0  # consecutive refreshes without a successful request
        self._refresh_not_before = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at = 0.0
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def link(self, broker_id: int) -> BrokerConnection[LoadT]:
        found = self._links.get(broker_id)
        if found is None:
            found = self._links[broker_id] = BrokerConnection(broker_id)
        return found

    def connection(self, link: BrokerConnection[LoadT], now: float) -> Connection | None:
        """Return the broker's connection if it can accept a request now; else start to connect."""
        connection = self._cluster.open_connection(link.broker_id)
        if connection is None:
            if link.was_open:
                link.was_open = False
                self.refresh()  # connection lost: its partitions may have new leaders
            if link.connecting_since is None and link.not_before <= now:
                link.connecting_since = now
                self._watch_from(link.overdue_at)
                self.run(self._connect(link))
            return None
        link.was_open = True
        if len(link.in_flight) >= self._in_flight_max:
            return None
        if not connection.writable:
            connection.on_writable = self._owner.on_change
            return None
        return connection

    def retry_at(self, link: BrokerConnection[LoadT], now: float) -> float | None:
        """Return the time of the next attempt; None if ``on_change`` or a response signals it."""
        return link.not_before if link.not_before > now and link.connecting_since is None else None

    def is_usable(self, broker_id: int, now: float) -> bool:
        """Return False for a broker that is known to be unreachable or unresponsive."""
        link = self._links.get(broker_id)
        if link is None:
            return True
        connection = self._cluster.open_connection(broker_id)
        if connection is not None:
            return not (link.is_overdue(now) and connection.is_silent)
        return not link.failures and not link.is_overdue(now)

    async def _connect(self, link: BrokerConnection[LoadT]) -> None:
        try:
            await self._cluster.connection(link.broker_id)
        except RaftlogError as error:
            link.not_before = self._now() + self._cluster.backoff_seconds(link.failures)
            if not link.failures:
                logger.warning("broker connection failed, retrying: error=%s", error)
            link.failures += 1
            link.error = error
            self._cluster.mark_suspect(link.broker_id)
            self.refresh()  # its partitions may have new leaders
        else:
            link.failures = 0
            link.error = None
        finally:
            link.connecting_since = None
        self._owner.on_change()

    # -- requests in flight

    def send(
        self,
        link: BrokerConnection[LoadT],
        connection: Connection,
        load: LoadT,
        api: Api,
        message: Message,
        attachment: Sequence[Buffer] = (),
        *,
        wait_ms: int = 0,
    ) -> bool:
        """Send a request. Returns False after ``on_failure`` if nothing was sent.

        ``wait_ms``: time that the broker may hold its response.
        """
        timeout_ms = self._cluster.settings.request_timeout_ms + wait_ms
        try:
            future = connection.start(api, message, attachment, timeout_ms=timeout_ms)
        except RaftlogError as error:
            self._failed(link, load, error)
            return False
        if expects_response(message):
            overdue_at = self._now() + wait_ms / 1_000 + SILENCE_S
            request = InFlightRequest(link, load, overdue_at)
            link.in_flight[request] = None
            self._watch_from(overdue_at)
            future.add_done_callback(partial(self._answered, request))
        return True

    def _answered(self, request: InFlightRequest[LoadT], future: asyncio.Future[Answer]) -> None:
        link = request.link
        del link.in_flight[request]
        error = future.exception()
        if self._closed:
            return
        if error is None:
            self._owner.on_response(link, request.load, future.result())
            return
        assert isinstance(error, RaftlogError), f"connections fail with our errors: {error!r}"
        self._failed(link, request.load, error)

    def _failed(self, link: BrokerConnection[LoadT], load: LoadT, error: RaftlogError) -> None:
        self.mark_suspect(link)
        self.refresh()
        self._owner.on_failure(link, load, error)

    def in_flight(self) -> Iterator[InFlightRequest[LoadT]]:
        """Yield the requests without a response, by broker."""
        for link in self._links.values():
            yield from link.in_flight

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
            self._cluster.mark_suspect(link.broker_id)
        if overdue:
            self.refresh()
            self._watch_from(now + _LOOK_AGAIN_S)
            self._owner.on_change()
        elif next_at != math.inf:
            self._watch_from(next_at)

    # -- metadata

    def refresh(self) -> float | None:
        """Request metadata. If the back-off has not ended, returns the time of the next request."""
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

    def mark_suspect(self, link: BrokerConnection[LoadT]) -> None:
        """Prefer other brokers for metadata, after stale metadata or no response."""
        self._cluster.mark_suspect(link.broker_id)

    def succeeded(self) -> None:
        """Reset the refresh back-off: the known metadata was right."""
        self._refreshes = 0

    async def _refresh(self) -> None:
        try:
            await self._cluster.refresh()
            self.error = None
        except RaftlogError as error:
            self.error = error
        finally:
            self._refreshing = False
        self._owner.on_change()

    # -- tasks

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until it is done, or until ``close``."""
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
