"""Throttle of moves on one broker: which of its copies are throttled, and the timer of their turns.

``replication.copy_throttle`` decides. The rate is in the cluster state (``SetMoveThrottle``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from raftlog.replication.cluster_state import ClusterMachine
from raftlog.replication.copy_throttle import CopyThrottle
from raftlog.server.partition import Partition


class MoveThrottle:
    """One for all fetchers of a broker."""

    def __init__(
        self,
        broker_id: int,
        machine: ClusterMachine,
        loop: asyncio.AbstractEventLoop,
        *,
        chunk_bytes_max: int,
    ) -> None:
        self._broker_id = broker_id
        self._machine = machine
        self._loop = loop
        self._copies: CopyThrottle[Hashable] = CopyThrottle(
            lambda: machine.move_throttle, chunk_bytes_max=chunk_bytes_max
        )
        self._resume: dict[Hashable, Callable[[], None]] = {}  # by copy that waits
        self._timer: asyncio.TimerHandle | None = None

    def bytes_max(self, copy: Hashable, host: Partition, *, is_first: bool) -> int:
        """Return the maximum size of the next fetch of a copy, in bytes. ``is_first``: the leader
        has sent no records yet.
        """
        return self._copies.bytes_max(copy, is_first=is_first and self._is_added(host))

    def must_wait(self, host: Partition, high_watermark: int) -> bool:
        """Whether the copy must wait for its turn after a response with that high watermark: a move
        adds it, and it is not in sync.
        """
        return host.log.log_end_offset < high_watermark and self._is_added(host)

    def wait(self, copy: Hashable, received: int, resume: Callable[[], None]) -> None:
        """Call ``resume`` when the copy may fetch the next chunk. ``received``: bytes of the last
        response.
        """
        self._resume[copy] = resume
        self._copies.wait(copy, received, self._loop.time())
        if self._timer is None:
            self._poll()

    def forget(self, copy: Hashable) -> None:
        """Stop throttling a copy: it has caught up, or is not copied any longer."""
        self._resume.pop(copy, None)
        self._copies.forget(copy, self._loop.time())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _is_added(self, host: Partition) -> bool:
        """Whether a move adds this broker to the replicas, and moves are throttled."""
        if not self._copies.is_on:
            return False
        record = self._machine.topic_by_id(host.topic_id)
        partition = host.topic_partition.partition
        if record is None or partition >= len(record.partitions):
            return False
        target = record.partitions[partition].target
        return target is not None and self._broker_id not in target.origin

    def _poll(self) -> None:
        due, seconds = self._copies.due(self._loop.time())
        self._timer = None if seconds is None else self._loop.call_later(seconds, self._poll)
        for copy in due:
            self._resume.pop(copy)()
