"""Heartbeats of a group member, on the I/O loop, independent of the application's thread.

``membership`` decides what to send and when; this module sends it and returns the responses. At
most one heartbeat is waited for: a newer heartbeat invalidates the response to an older one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from raftlog.client.cluster import Cluster
from raftlog.client.consumer_groups.coordinator import Coordinators
from raftlog.client.consumer_groups.membership import Membership, assignment
from raftlog.client.retry import may_retry
from raftlog.errors import RaftlogError
from raftlog.protocol import api as apis
from raftlog.protocol.groups import GroupHeartbeatRequest, GroupHeartbeatResponse

logger: Final = logging.getLogger(__name__)

_METADATA_TRIES: Final = 8  # refreshes for assigned partitions that are not in the metadata yet
_METADATA_PAUSE_S: Final = 0.1
_FAILURES_TOLD: Final = 6  # consecutive failures before a warning: 1 to 2 s


class Heartbeats:
    """Heartbeats of one member. ``on_news`` is called when the application must act."""

    def __init__(
        self,
        membership: Membership,
        coordinators: Coordinators,
        cluster: Cluster,
        *,
        now: Callable[[], float],
        on_news: Callable[[], None],
    ) -> None:
        self._membership = membership
        self._coordinators = coordinators
        self._cluster = cluster
        self._now = now
        self._on_news = on_news
        self._asking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0  # consecutive
        self._metadata_version = -1
        self._waiters: list[asyncio.Future[None]] = []
        self._closed = False

    def poll(self) -> None:
        """Send a heartbeat if one is due, and schedule the next check."""
        if self._closed:
            return
        now = self._now()
        membership = self._membership
        membership.tick(now=now)
        beat = membership.beat(now=now)
        if beat is not None:
            if self._asking is not None:
                self._asking.cancel()
            self._asking = asyncio.ensure_future(self._ask(beat))
        if membership.pending:
            self._on_news()
        if not membership.is_active:
            self._wake()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_at = membership.next_at
        if next_at != math.inf:
            delay = max(next_at - now, 0.001)
            self._timer = asyncio.get_running_loop().call_later(delay, self.poll)

    async def _ask(self, beat: GroupHeartbeatRequest) -> None:
        membership = self._membership
        try:
            answer = await self._coordinators.ask(
                beat.group, apis.GROUP_HEARTBEAT, beat, wait_ms=beat.wait_ms
            )
            assert isinstance(answer, GroupHeartbeatResponse)
            await self._know(answer)
        except RaftlogError as error:
            self._failed(beat, error)
        else:
            self._failures = 0
            membership.answered(beat, answer, now=self._now())
            if answer.metadata_version > self._metadata_version:
                if self._metadata_version >= 0:
                    self._cluster.refresh_soon()
                self._metadata_version = answer.metadata_version
        self._wake()
        # Not in this task, because the next heartbeat would cancel it.
        asyncio.get_running_loop().call_soon(self.poll)

    def _failed(self, beat: GroupHeartbeatRequest, error: RaftlogError) -> None:
        retry_at = None
        if may_retry(error, repeatable=True):
            retry_at = self._now() + self._cluster.backoff_seconds(self._failures)
            self._failures += 1
            # A short election is normal. A coordinator that stays unavailable is worth a warning.
            is_news = self._failures == _FAILURES_TOLD
            logger.log(
                logging.WARNING if is_news else logging.DEBUG,
                "group heartbeat failed, retrying: group=%r error=%s",
                beat.group,
                error,
            )
        self._membership.failed(beat, error, retry_at=retry_at)

    async def _know(self, answer: GroupHeartbeatResponse) -> None:
        """Refresh metadata until it contains the assigned partitions.

        The coordinator can assign partitions that are too new for other brokers' metadata.
        """
        names = {share.topic for share in answer.assignment}
        for _ in range(_METADATA_TRIES):
            view = self._cluster.view
            if all(
                (topic := view.topics.get(tp.topic)) is not None
                and tp.partition < topic.partition_count
                for tp in assignment(answer)
            ):
                return
            with suppress(RaftlogError):
                await self._cluster.refresh(names, rotate=True)
            await asyncio.sleep(_METADATA_PAUSE_S)

    async def next_answer(self) -> None:
        """Send a heartbeat soon, and wait until one has a response or has failed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._membership.hurry(now=self._now())
        self.poll()
        await waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def leave(self, epoch: int, *, timeout_ms: int) -> None:
        """Leave the group. Informs the coordinator if possible within ``timeout_ms``."""
        farewell = self._membership.leave(epoch)
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        if farewell is None:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                await self._coordinators.call(
                    farewell.group, apis.GROUP_HEARTBEAT, farewell, timeout_ms=timeout_ms
                )
        except (RaftlogError, TimeoutError) as error:
            logger.info("leave request failed: group=%r error=%s", farewell.group, error)

    def close(self) -> None:
        """Stop sending heartbeats."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
        for waiter in self._waiters:
            waiter.cancel()
