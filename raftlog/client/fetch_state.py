"""The state of one partition that a consumer reads: positions, fetched records. Plain values."""

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

RECORD_BYTES_GUESS: Final = 128.0  # too few cost another fetch, too many are fetched for nothing
_MARGIN: Final = 1.125
_FETCH_BYTES_MIN: Final = 64 * limits.KIB


@dataclass(slots=True, eq=False)
class PartitionFetchState:
    """One partition that is read."""

    tp: TopicPartition
    position: Offset | None  # of the next record for the application; None: to be looked up
    reset: Start  # how to look it up
    policy: OffsetReset = "error"  # how else, if nothing is committed
    generation: int = 0
    fetch_offset: Offset = 0  # Invariant: >= position; where its last chunk ends
    buffered_bytes: int = 0  # in chunks
    in_flight: bool = False  # a fetch, or a look-up, of this generation
    halted: bool = False  # its last chunk is an error that nobody has seen yet
    paused: bool = False
    not_before: float = 0.0  # backing off until then
    failures: int = 0  # in a row
    topic_id: str = ""  # of the topic that the position is of; "" until it is known
    last_epoch: LeaderEpoch = -1  # of the last batch that was fetched, if that was just before
    doubted: Offset | None = None  # what was to be read from there on came damaged, once at least
    damaged_since: float | None = None  # since when its broker calls its own copy damaged
    known_to: Offset = 0  # there are records up to here, as far as is known
    committed: Offset | None = None  # by the consumer group, as far as is known
    until: Offset | None = None  # nothing at or above it is wanted
    record_bytes: float = RECORD_BYTES_GUESS  # as it is stored; with ``until`` only
    served_by: set[int] = field(default_factory=set)  # brokers that have given some of it
    # Where what was handed out begins that the application may still be working on.
    unprocessed: Offset | None = None
    is_iterated: bool = False  # of that, all is processed but the last record

    @property
    def processed(self) -> Offset | None:
        """The offset after what the application is done with; it cannot be lost by a commit."""
        position, unprocessed = self.position, self.unprocessed
        if position is None or unprocessed is None:
            return position
        return max(unprocessed, position - 1) if self.is_iterated else unprocessed

    def bytes_to_fetch(self, bytes_max: int) -> int:
        """How much to ask for: enough to come to ``until``, and not much more."""
        if self.until is None:
            return bytes_max
        expected = (self.until - self.fetch_offset) * self.record_bytes * _MARGIN
        return int(min(max(expected, _FETCH_BYTES_MIN), bytes_max))

    def up_to_end(self, batches: Sequence[Batch], size_bytes: int) -> Sequence[Batch]:
        """Those of ``batches``, of ``size_bytes`` together, that are not above ``until``."""
        if self.until is None:
            return batches
        passed = batches[-1].next_offset - self.fetch_offset
        self.record_bytes = size_bytes / max(passed, 1)
        last = bisect_left(batches, self.until, key=lambda batch: batch.next_offset)
        return batches[: last + 1]


@dataclass(slots=True, eq=False)
class Batch:
    """One batch as fetched, the offset after its last record, and in which epoch it was led."""

    data: memoryview
    next_offset: Offset
    leader_epoch: LeaderEpoch = -1


@dataclass(slots=True, eq=False)
class Chunk:
    """What one fetch brought for one partition: batches, or an error in their place."""

    part: PartitionFetchState
    generation: int
    batches: deque[Batch]
    size_bytes: int = 0
    error: RaftlogError | None = None
    reset: OffsetReset | None = None  # in the place of batches: look the position up anew
    # Of the first batch, once it is decoded. Those before ``position`` are read.
    records: list[ConsumerRecord] = field(default_factory=list)
    is_iterated: bool = False  # an iteration runs over ``records``

    @property
    def is_stale(self) -> bool:
        return self.generation != self.part.generation

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of it that the application has to see."""
        return not self.batches and self.error is None and self.reset is None

    def end_iteration(self) -> None:
        """Have an iteration over the records end here: it would not notice what happens now."""
        if self.is_iterated:
            self.is_iterated = False
            rest = self.records[:]
            self.records.clear()
            self.records = rest


@dataclass(frozen=True, slots=True)
class Wanted:
    """A partition to fetch, or (``offset`` None) to look the position up of; as it was then."""

    part: PartitionFetchState
    generation: int
    offset: Offset | None
    doubtful: bool = False  # it came damaged before: the broker is to look at its disk
