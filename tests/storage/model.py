"""What a log should be: a plain list of batches, and what follows from it. Slow and obvious."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raftlog.record import BatchHeader, decode_lists, parse_header, stamp
from raftlog.storage.producer_state import ProducerTable

SEQUENCES = 1 << 31
BATCHES_REMEMBERED = 5


class StoredBatch(NamedTuple):
    data: bytes
    header: BatchHeader

    @property
    def base(self) -> int:
        return self.header.base_offset

    @property
    def end(self) -> int:
        return self.header.next_offset


class SentBatch(NamedTuple):
    """A batch that a producer has in the log: base and last sequence, base and last offset."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    append_timestamp_ms: int


@dataclass
class Producer:
    epoch: int
    sent: list[SentBatch] = field(default_factory=list)


@dataclass
class LogModel:
    """``batches`` are all that were appended, also below the log start, but for those cut off."""

    batches: list[StoredBatch] = field(default_factory=list)
    # Of the same batches, as they were appended: compaction has no hand in that.
    history: list[BatchHeader] = field(default_factory=list)
    base: int = 0  # where ``batches`` start, and the chain value that the first follows from
    base_chain: int = 0
    start: int = 0
    durable_start: int = 0  # what a start may fall back to
    durable_end: int = 0
    # Producers as of ``producers_from``; those who wrote from there on follow from the batches.
    producers_from: int = 0
    producers_before: dict[int, Producer] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.base

    @property
    def chain(self) -> int:
        return self.batches[-1].header.chain if self.batches else self.base_chain

    # -- changes -----------------------------------------------------------------------------------

    def append(
        self, batch: bytes, *, leader_epoch: int, now_ms: int, log_append_time: bool
    ) -> StoredBatch:
        section, _ = stamp(
            parse_header(batch),
            base_offset=self.end,
            leader_epoch=leader_epoch,
            append_timestamp_ms=now_ms,
            log_append_time=log_append_time,
            previous_chain=self.chain,
        )
        data = section + batch[len(section) :]
        self.batches.append(StoredBatch(data, parse_header(data)))
        self.history.append(self.batches[-1].header)
        return self.batches[-1]

    def cut(self, offset: int) -> None:
        """Drop the batch that holds ``offset`` and all after it."""
        self.keep_up_to(offset)
        self.start = min(self.start, self.end)
        self.durable_start = min(self.durable_start, self.end)
        self.durable_end = min(self.durable_end, self.end)

    def keep_up_to(self, offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch.end <= offset]
        self.history = [header for header in self.history if header.next_offset <= self.end]

    def forget_batches(self, *, chain: int, producers: dict[int, Producer]) -> None:
        """All are deleted; the log goes on from its start, with what it still knows."""
        assert not self.live()
        self.batches, self.history, self.base, self.base_chain = [], [], self.start, chain
        self.producers_before, self.producers_from = producers, self.base

    # -- what should be there ----------------------------------------------------------------------

    def boundaries(self) -> list[int]:
        """The offsets at which the log may end."""
        return [self.base, *(batch.end for batch in self.batches)]

    def live(self) -> list[StoredBatch]:
        return [batch for batch in self.batches if batch.end > self.start]

    def read(self, start: int, end: int, bytes_max: int) -> list[bytes]:
        found: list[bytes] = []
        size = 0
        for batch in self.batches:
            if batch.end <= start:
                continue
            if batch.end > end or (found and size + len(batch.data) > bytes_max):
                break
            found.append(batch.data)
            size += len(batch.data)
        return found

    def find_timestamp(self, timestamp_ms: int, end: int) -> tuple[int, int] | None:
        for batch in self.live():
            records = decode_lists(batch.data)
            for offset, at_ms in zip(records.offsets, records.timestamps_ms, strict=True):
                if offset >= self.start and at_ms >= timestamp_ms:
                    return (offset, at_ms) if offset < end else None
        return None

    def epoch_of(self, offset: int) -> int:
        return next(b.header.leader_epoch for b in self.batches if b.base <= offset < b.end)

    def producers(self) -> dict[int, Producer]:
        """The table rebuilt from scratch."""
        table = {
            producer_id: Producer(producer.epoch, list(producer.sent))
            for producer_id, producer in self.producers_before.items()
        }
        for header in self.history:
            if header.producer_id < 0 or header.base_offset < self.producers_from:
                continue
            producer = table.get(header.producer_id)
            if producer is None or producer.epoch != header.producer_epoch:
                producer = table[header.producer_id] = Producer(header.producer_epoch)
            last = (header.base_sequence + header.record_count - 1) % SEQUENCES
            producer.sent.append(
                SentBatch(
                    header.base_sequence,
                    last,
                    header.base_offset,
                    header.next_offset - 1,
                    header.append_timestamp,
                )
            )
            del producer.sent[:-BATCHES_REMEMBERED]
        return table


def as_model(table: ProducerTable) -> dict[int, Producer]:
    """A log's producer table in the model's terms: without checksums and first offsets."""
    rows: Sequence[tuple[Any, ...]] = table.snapshot()["producers"]
    return {
        producer_id: Producer(epoch, [SentBatch(*batch[:-1]) for batch in batches])
        for producer_id, epoch, batches, *_ in rows
    }
