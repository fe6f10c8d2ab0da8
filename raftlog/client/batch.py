"""One batch on its way, and the queues where batches wait: values and invariants, no policy.

    TopicQueues ── one PartitionQueue per partition ── batches, each with its Delivery

The sizes here are upper bounds on what encoding will give, so that no batch turns out too large.
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
from raftlog.errors import KeyRequiredError, RaftlogError, RecordTooLargeError
from raftlog.record import HEADER_BYTES, BatchBody, Codec, encode
from raftlog.types import Headers, TimestampMs

# A record beside its key and value: timestamp 8, two lengths 8, two indexes of nulls 8, header
# count 4.
RECORD_BYTES: Final = 28
# The same of a record that has neither key nor headers and whose value is not null.
PLAIN_RECORD_BYTES: Final = 12
# A header beside its name and value: two lengths 8, an index of nulls 4.
_HEADER_ENTRY_BYTES: Final = 12
# The batch's header, and the framing of the payload's columns.
BATCH_BYTES: Final = HEADER_BYTES + 96

assert limits.PRODUCER_BATCH_BYTES_MAX // PLAIN_RECORD_BYTES <= limits.RECORDS_PER_BATCH_MAX
assert limits.PRODUCER_BATCH_BYTES_MAX // _HEADER_ENTRY_BYTES <= limits.HEADERS_PER_BATCH_MAX


class ProducerIdAndEpoch(NamedTuple):
    """Who an idempotent producer is to a partition: an id, and its epoch there.

    The id comes from the broker, or from the producer's name (``raftlog.client.resumable``).
    """

    producer_id: int
    producer_epoch: int


def header_bytes(headers: Headers) -> int:
    """What a record's headers take, at most. A character takes up to 4 bytes in UTF-8."""
    size = 0
    for name, value in headers:
        size += _HEADER_ENTRY_BYTES + len(name if name.isascii() else name.encode())
        if value is not None:
            size += len(value)
    return size


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive records for one partition, on their way into a batch, and their size at most."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None
    headers: Sequence[Headers | None] | None
    timestamps_ms: TimestampMs | Sequence[TimestampMs]
    size_bytes: int
    has_nulls: bool = True  # among keys or values, as far as is known

    def part(self, start: int, end: int, size_bytes: int) -> Run:
        """The records from index ``start`` to ``end``, not included."""
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
        """The records at ``indexes``; their size is not known."""
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
    """A batch from its first record to its delivery.

    First it has columns and grows; then a ``body``, encoded; then, with an idempotent producer, a
    place in its partition's sequence, which it keeps through every retry.
    """

    __slots__ = (
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
        "size_bytes",
        "timestamps_ms",
        "values",
    )

    def __init__(self, queue: PartitionQueue, *, due_at: float, expires_at: float) -> None:
        self.queue = queue
        self.due_at = due_at  # seconds on the monotonic clock: lingers until then
        self.expires_at = expires_at  # the end of its delivery timeout
        self.values: list[bytes | None] = []
        self.timestamps_ms: list[TimestampMs] = []
        self.keys: list[bytes | None] | None = None  # None while no record has one
        self.headers: list[Headers | None] | None = None  # the same
        self.size_bytes = 0  # of its records, at most; what it takes of buffer_memory
        self.delivery = Delivery(queue.topic, queue.partition, self.timestamps_ms)
        self.body: BatchBody | None = None
        self.base_sequence: int | None = None  # of a producer with a name, which counts itself
        # The sender's:
        self.order = -1  # among the batches of its partition; -1 before it was ever sent
        # Under which ``header`` gives it a sequence:
        self.identity: ProducerIdAndEpoch | None = None
        self.header = b""  # sealed; empty before it was sent
        self.outcome_unknown = False  # an attempt got no answer: it may be in the log
        self.leader_epoch = NO_EPOCH  # in which the last attempt was made
        self.error: RaftlogError | None = None  # of the last attempt

    @property
    def is_empty(self) -> bool:
        return self.body is None and not self.values

    @property
    def record_count(self) -> int:
        return len(self.values) if self.body is None else self.body.record_count

    def mend(self) -> None:
        """Drop what an append left that Ctrl-C ended: a record is there when its value is."""
        count = len(self.values)
        for column in (self.timestamps_ms, self.keys, self.headers):
            if column is not None:
                del column[count:]

    def add_key(self, index: int, key: bytes | None) -> None:
        """The key of the record just added at ``index``."""
        if self.keys is None:
            self.keys = [None] * index
        self.keys.append(key)

    def add_headers(self, index: int, headers: Headers | None) -> None:
        """The headers of the record just added at ``index``."""
        if self.headers is None:
            self.headers = [None] * index
        self.headers.append(headers)

    def extend(self, run: Run) -> None:
        """Add a run's records."""
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
        """Its body. The records' own memory is free afterwards."""
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
    """The batches of one partition that wait, in order: ``closed`` ones, then the ``open`` one.

    There is one for a partition, as long as the producer lives: two would give out the same
    sequence numbers. ``is_anew``: the topic is another one of that name since the last send.
    """

    __slots__ = ("closed", "is_anew", "open", "partition", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.open: PendingBatch | None = None
        self.closed: deque[PendingBatch] = deque()
        self.is_anew = False


class TopicQueues:
    """The queues of one topic, and the partition that keyless records go to at the moment."""

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
        """Take news of the topic. One that was made anew may have fewer partitions."""
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
        # For the records alone, so that sums of theirs compare with it.
        self.batch_bytes_max = min(batch_bytes_max, view.max_message_bytes) - BATCH_BYTES
        self._led = [
            self.queues[partition]
            for partition, leader in enumerate(view.leaders)
            if leader is not None
        ] or self.queues[: self.count]

    def rotate(self) -> PartitionQueue:
        """Choose the next partition for keyless records: one with a leader if there is one."""
        self._turn = (self._turn + 1) % len(self._led)
        self.sticky = self._led[self._turn]
        return self.sticky

    def check_size(self, size: int, *, compressed: bool) -> None:
        """Raise if a record of ``size`` could not be sent, not even alone in its batch."""
        if size - RECORD_BYTES > self.max_message_bytes and not compressed:
            raise self.too_large(size - RECORD_BYTES)

    def no_key(self) -> KeyRequiredError:
        """The error for a record without a key, where each needs one."""
        return KeyRequiredError(
            f"a record for topic {self.name!r} has no key, and the topic is compacted: it keeps "
            'the last record of each key. Send every record with a key (b"" is one), or set the '
            "topic's cleanup.policy to delete"
        )

    def too_large(self, size: int) -> RecordTooLargeError:
        """The error for a record that takes ``size`` bytes, alone in its batch."""
        return RecordTooLargeError(
            f"a record for topic {self.name!r} takes {size} bytes, over its max.message.bytes of "
            f"{self.max_message_bytes}: send less at a time, compress, or raise it with "
            f"`raftlog topic alter {self.name} --config max.message.bytes=...`"
        )
