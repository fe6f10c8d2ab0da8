"""A client's roads to the leaders: which are open, which are being opened, and when to try again.

Never waits: whoever asks for a road that is not open is told so, and called (``on_change``) when
that changes. The same for fresh metadata, which says where the roads lead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from raftlog.client.cluster import Cluster
from raftlog.client.connection import Connection
from raftlog.errors import NotLeaderError, RaftlogError

logger: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class Link:
    """One broker, as one client sees it."""

    broker_id: int
    in_flight: int = 0  # requests sent and not answered
    connecting: bool = False
    failures: int = 0  # to connect, in a row
    not_before: float = 0.0  # backing off until then
    error: RaftlogError | None = None  # of the last failure


class Links:
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
        self._links: dict[int, Link] = {}
        self._refreshing = False
        self._refreshes = 0  # in a row, without a success of what they were for
        self._refresh_not_before = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    def link(self, broker_id: int) -> Link:
        found = self._links.get(broker_id)
        if found is None:
            found = self._links[broker_id] = Link(broker_id)
        return found

    def connection(self, link: Link, now: float) -> Connection | None:
        """The broker's connection if a request can go out on it now; else one is on its way."""
        connection = self._cluster.open_connection(link.broker_id)
        if connection is None:
            if not link.connecting and link.not_before <= now:
                link.connecting = True
                self.run(self._connect(link))
            return None
        if link.in_flight >= self._in_flight_max:
            return None
        if not connection.writable:
            connection.on_writable = self._on_change
            return None
        return connection

    def retry_at(self, link: Link, now: float) -> float | None:
        """When to ask again by oneself; None when ``on_change`` or an answer will say."""
        return link.not_before if link.not_before > now and not link.connecting else None

    async def _connect(self, link: Link) -> None:
        try:
            await self._cluster.connection(link.broker_id)
        except RaftlogError as error:
            link.not_before = self._now() + self._cluster.backoff_seconds(link.failures)
            if not link.failures:
                logger.warning("%s; trying again until it can", error)
            link.failures += 1
            link.error = error
            self.refresh()  # its partitions may be led by another broker by now
        else:
            link.failures = 0
            link.error = None
        finally:
            link.connecting = False
        self._on_change()

    # -- metadata

    def refresh(self) -> float | None:
        """Ask for fresh metadata, but not too often; if not yet, when it can be asked for."""
        now = self._now()
        if self._refreshing:
            return None
        if self._refresh_not_before > now:
            return self._refresh_not_before
        self._refreshing = True
        self._refresh_not_before = now + self._cluster.backoff_seconds(self._refreshes)
        self._refreshes += 1
        self.run(self._refresh())
        return None

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
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def leader_of(cluster: Cluster, topic: str, partition: int) -> int | None:
    """The leader's id, None while there is none. Raises when there is no such partition at all."""
    try:
        return cluster.view.leader(topic, partition)
    except NotLeaderError:
        return None
