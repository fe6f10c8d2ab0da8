"""A leader's batches, and followers that copy them. No assertions here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.record import parse_header
from raftlog.storage import Log, ReplicatedAppend
from raftlog.testing.disk import SimDisk
from tests.record.batches import stamped
from tests.storage.logs import (
    NO_PRODUCER,
    NOW_MS,
    SMALL,
    after_power_cut,
    batch_of,
    killed,
    stored,
    value_at,
)

# Three batches to a segment, an index entry for nearly each.
SEGMENTED: Final = TopicConfig(segment_bytes=1_300, index_interval_bytes=300, retention_ms=-1)


class Leader:
    """The batches of a leader's log from ``base`` on, one record in each unless told otherwise."""

    def __init__(self, *, base: int = 0, chain: int = 0) -> None:
        self.batches: list[bytes] = []
        self.base = base
        self.base_chain = chain

    @property
    def end(self) -> int:
        return parse_header(self.batches[-1]).next_offset if self.batches else self.base

    @property
    def chain(self) -> int:
        return parse_header(self.batches[-1]).chain if self.batches else self.base_chain

    def append(
        self,
        *values: bytes,
        epoch: int = 0,
        now_ms: int = NOW_MS,
        producer: tuple[int, int, int] = NO_PRODUCER,
    ) -> bytes:
        batch = stamped(
            batch_of(values or (value_at(self.end, 300),), producer=producer),
            base_offset=self.end,
            leader_epoch=epoch,
            append_timestamp_ms=now_ms,
            previous_chain=self.chain,
        )
        self.batches.append(batch)
        return batch

    def fill(self, count: int, *, epoch: int = 0, size: int = 300, is_sent: bool = True) -> None:
        """Append ``count`` batches of one record; ``is_sent`` by one producer that wrote all."""
        for _ in range(count):
            producer = (7, 0, self.end) if is_sent else NO_PRODUCER
            self.append(value_at(self.end, size), epoch=epoch, producer=producer)

    def fork(self, offset: int) -> Leader:
        """Another log that holds the same below ``offset``, where a batch starts."""
        other = Leader(base=self.base, chain=self.base_chain)
        other.batches = [b for b in self.batches if parse_header(b).next_offset <= offset]
        return other

    def after(self, offset: int) -> list[bytes]:
        """The batches from the one that holds ``offset`` on."""
        return [batch for batch in self.batches if parse_header(batch).next_offset > offset]


def leader_of(*epochs_and_counts: tuple[int, int]) -> Leader:
    """A leader's log: for each pair, so many batches of that epoch."""
    leader = Leader()
    for epoch, count in epochs_and_counts:
        leader.fill(count, epoch=epoch)
    return leader


def copy(log: Log, batches: Iterable[bytes]) -> ReplicatedAppend:
    """Append ``batches`` as one fetch brings them."""
    return log.append_replicated(b"".join(batches))


def follow(log: Log, leader: Leader, *, at_once: int = limits.MIB) -> None:
    """Copy all that the leader has beyond the log's end, ``at_once`` batches at a time."""
    missing: Sequence[bytes] = leader.after(log.log_end_offset)
    for first in range(0, len(missing), at_once):
        copy(log, missing[first : first + at_once])


def lives(log: Log, disk: SimDisk, config: TopicConfig = SMALL) -> Iterator[Log]:
    """The log of this process, of the next one after a kill, and of one more after a power cut."""
    yield log
    yield killed(disk, config)
    yield after_power_cut(disk, config)


def everything(log: Log) -> tuple[object, ...]:
    """What of a log must not change where nothing was appended."""
    return (
        stored(log),
        log.log_start_offset,
        log.log_end_offset,
        list(log.epochs),
        log.producers.snapshot(),
        log.chain,
    )
