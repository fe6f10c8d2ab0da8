"""Throttle of copies: rate limit for the replicas that moves add. Sans-I/O.

Kafka's replication throttle (KIP-73), with one more rule that makes it safe for commits: the caller
delays a copy only while it ends below the high watermark of the leader's response. The high
watermark never passes the end of an in-sync replica, so a replica that is in sync, or could be
added to the ISR, is never delayed.

Copies that wait take turns. A chunk is charged before its fetch, and the charge is corrected to the
size of the response afterwards: a response has at least one batch, which can be larger.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from raftlog.security.quota import Bucket

CHECK_SECONDS: Final = 1.0  # maximum time until a changed rate applies to copies that wait
CHECK_SECONDS_MIN: Final = 0.001

CopyT = TypeVar("CopyT", bound=Hashable)


class CopyThrottle(Generic[CopyT]):
    """The copies of one broker. ``now`` is in seconds, monotonic.

    In ``t`` seconds they fetch at most ``rate * (t + 1)`` bytes, one chunk more, and the first
    chunk of each copy, which is not delayed. A chunk has at most ``rate`` bytes, or one batch.
    """

    def __init__(self, rate: Callable[[], int], *, chunk_bytes_max: int) -> None:
        """``rate``: bytes per second at this time; 0 for no limit. ``chunk_bytes_max``: maximum
        size of one fetch of a copy.
        """
        self._rate = rate
        self._chunk_bytes_max = chunk_bytes_max
        self._bucket: Bucket | None = None
        self._waiting: dict[CopyT, None] = {}  # in the order of their turns
        self._reserved: dict[CopyT, int] = {}  # bytes of the chunk that is being fetched

    @property
    def is_on(self) -> bool:
        return self._rate() > 0

    def bytes_max(self, copy: CopyT, *, is_first: bool = False) -> int:
        """Return the maximum size of the next fetch of a copy, in bytes. ``is_first``: no response
        has shown yet whether it is in sync.
        """
        return self._reserved.get(copy, self._chunk() if is_first else self._chunk_bytes_max)

    def wait(self, copy: CopyT, received: int, now: float) -> None:
        """Count the bytes of a response, and let the copy wait for its next turn."""
        self._use(received - self._reserved.pop(copy, 0), now)
        self._waiting[copy] = None

    def forget(self, copy: CopyT, now: float) -> None:
        """Stop throttling a copy: it has caught up, or is not copied any longer."""
        self._waiting.pop(copy, None)
        self._use(-self._reserved.pop(copy, 0), now)

    def due(self, now: float) -> tuple[list[CopyT], float | None]:
        """Return the copies that can fetch now, and the seconds until the next call; None if no
        other copy waits.
        """
        due: list[CopyT] = []
        wait_seconds = self._use(0, now)
        while self._waiting and not wait_seconds:
            copy = next(iter(self._waiting))
            del self._waiting[copy]
            due.append(copy)
            if self.is_on:
                self._reserved[copy] = self._chunk()
                wait_seconds = self._use(self._reserved[copy], now)
        seconds = min(max(wait_seconds, CHECK_SECONDS_MIN), CHECK_SECONDS)
        return due, seconds if self._waiting else None

    def _chunk(self) -> int:
        return min(self._chunk_bytes_max, self._rate() or self._chunk_bytes_max)

    def _use(self, size: int, now: float) -> float:
        """Count bytes. Returns the seconds until the next turn; 0 for now."""
        rate = self._rate()
        if not rate:
            self._bucket = None
            return 0.0
        if self._bucket is None:
            self._bucket = Bucket(rate, now)
        return self._bucket.take(size, rate, now)
