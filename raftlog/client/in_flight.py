"""In-flight batches of one partition: sequence numbers, and handling of failures. Pure.

Rule: this module makes every decision whether a batch is sent again, and with which sequence
number.

    launch(batch) → succeeded(batch)                        normal case
                  → setback(batch, error) → resolve()        when no batch is in flight

After a setback the partition is *held*: no new batch is launched until every batch in flight has a
response. Then ``resolve`` sorts the unresolved batches and decides for each one: retry or fail. A
retry repeats the same bytes, including the sequence number. A broker that has already stored the
batch recognizes it and does not store it twice (P4).

A failed batch with a sequence number may leave a gap, and the broker rejects later batches after a
gap. The identity of the partition is then *spent*: it assigns no further sequence numbers.
The following batches are still retried under it, because an attempt without a response may have
stored them. The producer increases its epoch for this partition by one, and restarts its sequence
at 0, in two cases: a batch is rejected as out of sequence, which proves that no unresolved batch is
stored; or every batch has a response. The new epoch fences batches of the old epoch that are still
in flight (KIP-360).

A batch with an attempt without a response never gets another sequence number. That attempt may be
stored in the log of a leader that is stopped or isolated. The response of another leader does not
show that, and a later election may make the stored batch visible. If such a batch cannot be settled
under its old sequence number, its outcome is unknown, and it fails with ``OutcomeUnknownError``.

A named producer (``ResumableInFlightBatches``) has a fixed identity, and each of its batches a
fixed sequence number. An error that would end a sequence *breaks* the partition instead: from the
lost batch on, no batch is sent. One batch is in flight at a time: a partition then accepts a batch
only from a producer that knows all records before it, also when two run under one name
(docs/adr/0017).

Order across leaders: all batches in flight were sent to one leader in one leader epoch. No batch is
sent to another leader until each has a response, or is cancelled because a newer leader is known.
So batches reach each leader in their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from raftlog import limits
from raftlog.client.batch import PendingBatch, ProducerIdAndEpoch
from raftlog.client.metadata import NO_EPOCH
from raftlog.client.retry import may_pass
from raftlog.errors import (
    BrokerUnavailableError,
    CorruptBatchError,
    DeliveryTimedOutError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    RaftlogError,
    RetriableError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.record import BatchBody, seal
from raftlog.types import NO_PRODUCER_ID, LeaderEpoch

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
        return bool(self.in_flight)

    def begin_anew(self) -> None:
        """Break the partition: the topic was created again without the counted records."""
        reason = UnknownTopicError(
            "the topic was deleted and created again: the records of this producer are "
            "deleted. Start again with a new producer and stored()"
        )
        self._break(0, reason)

    def lose(self, batch: PendingBatch, error: RaftlogError) -> None:
        """Break the partition from this batch on: no later batch may be sent."""
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
