"""Producers of encoded batches that are stored once, however often sent: by name, or in steps.

A named (resumable) producer: several runs, in turn or concurrent, store each record once.

A run queries how many records of its name each partition stores, and where (``stored``,
``extent``). It reads those records back (``RangeReader.read(producers=...)``), skips its own
records that are among them, and appends the rest. The order of its records can differ from earlier
runs. Producers of one family can see what each other have written (``relatives``). This module maps
a name and an epoch to the wire format. ``ResumableInFlightBatches`` keeps each batch at its
sequence number, one in flight at a time. The broker accepts each sequence number once
(``ProducerTable``).

Reasons and limits: docs/adr/0017.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Unpack

from raftlog import limits
from raftlog.client.accumulator import ProducerIdAndEpoch, TopicQueues
from raftlog.client.base import ClientEnvironment
from raftlog.client.defaults import CLIENT_ID_DEFAULT, TRANSACTION_TIMEOUT_MS_DEFAULT
from raftlog.client.delivery import Delivery, DeliveryFuture
from raftlog.client.producer import Producer, ProducerThread
from raftlog.client.producer_core import ProducerCore
from raftlog.client.requests import describe_producer
from raftlog.client.sender import EPOCH_MAX
from raftlog.client.settings import (
    BATCH_BYTES_MIN,
    Bootstrap,
    SecurityArguments,
    connection_settings,
    integer,
    producer_settings,
)
from raftlog.errors import (
    ClosedError,
    InvalidRequestError,
    OutcomeUnknownError,
    ProducerFencedError,
    RaftlogError,
    RecordTooLargeError,
    TransactionAbortedError,
    UnknownTopicError,
    counted,
)
from raftlog.protocol.records import NO_MEMBER_EPOCH, DescribedProducer
from raftlog.record import BatchBody
from raftlog.security.producer_ids import MEMBER_BITS, MEMBERS, member_id, named_id
from raftlog.types import NO_BASE_OFFSET, Offset, OffsetAndMetadata, TopicPartition

# Maximum records of one name and epoch in one partition. With one more, the next sequence would be
# 0 again, and the partition would accept records of a late run.
RECORDS_MAX: Final = (1 << 31) - 1

# Settings of ``Producer`` that are fixed here.
_FIXED: Final[dict[str, Any]] = {
    "acks": "all",
    "idempotent": True,
    "compression": "none",  # batches are already encoded
    "compression_level": None,
    "linger_ms": 0,
    "batch_bytes_max": BATCH_BYTES_MIN,
    "partitioner": None,
    "transactional_id": None,
    "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS_DEFAULT,
}


def producer_id_of(name: str, member: int | None = None) -> int:
    """Return the producer id of ``name`` (``named_id``), or of a member of this family.

    Raises ``InvalidRequestError`` for an empty name, and ``TypeError`` if it is not a str.
    """
    if not isinstance(name, str):
        raise TypeError(f"name={name!r} is not a str")
    if not 1 <= len(name) <= limits.PRODUCER_NAME_CHARS_MAX:
        raise InvalidRequestError(
            f"name={name[:100]!r} has {len(name)} characters. A resumable producer requires a name "
            f"of 1 to {limits.PRODUCER_NAME_CHARS_MAX}"
        )
    try:
        return named_id(name) if member is None else member_id(name, member)
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"name={name!r} cannot be written as UTF-8: {error}") from error


class ResumableProducer(ProducerThread):
    """Producer that appends batches under a name. A repeated run appends only missing records.

    A run has a name and an epoch. All runs with this name and epoch must have the same records for
    each partition. Their batches can differ. The order of the records can also differ if a run
    reads back the stored records (``extent``). A run whose order never changes only needs the
    count::

        with ResumableProducer(name="copy-2024-05-01") as producer:
            stored = producer.stored(partitions)
            for partition in partitions:
                for batch in batches_of(records_for(partition)[stored[partition] :]):
                    producer.append(partition, batch)
            producer.flush()

    Concurrent runs are safe: one or both of them fail, and a later run completes the work. One
    batch of a partition is in flight at a time. A run with a higher epoch starts its count at 0,
    and fences runs with lower epochs. A lost batch fails all later batches of its partition: start
    again with a new producer. Threads can share the producer, but one thread must append all
    records of a partition. A context manager, which flushes and closes.
    """

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        *,
        name: str,
        member: int | None = None,
        epoch: int = 0,
        buffer_memory: int = 32 * limits.MIB,
        max_block_ms: int = 60_000,
        request_timeout_ms: int = 30_000,
        delivery_timeout_ms: int = 120_000,
        client_id: str = CLIENT_ID_DEFAULT,
        bootstrap_timeout_ms: int = 3_000,
        metadata_max_age_ms: int = 30_000,
        host: ClientEnvironment | None = None,
        **security: Unpack[SecurityArguments],
    ) -> None:
        """Create the producer. It opens its first connection with the first call. acks is "all".

        ``name``: identifies the work; all runs of the same work, and no others, use it.
        ``member``: 0 to 1,048,575: this producer is one of a family that shares ``name``, and can
            see what the others have written (``relatives``). Default: no family.
        ``epoch``: 0 to 32,767. Work in steps can increase it with each step. Default: 0.

        All other arguments are those of ``Producer``. Raises ``InvalidRequestError`` or
        ``TypeError`` if an argument is wrong. The error names it.
        """
        arguments = {**locals(), **_FIXED}
        self.name = name
        self.epoch = integer("epoch", epoch, 0, EPOCH_MAX)
        self.member = None if member is None else integer("member", member, 0, MEMBERS - 1)
        self._producer_id = producer_id_of(name, self.member)
        host = host or ClientEnvironment()
        self._core = ProducerCore(
            connection_settings(arguments),
            producer_settings(arguments),
            host,
            identity=self.identity,
            name=name,
        )
        self._lock = allocate_lock()  # protects the assignment of sequence numbers
        self._next: dict[TopicPartition, int] = {}  # number of the next record to append
        self._extents: dict[TopicPartition, tuple[Offset, Offset]] = {}  # of stored()
        self._relatives: dict[TopicPartition, tuple[DescribedProducer, ...]] = {}  # of stored()
        self._begin(host)

    def __repr__(self) -> str:
        return f"<ResumableProducer {self.name!r} epoch {self.epoch}>"

    def __enter__(self) -> ResumableProducer:
        return self

    # -- topics

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions. Raises ``UnknownTopicError`` without the topic."""
        return self._queues(topic).count

    def topic_id(self, topic: str) -> str:
        """Return the topic id, which changes if the topic is deleted and created again.

        Raises ``UnknownTopicError`` if the topic does not exist.
        """
        return self._queues(topic).id

    def max_message_bytes(self, topic: str) -> int:
        """Return the maximum size of a batch in bytes. Raises ``UnknownTopicError``."""
        return self._queues(topic).max_message_bytes

    def _queues(self, topic: str) -> TopicQueues:
        return self._accumulator.topics.get(topic) or self._prepare(topic)

    # -- records

    def stored(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the number of committed records of this name and epoch in each partition.

        The first call for a partition also sets the number of its next record.

        Raises ``ProducerFencedError`` if a later epoch has written, ``UnknownTopicError`` or
        ``UnknownPartitionError`` if a partition does not exist, and ``ClosedError`` if the producer
        is closed. If no leader responds within request_timeout_ms, raises the last error.
        """
        wanted = [TopicPartition(*tp) for tp in dict.fromkeys(partitions)]
        all_found = self._describe(wanted, family_bits=0 if self.member is None else MEMBER_BITS)
        found = {tp: of_family[0] for tp, of_family in all_found.items()}
        counts = {tp: self._count(tp, found[tp]) for tp in wanted}
        self._relatives |= {
            tp: tuple(each for each in of_family[1:] if self._count(tp, each))
            for tp, of_family in all_found.items()
        }
        self._extents |= {
            tp: (found[tp].first_offset, found[tp].last_offset + 1) for tp in wanted if counts[tp]
        }
        with self._lock:
            for tp, count in counts.items():
                self._next.setdefault(tp, count)
        return counts

    def described(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, DescribedProducer]:
        """Return the committed state of this name in each partition, of any epoch.

        Raises the errors of ``stored``, except ``ProducerFencedError``.
        """
        found = self._describe(partitions, family_bits=0)
        return {tp: state for tp, (state,) in found.items()}

    def _describe(
        self, partitions: Sequence[TopicPartition], *, family_bits: int
    ) -> dict[TopicPartition, list[DescribedProducer]]:
        for topic, number in partitions:
            self._queues(topic).check_partition(number)
        if self._closed:
            raise ClosedError("the producer was closed")
        cluster, producer_id = self._core.cluster, self._producer_id
        return self._thread.call(
            lambda: describe_producer(cluster, partitions, producer_id, family_bits=family_bits)
        )

    def extent(self, tp: TopicPartition) -> tuple[Offset, Offset] | None:
        """Return the range of the records that ``stored`` counted: first offset, last offset + 1.

        None if it counted none. Records of other producers can be between them.
        """
        return self._extents.get(tp)

    def relatives(self, tp: TopicPartition) -> tuple[DescribedProducer, ...]:
        """Return the other members of the family that had records of this epoch in a partition.

        Of the last ``stored``, and committed. Empty without a family.
        """
        return self._relatives.get(tp, ())

    @property
    def identity(self) -> ProducerIdAndEpoch:
        """Producer id and epoch in the header of each batch of this run."""
        return ProducerIdAndEpoch(self._producer_id, self.epoch)

    def _count(self, tp: TopicPartition, written: DescribedProducer) -> int:
        # guard: a later epoch is detected before anything is appended
        if written.producer_epoch > self.epoch:
            raise ProducerFencedError(
                f"{tp.topic}:{tp.partition}: epoch {written.producer_epoch} of producer "
                f"{self.name!r} has written, which fences epoch {self.epoch} of this run. To "
                "continue, create the producer with a higher epoch"
            )
        return written.last_sequence + 1 if written.producer_epoch == self.epoch else 0

    def append(
        self, tp: TopicPartition, body: BatchBody, *, base_offset: Offset = NO_BASE_OFFSET
    ) -> DeliveryFuture:
        """Queue the next records of a partition. Returns the future of the first record.

        ``base_offset``: offset of the first record, which must be the end of the partition when the
        batch arrives. The batch can then have gaps in its offsets, which count as records, and
        exceed max.message.bytes. Default: any offset, no gaps.

        The number of the first record is the result of ``stored``, plus the records appended since.
        Blocks for up to max_block_ms while buffer_memory is full.

        Raises ``RecordTooLargeError``, ``ThrottledError`` or ``InvalidRequestError`` (``stored``
        was not called, or there are 2^31-1 records of this name and epoch). After these errors
        nothing is queued, and the next record keeps its number. Raises ``UnknownTopicError`` if the
        topic is deleted, and ``ClosedError`` if the producer is closed. The future reports all
        other errors.
        """
        tp = TopicPartition(*tp)
        if self._closed:
            raise ClosedError("the producer was closed")
        queues = self._queues(tp.topic)
        queues.check_partition(tp.partition)
        is_mirrored = base_offset != NO_BASE_OFFSET
        if body.size_bytes > queues.max_message_bytes and not is_mirrored:
            raise RecordTooLargeError(
                f"a batch of {counted(body.record_count, 'record')} for topic {tp.topic!r} has "
                f"{body.size_bytes} bytes and exceeds max.message.bytes="
                f"{queues.max_message_bytes}. Send smaller batches, compress them, or run "
                f"`raftlog topic alter {tp.topic} --config max.message.bytes=...`"
            )
        deadline = self._core.monotonic() + self._max_block_s
        while (delivery := self._place(queues, tp, body, base_offset)) is None:
            self._wait_for_room(deadline)
        if self._accumulator.wake_needed:
            self._core.wake()
        return DeliveryFuture(delivery, 0)

    def _place(
        self, queues: TopicQueues, tp: TopicPartition, body: BatchBody, base_offset: Offset
    ) -> Delivery | None:
        """Number the batch and queue it. Returns None, and assigns no number, if memory is full."""
        with self._lock:
            # guard: the stored sequence is requested before the first append
            number = self._next.get(tp)
            if number is None:
                raise InvalidRequestError(
                    f"{tp.topic}:{tp.partition}: stored() was not called. Call it first: it "
                    "returns the number of records to skip"
                )
            count = body.last_offset_delta + 1  # the record count, unless a batch has gaps
            after = number + count
            # guard: the sequence of a named producer ends
            if after > RECORDS_MAX:
                raise InvalidRequestError(
                    f"{tp.topic}:{tp.partition}: producer {self.name!r} has written {number} "
                    f"records in epoch {self.epoch}. {count} more exceed the limit of "
                    f"{RECORDS_MAX} for one name and epoch. Continue with another name or a higher "
                    "epoch"
                )
            # The number is advanced first. If this is interrupted, the broker rejects the gap; a
            # number that is used twice would look like a retry.
            self._next[tp] = after
            try:
                delivery = self._accumulator.add_encoded(
                    queues,
                    tp.partition,
                    body,
                    body.size_bytes,
                    base_sequence=number,
                    base_offset=base_offset,
                )
            # guard: a sequence is not reused after Ctrl-C
            except RaftlogError:
                self._next[tp] = number
                raise
            if delivery is None:
                self._next[tp] = number
            return delivery


# -- work in numbered steps ------------------------------------------------------------------------
#
# The batches of a step and its number are one transaction. The number is an offset that the
# transaction commits for a group without members. So a step that is run again finds out whether it
# was stored, and compares no records. Reasons and limits: docs/adr/0088.


class Step(NamedTuple):
    """A step of work. ``number``: the offset that ``group`` commits for ``at``, 0 or more."""

    group: str
    at: TopicPartition
    number: Offset
    note: str = ""  # metadata of the offset


class StepProducer(Producer):
    """Producer that stores encoded batches, all of them or none, and a step once.

    Create it with a ``transactional_id`` of the work: it ends the transactions of earlier
    producers of that ID, which can store nothing afterwards.
    """

    def max_message_bytes(self, topic: str) -> int:
        """Return the maximum size of a batch in bytes. Raises ``UnknownTopicError``."""
        return self._prepare(topic).max_message_bytes

    def store(
        self,
        batches: Iterable[tuple[TopicPartition, BatchBody]],
        *,
        topic_ids: dict[str, str],
        step: Step | None = None,
    ) -> bool:
        """Store all batches in one transaction. Return False if the step is stored already.

        ``topic_ids``: expected ids of the topics: another topic may have the name now. ``step``:
        None for work that is not repeated.

        Raises ``ProducerFencedError`` if a later step is stored, or another producer has the
        transactional ID; ``TransactionAbortedError`` if nothing was stored; and
        ``OutcomeUnknownError`` if that is unknown: run the step again with a new producer. Raises
        ``UnknownTopicError`` for a topic that was created again, and the errors of ``transaction``.
        """
        try:
            with self.transaction():
                # guard: a step that is stored is not stored again
                if step is not None and self._is_stored(step):
                    return False
                for tp, body in batches:
                    self._append_encoded(tp, body, topic_ids[tp.topic])
                if step is not None:
                    self._commit(step, topic_ids)
        except OutcomeUnknownError as error:
            if not self.recover():
                raise TransactionAbortedError(f"nothing was stored: {error}") from error
        return True

    def _is_stored(self, step: Step) -> bool:
        """Whether the step is stored. The transactions of earlier producers have ended."""
        transactions = self._core.transactions
        last = self._run_in_thread(lambda: transactions.fetch_offset(step.group, step.at))
        # guard: a step before the last one is refused
        if last is not None and last.offset > step.number:
            raise ProducerFencedError(
                f"step {step.number} of {step.group!r} is late: step {last.offset} is stored"
            )
        return last is not None and last.offset == step.number

    def _append_encoded(self, tp: TopicPartition, body: BatchBody, topic_id: str) -> None:
        queues = self._accumulator.topics.get(tp.topic) or self._prepare(tp.topic)
        # guard: a step is stored in the topic that was planned
        if queues.id != topic_id:
            raise UnknownTopicError(
                f"topic {tp.topic!r} was deleted and created again: its id is {queues.id}, not "
                f"{topic_id}"
            )
        queues.check_partition(tp.partition)
        if body.size_bytes > queues.max_message_bytes:
            raise queues.too_large(body.size_bytes)
        deadline = self._core.monotonic() + self._max_block_s
        add = self._accumulator.add_encoded
        while add(queues, tp.partition, body, body.size_bytes) is None:
            self._wait_for_room(deadline)
        if self._accumulator.wake_needed:
            self._core.wake()

    def _commit(self, step: Step, topic_ids: dict[str, str]) -> None:
        offsets = {step.at: OffsetAndMetadata(step.number, step.note)}
        ids = {step.at.topic: topic_ids[step.at.topic]}
        self._run_in_thread(
            lambda: self._core.transactions.commit_offsets(
                step.group, ("", NO_MEMBER_EPOCH), offsets, ids
            )
        )
