"""What one partition has in flight, in which sequence, and what to do when some of it fails. Pure.

Rule: everything that decides whether a batch is sent again, and under which sequence number, is in
this file.

    launch(batch) → succeeded(batch)                        the usual life
                  → setback(batch, error) → settle()        once nothing is in flight any more

After a setback the partition is *held*: nothing new is launched until all that is in flight is
answered. Then ``settle`` puts what is unresolved in order and decides for each batch: again, or
lost. Sent again, a batch repeats its bytes, sequence included, so that a broker that has it already
says so instead of storing it twice (P4).

A sequenced batch that is lost may leave a hole, which the broker will not let later ones jump. The
partition's identity is then *spent*: it gives out no more sequences. The batches that follow are
still tried under it, because an attempt that got no answer may have stored them. Once one is
refused as out of sequence, none of them is in the log; or all are answered: then the producer's
epoch is raised by one for this partition, which starts its sequence at 0 and fences whatever of the
old epoch is still on its way (KIP-360).

A batch of which an attempt got no answer never gets another place: that attempt may be in the log
of a leader that is stopped or cut off, which no answer of another leader tells, and a later
election may bring it back. If it cannot be settled under its old place, its outcome is unknown, and
that is what its sender is told.

A named producer (``ResumableInFlightBatches``) has a fixed identity, and each of its batches a
fixed sequence number. An error that would end a sequence *breaks* the partition instead: from
the lost batch on, no batch is sent. One batch is in flight at a time: a partition then accepts a
batch only from a producer that knows all records before it, also when two run under one name
(docs/adr/0017).

Between leaders: what is in flight went to one leader in one leader epoch. Nothing goes to another
one until all of it is answered, or taken back because a newer leader is known: so batches reach
each leader in their order.
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

EPOCH_MAX: Final = 32_767  # an i16 in the batch's header
CORRUPT_TRIES_MAX: Final = 3  # for a batch whose bytes did not arrive as they are here
SEQUENCE_MASK: Final = 0x7FFF_FFFF  # sequences count records modulo 2^31, as in Kafka


# Errors of an attempt that say themselves that nothing was stored.
_TOLD_AS_IT_IS: Final = (
    RetriableError,
    CorruptBatchError,
    UnknownTopicError,
    UnknownPartitionError,
)


class Settlement(NamedTuple):
    """``again``, in order: put them back. ``lost``: fail their deliveries with the error."""

    again: list[PendingBatch]
    lost: list[tuple[PendingBatch, RaftlogError]]


@dataclass(slots=True)
class InFlightBatches:
    """One partition. Only the sender touches it, on its loop."""

    idempotent: bool
    in_flight: list[PendingBatch] = field(default_factory=list)  # by ``order``
    setbacks: list[PendingBatch] = field(default_factory=list)  # failed, and not yet settled
    failures: int = 0  # settlements in a row without a success: the back-off's attempt number
    not_before: float = 0.0  # backing off until then
    leader: int | None = None  # where the last launch went to
    leader_epoch: LeaderEpoch = NO_EPOCH  # and in which epoch of it
    identity: ProducerIdAndEpoch | None = None
    spent: bool = False  # the identity may have a hole: no new sequence under it
    _used_up: int = NO_PRODUCER_ID  # a producer id of which this partition has had every epoch
    _next_order: int = 0
    _next_sequence: int = 0

    @property
    def held(self) -> bool:
        return bool(self.setbacks)

    def is_busy(self, batch: PendingBatch) -> bool:
        """Whether answers have to come before ``batch``, the next in line, is launched."""
        return self.held or self.full_for(batch)

    def waits_until(self, leader_epoch: LeaderEpoch) -> float:
        """When to go on. A new leader is no reason to wait out what the old one's failure gave."""
        is_new = self.leader is not None and leader_epoch > self.leader_epoch
        return 0.0 if is_new else self.not_before

    def full_for(self, batch: PendingBatch) -> bool:
        """Whether ``batch`` has to wait, lest the broker forget an older one that is unresolved.

        It remembers so many batches of a producer; a repeat of one before those looks like a gap.
        """
        if not self.in_flight:
            return False
        order = self._next_order if batch.order < 0 else batch.order
        return order - self.in_flight[0].order >= limits.PRODUCER_BATCHES_REMEMBERED

    def must_stay(self, leader: int, leader_epoch: LeaderEpoch) -> bool:
        """Whether something is still in flight to another leader, or in another epoch."""
        return bool(self.in_flight) and (self.leader, self.leader_epoch) != (leader, leader_epoch)

    def sent_to(self, leader: int, leader_epoch: LeaderEpoch) -> None:
        """What is launched next goes to ``leader``."""
        self.leader, self.leader_epoch = leader, leader_epoch

    def may_launch(self, batch: PendingBatch, *, producer: ProducerIdAndEpoch | None) -> bool:
        """Whether ``batch``, the next in line, has a place in the sequence or can have one now.

        ``producer``: this producer's identity, None until the broker has given one.
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
        """Whether a new producer id is needed before anything can be launched here."""
        if not self.idempotent or self.identity is not None:
            return False
        return producer is None or producer.producer_id == self._used_up

    def launch(self, batch: PendingBatch, body: BatchBody) -> None:
        """The batch goes out now. The first time it gets its place."""
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
        """Whether it may be in a log under a place that is given up: it cannot have another."""
        return batch.outcome_unknown and batch.identity is not None and not self._is_sealed(batch)

    def why_broken(self, batch: PendingBatch) -> RaftlogError | None:  # noqa: ARG002
        """Why ``batch`` must not be sent any more: never, where a sequence can begin anew."""
        return None

    def begin_anew(self) -> None:
        """The log behind the partition is another one: it knows no sequence of ours."""
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
        assert not batch.outcome_unknown, "it may be in a log under its former place"

    def _take_sequence(self, batch: PendingBatch, body: BatchBody) -> int:  # noqa: ARG002
        """The number of the batch's first record, as it goes out for the first time."""
        sequence = self._next_sequence
        self._next_sequence = (sequence + body.record_count) & SEQUENCE_MASK
        return sequence

    def _raise_epoch(self) -> None:
        """Begin a new sequence. What was sealed before and is not resolved is sealed anew."""
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
        """An attempt failed. What becomes of the batch is decided by ``settle``."""
        self.in_flight.remove(batch)
        batch.error = error
        if isinstance(error, OutcomeUnknownError):
            batch.outcome_unknown = True
        self.setbacks.append(batch)

    def settle(self, now: float) -> Settlement:
        """Decide about all setbacks. Nothing is in flight."""
        assert not self.in_flight, "their answers decide, too"
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
        return Settlement(again, lost)

    def _verdict(self, batch: PendingBatch, *, first: bool, now: float) -> RaftlogError | None:
        """None to send it again, else the error to fail it with. ``first``: none goes before it."""
        error = batch.error
        assert error is not None
        if self.is_stranded(batch):
            return stranded(batch)
        if isinstance(error, OutOfOrderSequenceError):
            if first and self._is_sealed(batch):
                if batch.outcome_unknown:
                    return stranded(batch)
                if not self.spent:
                    return error  # nothing of ours is missing: the broker has lost what it stored
                # Had an attempt stored it, this leader would know it: it remembers as many batches
                # of a producer as may be in flight.
                self._raise_epoch()
        elif isinstance(error, CorruptBatchError) and self.failures < CORRUPT_TRIES_MAX:
            pass  # the bytes here are good: they were damaged on their way
        elif not may_pass(error, repeatable=self.idempotent):
            return refused(batch, error)
        return expired(batch) if batch.expires_at <= now else None

    def lose(self, batch: PendingBatch, error: RaftlogError) -> None:  # noqa: ARG002
        """The batch is not sent again: if it has a place in the sequence, that may be a hole."""
        if self._is_sealed(batch):
            self.spent = True


@dataclass(slots=True)
class ResumableInFlightBatches(InFlightBatches):
    """One partition of a producer with a name. ``identity`` is given, and stays."""

    _reason: RaftlogError | None = None  # why the partition is broken, once it is
    _broken_at: int = 0  # the ``order`` from which on it is

    def why_broken(self, batch: PendingBatch) -> RaftlogError | None:
        """Why ``batch`` must not be sent (again): one before it was lost for good."""
        if self._reason is None or self._order_of(batch) < self._broken_at:
            return None
        queue = batch.queue
        return type(self._reason)(
            f"{queue.topic}:{queue.partition}: this producer's sequence ended before this batch, "
            f"because {self._reason}"
        )

    def full_for(self, batch: PendingBatch) -> bool:  # noqa: ARG002
        """Whether a batch is in flight. The next one waits until it is known to be stored.

        With two in flight the partition could accept the second one behind another run's batch of
        the size of the first: a record that is in both would be stored twice.
        """
        return bool(self.in_flight)

    def begin_anew(self) -> None:
        """The log behind the partition is another one: what was counted is not in it."""
        reason = UnknownTopicError(
            "the topic was deleted and created again: the records of this producer are "
            "deleted. Start again with a new producer and stored()"
        )
        self._break(0, reason)

    def lose(self, batch: PendingBatch, error: RaftlogError) -> None:
        """The batch is not sent again, so nothing after it may be."""
        self._break(self._order_of(batch), error)

    def _break(self, order: int, reason: RaftlogError) -> None:
        if self._reason is None or order < self._broken_at:
            self._reason, self._broken_at = reason, order

    def _order_of(self, batch: PendingBatch) -> int:
        return self._next_order if batch.order < 0 else batch.order

    def _take_sequence(self, batch: PendingBatch, body: BatchBody) -> int:  # noqa: ARG002
        assert batch.base_sequence is not None, "whoever has a name counts records himself"
        return batch.base_sequence

    def _verdict(self, batch: PendingBatch, *, first: bool, now: float) -> RaftlogError | None:
        broken = self.why_broken(batch)
        if broken is not None:
            return refused(batch, broken)
        if first and isinstance(batch.error, OutOfOrderSequenceError):
            return refused(batch, overtaken(batch))
        return InFlightBatches._verdict(self, batch, first=first, now=now)


def stranded(batch: PendingBatch) -> RaftlogError:
    """The error of a batch that may be stored, while the sequence it was sent in has ended."""
    queue = batch.queue
    return OutcomeUnknownError(
        f"{queue.topic}:{queue.partition}: an attempt had no response and may have been stored. "
        "An earlier batch failed, so sending this one again could store it twice. Last "
        f"attempt: {batch.error}"
    )


def overtaken(batch: PendingBatch) -> RaftlogError:
    """The error of the first batch in line whose number is not the one that comes next."""
    queue = batch.queue
    return OutOfOrderSequenceError(
        f"{queue.topic}:{queue.partition}: what is stored under this producer's name and epoch is "
        "not what it was when this run began: another run of the same name has appended "
        "meanwhile, or the state has expired. Nothing is stored twice. Start again with a new "
        f"producer, which begins where stored() says ({batch.error})"
    )


def refused(batch: PendingBatch, error: RaftlogError) -> RaftlogError:
    """The error of a batch that is given up because of ``error``.

    That says what became of the last attempt. If one before it got no answer, it says too much.
    """
    if batch.outcome_unknown and not isinstance(error, OutcomeUnknownError):
        return OutcomeUnknownError(
            f"rejected ({error}); but an earlier attempt had no response and may have been stored"
        )
    return error


def expired(batch: PendingBatch) -> RaftlogError:
    """The error of a batch whose delivery timeout has passed."""
    queue = batch.queue
    where = f"{queue.topic}:{queue.partition}: not acknowledged within delivery_timeout_ms"
    because = f"; the last attempt: {batch.error}" if batch.error is not None else ""
    if batch.outcome_unknown:
        return DeliveryTimedOutError(f"{where}: it may or may not be stored{because}")
    if isinstance(batch.error, _TOLD_AS_IT_IS):
        return type(batch.error)(f"{where}, and not stored{because}")
    return BrokerUnavailableError(f"{where}, and not stored: it could not be sent{because}")
