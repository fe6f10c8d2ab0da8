"""Batch reader: reads whole, undecoded batches of many partitions, for a program that copies them.

Like ``RangeReader`` it uses the consumer core and checks that the batches of a partition cover its
offsets without gaps. It has no ranges, and does not convert records.
"""

from __future__ import annotations

from collections.abc import Mapping

from raftlog.client.consumer_core import Checked
from raftlog.client.partition_reader import PartitionReader
from raftlog.client.subscription import check_partitions
from raftlog.client.waiting import refuse_io_thread, wait_once
from raftlog.types import Offset, TopicPartition


class BatchReader(PartitionReader):
    """Client that reads batches of partitions from given offsets on. A context manager.

    One thread at a time can use it.
    """

    NAME = "batch reader"

    def start(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Read exactly these partitions, each from its offset on. Ends earlier reads.

        Raises ``UnknownTopicError`` or ``UnknownPartitionError`` if a partition does not exist, and
        ``ClosedError`` if the reader is closed.
        """
        refuse_io_thread()
        self._check_open()
        self._used = True
        partitions = check_partitions(positions)
        wanted = dict(zip(partitions, positions.values(), strict=True))
        self._thread.call(lambda: self._core.begin_at(wanted))

    def poll(self, timeout_s: float) -> tuple[TopicPartition | None, list[Checked]]:
        """Return fetched batches of one partition; (None, []) if none arrive in ``timeout_s``.

        The first batch can start below the requested offset, which is then inside of it. The
        checksums are verified.

        Raises ``OffsetOutOfRangeError`` if the next records of a partition are deleted,
        ``UnknownTopicError``, ``DamagedLogError`` or ``CorruptBatchError`` if a partition cannot be
        read, and ``ClosedError`` if the reader is closed.
        """
        self._check_open()
        found = self._core.take_checked()
        if found[0] is None and timeout_s > 0:
            wait_once(self._subscription.when_ready, timeout_s)
            self._check_open()
            found = self._core.take_checked()
        return found
