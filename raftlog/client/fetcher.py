"""Fetcher of a consumer: fetches batches ahead of the application, on one event loop.

``poll`` is the main step: it gets the wanted partitions from the subscription, sends fetches to the
brokers that ``replica_selector`` chooses, and sets a timer for later work. Each response calls it
again. A fetch waits at the broker for records. The wait grows while no records arrive, so an idle
consumer sends one request every five seconds.

If a broker was replaced as leader or is unresponsive, its fetch is abandoned and sent to another
broker. A late response to an abandoned fetch is ignored.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from raftlog import limits
from raftlog.client.cluster import NO_EPOCH, Cluster, ClusterView
from raftlog.client.connection import Answer, Connection
from raftlog.client.requests import (
    STAND_IN_AFTER_S,
    At,
    BrokerConnection,
    BrokerConnections,
    ReplicaSelector,
    Source,
    list_offsets,
    replica_offsets,
)
from raftlog.client.retry import is_behind, is_old_news, may_pass, may_retry
from raftlog.client.settings import ConsumerSettings
from raftlog.client.subscription import Batch, Subscription, Wanted
from raftlog.errors import (
    CorruptBatchError,
    DamagedLogError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RaftlogError,
    RefusedError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from raftlog.protocol.schema import slices
from raftlog.record import BatchHeader, check, parse_header
from raftlog.record.codec import without_records
from raftlog.types import Buffer, Isolation, LeaderEpoch, Offset, TopicPartition

logger: Final = logging.getLogger(__name__)

# Time for a broker to release a corrupt replica, before the application gets the error.
DAMAGE_PATIENCE_S: Final = 10.0
_EMPTY_WAIT_MS_MIN: Final = 20
_IDLE_WAITS_MAX: Final = 10  # maximum wait of an idle fetch, in units of fetch_max_wait_ms
_EARLY_PART: Final = 2  # divisor; an empty response before this part of its wait causes a pause


@dataclass(slots=True, eq=False)
class _Load:
    """Fetch request, without its abandoned partitions."""

    link: BrokerConnection[_Load]
    connection: Connection
    replica_ok: bool
    wants: list[tuple[Wanted, Source]] = field(default_factory=list)
    asked_at: float = 0.0  # monotonic seconds; time at which it was sent


_Loads: TypeAlias = dict[tuple[int, bool], _Load]


class Fetcher:
    """Fetcher of one subscription. Runs on one event loop."""

    def __init__(
        self,
        settings: ConsumerSettings,
        cluster: Cluster,
        subscription: Subscription,
        *,
        now: Callable[[], float],
        positions: Positions | None = None,
        turn: int = 0,
    ) -> None:
        self._settings = settings
        self._positions = positions or Positions(
            cluster, subscription, isolation=settings.isolation
        )
        self._cluster = cluster
        self._subscription = subscription
        self._now = now
        self._links: BrokerConnections[_Load] = BrokerConnections(
            cluster, self, now=now, in_flight_max=limits.FETCHES_OUTSTANDING_MAX
        )
        self._sources = ReplicaSelector(settings, cluster, self._links, turn=turn)
        self._waits: dict[int, int] = {}  # by broker: idle wait, in units of fetch_max_wait_ms
        self._epochs: dict[TopicPartition, LeaderEpoch] = {}  # newest known leader epochs
        # Minimum duration of an empty fetch, which prevents a busy loop.
        self._empty_wait_ms = max(settings.fetch_max_wait_ms, _EMPTY_WAIT_MS_MIN)
        # Of partitions that copies are made of: see ``BatchReader.take_removed_below``.
        self._removed_below: dict[TopicPartition, dict[LeaderEpoch, Offset]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._active = False
        self._closed = False
        cluster.on_view.append(self._on_view)

    def activate(self) -> None:
        """Start to fetch: the application has requested records."""
        self._active = True
        self.poll()

    def turn(self, tp: TopicPartition) -> None:
        """Fetch ``tp`` from another replica than before, if another one is usable."""
        self._sources.turn(tp)

    def poll(self) -> None:
        """Send the fetches and lookups that are wanted now, and schedule the next check."""
        if self._closed or not self._active:
            return
        now = self._now()
        wanted, again_at = self._subscription.wanted(now)
        loads: _Loads = {}
        lookups: list[Wanted] = []
        for want in wanted:
            if want.offset is None:
                lookups.append(want)
            elif (retry_at := self._load(want, now, loads)) is not None:
                again_at = min(retry_at, again_at or retry_at)
        for load in loads.values():
            self._fetch(load, now)
        if lookups:
            self._subscription.started(lookups)
            self._links.run(self._look_up(lookups))
        if again_at is not None:
            self._schedule(again_at, now)

    def _load(self, want: Wanted, now: float, loads: _Loads) -> float | None:
        """Add ``want`` to the request to its broker. Returns the next attempt time if it cannot."""
        part = want.part
        try:
            source = self._sources.choose(part.tp, now)
            if isinstance(source, float):  # there may be no metadata of the topic
                return source
            topic_id = self._cluster.view.topic(part.tp.topic).id
        except RefusedError as error:
            # By stored metadata. The topic may have been created again: ask for the next call.
            self._cluster.want(part.tp.topic)
            self._links.refresh()
            self._subscription.failed(want, error)
            return None
        if part.topic_id not in ("", topic_id):
            # guard: a member does not take older metadata for a recreated topic
            if part.assigned_id:  # older metadata, or an assignment that is about to change
                return self._links.refresh() or now + STAND_IN_AFTER_S
            self._recreated(want)
            return None
        part.topic_id = topic_id
        if source.replica_ok and self._sources.is_disputed(want.part.tp):
            self._subscription.started([want])
            self._links.run(self._examine(want))
            return None
        key = (source.broker_id, source.replica_ok)
        load = loads.get(key)
        if load is None:
            link = self._links.link(source.broker_id)
            if self._in_flight(source.broker_id) >= limits.FETCHES_IN_FLIGHT_MAX:
                return None  # the next response calls poll()
            connection = self._links.connection(link, now)
            if connection is None:
                return self._links.retry_at(link, now)
            load = loads[key] = _Load(link, connection, source.replica_ok)
        if len(load.wants) < limits.PARTITIONS_PER_REQUEST_MAX:
            load.wants.append((want, source))
        return None

    def _in_flight(self, broker_id: int) -> int:
        """Return the number of fetches in flight to a broker, without abandoned ones."""
        return sum(
            any(want.generation == want.part.generation for want, _ in request.load.wants)
            for request in self._links.link(broker_id).in_flight
        )

    def _wait_ms(self, broker_id: int) -> int:
        """Return the wait time of the next fetch, which is longer after idle fetches.

        The broker responds with the first byte if fetch_min_bytes is 1. Only one fetch per broker
        waits longer: others return soon, and can include partitions that are wanted next.
        """
        settings = self._settings
        wait_ms = settings.fetch_max_wait_ms
        if settings.fetch_min_bytes > 1 or self._links.link(broker_id).in_flight:
            return wait_ms
        return min(wait_ms * self._waits.get(broker_id, 1), limits.FETCH_WAIT_MS_MAX)

    def _fetch(self, load: _Load, now: float) -> None:
        settings, wait_ms = self._settings, self._wait_ms(load.link.broker_id)
        # guard: a consumer reports a corrupt batch
        request = FetchRequest(
            partitions=[
                FetchPartition(
                    topic=want.part.tp.topic,
                    partition=want.part.tp.partition,
                    offset=want.offset or 0,
                    bytes_max=want.part.bytes_to_fetch(settings.max_partition_fetch_bytes),
                    leader_epoch=source.leader_epoch,
                    doubtful=want.doubtful,
                    topic_id=want.part.topic_id,
                )
                for want, source in load.wants
            ],
            wait_ms_max=wait_ms,
            bytes_min=settings.fetch_min_bytes,
            bytes_max=min(settings.fetch_max_bytes, self._subscription.room()),
            replica_ok=load.replica_ok,
            isolation=settings.isolation,
        )
        self._subscription.started(want for want, _ in load.wants)
        load.asked_at = now
        self._links.send(load.link, load.connection, load, apis.FETCH, request, wait_ms=wait_ms)

    def _schedule(self, at: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(at - now, 0.001), self.poll)

    # -- responses

    def on_response(self, link: BrokerConnection[_Load], load: _Load, answer: Answer) -> None:
        message, attachment = answer
        assert isinstance(message, FetchResponse)
        try:
            data = slices(attachment, [part.length for part in message.partitions])
        except InvalidRequestError as mismatch:
            self._links.mark_suspect(link)
            self._links.refresh()
            self.on_failure(link, load, mismatch)
            return
        self._links.succeeded()
        answers = {
            TopicPartition(part.topic, part.partition): (part, view)
            for part, view in zip(message.partitions, data, strict=True)
        }
        waited_ms = (self._now() - load.asked_at) * 1_000
        is_early = not attachment and waited_ms * _EARLY_PART < self._empty_wait_ms
        self._note_wait(link.broker_id, is_idle=not message.partitions and not is_early)
        for want, source in load.wants:
            part, view = answers.get(want.part.tp, (None, memoryview(b"")))
            if part is not None and part.failure is not None:
                self._failed(want, source, part.failure.to_error())
            else:
                aborted = () if part is None else part.aborted
                if part is not None and part.tombstones_removed_below:
                    self._note_removed(want.part.tp, source, part.tombstones_removed_below)
                self._on_batches(want, source, view, aborted, is_early=is_early)
        self.poll()

    def _note_removed(self, tp: TopicPartition, source: Source, below: Offset) -> None:
        if not self._settings.has_stand_in:  # consumers do not take it
            by_epoch = self._removed_below.setdefault(tp, {})
            by_epoch[source.leader_epoch] = max(by_epoch.get(source.leader_epoch, 0), below)

    def take_removed_below(self) -> dict[TopicPartition, dict[LeaderEpoch, Offset]]:
        """See ``BatchReader.take_removed_below``."""
        taken, self._removed_below = self._removed_below, {}
        return taken

    def _note_wait(self, broker_id: int, *, is_idle: bool) -> None:
        longer = min(2 * self._waits.get(broker_id, 1), _IDLE_WAITS_MAX)
        self._waits[broker_id] = longer if is_idle else 1

    def _on_batches(
        self,
        want: Wanted,
        source: Source,
        data: memoryview,
        aborted: Sequence[AbortedTransaction],
        *,
        is_early: bool,
    ) -> None:
        part = want.part
        part.damaged_since = None
        if not source.replica_ok:
            self._sources.resolve(part.tp)
        if not data:
            if is_early:  # the broker did not wait
                self._delay(want, pause_max=self._empty_wait_ms / 1_000)
            else:
                self._subscription.fetched(want, (), 0)
            return
        part.served_by.add(source.broker_id)
        batches, error = _batches(data, part.tp, aborted)
        self._check_epochs(want, batches)
        self._subscription.fetched(want, batches, len(data))
        if error is not None:
            self._subscription.brought_damaged(want, error)

    def _check_epochs(self, want: Wanted, batches: Sequence[Batch]) -> None:
        """Log an error if leader epochs decrease: the log was truncated and overwritten."""
        part = want.part
        if want.generation != part.generation:
            return  # a late response, of another position
        for batch in batches:
            epoch = batch.leader_epoch
            if epoch < part.last_epoch:
                logger.error(
                    "records lost after an unclean leader election: partition=%s offset=%d "
                    "epoch_before=%d epoch=%d. Records that were read before no longer exist",
                    part.tp,
                    batch.next_offset - 1,
                    part.last_epoch,
                    epoch,
                )
            part.last_epoch = epoch

    def _failed(self, want: Wanted, source: Source, error: RaftlogError) -> None:
        """Handle the error of one partition."""
        tp = want.part.tp
        if is_behind(error):
            self._links.mark_suspect(self._links.link(source.broker_id))
        if is_old_news(error):
            self._links.refresh()
        if source.replica_ok:
            self._sources.refused(tp, source, self._now())
        if isinstance(error, OffsetOutOfRangeError):
            if source.replica_ok:  # the replica may lag; the leader decides
                self._sources.dispute(tp)
                self._delay(want)
            else:
                self._out_of_range(want, error)
        elif may_pass(error, repeatable=True):
            self._delay(want)
        elif isinstance(error, DamagedLogError) and self._may_heal(want):
            self._links.refresh()
            self._delay(want)
        else:
            self._links.refresh()  # the topic may be deleted
            self._subscription.failed(want, error)

    def _may_heal(self, want: Wanted) -> bool:
        """Return True while the broker may still replace its corrupt replica.

        It needs another replica that has the records.
        """
        part, now = want.part, self._now()
        try:
            known = self._cluster.view.partition(*part.tp)
        except RefusedError:
            return False
        if len(known.replicas) == 1:
            return False
        if part.damaged_since is None:
            part.damaged_since = now
        return now - part.damaged_since < DAMAGE_PATIENCE_S

    def _out_of_range(self, want: Wanted, error: RaftlogError) -> None:
        """Reset the position, or report the error, if the leader does not have the offset."""
        tp = want.part.tp
        self._sources.resolve(tp)
        reset = self._settings.auto_offset_reset
        if reset == "error":
            error = OffsetOutOfRangeError(
                f"{tp}: {error}. Call seek(), or set auto_offset_reset to 'earliest' or 'latest'"
            )
            self._subscription.failed(want, error)
        else:
            logger.warning("offset out of range: partition=%s error=%s reset=%s", tp, error, reset)
            self._subscription.lost(want, reset)

    def _recreated(self, want: Wanted) -> None:
        """Reset the position, which belongs to a deleted topic of the same name."""
        reset = self._settings.auto_offset_reset
        if reset != "error":
            reset = "earliest"  # all records of the new topic are unread
        logger.warning(
            "topic was deleted and created again: partition=%s reset=%s",
            want.part.tp,
            "error, call seek()" if reset == "error" else "earliest",
        )
        self._subscription.lost(want, reset)
        asyncio.get_running_loop().call_soon(self.poll)

    async def _examine(self, want: Wanted) -> None:
        """Check an offset that a replica reported as out of range, while there is no leader.

        It is out of range if it is below the first offset of every replica. If it is above the last
        offset, the replicas lag and the fetch is retried.
        """
        tp = want.part.tp
        try:
            found = await replica_offsets(self._cluster, {tp: "earliest"})
        except RaftlogError:
            found = {}
        if tp in found and (want.offset or 0) < found[tp].offset:
            what = f"offset {want.offset} is below the log start offset {found[tp].offset}"
            self._out_of_range(want, OffsetOutOfRangeError(what))
        else:
            self._delay(want)
        self.poll()

    def _delay(self, want: Wanted, *, pause_max: float = 1.0) -> None:
        pause = min(self._cluster.backoff_seconds(want.part.failures), pause_max)
        self._subscription.delayed(want, self._now() + pause)

    def on_failure(self, link: BrokerConnection[_Load], load: _Load, error: RaftlogError) -> None:
        logger.debug("fetch failed: error=%s", error)
        self._note_wait(link.broker_id, is_idle=False)
        for want, _ in load.wants:
            if may_retry(error, repeatable=True):
                self._delay(want)
            else:
                self._subscription.failed(want, error)
        asyncio.get_running_loop().call_soon(self.poll)

    def _cancel_overdue(self) -> None:
        """Abandon fetches of brokers that are no longer leader or are unresponsive.

        Only if another broker can be used: otherwise a late response is still useful.
        """
        now = self._now()
        for request in list(self._links.in_flight()):
            load, is_overdue = request.load, request.link.is_overdue(now)
            kept = []
            for want, source in load.wants:
                if self._has_newer_leader(want, source) or (
                    is_overdue and self._has_other(want.part.tp, source, now)
                ):
                    self._subscription.given_up(want)
                else:
                    kept.append((want, source))
            load.wants = kept

    def _has_newer_leader(self, want: Wanted, source: Source) -> bool:
        view, tp = self._cluster.view, want.part.tp
        return not source.replica_ok and view.has_newer_leader(*tp, source.leader_epoch)

    def _has_other(self, tp: TopicPartition, source: Source, now: float) -> bool:
        """Return True if the partition would be fetched from another broker now."""
        try:
            other = self._sources.choose(tp, now)
        except RefusedError:
            return True  # the partition does not exist any longer
        return isinstance(other, Source) and other.broker_id != source.broker_id

    # -- positions

    async def _look_up(self, wanted: Sequence[Wanted]) -> None:
        topics = self._cluster.view.topics
        for want in wanted:
            topic = topics.get(want.part.tp.topic)
            known = "" if topic is None else topic.id
            want.part.topic_id = want.part.assigned_id or known
        for want, error in await self._positions.look_up(wanted):
            if may_retry(error, repeatable=True):
                self._delay(want)
            else:
                self._subscription.failed(want, error)
        self.poll()

    # -- metadata updates, close

    def on_change(self) -> None:
        if not self._closed:
            self._cancel_overdue()
            self.poll()

    def _on_view(self, view: ClusterView) -> None:
        """Add new partitions of subscribed topics. End the pause of partitions with new leaders."""
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
        self._sources.keep(subscription.parts)
        for tp, part in list(subscription.parts.items()):
            news = view.topics.get(tp.topic)
            if news is None or tp.partition >= news.partition_count:
                continue
            known = news.partitions[tp.partition]
            if known.leader is not None and known.leader_epoch > self._epochs.get(tp, NO_EPOCH):
                self._epochs[tp] = known.leader_epoch
                subscription.hasten(part)  # the pause was due to the old leader
        self.on_change()

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._links.close()


def _batches(
    data: memoryview, tp: TopicPartition, aborted: Sequence[AbortedTransaction] = ()
) -> tuple[list[Batch], CorruptBatchError | None]:
    """Return the complete batches in ``data``, and the error of the rest, or None. Markers, and the
    batches of ``aborted`` transactions, are replaced by batches without records.
    """
    batches: list[Batch] = []
    position = 0
    dropped = _Dropped(aborted)
    while position < len(data):
        try:
            header = parse_header(data, position)
        except CorruptBatchError as error:
            after = f"after offset {batches[-1].next_offset - 1}, " if batches else ""
            return batches, CorruptBatchError(f"{tp}: {after}{error}")
        end = position + header.length
        if end > len(data):
            return batches, CorruptBatchError(
                f"{tp}: the batch at offset {header.base_offset} is truncated: received "
                f"{len(data) - position} of {header.length} bytes"
            )
        batch: Buffer = data[position:end]
        if (header.is_transactional or header.is_control) and dropped.has(header):
            try:
                # guard: no corrupt header drops records
                check(batch)
            except CorruptBatchError as error:
                return batches, CorruptBatchError(f"{tp}: {error}")
            batch = without_records(header)
        batches.append(
            Batch(
                memoryview(batch),
                header.base_offset,
                header.next_offset,
                header.leader_epoch,
                header.uncompressed_length,
            )
        )
        position = end
    return batches, None


class _Dropped:
    """Which batches of a response a reader does not get: call ``has`` for each, in their order.

    Source: ``CompletedFetch.nextFetchedRecord`` of Kafka's consumer.
    """

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._next = deque(sorted(aborted, key=lambda each: each.first_offset))
        self._aborted: set[int] = set()  # producers, until their markers

    def has(self, header: BatchHeader) -> bool:
        while self._next and self._next[0].first_offset < header.next_offset:
            # guard: readers drop aborted records
            self._aborted.add(self._next.popleft().producer_id)
        if header.is_control:
            if not header.is_commit:
                self._aborted.discard(header.producer_id)
            return True
        return header.producer_id in self._aborted


# -- positions -------------------------------------------------------------------------------------
#
# Start positions of partitions that have no position yet.
#
# With a consumer group, the committed offset; without a group or a committed offset, the reset
# policy.


# Returns the committed offset of each partition; None without one.
Committed: TypeAlias = Callable[
    [Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, Offset | None]]
]

_ENDS: Final[tuple[At, ...]] = ("earliest", "latest")


class Positions:
    """Looks up positions for one subscription. ``committed``: with a consumer group only."""

    def __init__(
        self,
        cluster: Cluster,
        subscription: Subscription,
        committed: Committed | None = None,
        isolation: Isolation = "committed",
    ) -> None:
        self._cluster = cluster
        self._isolation = isolation
        self._subscription = subscription
        self._committed = committed

    async def look_up(self, wanted: Sequence[Wanted]) -> list[tuple[Wanted, RaftlogError]]:
        """Look up the positions. Returns the partitions without one, each with its error."""
        failures = await self._look_up_committed(
            [want for want in wanted if want.part.reset == "committed"]
        )
        # The generation of a partition changes when its position is found or moved.
        left = [want for want in wanted if want.generation == want.part.generation]
        for how in _ENDS:
            group = {want.part.tp: want for want in left if want.part.reset == how}
            try:
                answers = await list_offsets(
                    self._cluster,
                    dict.fromkeys(group, how),
                    any_replica=True,
                    isolation=self._isolation,
                )
            except RaftlogError as error:
                failures += [(want, error) for want in group.values()]
            else:
                for tp, want in group.items():
                    self._subscription.found(want, answers[tp].offset)
        failures += [(want, self._unknown(want)) for want in left if want.part.reset == "error"]
        return failures

    async def _look_up_committed(
        self, wanted: Sequence[Wanted]
    ) -> list[tuple[Wanted, RaftlogError]]:
        if not wanted:
            return []
        assert self._committed is not None, "the consumer has a group"
        try:
            offsets = await self._committed([want.part.tp for want in wanted])
        except RaftlogError as error:
            return [(want, error) for want in wanted]
        for want in wanted:
            offset = offsets[want.part.tp]
            if offset is None:
                self._subscription.not_committed(want)
            else:
                self._subscription.found(want, offset)
        return []

    def _unknown(self, want: Wanted) -> RaftlogError:
        tp = want.part.tp
        if self._committed is not None:
            return OffsetOutOfRangeError(
                f"{tp}: the group has no committed offset. Call seek() or set auto_offset_reset "
                "to 'earliest' or 'latest'"
            )
        return OffsetOutOfRangeError(
            f"{tp}: no start offset. Call seek() or set auto_offset_reset to 'earliest' or 'latest'"
        )
