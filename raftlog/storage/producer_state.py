"""Producer state of a partition: the last batches of each idempotent producer.

The leader uses it to detect duplicates and sequence gaps. Deterministic: no clock, no I/O; time is
an argument. The state is a function of the log and of expiry, because every batch header contains
producer id, producer epoch and sequence. A snapshot only avoids a replay of the log. The state
outlives the records, so retention does not remove producers.

Sequences count records from 0 and wrap from 2^31-1 to 0. Source: KIP-98, KIP-360.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from raftlog import limits
from raftlog.errors import (
    OutOfOrderSequenceError,
    ProducerFencedError,
    UnknownProducerError,
)
from raftlog.record import KAFKA_ROWS, BatchHeader
from raftlog.types import Offset, TimestampMs

SEQUENCES: Final = 1 << 31
# Longer than the longest pause before a producer resends a batch (Spark replays after days).
PRODUCER_EXPIRY_MS: Final = 7 * 86_400_000


class WrittenBatch(NamedTuple):
    """A batch of a producer in the log.

    ``crc32c``: checksum of the batch as the producer sent it; None if unknown (compacted batch, or
    snapshot of an older release).
    """

    base_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset
    append_timestamp_ms: TimestampMs
    crc32c: int | None = None


class LastWritten(NamedTuple):
    """Last record and extent of a producer's newest epoch in the log.

    ``first_offset``: lower bound of the offsets of all stored records of this epoch.
    """

    epoch: int
    last_sequence: int
    last_offset: Offset
    first_offset: Offset


class ActiveProducer(NamedTuple):
    """Producer that the table contains, with the last batch of its newest epoch."""

    producer_id: int
    epoch: int
    newest: WrittenBatch


@dataclass(slots=True)
class _Producer:
    epoch: int
    first_offset: Offset  # first batch of the epoch that was added to the table
    # Invariant: at most PRODUCER_BATCHES_REMEMBERED, in the order written, never empty.
    batches: deque[WrittenBatch] = field(
        default_factory=lambda: deque(maxlen=limits.PRODUCER_BATCHES_REMEMBERED)
    )


def last_sequence(base_sequence: int, offset_count: int) -> int:
    """Return the last sequence number of a batch.

    ``offset_count``: number of offsets of the batch. It is the number of records that the producer
    sent. Compaction removes records and keeps the offsets.
    """
    return (base_sequence + offset_count - 1) % SEQUENCES


class ProducerTable:
    """Producers of one partition, by id. The producer that wrote last is at the end."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: BatchHeader) -> WrittenBatch | None:
        """Return None if the batch may be appended, or the stored batch if it is a duplicate.

        A duplicate has the same sequences and the same checksum as a stored batch. A batch with
        stored sequences but another checksum is rejected, because its records would be lost if it
        counted as a duplicate. For batches of Kafka's clients the sequences decide alone, as in
        Kafka: kafkajs repeats a batch with new timestamps.

        An unknown producer of raftlog begins at sequence 0. One of Kafka's clients begins at any
        sequence, as in Kafka: it does not know that the topic was created again, or that its state
        has expired.

        Raises ``OutOfOrderSequenceError`` for a sequence gap, ``UnknownProducerError`` for a
        sequence above 0 of an unknown producer, and ``ProducerFencedError`` for an old producer
        epoch.
        """
        known = self._producers.get(header.producer_id)
        is_kafka = header.layout == KAFKA_ROWS
        if known is None and is_kafka:
            return None
        if known is not None and header.producer_epoch < known.epoch:
            raise ProducerFencedError(
                f"producer {header.producer_id} epoch {header.producer_epoch} is fenced by "
                f"epoch {known.epoch}: a newer instance of this producer has written. "
                "Stop this instance"
            )
        expected = 0
        if known is not None and header.producer_epoch == known.epoch:
            last = last_sequence(header.base_sequence, header.last_offset_delta + 1)
            for batch in known.batches:
                if not is_kafka and batch.crc32c not in (None, header.crc32c):
                    continue  # same sequences, other records
                if (batch.base_sequence, batch.last_sequence) == (header.base_sequence, last):
                    return batch
            expected = (known.batches[-1].last_sequence + 1) % SEQUENCES
        if header.base_sequence != expected:
            kind = UnknownProducerError if known is None else OutOfOrderSequenceError
            raise kind(
                f"producer {header.producer_id} epoch {header.producer_epoch} sent sequence "
                f"{header.base_sequence}, expected {expected}: earlier batches are missing, or "
                f"the batch is older than the last {limits.PRODUCER_BATCHES_REMEMBERED}. Restart "
                "with a new producer id. A named producer must resume after the last stored record"
            )
        return None

    def last_written(self, producer_id: int) -> LastWritten | None:
        """Return the last write of a producer, committed or not; None if the producer is
        unknown."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return None
        newest = producer.batches[-1]
        return LastWritten(
            producer.epoch, newest.last_sequence, newest.last_offset, producer.first_offset
        )

    def family(self, producer_id: int, bits: int) -> list[int]:
        """Return the other known IDs that differ from ``producer_id`` in the lowest ``bits`` only.

        Looks at all IDs: 100,000, as many as a partition knows, take 5 ms.
        """
        family = producer_id >> bits
        return [each for each in self._producers if each >> bits == family and each != producer_id]

    def active(self, skip: int, limit: int) -> list[ActiveProducer]:
        """Return ``limit`` producers after the first ``skip``, the one that wrote last first."""
        newest_first = reversed(self._producers.items())
        return [
            ActiveProducer(producer_id, producer.epoch, producer.batches[-1])
            for producer_id, producer in islice(newest_first, skip, skip + limit)
        ]

    def newest_base_offsets(self) -> list[Offset]:
        """Return the base offset of each producer's newest batch. Compaction must keep the headers
        of these batches."""
        return [producer.batches[-1].base_offset for producer in self._producers.values()]

    def note(self, header: BatchHeader) -> None:
        """Add a batch of the log. It was checked when it was appended."""
        producer = self._producers.pop(header.producer_id, None)
        if producer is None or header.producer_epoch != producer.epoch:
            producer = _Producer(header.producer_epoch, header.base_offset)
        producer.batches.append(
            WrittenBatch(
                header.base_sequence,
                last_sequence(header.base_sequence, header.last_offset_delta + 1),
                header.base_offset,
                header.next_offset - 1,
                header.append_timestamp,
                None if header.is_compacted else header.crc32c,
            )
        )
        self._producers[header.producer_id] = producer
        if len(self._producers) > limits.PRODUCERS_PER_PARTITION_MAX:
            del self._producers[next(iter(self._producers))]

    def cut(self, log_end_offset: Offset, rebuilt: ProducerTable) -> None:
        """Remove batches at or above the new log end.

        ``rebuilt``: table that was rebuilt from the remaining log. It restores batches that this
        table had replaced by newer, now truncated batches. This table may contain batches that
        retention has deleted and that ``rebuilt`` lacks.
        """
        for producer_id, producer in list(self._producers.items()):
            kept = [batch for batch in producer.batches if batch.last_offset < log_end_offset]
            other = rebuilt._producers.get(producer_id)
            if not kept and other is None:
                del self._producers[producer_id]
            elif not kept and other is not None:
                self._producers[producer_id] = other
            else:
                theirs = (
                    other.batches if other is not None and other.epoch == producer.epoch else ()
                )
                producer.batches.clear()
                producer.batches.extend(sorted({*theirs, *kept}, key=lambda b: b.base_offset))
        by_last_write = sorted(self._producers.items(), key=lambda p: p[1].batches[-1].base_offset)
        self._producers = dict(by_last_write)

    def expire(self, *, now_ms: TimestampMs) -> int:
        """Remove producers that have not written for ``PRODUCER_EXPIRY_MS``. Returns their
        number."""
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.batches[-1].append_timestamp_ms < now_ms - PRODUCER_EXPIRY_MS
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def snapshot(self) -> dict[str, Any]:
        """Return the table as the content of a state file."""
        return {
            "producers": [
                [
                    producer_id,
                    producer.epoch,
                    [list(batch) for batch in producer.batches],
                    producer.first_offset,
                ]
                for producer_id, producer in self._producers.items()
            ]
        }

    @classmethod
    def from_snapshot(cls, state: dict[str, Any]) -> ProducerTable:
        table = cls()
        for producer_id, epoch, batches, *first in state["producers"]:
            written = [WrittenBatch(*batch) for batch in batches]
            # Snapshots of older releases lack the first offset. Use the oldest known batch.
            first_offset = first[0] if first else written[0].base_offset
            producer = table._producers[producer_id] = _Producer(epoch, first_offset)
            producer.batches.extend(written)
        return table
