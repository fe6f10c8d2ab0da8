"""Searches the logs of a running broker for damage: where a read was suspect, and all in turn.

The log records the damage and serves nothing from there on. Where there are other replicas, the
broker replaces its copy (``cluster.damage``). This module reports it to the operator.
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

DOUBT_BYTES_MAX: Final = limits.MIB  # looked at for one doubt: about a millisecond, when cached
STEP_SECONDS: Final = 1.0
STEP_BYTES_MIN: Final = 64 * limits.KIB
STEP_BYTES_MAX: Final = 4 * limits.MIB
LOOK_BYTES: Final = 256 * limits.KIB  # before the loop serves others
HOSTS_PER_TURN: Final = 50  # the same, where there is nothing to read
MEASURE_EVERY_STEPS: Final = 60  # how much there is to verify


class LogVerifier:
    """Verifies parts of logs, on the broker's loop."""

    def __init__(self, counters: Counters, *, on_damage: Callable[[Partition], None]) -> None:
        """``on_damage``: told of a host whose log has noted damage just now."""
        self._counters = counters
        self._on_damage = on_damage

    def doubt(self, host: Partition, offset: Offset, *, bytes_max: int) -> None:
        """Have the log note it if ``bytes_max`` bytes from ``offset`` on, a mebibyte of them at
        most, are not sound.
        """
        with suppress(DamagedLogError, OffsetOutOfRangeError):
            self.verify(host, offset, bytes_max=min(bytes_max, DOUBT_BYTES_MAX))

    def verify(self, host: Partition, offset: Offset, *, bytes_max: int) -> Offset:
        """See ``Log.verify``; damage that was not known is told of."""
        known = host.log.damage
        try:
            return host.log.verify(offset, bytes_max=bytes_max)
        except DamagedLogError:
            if host.log.damage != known:
                self.tell(host)
            raise

    def tell(self, host: Partition) -> None:
        """The host's log has noted damage just now."""
        self._counters.damage_found += 1
        logger.error("log corrupt: partition=%s reason=%s", host.topic_partition, host.log.damage)
        self._on_damage(host)


class _Place(NamedTuple):
    """Where a scrub is in a log, and where this round of it ends: appends go on meanwhile."""

    topic_partition: TopicPartition
    offset: Offset
    end_offset: Offset


class Scrubber:
    """Verifies every log of the broker, a little each second, again and again.

    So much each time that all of it comes round in the interval, and not less than
    ``STEP_BYTES_MIN``; where ``STEP_BYTES_MAX`` is too little for that, it takes longer.
    """

    def __init__(
        self, hosts: Callable[[], Sequence[Partition]], verifier: LogVerifier, *, interval_ms: int
    ) -> None:
        self._hosts = hosts
        self._verifier = verifier
        self._interval_ms = interval_ms
        self._turn = 0  # whose turn it is, as an index of ``hosts``
        self._place: _Place | None = None  # in its log, once that was begun
        self._steps = 0
        self._step_bytes = STEP_BYTES_MIN

    async def step(self) -> None:
        """Verify as much as is due each second, and each log once at most."""
        if self._steps % MEASURE_EVERY_STEPS == 0:
            await self._measure()
        self._steps += 1
        bytes_left = self._step_bytes
        hosts = self._hosts()
        self._find_turn(hosts)
        for number in range(1, len(hosts) + 1):
            host = hosts[self._turn]
            while bytes_left > 0 and (place := self._place_in(host)) is not None:
                bytes_left -= self._look(host, place, min(bytes_left, LOOK_BYTES))
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
        """Partitions come and go: the one that was begun may have another index, or none."""
        if self._place is not None:
            for index, host in enumerate(hosts):
                if host.topic_partition == self._place.topic_partition:
                    self._turn = index
                    return
            self._place = None
        if self._turn >= len(hosts):
            self._turn = 0

    def _place_in(self, host: Partition) -> _Place | None:
        """Where to go on in the log; None when there is nothing left of it in this round.

        Both its ends may have moved, or the copy may be a new one.
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

    def _look(self, host: Partition, place: _Place, bytes_max: int) -> int:
        """Verify the next bytes of a log; about how many those were, one at least."""
        log = host.log
        try:
            reached = self._verifier.verify(host, place.offset, bytes_max=bytes_max)
        except DamagedLogError:
            return bytes_max
        except OSError as error:  # a file that cannot be opened: what is in it is not known
            logger.warning(
                "verification skipped: partition=%s error=%s", host.topic_partition, error
            )
            self._place = place._replace(offset=place.end_offset)
            return bytes_max
        self._place = place._replace(offset=reached)
        if reached < log.log_end_offset:
            return bytes_max
        # The rest of a log may be little: what share of its offsets it was.
        share = (reached - place.offset) / max(log.log_end_offset - log.log_start_offset, 1)
        return min(max(int(share * log.size_bytes), 1), bytes_max)
