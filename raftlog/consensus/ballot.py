"""Vote counting and election timeouts. Identities and numbers only.

A pre-vote determines which voters would grant a vote, before the term is incremented (Raft
dissertation, 9.6). Voters are counted by identity: a duplicate response counts once (hazard 4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog.consensus.library import Timing

_DOUBLINGS_MAX: Final = 20


class Ballot:
    """Elections of one voter. ``chance`` returns random numbers in [0, 1)."""

    __slots__ = ("_attempts", "_broker_id", "_chance", "_quorum", "_round", "_timing", "_votes",
                 "_would_vote")  # fmt: skip

    def __init__(
        self, broker_id: int, voters: int, timing: Timing, chance: Callable[[], float]
    ) -> None:
        self._broker_id = broker_id
        self._quorum = voters // 2 + 1
        self._timing = timing
        self._chance = chance
        self._attempts = 0  # elections since the last known leader
        self._round = 0
        self._would_vote: set[int] | None = None  # None: no pre-vote is in progress
        self._votes: set[int] | None = None

    # -- votes -------------------------------------------------------------------------------------

    def ask(self) -> int:
        """Start a round of pre-votes. Returns its number; responses to older rounds are ignored."""
        self._round += 1
        self._would_vote = {self._broker_id}
        return self._round

    def would_vote(self, peer: int, round_number: int) -> bool:
        """Count a granted pre-vote. Returns whether a majority has granted it."""
        if self._would_vote is None or round_number != self._round:
            return False
        self._would_vote.add(peer)
        return len(self._would_vote) >= self._quorum

    def stand(self) -> bool:
        """Start an election with this broker's vote. Returns whether that is a majority."""
        self._would_vote = None
        self._votes = {self._broker_id}
        return len(self._votes) >= self._quorum

    def vote(self, peer: int) -> bool:
        """Count a vote in this election. Returns whether a majority has voted."""
        if self._votes is None:
            return False
        self._votes.add(peer)
        return len(self._votes) >= self._quorum

    def close(self) -> None:
        """End the election and the pre-vote: the term or the leader has changed."""
        self._votes = self._would_vote = None

    def is_quorum(self, count: int) -> bool:
        return count >= self._quorum

    # -- timeouts, in seconds ----------------------------------------------------------------------

    def leader_found(self) -> None:
        self._attempts = 0

    def patience(self) -> float:
        """Return the election timeout after the last message of a known leader."""
        return self._timing.election * (1 + self._chance())

    def short_wait(self) -> float:
        """Return the election timeout if there is no leader, or no link to it."""
        return self._timing.suspect * (1 + 3 * self._chance())

    def unhurried_wait(self) -> float:
        """Return the time until the first election of a group that needs no leader yet."""
        return self._timing.heartbeat * (1 + self._chance())

    def idle_wait(self) -> float:
        """Return the time until the next heartbeat of an idle group. It is random, so that groups
        do not send their heartbeats at the same time.
        """
        return self._timing.idle_heartbeat * (1 + self._chance()) / 2

    def next_wait(self) -> float:
        """Return the time until the next election: doubled each time, up to the timeout."""
        wait = self._timing.suspect * 4 * float(1 << self._attempts)
        self._attempts = min(self._attempts + 1, _DOUBLINGS_MAX)
        return min(wait, self._timing.election) * (1 + self._chance())
