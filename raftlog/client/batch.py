"""Pending batch of a producer, and the queues of batches: values and invariants, no policy.

    TopicQueues ── one PartitionQueue per partition ── batches, each with its Delivery

All sizes are upper bounds of the encoded size, so that no batch exceeds its limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Final, NamedTuple

from raftlog import limits
from raftlog.client.delivery import Delivery
from raftlog.client.metadata import NO_EPOCH, TopicView
from raftlog.errors import (
    KeyRequiredError,
    RaftlogError,
    RecordTooLargeError,
    UnknownPartitionError,
    counted,
)
from raftlog.record import HEADER_BYTES, BatchBody, Codec, encode
from raftlog.types import NO_BASE_OFFSET, Headers, TimestampMs

# Overhead of a record in addition to key and value: timestamp 8, two lengths 8, two null indexes 8,
# header count 4.
RECORD_BYTES: Final = 28
# Overhead of a record without key and headers, and with a value.
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
    """Consecutive records for one partition that are not in a batch yet, and their maximum size."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[Headers | None] | None
    timestamps_ms: TimestampMs | Sequence[TimestampMs]
    size_bytes: int
    has_nulls: bool = True  # keys or values may contain None

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
