"""One question on behalf of many: each costs a round trip, so only one is out at a time.

An answer counts for every request that came before its question was asked, and for none that came
after. Both uses ask whether this broker still leads, where what was true a moment ago is no answer.
"""

from __future__ import annotations

from collections.abc import Callable

from raftlog.errors import RaftlogError
from raftlog.server.offset_waiters import Acknowledge


class Rounds:
    """The rounds of one question, numbered from 1."""

    __slots__ = ("_answered", "_ask", "_begun", "_under_way", "_waiting")

    def __init__(self, ask: Callable[[Acknowledge], None]) -> None:
        """``ask`` asks the question and calls its argument once: with None, or why not."""
        self._ask = ask
        self._begun = self._answered = 0  # rounds; the last one whose answer was None
        self._under_way: list[Acknowledge] | None = None
        self._waiting: list[Acknowledge] = []

    @property
    def mark(self) -> int:
        """This moment. Rounds that begin from now on have a higher number."""
        return self._begun

    def ask(self, done: Acknowledge, *, since: int | None = None) -> None:
        """Call ``done`` with the answer to a question that was asked after the mark ``since``.

        By default after this call. At once, if such an answer has come already.
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
