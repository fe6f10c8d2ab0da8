"""Clock of a broker: the time for new records, and the time by which data expires.

It holds the clocks of the machine and ``replication.trusted_time``, which decides. The trusted time
is saved, so that the next start can compare its clock with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from raftlog.clock import Clock
from raftlog.replication.trusted_time import TrustedTime
from raftlog.types import TimestampMs

logger = logging.getLogger(__name__)

UPDATE_SECONDS: Final = 1.0


class BrokerClock:
    """A ``Clock`` whose wall time is the time for new records; see ``TrustedTime.record_ms``."""

    def __init__(
        self,
        clock: Clock,
        *,
        broker_id: int = 0,
        voters: Collection[int] | None = (),
        saved_ms: TimestampMs | None = None,
    ) -> None:
        """``voters``, ``saved_ms``: see ``TrustedTime``; the defaults are a broker without others,
        and a first start.
        """
        self.machine = clock
        self.monotonic: Callable[[], float] = clock.monotonic  # seconds
        self._trusted = TrustedTime(
            broker_id=broker_id,
            voters=voters,
            saved_ms=saved_ms,
            now=clock.monotonic(),
            wall_ms=clock.wall_ms(),
        )
        self._has_stepped = False
        self._is_waiting = False

    # -- reading -----------------------------------------------------------------------------------

    def wall_ms(self) -> TimestampMs:
        return self.read()[1]

    def read(self) -> tuple[float, TimestampMs]:
        """Return monotonic seconds, and the wall time for new records, of the same moment."""
        now = self.machine.monotonic()
        # guard: records are stamped with the trusted time
        return now, self._trusted.record_ms(now, self.machine.wall_ms())

    def deletion_ms(self) -> TimestampMs | None:
        """Return the time by which data may expire; None: nothing may expire now."""
        return self._trusted.deletion_ms(self.machine.monotonic())

    @property
    def is_behind_saved(self) -> bool:
        """Whether data expires by a time that is behind the last saved one by a step."""
        return self._trusted.is_behind_saved(self.machine.monotonic())

    def error_ms(self) -> int:
        """Return the milliseconds by which the machine's wall clock is ahead of the trusted time,
        if that is a step; negative if it is behind.
        """
        return self._trusted.error_ms(self.machine.monotonic(), self.machine.wall_ms())

    # -- events ------------------------------------------------------------------------------------

    def set_voters(self, voters: Collection[int]) -> None:
        """See ``TrustedTime.set_voters``."""
        self._trusted.set_voters(voters)

    def on_peer(self, broker_id: int, wall_ms: TimestampMs, round_trip_s: float) -> None:
        """Process the wall-clock time in a peer's response."""
        now = self.machine.monotonic()
        self._trusted.on_peer(broker_id, wall_ms, round_trip_s=round_trip_s, now=now)

    def update(self) -> None:
        """Compare the clocks; call it every ``UPDATE_SECONDS``."""
        self._trusted.update(now=self.machine.monotonic(), wall_ms=self.machine.wall_ms())
        self._log_changes()

    def _log_changes(self) -> None:
        error_ms = self.error_ms()
        if (error_ms != 0) != self._has_stepped:
            self._has_stepped = error_ms != 0
            if self._has_stepped:
                logger.error(
                    "wall clock differs: ahead_s=%.1f. Retention, compaction and other expiry do "
                    "not use this clock. Correct the clock; %s",
                    error_ms / 1_000,
                    "if it is already correct, restart the broker"
                    if self._trusted.is_alone
                    else "if it is already correct, correct the clocks of the other brokers",
                )
            else:
                logger.info("wall clock corrected: expiry=active")
        is_waiting = self.deletion_ms() is None
        if is_waiting != self._is_waiting:
            self._is_waiting = is_waiting
            logger.info(
                "expiry paused: reason=clock_not_confirmed"
                if is_waiting
                else "expiry resumed: reason=clock_confirmed"
            )
