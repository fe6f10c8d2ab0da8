"""Group membership of a consumer: combines membership, heartbeats, commits and positions.

Runs on the I/O loop. Methods whose docstring says "application thread" can be called in the
application's thread. ``rebalancing`` contains the application's side of a rebalance.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple

from raftlog.client.cluster import Cluster
from raftlog.client.consumer_groups.committing import Committer
from raftlog.client.consumer_groups.coordinator import Coordinators
from raftlog.client.consumer_groups.heartbeats import Heartbeats
from raftlog.client.consumer_groups.membership import Membership, Owned, Phase
from raftlog.client.consumer_groups.offsets import Offsets, check_ends, fetch_offsets
from raftlog.client.metadata import ClusterView
from raftlog.client.settings import GroupSettings
from raftlog.client.subscription import Subscription
from raftlog.errors import (
    ClosedError,
    RaftlogError,
    RequestTimedOutError,
)
from raftlog.types import Offset, OffsetAndMetadata, TopicPartition

logger: Final = logging.getLogger(__name__)

# Interruptions of an iteration per ``max_poll_interval_ms``, which prove progress.
_SIGNS_PER_INTERVAL: Final = 4


class Reading(NamedTuple):
    """Offsets to commit, with the membership that read the records before them."""

    offsets: Offsets
    topic_ids: Mapping[str, str]
    incarnation: int
    known: Mapping[TopicPartition, Offset]  # end offsets that are known, as lower bounds


class Member:
    """Group member of one consumer. Set ``schedule`` and ``on_change`` before use."""

    def __init__(
        self,
        settings: GroupSettings,
        cluster: Cluster,
        subscription: Subscription,
        *,
        now: Callable[[], float],
        member_id: str,
    ) -> None:
        self.settings = settings
        self.schedule: Callable[[Callable[[], None]], object]  # runs a function on the loop
        self.on_change: Callable[[], None]  # called when there may be partitions to fetch
        self.coordinators = Coordinators(cluster)
        self.membership = Membership(settings, member_id)
        self.commit_due = False  # an automatic commit is due
        self._problem: RaftlogError | None = None  # to be raised by the next poll
        self._cluster = cluster
        self._subscription = subscription
        self._now = now
        self._heartbeats = Heartbeats(
            self.membership,
            self.coordinators,
            cluster,
            now=now,
            on_news=subscription.interrupt,
        )
        self._committer = Committer(
            self.membership, self.coordinators, self._heartbeats, on_committed=self._committed
        )
        self._in_order = asyncio.Lock()  # keeps commits in the order of the calls
        self._known: dict[str, tuple[str, int]] = {}  # topic -> id, partition count
        self._assigned_ids: dict[str, str] = {}  # topic ids of manually assigned partitions
        self._pulse: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- assignment

    def begin(self, view: ClusterView) -> None:
        """Start after the application assigned partitions manually."""
        topics = {tp.topic for tp in self._subscription.parts}
        self._assigned_ids = {topic: view.topics[topic].id for topic in topics}
        self._start_pulse()

    def subscribe(self, topics: Sequence[str], view: ClusterView) -> None:
        """Join the group, and read these topics."""
        if self.membership.phase is Phase.OUT:
            self._subscription.assign(())
        for topic in topics:
            found = view.topic(topic)
            if self._known.get(topic, ("", 0))[0] != found.id:
                self._known[topic] = found.id, found.partition_count
        self._start_pulse()
        self.resubscribe(topics)

    def resubscribe(self, topics: Sequence[str]) -> None:
        """Change the topics of the subscription. They may have been created after ``subscribe``."""
        self.membership.subscribe(topics, now=self._now())
        self._heartbeats.poll()

    def report(self, error: RaftlogError) -> None:
        """Make the application's next poll raise ``error``. The consumer continues."""
        self._problem = error
        self._subscription.interrupt()

    def take_problem(self) -> RaftlogError | None:
        """Return the reported error once, or None. Application thread."""
        problem, self._problem = self._problem, None
        return problem

    def wake(self) -> None:
        """Check for heartbeats after a change. Application thread."""
        self.schedule(self._heartbeats.poll)

    def add(self, partitions: Owned) -> None:
        """Start to read assigned partitions. Application thread."""
        new: list[TopicPartition] = []
        for tp, topic_id in partitions.items():
            known_id, count = self._known.get(tp.topic, ("", 0))
            if known_id != topic_id or tp.partition >= count:
                new.append(tp)
        self._subscription.add_assigned(partitions, new)
        self.schedule(self.on_change)

    # -- offsets

    def reading(
        self,
        offsets: Offsets | None = None,
        *,
        of: Owned | None = None,
        automatic: bool = False,
    ) -> Reading:
        """Return what to commit: ``offsets``, or the positions that are not committed yet.

        ``of``: restricts the positions to these partitions. ``automatic``: only positions that need
        no lookup of the end offset. Application thread.
        """
        parts = self._subscription.parts.copy()
        membership = self.membership
        is_alone = membership.phase is Phase.OUT
        if offsets is None:
            offsets = {
                tp: OffsetAndMetadata(part.position)
                for tp, part in parts.items()
                if part.position is not None
                and (of is None or tp in of)
                and (part.position != part.committed or (is_alone and not automatic))
                and (part.position <= part.known_to or not automatic)
            }
        if not automatic:
            self._subscription.processed_up_to(offsets)
        return Reading(
            offsets,
            self._assigned_ids if is_alone else membership.topic_ids(offsets),
            membership.incarnation,
            {tp: part.known_to for tp, part in parts.items()},
        )

    async def commit(self, reading: Reading, *, timeout_ms: int | None = None) -> Offsets:
        """Commit after all earlier commits. Raises the error if it fails."""
        if timeout_ms is None:
            timeout_ms = self._cluster.settings.request_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                async with self._in_order:
                    await check_ends(self._cluster, reading.offsets, known=reading.known)
                    future = self._committer.start(
                        reading.offsets,
                        reading.topic_ids,
                        incarnation=reading.incarnation,
                        timeout_ms=timeout_ms,
                    )
                return await asyncio.shield(future)
        except TimeoutError:
            raise RequestTimedOutError(
                f"offset commit timed out after {timeout_ms} ms. It may still succeed later"
            ) from None

    async def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets, after earlier commits of this consumer have completed."""
        for tp in partitions:
            await self._cluster.check_partition(tp)
        async with self._in_order:
            await self._committer.settled()
        return await fetch_offsets(self.coordinators, self.settings.group, partitions)

    async def look_up(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Offset | None]:
        found = await fetch_offsets(self.coordinators, self.settings.group, partitions)
        return {tp: None if given is None else given.offset for tp, given in found.items()}

    def _committed(self, offsets: Offsets) -> None:
        for tp, given in offsets.items():
            part = self._subscription.parts.get(tp)
            if part is not None:
                part.committed = given.offset

    def commit_soon(self, reading: Reading, then: Callable[[RaftlogError | None], None]) -> None:
        """Commit, then call ``then`` on the loop with the error or None. Application thread."""
        self.schedule(lambda: self._run(self._commit_then(reading, then)))

    async def _commit_then(
        self, reading: Reading, then: Callable[[RaftlogError | None], None]
    ) -> None:
        error: RaftlogError | None = None
        try:
            await self.commit(reading)
        except RaftlogError as problem:
            error = problem
        except asyncio.CancelledError:
            then(ClosedError("the consumer was closed before the offset commit completed"))
            raise
        then(error)

    def commit_automatically(self) -> None:
        """Commit the processed records. Application thread."""
        self.commit_due = False
        reading = self.reading(automatic=True)
        if reading.offsets:
            self.commit_soon(reading, self._log)

    def release(self, partitions: Owned) -> None:
        """Stop reading partitions, and release them after their offsets are committed.

        The coordinator assigns them to no other member until then. Application thread.
        """
        membership = self.membership
        offsets: Offsets | None = None if self.settings.auto_commit else {}
        reading = self.reading(offsets, of=partitions, automatic=True)
        self._subscription.remove(partitions)

        def released(error: RaftlogError | None) -> None:
            self._log(error)
            membership.released(partitions, incarnation=reading.incarnation, now=self._now())
            self._heartbeats.poll()

        async def release() -> None:
            async with self._in_order:  # after all earlier commits of these partitions
                await self._committer.settled()
            await self._commit_then(reading, released)

        self.schedule(lambda: self._run(release()))

    def _log(self, error: RaftlogError | None) -> None:
        if error is not None:
            logger.warning(
                "offset commit failed, records may be delivered again: group=%r error=%s",
                self.settings.group,
                error,
            )

    # -- timers

    def _start_pulse(self) -> None:
        """Interrupt the application's iteration periodically.

        It then commits processed records, and proves that it makes progress
        (``max_poll_interval_ms``).
        """
        if self._pulse is None:
            period_ms = self.settings.max_poll_interval_ms / _SIGNS_PER_INTERVAL
            if self.settings.auto_commit:
                period_ms = min(period_ms, self.settings.auto_commit_interval_ms)
            loop = asyncio.get_running_loop()
            self._pulse = loop.call_later(period_ms / 1_000, self._on_pulse)

    def _on_pulse(self) -> None:
        self._pulse = None
        self.commit_due = self.settings.auto_commit
        self._subscription.interrupt()
        self._start_pulse()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the end

    async def leave(self, reading: Reading, epoch: int, *, timeout_ms: int) -> None:
        """Commit and leave the group within ``timeout_ms``. Logs failures.

        Also waits for commits that the application started earlier.
        """
        deadline = self._now() + timeout_ms / 1_000
        await asyncio.sleep(0)  # earlier commits start first
        try:
            await self.commit(reading, timeout_ms=timeout_ms)
        except RaftlogError as error:
            self._log(error)
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=max(deadline - self._now(), 0.0))
        left_ms = max(int((deadline - self._now()) * 1_000), 0)
        await self._heartbeats.leave(epoch, timeout_ms=left_ms)

    async def close(self) -> None:
        """Stop without informing the coordinator. Idempotent."""
        if self._pulse is not None:
            self._pulse.cancel()
        self._heartbeats.close()
        await asyncio.sleep(0)  # started tasks must run once to receive the cancellation
        for task in list(self._tasks):
            task.cancel()
        await self._committer.close()
