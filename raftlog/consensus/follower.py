"""Progress of one follower as known to its leader, and the next message to send. Pure."""

from __future__ import annotations

from raftlog.consensus.raft_log import FIRST_INDEX
from raftlog.consensus.settings import WINDOW_ENTRIES


class Follower:
    """As etcd's raft has it: *probing*, one append at a time, or sending ahead of the answers.

    Invariant: ``FIRST_INDEX <= match_index < next_index``, and the follower holds, durably, all of
    the leader's entries up to ``match_index``.
    """

    __slots__ = ("commit_sent", "is_probing", "is_waiting", "match_index", "next_index")

    def __init__(self, last_index: int) -> None:
        self.match_index = FIRST_INDEX  # the same everywhere
        self.next_index = last_index + 1  # to send
        self.is_probing = False  # where its log and ours part is being looked for
        self.is_waiting = False  # for the answer to a probe
        self.commit_sent = 0  # the commit index that was sent last

    def restart(self) -> None:
        """Probe the follower's log again: the former connection may have lost messages."""
        if self.match_index > FIRST_INDEX:  # else it was not heard of yet: a guess is as good
            self.next_index = self.match_index + 1
        self.is_probing, self.is_waiting = True, False
        self.commit_sent = 0

    def may_send(self, last_index: int) -> bool:
        """Whether the entry at ``next_index`` exists and may go out before more answers come."""
        if self.is_waiting:
            return False
        return self.next_index <= min(last_index, self.match_index + WINDOW_ENTRIES)

    def sent(self, count: int, commit_index: int) -> None:
        """An append of ``count`` entries from ``next_index`` on went out."""
        self.commit_sent = commit_index
        if self.is_probing:
            self.is_waiting = True
        else:
            self.next_index += count

    def appended(self, index: int) -> bool:
        """Record that it holds all entries up to ``index``. Returns whether this is progress."""
        self.is_probing = self.is_waiting = False
        self.next_index = max(self.next_index, index + 1)
        if index <= self.match_index:
            return False
        self.match_index = index
        return True

    def refused(self, previous: int, guess: int) -> bool:
        """It has another entry than ours at ``previous``, or none, and guesses where to try next.

        Whether there is a probe to send; not for an answer that is older than what we know.
        """
        if self.is_probing:
            if previous != self.next_index - 1:
                return False
        elif previous <= self.match_index:
            return False
        self.next_index = max(self.match_index + 1, min(guess, previous))
        self.is_probing, self.is_waiting = True, False
        return True
