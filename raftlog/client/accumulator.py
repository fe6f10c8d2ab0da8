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
from typing import Final

from murmurhash2 import murmurhash2

from raftlog.client.batch import (
    RECORD_BYTES,
    PartitionQueue,
    PendingBatch,
    Run,
    TopicQueues,
    header_bytes,
)
from raftlog.client.delivery import Delivery, DeliveryFuture
from raftlog.client.metadata import TopicView
from raftlog.client.partitioner import KAFKA_SEED, POSITIVE
from raftlog.client.settings import ProducerSettings
from raftlog.clock import Clock
from raftlog.errors import ClosedError, RecordTooLargeError
from raftlog.record import BatchBody, Codec
from raftlog.types import NO_BASE_OFFSET, Headers, Offset

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
        size = run.size_bytes
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
