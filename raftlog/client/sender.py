"""Sender of a producer: takes batches from the accumulator until delivery, on one event loop.

``pump`` is the main step. It is called when there may be work: a batch is due, a response arrived,
a connection opened, or a back-off ended. It sends everything that can be sent, and sets one timer
for the next call. The accumulator decides when a batch is due, ``InFlightBatches`` handles failed
batches, and ``BrokerConnections`` the connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple, TypeAlias

from raftlog import limits
from raftlog.client.accumulator import (
    NEVER,
    Accumulator,
    PartitionQueue,
    PendingBatch,
    ProducerIdAndEpoch,
)
from raftlog.client.cluster import NO_EPOCH, Cluster, ClusterView, PartitionView
from raftlog.client.connection import Answer, Connection
from raftlog.client.delivery import NO_OFFSET, Journey
from raftlog.client.requests import BrokerConnection, BrokerConnections
from raftlog.client.retry import is_behind, is_old_news, may_pass, may_retry
from raftlog.client.settings import ProducerSettings
from raftlog.clock import Clock
from raftlog.errors import (
    BrokerUnavailableError,
    ClosedError,
    CommitUnknownError,
    ConnectionLostError,
    CorruptBatchError,
    DeliveryTimedOutError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    RaftlogError,
    RefusedError,
    RetriableError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTimes,
)
from raftlog.record import BatchBody, seal
from raftlog.types import (
    NO_BASE_OFFSET,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    Buffer,
    LeaderEpoch,
    TopicPartition,
)

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
        on_lost: Callable[[RaftlogError], None] | None = None,
    ) -> None:
        """``identity``, ``name``: of a named producer, which keeps them; None requests an identity
        from a broker. ``on_lost``: called with the error of every batch that is not delivered.

        A transactional producer (``settings.transactional_id``) has no identity until
        ``begin_transaction``.
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
        self._on_lost = on_lost
        self._producer = identity
        self._requests_id = False
        self._identity_error: RaftlogError | None = None  # last error of the request for one
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._closed = False
        self.is_traced = False  # brokers report the times of batches
        cluster.on_view.append(self._on_view)
        cluster.on_denied.append(self.on_change)

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
            return self._without_partition(queue, flight, head, error)
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
                self._producer = None  # also after its last epoch
                self._request_id()
            return head.expires_at
        load = loads.get(leader) or self._begin_load(leader, now)
        if load is None:
            return self._without_link(queue, flight, leader, now, head.expires_at)
        if load.has_room_for(head):
            flight.sent_to(leader, known.leader_epoch)
            if not self._load(load, queue, flight, now):
                return now  # the next batch of the partition waits for no event
            loads[leader] = load
        return NEVER  # the next round serves the remaining batches

    def _without_partition(
        self,
        queue: PartitionQueue,
        flight: InFlightBatches,
        head: PendingBatch,
        error: RefusedError,
    ) -> float:
        """Return the time of the next check of a partition that does not exist by stored metadata.

        The topic may have been created again before the record was sent: its batches are dropped
        only if metadata that were requested later lack it, too.
        """
        began_at = head.expires_at - self._settings.delivery_timeout_ms / 1_000
        is_missing = isinstance(error, UnknownTopicError)
        if is_missing and not self._cluster.is_denied(queue.topic, since=began_at):
            self._cluster.want(queue.topic)
            return min(self._links.refresh() or NEVER, head.expires_at)
        self._drop(queue, flight, error)
        return NEVER

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
            acks=acks,
            partitions=parts,
            producer=self._name,
            traced=self.is_traced,
            transactional_id=self._settings.transactional_id,
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
        if self._on_lost is not None:
            self._on_lost(error)
            batch.delivery.retrieved = True  # the end of the transaction reports it
        batch.delivery.fail(error)
        self._accumulator.release(batch)

    # -- transactions

    def begin_transaction(self, identity: ProducerIdAndEpoch) -> None:
        """Send the next batches with ``identity``, in sequences from 0 on. All earlier batches must
        have an outcome.
        """
        assert not any(flight.in_flight or flight.setbacks for flight in self._flights.values())
        self._flights.clear()
        self._given = self._producer = identity

    @property
    def has_sent(self) -> bool:
        """Whether a batch was sent, or may have been, since ``begin_transaction``."""
        return any(flight.leader is not None for flight in self._flights.values())

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions of these batches."""
        return [
            TopicPartition(queue.topic, queue.partition)
            for queue, flight in self._flights.items()
            if flight.leader is not None
        ]

    def abandon(self, error: RaftlogError) -> None:
        """Fail all batches without an outcome, as their transaction is aborted. A broker may still
        store those that were sent; the abort makes them invisible, or they arrive too late.
        """
        for request in self._links.in_flight():
            request.load = []
        for queue, _, _ in self._accumulator.scan():
            for batch in self._accumulator.drop(queue):
                self._resolve(batch, error)
        for flight in self._flights.values():
            flying = [*flight.in_flight, *flight.setbacks]
            flight.in_flight.clear()
            flight.setbacks.clear()
            for batch in flying:
                self._resolve(batch, error)

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
        if self._settings.transactional_id:
            assert self._given is not None, "begin_transaction() first"
            return TransactionalInFlightBatches(idempotent=True, identity=self._given)
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
        needs_id = self._settings.idempotent and not self._settings.transactional_id
        if needs_id and self._producer is None:
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


# -- in flight -------------------------------------------------------------------------------------
#
# In-flight batches of one partition: sequence numbers, and handling of failures. Pure.
#
# Rule: this module makes every decision whether a batch is sent again, and with which sequence
# number.
#
#     launch(batch) → succeeded(batch)                        normal case
#                   → setback(batch, error) → resolve()        when no batch is in flight
#
# After a setback the partition is *held*: no new batch is launched until every batch in flight has
# a response. Then ``resolve`` sorts the unresolved batches and decides for each one: retry or fail.
# A retry repeats the same bytes, including the sequence number. A broker that has already stored
# the batch recognizes it and does not store it twice (P4).
#
# A failed batch with a sequence number may leave a gap, and the broker rejects later batches after
# a gap. The identity of the partition is then *spent*: it assigns no further sequence numbers. The
# following batches are still retried under it, because an attempt without a response may have
# stored them. The producer increases its epoch for this partition by one, and restarts its sequence
# at 0, in two cases: a batch is rejected as out of sequence, which proves that no unresolved batch
# is stored; or every batch has a response. The new epoch fences batches of the old epoch that are
# still in flight (KIP-360).
#
# A batch with an attempt without a response never gets another sequence number. That attempt may be
# stored in the log of a leader that is stopped or isolated. The response of another leader does not
# show that, and a later election may make the stored batch visible. If such a batch cannot be
# settled under its old sequence number, its outcome is unknown, and it fails with
# ``OutcomeUnknownError``.
#
# A named producer (``ResumableInFlightBatches``) has a fixed identity, and each of its batches a
# fixed sequence number. An error that would end a sequence *breaks* the partition instead: from the
# lost batch on, no batch is sent. One batch is in flight at a time: a partition then accepts a
# batch only from a producer that knows all records before it, also when two run under one name
# (docs/adr/0017).
#
# A transactional producer (``TransactionalInFlightBatches``) has one identity for each transaction,
# and new objects of this class. A lost batch breaks the partition too: the transaction can only be
# aborted.
#
# Order across leaders: all batches in flight were sent to one leader in one leader epoch. No batch
# is sent to another leader until each has a response, or is cancelled because a newer leader is
# known. So batches reach each leader in their order.


EPOCH_MAX: Final = 32_767  # an i16 in the batch header
CORRUPT_TRIES_MAX: Final = 3  # attempts for a batch that is corrupted in transit
SEQUENCE_MASK: Final = 0x7FFF_FFFF  # sequences count records modulo 2^31, as in Kafka


# Errors of an attempt whose class states that nothing was stored.
_TOLD_AS_IT_IS: Final = (
    RetriableError,
    CorruptBatchError,
    UnknownTopicError,
    UnknownPartitionError,
)


class Resolution(NamedTuple):
    """Decisions. ``again``: batches to retry, in order. ``lost``: batches to fail, with errors."""

    again: list[PendingBatch]
    lost: list[tuple[PendingBatch, RaftlogError]]


@dataclass(slots=True)
class InFlightBatches:
    """In-flight batches of one partition. Used by the sender only, on its loop."""

    is_transactional: ClassVar[bool] = False

    idempotent: bool
    in_flight: list[PendingBatch] = field(default_factory=list)  # by ``order``
    setbacks: list[PendingBatch] = field(default_factory=list)  # failed, not settled
    failures: int = 0  # consecutive resolutions without a success; back-off attempt number
    not_before: float = 0.0  # monotonic seconds; end of the retry back-off
    leader: int | None = None  # of the last launch
    leader_epoch: LeaderEpoch = NO_EPOCH  # of the last launch
    identity: ProducerIdAndEpoch | None = None
    spent: bool = False  # the sequence may have a gap: no new sequence numbers
    _used_up: int = NO_PRODUCER_ID  # producer id whose epochs are used up here
    _next_order: int = 0
    _next_sequence: int = 0

    @property
    def held(self) -> bool:
        return bool(self.setbacks)

    def is_busy(self, batch: PendingBatch) -> bool:
        """Return True if responses must arrive before ``batch``, the next one, is launched."""
        return self.held or self.full_for(batch)

    def waits_until(self, leader_epoch: LeaderEpoch) -> float:
        """Return the end of the back-off. A new leader ends the back-off of the old one."""
        is_new = self.leader is not None and leader_epoch > self.leader_epoch
        return 0.0 if is_new else self.not_before

    def full_for(self, batch: PendingBatch) -> bool:
        """Return True if ``batch`` must wait so that the broker remembers unresolved older ones.

        A broker remembers a fixed number of batches per producer; a retry of an older batch looks
        like a gap.
        """
        if not self.in_flight:
            return False
        order = self._next_order if batch.order < 0 else batch.order
        return order - self.in_flight[0].order >= limits.PRODUCER_BATCHES_REMEMBERED

    def must_stay(self, leader: int, leader_epoch: LeaderEpoch) -> bool:
        """Return True if a batch is in flight to another leader, or in another leader epoch."""
        return bool(self.in_flight) and (self.leader, self.leader_epoch) != (leader, leader_epoch)

    def sent_to(self, leader: int, leader_epoch: LeaderEpoch) -> None:
        """Set the leader of the next launches."""
        self.leader, self.leader_epoch = leader, leader_epoch

    def may_launch(self, batch: PendingBatch, *, producer: ProducerIdAndEpoch | None) -> bool:
        """Return True if ``batch``, the next one, has a sequence number or can get one now.

        ``producer``: identity of this producer, None until a broker has assigned one.
        """
        if not self.idempotent or self._is_sealed(batch):
            return True
        if self.spent:
            if self.in_flight:
                return False
            self._raise_epoch()
        if self.identity is None and not self.wants_other_than(producer):
            self.identity, self._next_sequence = producer, 0
        return self.identity is not None

    def wants_other_than(self, producer: ProducerIdAndEpoch | None) -> bool:
        """Return True if a new producer id is needed before any launch."""
        if not self.idempotent or self.identity is not None:
            return False
        return producer is None or producer.producer_id == self._used_up

    def launch(self, batch: PendingBatch, body: BatchBody) -> None:
        """Register an attempt. The first attempt assigns the sequence number."""
        if batch.order < 0:
            batch.order = self._next_order
            self._next_order += 1
        if not self.idempotent:
            batch.header = batch.header or seal(body)
        elif not self._is_sealed(batch):
            self._seal(batch, body)
        batch.leader_epoch = self.leader_epoch
        self.in_flight.append(batch)

    def is_stranded(self, batch: PendingBatch) -> bool:
        """Return True if the batch may be stored under an abandoned sequence number.

        Such a batch cannot get another sequence number.
        """
        return batch.outcome_unknown and batch.identity is not None and not self._is_sealed(batch)

    def why_broken(self, batch: PendingBatch) -> RaftlogError | None:  # noqa: ARG002
        """Return why ``batch`` must not be sent. None here, because a sequence can restart."""
        return None

    def begin_anew(self) -> None:
        """Note that the topic was created again: the new log has no sequence of this producer."""
        if self.identity is not None:
            self.spent = True

    def _is_sealed(self, batch: PendingBatch) -> bool:
        return batch.identity is not None and batch.identity is self.identity

    def _seal(self, batch: PendingBatch, body: BatchBody) -> None:
        assert self.identity is not None and not self.spent, "may_launch() first"
        batch.identity = self.identity
        batch.header = seal(
            body,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            base_sequence=self._take_sequence(batch, body),
            is_transactional=self.is_transactional,
        )
        assert not batch.outcome_unknown, "may be stored under its old sequence number"

    def _take_sequence(self, batch: PendingBatch, body: BatchBody) -> int:  # noqa: ARG002
        """Return the sequence number of the first record, at the first attempt."""
        sequence = self._next_sequence
        self._next_sequence = (sequence + body.record_count) & SEQUENCE_MASK
        return sequence

    def _raise_epoch(self) -> None:
        """Start a new sequence. Unresolved batches that were sealed before are sealed again."""
        assert self.identity is not None
        if self.identity.producer_epoch == EPOCH_MAX:
            self._used_up = self.identity.producer_id
            self.identity = None
        else:
            self.identity = self.identity._replace(producer_epoch=self.identity.producer_epoch + 1)
        self.spent = False
        self._next_sequence = 0

    def succeeded(self, batch: PendingBatch) -> None:
        self.in_flight.remove(batch)
        self.failures = 0

    def setback(self, batch: PendingBatch, error: RaftlogError) -> None:
        """Register a failed attempt. ``resolve`` decides about the batch."""
        self.in_flight.remove(batch)
        batch.error = error
        if isinstance(error, OutcomeUnknownError):
            batch.outcome_unknown = True
        self.setbacks.append(batch)

    def resolve(self, now: float) -> Resolution:
        """Decide about all setbacks. No batch may be in flight."""
        assert not self.in_flight, "their responses affect the decision"
        batches = sorted(self.setbacks, key=lambda batch: batch.order)
        self.setbacks = []
        again: list[PendingBatch] = []
        lost: list[tuple[PendingBatch, RaftlogError]] = []
        for batch in batches:
            error = self._verdict(batch, first=not again, now=now)
            if error is None:
                again.append(batch)
            else:
                lost.append((batch, error))
                self.lose(batch, error)
        return Resolution(again, lost)

    def _verdict(self, batch: PendingBatch, *, first: bool, now: float) -> RaftlogError | None:
        """Return None to retry, else the error of the batch. ``first``: no batch precedes it."""
        error = batch.error
        assert error is not None
        if self.is_stranded(batch):
            return stranded(batch)
        if isinstance(error, OutOfOrderSequenceError):
            if first and self._is_sealed(batch):
                if batch.outcome_unknown:
                    return stranded(batch)
                if not self.spent:
                    return error  # no gap on this side: the broker lost records
                # No attempt has stored it. Otherwise this leader would recognize it, because it
                # remembers as many batches of a producer as can be in flight.
                self._raise_epoch()
        elif isinstance(error, CorruptBatchError) and self.failures < CORRUPT_TRIES_MAX:
            pass  # the local bytes are valid: they were corrupted in transit
        elif not may_pass(error, repeatable=self.idempotent):
            return refused(batch, error)
        return expired(batch) if batch.expires_at <= now else None

    def lose(self, batch: PendingBatch, error: RaftlogError) -> None:  # noqa: ARG002
        """Note that the batch is not sent again. Its sequence number may become a gap."""
        if self._is_sealed(batch):
            self.spent = True


@dataclass(slots=True)
class ResumableInFlightBatches(InFlightBatches):
    """In-flight batches of one partition of a named producer. ``identity`` is fixed."""

    _reason: RaftlogError | None = None  # why the partition is broken
    _broken_at: int = 0  # first affected ``order``

    def why_broken(self, batch: PendingBatch) -> RaftlogError | None:
        """Return why ``batch`` must not be sent: an earlier batch failed permanently."""
        if self._reason is None or self._order_of(batch) < self._broken_at:
            return None
        queue = batch.queue
        return type(self._reason)(
            f"{queue.topic}:{queue.partition}: this producer's sequence ended before this batch, "
            f"because {self._reason}"
        )

    def full_for(self, batch: PendingBatch) -> bool:  # noqa: ARG002
        """Return True if a batch is in flight. The next one waits until it is stored.

        With two batches in flight, the partition could accept the second one after another run's
        batch of the same size as the first. A record in both batches would be stored twice.
        """
        # guard: a named producer has one batch in flight
        return bool(self.in_flight)

    def begin_anew(self) -> None:
        """Break the partition: the topic was created again without the counted records."""
        reason = UnknownTopicError(
            "the topic was deleted and created again: the records of this producer are "
            "deleted. Start again with a new producer and stored()"
        )
        # guard: a recreated topic breaks its partitions
        self._break(0, reason)

    def lose(self, batch: PendingBatch, error: RaftlogError) -> None:
        """Break the partition from this batch on: no later batch may be sent."""
        # guard: a lost batch breaks its partition
        self._break(self._order_of(batch), error)

    def _break(self, order: int, reason: RaftlogError) -> None:
        if self._reason is None or order < self._broken_at:
            self._reason, self._broken_at = reason, order

    def _order_of(self, batch: PendingBatch) -> int:
        return self._next_order if batch.order < 0 else batch.order

    def _take_sequence(self, batch: PendingBatch, body: BatchBody) -> int:  # noqa: ARG002
        assert batch.base_sequence is not None, "a named producer sets base_sequence"
        return batch.base_sequence

    def _verdict(self, batch: PendingBatch, *, first: bool, now: float) -> RaftlogError | None:
        broken = self.why_broken(batch)
        if broken is not None:
            return refused(batch, broken)
        if first and isinstance(batch.error, OutOfOrderSequenceError):
            return refused(batch, overtaken(batch))
        return InFlightBatches._verdict(self, batch, first=first, now=now)


@dataclass(slots=True)
class TransactionalInFlightBatches(ResumableInFlightBatches):
    """In-flight batches of one partition in one transaction. ``identity`` is fixed."""

    is_transactional: ClassVar[bool] = True

    def full_for(self, batch: PendingBatch) -> bool:
        return InFlightBatches.full_for(self, batch)

    def begin_anew(self) -> None:
        """Break the partition: records of this transaction went with the old topic."""
        if self._next_order:
            reason = UnknownTopicError(
                "the topic was deleted and created again: its records of this transaction are "
                "deleted"
            )
            self._break(0, reason)

    def _take_sequence(self, batch: PendingBatch, body: BatchBody) -> int:
        return InFlightBatches._take_sequence(self, batch, body)

    def _verdict(self, batch: PendingBatch, *, first: bool, now: float) -> RaftlogError | None:
        broken = self.why_broken(batch)
        if broken is not None:
            return refused(batch, broken)
        if first and isinstance(batch.error, OutOfOrderSequenceError):
            return refused(batch, batch.error)
        return InFlightBatches._verdict(self, batch, first=first, now=now)


def stranded(batch: PendingBatch) -> RaftlogError:
    """Return the error of a batch that may be stored under a sequence that has ended."""
    queue = batch.queue
    return OutcomeUnknownError(
        f"{queue.topic}:{queue.partition}: an attempt had no response and may have been stored. "
        "An earlier batch failed, so sending this one again could store it twice. Last "
        f"attempt: {batch.error}"
    )


def overtaken(batch: PendingBatch) -> RaftlogError:
    """Return the error of the first batch whose number is not the next one of the partition."""
    queue = batch.queue
    return OutOfOrderSequenceError(
        f"{queue.topic}:{queue.partition}: the stored records of this producer's name and epoch "
        "have changed since this run started: another run of the same name has appended, or "
        "the state has expired. No record is stored twice. Start again with a new producer, "
        f"from the count that stored() returns ({batch.error})"
    )


def refused(batch: PendingBatch, error: RaftlogError) -> RaftlogError:
    """Return the error of a batch that fails because of ``error``.

    ``error`` describes the last attempt only. If an earlier attempt had no response, the outcome is
    unknown.
    """
    if batch.outcome_unknown and not isinstance(error, OutcomeUnknownError):
        return OutcomeUnknownError(
            f"rejected ({error}), but an earlier attempt had no response and may have been stored"
        )
    return error


def expired(batch: PendingBatch) -> RaftlogError:
    """Return the error of a batch whose delivery timeout has passed."""
    queue = batch.queue
    where = f"{queue.topic}:{queue.partition}: not acknowledged within delivery_timeout_ms"
    because = f". Last attempt: {batch.error}" if batch.error is not None else ""
    if batch.outcome_unknown:
        return DeliveryTimedOutError(f"{where}: it may or may not be stored{because}")
    if isinstance(batch.error, _TOLD_AS_IT_IS):
        return type(batch.error)(f"{where}, and not stored{because}")
    return BrokerUnavailableError(f"{where}, and not stored: it could not be sent{because}")
