"""What each idempotent producer last wrote to a partition: duplicates answered, gaps refused.

Deterministic: no clock, no I/O; time arrives with the batch or the call. The state is a function of
the log (every batch header carries its producer's id, epoch and sequence) and of expiry; a snapshot
only saves replaying the log. It outlives the records it came from, so retention forgets no
producer.

Sequences count records from 0 and wrap from 2^31-1 to 0. Source: KIP-98, KIP-360.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from raftlog import limits
from raftlog.errors import OutOfOrderSequenceError, ProducerFencedError
from raftlog.record import BatchHeader
from raftlog.types import Offset, TimestampMs

SEQUENCES: Final = 1 << 31
# Longer than the longest pause after which a producer may still resend (Spark replays after days).
PRODUCER_EXPIRY_MS: Final = 7 * 86_400_000


class WrittenBatch(NamedTuple):
    """A batch that a producer has in the log.

    ``crc32c``: of what the producer sealed; None if it is unknown (a compacted batch, or a snapshot
    of an older release).
    """

    base_sequence: int
    last_sequence: int
    base_offset: Offset
    last_offset: Offset
    append_timestamp_ms: TimestampMs
    crc32c: int | None = None


class LastWritten(NamedTuple):
    """What a producer has in the log under its newest epoch: its last record, and its extent.

    ``first_offset``: no record of the epoch that this log still has is below it.
    """

    epoch: int
    last_sequence: int
    last_offset: Offset
    first_offset: Offset


@dataclass(slots=True)
class _Producer:
    epoch: int
    first_offset: Offset  # of the epoch's first batch that this table saw
    # Invariant: at most PRODUCER_BATCHES_REMEMBERED, in the order written, never empty.
    batches: deque[WrittenBatch] = field(
        default_factory=lambda: deque(maxlen=limits.PRODUCER_BATCHES_REMEMBERED)
    )


def last_sequence(base_sequence: int, offset_count: int) -> int:
    """``offset_count``: of the batch, as many as it was sent with records. Compaction may have left
    fewer of those, and keeps the offsets."""
    return (base_sequence + offset_count - 1) % SEQUENCES


class ProducerTable:
    """Every producer of one partition, by id, the one that wrote last at the end."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: BatchHeader) -> WrittenBatch | None:
        """None when the batch may be appended; the earlier batch when this is a duplicate of it.

        A duplicate has the same sequences and the same checksum. Another batch in the place of one
        that is stored is refused: to answer it as a duplicate would lose its records.
        Raises ``OutOfOrderSequenceError`` for a gap and ``ProducerFencedError`` for an old epoch.
        """
        known = self._producers.get(header.producer_id)
        if known is not None and header.producer_epoch < known.epoch:
            raise ProducerFencedError(
                f"producer {header.producer_id} epoch {header.producer_epoch} is fenced by "
                f"epoch {known.epoch}: a newer instance of the producer has written"
            )
        expected = 0
        if known is not None and header.producer_epoch == known.epoch:
            last = last_sequence(header.base_sequence, header.last_offset_delta + 1)
            for batch in known.batches:
                if batch.crc32c not in (None, header.crc32c):
                    continue  # other records in its place
                if (batch.base_sequence, batch.last_sequence) == (header.base_sequence, last):
                    return batch
            expected = (known.batches[-1].last_sequence + 1) % SEQUENCES
        if header.base_sequence != expected:
            raise OutOfOrderSequenceError(
                f"producer {header.producer_id} epoch {header.producer_epoch} sent sequence "
                f"{header.base_sequence} where {expected} comes next: batches before it are "
                "missing, or it is older than the last "
                f"{limits.PRODUCER_BATCHES_REMEMBERED}. Start again: with a new producer id, or, "
                "under a producer's name, after what is stored"
            )
        return None

    def last_written(self, producer_id: int) -> LastWritten | None:
        """What a producer wrote last, committed or not; None if nothing is known of it."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return None
        newest = producer.batches[-1]
        return LastWritten(
            producer.epoch, newest.last_sequence, newest.last_offset, producer.first_offset
        )

    def newest_base_offsets(self) -> list[Offset]:
        """Where the newest batch of each producer begins: what compaction has to leave of it."""
        return [producer.batches[-1].base_offset for producer in self._producers.values()]

    def note(self, header: BatchHeader) -> None:
        """Take in a batch that is in the log (and so was checked when it was appended)."""
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
        """Forget batches at or beyond the new end of the log.

        ``rebuilt`` is what the log that is left tells: batches that newer ones, now gone, had
        pushed out. This table may know more than it, of batches that retention has dropped.
        """
        for producer_id, producer in list(self._producers.items()):
            kept = [batch for batch in producer.batches if batch.last_offset < log_end_offset]
            other = rebuilt._producers.get(producer_id)
            if not kept and other is None:
                del self._producers[producer_id]
            elif not kept and other is not None:
                self._producers[producer_id] = other
            else:
                told = other.batches if other is not None and other.epoch == producer.epoch else ()
                producer.batches.clear()
                producer.batches.extend(sorted({*told, *kept}, key=lambda b: b.base_offset))
        by_last_write = sorted(self._producers.items(), key=lambda p: p[1].batches[-1].base_offset)
        self._producers = dict(by_last_write)

    def expire(self, *, now_ms: TimestampMs) -> int:
        """Forget producers that have not written for ``PRODUCER_EXPIRY_MS``; how many."""
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.batches[-1].append_timestamp_ms < now_ms - PRODUCER_EXPIRY_MS
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def snapshot(self) -> dict[str, Any]:
        """The table as a state file holds it."""
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
            # A snapshot of an older release has no first offset: the oldest batch known stands in.
            first_offset = first[0] if first else written[0].base_offset
            producer = table._producers[producer_id] = _Producer(epoch, first_offset)
            producer.batches.extend(written)
        return table
