"""Records that wait to be sent, by partition, and the memory that they use. Sans-I/O.

Time is an argument or comes from the given clock. ``sender`` sends, retries and assigns sequence
numbers; ``records`` converts and checks arguments.

A batch is closed when the sender takes it, or when it is full. So batches grow while the broker is
busy. Records without a key go to the *sticky* partition of a topic, which changes with every batch,
and with every run of several records.

Threads: application threads append, the I/O thread takes. ``lock`` protects everything here. It is
held for a few operations at a time, never while encoding or doing I/O. ``append`` and ``extend``,
which are called for every record, return None without buffer space instead of waiting.
KeyboardInterrupt can end them after any call that they make. So their changes are either complete,
or repaired by the next call (``PendingBatch.mend``).
"""

from __future__ import annotations

import math
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Final, NamedTuple

from murmurhash2 import murmurhash2

from raftlog import limits
from raftlog.client.cluster import NO_EPOCH, TopicView
from raftlog.client.delivery import Delivery, DeliveryFuture
from raftlog.client.settings import KAFKA_SEED, POSITIVE, ProducerSettings
from raftlog.clock import Clock
from raftlog.errors import (
    ClosedError,
    KeyRequiredError,
    RaftlogError,
    RecordTooLargeError,
    UnknownPartitionError,
    counted,
)
from raftlog.record import HEADER_BYTES, BatchBody, Codec, encode
from raftlog.types import NO_BASE_OFFSET, Headers, Offset, TimestampMs

NEVER: Final = math.inf
# Blocked senders are woken when 1/4 of the memory is free, not after every batch: a thread that is
# woken for one batch competes with the I/O thread, which releases more memory.
_ROOM_PART: Final = 4


class Accumulator:
    """Pending records of one producer."""

    def __init__(
        self,
        settings: ProducerSettings,
        *,
        clock: Clock,
        choose: Callable[[int], int],
    ) -> None:
        self.lock = allocate_lock()
        self.topics: dict[str, TopicQueues] = {}
        self._gone: dict[str, TopicQueues] = {}  # deleted topics, which may be created again
        self.active: dict[PartitionQueue, None] = {}  # queues with batches, oldest first
        # Open and closed batches until they are delivered or failed.
        self.unresolved: dict[Delivery, PendingBatch] = {}
        self.bytes_free = settings.buffer_memory
        self.pressed = False  # a sender waits for buffer space or a flush: no linger time
        # Time of the sender's next check, and True if it must be woken earlier.
        self.wake_at = NEVER
        self.wake_needed = False
        self._shut = False
        self._room_needed = 0  # bytes; largest request of all blocked senders
        self._room_waiters: deque[Callable[[], object]] = deque()
        self._settings = settings
        self._linger_s = settings.linger_ms / 1_000
        self._delivery_timeout_s = settings.delivery_timeout_ms / 1_000
        self._monotonic = clock.monotonic
        self._wall_ms = clock.wall_ms
        self._choose = choose

    # -- topics

    def learn(self, view: TopicView) -> TopicQueues:
        """Apply the metadata of a topic: partition count and maximum batch size."""
        with self.lock:
            topic = self.topics.get(view.name) or self._gone.pop(view.name, None)
            if topic is None:
                topic = TopicQueues(
                    view,
                    batch_bytes_max=self._settings.batch_bytes_max,
                    start=self._choose(view.partition_count),
                )
            else:
                topic.update(view, batch_bytes_max=self._settings.batch_bytes_max)
            self.topics[view.name] = topic
            return topic

    # -- appending

    def append(
        self,
        topic: TopicQueues,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        partition: int | None,
    ) -> DeliveryFuture | None:
        """Add one record. Returns None without buffer space. Raises ``RecordTooLargeError``."""
        if timestamp_ms is None:
            timestamp_ms = self._wall_ms()
        size = RECORD_BYTES
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if headers is not None:
            size += header_bytes(headers)
        with self.lock:
            if size > self.bytes_free:
                self._note_no_room(size)
                return None
            if partition is not None:
                queue = topic.queues[partition]
            elif key is None:
                queue = topic.sticky
            else:
                queue = topic.queues[(murmurhash2(key, KAFKA_SEED) & POSITIVE) % topic.count]
            batch = queue.open
            if batch is None or batch.size_bytes + size > topic.batch_bytes_max:
                sticky = key is None and partition is None
                batch = self._next_batch(topic, queue, size, sticky=sticky)
            values, stamps = batch.values, batch.timestamps_ms
            index = len(values)
            if len(stamps) != index:
                batch.mend()
            batch.size_bytes += size
            self.bytes_free -= size
            stamps.append(timestamp_ms)
            if key is not None or batch.keys is not None:
                batch.add_key(index, key)
            if headers is not None or batch.headers is not None:
                batch.add_headers(index, headers)
            values.append(value)  # last: this completes the record
            return DeliveryFuture(batch.delivery, index)

    def extend(
        self, topic: TopicQueues, partition: int | None, run: Run
    ) -> tuple[Delivery, int] | None:
        """Add records to one batch. Returns its delivery and the first index, or None if full.

        Each run without a partition goes to the next partition, and joins its open batch.
        """
        size = run.joined_bytes
        with self.lock:
            if size > self.bytes_free:
                self._note_no_room(size)
                return None
            queue = topic.rotate() if partition is None else topic.queues[partition]
            batch = queue.open
            if batch is None or batch.size_bytes + size > topic.batch_bytes_max:
                batch = self._next_batch(topic, queue, size, sticky=False)
            first = len(batch.values)
            batch.size_bytes += size
            self.bytes_free -= size
            batch.extend(run)
            return batch.delivery, first

    def add_encoded(
        self,
        topic: TopicQueues,
        partition: int | None,
        body: BatchBody,
        size: int,
        *,
        base_sequence: int | None = None,
        base_offset: Offset = NO_BASE_OFFSET,
    ) -> Delivery | None:
        """Add an encoded batch, which is closed. Returns None without buffer space.

        ``base_sequence``: number of its first record, for a named producer. ``base_offset``: offset
        of its first record, for a mirror.
        """
        with self.lock:
            if size > self.bytes_free:
                self._note_no_room(size)
                return None
            queue = topic.rotate() if partition is None else topic.queues[partition]
            self._close_open(queue)
            batch = self._begin(queue)
            batch.body = body
            batch.base_sequence = base_sequence
            batch.base_offset = base_offset
            batch.delivery.timestamps_ms = body.first_timestamp_ms
            batch.size_bytes = size
            self.bytes_free -= size
            self._close_open(queue)
            return batch.delivery

    def _next_batch(
        self, topic: TopicQueues, queue: PartitionQueue, size: int, *, sticky: bool
    ) -> PendingBatch:
        """Return a batch with space for ``size``, after the open one of ``queue`` is full."""
        if size > topic.batch_bytes_max:
            topic.check_size(size, compressed=self._settings.codec is not Codec.NONE)
        self._close_open(queue)
        if sticky:
            queue = topic.rotate()
            if queue.open is not None:  # it has records with a key
                if queue.open.size_bytes + size <= topic.batch_bytes_max:
                    return queue.open
                self._close_open(queue)
        return self._begin(queue)

    def _begin(self, queue: PartitionQueue) -> PendingBatch:
        if self._shut:
            raise ClosedError("the producer was closed")
        now = self._monotonic()
        batch = PendingBatch(
            queue, due_at=now + self._linger_s, expires_at=now + self._delivery_timeout_s
        )
        queue.open = batch
        self.active[queue] = None
        self.unresolved[batch.delivery] = batch
        if batch.due_at < self.wake_at:
            self.wake_needed = True
        return batch

    def _close_open(self, queue: PartitionQueue) -> None:
        batch = queue.open
        if batch is not None:
            self.wake_needed = True  # a full batch does not linger
            queue.open = None
            queue.closed.append(batch)

    # -- buffer space

    def _note_no_room(self, size: int) -> None:
        """Note a blocked sender. Raises ``RecordTooLargeError`` if the record can never fit."""
        if size > self._settings.buffer_memory:
            raise RecordTooLargeError(
                f"record of {size} bytes does not fit into "
                f"buffer_memory={self._settings.buffer_memory} bytes. Increase buffer_memory or "
                "send a smaller record"
            )
        self._room_needed = max(self._room_needed, size)
        self.pressed = True
        self.wake_needed = True

    def when_room(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once: now, or when enough buffer space is free."""
        with self.lock:
            if not self._has_room():
                self._room_waiters.append(callback)
                return
        callback()

    def release(self, batch: PendingBatch) -> None:
        """Release the memory of a completed batch and wake senders that wait for buffer space."""
        callbacks: list[Callable[[], object]] = []
        with self.lock:
            self.bytes_free += batch.size_bytes
            self.unresolved.pop(batch.delivery, None)
            if self._has_room():
                self._room_needed = 0
                self.pressed = False
                callbacks.extend(self._room_waiters)
                self._room_waiters.clear()
        for callback in callbacks:
            callback()

    def _has_room(self) -> bool:
        # Without unresolved batches all memory is free, so no sender waits indefinitely.
        return self.bytes_free >= max(self._room_needed, self._settings.buffer_memory // _ROOM_PART)

    # -- taking

    def hurry(self) -> list[Delivery]:
        """End the linger time of all pending batches. Returns all unresolved deliveries."""
        with self.lock:
            for queue in self.active:
                if queue.open is not None:
                    queue.open.due_at = -NEVER
            self.wake_needed = True
            return list(self.unresolved)

    def undelivered(self) -> int:
        """Return the number of records that are neither acknowledged nor failed."""
        with self.lock:
            return sum(batch.record_count for batch in self.unresolved.values())

    def scan(self) -> list[tuple[PartitionQueue, PendingBatch, float]]:
        """Return each queue with batches, its next batch, and when that is due.

        Until ``wake_at`` is set again, every new batch requests a wake-up.
        """
        with self.lock:
            self.wake_at = NEVER
            found: list[tuple[PartitionQueue, PendingBatch, float]] = []
            for queue in self.active:
                if queue.closed:
                    found.append((queue, queue.closed[0], -NEVER))
                elif queue.open is not None:
                    found.append((queue, queue.open, -NEVER if self.pressed else queue.open.due_at))
            return found

    def take(self, queue: PartitionQueue, now: float) -> PendingBatch | None:
        """Remove and return the next batch of ``queue`` that is due, or None."""
        with self.lock:
            if queue.closed:
                batch = queue.closed.popleft()
            elif queue.open is not None and (self.pressed or queue.open.due_at <= now):
                batch, queue.open = queue.open, None
            else:
                return None
            self._rest(queue)
            return batch

    def take_expired(self, queue: PartitionQueue, now: float) -> list[PendingBatch]:
        """Remove and return the batches of ``queue`` whose delivery timeout has passed."""
        with self.lock:
            expired = []
            while queue.closed and queue.closed[0].expires_at <= now:
                expired.append(queue.closed.popleft())
            if not queue.closed and queue.open is not None and queue.open.expires_at <= now:
                expired.append(queue.open)
                queue.open = None
            self._rest(queue)
            return expired

    def drop(self, queue: PartitionQueue) -> list[PendingBatch]:
        """Remove and return all batches of ``queue``."""
        with self.lock:
            self._close_open(queue)
            batches = list(queue.closed)
            queue.closed.clear()
            self._rest(queue)
            return batches

    def put_back(self, queue: PartitionQueue, batches: Sequence[PendingBatch]) -> None:
        """Return batches to the front of the queue, in their order."""
        with self.lock:
            queue.closed.extendleft(reversed(batches))
            self.active[queue] = None

    def _rest(self, queue: PartitionQueue) -> None:
        if queue.open is None and not queue.closed:
            self.active.pop(queue, None)

    def forget(self, topic: str) -> None:
        """Forget a deleted topic: the next send requests its metadata.

        Its batches may still be in flight. If the topic is created again, it gets the same queues.
        """
        with self.lock:
            gone = self.topics.pop(topic, None)
            if gone is not None:
                self._gone[topic] = gone

    def shut(self) -> None:
        """Refuse new records."""
        with self.lock:
            self._shut = True
            self.topics = {}

    def leave_behind(self) -> None:
        """Forget all topics in a forked child, which must not send."""
        self.lock = allocate_lock()  # a thread of the parent may have held it
        self.topics = {}


# -- batch -----------------------------------------------------------------------------------------
#
# Pending batch of a producer, and the queues of batches: values and invariants, no policy.
#
#     TopicQueues ── one PartitionQueue per partition ── batches, each with its Delivery
#
# All sizes are upper bounds of the encoded size, so that no batch exceeds its limit.


# Overhead of a record in addition to key and value: timestamp 8, two lengths 8, two null indexes 8,
# header count 4.
RECORD_BYTES: Final = 28
# Overhead of a record without key and headers, and with a value, in a batch of such records.
PLAIN_RECORD_BYTES: Final = 12
# Overhead of a header in addition to name and value: two lengths 8, null index 4.
_HEADER_ENTRY_BYTES: Final = 12
# Batch header, and framing of the payload columns.
BATCH_BYTES: Final = HEADER_BYTES + 96

assert limits.PRODUCER_BATCH_BYTES_MAX // PLAIN_RECORD_BYTES <= limits.RECORDS_PER_BATCH_MAX
assert limits.PRODUCER_BATCH_BYTES_MAX // _HEADER_ENTRY_BYTES <= limits.HEADERS_PER_BATCH_MAX


class ProducerIdAndEpoch(NamedTuple):
    """Identity of an idempotent producer in a partition: producer id and epoch.

    The broker assigns the id, or it is derived from the producer's name
    (``raftlog.client.resumable``).
    """

    producer_id: int
    producer_epoch: int


def header_bytes(headers: Headers) -> int:
    """Return the maximum encoded size of the headers. A character has up to 4 bytes in UTF-8."""
    size = 0
    for name, value in headers:
        size += _HEADER_ENTRY_BYTES + len(name if name.isascii() else name.encode())
        if value is not None:
            size += len(value)
    return size


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive records for one partition that are not in a batch yet, and their maximum size in
    a separate batch.
    """

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[Headers | None] | None
    timestamps_ms: TimestampMs | Sequence[TimestampMs]
    size_bytes: int
    has_nulls: bool = True  # keys or values may contain None

    @property
    def joined_bytes(self) -> int:
        """Maximum size in a batch whose other records may have keys, headers and nulls."""
        is_plain = not self.has_nulls and self.keys is None and self.headers is None
        more = RECORD_BYTES - PLAIN_RECORD_BYTES if is_plain else 0
        return self.size_bytes + more * len(self.values)

    def part(self, start: int, end: int, size_bytes: int) -> Run:
        """Return the records from index ``start`` to before ``end``."""
        if start == 0 and end == len(self.values):
            return replace(self, size_bytes=size_bytes)
        stamps = self.timestamps_ms
        return Run(
            self.values[start:end],
            None if self.keys is None else self.keys[start:end],
            None if self.headers is None else self.headers[start:end],
            stamps if isinstance(stamps, int) else stamps[start:end],
            size_bytes,
            self.has_nulls,
        )

    def pick(self, indexes: Sequence[int]) -> Run:
        """Return the records at ``indexes``. Their size is not set."""
        stamps = self.timestamps_ms
        return Run(
            list(map(self.values.__getitem__, indexes)),
            None if self.keys is None else list(map(self.keys.__getitem__, indexes)),
            None if self.headers is None else list(map(self.headers.__getitem__, indexes)),
            stamps if isinstance(stamps, int) else list(map(stamps.__getitem__, indexes)),
            0,
            self.has_nulls,
        )

    def encode(self, codec: Codec, level: int | None) -> BatchBody:
        return encode(
            self.values,
            keys=self.keys,
            headers=self.headers,
            timestamps_ms=self.timestamps_ms,
            codec=codec,
            level=level,
        )


class PendingBatch:
    """Batch from its first record to its delivery.

    It first has growing columns, then an encoded ``body``. With an idempotent producer it then gets
    a sequence number, which it keeps in every retry.
    """

    __slots__ = (
        "base_offset",
        "base_sequence",
        "body",
        "delivery",
        "due_at",
        "error",
        "expires_at",
        "header",
        "headers",
        "identity",
        "keys",
        "leader_epoch",
        "order",
        "outcome_unknown",
        "queue",
        "sent_at",
        "size_bytes",
        "timestamps_ms",
        "values",
    )

    def __init__(self, queue: PartitionQueue, *, due_at: float, expires_at: float) -> None:
        self.queue = queue
        self.due_at = due_at  # monotonic seconds; end of the linger time
        self.expires_at = expires_at  # monotonic seconds; end of the delivery timeout
        self.values: list[bytes | None] = []
        self.timestamps_ms: list[TimestampMs] = []
        self.keys: list[bytes | None] | None = None  # None if no record has a key
        self.headers: list[Headers | None] | None = None  # None if no record has headers
        self.size_bytes = 0  # maximum size of its records; reserved in buffer_memory
        self.delivery = Delivery(queue.topic, queue.partition, self.timestamps_ms)
        self.body: BatchBody | None = None
        self.base_sequence: int | None = None  # set by a named producer, which counts records
        self.base_offset = NO_BASE_OFFSET  # set by a mirror, which selects the offset
        # Used by the sender:
        self.order = -1  # number in its partition; -1 before the first attempt
        # Identity of the sequence number in ``header``:
        self.identity: ProducerIdAndEpoch | None = None
        self.header = b""  # sealed; empty before the first attempt
        self.outcome_unknown = False  # an attempt had no response: may be stored
        self.leader_epoch = NO_EPOCH  # of the last attempt
        self.sent_at = 0.0  # monotonic seconds; of the last attempt, if it is traced
        self.error: RaftlogError | None = None  # of the last attempt

    @property
    def is_empty(self) -> bool:
        return self.body is None and not self.values

    @property
    def record_count(self) -> int:
        return len(self.values) if self.body is None else self.body.record_count

    def mend(self) -> None:
        """Remove a record without a value, which an append left after KeyboardInterrupt."""
        count = len(self.values)
        for column in (self.timestamps_ms, self.keys, self.headers):
            if column is not None:
                del column[count:]

    def add_key(self, index: int, key: bytes | None) -> None:
        """Add the key of the record at ``index``, which is the last one."""
        if self.keys is None:
            self.keys = [None] * index
        self.keys.append(key)

    def add_headers(self, index: int, headers: Headers | None) -> None:
        """Add the headers of the record at ``index``, which is the last one."""
        if self.headers is None:
            self.headers = [None] * index
        self.headers.append(headers)

    def extend(self, run: Run) -> None:
        """Add the records of a run."""
        self.mend()
        index, count = len(self.values), len(run.values)
        stamps = run.timestamps_ms
        self.timestamps_ms.extend(repeat(stamps, count) if isinstance(stamps, int) else stamps)
        if run.keys is not None or self.keys is not None:
            if self.keys is None:
                self.keys = [None] * index
            self.keys.extend(run.keys or repeat(None, count))
        if run.headers is not None or self.headers is not None:
            if self.headers is None:
                self.headers = [None] * index
            self.headers.extend(run.headers or repeat(None, count))
        self.values.extend(run.values)

    def encode(self, codec: Codec, level: int | None) -> BatchBody:
        """Return the encoded body. Releases the memory of the single records."""
        if self.body is None:
            self.mend()
            self.body = encode(
                self.values,
                keys=self.keys,
                headers=self.headers,
                timestamps_ms=self.timestamps_ms,
                codec=codec,
                level=level,
            )
            self.values, self.keys, self.headers = [], None, None
        return self.body


class PartitionQueue:
    """Waiting batches of one partition, in order: ``closed`` batches, then the ``open`` batch.

    Invariant: a producer keeps one queue per partition for its whole life, because two queues would
    use the same sequence numbers. ``is_anew``: the topic was deleted and created again since the
    last send.
    """

    __slots__ = ("closed", "is_anew", "open", "partition", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.open: PendingBatch | None = None
        self.closed: deque[PendingBatch] = deque()
        self.is_anew = False


class TopicQueues:
    """Queues of one topic, and the current partition for records without a key."""

    __slots__ = (
        "_led",
        "_turn",
        "batch_bytes_max",
        "count",
        "id",
        "keys_required",
        "max_message_bytes",
        "name",
        "queues",
        "sticky",
    )

    def __init__(self, view: TopicView, *, batch_bytes_max: int, start: int) -> None:
        self.name = view.name
        self.queues: list[PartitionQueue] = []
        self._turn = start
        self._take(view, batch_bytes_max)
        self.sticky = self.rotate()

    def update(self, view: TopicView, *, batch_bytes_max: int) -> None:
        """Apply a metadata update. A topic that was created again may have fewer partitions."""
        if self.id != view.id:
            for queue in self.queues:
                queue.is_anew = True
        self._take(view, batch_bytes_max)
        if self.sticky.partition >= self.count:
            self.rotate()

    def _take(self, view: TopicView, batch_bytes_max: int) -> None:
        self.id = view.id
        self.count = view.partition_count
        for partition in range(len(self.queues), view.partition_count):
            self.queues.append(PartitionQueue(view.name, partition))
        self.max_message_bytes = view.max_message_bytes
        self.keys_required = view.keys_required
        # Limit for the sum of the record sizes, without the overhead of the batch.
        self.batch_bytes_max = min(batch_bytes_max, view.max_message_bytes) - BATCH_BYTES
        self._led = [
            self.queues[partition]
            for partition, leader in enumerate(view.leaders)
            if leader is not None
        ] or self.queues[: self.count]

    def rotate(self) -> PartitionQueue:
        """Select the next partition for records without a key: one with a leader if possible."""
        self._turn = (self._turn + 1) % len(self._led)
        self.sticky = self._led[self._turn]
        return self.sticky

    def lacks(self, partition: object) -> bool:
        """Return whether the known topic is too short for ``partition``: it may have grown."""
        return isinstance(partition, int) and partition >= self.count

    def check_partition(self, partition: object) -> int:
        """Return ``partition``. Raises ``TypeError`` or ``UnknownPartitionError``."""
        if isinstance(partition, bool) or not isinstance(partition, int):
            raise TypeError(f"partition={partition!r} is not an int from 0 to {self.count - 1}")
        if not 0 <= partition < self.count:
            raise UnknownPartitionError(
                f"topic {self.name!r} has no partition {partition}. It has "
                f"{counted(self.count, 'partition')}, numbered from 0"
            )
        return partition

    def check_size(self, size: int, *, compressed: bool) -> None:
        """Raise ``RecordTooLargeError`` if a record of ``size`` does not even fit its own batch."""
        if size - RECORD_BYTES > self.max_message_bytes and not compressed:
            raise self.too_large(size - RECORD_BYTES)

    def no_key(self) -> KeyRequiredError:
        """Return the error for a record without a key in a compacted topic."""
        return KeyRequiredError(
            f"a record for topic {self.name!r} has no key, but the topic is compacted and keeps "
            'the last record of each key. Send every record with a key (b"" is valid), or set '
            "cleanup.policy=delete for the topic"
        )

    def too_large(self, size: int) -> RecordTooLargeError:
        """Return the error for a record of ``size`` bytes in its own batch."""
        return RecordTooLargeError(
            f"a record for topic {self.name!r} has {size} bytes and exceeds max.message.bytes="
            f"{self.max_message_bytes}. Send smaller records, compress them, or run "
            f"`raftlog topic alter {self.name} --config max.message.bytes=...`"
        )
