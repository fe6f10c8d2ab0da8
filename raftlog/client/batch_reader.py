"""Batch reader: reads whole, undecoded batches of many partitions, for a program that copies them.

Like ``RangeReader`` it uses the consumer core and checks that the batches of a partition cover its
offsets without gaps. It has no ranges, and does not convert records.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Unpack

from raftlog import limits
from raftlog.client.consumer_core import Checked, ConsumerCore
from raftlog.client.environment import ClientEnvironment
from raftlog.client.settings import (
    CLIENT_ID_DEFAULT,
    Bootstrap,
    SecurityArguments,
    connection_settings,
    consumer_settings,
)
from raftlog.client.subscription import check_partitions
from raftlog.client.threaded import PlainClient
from raftlog.client.waiting import refuse_io_thread, wait_once
from raftlog.errors import ClosedError
from raftlog.types import Offset, TopicPartition

_PARTITION_FETCH_BYTES: Final = 2 * limits.MIB


class BatchReader(PlainClient):
    """Client that reads batches of partitions from given offsets on. A context manager.

    One thread at a time can use it.
    """

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        *,
        read_from: str = "leader",
        client_rack: str | None = None,
        check_crcs: bool = True,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = limits.FETCH_BYTES_MAX,
        max_partition_fetch_bytes: int = _PARTITION_FETCH_BYTES,
        request_timeout_ms: int = 30_000,
        client_id: str = CLIENT_ID_DEFAULT,
        bootstrap_timeout_ms: int = 3_000,
        metadata_max_age_ms: int = 30_000,
        host: ClientEnvironment | None = None,
        **security: Unpack[SecurityArguments],
    ) -> None:
        """Create the reader. It opens its first connection with the first read.

        All arguments and errors are those of ``Consumer``.
        """
        arguments = {**locals(), "auto_offset_reset": "error", "fetch_min_bytes": 1}
        host = host or ClientEnvironment()
        self._core = ConsumerCore(
            connection_settings(arguments), consumer_settings(arguments), host
        )
        self._take_thread(host, "raftlog-batch-reader")
        self._core.attach(self._thread.schedule)
        self._closed = False

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
            wait_once(self._core.subscription.when_ready, timeout_s)
            self._check_open()
            found = self._core.take_checked()
        return found

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the batch reader was closed")
        self._thread.check_process()

    def _end(self) -> None:
        self._core.subscription.shut()
        self._thread.call(self._core.close)

    def _end_of_forgotten(self) -> Callable[[], Coroutine[Any, Any, None]]:
        return self._core.abandon
