"""Rate limit of requested leadership transfers: each one is an election that interrupts clients.

It decides by the time that it is given; ``operations`` makes the transfer.
"""

from __future__ import annotations

from typing import Final

from raftlog.errors import ThrottledError
from raftlog.types import TopicPartition

INTERVAL_SECONDS: Final = 1.0  # seconds between two transfers of one partition
PER_SECOND: Final = 10.0  # transfers of all partitions, on average
BURST: Final = 20.0  # transfers at once, after an idle time


class TransferRate:
    """Rate limit of the transfers that one broker is requested to make."""

    def __init__(self) -> None:
        self._last_seconds: dict[TopicPartition, float] = {}  # transfers within the interval
        self._left = BURST
        self._counted_seconds = 0.0  # monotonic seconds; time of the last update of _left

    def admit(self, partition: TopicPartition, now: float) -> None:
        """Count a transfer at ``now`` (seconds, monotonic), or raise ``ThrottledError``."""
        ended = now - INTERVAL_SECONDS
        self._last_seconds = {
            moved: when for moved, when in self._last_seconds.items() if when > ended
        }
        if partition in self._last_seconds:
            raise ThrottledError(
                f"{partition}: its leadership was transferred less than {INTERVAL_SECONDS:g} s "
                "ago. Try again later"
            )
        left = min(BURST, self._left + (now - self._counted_seconds) * PER_SECOND)
        if left < 1:
            raise ThrottledError(
                f"one broker transfers leadership at most {PER_SECOND:g} times per second. Try "
                "again later"
            )
        self._left, self._counted_seconds = left - 1, now
        self._last_seconds[partition] = now
