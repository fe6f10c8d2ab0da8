"""Vote counting and election timeouts. Identities and numbers only.

A pre-vote finds out which voters would vote, before a term is used (Raft dissertation, 9.6). Voters
are counted by identity: a response that arrives twice counts once (hazard 4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog.consensus.library import Timing

_DOUBLINGS_MAX: Final = 20


class Ballot:
    """One voter's elections. ``chance`` gives numbers in [0, 1)."""

    __slots__ = ("_attempts", "_broker_id", "_chance", "_quorum", "_round", "_timing", "_votes",
                 "_would_vote")  # fmt: skip

    def __init__(
        self, broker_id: int, voters: int, timing: Timing, chance: Callable[[], float]
    ) -> None:
        self._broker_id = broker_id
        self._quorum = voters // 2 + 1
        self._timing = timing
        self._chance = chance
        self._attempts = 0  # since there was a leader
        self._round = 0
        self._would_vote: set[int] | None = None  # None: not asking
        self._votes: set[int] | None = None

    # -- votes -------------------------------------------------------------------------------------

    def ask(self) -> int:
        """Begin a round of pre-votes. Returns its number; older responses are ignored."""
        self._round += 1
        self._would_vote = {self._broker_id}
        return self._round

    def would_vote(self, peer: int, round_number: int) -> bool:
        """Count a granted pre-vote; whether they are a majority."""
        if self._would_vote is None or round_number != self._round:
            return False
        self._would_vote.add(peer)
        return len(self._would_vote) >= self._quorum

    def stand(self) -> bool:
        """Begin an election with our own vote; whether that is a majority."""
        self._would_vote = None
        self._votes = {self._broker_id}
        return len(self._votes) >= self._quorum

    def vote(self, peer: int) -> bool:
        """Count a vote in this election; whether they are a majority."""
        if self._votes is None:
            return False
        self._votes.add(peer)
        return len(self._votes) >= self._quorum

    def close(self) -> None:
        """End the election and the pre-vote: the term or the leader has changed."""
        self._votes = self._would_vote = None

    def is_quorum(self, count: int) -> bool:
        return count >= self._quorum

    # -- waiting, in seconds -----------------------------------------------------------------------

    def leader_found(self) -> None:
        self._attempts = 0

    def patience(self) -> float:
        """Return the election timeout: the wait without messages of a known leader."""
        return self._timing.election * (1 + self._chance())

    def short_wait(self) -> float:
        """The same when there is no leader, or no link to it."""
        return self._timing.suspect * (1 + 3 * self._chance())

    def unhurried_wait(self) -> float:
        """Until the first election of a group that needs no leader yet."""
        return self._timing.heartbeat * (1 + self._chance())

    def idle_wait(self) -> float:
        """Until the next heartbeat of an idle group: spread, so that not all groups send theirs at
        once.
        """
        return self._timing.idle_heartbeat * (1 + self._chance()) / 2

    def next_wait(self) -> float:
        """Until the next attempt: twice as long each time, up to the election timeout."""
        wait = self._timing.suspect * 4 * float(1 << self._attempts)
        self._attempts = min(self._attempts + 1, _DOUBLINGS_MAX)
        return min(wait, self._timing.election) * (1 + self._chance())
