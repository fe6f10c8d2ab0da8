"""A producer with a name: several runs of it, one after the other or at once, write records once.

A run asks each partition how many records of its name are stored, and where (``stored``,
``extent``). It reads those records back (``RangeReader.read(producer=...)``), leaves out its own
records that are among them, and appends the rest. The order of its records may be another one than
in earlier runs. What a name and an epoch are on the wire is here; ``flight`` keeps each batch in
its place, one in flight at a time; the broker gives a place once (``ProducerTable``).

Why so, and what breaks it: docs/adr/0017.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Iterable
from typing import Any, Final

from xxhash import xxh3_64_intdigest

from raftlog import limits
from raftlog.client.batch import ProducerIdAndEpoch, TopicQueues
from raftlog.client.delivery import Delivery, DeliveryFuture
from raftlog.client.environment import ClientEnvironment
from raftlog.client.in_flight import EPOCH_MAX
from raftlog.client.partition_requests import describe_producer
from raftlog.client.producer import ProducerThread
from raftlog.client.producer_core import ProducerCore, check_partition
from raftlog.client.settings import (
    BATCH_BYTES_MIN,
    CLIENT_ID_DEFAULT,
    Bootstrap,
    connection_settings,
    integer,
    producer_settings,
)
from raftlog.errors import (
    ClosedError,
    InvalidRequestError,
    ProducerFencedError,
    RaftlogError,
    RecordTooLargeError,
)
from raftlog.protocol.produce import DescribedProducer
from raftlog.record import BatchBody
from raftlog.types import Offset, TopicPartition

# Ids from here on are of names; brokers hand out theirs from 0 on.
NAMED_ID_BASE: Final = 1 << 62
# Of one name and epoch in one partition. One more, and the next sequence would be 0 again: a run
# that is late would be let in.
RECORDS_MAX: Final = (1 << 31) - 1

# What a ``Producer`` may set and this one may not.
_FIXED: Final[dict[str, Any]] = {
    "acks": "all",
    "idempotent": True,
    "compression": "none",  # of what is not encoded yet: nothing
    "compression_level": None,
    "linger_ms": 0,
    "batch_bytes_max": BATCH_BYTES_MIN,
    "partitioner": None,
}


def producer_id_of(name: str) -> int:
    """The producer id that ``name`` stands for: from 2^62 to 2^63-1, everywhere the same.

    62 bits of xxh3 (seed 0) of the name in UTF-8. That two of a million names have the same is a
    chance of one in 9 million. Raises ``InvalidRequestError`` for a name that is empty or no text.
    """
    if not isinstance(name, str):
        raise TypeError(f"name={name!r}: a text (str)")
    try:
        octets = name.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"name={name!r} cannot be written as UTF-8: {error}") from error
    if not octets:
        raise InvalidRequestError("name='': a producer that is to start again needs a name")
    return NAMED_ID_BASE | (xxh3_64_intdigest(octets) & (NAMED_ID_BASE - 1))


class ResumableProducer(ProducerThread):
    """Appends batches under a name. A run that repeats an earlier one appends what that has not.

    A run has a name and an epoch, and has the same records for each partition as every other run of
    that name and epoch. Their batches may differ. So may their order, if a run reads back what is
    stored (``extent``); a run whose order is always the same only has to count it::

        with ResumableProducer(name="copy-2024-05-01") as producer:
            stored = producer.stored(partitions)
            for partition in partitions:
                for batch in batches_of(records_for(partition)[stored[partition] :]):
                    producer.append(partition, batch)
            producer.flush()

    Two runs at once do no harm: one of them fails, or both do, and a third one completes the work.
    One batch of a partition is in flight at a time. A run with a higher epoch, which counts anew
    from 0, puts an end to those of lower ones. A batch that is lost, for whatever reason, fails all
    later ones of its partition: begin again, with a new producer. Safe to share between threads;
    the records of one partition come from one of them. A context manager, which flushes and closes.
    """

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        *,
        name: str,
        epoch: int = 0,
        buffer_memory: int = 32 * limits.MIB,
        max_block_ms: int = 60_000,
        request_timeout_ms: int = 30_000,
        delivery_timeout_ms: int = 120_000,
        client_id: str = CLIENT_ID_DEFAULT,
        bootstrap_timeout_ms: int = 3_000,
        metadata_max_age_ms: int = 30_000,
        host: ClientEnvironment | None = None,
    ) -> None:
        """Nothing is connected before something is asked. Every batch waits for acks="all".

        ``name``: what all runs of the same work have in common, and nothing else has.
        ``epoch``: 0 to 32,767. Work that comes in steps may raise it with each step.
        The others are ``Producer``'s.

        Raises ``InvalidRequestError`` or ``TypeError`` naming the argument that is wrong.
        """
        arguments = {**locals(), **_FIXED}
        self.name = name
        self.epoch = integer("epoch", epoch, 0, EPOCH_MAX)
        self._producer_id = producer_id_of(name)
        host = host or ClientEnvironment()
        self._core = ProducerCore(
            connection_settings(arguments),
            producer_settings(arguments),
            host,
            identity=self.identity,
        )
        self._lock = allocate_lock()  # one place in a sequence is given at a time
        self._next: dict[TopicPartition, int] = {}  # the number of the next record to be appended
        self._extents: dict[TopicPartition, tuple[Offset, Offset]] = {}  # of what stored() counted
        self._begin(host)

    def __repr__(self) -> str:
        return f"<ResumableProducer {self.name!r} epoch {self.epoch}>"

    def __enter__(self) -> ResumableProducer:
        return self

    # -- topics

    def partition_count(self, topic: str) -> int:
        """How many partitions the topic has. Raises ``UnknownTopicError``."""
        return self._queues(topic).count

    def topic_id(self, topic: str) -> str:
        """The topic's id; another topic of the same name has another. ``UnknownTopicError``."""
        return self._queues(topic).id

    def max_message_bytes(self, topic: str) -> int:
        """The most bytes that a batch for the topic may have. Raises ``UnknownTopicError``."""
        return self._queues(topic).max_message_bytes

    def _queues(self, topic: str) -> TopicQueues:
        return self._accumulator.topics.get(topic) or self._prepare(topic)

    # -- records

    def stored(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """How many records of this name and epoch each partition has, committed.

        Asked the first time, this is where the partition's sequence goes on.

        Raises ``ProducerFencedError`` when a later epoch has written, ``UnknownTopicError``,
        ``UnknownPartitionError``, ``ClosedError``; and, when no leader has answered within
        request_timeout_ms, what has kept it from that.
        """
        wanted = [TopicPartition(*tp) for tp in dict.fromkeys(partitions)]
        for topic, number in wanted:
            check_partition(self._queues(topic), number)
        if self._closed:
            raise ClosedError("the producer was closed")
        cluster, producer_id = self._core.cluster, self._producer_id
        found = self._thread.call(lambda: describe_producer(cluster, wanted, producer_id))
        counts = {tp: self._count(tp, found[tp]) for tp in wanted}
        self._extents |= {
            tp: (found[tp].first_offset, found[tp].last_offset + 1) for tp in wanted if counts[tp]
        }
        with self._lock:
            for tp, count in counts.items():
                self._next.setdefault(tp, count)
        return counts

    def extent(self, tp: TopicPartition) -> tuple[Offset, Offset] | None:
        """The offsets from which and before which the records lie that ``stored`` counted.

        None if it counted none. Other producers' records may lie between them.
        """
        return self._extents.get(tp)

    @property
    def identity(self) -> ProducerIdAndEpoch:
        """The producer id and the epoch that are in the header of each batch of this run."""
        return ProducerIdAndEpoch(self._producer_id, self.epoch)

    def _count(self, tp: TopicPartition, written: DescribedProducer) -> int:
        if written.producer_epoch > self.epoch:
            raise ProducerFencedError(
                f"{tp.topic}:{tp.partition}: a later epoch of producer {self.name!r} has written, "
                f"{written.producer_epoch}; this run is of epoch {self.epoch}, and may not any "
                "more. If it is to, raise its epoch"
            )
        return written.last_sequence + 1 if written.producer_epoch == self.epoch else 0

    def append(self, tp: TopicPartition, body: BatchBody) -> DeliveryFuture:
        """Queue the next records of a partition; the future of the first one's ``RecordMetadata``.

        The first of them has the number that ``stored`` said, plus what was appended since. Blocks
        while buffer_memory is full, for up to max_block_ms.

        Raises ``RecordTooLargeError``, ``ThrottledError`` and ``InvalidRequestError`` (``stored``
        was not asked; there are 2^31-1 records of this name and epoch): then nothing was queued,
        and the same number comes next. Raises ``UnknownTopicError`` when the topic is gone, and
        ``ClosedError``. Everything else comes out of the future.
        """
        tp = TopicPartition(*tp)
        if self._closed:
            raise ClosedError("the producer was closed")
        queues = self._queues(tp.topic)
        check_partition(queues, tp.partition)
        if body.size_bytes > queues.max_message_bytes:
            raise RecordTooLargeError(
                f"a batch of {body.record_count} records for topic {tp.topic!r} takes "
                f"{body.size_bytes} bytes, over its max.message.bytes of "
                f"{queues.max_message_bytes}: make smaller batches, compress, or raise it with "
                f"`raftlog topic alter {tp.topic} --config max.message.bytes=...`"
            )
        deadline = self._core.monotonic() + self._max_block_s
        while (delivery := self._place(queues, tp, body)) is None:
            self._wait_for_room(deadline)
        if self._accumulator.wake_needed:
            self._core.wake()
        return DeliveryFuture(delivery, 0)

    def _place(self, queues: TopicQueues, tp: TopicPartition, body: BatchBody) -> Delivery | None:
        """Give the batch its numbers and queue it; None, and none given, when there is no room."""
        with self._lock:
            number = self._next.get(tp)
            if number is None:
                raise InvalidRequestError(
                    f"{tp.topic}:{tp.partition}: ask what is stored() first: that says how many "
                    "records to leave out, and which number comes next"
                )
            after = number + body.record_count
            if after > RECORDS_MAX:
                raise InvalidRequestError(
                    f"{tp.topic}:{tp.partition}: producer {self.name!r} has written {number} "
                    f"records under epoch {self.epoch}; with {body.record_count} more it would "
                    f"have over {RECORDS_MAX}, the most of one name and epoch. Go on under another "
                    "name, or a higher epoch"
                )
            # Taken first: were this interrupted, a number that is left out is refused by the
            # broker, and one that is given twice would be taken for a repeat.
            self._next[tp] = after
            try:
                delivery = self._accumulator.add_encoded(
                    queues, tp.partition, body, body.size_bytes, base_sequence=number
                )
            except RaftlogError:
                self._next[tp] = number
                raise
            if delivery is None:
                self._next[tp] = number
            return delivery
