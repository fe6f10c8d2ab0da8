"""Whether this broker leads still: asked for many requests at once, as each question costs a round.

A question answers for every request that came before it was asked, and for none that came after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog.errors import RaftlogError
from raftlog.server.waiters import Acknowledge

RECENT_SECONDS: Final = 10.0  # as long as a heartbeat takes the last answer for good
RENEWED_SECONDS: Final = 3.0  # after which heartbeats have the next question asked


class Confirmations:
    """Of one partition, in one leader epoch."""

    __slots__ = ("_ask", "_asked_at", "_confirmed_at", "_now", "_under_way", "_waiting")

    def __init__(self, ask: Callable[[Acknowledge], None], now: Callable[[], float]) -> None:
        """``ask``: whether this broker leads. ``now``: in seconds."""
        self._ask = ask
        self._now = now
        self._asked_at = self._confirmed_at = float("-inf")
        self._under_way: list[Acknowledge] | None = None
        self._waiting: list[Acknowledge] = []

    def confirm(self, done: Acknowledge) -> None:
        """Call ``done`` with None once it is certain that nobody else led when this was called."""
        self._waiting.append(done)
        if self._under_way is None:
            self._begin()

    @property
    def is_recent(self) -> bool:
        """Whether it was certain within the last ``RECENT_SECONDS``; has it asked again in time.

        For answers that do no harm when they are old: those who get them find the new leader so
        much later.
        """
        age = self._now() - self._confirmed_at
        if RENEWED_SECONDS < age <= RECENT_SECONDS and self._under_way is None:
            self._begin()
        return age <= RECENT_SECONDS

    def _begin(self) -> None:
        self._under_way, self._waiting = self._waiting, []
        self._asked_at = self._now()
        self._ask(self._answered)

    def _answered(self, error: RaftlogError | None) -> None:
        asked, self._under_way = self._under_way, None
        assert asked is not None
        if error is None:
            self._confirmed_at = self._asked_at
        for done in asked:
            done(error)
        if self._waiting and self._under_way is None:
            self._begin()
