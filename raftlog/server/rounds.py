"""Shared rounds of an expensive query: each costs a round trip, so only one is in flight at a time.

A result counts for every caller that called before its query was sent, and for none that called
later. Both users query whether this broker still leads, for which an earlier result is not valid.
"""

from __future__ import annotations

from collections.abc import Callable

from raftlog.errors import RaftlogError
from raftlog.server.offset_waiters import Acknowledge


class Rounds:
    """Rounds of one query, numbered from 1."""

    __slots__ = ("_answered", "_ask", "_begun", "_under_way", "_waiting")

    def __init__(self, ask: Callable[[Acknowledge], None]) -> None:
        """``ask``: sends the query and calls its argument once, with None or the error."""
        self._ask = ask
        self._begun = self._answered = 0  # round numbers; the last successful one
        self._under_way: list[Acknowledge] | None = None
        self._waiting: list[Acknowledge] = []

    @property
    def mark(self) -> int:
        """The current moment. Rounds that begin from now on have a higher number."""
        return self._begun

    def ask(self, done: Acknowledge, *, since: int | None = None) -> None:
        """Call ``done`` with the result of a query that was sent after the mark ``since``.

        The default of ``since`` is this call. Calls it at once, if such a result exists already.
        """
        if since is not None and since < self._answered:
            done(None)
            return
        self._waiting.append(done)
        if self._under_way is None:
            self._begin()

    def _begin(self) -> None:
        self._under_way, self._waiting = self._waiting, []
        self._begun += 1
        self._ask(self._done)

    def _done(self, error: RaftlogError | None) -> None:
        asked, self._under_way = self._under_way, None
        assert asked is not None
        if error is None:
            self._answered = self._begun
        for done in asked:
            done(error)
        if self._waiting and self._under_way is None:
            self._begin()
