"""Compaction on a broker: selects the next log, reports on it, and handles its failures.

One log at a time, in a separate thread: see ``log_compaction``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from raftlog.config import BrokerConfig
from raftlog.errors import (
    DamagedLogError,
    DiskFullError,
    StorageFailedError,
)
from raftlog.server.broker_clock import BrokerClock
from raftlog.server.log_compaction import Pace, Pass, Terms
from raftlog.server.partition import Partition
from raftlog.server.scrubber import LogVerifier
from raftlog.server.workers import Workers
from raftlog.types import TimestampMs, TopicPartition

logger = logging.getLogger(__name__)

HOSTS_PER_TURN: Final = 50  # checked before the event loop serves other work


class LogCleaner:
    """Compacts the logs of a broker one after the other, the one with the highest dirty ratio
    first.
    """

    def __init__(
        self,
        config: BrokerConfig,
        hosts: Callable[[], Sequence[Partition]],
        workers: Workers,
        *,
        clock: BrokerClock,
        entropy: Callable[[int], bytes],
        verifier: LogVerifier,
        on_failed: Callable[[StorageFailedError], None],
    ) -> None:
        """``workers``: of one thread. ``verifier``: gets reports of corruption."""
        self._hosts = hosts
        self._workers = workers
        self._clock = clock
        self._entropy = entropy
        self._verifier = verifier
        self._on_failed = on_failed
        self._memory_bytes = config.log_cleaner_dedupe_buffer_size
        self._bytes_per_second = config.log_cleaner_io_max_bytes_per_second
        self._put_off: set[TopicPartition] = set()  # postponed for lack of disk space, as logged

    async def step(self) -> None:
        """Compact what is due. A failed log is skipped until the next step. Nothing is due while
        the trusted time is unknown: tombstones would be removed too early.
        """
        if self._clock.deletion_ms() is None:
            return
        left_out: set[Partition] = set()
        while (host := await self._dirtiest(left_out)) is not None:
            if not await self._compact(host):
                left_out.add(host)

    async def _dirtiest(self, left_out: set[Partition]) -> Partition | None:
        """Return the due log with the largest share of records that were never compacted."""
        found: Partition | None = None
        most = 0.0
        for number, host in enumerate(tuple(self._hosts()), start=1):
            if host.closed is None and host.log.config.is_compacted and host not in left_out:
                ratio = self._dirty_ratio(host)
                if ratio > most:
                    found, most = host, ratio
            if number % HOSTS_PER_TURN == 0:
                await asyncio.sleep(0)
        return found

    def _now_ms(self) -> TimestampMs:
        now_ms = self._clock.deletion_ms()
        assert now_ms is not None, "the trusted time stays known after its first value"
        return now_ms

    def _dirty_ratio(self, host: Partition) -> float:
        """Return the dirty ratio of a log that is due; else 0."""
        try:
            return host.log.dirty_ratio(
                now_ms=self._now_ms(),
                high_watermark=host.high_watermark,
                tombstones_kept_from=host.tombstones_kept_from,
            )
        except (DamagedLogError, OSError) as error:
            logger.warning("compaction skipped: partition=%s error=%s", host.topic_partition, error)
            return 0.0

    async def _compact(self, host: Partition) -> bool:
        """Return whether the log was compacted."""
        future: asyncio.Future[Pass] = asyncio.get_running_loop().create_future()

        def finished(outcome: Pass) -> None:
            if not future.done():  # the waiting task may have been cancelled
                future.set_result(outcome)

        log = host.log
        known = log.damage
        terms = Terms(
            now_ms=self._now_ms(),
            chance_seed=int.from_bytes(self._entropy(8)),
            memory_bytes=self._memory_bytes,
        )
        compaction = host.compaction
        compaction.begin(
            terms,
            high_watermark=lambda: host.high_watermark,
            tombstones_kept_from=lambda: host.tombstones_kept_from,
            workers=self._workers,
            pause=Pace(lambda: compaction.is_given_up, bytes_per_second=self._bytes_per_second),
            finished=finished,
        )
        outcome = await future
        if log.damage and log.damage != known:
            self._verifier.report_damage(host)
        elif outcome.error is not None:
            self._failed(host, outcome.error)
        elif outcome.is_done:
            self._put_off.discard(host.topic_partition)
            self._say(host)
        return outcome.is_done

    def _say(self, host: Partition) -> None:
        """Log one line for each pass, which may take several tasks."""
        status = host.log.compaction
        if status.last is None or status.is_under_way:
            return
        counters = self._verifier.counters
        counters.compactions += 1
        counters.compacted_records += status.last.records_removed
        logger.info(
            "compaction done: partition=%s clean_end=%d bytes_before=%d bytes_after=%d "
            "records_removed=%d seconds=%.1f",
            host.topic_partition,
            status.clean_end_offset,
            status.last.bytes_before,
            status.last.bytes_after,
            status.last.records_removed,
            (self._now_ms() - status.last.began_ms) / 1_000,
        )

    def _failed(self, host: Partition, error: Exception) -> None:
        tp = host.topic_partition
        if isinstance(error, OSError):
            error = host.log.disk_failed(f"compacting {host.log.directory}", error)
        if isinstance(error, StorageFailedError):
            self._on_failed(error)
        elif isinstance(error, DiskFullError):
            if tp not in self._put_off:  # each step fails the same until there is space
                logger.warning(
                    "compaction postponed: partition=%s reason=disk_full error=%s", tp, error
                )
            self._put_off.add(tp)
        else:
            logger.error("compaction failed: partition=%s", tp, exc_info=error)
