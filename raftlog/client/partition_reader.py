"""Partition reader: base of the clients that read stored batches from given offsets.

It has the consumer core without a group, positions or decoded records. ``RangeReader`` reads one
range as Arrow, ``BatchReader`` copies whole batches.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Final, Unpack

from raftlog import limits
from raftlog.client.consumer_core import ConsumerCore
from raftlog.client.defaults import CLIENT_ID_DEFAULT
from raftlog.client.environment import ClientEnvironment
from raftlog.client.settings import (
    Bootstrap,
    SecurityArguments,
    connection_settings,
    consumer_settings,
)
from raftlog.client.threaded import PlainClient
from raftlog.errors import ClosedError

_PARTITION_FETCH_BYTES: Final = 2 * limits.MIB


class PartitionReader(PlainClient):
    """Client that reads partitions from given offsets. One thread at a time can use it."""

    NAME: ClassVar[str]  # in errors and as the name of the thread

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        *,
        read_from: str = "replica",
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

        ``read_from``: "replica": each read from another in-sync replica; "leader": from the leader.
        ``max_partition_fetch_bytes``: maximum bytes of one fetch, 1 to 52,428,800. The reader can
            fetch this amount beyond the end, and eight times this amount ahead.

        All other arguments and errors are those of ``Consumer``.
        """
        arguments = {**locals(), "auto_offset_reset": "error", "fetch_min_bytes": 1}
        host = host or ClientEnvironment()
        self._core = ConsumerCore(
            connection_settings(arguments), consumer_settings(arguments), host
        )
        self._subscription = self._core.subscription
        self._take_thread(host, f"raftlog-{self.NAME.replace(' ', '-')}")
        self._core.attach(self._thread.schedule)
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the {self.NAME} was closed")
        self._thread.check_process()

    def _end(self) -> None:
        self._subscription.shut()
        self._thread.call(self._core.close)

    def _end_of_forgotten(self) -> Callable[[], Coroutine[Any, Any, None]]:
        return self._core.abandon
