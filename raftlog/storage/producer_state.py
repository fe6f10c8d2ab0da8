"""Producer state of a partition: the last batches of each idempotent producer.

The leader uses it to detect duplicates and sequence gaps. Deterministic: no clock, no I/O; time is
an argument. The state is a function of the log and of expiry, because every batch header contains
producer id, producer epoch and sequence. A snapshot only avoids a replay of the log. The state
outlives the records, so retention does not remove producers.

Sequences count records from 0 and wrap from 2^31-1 to 0. Source: KIP-98, KIP-360. The markers of
transactions follow KIP-890 and KIP-1228.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from raftlog import limits
from raftlog.errors import (
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    StaleTransactionCoordinatorError,
    ThrottledError,
    UnknownProducerError,
)
from raftlog.record import KAFKA_ROWS, BatchHeader
from raftlog.types import NO_SEQUENCE, LeaderEpoch, Offset, TimestampMs

if TYPE_CHECKING:
    from raftlog.transactions import Marker

SEQUENCES: Final = 1 << 31
# Longer than the longest pause before a producer resends a batch (Spark replays after days).
PRODUCER_EXPIRY_MS: Final = 7 * 86_400_000
# Why an epoch is old, by whether the batch belongs to a transaction.
_FENCING: Final = {
    False: "a newer instance of this producer has written. Stop this instance",
    True: "the transaction was aborted, by an operator or after its time limit, or a newer "
    "instance uses this transactional ID: the commit says which",
}


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
    """Producer that the table contains, with the last batch of its newest epoch.

    ``coordinator_epoch``: of its last marker, -1 without one. ``transaction_start``: first offset
    of its open transaction, -1 without one.
    """

    producer_id: int
    epoch: int
    newest: WrittenBatch
    coordinator_epoch: LeaderEpoch
    transaction_start: Offset


class _Producer(NamedTuple):
    """A row of a state file. Immutable, so that a thread can write the rows of a moment.

    ``first_offset``: of the first batch of the epoch that was added to the table.
    ``coordinator_epoch``, ``marker_ms``: of the last marker. It counts as activity (KAFKA-9144).
    Invariant: at most PRODUCER_BATCHES_REMEMBERED ``batches``, in the order written, never empty. A
    marker that began the epoch is one, of sequence -1: the next batch has sequence 0.
    """

    producer_id: int
    epoch: int
    batches: tuple[WrittenBatch, ...]
    first_offset: Offset
    coordinator_epoch: LeaderEpoch = -1
    marker_ms: TimestampMs = -1


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
        self.transactions = LogTransactions()

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
        # guard: an old epoch of a producer
        if known is not None and header.producer_epoch < known.epoch:
            raise ProducerFencedError(
                f"producer {header.producer_id} epoch {header.producer_epoch} is fenced by "
                f"epoch {known.epoch}: {_FENCING[header.is_transactional]}"
            )
        expected = 0
        if known is not None and header.producer_epoch == known.epoch:
            last = last_sequence(header.base_sequence, header.last_offset_delta + 1)
            for batch in known.batches:
                # guard: a duplicate has the same checksum
                if not is_kafka and batch.crc32c not in (None, header.crc32c):
                    continue  # same sequences, other records
                # guard: a duplicate batch
                if (batch.base_sequence, batch.last_sequence) == (header.base_sequence, last):
                    return batch
            expected = (known.batches[-1].last_sequence + 1) % SEQUENCES
        # guard: a gap in a producer's sequence
        if header.base_sequence != expected:
            kind = UnknownProducerError if known is None else OutOfOrderSequenceError
            raise kind(
                f"producer {header.producer_id} epoch {header.producer_epoch} sent sequence "
                f"{header.base_sequence}, expected {expected}: earlier batches are missing, or "
                f"the batch is older than the last {limits.PRODUCER_BATCHES_REMEMBERED}. Restart "
                "with a new producer id. A named producer must resume after the last stored record"
            )
        return None

    def check_transaction(self, header: BatchHeader) -> None:
        """Check that a new batch belongs to the transaction of its producer, or to none.

        Raises ``InvalidTransactionStateError``, or ``ThrottledError`` when the partition has as
        many transactions as it can have.
        """
        transactions, producer_id = self.transactions, header.producer_id
        if producer_id in transactions:
            known = self._producers.get(producer_id)
            if not header.is_transactional or known is None or known.epoch != header.producer_epoch:
                raise InvalidTransactionStateError(
                    f"producer {producer_id} epoch {header.producer_epoch} has sent a batch of "
                    "another transaction, or of none, and its transaction is open. End that first"
                )
        elif header.is_transactional:
            if len(transactions) >= limits.TRANSACTIONS_OPEN_PER_PARTITION_MAX:
                raise ThrottledError(
                    f"{len(transactions)} transactions are open in the partition: "
                    "TRANSACTIONS_OPEN_PER_PARTITION_MAX is reached. Try again later"
                )
            if transactions.aborted_count >= limits.TRANSACTIONS_ABORTED_PER_PARTITION_MAX:
                raise ThrottledError(
                    f"the partition stores {transactions.aborted_count} aborted transactions: "
                    "TRANSACTIONS_ABORTED_PER_PARTITION_MAX is reached. Delete records, or lower "
                    "retention.ms"
                )

    def has_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has an open transaction in this epoch."""
        known = self._producers.get(producer_id)
        return (
            producer_id in self.transactions and known is not None and known.epoch == producer_epoch
        )

    def needs(self, marker: Marker) -> bool:
        """Whether a marker must be written. If not, an earlier one has ended the transaction, or it
        has no record here and needs no fence: the coordinator repeats markers.

        Raises ``StaleTransactionCoordinatorError`` for a replaced coordinator, and
        ``ProducerFencedError`` for an epoch that cannot end the open transaction (KIP-1228).
        """
        known = self._producers.get(marker.producer_id)
        is_open = marker.producer_id in self.transactions
        if known is None:
            return marker.is_bumped
        # guard: a replaced coordinator ends nothing
        if marker.coordinator_epoch < known.coordinator_epoch:
            raise StaleTransactionCoordinatorError(
                f"a marker for producer {marker.producer_id} of coordinator epoch "
                f"{marker.coordinator_epoch}; the newest is {known.coordinator_epoch}"
            )
        epoch = marker.producer_epoch
        # guard: a bumped marker ends an older epoch only
        if epoch < known.epoch or (is_open and marker.is_bumped and epoch == known.epoch):
            raise ProducerFencedError(
                f"a marker for producer {marker.producer_id} of epoch {epoch}; its newest batch "
                f"has epoch {known.epoch}"
            )
        return is_open or epoch > known.epoch

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

    def coordinator_epoch(self, producer_id: int) -> LeaderEpoch:
        """Return the epoch of the coordinator of a producer's last marker; 0 without one."""
        producer = self._producers.get(producer_id)
        return 0 if producer is None else max(producer.coordinator_epoch, 0)

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
            ActiveProducer(
                producer_id,
                producer.epoch,
                producer.batches[-1],
                producer.coordinator_epoch,
                -1 if (first := self.transactions.first_offset(producer_id)) is None else first,
            )
            for producer_id, producer in islice(newest_first, skip, skip + limit)
        ]

    def newest_base_offsets(self) -> list[Offset]:
        """Return the base offset of each producer's newest batch. Compaction must keep the headers
        of these batches."""
        return [producer.batches[-1].base_offset for producer in self._producers.values()]

    def note(self, header: BatchHeader) -> None:
        """Add a batch of the log. It was checked when it was appended."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        producer = self._producers.pop(producer_id, None)
        if producer is None or producer.epoch != epoch:
            coordinator_epoch = -1 if producer is None else producer.coordinator_epoch
            producer = _Producer(producer_id, epoch, (), header.base_offset, coordinator_epoch)
        if header.is_control:
            producer = producer._replace(
                coordinator_epoch=header.base_sequence, marker_ms=header.append_timestamp
            )
            self.transactions.end(producer_id, header.base_offset, is_commit=header.is_commit)
        elif header.is_transactional:
            self.transactions.begin(producer_id, header.base_offset)
        if not (producer.batches and header.is_control):
            batches = *producer.batches, _written(header)
            producer = producer._replace(batches=batches[-limits.PRODUCER_BATCHES_REMEMBERED :])
        self._producers[producer_id] = producer
        if len(self._producers) > limits.PRODUCERS_PER_PARTITION_MAX:
            del self._producers[next(each for each in self._producers if self._may_go(each))]

    def _may_go(self, producer_id: int) -> bool:
        # guard: open transactions outlive the expiry of producers
        return producer_id not in self.transactions

    def needs_no_replay(self, removed: Iterable[BatchHeader], log_end_offset: Offset) -> bool:
        """Return whether the table without the ``removed`` batches, from the new log end on, is
        known without a replay of the log: none is part of a transaction, and a batch of the same
        epoch is left of each of their producers.

        A producer has at most ``PRODUCER_BATCHES_REMEMBERED`` batches in flight. Those that are
        left are thus enough to detect what it sends again.
        """
        for header in removed:
            # guard: the truncation of a transaction replays the log
            if header.is_transactional or header.is_control:
                return False
            producer = self._producers.get(header.producer_id)
            # guard: a producer of which no batch is left is replayed
            if producer is not None and (
                producer.epoch != header.producer_epoch
                or producer.batches[0].last_offset >= log_end_offset
            ):
                return False
        return True

    def cut(self, log_end_offset: Offset, rebuilt: ProducerTable | None) -> None:
        """Remove batches at or above the new log end.

        ``rebuilt``: table that was rebuilt from the remaining log. It restores batches that this
        table had replaced by newer, now truncated batches. This table may contain batches that
        retention has deleted and that ``rebuilt`` lacks. None: ``needs_no_replay``.
        """
        others = {} if rebuilt is None else rebuilt._producers
        for producer_id, producer in list(self._producers.items()):
            kept = [batch for batch in producer.batches if batch.last_offset < log_end_offset]
            other = others.get(producer_id)
            if not kept and other is None:
                del self._producers[producer_id]
            elif not kept and other is not None:
                self._producers[producer_id] = other
            else:
                theirs = (
                    other.batches if other is not None and other.epoch == producer.epoch else ()
                )
                # One that was compacted since is in both, and only this table has its checksum.
                batches = {batch.base_offset: batch for batch in (*theirs, *kept)}
                newest = sorted(batches)[-limits.PRODUCER_BATCHES_REMEMBERED :]
                marked = producer if other is None else other
                self._producers[producer_id] = producer._replace(
                    batches=tuple(batches[offset] for offset in newest),
                    coordinator_epoch=marked.coordinator_epoch,
                    marker_ms=marked.marker_ms,
                )
        by_last_write = sorted(self._producers.items(), key=lambda p: p[1].batches[-1].base_offset)
        self._producers = dict(by_last_write)
        if rebuilt is not None:
            # guard: truncation opens transactions again
            self.transactions = rebuilt.transactions

    def end_below(self, clean_end: Offset) -> None:
        """End the transactions that have no batch from ``clean_end`` on, where a compaction has
        ended: below each open transaction. It can have removed their markers since the snapshot
        from which this table was read.
        """
        for producer_id, first in self.transactions.opened():
            known = self._producers.get(producer_id)
            newest = first if known is None else known.batches[-1].base_offset
            if max(first, newest) < clean_end:
                self.transactions.forget(producer_id)

    def expire(self, *, now_ms: TimestampMs) -> int:
        """Remove producers that have not written for ``PRODUCER_EXPIRY_MS``, and have no open
        transaction. Returns their number."""
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if max(producer.batches[-1].append_timestamp_ms, producer.marker_ms)
            < now_ms - PRODUCER_EXPIRY_MS
            and self._may_go(producer_id)
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def snapshot(self) -> dict[str, Any]:
        """Return the table as the content of a state file, which later changes do not change."""
        transactions = self.transactions.snapshot()
        return {
            "producers": list(self._producers.values()),
            **({"transactions": transactions} if any(transactions.values()) else {}),
        }

    @classmethod
    def from_snapshot(cls, state: dict[str, Any]) -> ProducerTable:
        table = cls()
        for producer_id, epoch, batches, *rest in state["producers"]:
            written = tuple(WrittenBatch(*batch) for batch in batches)
            # Snapshots of older releases lack the first offset, and the rest of transactions. Use
            # the oldest known batch.
            last = rest[:3] or [written[0].base_offset]
            table._producers[producer_id] = _Producer(producer_id, epoch, written, *last)
        if "transactions" in state:
            table.transactions = LogTransactions.from_snapshot(state["transactions"])
        return table


def _written(header: BatchHeader) -> WrittenBatch:
    first = last = NO_SEQUENCE  # of a marker
    if not header.is_control:
        first = header.base_sequence
        # guard: a compacted batch counts its sequences by offsets
        last = last_sequence(first, header.last_offset_delta + 1)
    return WrittenBatch(
        first,
        last,
        header.base_offset,
        header.next_offset - 1,
        header.append_timestamp,
        None if header.is_compacted else header.crc32c,
    )


# -- transactions in the log of a partition --------------------------------------------------------
#
# Which are open, and which were aborted. A function of the log's headers, on the leader and on its
# followers: a producer's first transactional batch opens a transaction, and its marker (a control
# batch) ends it. Readers of committed records read up to the last stable offset (LSO): below it,
# each transaction has ended by a committed marker. They drop the records of the aborted ones, which
# ``aborted`` lists.
#
# Source: KIP-98; ``ProducerStateManager`` and ``TransactionIndex`` of Kafka's broker.


class Aborted(NamedTuple):
    """An aborted transaction. ``stable_offset``: LSO at its marker, once that was committed: no
    transaction that ended later begins below it.
    """

    producer_id: int
    first_offset: Offset
    marker_offset: Offset
    stable_offset: Offset


class _Ending(NamedTuple):
    """A transaction whose marker may not be committed yet."""

    marker_offset: Offset
    first_offset: Offset


class LogTransactions:
    """Call ``begin`` and ``end`` in the order of the log."""

    __slots__ = ("_aborted", "_ending", "_open")

    def __init__(self) -> None:
        self._open: dict[int, Offset] = {}  # first offset by producer, the oldest first
        self._ending: deque[_Ending] = deque()  # by marker
        self._aborted: list[Aborted] = []  # by marker

    def __len__(self) -> int:
        """The number of open transactions."""
        return len(self._open)

    def __contains__(self, producer_id: int) -> bool:
        """Whether the producer has an open transaction."""
        return producer_id in self._open

    @property
    def aborted_count(self) -> int:
        return len(self._aborted)

    @property
    def last_aborted(self) -> Offset:
        """The newest marker of an aborted transaction; -1 without one."""
        return self._aborted[-1].marker_offset if self._aborted else -1

    def first_offset(self, producer_id: int) -> Offset | None:
        """Return the first offset of the producer's open transaction; None if it has none."""
        return self._open.get(producer_id)

    def opened(self) -> list[tuple[int, Offset]]:
        """Return the producers with open transactions and their first offsets, oldest first."""
        return list(self._open.items())

    # -- events ------------------------------------------------------------------------------------

    def begin(self, producer_id: int, offset: Offset) -> None:
        """Note a transactional batch of the producer."""
        self._open.setdefault(producer_id, offset)

    def end(self, producer_id: int, marker_offset: Offset, *, is_commit: bool) -> None:
        """Note a marker. One of an empty transaction changes nothing (KAFKA-10702)."""
        first = self._open.pop(producer_id, None)
        if first is None:
            return
        # guard: a marker counts once it is committed
        self._ending.append(_Ending(marker_offset, first))
        if not is_commit:
            stable = min(self._open.values(), default=marker_offset + 1)
            self._aborted.append(Aborted(producer_id, first, marker_offset, stable))

    def commit(self, high_watermark: Offset) -> None:
        """Note that the markers below ``high_watermark`` are committed."""
        ending = self._ending
        while ending and ending[0].marker_offset < high_watermark:
            ending.popleft()

    def forget(self, producer_id: int) -> None:
        """Forget the open transaction of a producer."""
        del self._open[producer_id]

    def forget_below(self, log_start: Offset) -> None:
        """Forget the aborted transactions whose records are deleted."""
        if self._aborted and self._aborted[0].marker_offset < log_start:
            count = bisect_left(self._aborted, log_start, key=_marker_offset)
            del self._aborted[:count]

    def keep_aborted(self, is_kept: Callable[[Aborted], bool]) -> None:
        """Forget the other aborted transactions."""
        self._aborted = [each for each in self._aborted if is_kept(each)]

    # -- queries -----------------------------------------------------------------------------------

    def last_stable_offset(self, high_watermark: Offset) -> Offset:
        """Return the end of the records whose transactions have all ended by committed markers."""
        self.commit(high_watermark)
        stable = high_watermark
        # guard: an open transaction holds the last stable offset
        if self._open:
            stable = min(stable, next(iter(self._open.values())))
        for each in self._ending:
            stable = min(stable, each.first_offset)
        return stable

    def aborted(self, start: Offset, end: Offset) -> list[Aborted]:
        """Return the aborted transactions with records from ``start`` to below ``end``, by the
        order of their markers. ``end`` is not above the LSO.
        """
        found: list[Aborted] = []
        index = bisect_left(self._aborted, start, key=_marker_offset)
        while index < len(self._aborted):
            each = self._aborted[index]
            if each.first_offset < end:
                found.append(each)
            if each.stable_offset >= end:
                break
            index += 1
        return found

    def has_aborted(self, header: BatchHeader) -> bool:
        """Return whether a batch is of an aborted transaction."""
        return header.is_transactional and any(
            each.producer_id == header.producer_id and each.first_offset <= header.base_offset
            for each in self.aborted(header.base_offset, header.next_offset)
        )

    # -- state -------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the content of a state file. Markers that may not be committed are in it."""
        return {
            "open": list(self._open.items()),
            "ending": list(self._ending),
            "aborted": self._aborted.copy(),
        }

    @classmethod
    def from_snapshot(cls, state: dict[str, Iterable[Iterable[int]]]) -> Self:
        made = cls()
        made._open = {int(producer): int(first) for producer, first in state["open"]}
        made._ending = deque(_Ending(*each) for each in state["ending"])
        made._aborted = [Aborted(*each) for each in state["aborted"]]
        return made


def _marker_offset(aborted: Aborted) -> Offset:
    return aborted.marker_offset
