"""Sender of a producer: takes batches from the accumulator until delivery, on one event loop.

``pump`` is the main step. It is called when there may be work: a batch is due, a response arrived,
a connection opened, or a back-off ended. It sends everything that can be sent, and sets one timer
for the next call. The accumulator decides when a batch is due, ``in_flight`` handles failed
batches, and ``broker_connections`` the connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from raftlog import limits
from raftlog.client.accumulator import NEVER, Accumulator
from raftlog.client.batch import PartitionQueue, PendingBatch, ProducerIdAndEpoch
from raftlog.client.broker_connections import BrokerConnection, BrokerConnections
from raftlog.client.cluster import Cluster
from raftlog.client.connection import Answer, Connection
from raftlog.client.delivery import NO_OFFSET, Journey
from raftlog.client.in_flight import (
    InFlightBatches,
    ResumableInFlightBatches,
    expired,
    refused,
    stranded,
)
from raftlog.client.metadata import ClusterView, PartitionView
from raftlog.client.retry import is_behind, is_old_news, may_retry
from raftlog.client.settings import ProducerSettings
from raftlog.clock import Clock
from raftlog.errors import (
    ClosedError,
    CommitUnknownError,
    ConnectionLostError,
    RaftlogError,
    RefusedError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.produce import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTimes,
)
from raftlog.record import BatchBody
from raftlog.types import NO_BASE_OFFSET, NO_TIMESTAMP, Buffer

logger: Final = logging.getLogger(__name__)

_TICK_S: Final = 0.001  # timer resolution: a batch that is due within it is due now
_NO_ACKS: Final = 0
_IDENTITY_TIMEOUT_MS: Final = 1_000  # of one attempt; then the error is stored, and retried


# The load of a request is its batches, without the cancelled ones.
_Link: TypeAlias = BrokerConnection[list[PendingBatch]]


@dataclass(slots=True)
class _Load:
    """Produce request under construction: at most one batch per partition."""

    link: _Link
    connection: Connection
    batches: list[tuple[PendingBatch, BatchBody]] = field(default_factory=list)
    size_bytes: int = 0

    def has_room_for(self, batch: PendingBatch) -> bool:
        if not self.batches:
            return True
        return self.size_bytes + batch.size_bytes <= limits.PRODUCE_REQUEST_BYTES_MAX


class Sender:
    """Sender of one accumulator. Runs on one event loop."""

    def __init__(
        self,
        settings: ProducerSettings,
        cluster: Cluster,
        accumulator: Accumulator,
        *,
        clock: Clock,
        identity: ProducerIdAndEpoch | None = None,
        name: str = "",
    ) -> None:
        """``identity``, ``name``: of a named producer, which keeps them; None requests an identity
        from a broker.
        """
        self._settings = settings
        self._cluster = cluster
        self._accumulator = accumulator
        self._now = clock.monotonic
        self._links: BrokerConnections[list[PendingBatch]] = BrokerConnections(
            cluster,
            self,
            now=self._now,
            # At this limit the broker recognizes every retry (one batch per partition and request).
            in_flight_max=limits.PRODUCER_BATCHES_REMEMBERED,
        )
        self._flights: dict[PartitionQueue, InFlightBatches] = {}
        self._given = identity
        self._name = name
        self._producer = identity
        self._requests_id = False
        self._identity_error: RaftlogError | None = None  # last error of the request for one
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._closed = False
        self.is_traced = False  # brokers report the times of batches
        cluster.on_view.append(self._on_view)

    # -- main step

    def pump(self) -> None:
        """Send everything that can be sent now, and schedule the next call."""
        if self._closed:
            return
        busy = False
        while True:
            now = self._now() + _TICK_S
            loads: dict[int, _Load] = {}
            check_at = NEVER
            for queue, head, due_at in self._accumulator.scan():
                check_at = min(check_at, self._serve(queue, head, due_at, now, loads))
            if not loads:
                break
            busy = True
            for load in loads.values():
                self._send(load)
        if busy and self._settings.linger_ms:
            # More records are likely: check again after linger_ms, so that the application's
            # thread does not have to wake this one for each new batch.
            check_at = min(check_at, now + self._settings.linger_ms / 1_000)
        self._schedule(check_at, now)

    def _serve(
        self,
        queue: PartitionQueue,
        head: PendingBatch,
        due_at: float,
        now: float,
        loads: dict[int, _Load],
    ) -> float:
        """Add the next batch of ``queue`` to a request if possible. Returns the next check time."""
        flight = self._flight(queue)
        if self._gives_up(queue, flight, head, now):
            return now
        if flight.is_busy(head):
            return NEVER  # the pending response calls pump()
        try:
            known = self._partition(queue)
        except RefusedError as error:
            self._drop(queue, flight, error)
            return NEVER
        ready_at = max(due_at, flight.waits_until(known.leader_epoch))
        if ready_at > now:
            return min(ready_at, head.expires_at)
        leader = known.leader
        if leader is None:
            return min(self._links.refresh() or NEVER, head.expires_at)
        if flight.must_stay(leader, known.leader_epoch):
            return NEVER  # a response, or an overdue check, calls pump()
        if not flight.may_launch(head, producer=self._producer):
            if flight.wants_other_than(self._producer):
                self._request_id()
            return head.expires_at
        load = loads.get(leader) or self._begin_load(leader, now)
        if load is None:
            return self._without_link(queue, flight, leader, now, head.expires_at)
        if load.has_room_for(head):
            flight.sent_to(leader, known.leader_epoch)
            if self._load(load, queue, flight, now):
                loads[leader] = load
        return NEVER  # the next round serves the remaining batches

    def _without_link(
        self,
        queue: PartitionQueue,
        flight: InFlightBatches,
        leader: int,
        now: float,
        expires_at: float,
    ) -> float:
        """Return the time of the next check of a partition whose leader takes no request now."""
        link = self._links.link(leader)
        if link.rejection is not None:
            self._fail_all(queue, flight, link.rejection)
            return NEVER
        return min(self._links.retry_at(link, now) or NEVER, expires_at)

    def _begin_load(self, leader: int, now: float) -> _Load | None:
        """Return an empty request to a broker, if it can be sent now."""
        link = self._links.link(leader)
        connection = self._links.connection(link, now)
        return None if connection is None else _Load(link, connection)

    def _load(
        self, load: _Load, queue: PartitionQueue, flight: InFlightBatches, now: float
    ) -> bool:
        batch = self._accumulator.take(queue, now)
        if batch is None:
            return False
        if batch.is_empty:  # KeyboardInterrupt came before its first record
            self._accumulator.release(batch)
            return False
        if flight.is_stranded(batch):
            self._fail(batch, flight, stranded(batch))
            return False
        try:
            body = batch.encode(self._settings.codec, self._settings.compression_level)
            topic = self._accumulator.topics.get(queue.topic)
            is_mirrored = batch.base_offset != NO_BASE_OFFSET
            is_large = topic is not None and body.size_bytes > topic.max_message_bytes
            if topic is not None and is_large and not is_mirrored:
                raise topic.too_large(body.size_bytes)
        except RaftlogError as error:
            self._fail(batch, flight, error)
            return False
        flight.launch(batch, body)
        load.batches.append((batch, body))
        load.size_bytes += body.size_bytes
        return True

    def _send(self, load: _Load) -> None:
        parts: list[ProducePartition] = []
        attachment: list[Buffer] = []
        for batch, body in load.batches:
            queue = batch.queue
            parts.append(
                ProducePartition(
                    topic=queue.topic,
                    partition=queue.partition,
                    length=body.size_bytes,
                    leader_epoch=batch.leader_epoch,
                    base_offset=batch.base_offset,
                )
            )
            attachment += (batch.header, body.payload)
        batches = [batch for batch, _ in load.batches]
        acks = self._settings.acks
        request = ProduceRequest(
            acks=acks, partitions=parts, producer=self._name, traced=self.is_traced
        )
        if self.is_traced:
            now = self._now()
            for batch in batches:
                batch.sent_at = now
        is_sent = self._links.send(
            load.link, load.connection, batches, apis.PRODUCE, request, attachment
        )
        if is_sent and acks == _NO_ACKS:
            for batch in batches:
                self._succeed(batch, NO_OFFSET, NO_TIMESTAMP)

    def _schedule(self, check_at: float, now: float) -> None:
        """Schedule ``pump`` at ``check_at``, and set the wake-up time of the accumulator."""
        if self._timer is not None and not now < self._timer_at <= check_at:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer_at = check_at
            if check_at != NEVER:
                delay = max(check_at - now, 0.0) + _TICK_S
                self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)
        self._accumulator.wake_at = self._timer_at

    def _on_timer(self) -> None:
        self._timer = None
        self.pump()

    # -- responses

    def on_response(self, link: _Link, batches: list[PendingBatch], answer: Answer) -> None:
        message = answer.message
        assert isinstance(message, ProduceResponse)
        self._links.succeeded()
        produced = {(part.topic, part.partition): part for part in message.partitions}
        for batch in batches:
            self._on_partition(
                link, batch, produced.get((batch.queue.topic, batch.queue.partition))
            )
        self._resolve_failed(batches)
        self.pump()

    def _on_partition(
        self, link: _Link, batch: PendingBatch, part: ProducedPartition | None
    ) -> None:
        if part is None:
            lost = ConnectionLostError("the broker's response does not contain this partition")
            self._attempt_failed(link, batch, lost)
        elif part.failure is not None:
            if self._is_other_topic(batch.queue, part.topic_id):
                self._flight(batch.queue).begin_anew()
                self._links.refresh()
            self._attempt_failed(link, batch, part.failure.to_error())
        else:
            if part.times is not None:
                batch.delivery.journey = self._journey(link, batch, part.times)
            self._succeed(batch, part.base_offset, part.append_timestamp_ms)

    def _is_other_topic(self, queue: PartitionQueue, topic_id: str) -> bool:
        """Return whether a broker has reported another topic than the one that was written so far:
        the metadata does not show yet that it was created again.
        """
        known = self._accumulator.topics.get(queue.topic)
        return topic_id != "" and known is not None and known.id != topic_id

    def _journey(self, link: _Link, batch: PendingBatch, times: ProduceTimes) -> Journey:
        return Journey(
            broker=link.broker_id,
            sent_at=batch.sent_at,
            answered_at=self._now(),
            appended_s=times.appended / 1e6,
            synced_s=times.synced / 1e6,
            done_s=times.done / 1e6,
            last=times.last,
        )

    def _succeed(self, batch: PendingBatch, base_offset: int, append_timestamp_ms: int) -> None:
        self._flight(batch.queue).succeeded(batch)
        batch.delivery.succeed(base_offset, append_timestamp_ms)
        self._accumulator.release(batch)

    def on_failure(self, link: _Link, batches: list[PendingBatch], error: RaftlogError) -> None:
        for batch in batches:
            self._attempt_failed(link, batch, error)
        self._resolve_failed(batches)
        asyncio.get_running_loop().call_soon(self.pump)

    def _attempt_failed(self, link: _Link, batch: PendingBatch, error: RaftlogError) -> None:
        self._flight(batch.queue).setback(batch, error)
        if is_behind(error):
            self._links.mark_suspect(link)
        if is_old_news(error):
            self._links.refresh()

    def _cancel_overdue(self) -> None:
        """Cancel batches of an unresponsive broker whose partition has a newer leader.

        The broker may still respond, or may have stored them: their outcome is unknown.
        """
        now, view = self._now(), self._cluster.view
        for request in list(self._links.in_flight()):
            link, batches = request.link, request.load
            if not link.is_overdue(now):
                continue
            taken = [
                batch
                for batch in batches
                if view.has_newer_leader(
                    batch.queue.topic, batch.queue.partition, batch.leader_epoch
                )
            ]
            request.load = [batch for batch in batches if batch not in taken]
            for batch in taken:
                where = f"{batch.queue.topic}:{batch.queue.partition}"
                error = CommitUnknownError(
                    f"broker {link.broker_id} did not respond, and {where} now has another leader"
                )
                self._attempt_failed(link, batch, error)
            self._resolve_failed(taken)

    def _resolve_failed(self, batches: list[PendingBatch]) -> None:
        """Decide about failed batches, in each partition without batches in flight."""
        for queue in {batch.queue: None for batch in batches}:
            flight = self._flight(queue)
            if not flight.setbacks or flight.in_flight:
                continue
            now = self._now()
            resolution = flight.resolve(now)
            if resolution.again:
                flight.not_before = now + self._cluster.backoff_seconds(flight.failures)
                flight.failures += 1
                self._accumulator.put_back(queue, resolution.again)
            for batch, error in resolution.lost:
                self._resolve(batch, error)
                if isinstance(error, UnknownTopicError):
                    self._accumulator.forget(queue.topic)

    # -- batches that are not delivered

    def _gives_up(
        self, queue: PartitionQueue, flight: InFlightBatches, head: PendingBatch, now: float
    ) -> bool:
        """Fail ``head`` if it must not be sent any longer. Returns True if it failed."""
        broken = flight.why_broken(head)
        if broken is not None:
            self._fail_all(queue, flight, broken)
            return True
        if head.expires_at <= now and not flight.in_flight:
            self._expire(queue, flight, now)
            return True
        return False

    def _expire(self, queue: PartitionQueue, flight: InFlightBatches, now: float) -> None:
        for batch in self._accumulator.take_expired(queue, now):
            if batch.error is None:
                batch.error = self._why_unsent(queue)
            self._fail(batch, flight, expired(batch))

    def _why_unsent(self, queue: PartitionQueue) -> RaftlogError | None:
        try:
            leader = self._partition(queue).leader
        except RefusedError as error:
            return error
        link_error = self._links.link(leader).error if leader is not None else None
        return link_error or self._links.error or self._identity_error

    def _drop(self, queue: PartitionQueue, flight: InFlightBatches, error: RaftlogError) -> None:
        """Fail all batches of a deleted partition."""
        self._accumulator.forget(queue.topic)
        self._fail_all(queue, flight, error)

    def _fail_all(
        self, queue: PartitionQueue, flight: InFlightBatches, error: RaftlogError
    ) -> None:
        for batch in self._accumulator.drop(queue):
            self._fail(batch, flight, refused(batch, type(error)(*error.args)))

    def _fail(self, batch: PendingBatch, flight: InFlightBatches, error: RaftlogError) -> None:
        flight.lose(batch, error)
        self._resolve(batch, error)

    def _resolve(self, batch: PendingBatch, error: RaftlogError) -> None:
        batch.delivery.fail(error)
        self._accumulator.release(batch)

    # -- state

    def _partition(self, queue: PartitionQueue) -> PartitionView:
        """Return the partition's metadata. Raises ``RefusedError`` if it does not exist."""
        return self._cluster.view.partition(queue.topic, queue.partition)

    def _flight(self, queue: PartitionQueue) -> InFlightBatches:
        flight = self._flights.get(queue)
        if flight is None:
            flight = self._flights[queue] = self._new_flight()
        if queue.is_anew:
            queue.is_anew = False
            flight.begin_anew()
        return flight

    def _new_flight(self) -> InFlightBatches:
        if self._given is None:
            return InFlightBatches(self._settings.idempotent)
        return ResumableInFlightBatches(idempotent=True, identity=self._given)

    def on_change(self) -> None:
        if not self._closed:
            self._cancel_overdue()
            self.pump()

    def _on_view(self, view: ClusterView) -> None:
        """Apply a metadata update: new partitions, topics that were created again, new leaders."""
        for topic in list(self._accumulator.topics.values()):
            news = view.topics.get(topic.name)
            if news is not None:
                self._accumulator.learn(news)
        if self._settings.idempotent and self._producer is None:
            self._request_id()
        self.on_change()

    def _request_id(self) -> None:
        if not self._requests_id:
            self._requests_id = True
            self._links.run(self._fetch_id())

    async def _fetch_id(self) -> None:
        """Request a producer id until it succeeds. Waiting batches can expire in this time."""
        tries = 0
        try:
            while self._producer is None:
                try:
                    answer = await self._cluster.call(
                        apis.INIT_PRODUCER_ID,
                        InitProducerIdRequest(),
                        timeout_ms=_IDENTITY_TIMEOUT_MS,
                    )
                except RaftlogError as error:
                    self._identity_error = error
                    waiting = self._accumulator.scan()
                    if not waiting:
                        return  # the next batch requests it again
                    if not may_retry(error, repeatable=True):
                        for queue, _, _ in waiting:
                            self._drop(queue, self._flight(queue), error)
                        return
                    await asyncio.sleep(self._cluster.backoff_seconds(tries))
                    tries += 1
                else:
                    assert isinstance(answer, InitProducerIdResponse)
                    self._producer = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
                    self._identity_error = None
        finally:
            self._requests_id = False
        self.pump()

    # -- the end

    async def close(self) -> None:
        """Stop. Batches without an acknowledgement fail: flush first. Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._links.close()
        waiting: Sequence[PendingBatch] = [
            batch
            for queue, _, _ in self._accumulator.scan()
            for batch in self._accumulator.drop(queue)
        ]
        flying = [
            batch
            for flight in self._flights.values()
            for batch in (*flight.in_flight, *flight.setbacks)
        ]
        for batch in (*flying, *waiting):
            where = f"{batch.queue.topic}:{batch.queue.partition}: the producer was closed"
            if batch in flying or batch.outcome_unknown:
                self._resolve(batch, ConnectionLostError(f"{where} before the response arrived"))
            else:
                self._resolve(batch, ClosedError(f"{where} before the record was sent"))
        self._flights.clear()
