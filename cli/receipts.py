"""What became of records that were sent: outcomes in order, offsets by partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from raftlog.types import Offset, OffsetRange, RecordMetadata

FUTURES_MAX: Final = 1_000  # outcomes not looked at yet; a future holds on to little


class Future(Protocol):
    """What ``send`` and ``send_many`` return."""

    def done(self) -> bool: ...

    def result(self, timeout: float | None = None) -> RecordMetadata | Sequence[OffsetRange]: ...


@dataclass
class PartitionReceipt:
    """Acknowledged records of one partition, and the offsets that they lie within."""

    partition: int
    records: int
    first_offset: Offset
    last_offset: Offset


class Receipts:
    """Collects outcomes in the order of sending; the first failure is raised."""

    def __init__(self) -> None:
        self._awaited: deque[Future] = deque()
        self._partitions: dict[int, PartitionReceipt] = {}

    @property
    def acknowledged(self) -> int:
        """Records that brokers have said to hold. With ``acks=0`` they never say."""
        return sum(receipt.records for receipt in self._partitions.values())

    def expect(self, future: Future) -> None:
        """Add an outcome; take in those that are there, and wait if there are too many."""
        self._awaited.append(future)
        while self._awaited and (len(self._awaited) > FUTURES_MAX or self._awaited[0].done()):
            self._settle()

    def settle_all(self) -> None:
        """Wait for every outcome."""
        while self._awaited:
            self._settle()

    def _settle(self) -> None:
        outcome = self._awaited.popleft().result()
        if isinstance(outcome, RecordMetadata):
            self._count(outcome.partition, outcome.offset, outcome.offset)
            return
        for part in outcome:
            self._count(part.partition, part.first, part.last)

    def _count(self, partition: int, first: Offset, last: Offset) -> None:
        if first < 0:
            return  # acks=0: nobody said where
        receipt = self._partitions.get(partition)
        if receipt is None:
            receipt = self._partitions[partition] = PartitionReceipt(partition, 0, first, last)
        receipt.records += last - first + 1
        receipt.first_offset = min(receipt.first_offset, first)
        receipt.last_offset = max(receipt.last_offset, last)

    def rows(self) -> list[dict[str, Any]]:
        """The receipts by partition, as plain values."""
        return [asdict(receipt) for _, receipt in sorted(self._partitions.items())]
