"""What brings batches from the leaders, ahead of the application, on one event loop.

``look`` is the whole machine, as ``pump`` is the sender's: it asks the subscription what is wanted,
asks the leaders for it, and sets a timer if something is to be wanted later. Each answer looks
again. A fetch waits at the broker for data, so an idle consumer costs two requests a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from raftlog import limits
from raftlog.client.cluster import Cluster
from raftlog.client.connection import Answer, Connection
from raftlog.client.leaders import list_offsets
from raftlog.client.links import Link, Links, leader_of
from raftlog.client.metadata import ClusterView
from raftlog.client.retry import may_retry
from raftlog.client.settings import ConsumerSettings
from raftlog.client.subscription import Batch, Subscription, Wanted
from raftlog.errors import (
    CorruptBatchError,
    InvalidRequestError,
    NotLeaderError,
    OffsetOutOfRangeError,
    RaftlogError,
    RefusedError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.attachments import slices
from raftlog.protocol.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from raftlog.record import parse_header
from raftlog.types import TopicPartition

logger: Final = logging.getLogger(__name__)

_EMPTY_WAIT_MS_MIN: Final = 20
_EARLY_PART: Final = 2  # an empty answer before this part of its wait asks for a pause


class Fetcher:
    """Serves one subscription. Everything here runs on one event loop."""

    def __init__(
        self,
        settings: ConsumerSettings,
        cluster: Cluster,
        subscription: Subscription,
        *,
        now: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._subscription = subscription
        self._now = now
        self._links = Links(
            cluster,
            now=now,
            on_change=self.look,
            in_flight_max=limits.FETCHES_OUTSTANDING_MAX,
        )
        self._outstanding: dict[int, list[list[Wanted]]] = {}  # by broker
        # An empty answer takes about so long, one way or the other: no busy loop.
        self._empty_wait_ms = max(settings.fetch_max_wait_ms, _EMPTY_WAIT_MS_MIN)
        self._timer: asyncio.TimerHandle | None = None
        self._active = False
        self._closed = False
        cluster.on_view.append(self._on_view)

    def activate(self) -> None:
        """Begin to fetch: the application has asked for records."""
        self._active = True
        self.look()

    def look(self) -> None:
        """Fetch what is wanted now, and look again when more is."""
        if self._closed or not self._active:
            return
        now = self._now()
        wanted, again_at = self._subscription.wanted(now)
        loads: dict[int, tuple[Link, Connection, list[Wanted]]] = {}
        lookups: list[Wanted] = []
        for want in wanted:
            if want.offset is None:
                lookups.append(want)
            elif (retry_at := self._load(want, now, loads)) is not None:
                again_at = min(retry_at, again_at or retry_at)
        for link, connection, load in loads.values():
            self._fetch(link, connection, load)
        if lookups:
            self._subscription.started(lookups)
            self._links.run(self._look_up(lookups))
        if again_at is not None:
            self._look_at(again_at, now)

    def _load(
        self, want: Wanted, now: float, loads: dict[int, tuple[Link, Connection, list[Wanted]]]
    ) -> float | None:
        """Put ``want`` with what its leader is asked for; else, when to try again by oneself."""
        tp = want.part.tp
        try:
            leader = leader_of(self._cluster, tp.topic, tp.partition)
        except RefusedError as error:
            self._subscription.failed(want, error)
            return None
        if leader is None:
            return self._links.refresh()
        load = loads.get(leader)
        if load is None:
            link = self._links.link(leader)
            if self._in_flight(leader) >= limits.FETCHES_IN_FLIGHT_MAX:
                return None  # an answer looks again
            connection = self._links.connection(link, now)
            if connection is None:
                return self._links.retry_at(link, now)
            load = loads[leader] = (link, connection, [])
        if len(load[2]) < limits.PARTITIONS_PER_REQUEST_MAX:
            load[2].append(want)
        return None

    def _in_flight(self, broker_id: int) -> int:
        """Fetches that a broker has yet to answer, without those that nobody wants any more."""
        return sum(
            any(want.generation == want.part.generation for want in load)
            for load in self._outstanding.get(broker_id, ())
        )

    def _fetch(self, link: Link, connection: Connection, load: list[Wanted]) -> None:
        settings = self._settings
        request = FetchRequest(
            partitions=[
                FetchPartition(
                    topic=want.part.tp.topic,
                    partition=want.part.tp.partition,
                    offset=want.offset or 0,
                    bytes_max=settings.max_partition_fetch_bytes,
                )
                for want in load
            ],
            wait_ms_max=settings.fetch_max_wait_ms,
            bytes_min=settings.fetch_min_bytes,
            bytes_max=min(settings.fetch_max_bytes, self._subscription.room()),
        )
        timeout_ms = self._cluster.settings.request_timeout_ms + settings.fetch_max_wait_ms
        self._subscription.started(load)
        try:
            future = connection.start(apis.FETCH, request, timeout_ms=timeout_ms)
        except RaftlogError as error:
            self._all_failed(load, error)
            return
        link.in_flight += 1
        self._outstanding.setdefault(link.broker_id, []).append(load)
        future.add_done_callback(partial(self._answered, link, load, self._now()))

    def _look_at(self, at: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(at - now, 0.001), self.look)

    # -- answers

    def _answered(
        self, link: Link, load: list[Wanted], asked_at: float, future: asyncio.Future[Answer]
    ) -> None:
        link.in_flight -= 1
        self._outstanding[link.broker_id].remove(load)
        error = future.exception()
        if self._closed:
            return
        if error is not None:
            assert isinstance(error, RaftlogError), f"connections fail with our errors: {error!r}"
            self._all_failed(load, error)
            return
        message, attachment = future.result()
        assert isinstance(message, FetchResponse)
        try:
            data = slices(attachment, [part.length for part in message.partitions])
        except InvalidRequestError as mismatch:
            self._all_failed(load, mismatch)
            return
        self._links.succeeded()
        answers = {
            TopicPartition(part.topic, part.partition): (part, view)
            for part, view in zip(message.partitions, data, strict=True)
        }
        waited_ms = (self._now() - asked_at) * 1_000
        is_early = not attachment and waited_ms * _EARLY_PART < self._empty_wait_ms
        for want in load:
            answer = answers.get(want.part.tp)
            if answer is None:
                self._take(want, None, memoryview(b""), is_early=is_early)
            else:
                self._take(want, *answer, is_early=is_early)
        self.look()

    def _take(
        self, want: Wanted, answer: FetchedPartition | None, data: memoryview, *, is_early: bool
    ) -> None:
        part = want.part
        if answer is not None and answer.failure is not None:
            self._failed(want, answer.failure.to_error())
            return
        if not data:
            if is_early:  # a broker that does not wait, or was asked not to
                self._delay(want, pause_max=self._empty_wait_ms / 1_000)
            else:
                self._subscription.fetched(want, (), 0)
            return
        batches, error = _batches(data, part.tp)
        self._subscription.fetched(want, batches, len(data))
        if error is not None:
            self._subscription.failed(want, error)

    def _failed(self, want: Wanted, error: RaftlogError) -> None:
        """One partition could not be fetched."""
        part = want.part
        if isinstance(error, OffsetOutOfRangeError):
            if self._settings.auto_offset_reset == "error":
                told = OffsetOutOfRangeError(f"{part.tp}: {error}, by seek() or auto_offset_reset")
                self._subscription.failed(want, told)
            else:
                reset = self._settings.auto_offset_reset
                logger.warning("%s: %s; going on from the %s offset", part.tp, error, reset)
                self._subscription.lost(want)
        elif may_retry(error, repeatable=True):
            if isinstance(error, NotLeaderError):
                self._links.refresh()
            self._delay(want)
        else:
            self._links.refresh()  # the topic may be gone
            self._subscription.failed(want, error)

    def _delay(self, want: Wanted, *, pause_max: float = 1.0) -> None:
        pause = min(self._cluster.backoff_seconds(want.part.failures), pause_max)
        self._subscription.delayed(want, self._now() + pause)

    def _all_failed(self, load: Sequence[Wanted], error: RaftlogError) -> None:
        """A whole request failed, and with it most likely the connection."""
        logger.debug("a fetch failed: %s", error)
        self._links.refresh()
        for want in load:
            if may_retry(error, repeatable=True):
                self._delay(want)
            else:
                self._subscription.failed(want, error)
        asyncio.get_running_loop().call_soon(self.look)

    # -- positions

    async def _look_up(self, wanted: Sequence[Wanted]) -> None:
        """Find positions by each partition's reset policy."""
        for how in ("earliest", "latest"):
            group = {want.part.tp: want for want in wanted if want.part.reset == how}
            try:
                answers = await list_offsets(
                    self._cluster,
                    dict.fromkeys(group, how),
                )
            except RaftlogError as error:
                for want in group.values():
                    if may_retry(error, repeatable=True):
                        self._delay(want)
                    else:
                        self._subscription.failed(want, error)
            else:
                for tp, want in group.items():
                    self._subscription.found(want, answers[tp].offset)
        for want in wanted:
            if want.part.reset == "error":
                self._subscription.failed(want, no_position(want.part.tp))
        self.look()

    # -- news and the end

    def _on_view(self, view: ClusterView) -> None:
        """Partitions that were added to topics subscribed to are read, too."""
        subscription = self._subscription
        added = [
            tp
            for topic in subscription.topics
            if (news := view.topics.get(topic)) is not None
            for partition in range(news.partition_count)
            if (tp := TopicPartition(topic, partition)) not in subscription.parts
        ]
        if added:
            subscription.add(added)
        self.look()

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._links.close()


def _batches(data: memoryview, tp: TopicPartition) -> tuple[list[Batch], CorruptBatchError | None]:
    """The whole batches in ``data``, and what is wrong with the rest, if anything is."""
    batches: list[Batch] = []
    position = 0
    while position < len(data):
        try:
            header = parse_header(data, position)
        except CorruptBatchError as error:
            after = f"after offset {batches[-1].next_offset - 1}, " if batches else ""
            return batches, CorruptBatchError(f"{tp}: {after}{error}")
        end = position + header.length
        if end > len(data):
            return batches, CorruptBatchError(
                f"{tp}: the batch at offset {header.base_offset} is cut short: "
                f"{len(data) - position} of its {header.length} bytes came"
            )
        batches.append(Batch(data[position:end], header.next_offset))
        position = end
    return batches, None


def no_position(tp: TopicPartition) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"{tp}: where to begin is not known: seek() to an offset, or set auto_offset_reset to "
        "'earliest' or 'latest'"
    )
