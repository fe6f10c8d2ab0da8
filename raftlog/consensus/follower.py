"""Progress of one follower as known to its leader, and the next message to send. Pure."""

from __future__ import annotations

from raftlog.consensus.raft_log import FIRST_INDEX
from raftlog.consensus.settings import WINDOW_ENTRIES


class Follower:
    """States as in etcd's raft: *probing* (one append at a time), or pipelined appends.

    Invariant: ``FIRST_INDEX <= match_index < next_index``, and all of the leader's entries up to
    ``match_index`` are durable on the follower.
    """

    __slots__ = ("commit_sent", "is_probing", "is_waiting", "match_index", "next_index")

    def __init__(self, last_index: int) -> None:
        self.match_index = FIRST_INDEX  # this entry is the same in every log
        self.next_index = last_index + 1  # next entry to send
        self.is_probing = False  # the last entry that both logs have is not known
        self.is_waiting = False  # a probe has no response yet
        self.commit_sent = 0  # last commit index sent

    def restart(self) -> None:
        """Probe the follower's log again: the previous connection may have lost messages."""
        if self.match_index > FIRST_INDEX:  # else there was no response: keep the first guess
            self.next_index = self.match_index + 1
        self.is_probing, self.is_waiting = True, False
        self.commit_sent = 0

    def may_send(self, last_index: int) -> bool:
        """Return whether the entry at ``next_index`` exists and can be sent before more responses
        arrive.
        """
        if self.is_waiting:
            return False
        return self.next_index <= min(last_index, self.match_index + WINDOW_ENTRIES)

    def sent(self, count: int, commit_index: int) -> None:
        """Record that an append of ``count`` entries from ``next_index`` on was sent."""
        self.commit_sent = commit_index
        if self.is_probing:
            self.is_waiting = True
        else:
            self.next_index += count

    def appended(self, index: int) -> bool:
        """Record that it stores all entries up to ``index``. Returns whether this is progress."""
        self.is_probing = self.is_waiting = False
        self.next_index = max(self.next_index, index + 1)
        if index <= self.match_index:
            return False
        self.match_index = index
        return True

    def refused(self, previous: int, guess: int) -> bool:
        """Record that its entry at ``previous`` is missing or different from the leader's.

        ``guess``: the index that it suggests to probe next. Returns whether to send a probe; False
        for a stale response.
        """
        if self.is_probing:
            if previous != self.next_index - 1:
                return False
        elif previous <= self.match_index:
            return False
        self.next_index = max(self.match_index + 1, min(guess, previous))
        self.is_probing, self.is_waiting = True, False
        return True
