"""Compaction on a broker: selects the next log, reports on it, and handles its failures.

One log at a time, in a separate thread: see ``storage.compaction``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from raftlog import limits
from raftlog.config import BrokerConfig
from raftlog.errors import DamagedLogError, DiskFullError, OffsetOutOfRangeError, StorageFailedError
from raftlog.server.clock import BrokerClock
from raftlog.server.metrics import Counters
from raftlog.server.partition import Pace, Partition, Pass, Terms
from raftlog.server.scheduling import Workers
from raftlog.types import Offset, TimestampMs, TopicPartition

# -- scrubber --------------------------------------------------------------------------------------
#
# Corruption detection in the logs of a running broker: suspect ranges at once, all logs in turn.
#
# The log records the corruption and returns no records from there on. If there are other replicas,
# the broker replaces its copy (``cluster.damage``). This module logs it for the operator.


logger = logging.getLogger(__name__)

SUSPECT_BYTES_MAX: Final = limits.MIB  # verified per suspicion
STEP_SECONDS: Final = 1.0
STEP_BYTES_MIN: Final = 64 * limits.KIB
STEP_BYTES_MAX: Final = 4 * limits.MIB
VERIFY_BYTES_PER_TURN: Final = 128 * limits.KIB  # of the event loop: 2 ms of small batches
HOSTS_PER_TURN: Final = 50  # the same, if there is nothing to read
MEASURE_EVERY_STEPS: Final = 60  # how often the total size is measured


class LogVerifier:
    """Verifies ranges of logs, on the broker's loop."""

    def __init__(self, counters: Counters, *, on_damage: Callable[[Partition], None]) -> None:
        """``on_damage``: called with a host in whose log corruption was just found."""
        self.counters = counters
        self._on_damage = on_damage

    def verify_suspect(self, host: Partition, offset: Offset, *, bytes_max: int) -> None:
        """Verify ``bytes_max`` bytes from ``offset`` on, at most 1 MiB, so that the log records
        corruption: the first ``VERIFY_BYTES_PER_TURN`` now, each of the next in a later turn.
        """
        bytes_left = min(bytes_max, SUSPECT_BYTES_MAX)
        now = min(bytes_left, VERIFY_BYTES_PER_TURN)
        with suppress(DamagedLogError, OffsetOutOfRangeError):
            reached = self.verify(host, offset, bytes_max=now)
            if bytes_left > now and reached < host.log.readable_end_offset:
                asyncio.get_running_loop().call_soon(
                    self._verify_more, host, reached, bytes_left - now
                )

    def _verify_more(self, host: Partition, offset: Offset, bytes_left: int) -> None:
        if host.closed is None:
            with suppress(OSError):  # the file cannot be opened, so its state is unknown
                self.verify_suspect(host, offset, bytes_max=bytes_left)

    def verify(self, host: Partition, offset: Offset, *, bytes_max: int) -> Offset:
        """See ``Log.verify``; new corruption is reported."""
        known = host.log.damage
        try:
            return host.log.verify(offset, bytes_max=bytes_max)
        except DamagedLogError:
            if host.log.damage != known:
                self.report_damage(host)
            raise

    def report_damage(self, host: Partition) -> None:
        """Report corruption that the host's log has just recorded."""
        self.counters.damage_found += 1
        logger.error("log corrupt: partition=%s reason=%s", host.topic_partition, host.log.damage)
        self._on_damage(host)


class _Place(NamedTuple):
    """Position of a scrub in a log, and the end of this round: appends continue during it."""

    topic_partition: TopicPartition
    offset: Offset
    end_offset: Offset


class Scrubber:
    """Verifies every log of the broker, a little each second, in endless rounds.

    The amount per second is such that one round takes the interval, and at least
    ``STEP_BYTES_MIN``. If ``STEP_BYTES_MAX`` is too little for that, a round takes longer.
    """

    def __init__(
        self, hosts: Callable[[], Sequence[Partition]], verifier: LogVerifier, *, interval_ms: int
    ) -> None:
        self._hosts = hosts
        self._verifier = verifier
        self._interval_ms = interval_ms
        self._turn = 0  # index of the current log in ``hosts``
        self._place: _Place | None = None  # position in the current log, once started
        self._steps = 0
        self._step_bytes = STEP_BYTES_MIN

    async def step(self) -> None:
        """Verify the amount that is due each second, and each log at most once."""
        if self._steps % MEASURE_EVERY_STEPS == 0:
            await self._measure()
        self._steps += 1
        bytes_left = self._step_bytes
        hosts = self._hosts()
        self._find_turn(hosts)
        for number in range(1, len(hosts) + 1):
            host = hosts[self._turn]
            while bytes_left > 0 and (place := self._place_in(host)) is not None:
                verified = self._verify_next(host, place, min(bytes_left, VERIFY_BYTES_PER_TURN))
                self._verifier.counters.scrubbed_bytes += verified
                bytes_left -= verified
                await asyncio.sleep(0)
            if bytes_left <= 0:
                return
            self._turn, self._place = (self._turn + 1) % len(hosts), None
            if number % HOSTS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _measure(self) -> None:
        total = 0
        for number, host in enumerate(self._hosts(), start=1):
            total += host.log.size_bytes
            if number % HOSTS_PER_TURN == 0:
                await asyncio.sleep(0)
        due = int(total * STEP_SECONDS * 1_000 / max(self._interval_ms, 1))
        self._step_bytes = min(max(due, STEP_BYTES_MIN), STEP_BYTES_MAX)

    def _find_turn(self, hosts: Sequence[Partition]) -> None:
        """Find the current partition again: its index may have changed, or it may be removed."""
        if self._place is not None:
            for index, host in enumerate(hosts):
                if host.topic_partition == self._place.topic_partition:
                    self._turn = index
                    return
            self._place = None
        if self._turn >= len(hosts):
            self._turn = 0

    def _place_in(self, host: Partition) -> _Place | None:
        """Return the position to continue from in the log; None if nothing is left of it in this
        round.

        Both ends of the log may have moved, or the copy may be a new one.
        """
        log = host.log
        if host.closed is not None or log.damage:
            return None
        place = self._place
        if place is None:
            if log.log_start_offset == log.log_end_offset:
                return None  # most of many partitions may be empty, and each step passes all
            place = _Place(host.topic_partition, log.log_start_offset, log.log_end_offset)
        offset = max(place.offset, log.log_start_offset)
        self._place = place._replace(offset=offset)
        return self._place if offset < min(place.end_offset, log.log_end_offset) else None

    def _verify_next(self, host: Partition, place: _Place, bytes_max: int) -> int:
        """Verify the next bytes of a log. Returns approximately how many those were, at least
        one.
        """
        log = host.log
        try:
            # guard: a scrub finds corruption
            reached = self._verifier.verify(host, place.offset, bytes_max=bytes_max)
        except DamagedLogError:
            return bytes_max
        except OSError as error:  # the file cannot be opened, so its state is unknown
            logger.warning(
                "verification skipped: partition=%s error=%s", host.topic_partition, error
            )
            self._place = place._replace(offset=place.end_offset)
            return bytes_max
        self._place = place._replace(offset=reached)
        if reached < log.log_end_offset:
            return bytes_max
        # The rest of a log may be small: estimate its bytes by its share of the offsets.
        share = (reached - place.offset) / max(log.log_end_offset - log.log_start_offset, 1)
        return min(max(int(share * log.size_bytes), 1), bytes_max)


# -- maintenance -----------------------------------------------------------------------------------


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
        # guard: nothing is compacted while the time is unknown
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
        # guard: tombstones wait for a copy in progress
        # guard: only committed records are compacted
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


# -- housekeeping ----------------------------------------------------------------------------------
#
# Periodic work of a broker: retention, segment rolls, snapshots and checks of the files.
#
# Each check of a log is short, and the loop continues in between; blocking work is in the log's
# tasks.


PLACE_INTERVAL_MS: Final = 1_000


class Housekeeping:
    """Rounds over all partitions, each with a separate interval."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        hosts: Callable[[], Sequence[Partition]],
        verifier: LogVerifier,
        compactor: LogCleaner,
        save_copies: Callable[[], Awaitable[None]],
    ) -> None:
        """``save_copies``: save the record of all copies (``storage.copies``)."""
        self._hosts = hosts
        self._loop = loop
        self.compactor = compactor
        self.scrub = Scrubber(hosts, verifier, interval_ms=config.log_scrub_interval_ms)
        # guard: a broker checks the files of its logs
        # guard: the durable end is recorded at an interval
        self._tasks = [
            loop.create_task(self._repeat(config.log_retention_check_interval_ms, self.retire)),
            loop.create_task(self._repeat(config.log_checkpoint_interval_ms, self.save)),
            loop.create_task(self._repeat(limits.COPIES_SAVE_MS, save_copies)),
            loop.create_task(self._repeat(config.log_cleaner_interval_ms, compactor.step)),
            loop.create_task(self._repeat(PLACE_INTERVAL_MS, self.check_places)),
        ]
        if config.log_scrub_interval_ms:
            scrubbing = self._repeat(int(STEP_SECONDS * 1_000), self.scrub.step)
            self._tasks.append(loop.create_task(scrubbing))

    async def retire(self) -> None:
        """Apply every topic's retention and segment age."""
        await self._visit(Partition.apply_retention)

    async def save(self) -> None:
        """Save the indexes and producers of every log, if they have changed."""
        await self._visit(Partition.save_snapshot)

    async def check_places(self) -> None:
        """Detect logs whose files are missing, also without reads and writes."""
        await self._visit(lambda host: host.log.check_place())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1_000)
            # An internal error ends this round only, not all later ones.
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - reported; no caller would do it
                self._report("a round of housekeeping failed:", error)

    def _report(self, what: str, error: Exception) -> None:
        text = f"{what} reason=internal_error. Report this error"
        self._loop.call_exception_handler({"message": text, "exception": error})

    async def _visit(self, visit: Callable[[Partition], None]) -> None:
        for number, host in enumerate(tuple(self._hosts()), start=1):
            if host.closed is None:
                # An internal error in one partition does not affect the others.
                try:
                    visit(host)
                except Exception as error:  # noqa: BLE001 - reported; no caller would do it
                    self._report(f"housekeeping failed: partition={host.topic_partition}", error)
            if number % HOSTS_PER_TURN == 0:
                await asyncio.sleep(0)
