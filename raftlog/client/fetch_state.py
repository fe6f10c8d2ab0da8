"""Fetch state of one partition of a consumer: positions and fetched records. Plain values."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from raftlog import limits
from raftlog.client.settings import OffsetReset, Start
from raftlog.errors import RaftlogError
from raftlog.types import ConsumerRecord, LeaderEpoch, Offset, TopicPartition

RECORD_BYTES_GUESS: Final = 128.0  # too low costs another fetch, too high fetches unused bytes
_MARGIN: Final = 1.125
_FETCH_BYTES_MIN: Final = 64 * limits.KIB


@dataclass(slots=True, eq=False)
class PartitionFetchState:
    """Fetch state of one partition."""

    tp: TopicPartition
    position: Offset | None  # next record for the application; None: look it up
    reset: Start  # lookup method
    policy: OffsetReset = "error"  # lookup method without a committed offset
    generation: int = 0
    fetch_offset: Offset = 0  # Invariant: >= position; end of the last chunk
    buffered_bytes: int = 0  # in chunks
    in_flight: bool = False  # fetch or lookup of this generation
    halted: bool = False  # the last chunk is an error that is not reported yet
    paused: bool = False
    not_before: float = 0.0  # monotonic seconds; end of the pause
    failures: int = 0  # consecutive
    topic_id: str = ""  # topic of the position; "" if unknown
    assigned_id: str = ""  # topic that the coordinator of the group assigned; "" without a group
    last_epoch: LeaderEpoch = -1  # of the previous batch; -1 after a seek
    corrupt_at: Offset | None = None  # offset of the last corrupt fetch
    damaged_since: float | None = None  # monotonic seconds; first corruption report
    known_to: Offset = 0  # known lower bound of the end offset
    committed: Offset | None = None  # last known committed offset
    until: Offset | None = None  # end of the range to read
    record_bytes: float = RECORD_BYTES_GUESS  # average stored size; only with ``until``
    served_by: set[int] = field(default_factory=set)  # brokers that served records
    # First returned offset that the application may still be processing.
    unprocessed: Offset | None = None
    is_iterated: bool = False  # only the last returned record may be unprocessed

    @property
    def processed(self) -> Offset | None:
        """Offset after the last processed record, which is safe to commit."""
        position, unprocessed = self.position, self.unprocessed
        if position is None or unprocessed is None:
            return position
        return max(unprocessed, position - 1) if self.is_iterated else unprocessed

    def bytes_to_fetch(self, bytes_max: int) -> int:
        """Return the fetch size: enough to reach ``until``, and little more."""
        if self.until is None:
            return bytes_max
        expected = (self.until - self.fetch_offset) * self.record_bytes * _MARGIN
        return int(min(max(expected, _FETCH_BYTES_MIN), bytes_max))

    def up_to_end(self, batches: Sequence[Batch], size_bytes: int) -> Sequence[Batch]:
        """Return the ``batches`` below ``until``. ``size_bytes``: size of all batches."""
        if self.until is None:
            return batches
        passed = batches[-1].next_offset - self.fetch_offset
        self.record_bytes = size_bytes / max(passed, 1)
        last = bisect_left(batches, self.until, key=lambda batch: batch.next_offset)
        return batches[: last + 1]


@dataclass(slots=True, eq=False)
class Batch:
    """Fetched batch, with the offset after its last record, and its leader epoch."""

    data: memoryview
    next_offset: Offset
    leader_epoch: LeaderEpoch = -1


@dataclass(slots=True, eq=False)
class Chunk:
    """Result of one fetch for one partition: batches, or an error in their place."""

    part: PartitionFetchState
    generation: int
    batches: deque[Batch]
    size_bytes: int = 0
    error: RaftlogError | None = None
    reset: OffsetReset | None = None  # in place of batches: look up the position again
    # Decoded records of the first batch. Records before ``position`` are read.
    records: list[ConsumerRecord] = field(default_factory=list)
    is_iterated: bool = False  # an iteration runs over ``records``

    @property
    def is_stale(self) -> bool:
        return self.generation != self.part.generation

    @property
    def is_empty(self) -> bool:
        """True if the chunk contains nothing for the application."""
        return not self.batches and self.error is None and self.reset is None

    def end_iteration(self) -> None:
        """End an iteration over the records, which would not notice a change of position."""
        if self.is_iterated:
            self.is_iterated = False
            rest = self.records[:]
            self.records.clear()
            self.records = rest


@dataclass(frozen=True, slots=True)
class Wanted:
    """Partition to fetch, or to look up (``offset`` None), with its state at that time."""

    part: PartitionFetchState
    generation: int
    offset: Offset | None
    doubtful: bool = False  # corrupt before: the broker must verify its disk
