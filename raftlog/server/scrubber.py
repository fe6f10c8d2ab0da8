"""Corruption detection in the logs of a running broker: suspect ranges at once, all logs in turn.

The log records the corruption and returns no records from there on. If there are other replicas,
the broker replaces its copy (``cluster.damage``). This module logs it for the operator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from raftlog import limits
from raftlog.errors import DamagedLogError, OffsetOutOfRangeError
from raftlog.server.metrics import Counters
from raftlog.server.partition import Partition
from raftlog.types import Offset, TopicPartition

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
