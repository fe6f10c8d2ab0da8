"""Meter of one connection: what its client uses of its quotas, and how long it has to wait."""

from __future__ import annotations

from collections.abc import Callable

from raftlog import limits
from raftlog.security.quota import QuotaKey, Quotas


class Meter:
    """Created at the first request that quotas may apply to.

    ``user``, ``client_id``: as the client is known now.
    """

    __slots__ = ("_now", "_quotas", "_wait_seconds", "client_id", "user")

    def __init__(self, quotas: Quotas, now: Callable[[], float]) -> None:
        """``now``: monotonic seconds."""
        self._quotas = quotas
        self._now = now
        self._wait_seconds = 0.0
        self.user = ""
        self.client_id = ""

    def use(self, key: QuotaKey, amount: float) -> None:
        """Count the use of a rate."""
        wait_seconds = self._quotas.use(key, self.user, self.client_id, amount, self._now())
        self._wait_seconds = max(self._wait_seconds, wait_seconds)

    def ran(self, seconds: float) -> None:
        """Count time in which the broker worked for the client."""
        self.use("request_percentage", 100 * seconds)

    def take_wait_ms(self) -> int:
        """Return for how long the client has to wait now, in ms; its next wait begins at 0."""
        wait_seconds, self._wait_seconds = self._wait_seconds, 0.0
        return min(int(wait_seconds * 1_000), limits.THROTTLE_MS_MAX)
